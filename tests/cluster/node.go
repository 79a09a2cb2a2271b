package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/logs"
	remote "k8s.io/cri-client/pkg"
	fakeremote "k8s.io/cri-client/pkg/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
	proxy "k8s.io/kubernetes/pkg/proxy/kubemark"
)

const (
	maxPods = 110
	// runtimeTimeout is for the connection to the fake runtime, which is in the same process.
	runtimeTimeout = 15 * time.Second
	// What a kubelet has by default.
	requestsPerSecond = 50
	requestsBurst     = 100
)

// A part is one of the components of a node. Both run until the process ends.
type part func(ctx context.Context, node node, config *rest.Config) error

// A node is one of those that a cluster has: its name, and a directory of its own. The
// directory's path must be short, as it has sockets.
type node struct{ name, dir string }

// runNode is a component of the node --name that reaches its apiserver by --kubeconfig.
func runNode(args []string, run part) int {
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	var node node
	flags.StringVar(&node.name, "name", "", "name of the node")
	flags.StringVar(&node.dir, "dir", "", "directory of the kubelet")
	kubeconfig := flags.String("kubeconfig", "", "how to reach the apiserver")
	klog.InitFlags(flags)
	if err := flags.Parse(args); err != nil || node.name == "" || node.dir == "" || *kubeconfig == "" {
		fmt.Fprintln(os.Stderr, "kube-cluster: --name, --dir and --kubeconfig are needed")
		return 2
	}
	defer logs.FlushLogs()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err == nil {
		config.ContentType = "application/vnd.kubernetes.protobuf"
		config.QPS, config.Burst = requestsPerSecond, requestsBurst
		err = run(context.Background(), node, config)
	}
	fmt.Fprintln(os.Stderr, "kube-cluster:", err)
	return 1
}

// hollowKubelet is a kubelet whose containers are entries in a table. It differs from
// that of kubemark's own command in that it has no address, and only node.dir.
func hollowKubelet(ctx context.Context, node node, config *rest.Config) error {
	config.UserAgent = "hollow-kubelet"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	kubeletFlags, kubeletConfig := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{
		NodeName: node.name,
		MaxPods:  maxPods,
	})
	kubeletConfig.Address, kubeletConfig.EnableServer = "127.0.0.1", false
	// It has made temporary directories, which nobody would remove.
	if err := os.RemoveAll(kubeletFlags.RootDirectory); err != nil {
		return fmt.Errorf("remove the temporary directory: %w", err)
	}
	kubeletFlags.RootDirectory = filepath.Join(node.dir, "root")
	kubeletConfig.StaticPodPath = filepath.Join(node.dir, "static-pods")
	kubeletConfig.PodLogsDir = filepath.Join(node.dir, "pod-logs")
	for _, dir := range []string{kubeletFlags.RootDirectory, kubeletConfig.StaticPodPath, kubeletConfig.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a directory: %w", err)
		}
	}

	heartbeats := rest.CopyConfig(config)
	lease := time.Duration(kubeletConfig.NodeLeaseDurationSeconds) * time.Second
	heartbeats.Timeout = min(kubeletConfig.NodeStatusUpdateFrequency.Duration, lease)
	heartbeats.QPS = -1
	heartbeatClient, err := kubernetes.NewForConfig(heartbeats)
	if err != nil {
		return fmt.Errorf("make a client for heartbeats: %w", err)
	}

	endpoint := "unix://" + filepath.Join(node.dir, "runtime.sock")
	fake := fakeremote.NewFakeRemoteRuntime()
	if err := fake.Start(endpoint); err != nil {
		return fmt.Errorf("start the fake runtime: %w", err)
	}
	defer fake.Stop()
	runtime, err := remote.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(endpoint).WithConnectionTimeout(runtimeTimeout).Build(ctx)
	if err != nil {
		return fmt.Errorf("reach the fake runtime: %w", err)
	}
	kubemark.NewHollowKubelet(
		kubeletFlags, kubeletConfig, client, heartbeatClient,
		&testing.Fake{NodeName: node.name}, fake.ImageService, runtime, cm.NewStubContainerManager(),
	).Run(ctx)
	return nil
}

// hollowProxy is a kube-proxy with everything but rules for packets.
func hollowProxy(_ context.Context, node node, config *rest.Config) error {
	config.UserAgent = "hollow-proxy"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	recorder := broadcaster.NewRecorder(legacyscheme.Scheme, "kube-proxy")
	return proxy.NewHollowProxy(node.name, client, client.CoreV1(), broadcaster, recorder).Run()
}
