//! The last part of `--help`: examples and exit codes.

pub(super) const ESTIMATE_EXAMPLES: &str = "\
Examples:
  One central proxy:
    fanoutctl estimate --audit-log /var/log/kubernetes/audit.log
  A proxy on each of 200 nodes, from several logs:
    zcat -f audit*.log* | fanoutctl estimate --audit-log - --proxies 200

The audit level Metadata is sufficient. Where a record is ambiguous, the worst case is assumed: every LIST of kubectl \
counts as a Table, which the proxy forwards.

Exit codes: 0 estimated, 2 inconclusive, 64 usage error.";

pub(super) const SIZE_EXAMPLES: &str = "\
Examples:
  5,000 nodes, each with three agents that watch two whole collections and the pods of their node:
    fanoutctl size --nodes 5000
  Six agents, 200,000 objects, 150 changes of each resource per second:
    fanoutctl size --nodes 5000 --agents 6 --objects 200000 --changes 150

Counts and rates of a running cluster are in `kube-fanout check`, `fanoutctl estimate` and the proxy's metrics.

Exit codes: 0 calculated, 64 usage error.";

pub(super) const TRY_EXAMPLES: &str = "\
Examples:
  A kube-apiserver, a proxy, a thousand informers, and the live page:
    fanoutctl try
  With an embedded apiserver instead of a control plane:
    fanoutctl try --demo
  Without keys, for a recording or a pipeline:
    fanoutctl try --script '10s apiserver, 30s proxy, 60s quit'

Keys in a terminal: a kills and restarts the apiserver, p kills and restarts the proxy, q quits.

All servers listen on loopback. Their files are in a directory that is removed at the end (--dir keeps it). The \
control plane is etcd and kube-apiserver in one binary, which tests/kube/build.sh builds from their Go \
modules (once, minutes).

An event counts as lost if an informer did not receive a written resourceVersion, or if its state differs from \
upstream at the end.

Exit codes: 0 nothing was lost, 1 an event was lost, wrong or missing at the end, 2 inconclusive, 64 usage error.";

pub(super) const BENCH_EXAMPLES: &str = "\
Examples:
  A thousand watches through a proxy in front of the kubeconfig's apiserver:
    fanoutctl bench --target https://127.0.0.1:8443 --ca proxy.crt --kubeconfig admin.kubeconfig --pid 4711 \
      --watches 1000 --rate 50
  The apiserver and the proxy in turn, three times each:
    fanoutctl bench --compare https://127.0.0.1:6443 https://127.0.0.1:8443 --names apiserver,proxy \
      --pids 4242,4711 --ca proxy.crt --kubeconfig admin.kubeconfig --scenario gentle --rounds 3 --report gentle.html

Exit codes: 0 measured, 1 a watch missed an event or another error occurred, 64 usage error.";

pub(super) const VERIFY_EXAMPLES: &str = "\
Examples:
  A proxy in front of the kubeconfig's apiserver, compared with that apiserver's own watch:
    fanoutctl verify https://127.0.0.1:8443 --kubeconfig admin.kubeconfig --ca proxy.crt
  Compared with etcd, which is stronger, while the apiserver is killed at random times:
    fanoutctl verify https://127.0.0.1:8443 --kubeconfig admin.kubeconfig --ca proxy.crt \
      --truth etcd=https://127.0.0.1:2379,ca.crt,client.crt,client.key --resource samples.verify.kube-fanout.io \
      --duration 10m --fault 'pkill -KILL kube-apiserver'
  Three servers of one cluster; a thousand informers move between them and resume from their last resourceVersion:
    fanoutctl verify https://leaf:8443 --ca leaf.crt --also https://zone:8443,zone.crt --also https://apiserver:6443 \
      --informers --clients 1000 --share 25 --rate 25 --kubeconfig admin.kubeconfig
  Check an existing record again, without a server:
    fanoutctl verify judge kube-fanout-verify/records.jsonl --page report.html

It writes objects to its own namespaces, whose names begin with kube-fanout-verify, and deletes them at the end.

Exit codes: 0 all guarantees that could be checked hold, 1 a guarantee was violated, 2 inconclusive, 64 usage error.";
