//! Examples and exit codes in `--help`.

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  On loopback, for a sidecar or a workstation, with the credentials of a kubeconfig:
    kube-fanout serve --kubeconfig ~/.kube/config --listen 127.0.0.1:8001
    kubectl --server=http://127.0.0.1:8001 get pods --watch
  A central proxy for all accounts of the cluster:
    kube-fanout serve --kubeconfig proxy.kubeconfig --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key \
      --auth delegated --client-ca ca.crt --impersonator-kubeconfig impersonator.kubeconfig
  In a pod, on a unix socket that another container mounts:
    kube-fanout serve --listen unix:/run/kube-fanout/api.sock --preload pods,nodes

Exit codes: 0 stopped by SIGTERM or SIGINT, 64 usage error, 78 invalid configuration, 1 other errors.";

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  Check the configuration of a DaemonSet on 1000 nodes, and estimate its cost:
    kube-fanout check --config node.yaml --kubeconfig node.kubeconfig --node-name node-1 --nodes 1000
  In a pipeline, with notes as failures:
    kube-fanout check --config central.yaml --kubeconfig proxy.kubeconfig --strict --json

`check` takes the flags of `serve`. It only reads: it changes nothing and does not listen.

Exit codes: 0 all checks passed, 1 a check failed, 2 inconclusive, 64 usage error.";

pub(super) const HEALTH_EXAMPLES: &str = "\
Examples:
  The proxy in this container, at the address in its configuration:
    kube-fanout health
  Whether it is ready:
    kube-fanout health http://127.0.0.1:10256/readyz

Because it needs no shell and no curl, it works in images that have neither.

Exit codes: 0 healthy, 1 unhealthy, 2 no response, 64 usage error.";
