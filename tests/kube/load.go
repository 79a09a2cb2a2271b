package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// loadResult is what drive load prints.
type loadResult struct {
	Namespace   string  `json:"namespace"`
	Created     int64   `json:"created"`
	Existed     int64   `json:"existed"`
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"per_second"`
	ObjectBytes int     `json:"object_bytes"` // protobuf size of the last pod created
	MaxRV       uint64  `json:"max_rv"`
}

// driveLoad fills a namespace with pods as fast as the apiserver takes them. Pods that
// are there already are left alone, so that it can be run again.
func driveLoad(args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	pods := flags.Int("pods", 0, "`number` of pods to create")
	namespace := flags.String("namespace", "default", "namespace, created if missing")
	prefix := flags.String("prefix", "pod", "prefix of names and of the label app")
	size := flags.Int("size", 4096, "wanted size of a stored pod in protobuf `bytes`")
	nodes := flags.Int("node-count", 10, "bind pods to this many nodes; 0 leaves them unscheduled")
	nodePrefix := flags.String("node-prefix", "node-", "prefix of the node names")
	workers := flags.Int("workers", 16, "concurrent requests")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	if *pods < 1 || *workers < 1 {
		return usagef("--pods and --workers must be at least 1")
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
	options := buildOptions{group: *prefix, nodePrefix: *nodePrefix, nodeCount: *nodes}
	if options.padding, err = measurePadding(ctx, client, *namespace, options, *size); err != nil {
		return err
	}
	l := loader{client: client, namespace: *namespace, prefix: *prefix, options: options}
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

// measurePadding finds how much filler makes a pod about size bytes. What the server
// adds, such as defaults and managed fields, is found out by a dry run.
func measurePadding(ctx context.Context, client kubernetes.Interface, namespace string, o buildOptions, size int) (int, error) {
	sample := buildPod(o.group+"-measure", 0, o).(*corev1.Pod)
	stored, err := client.CoreV1().Pods(namespace).Create(ctx, sample, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return 0, fmt.Errorf("measure a pod by dry run: %w", err)
	}
	return max(size-stored.Size(), 0), nil
}

type loader struct {
	client            kubernetes.Interface
	namespace, prefix string
	options           buildOptions

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
	pod := buildPod(name, index, l.options).(*corev1.Pod)
	stored, err := l.client.CoreV1().Pods(l.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		l.existed.Add(1)
		return nil
	}
	if err != nil {
		return fmt.Errorf("create pod %s/%s: %w", l.namespace, name, err)
	}
	l.created.Add(1)
	l.bytes.Store(int64(stored.Size()))
	rv, err := parseRV(stored.ResourceVersion)
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
