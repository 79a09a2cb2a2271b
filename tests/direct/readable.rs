//! Collections across namespaces for callers who may read only some of the namespaces, over real connections. The
//! upstream knows only the callers that a test names.

use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use kube_fanout::auth::AuthMode;

use crate::direct::{self, Answer, App, Client, Ended, Event, PODS, Protocol, Watch};

const READABLE: &str = "/api/v1/pods?kubeFanoutReadable=true";
/// Cache TTL of decisions and interval of permission rechecks.
const SOON: Duration = Duration::from_millis(50);

/// Ada may read two namespaces of three.
async fn ada(up: &RunningDemoApiserver) -> (App, Client) {
    for namespace in ["a", "b", "c"] {
        up.create_pod(namespace, "p");
    }
    up.reviews().give("t", "ada");
    up.reviews().allow("ada", "a");
    up.reviews().allow("ada", "b");
    let app = direct::app(up).with(|config| {
        config.auth = AuthMode::Delegated;
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
async fn readable_list_is_filtered_by_namespace_permission() {
    let up = demo::upstream().pods(0).remember_requests(true).run().await;
    let (_app, ada) = ada(&up).await;
    assert_eq!(ada.get(PODS).await.status, 403);
    // A namespace whose decision is late is hidden for seconds.
    let keys = |answer: &Answer| answer.items().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    direct::eventually("both are known", || async { keys(&ada.get(READABLE).await) == ["a/p", "b/p"] }).await;
    let answer = ada.get(READABLE).await;
    let keys = keys(&answer);
    assert!(answer.is_cached(), "{}", answer.text());
    assert_eq!((keys, answer.header("kube-fanout-readable")), (vec!["a/p".into(), "b/p".into()], Some("some")));
    up.reviews().allow("ada", "*");
    direct::eventually("the no is forgotten", || async {
        ada.get(READABLE).await.header("kube-fanout-readable") == Some("all")
    })
    .await;
    // Forwarded requests do not contain the parameter.
    ada.get("/api/v1/namespaces/a/pods/p?kubeFanoutReadable=true").await;
    let received = |seen: &demo::ReceivedRequest| seen.uri.to_string().contains("kubeFanout");
    assert!(!up.requests().iter().any(received));
}

#[tokio::test]
async fn readable_watch_is_filtered_and_ends_if_token_is_revoked() {
    for protocol in Protocol::ALL {
        let up = demo::upstream().pods(0).run().await;
        let (_app, ada) = ada(&up).await;
        let watch = ada.watch(READABLE).initial_events().over(protocol).await;
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
    let watch = ada.watch(READABLE).initial_events().await;
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
async fn expensive_selector_on_readable_request_returns_400() {
    let up = demo::upstream().pods(12_000).remember_requests(true).run().await;
    let (_app, ada) = ada(&up).await;
    let joined =
        |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}{n:x}")).collect::<Vec<_>>().join(",");
    let (few, many) = (joined("%21", 20), joined("%21", 150));
    // Many keys, a long one, and a set: together they exceed the cost limit for 12,000 objects.
    let most = format!("{},%21{}/long-name,app%20notin%20({})", joined("%21", 1_500), "p".repeat(250), joined("", 300));
    assert!(ada.get(&format!("{READABLE}&labelSelector={few}")).await.is_cached());
    for dear in [format!("watch=1&labelSelector={many}"), format!("labelSelector={most}")] {
        let answer = ada.get(&format!("{READABLE}&{dear}")).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("one namespace at a time"), "{}", answer.text());
    }
    let is_forwarded = |seen: &demo::ReceivedRequest| seen.uri.to_string().contains("labelSelector");
    assert!(!up.requests().iter().any(is_forwarded), "nothing is forwarded");
}
