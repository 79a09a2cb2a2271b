// In Kubernetes 1.35 the module k8s.io/cri-streaming is a package of k8s.io/kubelet.
module k8s.io/cri-streaming

go 1.25.0

require k8s.io/kubelet v0.35.4
