// Command kube-testbed is a real Kubernetes control plane in one binary, for the
// end-to-end tests: etcd, kube-apiserver, kubectl and a client-go driver, each a
// subcommand. It is built from the published modules, so that the tests talk to
// the very code that runs in clusters, on machines that have a Go toolchain and
// nothing else.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

const usage = `usage: kube-testbed <command> [flags]

  up           start etcd and kube-apiserver in a directory; run until SIGTERM
  apiserver    start again the kube-apiserver of a directory that is up
  kubectl      kubectl, unmodified
  drive        the client-go driver (kube-testbed drive help)
  portforward  what a kubelet has for kubectl port-forward
  etcd         the etcd of a directory; started by up
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	command, args := os.Args[1], os.Args[2:]
	switch command {
	case "kubectl":
		runKubectl(args)
	case "up":
		exit(runUp(args))
	case "etcd":
		exit(runEtcd(args))
	case "apiserver":
		exit(runAPIServer(args))
	case "drive":
		exit(runDrive(args))
	case "portforward":
		exit(runPortForward(args))
	case "help", "-h", "--help":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "kube-testbed: unknown command %q\n\n%s", command, usage)
		os.Exit(2)
	}
}

// exit ends the process: 0 for success, 2 for a wrong command line, 1 for anything
// that went wrong while running, with the reason on stderr.
func exit(err error) {
	var misuse usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case errors.As(err, &misuse):
		fmt.Fprintln(os.Stderr, "kube-testbed:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "kube-testbed:", err)
		os.Exit(1)
	}
}

// usageError marks an error in the command line, as opposed to one at run time.
type usageError struct{ error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// stringList collects a flag that may be given several times.
type stringList []string

func (l *stringList) String() string { return fmt.Sprint([]string(*l)) }

func (l *stringList) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// parseFlags parses args and rejects positional arguments, which no subcommand
// of the test bed takes unless it says so.
func parseFlags(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usagef("%s: unexpected argument %q", flags.Name(), flags.Arg(0))
	}
	return nil
}
