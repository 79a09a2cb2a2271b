// Command kube-e2e runs Kubernetes' own end-to-end specs, those that need no kubelet,
// against any server, and compares two such runs. What else a cluster has and the test
// bed (tests/kube) has not, it brings along: kube-controller-manager, and pods that run
// without running anything.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

const usage = `usage: kube-e2e <command> [flags]

  run          run the specs of specs.txt against one server
  compare      compare the results of two runs
  list         print the name of every spec that is linked in
  controllers  kube-controller-manager, unmodified
  pods         bind pods and say that they run; run until SIGTERM
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	command, args := os.Args[1], os.Args[2:]
	switch command {
	case "run":
		exit(runSpecs(args))
	case "compare":
		exit(compare(args))
	case "list":
		exit(listSpecs(args))
	case "controllers":
		runControllers(args)
	case "pods":
		exit(runPods(args))
	default:
		fmt.Fprintf(os.Stderr, "kube-e2e: unknown command %q\n\n%s", command, usage)
		os.Exit(2)
	}
}

func exit(err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "kube-e2e:", err)
	os.Exit(1)
}
