//! Watches with selectors: an object that enters the selection is ADDED, and one that leaves it is DELETED with its
//! previous content (W4, W5).

use std::sync::LazyLock;

use demo::{self, Pod, RunningDemoApiserver};
use futures_util::future::join_all;
use verify::ApiserverGuarantee;

use crate::direct::{self, Event, History, PODS, Protocol, assert_alike, assert_same, upstream_client};
use crate::process::metric;

/// Creates, labels, moves, relabels and deletes one pod. Returns the last revision.
fn life(up: &RunningDemoApiserver) -> u64 {
    let pod = || Pod::new("default", "nomad");
    up.put_pod(&pod().label("app", "front").node(""));
    up.put_pod(&pod().label("app", "front").node("node-1"));
    up.put_pod(&pod().label("app", "back").node("node-1"));
    up.put_pod(&pod().label("app", "back").node("node-2"));
    up.put_pod(&pod().label("app", "front").node("node-2").restarts(1));
    up.put_pod(&pod().label("app", "front").node("node-2").restarts(2));
    up.put_pod(&Pod::new("billing", "nomad").label("app", "front").node("node-2"));
    up.delete_pod("billing", "nomad");
    up.delete_pod("default", "nomad");
    up.create_pod("default", "end");
    up.create_pod("billing", "end")
}

/// Types of the events about one object.
fn types_of<'a>(events: &'a [Event], key: &str) -> Vec<&'a str> {
    events.iter().filter(|event| event.key == key).map(|event| event.kind.as_str()).collect()
}

#[tokio::test]
async fn label_change_emits_added_or_deleted() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let path = "/api/v1/namespaces/default/pods";
    let mut watches = Vec::new();
    for protocol in Protocol::ALL {
        watches.push(app.watch(path).labels("app=front").from(history.from).over(protocol).await);
    }
    let last = life(&up);
    history.assert_delivered_filtered(&watches, last).await;
    for watch in &watches {
        let kinds = ["ADDED", "MODIFIED", "DELETED", "ADDED", "MODIFIED", "DELETED"];
        assert_eq!(types_of(&watch.events(), "default/nomad"), kinds);
        let left = watch.events().into_iter().find(|event| event.kind == "DELETED").expect("it left");
        assert_eq!(left.object()["metadata"]["labels"]["app"], "front", "a DELETED event has the previous object");
        assert_eq!(left.rv, history.from + 3, "at the version of the change");
    }
}

/// A set-based selector considers both the previous and the current values of an object.
#[tokio::test]
async fn change_within_set_selector_emits_one_event() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(PODS).labels("app in (back,front)").from(history.from).await;
    let last = life(&up);
    history.assert_delivered_filtered(&[watch], last).await;
}

#[tokio::test]
async fn pod_node_change_emits_deleted_on_old_and_added_on_new() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let nodes = ["", "node-1", "node-2"];
    let open = nodes.iter().map(|node| app.watch(PODS).fields(&format!("spec.nodeName={node}")).from(history.from));
    let watches = join_all(open.map(IntoFuture::into_future)).await;
    let last = life(&up);
    history.assert_delivered_filtered(&watches, last).await;
    let seen: [&[_]; 3] =
        [&["ADDED", "DELETED"], &["ADDED", "MODIFIED", "DELETED"], &["ADDED", "MODIFIED", "MODIFIED", "DELETED"]];
    for (watch, seen) in watches.iter().zip(seen) {
        assert_eq!(types_of(&watch.events(), "default/nomad"), seen);
    }
}

#[tokio::test]
async fn watch_by_namespace_or_name_receives_only_matching_events() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let from = history.from;
    let by_path = app.watch("/api/v1/namespaces/billing/pods").from(from).await;
    let by_field = app.watch(PODS).fields("metadata.namespace=billing").from(from).await;
    let by_name = app.watch("/api/v1/namespaces/default/pods").fields("metadata.name=nomad").from(from).await;
    let anywhere = app.watch(PODS).fields("metadata.name=nomad").from(from).await;
    let old_form = app.watch("/api/v1/watch/namespaces/default/pods/nomad").from(from).await;
    let none_match = app.watch(PODS).fields("metadata.name=nomad,metadata.name=end").from(from).await;
    let last = life(&up);
    for watch in [by_path, by_field, by_name, anywhere, old_form] {
        history.assert_delivered_filtered(&[watch], last).await;
    }
    app.reached("pods", last).await;
    assert_eq!(none_match.events(), [], "no object has two names");
    assert!(none_match.is_open());
}

/// Pods of `a-b` are not in `a`.
#[tokio::test]
async fn namespace_prefix_does_not_match_longer_namespace() {
    let up = demo::upstream().pods(3).run().await;
    up.create_pod("a", "first");
    up.create_pod("a-b", "first");
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let path = "/api/v1/namespaces/a/pods";
    // With a selector each object is checked; without one the namespace is a part of the shared output.
    let plans = [
        app.watch(path).labels("!missing").initial_events(),
        app.watch(path).initial_events(),
        app.watch(path).from(history.from),
        app.watch(path).from(0),
    ];
    let watches = join_all(plans.map(IntoFuture::into_future)).await;
    watches[0].listed().await;
    up.create_pod("a-b", "second");
    let last = up.create_pod("a", "second");
    history.assert_delivered(&watches, last).await;
    let mut evidence = history.evidence();
    for query in ["", "?resourceVersion=0", "?labelSelector=%21missing"] {
        evidence.answer(&app.get(&format!("{path}{query}")).await);
    }
    evidence.watches(&watches).shows(&[
        ApiserverGuarantee::Filtered,
        ApiserverGuarantee::ListSnapshot,
        ApiserverGuarantee::InitialEvents,
    ]);
}

/// Selectors of every kind, as (labels, fields).
static SELECTORS: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    vec![
        ("app=api", ""),
        ("app in (api,front,nobody)", ""),
        ("app notin (api)", ""),
        ("app!=worker", ""),
        ("!missing", ""),
        ("missing", ""),
        ("pod-template-hash,app", ""),
        ("", "status.phase=Running"),
        ("", "status.phase!=Running"),
        ("", "spec.nodeName=node-3"),
        ("", "spec.nodeName!=node-3"),
        ("", "spec.nodeName=node-3,status.phase=Failed"),
        ("app=api", "spec.nodeName=node-0"),
        ("", "spec.restartPolicy=Always,metadata.namespace=shop"),
        ("", "metadata.namespace!=shop"),
        ("", "status.podIP="),
        ("app=front", "metadata.namespace=edge,status.phase=Running"),
    ]
});

/// Selectors that no earlier watch has.
const UNSEEN: [(&str, &str); 3] = [("app=queue", ""), ("", "spec.nodeName=node-1"), ("app in (worker,queue)", "")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_selector_watch_matches_upstream() {
    let up = demo::upstream().pods(120).seed(21).run().await;
    let mut history = History::begin(&up, PODS).await;
    let from = history.from;
    let app = direct::app(&up).run().await;
    let open = |(labels, fields): &(&str, &str)| {
        let watch = app.watch(PODS).from(from);
        let watch = if labels.is_empty() { watch } else { watch.labels(labels) };
        let watch = if fields.is_empty() { watch } else { watch.fields(fields) };
        watch.into_future()
    };
    let mut watches = join_all(SELECTORS.iter().map(open)).await;
    let last = up.churn(600).await;
    app.reached("pods", last).await;
    // Later watches read the same from the ring, whether or not a lane was open before.
    watches.extend(join_all(SELECTORS.iter().chain(&UNSEEN).map(open)).await);
    history.assert_delivered_filtered(&watches, last).await;
}

fn joined(count: usize, each: impl Fn(usize) -> String) -> String {
    (0..count).map(each).collect::<Vec<_>>().join(",")
}

/// Selectors that cost no more than others if they are evaluated well, up to the length of a request line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_selector_lists_match_upstream() {
    let up = demo::upstream().pods(120).seed(22).run().await;
    let app = direct::app(&up).run().await;
    let encoded = |text: &str| text.replace('!', "%21").replace('=', "%3D").replace(',', "%2C").replace(' ', "%20");
    for (labels, fields) in [
        (joined(900, |_| "!aa".to_owned()), String::new()),
        (joined(700, |n| format!("!key-{n:03}")), String::new()),
        (format!("{},app", joined(700, |n| format!("!key-{n:03}"))), String::new()),
        (format!("app in ({},api)", joined(700, |n| format!("v{n:03}"))), String::new()),
        (format!("app notin ({},api)", joined(700, |n| format!("v{n:03}"))), String::new()),
        (joined(400, |n| format!("app!=v{n:03}")), String::new()),
        ("app,!app".to_owned(), String::new()),
        ("app=api,app=front".to_owned(), String::new()),
        (String::new(), joined(300, |n| format!("status.phase!=v{n:03}"))),
        ("app=api".to_owned(), joined(300, |_| "status.phase=Running".to_owned())),
        (String::new(), "status.phase=Running,status.phase=Failed".to_owned()),
    ] {
        let selectors = format!("labelSelector={}&fieldSelector={}", encoded(&labels), encoded(&fields));
        for options in ["", "&limit=2", "&resourceVersion=0"] {
            let path = format!("{PODS}?{selectors}{options}");
            let (ours, theirs) = (app.get(&path).await, upstream_client(&up).get(&path).await);
            assert_alike(&path, &ours, &theirs);
            assert!(ours.is_cached() && ours.status == 200, "{path}");
        }
    }
}

/// A watch's selector is evaluated for each event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expensive_watch_selector_is_forwarded() {
    let up = demo::upstream().pods(20).seed(23).remember_requests(true).run().await;
    let app = direct::app(&up).run().await;
    let (dear, plain) = (joined(150, |n| format!("!key-{n:03}")), joined(50, |n| format!("!key-{n:03}")));
    let from = up.revision();
    let ours = app.watch(PODS).labels(&dear).from(from).await;
    let theirs = upstream_client(&up).watch(PODS).labels(&dear).from(from).await;
    let cached = app.watch(PODS).labels(&plain).from(from).await;
    up.churn(50).await;
    let last = up.create_pod("default", "last");
    for watch in [&ours, &theirs, &cached] {
        watch.reached(last).await;
    }
    assert_same("what passes through", &ours.changes(), &theirs.changes());
    assert_same("what does not", &cached.changes(), &theirs.changes());
    let queries = direct::proxy_queries(&up, PODS);
    let named =
        |key: &str| queries.iter().filter(|query| query.contains("labelSelector") && query.contains(key)).count();
    assert_eq!((named("key-149"), named("key-000")), (1, 1), "one of the two went upstream: {queries:?}");
}

/// A list's selector is evaluated for each object, so its cost grows with the number of objects.
#[tokio::test]
async fn expensive_list_selector_is_forwarded() {
    let up = demo::upstream().pods(12_000).seed(24).remember_requests(true).run().await;
    let app = direct::app(&up).run().await;
    let keys = joined(1_500, |n| format!("%21{n:x}"));
    let sets = joined(300, |n| format!("{n:x}"));
    let dear = format!("{PODS}?labelSelector={keys},%21{}/long-name,app%20notin%20({sets})", "p".repeat(250));
    assert!(app.get(&format!("{PODS}?labelSelector=%21a&limit=5")).await.is_cached());
    // The tests of this process count together.
    let counted = async || {
        metric(&app.admin("/metrics").await.text(), "kube_fanout_forwarded_total", "reason=\"expensive_selector\"")
    };
    let before = counted().await;
    let (ours, theirs) =
        (app.get(&format!("{dear}&limit=5")).await, upstream_client(&up).get(&format!("{dear}&limit=5")).await);
    assert_alike("a dear list", &ours, &theirs);
    assert!(!ours.is_cached() && ours.status == 200 && ours.items().len() == 5, "{}", ours.text());
    let queries = direct::proxy_queries(&up, PODS);
    assert_eq!(queries.iter().filter(|query| query.contains("long-name")).count(), 1, "it was forwarded");
    assert!(counted().await > before);
}

/// Ten thousand watches of one caller use no more memory with long selectors.
#[tokio::test]
async fn long_selector_watch_uses_several_permits() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).with(|config| config.serve.limits.watches_max = 10).run().await;
    let long = format!("app in ({})", joined(350, |n| format!("v{n:03}")));
    let watch = app.watch(PODS).labels(&long).from(up.revision()).await;
    let again = format!("{PODS}?watch=1&labelSelector={}", long.replace(' ', "%20"));
    let refused = app.get(&again).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("5")));
    let short = app.watch(PODS).labels("app=api").from(up.revision()).await;
    assert!(short.is_open() && watch.is_open());
}
