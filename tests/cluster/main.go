// Command kube-cluster is what a cluster has besides the control plane of the test bed
// (tests/kube): kube-controller-manager, kube-scheduler, and hollow nodes, each a
// subcommand.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	// The registrations that the released components have.
	_ "time/tzdata"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

const usage = `usage: kube-cluster <command> [flags]

  controllers  kube-controller-manager, unmodified
  scheduler    kube-scheduler, unmodified
  kubelet      a kubelet that runs nothing (kubemark's)
  proxy        a kube-proxy that routes nothing (kubemark's)
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	command, args := os.Args[1], os.Args[2:]
	switch command {
	case "controllers":
		run := controllers.NewControllerManagerCommand()
		run.SetArgs(args)
		os.Exit(cli.Run(run))
	case "scheduler":
		run := scheduler.NewSchedulerCommand()
		run.SetArgs(args)
		os.Exit(cli.Run(run))
	case "kubelet":
		os.Exit(runNode(args, hollowKubelet))
	case "proxy":
		os.Exit(runNode(args, hollowProxy))
	case "help", "-h", "--help":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "kube-cluster: unknown command %q\n\n%s", command, usage)
		os.Exit(2)
	}
}
