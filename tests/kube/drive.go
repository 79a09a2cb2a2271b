package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const driveUsage = `usage: kube-testbed drive <command> --kubeconfig F [--server URL] [flags]

  load             create many pods
  churn            create, update, patch and delete; print what was written
  informers        run client-go informers; record their events and stores
  watches          open raw watches on a given number of connections; hash them
  compare-watches  compare the files of two runs of watches
  freshness        write directly, read elsewhere, and see that it is visible
  election         hold leases as Kubernetes' components do; count the leaders lost
  metrics          print lines of /metrics

Results are JSON lines on stdout. Every command has --help.
`

// runDrive is the driver: the clients whose view of the cluster the tests check. It
// is client-go where the behaviour of client-go matters and bare HTTP where the bytes
// on the wire do.
func runDrive(args []string) error {
	if len(args) == 0 {
		return usagef("drive needs a command\n\n%s", driveUsage)
	}
	command, args := args[0], args[1:]
	switch command {
	case "load":
		return driveLoad(args)
	case "churn":
		return driveChurn(args)
	case "informers":
		return driveInformers(args)
	case "watches":
		return driveWatches(args)
	case "compare-watches":
		return driveCompareWatches(args)
	case "freshness":
		return driveFreshness(args)
	case "election":
		return driveElection(args)
	case "metrics":
		return driveMetrics(args)
	case "help", "-h", "--help":
		fmt.Print(driveUsage)
		return nil
	default:
		return usagef("unknown drive command %q\n\n%s", command, driveUsage)
	}
}

// clientFlags are the flags that say which server to talk to, as whom, and for how
// long at most.
type clientFlags struct {
	kubeconfig, server, ca string
	insecure               bool
	timeout                time.Duration
}

func (c *clientFlags) register(flags *flag.FlagSet) {
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file` with the server and the credentials")
	flags.StringVar(&c.server, "server", "", "`URL` to use in place of the kubeconfig's server; http:// is allowed")
	flags.StringVar(&c.ca, "ca", "", "CA certificate `file` to use in place of the kubeconfig's")
	flags.BoolVar(&c.insecure, "insecure-skip-tls-verify", false, "do not verify the server's certificate")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Minute, "give up after this time")
}

// context ends at the timeout and when the process is told to stop.
func (c *clientFlags) context() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("not done within --timeout=%s", c.timeout))
	return ctx, func() { cancel(); stop() }
}

// restConfig is the client configuration, without client-side rate limits: the driver
// is there to produce load.
func (c *clientFlags) restConfig() (*rest.Config, error) {
	// As in any program with client-go, a pod needs none.
	if c.kubeconfig == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, usagef("--kubeconfig is required outside of a pod")
	}
	config, err := clientcmd.BuildConfigFromFlags(c.server, c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	if c.ca != "" {
		config.CAFile, config.CAData = c.ca, nil
	}
	if c.insecure {
		config.Insecure, config.CAFile, config.CAData = true, "", nil
	}
	config.QPS = -1
	config.UserAgent = "kube-testbed-drive"
	setEncoding(config, "protobuf")
	return config, nil
}

func (c *clientFlags) client() (kubernetes.Interface, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

const protobufMedia = "application/vnd.kubernetes.protobuf"

// setEncoding chooses what a typed client asks for. Like the clients of Kubernetes'
// own components, one that prefers protobuf still accepts JSON.
func setEncoding(config *rest.Config, encoding string) {
	if encoding == "protobuf" {
		config.ContentType = protobufMedia
		config.AcceptContentTypes = protobufMedia + ",application/json"
		return
	}
	config.ContentType = "application/json"
	config.AcceptContentTypes = "application/json"
}

// lines writes JSON lines; it may be used by several goroutines.
type lines struct {
	mutex  sync.Mutex
	buffer *bufio.Writer
	encode *json.Encoder
	file   *os.File
}

// openLines writes to the named file, or to stdout if there is no name.
func openLines(path string) (*lines, error) {
	file := os.Stdout
	if path != "" && path != "-" {
		var err error
		if file, err = os.Create(path); err != nil {
			return nil, fmt.Errorf("create output: %w", err)
		}
	}
	buffer := bufio.NewWriterSize(file, 1<<16)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	return &lines{buffer: buffer, encode: encoder, file: file}, nil
}

// write appends one line. A failure shows at the latest in close.
func (l *lines) write(value any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_ = l.encode.Encode(value)
}

// flush makes the lines so far visible to whoever reads along.
func (l *lines) flush() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_ = l.buffer.Flush()
}

func (l *lines) close() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if err := errors.Join(l.buffer.Flush(), l.file.Close()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// conclude writes the last line, which sums a run up, and closes the output. If that
// is a file, the summary is printed as well.
func (l *lines) conclude(summary any) error {
	l.write(summary)
	if err := l.close(); err != nil {
		return err
	}
	if l.file == os.Stdout {
		return nil
	}
	return printJSON(summary)
}

// printJSON prints a command's one result.
func printJSON(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	_, err = fmt.Printf("%s\n", data)
	return err
}
