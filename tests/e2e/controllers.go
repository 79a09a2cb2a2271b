package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	// The registrations that the released kube-controller-manager has.
	_ "time/tzdata"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// runControllers is kube-controller-manager. Specs need it: it makes the service
// account that every new namespace must have, empties the namespaces that specs
// delete, and moves what the specs about workloads wait for.
func runControllers(args []string) {
	command := app.NewControllerManagerCommand()
	command.SetArgs(args)
	os.Exit(cli.Run(command))
}
