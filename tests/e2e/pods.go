package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/signal"
	"syscall"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const nodeName = "n1"

// pods stands for the scheduler and for the kubelet of one node that runs nothing: a
// pod is bound, said to be running and ready, and gone when it is deleted. That is all
// that the specs about workloads see of nodes as long as they ask no container.
type pods struct {
	client kubernetes.Interface
	queue  workqueue.TypedRateLimitingInterface[string]
	lister cache.Store
	bound  int
}

func runPods(args []string) error {
	flags := flag.NewFlagSet("pods", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("load kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := makeNode(ctx, client); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	limiter := workqueue.DefaultTypedControllerRateLimiter[string]()
	p := &pods{client: client, queue: workqueue.NewTypedRateLimitingQueue(limiter), lister: informer.GetStore()}
	add := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			p.queue.Add(key)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.Start(ctx.Done())
	context.AfterFunc(ctx, p.queue.ShutDown)
	fmt.Println("ready")
	for p.next(ctx) {
	}
	return nil
}

// makeNode makes the node as one that is ready. Nobody renews that, so the controller
// that would notice must not run.
func makeNode(ctx context.Context, client kubernetes.Interface) error {
	capacity := v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse("64"),
		v1.ResourceMemory:           resource.MustParse("256Gi"),
		v1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		v1.ResourcePods:             resource.MustParse("10000"),
	}
	labels := map[string]string{v1.LabelHostname: nodeName, v1.LabelOSStable: "linux", v1.LabelArchStable: "amd64"}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: labels}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make node: %w", err)
	}
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}
	ready.LastHeartbeatTime, ready.LastTransitionTime = metav1.Now(), metav1.Now()
	status := v1.NodeStatus{
		Capacity: capacity, Allocatable: capacity, Conditions: []v1.NodeCondition{ready},
		Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "127.0.0.1"}},
	}
	if err := patchNode(ctx, client, map[string]any{"status": status}, "status"); err != nil {
		return fmt.Errorf("make node ready: %w", err)
	}
	// Admission taints every new node as not ready, for that controller to take away.
	return patchNode(ctx, client, map[string]any{"spec": map[string]any{"taints": nil}})
}

// patchNode does not mind what the controllers change meanwhile.
func patchNode(ctx context.Context, client kubernetes.Interface, patch any, subresource ...string) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Patch(ctx, nodeName, types.MergePatchType, data, metav1.PatchOptions{}, subresource...); err != nil {
		return fmt.Errorf("patch node: %w", err)
	}
	return nil
}

// next moves one pod on by one step, and tells whether there will be more.
func (p *pods) next(ctx context.Context) bool {
	key, over := p.queue.Get()
	if over {
		return false
	}
	defer p.queue.Done(key)
	object, exists, err := p.lister.GetByKey(key)
	if err == nil && exists {
		err = p.step(ctx, object.(*v1.Pod))
	}
	switch {
	case err == nil, apierrors.IsNotFound(err):
		p.queue.Forget(key)
	case errors.Is(err, context.Canceled):
		return false
	default:
		// A pod that changed meanwhile comes again with its change; this is for the rest.
		p.queue.AddRateLimited(key)
	}
	return true
}

func (p *pods) step(ctx context.Context, pod *v1.Pod) error {
	ours := p.client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil && (pod.Spec.NodeName == nodeName || pod.Spec.NodeName == ""):
		now := metav1.NewDeleteOptions(0)
		now.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
		return ours.Delete(ctx, pod.Name, *now)
	case pod.Spec.NodeName == "" && pod.Spec.SchedulerName == v1.DefaultSchedulerName && runsAnywhere(pod):
		to := v1.ObjectReference{Kind: "Node", Name: nodeName}
		return ours.Bind(ctx, &v1.Binding{ObjectMeta: pod.ObjectMeta, Target: to}, metav1.CreateOptions{})
	case pod.Spec.NodeName == nodeName && pod.Status.Phase == v1.PodPending:
		p.bound++
		running := pod.DeepCopy()
		running.Status = p.running(pod)
		_, err := ours.UpdateStatus(ctx, running, metav1.UpdateOptions{})
		return err
	default:
		return nil
	}
}

// runsAnywhere: what asks for particular nodes is left to wait, as there is none.
func runsAnywhere(pod *v1.Pod) bool {
	return len(pod.Spec.SchedulingGates) == 0 && len(pod.Spec.NodeSelector) == 0
}

func (p *pods) running(pod *v1.Pod) v1.PodStatus {
	now := metav1.Now()
	address := fmt.Sprintf("10.1.%d.%d", p.bound/250, 1+p.bound%250)
	status := v1.PodStatus{
		Phase: v1.PodRunning, StartTime: &now, QOSClass: pod.Status.QOSClass,
		HostIP: "127.0.0.1", HostIPs: []v1.HostIP{{IP: "127.0.0.1"}},
		PodIP: address, PodIPs: []v1.PodIP{{IP: address}},
	}
	for _, is := range []v1.PodConditionType{
		v1.PodScheduled, v1.PodInitialized, v1.ContainersReady, v1.PodReady,
	} {
		condition := v1.PodCondition{Type: is, Status: v1.ConditionTrue, LastTransitionTime: now}
		status.Conditions = append(status.Conditions, condition)
	}
	started := true
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: &started,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}
