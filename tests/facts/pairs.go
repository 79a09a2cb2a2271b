package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	appsv1beta1 "k8s.io/api/apps/v1beta1"
	appsv1beta2 "k8s.io/api/apps/v1beta2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// pairs writes random objects as Go's own serializers do, after the little that a kube-apiserver does to them.
func pairs(out *bufio.Writer, minor string, count int, seed int64) error {
	scheme := newScheme()
	random := rand.New(rand.NewSource(seed))
	for _, kind := range objectKinds(scheme) {
		for at := range count {
			body, text, err := pair(scheme, random, kind, at)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			fmt.Fprintf(out, "%s\t%s\t%s\t%x\t%s\n", minor, kind.GroupVersion(), kind.Kind, body, text)
		}
	}
	return nil
}

// pair is one object's body in protobuf and in JSON. What has no protobuf form, such as a nil that is not an empty list,
// is lost before the JSON is written, as in what a kube-apiserver has read from etcd.
func pair(scheme *runtime.Scheme, random *rand.Rand, kind schema.GroupVersionKind, at int) ([]byte, []byte, error) {
	object, err := scheme.New(kind)
	if err != nil {
		return nil, nil, err
	}
	nils := []float64{0.1, 0.5, 0.9, 0}[at%4]
	if kind.Kind == "CustomResourceDefinition" || strings.HasSuffix(kind.Kind, "List") {
		nils = 0.8
	}
	fill := filler(random, nils)
	fill.Fill(object)
	if definition, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
		// What is nil or empty of those is not known from protobuf alone.
		definition.Spec.Versions = append(definition.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{})
		fill.Fill(&definition.Spec.Versions[0])
		definition.Status.Conditions = append(definition.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{})
		definition.Status.StoredVersions = append(definition.Status.StoredVersions, "v1")
	}
	object.GetObjectKind().SetGroupVersionKind(kind)

	raw := protobuf.NewRawSerializer(scheme, scheme)
	var body bytes.Buffer
	if err := raw.Encode(object, &body); err != nil {
		return nil, nil, err
	}
	read, err := scheme.New(kind)
	if err != nil {
		return nil, nil, err
	}
	// Nothing set is nothing written, which cannot be read.
	if body.Len() > 0 {
		if _, _, err := raw.Decode(body.Bytes(), &kind, read); err != nil {
			return nil, nil, err
		}
	}
	read.GetObjectKind().SetGroupVersionKind(kind)
	asServed(read)
	options := jsonserializer.SerializerOptions{}
	var text bytes.Buffer
	serializer := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme, scheme, options)
	if err := serializer.Encode(read, &text); err != nil {
		return nil, nil, err
	}
	head := fmt.Sprintf(`{"kind":"%s","apiVersion":"%s"`, kind.Kind, kind.GroupVersion())
	tail, found := bytes.CutPrefix(bytes.TrimSpace(text.Bytes()), []byte(head))
	if !found {
		return nil, nil, fmt.Errorf("its JSON begins with something else")
	}
	return body.Bytes(), bytes.TrimPrefix(tail, []byte(",")), nil
}

// asServed does what is done between a kube-apiserver's storage and its serializers, as far as it shows.
func asServed(object runtime.Object) {
	// A list is made from a slice that is empty, not nil.
	if items := reflect.ValueOf(object).Elem().FieldByName("Items"); items.IsValid() && items.IsNil() {
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	// pkg/apis/apps/v1/conversion.go, and the same of the other versions.
	for _, spec := range claimTemplates(object) {
		for at := range spec {
			spec[at].TypeMeta = metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"}
		}
	}
}

func claimTemplates(object runtime.Object) [][]corev1.PersistentVolumeClaim {
	switch object := object.(type) {
	case *appsv1.StatefulSet:
		return [][]corev1.PersistentVolumeClaim{object.Spec.VolumeClaimTemplates}
	case *appsv1beta1.StatefulSet:
		return [][]corev1.PersistentVolumeClaim{object.Spec.VolumeClaimTemplates}
	case *appsv1beta2.StatefulSet:
		return [][]corev1.PersistentVolumeClaim{object.Spec.VolumeClaimTemplates}
	case *appsv1.StatefulSetList:
		return claimTemplatesOf(object.Items)
	case *appsv1beta1.StatefulSetList:
		return claimTemplatesOf(object.Items)
	case *appsv1beta2.StatefulSetList:
		return claimTemplatesOf(object.Items)
	}
	return nil
}

func claimTemplatesOf[T any](items []T) [][]corev1.PersistentVolumeClaim {
	var templates [][]corev1.PersistentVolumeClaim
	for at := range items {
		templates = append(templates, claimTemplates(any(&items[at]).(runtime.Object))...)
	}
	return templates
}
