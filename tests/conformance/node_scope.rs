//! A proxy on a node, with the node's own credentials and subject to the Node authorizer. It caches what belongs to the
//! node, with one watch that has the node's selector. The apiserver answers or refuses everything else.

use futures_util::future::join;
use http::HeaderName;
use kube_fanout::upstream::{ACCESS_REVIEWS, AccessReviewResult};
use serde_json::{Value, json};

use crate::bed::{self, Answer, Authority, Bed, Http, Plan, Plane, Proxy, RequestSpec, Watch, eventually, version_of};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf,application/json";
const NODE: HeaderName = HeaderName::from_static("impersonate-user");
const NODES: HeaderName = HeaderName::from_static("impersonate-group");
/// The pods of the node, with a kubelet's selector.
const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const WATCH_LIST: &str =
    "&watch=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1&resourceVersion=0";

/// The number of reads that must contain every earlier write.
const READS: usize = 60;

/// A control plane with two nodes, and a proxy on the first.
struct Node {
    bed: Bed<Box<Plane>>,
    proxy: Proxy,
    direct: Http,
    through: Http,
    namespace: String,
}

fn pod(name: &str, node: &str, of: &str) -> Value {
    let volumes = json!([
        {"name": "s", "secret": {"secretName": of}},
        {"name": "c", "configMap": {"name": of}},
    ]);
    let containers = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers, "volumes": volumes}})
}

impl Node {
    async fn new(bed: Option<Bed<Box<Plane>>>) -> Option<Self> {
        let bed = bed?;
        let direct = bed.direct();
        let namespace = bed.namespace("node").await;
        let inside = |resource: &str| format!("/api/v1/namespaces/{namespace}/{resource}");
        for node in ["n1", "n2"] {
            direct.create("/api/v1/nodes", json!({"metadata": {"name": node}})).await;
            let named = json!({"metadata": {"name": node}, "data": {"k": "dmFsdWU="}});
            direct.create(&inside("secrets"), named.clone()).await;
            direct.create(&inside("configmaps"), named).await;
            for n in 0..3 {
                direct.create(&inside("pods"), pod(&format!("{node}-{n}"), node, node)).await;
            }
        }
        let proxy = Plan::node(&bed).start(&bed).await;
        // Agents on the node are authenticated by the node's certificate, as kubelets are.
        let through = proxy.client_of(&Authority::of(&bed).issue("system:node:n1", &["system:nodes"]));
        let node = Self { bed, proxy, direct, through, namespace };
        // The Node authorizer receives pods by its own watches.
        let secret = node.inside("secrets/n1");
        eventually("the node may read what its pods mount", async || {
            (node.directly(RequestSpec::get(&secret)).await.status == 200).then_some(())
        })
        .await;
        Some(node)
    }

    fn inside(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    fn as_node(request: RequestSpec) -> RequestSpec {
        request.header(NODE, "system:node:n1").header(NODES, "system:nodes")
    }

    /// The apiserver's answer to the node itself.
    async fn directly(&self, request: RequestSpec) -> Answer {
        self.direct.fetch(Self::as_node(request)).await
    }

    /// Sends a request to both. Panics unless the answers are equal. Returns the proxy's.
    async fn same(&self, request: RequestSpec) -> Answer {
        let what = format!("{} {:?}", request.path, request.headers);
        bed::assert_same(&what, self.directly(request.clone()), self.through.fetch(request)).await
    }

    async fn cached_objects(&self, resource: &str) -> i64 {
        self.proxy.metrics().await.sum("kube_fanout_feed_objects", &[("resource", resource)])
    }
}

/// The Node authorizer's reasons for refusals that may soon become permitted are those that a proxy does not cache.
#[tokio::test]
async fn node_authorizer_denial_reason_is_recognized_as_uncacheable() {
    let Some(bed) = bed::shared().await else { return };
    let about = json!({"verb": "watch", "resource": "configmaps", "namespace": "default", "name": "nobody-needs-it"});
    let spec = json!({"user": "system:node:n1", "groups": ["system:nodes"], "resourceAttributes": about});
    let review = bed.direct().create(ACCESS_REVIEWS, json!({"spec": spec})).await;
    assert_eq!(review["status"]["allowed"], false, "{review}");
    let reason = review["status"]["reason"].as_str().unwrap_or_default();
    assert!(AccessReviewResult::is_transient_denial(reason), "{reason}");
}

/// The control plane is quiet, so that the versions of two lists are equal.
#[tokio::test]
async fn node_scope_reads_match_reads_with_node_identity() {
    let Some(node) = Node::new(bed::quiet("node-reads").await).await else { return };
    let own = ["", "&resourceVersion=0", "&limit=2", "&limit=500&resourceVersion=0", "&labelSelector=none"];
    let mut cached_paths: Vec<_> = own.iter().map(|query| format!("{PODS}{query}")).collect();
    cached_paths.extend([
        node.inside("pods?fieldSelector=spec.nodeName%3Dn1"),
        format!("{PODS},status.phase%3DPending"),
        "/api/v1/nodes?fieldSelector=metadata.name%3Dn1".to_owned(),
        "/api/v1/nodes/n1?resourceVersion=0".to_owned(),
        "/api/v1/services?resourceVersion=0".to_owned(),
        "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn1".to_owned(),
    ]);
    let passed = [
        "/api/v1/pods",
        "/api/v1/pods?limit=x",
        "/api/v1/pods?resourceVersion=0",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2",
        "/api/v1/pods?fieldSelector=spec.host%3Dn1",
        "/api/v1/watch/pods?fieldSelector=spec.nodeName%3Dn1",
        "/api/v1/nodes",
        "/api/v1/nodes/n1",
        "/api/v1/nodes/n2?resourceVersion=0",
        "/apis/storage.k8s.io/v1/csinodes?fieldSelector=metadata.name%3Dn1",
        "/apis/resource.k8s.io/v1/resourceslices",
        "/api/v1/secrets",
    ];
    let mut passed: Vec<_> = passed.map(str::to_owned).to_vec();
    for resource in ["secrets", "configmaps"] {
        let paths = ["/n1", "/n1?resourceVersion=0", "/n2", "?fieldSelector=metadata.name%3Dn1", ""];
        passed.extend(paths.map(|path| node.inside(&format!("{resource}{path}"))));
    }
    passed.extend(["pods/n1-0", "pods/n1-0?resourceVersion=0", "pods/n2-0"].map(|path| node.inside(path)));
    for form in [PROTOBUF, "application/json"] {
        for (paths, cached) in [(&cached_paths, true), (&passed, false)] {
            for path in paths {
                let answer = bed::proven(async || node.same(RequestSpec::get(path).accept(form)).await).await;
                assert_eq!(answer.is_cached(), cached, "{path} {form}");
                assert!(!cached || answer.status == 200, "{path}: {}", answer.text());
            }
        }
    }
    let pods = node.proxy.metrics().await;
    let of = [("resource", "pods.v1"), ("selector", "spec.nodeName=n1")];
    assert_eq!(pods.sum("kube_fanout_upstream_watches", &of), 1, "one watch, with the selector");
    assert_eq!(node.proxy.streams("pods.v1").await, 1, "and no other");
    assert_eq!(
        [node.cached_objects("pods.v1").await, node.cached_objects("nodes.v1").await],
        [3, 1],
        "nothing of other nodes"
    );
    for kind in ["secrets.v1", "configmaps.v1"] {
        assert_eq!([node.cached_objects(kind).await, node.proxy.streams(kind).await], [0, 0], "{kind}");
    }
}

#[tokio::test]
async fn node_scope_watch_receives_events_of_own_pods_only() {
    let Some(node) = Node::new(bed::quiet("node-watches").await).await else { return };
    for form in [PROTOBUF, "application/json"] {
        let request = || RequestSpec::get(&format!("{PODS}{WATCH_LIST}")).accept(form);
        let (mut direct, mut through) =
            join(node.direct.watch(Node::as_node(request())), node.through.watch(request())).await;
        let same = async |direct: &mut Watch, through: &mut Watch| {
            let event = direct.normalized_event().await;
            assert_eq!(through.normalized_event().await, event, "{form}");
            event
        };
        // Nothing changes before both have sent the end of the initial events, so that it is after the same event.
        for _initial in ["n1-0", "n1-1", "n1-2", "the bookmark"] {
            same(&mut direct, &mut through).await;
        }
        for name in ["n1-9", "n2-9"] {
            node.direct.create(&node.inside("pods"), pod(name, &name[..2], "n1")).await;
            let labelled = json!({"metadata": {"labels": {"a": "b"}}});
            node.direct.patch(&node.inside(&format!("pods/{name}")), labelled).await;
            node.direct.delete(&node.inside(&format!("pods/{name}"))).await;
        }
        node.direct.create(&node.inside("pods"), pod("n1-end", "n1", "n1")).await;
        node.direct.delete(&node.inside("pods/n1-end")).await;
        // A deletion can be two events. The last one must have arrived before the next watches begin.
        let is_last = |event: &str| event.contains("DELETED") && event.contains("n1-end");
        while !is_last(&same(&mut direct, &mut through).await) {}
    }
    assert_eq!(node.proxy.streams("pods.v1").await, 1);
}

#[tokio::test]
async fn node_scope_reads_contain_every_earlier_write() {
    const NODE: &str = "/api/v1/nodes?fieldSelector=metadata.name%3Dn1";
    let Some(node) = Node::new(bed::own("node-fresh").await).await else { return };
    let (ours, theirs) = (node.inside("pods/n1-0"), node.inside("pods/n2-0"));
    let late = async || node.proxy.metrics().await.sum("kube_fanout_forwarded_total", &[("reason", "no_proof")]);
    for path in [PODS, NODE] {
        let is_cached = async || node.through.get(path).await.is_cached().then_some(());
        eventually("the feed is filled", is_cached).await;
    }
    let (mut cached, before) = ([0; 2], late().await);
    for n in 0..READS {
        let labelled = json!({"metadata": {"labels": {"n": n.to_string()}}});
        let written = version_of(&node.direct.patch(&ours, labelled.clone()).await);
        // The cluster's version runs ahead of a stream that receives no events of it.
        node.direct.patch(&theirs, labelled).await;
        let read = node.through.fetch(RequestSpec::get(PODS)).await;
        let found = read.value()["items"].as_array().expect("a list").iter().map(version_of).max();
        assert_eq!(found, Some(written), "{}", read.text());
        let of_nodes = node.through.fetch(RequestSpec::get(NODE)).await;
        for (cached, read) in cached.iter_mut().zip([read, of_nodes]) {
            *cached += usize::from(read.is_cached());
        }
    }
    // A read is forwarded only if upstream is slow to report its version.
    let passed = i64::try_from(2 * READS - cached.iter().sum::<usize>()).expect("a few");
    assert_eq!(passed, late().await - before, "{cached:?} of {READS}");
    assert!(cached.iter().all(|cached| *cached > 0), "{cached:?} of {READS}");
    assert!(node.proxy.feed_requests("equality").await > 0);
}

fn summary(event: &bed::Event) -> (String, String, u64) {
    (event.kind.clone(), event.name().to_owned(), event.version())
}

/// The node may also send the requests that repair a gap: changes that only a dead apiserver has sent, while the proxy
/// was paused.
#[tokio::test]
async fn node_scope_watch_receives_changes_missed_in_a_crash() {
    let Some(node) = Node::new(bed::own("node-gap").await).await else { return };
    let mut watch = node.through.watch(RequestSpec::get(&format!("{PODS}{WATCH_LIST}"))).await;
    assert_eq!(watch.initial().await.len(), 4, "three pods and the bookmark");
    node.proxy.stop();
    node.bed.kill_apiserver().await;
    node.bed.start_apiserver().await;
    let direct = node.bed.direct();
    let from = direct.version("/api/v1/pods").await;
    let mut of_this_one = direct.watch(RequestSpec::get(&format!("{PODS}&watch=1&resourceVersion={from}"))).await;
    let patch = async |name: &str, n: u32| {
        let labelled = json!({"metadata": {"labels": {"n": n.to_string()}}});
        direct.patch(&node.inside(&format!("pods/{name}")), labelled).await
    };
    for n in 0..3 {
        patch("n2-0", n).await;
        patch("n1-0", n).await;
    }
    for name in ["n1-8", "n2-8"] {
        direct.create(&node.inside("pods"), pod(name, &name[..2], "n1")).await;
    }
    direct.delete(&node.inside("pods/n1-1")).await;
    let mut expected = Vec::new();
    // A pod is marked as deleted before its removal.
    for kind in ["MODIFIED", "MODIFIED", "MODIFIED", "ADDED", "MODIFIED", "DELETED"] {
        expected.push(summary(&of_this_one.change().await));
        assert_eq!(expected.last().map(|(kind, ..)| kind.as_str()), Some(kind));
    }
    node.bed.kill_apiserver().await;
    node.bed.start_apiserver().await;
    node.proxy.go_on();
    expected.push(("MODIFIED".to_owned(), "n1-2".to_owned(), version_of(&patch("n1-2", 0).await)));
    for expected in expected {
        assert_eq!(summary(&watch.change().await), expected);
    }
    let metrics = node.proxy.metrics().await;
    let gaps =
        |outcome| metrics.sum("kube_fanout_history_gaps_total", &[("resource", "pods.v1"), ("outcome", outcome)]);
    assert_eq!([gaps("mended"), gaps("new_history"), node.cached_objects("pods.v1").await], [1, 0, 3]);
}
