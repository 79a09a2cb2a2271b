package main

import (
	"fmt"
	"math"
	"math/rand"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

// texts are what strings are made of: all that Go's JSON treats differently from plain ASCII.
var texts = []string{
	"", "a", "nginx:1.25", "<b>&\"\\\n\t\u2028\u2029", "héllo 世界 🎉", "\x7f\x01\x1f", "\xff\xfe bad", "x/y", "\b\f\r",
	"\xed\xa0\x80", "\xe2\x80", "\xc0\xaf\xf4\x90\x80\x80", "\ufffd\u0000", "\u00e2\u20ac\u00a8",
}

var jsons = []string{
	`{"a":1}`, `{"z":[1, 2.50,"<x>\u00e9"], "b" : null}`, ` [ ] `, `"str"`, `12345678901234567890`, "{\"k\":\"\u2028&\"}",
	`{"\\":"\\\" \\"}`, "true", `-1.5e+10`,
}

var quantities = []string{
	"0", "1", "100m", "1500m", "1Gi", "128974848", "129e6", "0.5", "1e3", "12345678901234567890123", "-3", "1.5Gi", "100u", "3n",
}

var floats = []float64{
	0, 1, -1.5, 1e21, 1e20, 123456789.125, 1e-7, 0.000001, 3.14159e-9, 1e100, 12345678901234567890, 5e-324, math.MaxFloat64,
	math.Copysign(0, -1), 9.999999999999999e20, 0.1, 100, 1e-10, -2.5e-100,
}

// filler fills objects at random, pointers being nil and lists empty with the chance that is given.
func filler(random *rand.Rand, nils float64) *randfill.Filler {
	text := func() string { return pick(random, texts) + fmt.Sprint(random.Intn(3)) }
	filler := randfill.NewWithSeed(random.Int63()).NilChance(nils).NumElements(0, 3).MaxDepth(14)
	return filler.Funcs(append(schemaFuncs(random, text), append(timeFuncs(random),
		func(q *resource.Quantity, _ randfill.Continue) { *q = resource.MustParse(pick(random, quantities)) },
		func(value *intstr.IntOrString, _ randfill.Continue) {
			*value = intstr.FromInt32(int32(random.Intn(1000) - 3))
			if random.Intn(2) == 0 {
				*value = intstr.FromString(text())
			}
		},
		func(raw *runtime.RawExtension, _ randfill.Continue) {
			*raw = runtime.RawExtension{}
			if random.Intn(3) > 0 {
				raw.Raw = []byte(pick(random, jsons))
			}
		},
		func(fields *metav1.FieldsV1, _ randfill.Continue) {
			*fields = metav1.FieldsV1{}
			if random.Intn(5) > 0 {
				// Not by assignment to Raw: what FieldsV1 is made of differs between minors.
				text := `{"f:metadata":{"f:labels":{".":{},"k:{\"a\":\"<&>\"}":{}}}}`
				_ = fields.UnmarshalJSON([]byte(text))
			}
		},
		func(value *string, _ randfill.Continue) { *value = zeroOr(random, text()) },
		func(value *int32, _ randfill.Continue) { *value = zeroOr(random, int32(random.Uint32())) },
		func(value *int64, _ randfill.Continue) { *value = zeroOr(random, int64(random.Uint64())) },
		func(value *float64, _ randfill.Continue) { *value = pick(random, floats) },
		func(value *bool, _ randfill.Continue) { *value = random.Intn(2) == 0 },
	)...)...)
}

func timeFuncs(random *rand.Rand) []any {
	return []any{
		func(value *metav1.Time, _ randfill.Continue) {
			*value = zeroOr(random, metav1.Time{Time: time.Unix(random.Int63n(4e9)-1e9, random.Int63n(1e9)).Local()})
		},
		func(value *metav1.MicroTime, _ randfill.Continue) {
			*value = zeroOr(random, metav1.MicroTime{Time: time.Unix(random.Int63n(4e9)-1e9, random.Int63n(1e9)).Local()})
		},
		func(value *metav1.Duration, _ randfill.Continue) {
			value.Duration = pick(random, []time.Duration{
				0, 1, 999, time.Duration(random.Int63n(2e6)), time.Duration(random.Int63n(3e9) - 1e9),
				time.Duration(random.Int63n(20000)) * time.Second, time.Duration(random.Int63n(1e15) - 3e14), math.MinInt64,
			})
		},
	}
}

func schemaFuncs(random *rand.Rand, text func() string) []any {
	schema := func() *apiextensionsv1.JSONSchemaProps { return &apiextensionsv1.JSONSchemaProps{Type: text()} }
	return []any{
		func(value *apiextensionsv1.JSON, _ randfill.Continue) { value.Raw = []byte(pick(random, jsons)) },
		func(value *apiextensionsv1.JSONSchemaPropsOrBool, _ randfill.Continue) {
			*value = apiextensionsv1.JSONSchemaPropsOrBool{Allows: random.Intn(2) == 0}
			if random.Intn(3) == 0 {
				*value = apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: schema()}
			}
		},
		func(value *apiextensionsv1.JSONSchemaPropsOrArray, _ randfill.Continue) {
			*value = pick(random, []apiextensionsv1.JSONSchemaPropsOrArray{
				{}, {Schema: schema()}, {JSONSchemas: []apiextensionsv1.JSONSchemaProps{{Type: text()}, {}}},
			})
		},
		func(value *apiextensionsv1.JSONSchemaPropsOrStringArray, _ randfill.Continue) {
			*value = pick(random, []apiextensionsv1.JSONSchemaPropsOrStringArray{
				{}, {Schema: schema()}, {Property: []string{text(), ""}},
			})
		},
	}
}

func pick[T any](random *rand.Rand, values []T) T { return values[random.Intn(len(values))] }

func zeroOr[T any](random *rand.Rand, value T) T {
	var zero T
	if random.Intn(3) == 0 {
		return zero
	}
	return value
}
