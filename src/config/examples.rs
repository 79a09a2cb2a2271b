//! What `--help` teaches by.

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  A sidecar or a workstation, on loopback, with the credentials of a kubeconfig:
    kube-fanout serve --kubeconfig ~/.kube/config --listen 127.0.0.1:8001
    kubectl --server=http://127.0.0.1:8001 get pods --watch
  A central proxy for everybody who has an account in the cluster:
    kube-fanout serve --kubeconfig proxy.kubeconfig --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key \
      --auth delegated --client-ca ca.crt --impersonator-kubeconfig impersonator.kubeconfig
  The same as the first in a pod, on a socket that a neighbour container mounts:
    kube-fanout serve --listen unix:/run/kube-fanout/api.sock --preload pods,nodes

Exit codes: 0 stopped by SIGTERM or SIGINT, 64 wrong usage, 78 wrong configuration, 1 anything else.";

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  What a DaemonSet with this configuration needs, and what it would cost upstream:
    kube-fanout check --config node.yaml --kubeconfig node.kubeconfig --node-name node-1 --nodes 1000
  The same in a pipeline, where nothing may be worse than it could be:
    kube-fanout check --config central.yaml --kubeconfig proxy.kubeconfig --strict --json

It takes the flags of `serve`, reads, and asks about its own rights; it changes nothing and listens nowhere.

Exit codes: 0 all passes, 1 something is missing, 2 nothing can be said, 64 wrong usage.";

pub(super) const HEALTH_EXAMPLES: &str = "\
Examples:
  The proxy of this container, by the configuration that it has:
    kube-fanout health
  Whether a Service should send requests to it:
    kube-fanout health http://127.0.0.1:10256/readyz

It says one line.

Exit codes: 0 all is well, 1 the answer says otherwise, 2 there is no answer, 64 wrong usage.";
