//! A kubelet and the proxy on its node. Both have the node's identity and are subject to the Node authorizer. The test
//! sends a kubelet's requests with its certificate, and requests of other callers too.

use http::Method;
use serde_json::{Value, json};

use crate::bed::{
    self, Answer, Authority, Bed, Http, Identity, Plan, Plane, Protocol, Proxy, RequestSpec, eventually, version_of,
};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf,application/json";
const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";

struct Node {
    bed: Bed<Box<Plane>>,
    proxy: Proxy,
    namespace: String,
}

impl Node {
    async fn new(name: &str) -> Option<Self> {
        let bed = bed::quiet(name).await?;
        let direct = bed.direct();
        let namespace = bed.namespace("kubelet").await;
        let inside = |resource: &str| format!("/api/v1/namespaces/{namespace}/{resource}");
        for node in ["n1", "n2"] {
            direct.create("/api/v1/nodes", json!({"metadata": {"name": node}})).await;
            direct.create(&inside("secrets"), json!({"metadata": {"name": node}, "data": {"k": "dmFsdWU="}})).await;
            direct.create(&inside("pods"), pod(node)).await;
        }
        let proxy = Plan::node(&bed).start(&bed).await;
        let node = Self { bed, proxy, namespace };
        // The Node authorizer receives pods by its own watches.
        let kubelet = node.directly(&node.kubelet("n1"));
        let secret = node.inside("secrets/n1");
        eventually("the node may read what its pods mount", async || {
            (kubelet.fetch(RequestSpec::get(&secret)).await.status == 200).then_some(())
        })
        .await;
        Some(node)
    }

    fn inside(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    fn kubelet(&self, node: &str) -> Identity {
        Authority::of(&self.bed).issue(&format!("system:node:{node}"), &["system:nodes"])
    }

    fn directly(&self, identity: &Identity) -> Http {
        Http::new(self.bed.target().by(identity), Protocol::H2)
    }

    /// Sends a request to both as the same caller. Panics unless the answers are equal. Returns the proxy's.
    async fn same(&self, identity: &Identity, request: RequestSpec) -> Answer {
        let (direct, through) = (self.directly(identity), self.proxy.client_of(identity));
        let what = format!("{} asks {} {}", identity.name, request.method, request.path);
        bed::assert_same(&what, direct.fetch(request.clone()), through.fetch(request)).await
    }
}

fn pod(node: &str) -> Value {
    let volumes = json!([{"name": "s", "secret": {"secretName": node}}]);
    let containers = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": node}, "spec": {"nodeName": node, "containers": containers, "volumes": volumes}})
}

#[tokio::test]
async fn kubelet_gets_apiserver_responses_from_its_node_proxy() {
    let Some(node) = Node::new("kubelet").await else { return };
    let kubelet = node.kubelet("n1");
    let cached = [
        PODS,
        "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
        "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone",
        "/apis/node.k8s.io/v1/runtimeclasses",
        "/apis/storage.k8s.io/v1/csidrivers",
    ];
    for path in cached {
        let answer = bed::proven(async || node.same(&kubelet, RequestSpec::get(path).accept(PROTOBUF)).await).await;
        assert!(answer.is_cached() && answer.status == 200, "{path}: {}", answer.text());
    }
    let named = "secrets?fieldSelector=metadata.name%3D";
    for (path, status) in [
        (node.inside(&format!("{named}n1")), 200),
        (node.inside(&format!("{named}n2")), 403),
        (node.inside("secrets"), 403),
        ("/api/v1/secrets".to_owned(), 403),
        ("/api/v1/pods".to_owned(), 403),
    ] {
        let answer = node.same(&kubelet, RequestSpec::get(&path).accept(PROTOBUF)).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (status, false), "{path}");
    }
    // Writes are forwarded with the identity that the kubelet shares with the proxy.
    let through = node.proxy.client_of(&kubelet);
    let patch = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#.to_owned();
    let patch = |path: &str| {
        RequestSpec::get(path).with(Method::PATCH, "application/strategic-merge-patch+json", patch.clone())
    };
    assert_eq!(through.fetch(patch("/api/v1/nodes/n1/status")).await.status, 200);
    let patched = through.fetch(patch(&node.inside("pods/n1/status"))).await;
    assert_eq!(patched.status, 200);
    let there = format!("{PODS}&resourceVersion={}", version_of(&patched.value()));
    through.until_ok("the feed has it", RequestSpec::get(&there)).await;
    let mut watch =
        through.watch(RequestSpec::get(&format!("{PODS}&watch=1&resourceVersion=0")).accept("application/json")).await;
    assert_eq!(watch.change().await.object["metadata"]["name"], "n1");
    node.bed.direct().patch(&node.inside("pods/n1"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(watch.change().await.object["metadata"]["labels"]["a"], "b");
}

/// R-THREAT-8: the proxy on a node gives no other caller the node's permissions, and gives the node nothing of others.
#[tokio::test]
async fn node_proxy_grants_other_callers_no_extra_permissions() {
    let Some(node) = Node::new("kubelet-others").await else { return };
    let certificates = [node.kubelet("n2"), Authority::of(&node.bed).issue("viewer", &[])];
    let cached_paths = [PODS, "/api/v1/nodes?fieldSelector=metadata.name%3Dn1"].map(str::to_owned);
    let passed = ["/api/v1/secrets", "/api/v1/pods"].map(str::to_owned);
    let passed = passed.into_iter().chain(["secrets/n1", "secrets/n2", "pods/n1"].map(|name| node.inside(name)));
    for path in cached_paths.iter().cloned().chain(passed.clone()) {
        node.same(&node.bed.user("alice"), RequestSpec::get(&path).accept("application/json")).await;
    }
    // Forwarding requests of a certificate holder would need an impersonator, which no node has.
    for identity in &certificates {
        for path in &cached_paths {
            node.same(identity, RequestSpec::get(path).accept("application/json")).await;
        }
        for path in passed.clone() {
            let refused = node.proxy.client_of(identity).get(&path).await;
            assert_eq!(refused.status, 403, "{} asks {path}: {}", identity.name, refused.text());
            assert!(refused.text().contains("impersonator"), "{}", refused.text());
        }
    }
    let list = RequestSpec::get(PODS).accept("application/json");
    let viewer = bed::proven(async || node.same(&certificates[1], list.clone()).await).await;
    assert!(viewer.is_cached() && viewer.status == 200, "{}", viewer.text());
    let metrics = node.proxy.metrics().await;
    for kind in ["secrets.v1", "configmaps.v1"] {
        assert_eq!(metrics.sum("kube_fanout_feed_objects", &[("resource", kind)]), 0, "{kind}");
    }
    assert_eq!(metrics.sum("kube_fanout_feed_objects", &[("resource", "pods.v1")]), 1, "of this node alone");
}
