//! `reads.filter` with `delegated.decide: rbac`: the objects that rules with `resourceNames` let a caller get are shown
//! in its lists and watches.

use std::time::Duration;

use demo::{self, RequestKind, RunningDemoApiserver};
use http::Method;
use kube_fanout::auth::{AccessDecider, AuthMode};
use serde_json::{Value, json};

use crate::direct::{self, Answer, App, Client, Protocol, Watch, eventually};

pub const MAPS: &str = "/api/v1/configmaps";
const MAPS_OF_A: &str = "/api/v1/namespaces/a/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const LONG: Duration = Duration::from_secs(600);

/// Lets ada get these configmaps of a namespace, and no longer those of an earlier call.
pub fn allow(up: &RunningDemoApiserver, namespace: &str, names: &[&str]) {
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": names});
    up.put("roles", json!({"metadata": {"name": "named", "namespace": namespace}, "rules": [rule]}));
}

pub fn put_binding(up: &RunningDemoApiserver, namespace: &str) {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "named"});
    let subjects = json!([{"kind": "User", "name": "ada"}]);
    let metadata = json!({"name": "named", "namespace": namespace});
    up.put("rolebindings", json!({"metadata": metadata, "roleRef": role, "subjects": subjects}));
}

/// The upstream denies everything. The rules let ada get `x` and `y` in a, and `x` in b.
async fn upstream() -> RunningDemoApiserver {
    let up = demo::upstream().pods(0).run().await;
    for namespace in ["a", "b", "c"] {
        ["w", "x", "y", "z"].iter().for_each(|name| _ = put(&up, namespace, name));
        put_binding(&up, namespace);
    }
    allow(&up, "a", &["x", "y", "none"]);
    allow(&up, "b", &["x"]);
    up.reviews().give("t", "ada");
    up
}

/// A proxy that decides by the rules and filters for ada, and her client.
async fn run(up: &RunningDemoApiserver) -> (App, Client) {
    let app = direct::app(up).with(|config| {
        config.auth = AuthMode::Delegated;
        config.serve.filter.users = vec!["ada".to_owned()];
        let auth = &mut config.delegated.auth;
        (auth.decide, auth.compare_one_in) = (AccessDecider::Rbac, 0);
        (auth.token_ttl, auth.allowed_ttl, auth.denied_ttl, auth.recheck) = (LONG, LONG, LONG, LONG);
        config.reflect.self_check = Some(Duration::from_millis(60));
    });
    let app = app.run().await;
    let ada = app.bearing("t");
    (app, ada)
}

/// Such an upstream, and such a proxy that knows the rules.
pub async fn ada() -> (RunningDemoApiserver, App, Client) {
    let up = upstream().await;
    let (app, ada) = run(&up).await;
    eventually("the rules are known", || async { ada.get(MAPS_OF_A).await.is_cached() }).await;
    (up, app, ada)
}

fn put(up: &RunningDemoApiserver, namespace: &str, name: &str) -> u64 {
    up.put("configmaps", json!({"metadata": {"namespace": namespace, "name": name}}))
}

fn keys(answer: &Answer) -> Vec<String> {
    answer.items().into_iter().map(|(key, _)| key).collect()
}

fn rows(table: &Value) -> Vec<&str> {
    table["rows"].as_array().expect("rows").iter().filter_map(|row| row["cells"][0].as_str()).collect()
}

#[tokio::test]
async fn forbidden_list_shows_objects_that_rules_name() {
    let (up, _app, ada) = ada().await;
    for protocol in Protocol::ALL {
        let ada = ada.over(protocol);
        for (path, expected) in [
            (MAPS_OF_A.to_owned(), vec!["a/x", "a/y"]),
            (MAPS.to_owned(), vec!["a/x", "a/y", "b/x"]),
            (format!("{MAPS_OF_A}?limit=1"), vec!["a/x"]),
            (format!("{MAPS}?fieldSelector=metadata.name%3Dy"), vec!["a/y"]),
            (format!("{MAPS_OF_A}?fieldSelector=metadata.name%3Dw"), vec![]),
            (format!("{MAPS}?fieldSelector=metadata.namespace%3Db"), vec!["b/x"]),
            (format!("{MAPS_OF_A}?labelSelector=none"), vec![]),
        ] {
            let answer = ada.get(&path).await;
            assert_eq!((answer.status, answer.header("kube-fanout-filtered")), (200, Some("true")), "{path}");
            assert_eq!(keys(&answer), expected, "{path}");
            assert!(!answer.text().contains("remainingItemCount"), "{path}");
        }
    }
    let second = ada.get(&format!("{MAPS}?limit=2")).await.continue_token().expect("one more");
    assert_eq!(keys(&ada.get(&format!("{MAPS}?limit=2&continue={second}")).await), ["b/x"]);
    // Nothing is named there, so the response is upstream's.
    for path in ["/api/v1/namespaces/c/configmaps", "/api/v1/namespaces/a/pods", "/api/v1/namespaces/none/configmaps"] {
        let answer = ada.get(path).await;
        assert_eq!((answer.status, answer.header("kube-fanout-filtered")), (403, None), "{path}");
    }
    // The names need no reviews.
    let before = up.reviews().counts().accesses;
    allow(&up, "a", &["w", "z"]);
    eventually("other names", || async { keys(&ada.get(MAPS_OF_A).await) == ["a/w", "a/z"] }).await;
    let names: Vec<_> = (0..1_001).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).chain(["x"]).collect();
    allow(&up, "a", &names);
    eventually("too many names", || async { ada.get(MAPS_OF_A).await.status == 403 }).await;
    assert!(up.reviews().counts().accesses - before < 10, "{} reviews", up.reviews().counts().accesses - before);
    allow(&up, "a", &[]);
    eventually("a rule for all objects", || async { ada.get(&format!("{MAPS_OF_A}/w")).await.status == 200 }).await;
    assert_eq!(ada.get(MAPS_OF_A).await.status, 403, "it names none");
}

#[tokio::test]
async fn filtered_table_has_rows_of_objects_that_rules_name() {
    let (_up, _app, ada) = ada().await;
    let table = async |path: &str| ada.request(Method::GET, path).header("accept", TABLE).send().await;
    for (path, expected) in [(MAPS_OF_A, vec!["x", "y"]), (MAPS, vec!["x", "y", "x"])] {
        let answer = table(path).await;
        assert_eq!((answer.status, answer.header("kube-fanout-filtered")), (200, Some("true")), "{}", answer.text());
        assert_eq!(rows(&answer.json()), expected, "{path}");
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let answer = table(&format!("{path}?limit=1&continue={token}")).await;
            pages.extend(rows(&answer.json()).into_iter().map(str::to_owned));
            let Some(next) = answer.continue_token() else { break };
            token = next;
        }
        assert_eq!(pages, expected, "{path}");
    }
    // Nothing is named there, so upstream decides.
    let forwarded = table("/api/v1/namespaces/c/configmaps").await;
    assert_eq!(forwarded.header("kube-fanout-reason"), Some("table"));
}

fn changes(watch: &Watch) -> Vec<String> {
    watch.changes().into_iter().map(|event| format!("{} {}", event.kind, event.key)).collect()
}

#[tokio::test]
async fn filtered_watch_follows_names() {
    for (path, protocol) in [(MAPS_OF_A, Protocol::ALL[0]), (MAPS, Protocol::ALL[1])] {
        let (up, _app, ada) = ada().await;
        allow(&up, "b", &["other"]);
        eventually("b has none", || async { !keys(&ada.get(MAPS).await).contains(&"b/x".to_owned()) }).await;
        let watch = ada.watch(path).initial_events().over(protocol).await;
        watch.listed().await;
        let has = |change: &'static str| {
            let watch = &watch;
            async move { watch.until(change, |_| changes(watch).contains(&change.to_owned())).await }
        };
        assert_eq!(changes(&watch), ["ADDED a/x", "ADDED a/y"]);
        ["w", "z"].iter().for_each(|name| _ = put(&up, "a", name));
        put(&up, "a", "none");
        has("ADDED a/none").await;
        allow(&up, "a", &["w", "y", "none"]);
        has("DELETED a/x").await;
        has("ADDED a/w").await;
        put(&up, "a", "x");
        watch.reached(put(&up, "a", "y")).await;
        up.delete("roles", "a", "named");
        has("DELETED a/none").await;
        put(&up, "a", "none");
        allow(&up, "a", &["z"]);
        has("ADDED a/z").await;
        let mut changes = changes(&watch);
        // Hidden in the order of their names.
        changes[5..].sort();
        assert_eq!(
            changes,
            [
                "ADDED a/x",
                "ADDED a/y",
                "ADDED a/none",
                "DELETED a/x",
                "ADDED a/w",
                "ADDED a/z",
                "DELETED a/none",
                "DELETED a/w",
                "DELETED a/y",
                "MODIFIED a/y",
            ]
        );
    }
}

#[tokio::test]
async fn self_review_allows_what_list_in_namespace_shows() {
    let (up, app, ada) = ada().await;
    app.discovered().await;
    up.reviews().lack("*", "*");
    for (verb, resource, namespace, expected) in [
        ("list", "configmaps", "a", true),
        ("watch", "configmaps", "b", true),
        ("list", "configmaps", "", true),
        ("list", "configmaps", "c", false),
        ("list", "pods", "a", false),
        ("delete", "configmaps", "a", false),
    ] {
        let attributes = json!({"verb": verb, "resource": resource, "namespace": namespace});
        let body = json!({"spec": {"resourceAttributes": attributes}}).to_string();
        let review = ada.request(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
        let review = review.header("content-type", "application/json").body(body).send().await.json();
        assert_eq!(review["status"]["allowed"], expected, "{review}");
    }
}

/// A self-check makes the proxy list the role bindings again. A watch hides only what was revoked unseen.
#[tokio::test]
async fn relisted_rules_hide_only_objects_that_they_no_longer_name() {
    for is_revoked in [false, true] {
        let (up, app, ada) = ada().await;
        let watch = ada.watch(MAPS).initial_events().await;
        watch.listed().await;
        if is_revoked {
            up.faults().lose_next_event();
            up.delete("rolebindings", "b", "named");
        } else {
            up.faults().alter("rolebindings", "b/named");
        }
        let is_lost = || async {
            // Only what has changed is compared.
            put_binding(&up, "c");
            let text = app.admin("/metrics").await.text();
            let mut gaps = text.lines().filter(|line| line.starts_with("kube_fanout_history_gaps_total"));
            gaps.any(|line| line.contains("\"rolebindings.") && line.contains("\"different\""))
        };
        eventually("the history is lost", is_lost).await;
        eventually("the rules are known", || async { ada.get(MAPS).await.is_cached() }).await;
        let mut expected = vec!["ADDED a/x", "ADDED a/y", "ADDED b/x"];
        if is_revoked {
            watch.until("a revocation", |_| changes(&watch).len() > expected.len()).await;
            expected.extend(["DELETED b/x", "ADDED b/x"]);
        } else {
            expected.push("MODIFIED b/x");
        }
        // The watch goes on.
        put_binding(&up, "b");
        put(&up, "b", "x");
        watch.until("a change", |_| changes(&watch).len() >= expected.len()).await;
        assert_eq!(changes(&watch)[..expected.len()], expected, "{is_revoked}");
    }
}

/// Objects may be missing, so the client must try again.
#[tokio::test]
async fn filtered_list_is_refused_until_rules_are_known() {
    let up = upstream().await;
    up.faults().only("rolebindings").answer(RequestKind::Any, usize::MAX, 503, None);
    let (app, ada) = run(&up).await;
    app.discovered().await;
    let table = async || ada.request(Method::GET, MAPS).header("accept", TABLE).send().await;
    let read = format!("{MAPS}?resourceVersion=0");
    let unknown = "cannot authorize: the RBAC rules are not known at present; try again";
    eventually("the list needs the rules", || async { ada.get(&read).await.text().contains(unknown) }).await;
    for answer in [ada.get(&read).await, table().await] {
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
        assert!(answer.text().contains(unknown), "{}", answer.text());
    }
    assert_eq!(ada.watch(MAPS).open().await.err().map(|refused| refused.status), Some(503));
    up.faults().answer_as_usual();
    eventually("the rules are known", || async { ada.get(&read).await.is_cached() }).await;
    assert_eq!(keys(&ada.get(&read).await), ["a/x", "a/y", "b/x"]);
    assert_eq!(rows(&table().await.json()), ["x", "y", "x"]);
}
