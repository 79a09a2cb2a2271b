//! Collections across namespaces for callers who may read only some of the namespaces, over real connections. The
//! upstream knows only the callers that a test names.

use std::time::Duration;

use demo::{self, RequestKind, RunningDemoApiserver};
use futures_util::future::{join_all, select_all};
use http::Method;
use kube_fanout::auth::AuthMode;
use kube_fanout::serve::{ConcurrencyConfig, ServeConfig};
use serde_json::{Value, json};

use crate::direct::{self, Answer, App, Client, Ended, Event, PODS, Protocol, Watch};

const NAMESPACES: &str = "/api/v1/namespaces";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// Cache TTL of decisions and interval of permission rechecks.
const SOON: Duration = Duration::from_millis(50);

/// Ada may read two namespaces of three, and her collections are filtered.
async fn ada(up: &RunningDemoApiserver) -> (App, Client) {
    ada_with(up, |_| ()).await
}

async fn ada_with(up: &RunningDemoApiserver, change: impl FnOnce(&mut ServeConfig)) -> (App, Client) {
    for namespace in ["a", "b", "c"] {
        up.put("namespaces", json!({"metadata": {"name": namespace, "labels": {"name": namespace}}}));
        up.create_pod(namespace, "p");
    }
    up.reviews().give("t", "ada");
    up.reviews().allow("ada", "a");
    up.reviews().allow("ada", "b");
    let app = direct::app(up).with(|config| {
        config.auth = AuthMode::Delegated;
        config.serve.filter.users = vec!["ada".to_owned()];
        change(&mut config.serve);
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.denied_ttl, auth.recheck) = (SOON, SOON, SOON, SOON);
    });
    let app = app.run().await;
    let ada = app.bearing("t");
    (app, ada)
}

async fn received(watch: &Watch, kind: &str, key: &str) {
    let is_it = |event: &Event| event.kind == kind && event.key == key;
    watch.until(&format!("{kind} {key}"), |events| events.iter().any(is_it)).await;
}

fn has_event_in(watch: &Watch, namespace: &str) -> bool {
    watch.changes().iter().any(|event| event.key.starts_with(&format!("{namespace}/")))
}

#[tokio::test]
async fn forbidden_list_is_filtered_by_namespace_permission() {
    let up = demo::upstream().pods(0).run().await;
    let (app, ada) = ada(&up).await;
    up.reviews().give("s", "adam");
    up.reviews().allow("adam", "a");
    let adam = app.bearing("s");
    for path in [PODS, NAMESPACES] {
        assert_eq!(adam.get(path).await.status, 403, "{path}");
    }
    // A namespace whose decision is late is hidden for seconds.
    let keys = |answer: &Answer| answer.items().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    direct::eventually("both are known", || async { keys(&ada.get(PODS).await) == ["a/p", "b/p"] }).await;
    for (path, expected) in [
        (PODS.to_owned(), vec!["a/p", "b/p"]),
        (NAMESPACES.to_owned(), vec!["a", "b"]),
        (format!("{NAMESPACES}?limit=1"), vec!["a"]),
        (format!("{NAMESPACES}?fieldSelector=metadata.name%3Db"), vec!["b"]),
        (format!("{NAMESPACES}?fieldSelector=metadata.name%3Dc"), vec![]),
        (format!("{NAMESPACES}?labelSelector=name%21%3Da"), vec!["b"]),
    ] {
        let answer = ada.get(&path).await;
        assert!(answer.is_cached(), "{}", answer.text());
        assert_eq!(
            (keys(&answer), answer.header("kube-fanout-filtered")),
            (expected.iter().map(|&key| key.to_owned()).collect(), Some("true")),
            "{path}"
        );
    }
    // A proxy below would take the list for complete.
    let below = ada.request(Method::GET, PODS).header("kube-fanout-hops", "below").send().await;
    assert_eq!(below.status, 403);
    // A browser, for which upstream would indent a list.
    let browser = ada.request(Method::GET, PODS).header("user-agent", "Mozilla/5.0").send().await;
    assert_eq!(keys(&browser), ["a/p", "b/p"]);
    up.reviews().allow("ada", "*");
    direct::eventually("the no is forgotten", || async {
        let answer = ada.get(PODS).await;
        answer.header("kube-fanout-filtered").is_none() && answer.items().len() == 3
    })
    .await;
}

/// Cells and metadata of a Table's rows.
fn rows(table: &Value) -> Vec<(String, String)> {
    let row = |row: &Value| {
        let metadata = &row["object"]["metadata"];
        (
            row["cells"][0].as_str().unwrap_or_default().to_owned(),
            metadata["namespace"].as_str().unwrap_or_default().to_owned(),
        )
    };
    table["rows"].as_array().expect("rows").iter().map(row).collect()
}

#[tokio::test]
async fn filtered_table_has_only_rows_of_permitted_namespaces() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = ada(&up).await;
    // More hidden rows than a page of the proxy's own.
    for n in 0..600 {
        up.create_pod("a-hidden", &format!("p{n}"));
    }
    up.create_pod("b", "q");
    let table = async |path: &str| ada.request(Method::GET, path).header("accept", TABLE).send().await;
    for (include, object) in
        [("", Some("PartialObjectMetadata")), ("includeObject=Object", Some("Pod")), ("includeObject=None", None)]
    {
        let answer = table(&format!("{PODS}?{include}")).await;
        let (text, shown) = (answer.text(), answer.json());
        assert_eq!((answer.status, answer.header("kube-fanout-filtered")), (200, Some("true")), "{text}");
        let names: Vec<_> = rows(&shown).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["p", "p", "q"], "{include}");
        assert_eq!(shown["rows"][0]["object"]["kind"].as_str(), object, "{include}");
        assert_eq!(shown["columnDefinitions"][0]["name"], "Name");
        assert!(!text.contains("hidden") && !text.contains("remainingItemCount"), "{text}");
    }
    // Pages end by visible rows, and their tokens name visible rows only.
    let (mut pages, mut token) = (Vec::new(), String::new());
    loop {
        let answer = table(&format!("{PODS}?limit=1&continue={token}")).await;
        pages.push(rows(&answer.json()));
        assert!(!answer.readable().contains("hidden"), "{}", answer.readable());
        let Some(next) = answer.continue_token() else { break };
        token = next;
    }
    let row = |name: &str, namespace: &str| vec![(name.to_owned(), namespace.to_owned())];
    assert_eq!(pages, [row("p", "a"), row("p", "b"), row("q", "b")]);
    let namespaces = table(NAMESPACES).await.json();
    assert_eq!(rows(&namespaces), [("a".to_owned(), String::new()), ("b".to_owned(), String::new())]);
    // What a filtered Table does not support is forwarded.
    for path in [format!("{PODS}?includeObject=All"), format!("{PODS}?limit=x")] {
        let answer = table(&path).await;
        assert!(answer.header("kube-fanout-reason").is_some(), "{path}");
    }
    let exact = table(&format!("{PODS}?resourceVersion=1&resourceVersionMatch=Exact")).await;
    assert_eq!(exact.status, 410, "{}", exact.text());
}

/// Ada, her proxy with these limits, and 600 pods in the namespace `a`, which are more than a page of the proxy's own.
async fn many_rows(up: &RunningDemoApiserver, limits: impl FnOnce(&mut ConcurrencyConfig)) -> (App, Client) {
    for n in 0..600 {
        up.create_pod("a", &format!("p{n}"));
    }
    ada_with(up, |serve| limits(&mut serve.limits)).await
}

async fn table(client: Client, query: &str) -> Answer {
    client.request(Method::GET, &format!("{PODS}?{query}")).header("accept", TABLE).send().await
}

#[tokio::test]
async fn filtered_table_of_one_namespace_has_each_row_once() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = many_rows(&up, |_| ()).await;
    let answer = table(ada, "fieldSelector=metadata.namespace%3Da").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let names: Vec<_> = rows(&answer.json()).into_iter().map(|(name, _)| name).collect();
    assert_eq!((names.len(), names.is_sorted_by(|a, b| a < b)), (601, true), "{names:?}");
}

#[tokio::test]
async fn filtered_table_pages_grow_again_after_large_objects() {
    let up = demo::upstream().pods(0).run().await;
    for n in 0..20 {
        let annotations = json!({"large": "x".repeat(150 << 10)});
        up.put(
            "configmaps",
            json!({"metadata": {"namespace": "a", "name": n.to_string(), "annotations": annotations}}),
        );
    }
    for n in 0..600 {
        up.put("configmaps", json!({"metadata": {"namespace": "b", "name": n.to_string()}}));
    }
    let (_app, ada) = ada(&up).await;
    let before = up.counts().lists.of("configmaps");
    let answer = ada.request(Method::GET, "/api/v1/configmaps").header("accept", TABLE).send().await;
    assert_eq!((answer.status, rows(&answer.json()).len()), (200, 620));
    let pages = up.counts().lists.of("configmaps") - before;
    assert!(pages < 12, "{pages} pages");
}

#[tokio::test]
async fn filtered_table_needs_one_forward_at_a_time_and_user_may_have_two() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = many_rows(&up, |limits| limits.forwards_max = 2).await;
    let answer = table(ada.clone(), "").await;
    assert_eq!((answer.status, rows(&answer.json()).len()), (200, 602), "{}", answer.text());
    up.faults().hold_lists();
    let three = ["limit=1", "limit=2", "limit=3"].map(|query| Box::pin(table(ada.clone(), query)));
    let (refused, _, two) = select_all(three).await;
    assert!(refused.status == 429 && refused.text().contains("too many filtered Tables"), "{}", refused.text());
    up.faults().release_lists();
    for answer in join_all(two).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// The bytes of a page are charged to each of its callers, and a refusal is not repeated in smaller pages.
#[tokio::test]
async fn filtered_table_above_memory_limit_returns_429_at_once() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = many_rows(&up, |limits| limits.lists_bytes_max = 64 << 10).await;
    let before = up.counts().lists.of("pods");
    let answer = table(ada, "").await;
    assert!(answer.status == 429 && answer.text().contains("too many large responses"), "{}", answer.text());
    assert_eq!(up.counts().lists.of("pods") - before, 1);
}

#[tokio::test]
async fn filtered_table_has_fixed_text_for_upstream_failure() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = many_rows(&up, |_| ()).await;
    for (code, expected) in [(500, 502), (401, 502), (429, 429), (503, 503)] {
        up.faults().answer(RequestKind::Page, 1, code, None);
        let answer = table(ada.clone(), "").await;
        assert_eq!(answer.status, expected, "{}", answer.text());
        assert_eq!(answer.text().contains("the proxy's log has the reason"), expected == 502, "{}", answer.text());
    }
    up.faults().pages_never_end();
    let answer = table(ada, "").await;
    assert!(answer.status == 502 && answer.text().contains("does not end"), "{}", answer.text());
}

#[tokio::test]
async fn filtered_table_watch_follows_its_list() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = ada(&up).await;
    let listed = ada.request(Method::GET, PODS).header("accept", TABLE).send().await.rv();
    // The feed of Tables starts with the watch, after these changes.
    up.create_pod("c", "hidden");
    up.create_pod("a", "q");
    let watch = ada.watch(PODS).from(listed).accept(TABLE).await;
    watch.until("the rows of a", |events| events.iter().any(|event| text(event).contains("\"q\""))).await;
    up.create_pod("c", "hidden2");
    up.reviews().allow("ada", "c");
    watch.until("the rows of c", |events| events.iter().any(|event| text(event).contains("\"hidden2\""))).await;
    let events = watch.events();
    assert!(text(&events[0]).contains("\"columnDefinitions\":[{"), "{:?}", events[0]);
    assert!(events.iter().skip(1).all(|event| text(event).contains("\"columnDefinitions\":null")));
    let before = events.len();
    up.reviews().deny("ada", "c");
    watch
        .until("rows of c are deleted", |events| {
            events[before..].iter().filter(|event| event.kind == "DELETED").count() == 3
        })
        .await;
    up.create_pod("c", "hidden3");
    up.create_pod("b", "last");
    watch.until("the rows of b", |events| events.iter().any(|event| text(event).contains("\"last\""))).await;
    assert!(!watch.events().iter().any(|event| text(event).contains("hidden3")));
}

#[tokio::test]
async fn filtered_watch_of_namespaces_follows_permissions() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = ada(&up).await;
    let watch = ada.watch(NAMESPACES).initial_events().await;
    watch.listed().await;
    received(&watch, "ADDED", "a").await;
    received(&watch, "ADDED", "b").await;
    up.reviews().allow("ada", "new");
    up.put("namespaces", json!({"metadata": {"name": "new"}}));
    received(&watch, "ADDED", "new").await;
    up.put("namespaces", json!({"metadata": {"name": "other"}}));
    up.reviews().allow("ada", "c");
    received(&watch, "ADDED", "c").await;
    up.reviews().deny("ada", "a");
    received(&watch, "DELETED", "a").await;
    up.put("namespaces", json!({"metadata": {"name": "a", "labels": {"changed": "1"}}}));
    watch.reached(up.put("namespaces", json!({"metadata": {"name": "b", "labels": {"changed": "1"}}}))).await;
    let keys: Vec<_> = watch.changes().into_iter().map(|event| format!("{} {}", event.kind, event.key)).collect();
    assert_eq!(keys.iter().filter(|key| key.ends_with(" a")).count(), 2, "{keys:?}");
    assert!(!keys.iter().any(|key| key.ends_with(" other")), "{keys:?}");
}

fn text(event: &Event) -> String {
    String::from_utf8_lossy(&event.body).into_owned()
}

#[tokio::test]
async fn forbidden_watch_is_filtered_and_ends_if_token_is_revoked() {
    for protocol in Protocol::ALL {
        let up = demo::upstream().pods(0).run().await;
        let (_app, ada) = ada(&up).await;
        let watch = ada.watch(PODS).initial_events().over(protocol).await;
        watch.listed().await;
        // The events may follow the initial state, if the decision for a namespace is late.
        received(&watch, "ADDED", "a/p").await;
        received(&watch, "ADDED", "b/p").await;
        assert_eq!(watch.changes().len(), 2);
        up.create_pod("c", "q");
        watch.reached(up.create_pod("a", "q")).await;
        assert!(!has_event_in(&watch, "c"), "{protocol:?}");
        up.reviews().allow("ada", "c");
        received(&watch, "ADDED", "c/q").await;
        up.reviews().deny("ada", "a");
        received(&watch, "DELETED", "a/q").await;
        let before = watch.changes().len();
        up.create_pod("a", "r");
        watch.reached(up.create_pod("b", "r")).await;
        assert_eq!(watch.changes().len(), before + 1, "{protocol:?}");
        up.reviews().take("t");
        assert_eq!(watch.ended().await, Ended::Refused(401), "{protocol:?}");
    }
}

/// Without a decision, a new namespace is hidden, and delays nothing.
#[tokio::test]
async fn review_outage_hides_only_new_namespaces() {
    let up = demo::upstream().pods(0).run().await;
    let (_app, ada) = ada(&up).await;
    let watch = ada.watch(PODS).initial_events().await;
    watch.listed().await;
    received(&watch, "ADDED", "a/p").await;
    received(&watch, "ADDED", "b/p").await;
    up.reviews().refuse(Some(503));
    up.reviews().allow("ada", "new");
    up.create_pod("new", "p");
    watch.reached(up.create_pod("a", "q")).await;
    assert!(!has_event_in(&watch, "new"));
    up.reviews().refuse(None);
    received(&watch, "ADDED", "new/p").await;
}

/// Upstream would report that Ada may not list pods, which is not the problem.
#[tokio::test]
async fn expensive_selector_on_filtered_request_returns_400() {
    let up = demo::upstream().pods(12_000).remember_requests(true).run().await;
    let (_app, ada) = ada(&up).await;
    let joined =
        |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}{n:x}")).collect::<Vec<_>>().join(",");
    let (few, many) = (joined("%21", 20), joined("%21", 150));
    // Many keys, a long one, and a set: together they exceed the cost limit for 12,000 objects.
    let most = format!("{},%21{}/long-name,app%20notin%20({})", joined("%21", 1_500), "p".repeat(250), joined("", 300));
    assert!(ada.get(&format!("{PODS}?labelSelector={few}")).await.is_cached());
    for dear in [format!("watch=1&labelSelector={many}"), format!("labelSelector={most}")] {
        let answer = ada.get(&format!("{PODS}?{dear}")).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("one namespace at a time"), "{}", answer.text());
    }
    let is_forwarded = |seen: &demo::ReceivedRequest| seen.uri.to_string().contains("labelSelector");
    assert!(!up.requests().iter().any(is_forwarded), "nothing is forwarded");
}

const SELF_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

async fn self_review(client: &Client, attributes: &Value, header: (&str, &str)) -> Answer {
    let body = json!({"spec": {"resourceAttributes": attributes}}).to_string();
    // client-go adds its timeout.
    let call = client.request(Method::POST, &format!("{SELF_REVIEWS}?timeout=10s"));
    call.header("content-type", "application/json").header(header.0, header.1).body(body).send().await
}

#[tokio::test]
async fn denied_self_review_allows_exactly_filtered_reads() {
    let up = demo::upstream().pods(0).run().await;
    let (app, ada) = ada_with(&up, |serve| serve.coverage.authorizes = true).await;
    up.reviews().give("s", "adam");
    let adam = app.bearing("s");
    app.discovered().await;
    up.reviews().lack("*", "*");
    let asked = async |client: &Client, attributes: &Value, header| {
        let answer = self_review(client, attributes, header).await;
        let (review, is_filtered) = (answer.json(), answer.header("kube-fanout-filtered") == Some("true"));
        assert_eq!((answer.status, &review["spec"]["resourceAttributes"]), (201, attributes));
        let allowed = review["status"]["allowed"].as_bool().expect("a decision");
        let reason = review["status"]["reason"].as_str().unwrap_or_default().to_owned();
        assert_eq!((allowed, reason.contains("kube-fanout: reads.filter")), (is_filtered, is_filtered), "{review}");
        allowed
    };
    let plain = ("x-nothing", "");
    for attributes in [
        json!({"verb": "list", "version": "v1", "resource": "pods"}),
        json!({"verb": "watch", "version": "v1", "resource": "pods"}),
        json!({"verb": "list", "resource": "pods"}),
        json!({"verb": "list", "version": "v1", "resource": "pods", "name": "pods"}),
        json!({"verb": "list", "version": "v1", "resource": "namespaces"}),
        json!({"verb": "watch", "group": "apps", "version": "v1", "resource": "deployments"}),
        json!({"verb": "list", "group": "apps", "resource": "deployments"}),
    ] {
        for protocol in Protocol::ALL {
            assert!(asked(&ada.over(protocol), &attributes, plain).await, "{attributes}");
        }
        assert!(!asked(&adam, &attributes, plain).await, "{attributes}: adam is not filtered");
        for header in [("kube-fanout-hops", "below"), ("impersonate-user", "adam")] {
            assert!(!asked(&ada, &attributes, header).await, "{attributes} with {header:?}");
        }
    }
    for attributes in [
        json!({"verb": "get", "version": "v1", "resource": "pods"}),
        json!({"verb": "*", "version": "v1", "resource": "pods"}),
        json!({"verb": "deletecollection", "version": "v1", "resource": "pods"}),
        json!({"verb": "list", "version": "v1", "resource": "*"}),
        json!({"verb": "list", "version": "*", "resource": "pods"}),
        json!({"verb": "list", "version": "v2", "resource": "pods"}),
        json!({"verb": "list", "group": "*", "resource": "pods"}),
        json!({"verb": "list", "group": "apps", "version": "v1", "resource": "pods"}),
        json!({"verb": "list", "resource": "deployments"}),
        json!({"verb": "list", "resource": "deployments.apps"}),
        json!({"verb": "list", "version": "v1", "resource": "pods", "subresource": "log"}),
        json!({"verb": "list", "version": "v1", "resource": "pods", "namespace": "c"}),
        json!({"verb": "list", "version": "v1", "resource": "nodes"}),
        // Secrets are not cached, so the list is forwarded.
        json!({"verb": "list", "version": "v1", "resource": "secrets"}),
        json!({"verb": "list", "version": "v1", "resource": "pods", "fieldSelector": {"rawSelector": "a=b"}}),
    ] {
        assert!(!asked(&ada, &attributes, plain).await, "{attributes}");
    }
    // The review of another user is upstream's alone.
    let of_others = json!({"spec": {"user": "ada", "resourceAttributes": {"verb": "list", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = ada.request(Method::POST, path).body(of_others.to_string()).send().await;
    assert_eq!((answer.status, &answer.json()["status"]["allowed"]), (201, &json!(false)));
}

/// A response that is too large to read arrives whole, and so does an error.
#[tokio::test]
async fn self_review_that_is_not_read_is_passed_through() {
    let up = demo::upstream().pods(0).run().await;
    let (app, ada) = ada(&up).await;
    app.discovered().await;
    up.reviews().lack("*", "*");
    let attributes = json!({"verb": "list", "version": "v1", "resource": "pods"});
    for kib in [1, 60, 64, 65, 600] {
        let metadata = json!({"annotations": {"large": "x".repeat(kib << 10)}});
        let body = json!({"metadata": metadata, "spec": {"resourceAttributes": attributes}}).to_string();
        for protocol in Protocol::ALL {
            let answer = ada.over(protocol).request(Method::POST, SELF_REVIEWS).body(body.clone()).send().await;
            let review = answer.json();
            assert_eq!((answer.status, &review["metadata"]), (201, &metadata));
            assert_eq!(review["status"]["allowed"], json!(kib < 64), "{kib} KiB");
        }
    }
    let invalid = ada.request(Method::POST, SELF_REVIEWS).body("no review").send().await;
    assert_eq!(invalid.status, 400, "{}", invalid.text());
}

#[tokio::test]
async fn callers_of_filtered_listener_are_filtered_there_alone() {
    let up = demo::upstream().pods(0).run().await;
    up.create_pod("a", "p");
    up.create_pod("b", "p");
    up.reviews().give("t", "adam");
    up.reviews().allow("adam", "a");
    let app = direct::app(&up).unix().with(|config| {
        config.auth = AuthMode::Delegated;
        config.serve.filter.listeners = vec![config.listen[1].clone()];
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.denied_ttl, auth.recheck) = (SOON, SOON, SOON, SOON);
    });
    let app = app.run().await;
    let (tcp, socket) = (app.bearing("t"), app.listener(1).bearing("t"));
    assert_eq!(tcp.get(PODS).await.status, 403);
    direct::eventually("the permission is known", || async {
        let answer = socket.get(PODS).await;
        assert_eq!((answer.status, answer.header("kube-fanout-filtered")), (200, Some("true")), "{}", answer.text());
        answer.items().into_iter().map(|(key, _)| key).collect::<Vec<_>>() == ["a/p"]
    })
    .await;
    let anonymous = app.listener(1).get(PODS).await;
    assert_eq!(anonymous.header("kube-fanout-reason"), Some("anonymous"));
}
