package main

import (
	"sort"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// newScheme has everything that a kube-apiserver serves. Beta CRDs are not served by any minor of the table.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubernetes.AddToScheme,
		apiextensionsv1.AddToScheme,
		apiregistrationv1.AddToScheme,
		metav1.AddMetaToScheme,
		metav1beta1.AddMetaToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}

// notObjects are registered in every group, or never read as an object.
var notObjects = map[string]bool{
	"APIGroup": true, "APIGroupList": true, "APIResourceList": true, "APIVersions": true,
	"InternalEvent": true, "Table": true, "WatchEvent": true,
	// Its items have a kind in JSON and none in protobuf.
	"PartialObjectMetadataList": true,
}

// objectKinds are the kinds with a protobuf form that are read as objects or as lists, sorted.
func objectKinds(scheme *runtime.Scheme) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for kind, typ := range scheme.AllKnownTypes() {
		shared := strings.HasPrefix(typ.PkgPath(), "k8s.io/apimachinery") && kind.Group != "meta.k8s.io"
		switch {
		case kind.Version == "" || kind.Version == runtime.APIVersionInternal || notObjects[kind.Kind]:
		case shared && kind != schema.GroupVersionKind{Version: "v1", Kind: "Status"}:
		case strings.HasSuffix(kind.Kind, "Options"):
		case !isMessage(typ):
		default:
			kinds = append(kinds, kind)
		}
	}
	sort.Slice(kinds, func(a, b int) bool { return kinds[a].String() < kinds[b].String() })
	return kinds
}
