package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sort"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// informerGroup is all informers of one run.
type informerGroup struct {
	members  []*observedInformer
	requests []*requestCount
	out      *lines
	running  sync.WaitGroup
	cancel   context.CancelFunc
	synced   time.Duration // how long the first lists took
	heap     uint64        // bytes of the heap in use after that
}

// informerRecord is the end state of one informer.
type informerRecord struct {
	Kind        string            `json:"kind"` // "store"
	Informer    int               `json:"informer"`
	RV          uint64            `json:"rv"`
	Events      int               `json:"events"`
	Regressions int               `json:"regressions"`
	Digest      string            `json:"digest"` // of objects, for a quick comparison
	Objects     map[string]uint64 `json:"objects"`
}

// informerSummary is the last line of a run.
type informerSummary struct {
	Kind        string  `json:"kind"` // "summary"
	Informers   int     `json:"informers"`
	Objects     int     `json:"objects"` // in the store of the first informer
	Events      int     `json:"events"`
	Regressions int     `json:"regressions"`
	Stores      int     `json:"distinct_stores"` // 1 if all agree
	Lists       int64   `json:"lists"`
	WatchLists  int64   `json:"watchlists"`
	Watches     int64   `json:"watches"`
	SyncSeconds float64 `json:"sync_seconds"`
	HeapBytes   uint64  `json:"heap_bytes"`          // in use after the first lists
	Reference   string  `json:"reference,omitempty"` // how the stores compare with a direct list
}

// observe returns when the goal of the run is reached by all informers.
func (g *informerGroup) observe(ctx context.Context, o *informerOptions) error {
	started := time.Now()
	for _, member := range g.members {
		for !member.handler.HasSynced() {
			if !sleep(ctx, 20*time.Millisecond) {
				return fmt.Errorf("informer %d did not sync: %w", member.index, context.Cause(ctx))
			}
		}
	}
	g.synced = time.Since(started)
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	g.heap = memory.HeapInuse
	if err := touch(o.readyFile); err != nil {
		return err
	}
	if o.goal.period > 0 {
		if !sleep(ctx, o.goal.period) {
			return context.Cause(ctx)
		}
	}
	o.goal.resolve(ctx)
	for _, member := range g.members {
		for o.goal.period == 0 && !o.goal.reached(member.rv()) {
			if !sleep(ctx, 20*time.Millisecond) {
				return fmt.Errorf("informer %d is at rv %d, wanted %d: %w", member.index, member.rv(), o.goal.rv.Load(), context.Cause(ctx))
			}
		}
		if err := member.awaitHandlers(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish stops the informers and writes their end states and a summary.
func (g *informerGroup) finish(ctx context.Context, reference clientFlags, o *informerOptions) error {
	truth, err := referenceStore(ctx, reference, o)
	if err != nil {
		return err
	}
	g.cancel()
	g.running.Wait()
	summary := informerSummary{Kind: "summary", Informers: len(g.members), SyncSeconds: g.synced.Seconds(), HeapBytes: g.heap}
	digests := map[string]int{}
	var problems []error
	for n, member := range g.members {
		objects := member.store()
		record := informerRecord{
			"store", member.index, member.rv(), member.events, member.regressions, digest(objects), objects,
		}
		g.out.write(record)
		digests[record.Digest]++
		summary.Events += record.Events
		summary.Regressions += record.Regressions
		if n == 0 {
			summary.Objects = len(objects)
		}
		if truth != nil && !equalMaps(objects, truth) {
			problems = append(problems, fmt.Errorf("informer %d differs from the direct list: %s", member.index, firstDifference(objects, truth)))
		}
	}
	summary.Stores = len(digests)
	for _, count := range g.requests {
		summary.Lists += count.list.Load()
		summary.WatchLists += count.watchList.Load()
		summary.Watches += count.watch.Load()
	}
	if truth != nil {
		summary.Reference = "equal"
		if len(problems) > 0 {
			summary.Reference = "different"
		}
	}
	if summary.Regressions > 0 {
		problems = append(problems, fmt.Errorf("%d events took an object back in time", summary.Regressions))
	}
	return errors.Join(append(problems, g.out.conclude(summary))...)
}

// referenceStore lists directly what the stores should hold; nil if not asked for.
func referenceStore(ctx context.Context, reference clientFlags, o *informerOptions) (map[string]uint64, error) {
	if reference.kubeconfig == "" {
		return nil, nil
	}
	client, err := reference.client()
	if err != nil {
		return nil, err
	}
	r, err := findResource(o.resource, false)
	if err != nil {
		return nil, err
	}
	c := collection{resource: r, client: client.CoreV1().RESTClient(), namespace: o.namespace}
	list, err := c.list(ctx, metav1.ListOptions{FieldSelector: o.fieldSelector, LabelSelector: o.labelSelector})
	if err != nil {
		return nil, fmt.Errorf("reference list: %w", err)
	}
	objects := map[string]uint64{}
	for _, object := range listItems(list) {
		objects[objectKey(object)], _ = parseRV(object.GetResourceVersion())
	}
	return objects, nil
}

func equalMaps(a, b map[string]uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for key, rv := range a {
		if other, ok := b[key]; !ok || other != rv {
			return false
		}
	}
	return true
}

func sortedKeys(m map[string]uint64) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// digest is equal for stores that hold the same objects at the same versions.
func digest(objects map[string]uint64) string {
	hash := sha256.New()
	for _, key := range sortedKeys(objects) {
		fmt.Fprintf(hash, "%s=%d\n", key, objects[key])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// firstDifference names the first key, in order, in which two stores differ.
func firstDifference(got, want map[string]uint64) string {
	for _, key := range sortedKeys(want) {
		if rv, ok := got[key]; !ok {
			return fmt.Sprintf("%s (rv %d) is missing", key, want[key])
		} else if rv != want[key] {
			return fmt.Sprintf("%s is at rv %d, should be at %d", key, rv, want[key])
		}
	}
	for _, key := range sortedKeys(got) {
		if _, ok := want[key]; !ok {
			return fmt.Sprintf("%s (rv %d) should not be there", key, got[key])
		}
	}
	return "none"
}
