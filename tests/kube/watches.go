package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

type watchOptions struct {
	path, query, accept, protocol string
	count, conns, stuck, window   int
	goal                          *goal
	verbose, allowEnded           bool
	readyFile                     string
}

// driveWatches opens raw watches and reduces what arrives on each to a hash, so that
// thousands can be compared, byte for byte and in order, with each other and with a
// direct one.
func driveWatches(args []string) error {
	flags := flag.NewFlagSet("watches", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	o := watchOptions{goal: &goal{}}
	flags.StringVar(&o.path, "path", "", "request path, such as /api/v1/pods")
	flags.StringVar(&o.query, "query", "", "request query; watch=true is added; resourceVersion=now means that of a fresh list")
	flags.IntVar(&o.count, "count", 1, "`number` of watches")
	flags.IntVar(&o.conns, "conns", 0, "exact `number` of TCP connections; default 1, or --count for h1, which allows no other")
	flags.StringVar(&o.accept, "accept", "json", "json, protobuf or a value for the Accept header")
	flags.StringVar(&o.protocol, "protocol", "h2", "h1 or h2; h2 without TLS is by prior knowledge")
	flags.IntVar(&o.stuck, "stuck", 0, "`number` of watches that stop reading after their first frame until the others are done")
	flags.IntVar(&o.window, "window", 0, "receive window per stream (h2) or socket (h1) in `bytes`; below 4 MiB; 0 is Go's default")
	flags.BoolVar(&o.verbose, "verbose", false, "also write a line per frame")
	flags.BoolVar(&o.allowEnded, "allow-ended", false, "do not fail because watches ended early")
	flags.StringVar(&o.readyFile, "ready-file", "", "`file` to write when all watches have been answered")
	out := flags.String("out", "", "`file` for the records; stdout if empty")
	referenceServer := flags.String("reference-server", "", "also open one watch on this `URL` and compare all others with it")
	referenceConfig := flags.String("reference-kubeconfig", "", "as --reference-server, by kubeconfig `file`; default --kubeconfig")
	o.goal.register(flags)
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	if err := o.complete(); err != nil {
		return err
	}
	config, err := target.restConfig()
	if err != nil {
		return err
	}
	var reference *rest.Config
	if *referenceServer != "" || *referenceConfig != "" {
		direct := clientFlags{kubeconfig: firstNonEmpty(*referenceConfig, target.kubeconfig), server: *referenceServer}
		if reference, err = direct.restConfig(); err != nil {
			return err
		}
	}
	ctx, cancel := target.context()
	defer cancel()
	output, err := openLines(*out)
	if err != nil {
		return err
	}
	return runWatches(ctx, config, reference, &o, output)
}

// complete checks the options and fills in what follows from others.
func (o *watchOptions) complete() error {
	if !strings.HasPrefix(o.path, "/") {
		return usagef("--path %q: must start with /", o.path)
	}
	values, err := url.ParseQuery(o.query)
	if err != nil {
		return usagef("--query: %w", err)
	}
	if !values.Has("watch") {
		o.query = strings.TrimPrefix(o.query+"&watch=true", "&")
	}
	switch o.accept {
	case "json":
		o.accept = "application/json"
	case "protobuf":
		o.accept = protobufMedia + ";stream=watch"
	}
	if o.protocol != "h1" && o.protocol != "h2" {
		return usagef("--protocol %q: must be h1 or h2", o.protocol)
	}
	if o.conns == 0 {
		o.conns = 1
		if o.protocol == "h1" {
			o.conns = o.count
		}
	}
	switch {
	case o.count < 1 || o.conns < 1 || o.conns > o.count:
		return usagef("need --count >= --conns >= 1")
	case o.protocol == "h1" && o.conns != o.count:
		return usagef("with --protocol=h1 each watch has a connection: --conns must equal --count")
	case o.stuck < 0 || o.stuck >= o.count:
		return usagef("--stuck must leave at least one of --count watches")
	}
	return o.goal.validate()
}

func (o *watchOptions) major() int {
	if o.protocol == "h1" {
		return 1
	}
	return 2
}

// watchSummary is the last line of a run.
type watchSummary struct {
	Kind        string         `json:"kind"` // "summary"
	Watches     int            `json:"watches"`
	Connections int64          `json:"connections"` // TCP connections that were opened
	Events      int64          `json:"events"`
	Bytes       int64          `json:"bytes"`
	Ended       map[string]int `json:"ended"`
	StuckEnded  map[string]int `json:"stuck_ended,omitempty"`
	Digests     int            `json:"distinct_complete"` // different hashes of complete watches
	*comparison
}

func runWatches(ctx context.Context, config, reference *rest.Config, o *watchOptions, out *lines) error {
	d, err := newDialer(config, o.protocol, o.window)
	if err != nil {
		return err
	}
	run := newWatchRun(o)
	if err := run.connect(ctx, d, o.conns); err != nil {
		return err
	}
	if reference != nil {
		// One more connection, to the other server, and one more watch on it.
		direct, err := newDialer(reference, o.protocol, 0)
		if err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		if err := run.connect(ctx, direct, 1); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
	}
	last := len(run.conns) - 1
	if o.query, err = fillResourceVersion(ctx, o, run.conns[last]); err != nil {
		return err
	}
	if reference != nil {
		run.add(referenceIndex, last).chained = true
	}
	for index := range o.count {
		run.add(index, index%o.conns).record.Stuck = index < o.stuck
	}
	if o.verbose {
		for _, w := range run.watches {
			w.verbose = out
		}
	}
	run.start(ctx)
	run.opened.Wait()
	if err := touch(o.readyFile); err != nil {
		return err
	}
	run.wait(ctx)
	return run.report(d.dialed.Load(), out)
}

// fillResourceVersion replaces resourceVersion=now in the query by the version of a
// fresh list, read without its objects.
func fillResourceVersion(ctx context.Context, o *watchOptions, conn *connection) (string, error) {
	values, err := url.ParseQuery(o.query)
	if err != nil {
		return "", usagef("--query: %w", err)
	}
	if values.Get("resourceVersion") != "now" {
		return o.query, nil
	}
	response, err := conn.get(ctx, o.path, "limit=1", "application/json")
	if err != nil {
		return "", fmt.Errorf("list for resourceVersion=now: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("list for resourceVersion=now: %s", response.Status)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return "", fmt.Errorf("list for resourceVersion=now: %w", err)
	}
	return strings.Replace(o.query, "resourceVersion=now", "resourceVersion="+list.ResourceVersion, 1), nil
}

// report writes the records of all watches and the summary, and fails if a watch
// differs from the reference or, unless that is allowed, did not get as far as it
// should.
func (r *watchRun) report(dialed int64, out *lines) error {
	summary := watchSummary{Kind: "summary", Connections: dialed, Ended: map[string]int{}, StuckEnded: map[string]int{}}
	var records []watchRecord
	var reference *tracedWatch
	complete := map[string]bool{}
	early := 0
	for _, w := range r.watches {
		out.write(w.record)
		if w.record.Watch == referenceIndex {
			reference = &tracedWatch{w.record, w.chain}
			continue
		}
		records = append(records, w.record)
		summary.Watches++
		summary.Events += int64(w.record.Events)
		summary.Bytes += w.record.Bytes
		ended := summary.Ended
		if w.record.Stuck {
			ended = summary.StuckEnded
		} else if !w.record.asPlanned() {
			early++
		}
		ended[w.record.Ended]++
		if w.record.Ended == endedComplete {
			complete[w.record.SHA256] = true
		}
	}
	summary.Digests = len(complete)
	var problems []error
	if reference != nil {
		summary.comparison = compareWithReference(records, *reference)
		problems = append(problems, summary.comparison.problem())
	}
	if early > 0 && !r.options.allowEnded {
		problems = append(problems, fmt.Errorf("%d of %d watches ended early: %v", early, summary.Watches, summary.Ended))
	}
	return errors.Join(append(problems, out.conclude(summary))...)
}
