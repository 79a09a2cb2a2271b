package main

import (
	"context"
	"flag"
	"fmt"
	"sort"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// freshnessMiss is a read that did not see a write finished before it.
type freshnessMiss struct {
	Kind     string  `json:"kind"` // "miss"
	Trial    int     `json:"trial"`
	Read     string  `json:"read"`
	Write    string  `json:"write"`
	Key      string  `json:"key"`
	WantedRV uint64  `json:"wanted_rv"` // 0: the object should be gone
	GotRV    uint64  `json:"got_rv"`    // 0: not there
	MS       float64 `json:"ms"`
}

// latency describes the durations of one kind of read.
type latency struct {
	Reads int     `json:"reads"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// driveFreshness checks the promise of a read without a resource version: that it sees
// every write that was finished before. Whoever answers such reads from a cache breaks
// it easily, most of all when nothing else is written that would move the cache on.
func driveFreshness(args []string) error {
	flags := flag.NewFlagSet("freshness", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	writeConfig := flags.String("write-kubeconfig", "", "kubeconfig `file` of the server to write to; --kubeconfig is read from")
	trials := flags.Int("trials", 100, "`number` of writes, each followed by a read")
	name := flags.String("resource", "configmaps", "pods or configmaps")
	namespace := flags.String("namespace", "freshness", "namespace, created if missing")
	idle := flags.Bool("idle", false, "write nothing else meanwhile, and pause before each trial")
	pause := flags.Duration("pause", time.Second, "the pause of --idle")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	r, err := findResource(*name, true)
	if err != nil {
		return err
	}
	direct := clientFlags{kubeconfig: *writeConfig, timeout: target.timeout}
	writer, err := direct.client()
	if err != nil {
		return fmt.Errorf("--write-kubeconfig: %w", err)
	}
	reader, err := target.client()
	if err != nil {
		return err
	}
	ctx, cancel := target.context()
	defer cancel()
	if err := createNamespace(ctx, writer, *namespace); err != nil {
		return err
	}
	f := &freshness{
		write:     collection{resource: r, client: writer.CoreV1().RESTClient(), namespace: *namespace},
		read:      collection{resource: r, client: reader.CoreV1().RESTClient(), namespace: *namespace},
		latencies: map[string][]float64{},
	}
	if err := f.clean(ctx); err != nil {
		return err
	}
	if !*idle {
		*pause = 0
		noise, stop := context.WithCancel(ctx)
		defer stop()
		go f.makeNoise(noise)
	}
	return f.run(ctx, *trials, *pause)
}

type freshness struct {
	write, read collection
	misses      int
	latencies   map[string][]float64 // milliseconds by kind of read
}

// freshnessWrites is what happens to each object in turn.
var freshnessWrites = []string{"create", "update", "update", "delete"}

func (f *freshness) run(ctx context.Context, trials int, pause time.Duration) error {
	for trial := range trials {
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
		kind := freshnessReads[trial%len(freshnessReads)]
		write := freshnessWrites[trial/len(freshnessReads)%len(freshnessWrites)]
		miss, err := f.try(ctx, kind, write)
		if err != nil {
			return fmt.Errorf("trial %d: %w", trial, err)
		}
		if miss != nil {
			f.misses++
			miss.Trial = trial
			if err := printJSON(miss); err != nil {
				return err
			}
		}
	}
	summary := struct {
		Kind    string             `json:"kind"`
		Trials  int                `json:"trials"`
		Misses  int                `json:"misses"`
		Latency map[string]latency `json:"latency"`
	}{"summary", trials, f.misses, map[string]latency{}}
	for kind, values := range f.latencies {
		summary.Latency[kind] = summarize(values)
	}
	if err := printJSON(summary); err != nil {
		return err
	}
	if f.misses > 0 {
		return fmt.Errorf("%d of %d reads did not see the write before them", f.misses, trials)
	}
	return nil
}

// try makes one write and one read.
func (f *freshness) try(ctx context.Context, kind freshnessRead, write string) (*freshnessMiss, error) {
	name := "fresh-" + kind.name
	wanted, err := f.makeWrite(ctx, write, name)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", write, name, err)
	}
	started := time.Now()
	got, err := kind.see(ctx, f.read, name)
	elapsed := float64(time.Since(started).Microseconds()) / 1000
	if err != nil {
		return nil, fmt.Errorf("%s after %s of %s: %w", kind.name, write, name, err)
	}
	f.latencies[kind.name] = append(f.latencies[kind.name], elapsed)
	if got == wanted {
		return nil, nil
	}
	return &freshnessMiss{
		Kind: "miss", Read: kind.name, Write: write, Key: f.write.namespace + "/" + name,
		WantedRV: wanted, GotRV: got, MS: elapsed,
	}, nil
}

// makeWrite returns the resource version that is to be seen, 0 after a delete.
func (f *freshness) makeWrite(ctx context.Context, write, name string) (uint64, error) {
	var object apiObject
	var err error
	switch write {
	case "create":
		object, err = f.write.create(ctx, f.write.build(name, 0, buildOptions{group: name, nodePrefix: "node-", nodeCount: 1}))
	case "update":
		if object, err = f.write.get(ctx, name, metav1.GetOptions{}); err != nil {
			return 0, err
		}
		object.SetAnnotations(with(object.GetAnnotations(), opAnnotation, time.Now().String()))
		object, err = f.write.update(ctx, object)
	default:
		return 0, f.write.delete(ctx, name)
	}
	if err != nil {
		return 0, err
	}
	return parseRV(object.GetResourceVersion())
}

// clean removes what an earlier run left.
func (f *freshness) clean(ctx context.Context) error {
	list, err := f.write.list(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list earlier objects: %w", err)
	}
	for _, object := range listItems(list) {
		if err := f.write.delete(ctx, object.GetName()); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
	}
	return nil
}

// makeNoise keeps another object changing, so that caches move on by themselves.
func (f *freshness) makeNoise(ctx context.Context) {
	object, err := f.write.create(ctx, f.write.build("noise", 0, buildOptions{group: "noise"}))
	for pace := newPacer(100); pace.wait(ctx); {
		if err != nil {
			object, err = f.write.get(ctx, "noise", metav1.GetOptions{})
			continue
		}
		object.SetAnnotations(with(object.GetAnnotations(), opAnnotation, time.Now().String()))
		object, err = f.write.update(ctx, object)
	}
}

func summarize(values []float64) latency {
	sort.Float64s(values)
	at := func(share float64) float64 { return values[min(int(share*float64(len(values))), len(values)-1)] }
	return latency{len(values), at(0.5), at(0.9), at(0.99), values[len(values)-1]}
}
