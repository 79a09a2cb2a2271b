package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// loadResult is what drive load prints.
type loadResult struct {
	Namespace   string  `json:"namespace"`
	Created     int64   `json:"created"`
	Existed     int64   `json:"existed"`
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"per_second"`
	ObjectBytes int     `json:"object_bytes"` // protobuf size of the last object created
	MaxRV       uint64  `json:"max_rv"`
}

// driveLoad fills a namespace with objects as fast as the apiserver takes them. Those that
// are there already are left alone, so that it can be run again.
func driveLoad(args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	pods := flags.Int("pods", 0, "`number` of objects to create")
	name := flags.String("resource", "pods", "pods, configmaps or secrets")
	content := flags.String("content", "random", "what the data of a secret is: random bytes, or words")
	namespace := flags.String("namespace", "default", "namespace, created if missing")
	prefix := flags.String("prefix", "pod", "prefix of names and of the label app")
	size := flags.Int("size", 4096, "wanted size of a stored object in protobuf `bytes`")
	nodes := flags.Int("node-count", 10, "bind pods to this many nodes; 0 leaves them unscheduled")
	nodePrefix := flags.String("node-prefix", "node-", "prefix of the node names")
	workers := flags.Int("workers", 16, "concurrent requests")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	if *pods < 1 || *workers < 1 {
		return usagef("--pods and --workers must be at least 1")
	}
	r, err := findResource(*name, true)
	if err != nil {
		return err
	}
	if *content != "random" && *content != "words" {
		return usagef("--content %q: must be random or words", *content)
	}
	client, err := target.client()
	if err != nil {
		return err
	}
	ctx, cancel := target.context()
	defer cancel()
	if err := createNamespace(ctx, client, *namespace); err != nil {
		return err
	}
	options := buildOptions{group: *prefix, nodePrefix: *nodePrefix, nodeCount: *nodes, words: *content == "words"}
	c := collection{resource: r, client: client.CoreV1().RESTClient(), namespace: *namespace}
	if options.padding, err = measurePadding(ctx, c, options, *size); err != nil {
		return err
	}
	l := loader{collection: c, prefix: *prefix, options: options}
	started := time.Now()
	if err := l.run(ctx, *pods, *workers); err != nil {
		return err
	}
	seconds := time.Since(started).Seconds()
	return printJSON(loadResult{
		Namespace: *namespace, Created: l.created.Load(), Existed: l.existed.Load(), Seconds: seconds,
		PerSecond: float64(l.created.Load()) / seconds, ObjectBytes: int(l.bytes.Load()), MaxRV: l.maxRV.Load(),
	})
}

// measurePadding finds how much filler makes an object about size bytes. What the server
// adds, such as defaults and managed fields, is found out by a dry run.
func measurePadding(ctx context.Context, c collection, o buildOptions, size int) (int, error) {
	stored := c.newItem()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	err := c.client.Post().Namespace(c.namespace).Resource(c.name).VersionedParams(&dry, scheme.ParameterCodec).
		Body(c.build(o.group+"-measure", 0, o)).Do(ctx).Into(stored)
	if err != nil {
		return 0, fmt.Errorf("measure one of the %s by dry run: %w", c.name, err)
	}
	return max(size-sizeOf(stored), 0), nil
}

// sizeOf is the length of an object in protobuf, without what is around it.
func sizeOf(object apiObject) int {
	sized, ok := object.(interface{ Size() int })
	if !ok {
		return 0
	}
	return sized.Size()
}

type loader struct {
	collection
	prefix  string
	options buildOptions

	next, created, existed, bytes atomic.Int64
	maxRV                         atomic.Uint64
}

func (l *loader) run(ctx context.Context, pods, workers int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				index := int(l.next.Add(1)) - 1
				if index >= pods {
					return
				}
				if err := l.create(ctx, index); err != nil {
					cancel(err)
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

func (l *loader) create(ctx context.Context, index int) error {
	name := fmt.Sprintf("%s-%06d", l.prefix, index)
	stored, err := l.collection.create(ctx, l.build(name, index, l.options))
	if apierrors.IsAlreadyExists(err) {
		l.existed.Add(1)
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s %s/%s: %w", l.name, l.namespace, name, err)
	}
	l.created.Add(1)
	l.bytes.Store(int64(sizeOf(stored)))
	rv, err := parseRV(stored.GetResourceVersion())
	if err != nil {
		return err
	}
	storeMax(&l.maxRV, rv)
	return nil
}

// storeMax raises v to at least n.
func storeMax(v *atomic.Uint64, n uint64) {
	for old := v.Load(); n > old && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}
