package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// churnLine is one line of drive churn: a write that succeeded, or an attempt that
// failed. The failed ones are followed by a line for the same key once it is known
// what became of the write.
type churnLine struct {
	Op        string `json:"op"`
	Key       string `json:"key"`
	RV        uint64 `json:"rv,omitempty"`
	MarkedRV  uint64 `json:"marked_rv,omitempty"` // for a delete: of the update that marked the object first
	Detail    string `json:"detail,omitempty"`    // for a patch: label or status
	StartNS   int64  `json:"start_ns"`
	EndNS     int64  `json:"end_ns"`
	Recovered bool   `json:"recovered,omitempty"` // the attempt failed, but the write had been made
	Error     string `json:"error,omitempty"`
}

// driveChurn writes to objects of one namespace and prints what it wrote: the truth
// against which the event streams and caches are checked. The sequence of operations
// follows from --seed and --workers.
func driveChurn(args []string) error {
	flags := flag.NewFlagSet("churn", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	var o churnOptions
	flags.IntVar(&o.ops, "ops", 0, "`number` of writes to make")
	flags.Float64Var(&o.rate, "rate", 0, "writes per second; 0 is as fast as possible")
	flags.StringVar(&o.namespace, "namespace", "default", "namespace, created if missing")
	flags.StringVar(&o.prefix, "prefix", "churn", "prefix of names and of the label app")
	flags.StringVar(&o.resource, "resource", "pods", "pods or configmaps")
	flags.IntVar(&o.objects, "objects", 50, "keep about this many objects")
	flags.IntVar(&o.build.nodeCount, "node-count", 10, "bind pods to this many nodes")
	flags.StringVar(&o.build.nodePrefix, "node-prefix", "node-", "prefix of the node names")
	flags.IntVar(&o.build.padding, "padding", 1024, "`bytes` of filler in each object")
	flags.IntVar(&o.workers, "workers", 1, "concurrent writers, each with its own objects")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the sequence of operations")
	mix := flags.String("mix", "create,update,patch,delete", "operations to draw from; repeat one to make it more frequent")
	out := flags.String("out", "", "`file` for the lines; stdout if empty")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	o.mix = strings.Split(*mix, ",")
	o.build.group = o.prefix
	if err := o.validate(); err != nil {
		return err
	}
	client, err := target.client()
	if err != nil {
		return err
	}
	ctx, cancel := target.context()
	defer cancel()
	if err := createNamespace(ctx, client, o.namespace); err != nil {
		return err
	}
	r, err := findResource(o.resource, true)
	if err != nil {
		return err
	}
	output, err := openLines(*out)
	if err != nil {
		return err
	}
	c := collection{resource: r, client: client.CoreV1().RESTClient(), namespace: o.namespace}
	result, err := runChurn(ctx, c, o, output)
	if closeErr := output.close(); err == nil {
		err = closeErr
	}
	fmt.Fprintf(os.Stderr, "churn: %d writes, %d failed attempts, last rv %d\n", result.writes.Load(), result.failures.Load(), result.maxRV.Load())
	return err
}

type churnOptions struct {
	ops, objects, workers       int
	rate                        float64
	namespace, prefix, resource string
	seed                        uint64
	mix                         []string
	build                       buildOptions
}

func (o churnOptions) validate() error {
	if o.ops < 1 || o.objects < 1 || o.workers < 1 {
		return usagef("--ops, --objects and --workers must be at least 1")
	}
	for _, op := range o.mix {
		if !slices.Contains([]string{"create", "update", "patch", "delete"}, op) {
			return usagef("--mix: unknown operation %q", op)
		}
	}
	return nil
}

// churnResult counts over all workers.
type churnResult struct {
	writes, failures atomic.Int64
	maxRV            atomic.Uint64
}

func runChurn(ctx context.Context, c collection, o churnOptions, out *lines) (*churnResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result := &churnResult{}
	report := func(line churnLine) {
		if line.Error != "" {
			result.failures.Add(1)
		} else {
			result.writes.Add(1)
			storeMax(&result.maxRV, line.RV)
		}
		out.write(line)
		out.flush()
	}
	deletions, err := newDeletionLog(ctx, c, o.prefix)
	if err != nil {
		return result, err
	}
	var group sync.WaitGroup
	for index := range o.workers {
		group.Go(func() {
			w := newChurnWorker(index, c, o, deletions, report)
			if err := w.run(ctx, share(o.ops, o.workers, index)); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return result, context.Cause(ctx)
}

// share splits total evenly between n parts and returns that of one of them.
func share(total, n, index int) int {
	part := total / n
	if index < total%n {
		part++
	}
	return part
}

// pacer spaces operations evenly in time.
type pacer struct {
	start    time.Time
	interval time.Duration
	n        int
}

func newPacer(rate float64) *pacer {
	p := &pacer{start: time.Now()}
	if rate > 0 {
		p.interval = time.Duration(float64(time.Second) / rate)
	}
	return p
}

// wait returns false when ctx ended first.
func (p *pacer) wait(ctx context.Context) bool {
	due := p.start.Add(time.Duration(p.n) * p.interval)
	p.n++
	if delay := time.Until(due); delay > 0 {
		return sleep(ctx, delay)
	}
	return ctx.Err() == nil
}
