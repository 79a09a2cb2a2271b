//! Tenants' programs: what k9s and Headlamp send for a caller who may read some namespaces, and what they ask before.
//! The requests are those of k9s 0.51 (`internal/client`, `internal/watch`, `internal/dao/table.go`) and of Headlamp 0.45
//! (`frontend/src/lib/k8s`).

use std::collections::BTreeSet;

use futures_util::StreamExt;
use http::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::bed::protobuf::{self, Field};
use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{self, Answer, Authority, Bed, Http, Identity, Plan, Protocol, Proxy, RequestSpec, unique, within};
use crate::websocket;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const FILTER: &str = "reads: {filter: {groups: [tenants]}}";
const K9S_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                         application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

struct Tenant {
    bed: Bed,
    proxy: Proxy,
    direct: Http,
    identity: Identity,
    user: String,
}

impl Tenant {
    async fn new() -> Option<Self> {
        let bed = bed::shared().await?;
        let (direct, proxy) = (bed.direct(), Plan::delegated(&bed).config(FILTER).start(&bed).await);
        let user = unique("tenant");
        let identity = Authority::of(&bed).issue(&user, &["tenants"]);
        Some(Self { bed, proxy, direct, identity, user })
    }

    /// The clients of a caller: of the apiserver, and of the proxy.
    fn both(&self, identity: &Identity, protocol: Protocol) -> [Http; 2] {
        [self.bed.target(), self.proxy.target()].map(|target| Http::new(target.by(identity), protocol))
    }

    /// Lets the tenant view a namespace, and waits until the apiserver applies it.
    async fn allow(&self, namespace: &str) {
        let bound = binding("tenant", "ClusterRole", "view", &subject("User", &self.user));
        self.direct.create(&collection(Some(namespace), "rolebindings"), bound).await;
        let attributes = json!({"namespace": namespace, "verb": "list", "resource": "configmaps"});
        may(&self.direct, json!({"user": self.user, "resourceAttributes": attributes})).await;
    }
}

fn review(spec: &Value, accept: &str) -> RequestSpec {
    let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec});
    RequestSpec::get(REVIEWS).accept(accept).with(Method::POST, JSON, review.to_string())
}

fn question(verb: &str, resource: &str) -> Value {
    json!({"resourceAttributes": {"verb": verb, "version": "v1", "resource": resource}})
}

/// A review without its time, and with its rules in order. Nothing else may differ between two of them: the apiserver
/// reads the bindings in no order.
fn timeless(mut review: Value) -> Value {
    if let Some(fields) = review.pointer_mut("/metadata/managedFields/0") {
        fields["time"].take();
    }
    for rules in ["/status/resourceRules", "/status/nonResourceRules"] {
        if let Some(Value::Array(rules)) = review.pointer_mut(rules) {
            rules.sort_by_key(Value::to_string);
        }
    }
    review
}

/// Checks that the proxy's response is the apiserver's.
fn assert_same(spec: &Value, direct: &Answer, through: &Answer) {
    assert_eq!((direct.status, direct.content_type()), (through.status, through.content_type()), "{spec}");
    assert!(!through.headers.contains_key("kube-fanout-filtered"), "{spec}");
    if direct.content_type() == JSON {
        assert_eq!(timeless(direct.value()), timeless(through.value()), "{spec}");
    } else {
        let [direct, through] = [direct, through].map(|answer| protobuf::document(&answer.body).expect("a document"));
        let parts = |(kind, review): (String, &[u8])| {
            (kind, review.len(), [2, 3].map(|part| protobuf::bytes(review, part).map(<[u8]>::to_vec)))
        };
        assert_eq!(parts(direct), parts(through), "{spec}");
    }
}

/// Checks that the proxy's review is the apiserver's, with an allow decision.
fn assert_only_decision_differs(direct: &Answer, through: &Answer) {
    assert_eq!((direct.status.as_u16(), through.status.as_u16()), (201, 201), "{}", through.text());
    assert_eq!((through.content_type(), through.header("kube-fanout-filtered")), (direct.content_type(), "true"));
    let reason = "kube-fanout: reads.filter shows what the user may read";
    if through.content_type() == JSON {
        let mut expected = timeless(direct.value());
        assert_eq!(expected["status"]["allowed"], false);
        expected["status"] = json!({"allowed": true, "reason": reason});
        assert_eq!(timeless(through.value()), expected);
        return;
    }
    let [direct, through] = [direct, through].map(|answer| {
        let (kind, review) = protobuf::document(&answer.body).expect("a document");
        assert_eq!(kind, "SelfSubjectAccessReview");
        review.to_vec()
    });
    assert_eq!(protobuf::bytes(&direct, 2), protobuf::bytes(&through, 2));
    assert_eq!(protobuf::bytes(&direct, 1).map(<[u8]>::len), protobuf::bytes(&through, 1).map(<[u8]>::len));
    let [denied, allowed] = [&direct, &through].map(|review| {
        let status = protobuf::bytes(review, 3).expect("a status");
        protobuf::fields(status).expect("fields").into_iter().collect::<Vec<_>>()
    });
    assert_eq!(denied[0], (1, Field::Number(0)));
    let expected = [(1, Field::Number(1)), (2, Field::Bytes(reason.as_bytes()))];
    assert_eq!((&allowed[..2], &allowed[2..]), (&expected[..], &denied[2..]));
}

/// The same question before and after a grant. What the apiserver allows, and what others ask, has its bytes.
#[tokio::test]
async fn self_review_of_filtered_read_is_allowed_and_any_other_is_upstreams() {
    let Some(tenant) = Tenant::new().await else { return };
    let stranger = Authority::of(&tenant.bed).issue(&unique("stranger"), &["others"]);
    let filtered = [
        question("list", "configmaps"),
        question("watch", "configmaps"),
        question("list", "namespaces"),
        json!({"resourceAttributes": {"verb": "list", "resource": "configmaps", "name": "a"}}),
        json!({"resourceAttributes": {"verb": "list", "group": "apps", "resource": "deployments"}}),
    ];
    let others = [
        question("get", "configmaps"),
        question("delete", "configmaps"),
        question("list", "secrets"),
        question("list", "nodes"),
        question("list", "none"),
        json!({"resourceAttributes": {"verb": "list", "resource": "configmaps", "namespace": "default"}}),
        json!({"resourceAttributes": {"verb": "list", "resource": "configmaps",
            "fieldSelector": {"rawSelector": "metadata.name=a"}}}),
        json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}),
        json!({}),
    ];
    for (protocol, accept) in
        [(Protocol::H1, JSON), (Protocol::H2, JSON), (Protocol::H1, PROTOBUF), (Protocol::H2, PROTOBUF)]
    {
        let [direct, through] = tenant.both(&tenant.identity, protocol);
        for spec in &filtered {
            let denied = direct.fetch(review(spec, accept)).await;
            assert_only_decision_differs(&denied, &through.fetch(review(spec, accept)).await);
            // client-go and kubectl send protobuf.
            let sent = denied.content_type().to_owned();
            let again = |accept| RequestSpec {
                body: denied.body.clone(),
                ..review(spec, accept).header(http::header::CONTENT_TYPE, &sent)
            };
            assert_only_decision_differs(&direct.fetch(again(accept)).await, &through.fetch(again(accept)).await);
            let [direct, through] = tenant.both(&stranger, protocol);
            let (theirs, ours) = (direct.fetch(review(spec, accept)).await, through.fetch(review(spec, accept)).await);
            assert_same(spec, &theirs, &ours);
        }
        for spec in &others {
            let (theirs, ours) = (direct.fetch(review(spec, accept)).await, through.fetch(review(spec, accept)).await);
            assert_same(spec, &theirs, &ours);
        }
    }
    // The tenant sees nothing yet, as its LIST says.
    let through = tenant.proxy.client_of(&tenant.identity);
    let list = through.list_now(RequestSpec::get("/api/v1/configmaps")).await;
    assert_eq!((list.status.as_u16(), list.value()["items"].as_array().map(Vec::len)), (200, Some(0)));
    let role = binding(&unique("view"), "ClusterRole", "view", &subject("User", &tenant.user));
    tenant.direct.create(&collection(None, "rolebindings"), role).await;
    let attributes = json!({"verb": "list", "resource": "configmaps"});
    may(&tenant.direct, json!({"user": tenant.user, "resourceAttributes": attributes})).await;
    for accept in [JSON, PROTOBUF] {
        let [direct, through] = tenant.both(&tenant.identity, Protocol::H2);
        let spec = &filtered[0];
        let (theirs, ours) = (direct.fetch(review(spec, accept)).await, through.fetch(review(spec, accept)).await);
        assert_same(spec, &theirs, &ours);
        assert!(ours.text().contains("RBAC: allowed by"), "{}", ours.text());
    }
}

/// The requests of k9s and Headlamp, in their order: each succeeds, and shows the tenant's namespaces alone.
#[tokio::test]
async fn k9s_and_headlamp_show_tenant_its_namespaces() {
    let Some(tenant) = Tenant::new().await else { return };
    let mut namespaces = Vec::new();
    for _ in 0..3 {
        let namespace = tenant.bed.namespace("tenant").await;
        for map in ["a", "b"] {
            let map = json!({"metadata": {"name": map}, "data": {"at": "0"}});
            tenant.direct.create(&maps(&namespace), map).await;
        }
        namespaces.push(namespace);
    }
    for namespace in &namespaces[..2] {
        tenant.allow(namespace).await;
    }
    let through = tenant.proxy.client_of(&tenant.identity);
    let visible: BTreeSet<&str> = namespaces[..2].iter().map(String::as_str).collect();
    let asked = async |spec: &Value| {
        let answer = through.fetch(review(spec, JSON)).await;
        answer.value()["status"]["allowed"].as_bool().expect("a decision")
    };
    // k9s: whether there is a server, which namespaces there are, then a Table or an informer of a resource.
    for path in ["/version", "/api", "/apis", "/api/v1", "/apis/apps/v1"] {
        assert_eq!(through.get(path).await.status, 200, "{path}");
    }
    assert!(asked(&question("list", "namespaces")).await);
    let shown = through.list_now(RequestSpec::get("/api/v1/namespaces")).await.value();
    assert_eq!(texts(&shown, "items", "/metadata/name"), visible);
    for verb in ["list", "watch"] {
        assert!(asked(&question(verb, "configmaps")).await, "{verb}");
    }
    for include in ["Metadata", "Object"] {
        let path = format!("/api/v1/configmaps?includeObject={include}");
        let table = through.fetch(RequestSpec::get(&path).accept(K9S_TABLE)).await.value();
        assert_eq!(table["kind"], "Table");
        let rows = texts(&table, "rows", "/object/metadata/namespace");
        assert_eq!(rows, visible, "{include}");
    }
    for (path, resources) in [("/api/v1/pods", "pods"), ("/apis/apps/v1/deployments", "deployments")] {
        let list = through.list_now(RequestSpec::get(&format!("{path}?limit=500&resourceVersion=0"))).await;
        assert_eq!((list.status.as_u16(), list.header("kube-fanout-filtered")), (200, "true"), "{resources}");
    }
    // What a tenant may do in its namespace is upstream's answer: an object's log, its deletion.
    for (verb, namespace, allowed) in [("get", 0, true), ("delete", 0, false), ("get", 2, false)] {
        let attributes = json!({"verb": verb, "version": "v1", "resource": "pods", "namespace": namespaces[namespace],
            "subresource": if verb == "get" { "log" } else { "" }, "name": "p"});
        assert_eq!(asked(&json!({"resourceAttributes": attributes})).await, allowed, "{verb} in {namespace}");
    }
    // Headlamp: a rules review as the test of the credential, a JSON list, a watch over WebSocket from its version.
    let rules = json!({"spec": {"namespace": namespaces[0]}}).to_string();
    let rules =
        RequestSpec::get("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews").with(Method::POST, JSON, rules);
    let [theirs, ours] = tenant.both(&tenant.identity, Protocol::H1);
    let (theirs, ours) = (theirs.fetch(rules.clone()).await, ours.fetch(rules).await);
    assert_eq!((theirs.status.as_u16(), ours.status.as_u16()), (201, 201));
    assert_same(&json!("rules"), &theirs, &ours);
    let list = through.list_now(RequestSpec::get("/api/v1/configmaps")).await.value();
    assert_eq!(texts(&list, "items", "/metadata/namespace"), visible);
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let target = tenant.proxy.target().by(&tenant.identity);
    let mut socket =
        websocket::open(&target, &format!("/api/v1/configmaps?watch=1&resourceVersion={version}"), JSON).await;
    for namespace in [&namespaces[2], &namespaces[1], &namespaces[0]] {
        let map = json!({"metadata": {"name": "new"}});
        tenant.direct.create(&maps(namespace), map).await;
    }
    for namespace in [&namespaces[1], &namespaces[0]] {
        let Some(Ok(Message::Text(text))) = within("an event", socket.next()).await else { panic!("no event") };
        let event: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&event["type"], &event["object"]["metadata"]["namespace"]), (&json!("ADDED"), &json!(namespace)));
    }
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn texts<'a>(list: &'a Value, items: &str, pointer: &str) -> BTreeSet<&'a str> {
    let items = list[items].as_array().expect("items").iter();
    items.map(|item| item.pointer(pointer).and_then(Value::as_str).expect("a text")).collect()
}
