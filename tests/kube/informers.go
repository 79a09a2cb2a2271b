package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

type informerOptions struct {
	resource, encoding, watchList string
	kind                          string
	namespace                     string
	fieldSelector, labelSelector  string
	count, conns                  int
	goal                          goal
	readyFile                     string
}

// driveInformers runs real client-go informers and records what their users would have
// seen: every event, and the store at the end.
func driveInformers(args []string) error {
	flags := flag.NewFlagSet("informers", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	var o informerOptions
	flags.StringVar(&o.resource, "resource", "pods", "core resource, such as pods or configmaps")
	flags.IntVar(&o.count, "count", 1, "`number` of informers")
	flags.IntVar(&o.conns, "conns", 1, "spread the informers over this many connections")
	flags.StringVar(&o.kind, "client", "typed", "typed, dynamic or metadata")
	flags.StringVar(&o.encoding, "encoding", "protobuf", "json or protobuf, of typed clients")
	flags.StringVar(&o.watchList, "watchlist", "on", "on or off: whether client-go may start by WatchList")
	flags.StringVar(&o.namespace, "namespace", "", "namespace; all if empty")
	flags.StringVar(&o.fieldSelector, "field-selector", "", "field selector")
	flags.StringVar(&o.labelSelector, "label-selector", "", "label selector")
	flags.StringVar(&o.readyFile, "ready-file", "", "`file` to write when all informers have synced")
	out := flags.String("out", "", "`file` for the records; stdout if empty")
	referenceServer := flags.String("reference-server", "", "at the end, compare the stores with a list from this `URL`")
	referenceConfig := flags.String("reference-kubeconfig", "", "as --reference-server, by kubeconfig `file`; default --kubeconfig")
	o.goal.register(flags)
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	if err := o.validate(); err != nil {
		return err
	}
	// In this binary, client-go's feature gates are those of the apiserver it is linked
	// with, which do not read the KUBE_FEATURE_ variables.
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"WatchListClient": o.watchList == "on"}); err != nil {
		return fmt.Errorf("set feature gate WatchListClient: %w", err)
	}
	config, err := target.restConfig()
	if err != nil {
		return err
	}
	setEncoding(config, o.encoding)
	ctx, cancel := target.context()
	defer cancel()
	output, err := openLines(*out)
	if err != nil {
		return err
	}
	group, err := startInformers(ctx, config, &o, output)
	if err != nil {
		return err
	}
	if err := group.observe(ctx, &o); err != nil {
		return err
	}
	reference := target
	reference.kubeconfig = firstNonEmpty(*referenceConfig, target.kubeconfig)
	reference.server, reference.ca, reference.insecure = *referenceServer, "", false
	if *referenceServer == "" && *referenceConfig == "" {
		reference.kubeconfig = ""
	}
	return group.finish(ctx, reference, &o)
}

func (o *informerOptions) validate() error {
	if _, err := findResource(o.resource, false); err != nil {
		return err
	}
	if o.encoding != "json" && o.encoding != "protobuf" {
		return usagef("--encoding %q: must be json or protobuf", o.encoding)
	}
	if o.kind != "typed" && o.kind != "dynamic" && o.kind != "metadata" {
		return usagef("--client %q: must be typed, dynamic or metadata", o.kind)
	}
	if o.watchList != "on" && o.watchList != "off" {
		return usagef("--watchlist %q: must be on or off", o.watchList)
	}
	if o.count < 1 || o.conns < 1 {
		return usagef("--count and --conns must be at least 1")
	}
	if _, err := fields.ParseSelector(o.fieldSelector); err != nil {
		return usagef("--field-selector: %w", err)
	}
	if _, err := labels.Parse(o.labelSelector); err != nil {
		return usagef("--label-selector: %w", err)
	}
	return o.goal.validate()
}

func firstNonEmpty(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}

// clients share their connections; count is what they asked.
type clients struct {
	typed    kubernetes.Interface
	dynamic  dynamic.Interface
	metadata metadata.Interface
	count    *requestCount
}

// newClients makes n that share nothing. client-go would reuse a connection for
// equal configurations; a dial function of its own makes each differ.
func newClients(config *rest.Config, n int) ([]clients, error) {
	var made []clients
	for range n {
		own := rest.CopyConfig(config)
		own.Dial = (&net.Dialer{Timeout: 30 * time.Second}).DialContext
		count := &requestCount{}
		own.Wrap(count.wrap)
		typed, err := kubernetes.NewForConfig(own)
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		anything, err := dynamic.NewForConfig(own)
		if err != nil {
			return nil, fmt.Errorf("make dynamic client: %w", err)
		}
		names, err := metadata.NewForConfig(own)
		if err != nil {
			return nil, fmt.Errorf("make metadata client: %w", err)
		}
		made = append(made, clients{typed, anything, names, count})
	}
	return made, nil
}

// touch tells a script that something has come about.
func touch(path string) error {
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, []byte("ready\n"), 0o644); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	return nil
}

// startInformers starts all informers of a run.
func startInformers(ctx context.Context, config *rest.Config, o *informerOptions, out *lines) (*informerGroup, error) {
	r, err := findResource(o.resource, false)
	if err != nil {
		return nil, err
	}
	groups, err := newClients(config, min(o.conns, o.count))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	group := &informerGroup{out: out, cancel: cancel}
	for _, of := range groups {
		group.requests = append(group.requests, of.count)
	}
	for index := range o.count {
		observer, err := newInformer(index, groups[index%len(groups)], r, o, out)
		if err != nil {
			cancel()
			return nil, err
		}
		group.members = append(group.members, observer)
		group.running.Go(func() { observer.informer.RunWithContext(ctx) })
	}
	return group, nil
}
