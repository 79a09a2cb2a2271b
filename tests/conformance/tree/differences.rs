//! The bytes from a zone to a leaf in ten minutes of a cluster: heartbeats, and pods that come and go. Both receive the
//! same events: a leaf as differences, and plain watches. `make tree REAL_NODES=500` takes the ten minutes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep_until};

use crate::bed::exemplar::{exemplar_pod, named, node, node_conditions};
use crate::bed::{self, Frame, Http, Plan, Protocol, RequestSpec, Target, Watch, log_line};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const NODES: &str = "/api/v1/nodes";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// The intervals of a kubelet with default settings, and the time that is replayed.
const LEASE: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(300);
const REPLAYED: Duration = Duration::from_secs(600);
/// Pods that are created in that time for each node. With 500 nodes these are 5 per second.
const PODS_PER_NODE: u64 = 6;
/// The age of a pod at each change: created, bound, first and second status, deleted, terminated, removed.
const POD_AGES_MS: [u64; 7] = [0, 100, 700, 2500, 32_500, 33_500, 33_600];
/// An image list of this length makes a node 10 KB large.
const IMAGES: usize = 100;
/// Each writes the same objects always, so that their changes keep their order.
const WRITERS: u64 = 16;
/// The nodes of a short run.
const NODES_SHORT: u64 = 10;
/// The name of the objects whose creation ends the watches.
const LAST: &str = "tree-differences-last";

/// Passes bytes on to a server, and counts those that come back.
struct CountingRelay {
    url: String,
    received: Arc<AtomicU64>,
    accepting: AbortHandle,
}

impl CountingRelay {
    async fn start(to: &Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (received, to) = (Arc::new(AtomicU64::new(0)), to.host().to_owned());
        let count = received.clone();
        let accept = async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&to).await.expect("the server listens");
                tokio::spawn(pass(client, server, count.clone()));
            }
        };
        Self { url, received, accepting: tokio::spawn(accept).abort_handle() }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for CountingRelay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(mut client: TcpStream, mut server: TcpStream, received: Arc<AtomicU64>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.split(), server.split());
    let back = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            received.fetch_add(read as u64, Ordering::Relaxed);
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = back => {}
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
    }
}

/// A change of the cluster.
#[derive(Debug, Clone, Copy)]
enum Change {
    Renewal { node: u64 },
    Heartbeat { node: u64 },
    Pod { pod: u64, step: usize },
}

impl Change {
    fn writer(self) -> u64 {
        let (Self::Renewal { node: number } | Self::Heartbeat { node: number } | Self::Pod { pod: number, .. }) = self;
        number % WRITERS
    }
}

/// All changes of a cluster of this many nodes, in order. No two nodes are in step.
fn schedule(nodes: u64) -> Vec<(Duration, Change)> {
    let mut changes = Vec::new();
    let offset = |interval: Duration, n: u64, of: u64| interval.mul_f64(n as f64 / of as f64);
    for node in 0..nodes {
        for (interval, change) in [(LEASE, Change::Renewal { node }), (HEARTBEAT, Change::Heartbeat { node })] {
            let times = (0..).map(|n| offset(interval, node, nodes) + interval * n);
            changes.extend(times.take_while(|at| *at < REPLAYED).map(|at| (at, change)));
        }
    }
    let pods = nodes * PODS_PER_NODE;
    for pod in 0..pods {
        let ages = POD_AGES_MS.iter().map(|age| offset(REPLAYED, pod, pods) + Duration::from_millis(*age));
        let steps = ages.enumerate().take_while(|(_, at)| *at < REPLAYED);
        changes.extend(steps.map(|(step, at)| (at, Change::Pod { pod, step })));
    }
    changes.sort_by_key(|(at, _)| *at);
    changes
}

/// The writers of a cluster.
#[derive(Clone)]
struct Cluster {
    direct: Http,
    pods: String,
    pod: Value,
    nodes: u64,
}

impl Cluster {
    /// Creates what kubelets register.
    async fn register(&self) {
        for number in 0..self.nodes {
            self.direct.create(NODES, named(node(IMAGES), &format!("node-{number:04}"))).await;
            self.lease(&format!("node-{number:04}")).await;
        }
    }

    async fn lease(&self, node: &str) {
        let owner =
            json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": "9f5b8a0e-6d2c-4a53-8f0d-2b1c9e7a4d11"});
        let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now()});
        let metadata = json!({"name": node, "ownerReferences": [owner]});
        self.direct.create(&by(LEASES, "kubelet"), json!({"metadata": metadata, "spec": spec})).await;
    }

    /// Makes the changes, each at its time or as soon as possible.
    async fn run(&self, in_real_time: bool) {
        let (changes, began) = (schedule(self.nodes), Instant::now());
        join_all((0..WRITERS).map(|writer| {
            let (cluster, changes) = (self.clone(), changes.clone());
            tokio::spawn(async move {
                for (at, change) in changes.into_iter().filter(|(_, change)| change.writer() == writer) {
                    if in_real_time {
                        sleep_until(began + at).await;
                    }
                    cluster.make(change).await;
                }
            })
        }))
        .await
        .into_iter()
        .for_each(|done| done.expect("no panic"));
    }

    async fn make(&self, change: Change) {
        match change {
            Change::Renewal { node } => {
                let path = by(&format!("{LEASES}/node-{node:04}"), "kubelet");
                self.direct.patch(&path, json!({"spec": {"renewTime": now()}})).await;
            }
            Change::Heartbeat { node } => {
                let path = by(&format!("{NODES}/node-{node:04}/status"), "kubelet");
                self.direct.patch(&path, json!({"status": {"conditions": node_conditions(&seconds())}})).await;
            }
            Change::Pod { pod, step } => self.change_pod(pod, step).await,
        }
    }

    async fn change_pod(&self, pod: u64, step: usize) {
        let name = format!("small-deployment-{}-67cc84df8d-{pod:05}", pod % 50);
        let path = format!("{}/{name}", self.pods);
        let status = async |status| {
            self.direct.patch(&by(&format!("{path}/status"), "kubelet"), json!({"status": status})).await;
        };
        match step {
            0 => {
                let mut object = named(self.pod.clone(), &name);
                object["metadata"].as_object_mut().expect("metadata").remove("managedFields");
                object["spec"].as_object_mut().expect("a spec").remove("nodeName");
                self.direct.create(&by(&self.pods, "kube-controller-manager"), object).await;
            }
            1 => {
                let target =
                    json!({"apiVersion": "v1", "kind": "Node", "name": format!("node-{:04}", pod % self.nodes)});
                let binding =
                    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target});
                self.direct.create(&format!("{path}/binding"), binding).await;
            }
            2 => status(self.pod["status"].clone()).await,
            3 => status(self.status("True", "Running", &json!({"running": {"startedAt": seconds()}}))).await,
            4 => self.delete(&path, 30).await,
            5 => {
                let ended =
                    json!({"exitCode": 0, "reason": "Completed", "startedAt": seconds(), "finishedAt": seconds()});
                status(self.status("False", "Succeeded", &json!({"terminated": ended}))).await;
            }
            _ => self.delete(&path, 0).await,
        }
    }

    /// The exemplar's status, changed to a later one.
    fn status(&self, ready: &str, phase: &str, state: &Value) -> Value {
        let mut status = self.pod["status"].clone();
        let digest = || (0..64).map(|_| fastrand::char('a'..='f')).collect::<String>();
        for condition in status["conditions"].as_array_mut().expect("conditions") {
            condition["status"] = json!(ready);
            condition["lastTransitionTime"] = json!(seconds());
        }
        for container in status["containerStatuses"].as_array_mut().expect("containers") {
            container["containerID"] = json!(format!("containerd://{}", digest()));
            container["state"] = state.clone();
            container["ready"] = json!(ready == "True");
        }
        let address = format!("10.{}.{}.{}", fastrand::u8(..), fastrand::u8(..), fastrand::u8(..));
        status["phase"] = json!(phase);
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{"ip": address}]);
        status
    }

    async fn delete(&self, path: &str, grace_seconds: u64) {
        let options = json!({"gracePeriodSeconds": grace_seconds}).to_string();
        let answer = self.direct.fetch(RequestSpec::get(path).with(Method::DELETE, JSON, options)).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.text());
    }

    /// Creates the objects that end the watches.
    async fn finish(&self) {
        self.lease(LAST).await;
        self.direct.create(NODES, named(node(1), LAST)).await;
        let mut pod = named(self.pod.clone(), LAST);
        pod["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        self.direct.create(&self.pods, pod).await;
    }
}

fn by(path: &str, manager: &str) -> String {
    format!("{path}?fieldManager={manager}")
}

fn now() -> String {
    humantime::format_rfc3339_micros(SystemTime::now()).to_string()
}

fn seconds() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Reads a watch to its last event. Returns the number of events.
fn follow(mut watch: Watch) -> JoinHandle<u64> {
    tokio::spawn(async move {
        for events in 1.. {
            let (Frame::Json(frame) | Frame::Protobuf(frame)) = watch.frame().await.expect("the watch continues");
            if memchr::memmem::find(&frame, LAST.as_bytes()).is_some() {
                return events;
            }
        }
        unreachable!("it has a last event")
    })
}

/// Opens a watch of a path, from its current version.
async fn watch(client: &Http, path: &str, accept: &str) -> JoinHandle<u64> {
    let version = client.version(path).await;
    let request = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}"));
    follow(client.watch(request.accept(accept)).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_receives_a_tenth_of_the_bytes_of_plain_watches() {
    let Some(bed) = bed::own("differences").await else { return };
    let Some(pod) = exemplar_pod(&bed) else { return log_line("SKIPPED: no exemplar pod in Go's module cache") };
    // Without this number, the load of a small cluster is written as fast as possible.
    let real_nodes = bed::number("TREE_NODES", 0);
    let nodes = if real_nodes == 0 { NODES_SHORT } else { real_nodes };
    let pods = format!("/api/v1/namespaces/{}/pods", bed.namespace("differences").await);
    let paths = [LEASES, NODES, &pods];
    let mut cluster = Cluster { direct: bed.direct(), pods: pods.clone(), pod, nodes };
    cluster.pod["metadata"].as_object_mut().expect("metadata").remove("namespace");
    cluster.register().await;

    let zone = Plan::plain().start(&bed).await;
    let relay = CountingRelay::start(&zone.target()).await;
    let kubeconfig = bed.file("leaf.kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": relay.url}}], "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).expect("a file");
    let leaf = Plan::tls().upstream(&kubeconfig).start(&bed).await;
    let (mut watches, mut plain) = (Vec::new(), BTreeMap::new());
    for (what, path) in [("leases", paths[0]), ("nodes", paths[1]), ("pods", paths[2])] {
        watches.push(watch(&leaf.client(), path, PROTOBUF).await);
        for (encoding, accept) in [("protobuf", PROTOBUF), ("JSON", JSON)] {
            let relay = CountingRelay::start(&zone.target()).await;
            let client = Http::new(Target { url: relay.url.clone(), ..zone.target() }, Protocol::H1);
            watches.push(watch(&client, path, accept).await);
            plain.insert((encoding, what), relay);
        }
    }
    let received = || plain.values().map(CountingRelay::received).collect::<Vec<_>>();
    let (leaf_before, plain_before) = (relay.received(), received());
    let (zone_cpu, leaf_cpu) = (zone.cpu_seconds(), leaf.cpu_seconds());

    cluster.run(real_nodes > 0).await;
    cluster.finish().await;
    let events: Vec<_> = join_all(watches).await.into_iter().map(|events| events.expect("no panic")).collect();
    let leaf_bytes = relay.received() - leaf_before;
    log_line(&format!(
        "{nodes} nodes; events: {events:?}; CPU seconds: zone {:.1}, leaf {:.1}",
        zone.cpu_seconds() - zone_cpu,
        leaf.cpu_seconds() - leaf_cpu
    ));
    let metrics = leaf.metrics().await;
    let mut sums = BTreeMap::<&str, u64>::new();
    for (((encoding, what), relay), before) in plain.iter().zip(plain_before) {
        let bytes = relay.received() - before;
        *sums.entry(*encoding).or_default() += bytes;
        let resource =
            if *what == "leases" { "leases.v1.coordination.k8s.io".to_owned() } else { format!("{what}.v1") };
        let deltas = metrics.sum("kube_fanout_upstream_delta_bytes_total", &[("resource", &resource)]);
        log_line(&format!("{what}: {bytes} bytes plain in {encoding}; {deltas} as differences, without HTTP"));
    }
    let ratio = |encoding| leaf_bytes as f64 / sums[encoding] as f64;
    log_line(&format!(
        "from zone to leaf: {leaf_bytes} bytes at the socket; plain {sums:?}; ratio {:.3} of protobuf, {:.3} of JSON",
        ratio("protobuf"),
        ratio("JSON")
    ));
    assert!(ratio("protobuf") <= 0.1, "{leaf_bytes} bytes of {sums:?}");
    for reason in ["delta_malformed", "delta_unknown_base", "delta_wrong_digest"] {
        assert_eq!(metrics.sum("kube_fanout_upstream_failures_total", &[("reason", reason)]), 0, "{reason}");
    }
    for path in paths {
        let ours = leaf.client().list_now(RequestSpec::get(path)).await;
        assert!(ours.is_cached(), "{path}: {:?}", ours.headers);
        let theirs = cluster.direct.get(path).await;
        let items = |text: &str| text.split_once("\"items\":").map(|(_, items)| items.to_owned()).expect("a list");
        assert!(items(&ours.text()) == items(&theirs.text()), "{path}: the leaf differs from the apiserver");
    }
    leaf.assert_sound();
    zone.assert_sound();
}
