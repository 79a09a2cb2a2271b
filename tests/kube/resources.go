package main

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// apiObject is any typed Kubernetes object.
type apiObject interface {
	runtime.Object
	metav1.Object
}

// A resource is a resource of the core API group that the driver can read and, if it
// has a build function, write. Going through the REST client by name keeps the
// commands free of one code path per type.
type resource struct {
	name    string
	newItem func() apiObject
	newList func() metav1.ListInterface
	build   func(name string, index int, o buildOptions) apiObject
}

var resources = map[string]resource{
	"pods":       {"pods", func() apiObject { return &corev1.Pod{} }, func() metav1.ListInterface { return &corev1.PodList{} }, buildPod},
	"configmaps": {"configmaps", func() apiObject { return &corev1.ConfigMap{} }, func() metav1.ListInterface { return &corev1.ConfigMapList{} }, buildConfigMap},
	"secrets":    {"secrets", func() apiObject { return &corev1.Secret{} }, func() metav1.ListInterface { return &corev1.SecretList{} }, buildSecret},
	"services":   {"services", func() apiObject { return &corev1.Service{} }, func() metav1.ListInterface { return &corev1.ServiceList{} }, nil},
	"namespaces": {"namespaces", func() apiObject { return &corev1.Namespace{} }, func() metav1.ListInterface { return &corev1.NamespaceList{} }, nil},
	"nodes":      {"nodes", func() apiObject { return &corev1.Node{} }, func() metav1.ListInterface { return &corev1.NodeList{} }, nil},
	"events":     {"events", func() apiObject { return &corev1.Event{} }, func() metav1.ListInterface { return &corev1.EventList{} }, nil},
}

// findResource accepts the resources that can be written only if writable is set.
func findResource(name string, writable bool) (resource, error) {
	var known []string
	for _, r := range resources {
		if r.build == nil && writable {
			continue
		}
		if r.name == name {
			return r, nil
		}
		known = append(known, r.name)
	}
	sort.Strings(known)
	return resource{}, usagef("--resource %q: must be one of %s", name, strings.Join(known, ", "))
}

// collection addresses the objects of a resource in one namespace, or everywhere if
// the namespace is empty.
type collection struct {
	resource
	client    rest.Interface
	namespace string
}

func (c collection) get(ctx context.Context, name string, o metav1.GetOptions) (apiObject, error) {
	out := c.newItem()
	err := c.client.Get().Namespace(c.namespace).Resource(c.name).Name(name).
		VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(out)
	return out, err
}

func (c collection) list(ctx context.Context, o metav1.ListOptions) (metav1.ListInterface, error) {
	out := c.newList()
	err := c.client.Get().Namespace(c.namespace).Resource(c.name).
		VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(out.(runtime.Object))
	return out, err
}

func (c collection) create(ctx context.Context, object apiObject) (apiObject, error) {
	out := c.newItem()
	err := c.client.Post().Namespace(c.namespace).Resource(c.name).Body(object).Do(ctx).Into(out)
	return out, err
}

func (c collection) update(ctx context.Context, object apiObject) (apiObject, error) {
	out := c.newItem()
	err := c.client.Put().Namespace(c.namespace).Resource(c.name).Name(object.GetName()).Body(object).Do(ctx).Into(out)
	return out, err
}

// delete removes at once: no kubelet is there to end a grace period.
func (c collection) delete(ctx context.Context, name string) error {
	return c.client.Delete().Namespace(c.namespace).Resource(c.name).Name(name).
		Body(metav1.NewDeleteOptions(0)).Do(ctx).Error()
}

func objectKey(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// parseRV reads a resource version as the number that it is since Kubernetes 1.35.
func parseRV(rv string) (uint64, error) {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version %q is not a number", rv)
	}
	return n, nil
}
