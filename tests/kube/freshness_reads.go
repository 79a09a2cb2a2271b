package main

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// freshnessRead is one way to read an object without giving a resource version. It
// returns the object's version, or 0 if it is not there.
type freshnessRead struct {
	name string
	see  func(ctx context.Context, c collection, name string) (uint64, error)
}

var freshnessReads = []freshnessRead{
	{"get", seeByGet},
	{"list", func(ctx context.Context, c collection, name string) (uint64, error) {
		return seeByList(ctx, c, name, metav1.ListOptions{})
	}},
	{"list-selector", func(ctx context.Context, c collection, name string) (uint64, error) {
		return seeByList(ctx, c, name, metav1.ListOptions{LabelSelector: partOf(name)})
	}},
	{"watchlist", seeByWatchList},
}

func seeByGet(ctx context.Context, c collection, name string) (uint64, error) {
	object, err := c.get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseRV(object.GetResourceVersion())
}

func seeByList(ctx context.Context, c collection, name string, o metav1.ListOptions) (uint64, error) {
	list, err := c.list(ctx, o)
	if err != nil {
		return 0, err
	}
	for _, object := range listItems(list) {
		if object.GetName() == name {
			return parseRV(object.GetResourceVersion())
		}
	}
	return 0, nil
}

// seeByWatchList reads the initial events of a watch, as a client does that lists by
// watching.
func seeByWatchList(ctx context.Context, c collection, name string) (uint64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sendInitial := true
	watcher, err := c.client.Get().Namespace(c.namespace).Resource(c.name).VersionedParams(&metav1.ListOptions{
		Watch:                true,
		AllowWatchBookmarks:  true,
		SendInitialEvents:    &sendInitial,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}, scheme.ParameterCodec).Watch(ctx)
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	var seen uint64
	for event := range watcher.ResultChan() {
		if event.Type == watch.Error {
			return 0, apierrors.FromObject(event.Object)
		}
		object, ok := event.Object.(apiObject)
		if !ok {
			return 0, fmt.Errorf("a %s event with a %T", event.Type, event.Object)
		}
		if event.Type == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			return seen, nil
		}
		if object.GetName() != name {
			continue
		}
		if seen, err = parseRV(object.GetResourceVersion()); err != nil {
			return 0, err
		}
		if event.Type == watch.Deleted {
			seen = 0
		}
	}
	return 0, errors.New("the watch ended before its initial events did")
}
