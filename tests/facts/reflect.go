package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// customForms are the types whose JSON is not that of their fields, with their names in the table.
var customForms = map[string]string{
	"meta/v1.Time":                                  "time",
	"meta/v1.MicroTime":                             "microtime",
	"meta/v1.Duration":                              "duration",
	"meta/v1.FieldsV1":                              "fields",
	"api/resource.Quantity":                         "quantity",
	"util/intstr.IntOrString":                       "intorstring",
	"pkg/runtime.RawExtension":                      "raw",
	"apiextensions/v1.JSON":                         "json",
	"apiextensions/v1.JSONSchemaPropsOrBool":        "orbool:apiextensions/v1.JSONSchemaProps",
	"apiextensions/v1.JSONSchemaPropsOrArray":       "orarray:apiextensions/v1.JSONSchemaProps",
	"apiextensions/v1.JSONSchemaPropsOrStringArray": "orstrings:apiextensions/v1.JSONSchemaProps",
}

var (
	messageType   = reflect.TypeFor[interface{ Marshal() ([]byte, error) }]()
	marshalerType = reflect.TypeFor[json.Marshaler]()
	typeMetaType  = reflect.TypeFor[metav1.TypeMeta]()
)

func isMessage(typ reflect.Type) bool { return reflect.PointerTo(typ).Implements(messageType) }

// reflector walks the types from the kinds down. What it does not understand is an error: a table that is wrong in
// silence would make a proxy that is.
type reflector struct {
	facts    *Facts
	packages map[string]string // short name of a message → the package it is in
	errs     []error
}

func reflectFacts() (*Facts, error) {
	scheme := newScheme()
	r := &reflector{facts: newFacts(), packages: map[string]string{}}
	for _, kind := range objectKinds(scheme) {
		typ := scheme.AllKnownTypes()[kind]
		r.facts.addKind(Kind{kind.GroupVersion().String(), kind.Kind, r.message(typ), Range{}})
	}
	return r.facts, errors.Join(r.errs...)
}

func (r *reflector) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// name is the last two parts of the package and the type's name.
func (r *reflector) name(typ reflect.Type) string {
	parts := strings.Split(typ.PkgPath(), "/")
	name := strings.Join(parts[max(0, len(parts)-2):], "/") + "." + typ.Name()
	if known, ok := r.packages[name]; ok && known != typ.PkgPath() {
		r.fail("%s is in %s and in %s", name, known, typ.PkgPath())
	}
	r.packages[name] = typ.PkgPath()
	return name
}

// message adds a struct's fields, and those of all that it has.
func (r *reflector) message(typ reflect.Type) string {
	name := r.name(typ)
	if _, known := r.facts.messages[name]; known {
		return name
	}
	message := &Message{name: name}
	r.facts.messages[name] = message
	for at := range typ.NumField() {
		if line := r.field(name, typ.Field(at)); line != "" {
			message.fields = append(message.fields, Field{facts: line})
		}
	}
	return name
}

// field is one line of the table, empty for what is in neither form.
func (r *reflector) field(message string, field reflect.StructField) string {
	path := message + "." + field.Name
	jsonName, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	// TypeMeta is not in protobuf: the envelope has it, or a rule (StatefulSet).
	if jsonName == "-" || field.Type == typeMetaType {
		return ""
	}
	// The wire type that comes first is not to be relied on: some tags say bytes of an integer.
	_, tag, _ := strings.Cut(field.Tag.Get("protobuf"), ",")
	tag, _, _ = strings.Cut(tag, ",")
	number, err := strconv.Atoi(tag)
	if err != nil {
		r.fail("%s has no protobuf number", path)
		return ""
	}
	flags := r.jsonFlags(path, options)
	if jsonName == "" {
		jsonName = field.Name
		if field.Anonymous {
			jsonName = "-"
			flags += "i"
		}
	}
	kind, shape := r.shape(path, field.Type)
	if flags += shape; flags == "" {
		flags = "-"
	}
	return fmt.Sprintf("%s %d %s %s", jsonName, number, kind, flags)
}

func (r *reflector) jsonFlags(path, options string) string {
	flags := ""
	for _, option := range strings.Split(options, ",") {
		switch option {
		case "omitempty":
			flags += "e"
		case "omitzero":
			flags += "z"
		case "", "inline":
		default:
			r.fail("%s has the JSON option %q", path, option)
		}
	}
	return flags
}

// shape is what one value is, and the flags of how many there are.
func (r *reflector) shape(path string, typ reflect.Type) (kind, flags string) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
		flags += "p"
	}
	_, custom := customForms[r.nameOrNone(typ)]
	switch {
	case custom || isStrings(typ):
	case typ.Kind() == reflect.Map:
		if typ.Key().Kind() != reflect.String {
			r.fail("%s is a map with keys that are not strings", path)
		}
		flags += "m"
		typ = typ.Elem()
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() != reflect.Uint8:
		flags += "r"
		typ = typ.Elem()
	}
	if typ.Kind() == reflect.Pointer && strings.ContainsAny(flags, "mr") {
		typ = typ.Elem()
	}
	return r.kind(path, typ), flags
}

// isStrings says whether typ is a list that is a message of its own, as ExtraValue is.
func isStrings(typ reflect.Type) bool {
	return typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.String && isMessage(typ)
}

func (r *reflector) nameOrNone(typ reflect.Type) string {
	if typ.Name() == "" || typ.PkgPath() == "" {
		return ""
	}
	return r.name(typ)
}

func (r *reflector) kind(path string, typ reflect.Type) string {
	name := r.nameOrNone(typ)
	if form, custom := customForms[name]; custom {
		if _, ref, ok := strings.Cut(form, ":"); ok {
			if _, known := r.facts.messages[ref]; !known {
				r.fail("%s is met before %s", path, ref)
			}
		}
		return form
	}
	if typ.Implements(marshalerType) || reflect.PointerTo(typ).Implements(marshalerType) {
		r.fail("%s: %s has a JSON form of its own", path, name)
	}
	switch typ.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int32:
		return "int32"
	case reflect.Int64, reflect.Int:
		return "int64"
	case reflect.Float64:
		return "double"
	case reflect.String:
		return "string"
	case reflect.Struct:
		return "message:" + r.message(typ)
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if isStrings(typ) {
			return "strings"
		}
	}
	r.fail("%s has type %s", path, typ)
	return "unknown"
}
