//! The last part of `--help`: examples and exit codes.

pub(super) const ESTIMATE_EXAMPLES: &str = "\
Examples:
  What one central proxy would have spared it:
    fanoutctl estimate --audit-log /var/log/kubernetes/audit.log
  Proxies on 200 nodes, from several logs:
    zcat -f audit*.log* | fanoutctl estimate --audit-log - --proxies 200

Records of metadata suffice. What a record does not say is taken for the worse: all lists of kubectl are taken for
tables, which upstream prints.

Exit codes: 0 told, 2 nothing can be said, 64 wrong usage.";

pub(super) const TRY_EXAMPLES: &str = "\
Examples:
  A kube-apiserver, a proxy, a thousand informers, and a page to look at:
    fanoutctl try
  The same without a control plane:
    fanoutctl try --demo
  By itself, for a recording or a pipeline:
    fanoutctl try --script '10s apiserver, 30s proxy, 60s quit'

Keys, in a terminal: a kills the apiserver and starts it again, p the proxy, q ends.

Everything is on loopback, in a directory that is removed at the end (--dir keeps it). The control plane is etcd and
kube-apiserver in one binary, which tests/kube/build.sh builds from their Go modules (minutes, once).

Lost is what an informer was not told of what was written, by versions, or holds otherwise than upstream at the end.

Exit codes: 0 nothing was lost, 1 something was, 2 nothing can be said, 64 wrong usage.";

pub(super) const BENCH_EXAMPLES: &str = "\
Examples:
  A thousand watches of a proxy, of which this kubeconfig's apiserver is upstream:
    fanoutctl bench --target https://127.0.0.1:8443 --ca proxy.crt --kubeconfig admin.kubeconfig --pid 4711 \
      --watches 1000 --rate 50
  Both of them, in turn, three times each:
    fanoutctl bench --compare https://127.0.0.1:6443 https://127.0.0.1:8443 --names apiserver,proxy \
      --pids 4242,4711 --ca proxy.crt --kubeconfig admin.kubeconfig --scenario gentle --rounds 3 --report gentle.html

Exit codes: 0 measured, 64 wrong usage, 1 anything else, also when a watch missed an event.";

pub(super) const VERIFY_EXAMPLES: &str = "\
Examples:
  A proxy in front of the kubeconfig's apiserver, judged by what that apiserver's own watch tells:
    fanoutctl verify https://127.0.0.1:8443 --kubeconfig admin.kubeconfig --ca proxy.crt
  The same judged by etcd, which is stronger, while the apiserver is killed now and then:
    fanoutctl verify https://127.0.0.1:8443 --kubeconfig admin.kubeconfig --ca proxy.crt \
      --truth etcd=https://127.0.0.1:2379,ca.crt,client.crt,client.key --resource samples.verify.kube-fanout.io \
      --duration 10m --fault 'pkill -KILL kube-apiserver'
  Three servers of one cluster, among which a thousand informers go with the versions that they have:
    fanoutctl verify https://leaf:8443 --ca leaf.crt --also https://zone:8443,zone.crt --also https://apiserver:6443 \
      --informers --clients 1000 --share 25 --rate 25 --kubeconfig admin.kubeconfig
  What was found, once more, without a server:
    fanoutctl verify judge kube-fanout-verify/records.jsonl --page report.html

It writes objects into namespaces of its own, whose names begin with kube-fanout-verify, and deletes them at the end.

Exit codes: 0 every promise that could be judged was kept, 1 one was not, 2 void: nothing can be said, 64 wrong usage.";
