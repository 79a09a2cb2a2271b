package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	toolswatch "k8s.io/client-go/tools/watch"
)

// deletion is what one delete wrote: for a pod, two versions.
type deletion struct {
	rv       uint64 // of the event DELETED
	markedRV uint64 // of the event MODIFIED before it that set deletionTimestamp, if any
}

// deletionLog knows at which resource versions objects were deleted. The answer to a
// delete does not say, or not all, so it is read from a watch beside the writes.
type deletionLog struct {
	collection
	selector string

	mutex   sync.Mutex
	changed chan struct{} // closed and replaced when the log grows
	log     map[types.UID]deletion
}

// newDeletionLog knows of the deletions made after it returns. When its watch cannot
// be resumed, as can happen after a restart of the apiserver, it starts another;
// deletions in the gap are lost, and wait says so.
func newDeletionLog(ctx context.Context, c collection, prefix string) (*deletionLog, error) {
	l := &deletionLog{collection: c, selector: partOf(prefix), changed: make(chan struct{}), log: map[types.UID]deletion{}}
	list, err := l.list(ctx, metav1.ListOptions{LabelSelector: l.selector, Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("list before watching deletions: %w", err)
	}
	go func() {
		for {
			if err == nil {
				l.follow(ctx, list.GetResourceVersion())
			}
			if !sleep(ctx, 100*time.Millisecond) {
				return
			}
			list, err = l.list(ctx, metav1.ListOptions{LabelSelector: l.selector, Limit: 1})
		}
	}()
	return l, nil
}

func (l *deletionLog) follow(ctx context.Context, rv string) {
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, rv, l)
	if err != nil {
		return
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(apiObject)
		if !ok || (event.Type != watch.Deleted && object.GetDeletionTimestamp() == nil) {
			continue
		}
		if rv, err := parseRV(object.GetResourceVersion()); err == nil {
			l.add(object.GetUID(), rv, event.Type == watch.Deleted)
		}
	}
}

// WatchWithContext makes the log a source for its own retrying watcher.
func (l *deletionLog) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	o.LabelSelector = l.selector
	return l.client.Get().Namespace(l.namespace).Resource(l.name).VersionedParams(&o, scheme.ParameterCodec).Watch(ctx)
}

func (l *deletionLog) add(uid types.UID, rv uint64, deleted bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	entry := l.log[uid]
	if deleted {
		entry.rv = rv
	} else {
		entry.markedRV = rv
	}
	l.log[uid] = entry
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait returns the versions of a deletion that has been made, or zeros if the watch
// does not tell within a moment.
func (l *deletionLog) wait(ctx context.Context, uid types.UID) deletion {
	timeout := time.After(3 * time.Second)
	for {
		l.mutex.Lock()
		entry := l.log[uid]
		changed := l.changed
		if entry.rv != 0 {
			delete(l.log, uid)
		}
		l.mutex.Unlock()
		if entry.rv != 0 {
			return entry
		}
		select {
		case <-changed:
		case <-timeout:
			return deletion{}
		case <-ctx.Done():
			return deletion{}
		}
	}
}

// partOf selects the objects of one prefix, those of all workers.
func partOf(prefix string) string { return "app.kubernetes.io/part-of=" + prefix }

func listItems(list metav1.ListInterface) []apiObject {
	var items []apiObject
	_ = meta.EachListItem(list.(runtime.Object), func(item runtime.Object) error {
		items = append(items, item.(apiObject))
		return nil
	})
	return items
}
