package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// informerEvent is one call of an event handler.
type informerEvent struct {
	Kind     string `json:"kind"` // "event"
	Informer int    `json:"informer"`
	Type     string `json:"type"` // add, update or delete
	Key      string `json:"key"`
	RV       uint64 `json:"rv"`
	Initial  bool   `json:"initial,omitempty"` // part of the first list
	AtNS     int64  `json:"at_ns"`
}

// observedInformer is a shared informer with a handler that records.
type observedInformer struct {
	index    int
	informer cache.SharedIndexInformer
	handler  cache.ResourceEventHandlerRegistration
	out      *lines

	mutex       sync.Mutex
	seen        map[string]uint64 // what the events add up to
	events      int
	regressions int // events that took an object back in time
}

func newInformer(index int, by clients, r resource, o *informerOptions, out *lines) (*observedInformer, error) {
	i := &observedInformer{index: index, out: out, seen: map[string]uint64{}, informer: sharedInformer(by, r, o)}
	var err error
	i.handler, err = i.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, initial bool) { i.record("add", object, initial) },
		UpdateFunc: func(_, object any) { i.record("update", object, false) },
		DeleteFunc: func(object any) { i.record("delete", object, false) },
	})
	if err != nil {
		return nil, fmt.Errorf("add handler to informer %d: %w", index, err)
	}
	return i, nil
}

// sharedInformer is the informer of one of client-go's three kinds of clients.
func sharedInformer(by clients, r resource, o *informerOptions) cache.SharedIndexInformer {
	selects := func(options *metav1.ListOptions) {
		options.FieldSelector = o.fieldSelector
		options.LabelSelector = o.labelSelector
	}
	name := corev1.SchemeGroupVersion.WithResource(r.name)
	switch o.kind {
	case "dynamic":
		return dynamicinformer.NewFilteredDynamicInformer(
			by.dynamic, name, o.namespace, 0, cache.Indexers{}, selects).Informer()
	case "metadata":
		return metadatainformer.NewFilteredMetadataInformer(
			by.metadata, name, o.namespace, 0, cache.Indexers{}, selects).Informer()
	default:
		listWatch := cache.NewFilteredListWatchFromClient(by.typed.CoreV1().RESTClient(), r.name, o.namespace, selects)
		return cache.NewSharedIndexInformer(listWatch, r.newItem(), 0, cache.Indexers{})
	}
}

func (i *observedInformer) record(kind string, object any, initial bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		// The deletion itself was missed and found by a list.
		object, kind = tombstone.Obj, "delete-missed"
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	rv, _ := parseRV(accessor.GetResourceVersion())
	key := objectKey(accessor)
	i.mutex.Lock()
	i.events++
	if rv < i.seen[key] {
		i.regressions++
	}
	if strings.HasPrefix(kind, "delete") {
		delete(i.seen, key)
	} else {
		i.seen[key] = rv
	}
	i.mutex.Unlock()
	i.out.write(informerEvent{"event", i.index, kind, key, rv, initial, time.Now().UnixNano()})
	if !initial {
		// A test may wait for this line before it writes the next object.
		i.out.flush()
	}
}

// versionedStore is a store that knows its version, as those of client-go do from 1.36 on.
type versionedStore interface{ LastStoreSyncResourceVersion() string }

// rv is how far the store is, by its objects and by bookmarks; of earlier releases, how far
// its informer has read, which may be a moment ahead.
func (i *observedInformer) rv() uint64 {
	version := i.informer.LastSyncResourceVersion
	if store, ok := i.informer.GetStore().(versionedStore); ok {
		version = store.LastStoreSyncResourceVersion
	}
	rv, _ := parseRV(version())
	return rv
}

func (i *observedInformer) store() map[string]uint64 {
	objects := map[string]uint64{}
	for _, object := range i.informer.GetStore().List() {
		if accessor, err := meta.Accessor(object); err == nil {
			objects[objectKey(accessor)], _ = parseRV(accessor.GetResourceVersion())
		}
	}
	return objects
}

// awaitHandlers waits until the handler has been called for all that is in the store;
// the calls come from a queue of their own.
func (i *observedInformer) awaitHandlers(ctx context.Context) error {
	for {
		store := i.store()
		i.mutex.Lock()
		same := equalMaps(store, i.seen)
		i.mutex.Unlock()
		if same {
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("informer %d: its events never added up to its store: %w", i.index, context.Cause(ctx))
		}
	}
}

// requestCount counts the requests of informers by kind: more than one list per
// informer means that a watch could not be resumed.
type requestCount struct {
	next                   http.RoundTripper
	list, watch, watchList atomic.Int64
}

func (r *requestCount) wrap(next http.RoundTripper) http.RoundTripper {
	r.next = next
	return r
}

func (r *requestCount) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	switch {
	case query.Get("sendInitialEvents") == "true":
		r.watchList.Add(1)
	case query.Get("watch") == "true":
		r.watch.Add(1)
	default:
		r.list.Add(1)
	}
	return r.next.RoundTrip(request)
}
