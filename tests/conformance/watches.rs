//! Observable behaviour of watches, each compared between the apiserver and the proxy.

use std::collections::BTreeSet;
use std::time::Instant;

use futures_util::future::join_all;
use serde_json::json;

use crate::bed::{self, Ended, Event, Http, Pair, Plan, RequestSpec, log_line, outline, version_of};
use crate::transactions::Storage;

/// The same watch at the apiserver and at the proxy.
async fn both(pair: &Pair, path: &str) -> [bed::Watch; 2] {
    [pair.direct.watch(RequestSpec::get(path)).await, pair.through.watch(RequestSpec::get(path)).await]
}

/// The next change of both watches, which must be equal to the byte.
async fn next_of_both(watches: &mut [bed::Watch; 2]) -> Event {
    let [direct, through] = watches;
    let (expected, actual) = (direct.change().await, through.change().await);
    assert_eq!(actual.line, expected.line);
    actual
}

/// The next changes of both watches: one for each of these objects, all of one type.
async fn next_of_both_for_all(watches: &mut [bed::Watch; 2], kind: &str, names: &[String]) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in names {
        events.push(next_of_both(watches).await);
    }
    assert!(events.iter().all(|event| event.kind == kind), "{events:?}");
    let received: BTreeSet<&str> = events.iter().map(Event::name).collect();
    let expected: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(received, expected);
    events
}

#[tokio::test]
async fn initial_events_precede_changes_and_end_with_bookmark() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    for version in ["", "&resourceVersion=0"] {
        let mut watches = both(&pair, &pair.path(&format!("?watch=1{version}"))).await;
        assert_eq!(next_of_both(&mut watches).await.name(), "cm-a", "in key order");
        assert_eq!(next_of_both(&mut watches).await.name(), "cm-b");
        let name = format!("later{}", version.len());
        pair.create_map(&pair.namespace, &name).await;
        let expected = watches[0].change().await;
        let next = watches[1].event().await.expect("the watch continues");
        assert_eq!(next.line, expected.line, "no bookmark without allowWatchBookmarks");
        assert_eq!(next.name(), name);
        let created = pair.direct.delete(&pair.path(&format!("/{name}"))).await;
        assert_eq!(created["status"], "Success");
        assert_eq!(next_of_both(&mut watches).await.kind, "DELETED");
    }
    let sie = "&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1&labelSelector=none=1";
    for http in [&pair.direct, &pair.through] {
        let (events, _) = http.begin(RequestSpec::get(&pair.path("?watch=1&allowWatchBookmarks=1"))).await;
        assert_eq!(outline(&events), ["ADDED cm-a", "ADDED cm-b", "BOOKMARK"]);
        // A bookmark that only reports progress comes after a minute, so this one is the end of the initial events.
        let (events, _) = http.begin(RequestSpec::get(&pair.path(&format!("?watch=1{sie}")))).await;
        assert_eq!(outline(&events), ["BOOKMARK"]);
    }
}

#[tokio::test]
async fn leaving_selector_sends_deleted_with_old_object_at_new_rv() {
    let Some(pair) = Pair::new().await else { return };
    let version = pair.maps().await;
    let mut selected =
        both(&pair, &pair.path(&format!("?watch=1&labelSelector=app%3Dx&resourceVersion={version}"))).await;
    let mut named =
        both(&pair, &pair.path(&format!("?watch=1&fieldSelector=metadata.name%3Dcm-b&resourceVersion={version}")))
            .await;
    let relabel = |app: &str| json!({"metadata": {"labels": {"app": app}}, "data": {"new": app}});
    let left = version_of(&pair.direct.patch(&pair.path("/cm-a"), relabel("y")).await);
    let event = next_of_both(&mut selected).await;
    assert_eq!((event.kind.as_str(), event.version()), ("DELETED", left));
    assert_eq!(event.object["metadata"]["labels"]["app"], "x", "the old label");
    assert!(event.object["data"]["new"].is_null(), "and the old data");
    let back = version_of(&pair.direct.patch(&pair.path("/cm-a"), relabel("x")).await);
    let event = next_of_both(&mut selected).await;
    assert_eq!((event.kind.as_str(), event.version()), ("ADDED", back));
    let last = pair.direct.json(&pair.path("/cm-b")).await;
    pair.direct.delete(&pair.path("/cm-b")).await;
    for watches in [&mut selected, &mut named] {
        let event = next_of_both(watches).await;
        assert_eq!(event.kind, "DELETED");
        assert!(event.version() > back, "the deletion's own version, not the object's last");
        assert_eq!(
            (&event.object["data"], &event.object["metadata"]["uid"]),
            (&last["data"], &last["metadata"]["uid"])
        );
    }
}

/// Events whose leases expire together are deleted in one transaction. This one is sent to etcd.
#[tokio::test]
async fn deletions_sharing_a_version_are_both_delivered() {
    let Some(pair) = Pair::new().await else { return };
    let path = format!("/api/v1/namespaces/{}/events", pair.namespace);
    let mut watches = both(&pair, &format!("{path}?watch=1")).await;
    let create = async |name: &str| {
        let event = json!({
            "metadata": {"name": name}, "involvedObject": {"kind": "Pod", "namespace": pair.namespace, "name": "p"},
            "reason": "Test", "type": "Normal", "message": name
        });
        pair.direct.create(&path, event).await
    };
    let storage = Storage::of(&pair.bed, format!("/registry/events/{}/", pair.namespace));
    let in_one_transaction = async {
        let mut round = 0;
        loop {
            round += 1;
            let names = [0, 1].map(|at| format!("event-{round}-{at}"));
            join_all(names.iter().map(|name| create(name))).await;
            next_of_both_for_all(&mut watches, "ADDED", &names).await;
            storage.delete_together(&names).await;
            let deleted = next_of_both_for_all(&mut watches, "DELETED", &names).await;
            // On a machine that stalls, they may have expired before, one after the other.
            if deleted[0].version() == deleted[1].version() {
                return [deleted[0].clone(), deleted[1].clone()];
            }
        }
    };
    let [first, second] = bed::within("two Events are deleted together", in_one_transaction).await;
    // A watch that resumes directly before that version receives both.
    let before = first.version() - 1;
    let mut resumed = both(&pair, &format!("{path}?watch=1&resourceVersion={before}")).await;
    assert_eq!(next_of_both(&mut resumed).await.line, first.line);
    assert_eq!(next_of_both(&mut resumed).await.line, second.line);
}

#[tokio::test]
async fn bookmark_object_is_zero_value_of_its_kind() {
    let Some(pair) = Pair::new().await else { return };
    let collections = [
        format!("/api/v1/namespaces/{}/pods", pair.namespace),
        format!("/apis/apps/v1/namespaces/{}/deployments", pair.namespace),
        "/api/v1/nodes".to_owned(),
        pair.path(""),
        format!("/api/v1/namespaces/{}/events", pair.namespace),
    ];
    let forms = ["application/json", "application/vnd.kubernetes.protobuf;stream=watch"];
    let watches = collections.iter().flat_map(|collection| forms.map(|form| (collection, form)));
    let watches = watches.map(async |(collection, form)| {
        let path = format!("{collection}?watch=1&labelSelector=none&allowWatchBookmarks=1&timeoutSeconds=3");
        let (answer, _) = pair.same_watch_of(RequestSpec::get(&path).accept(form), 1).await;
        assert_eq!(bed::normal::events(&answer).len(), 1, "{path}: the bookmark that ends nothing");
    });
    join_all(watches).await;
}

#[tokio::test]
async fn future_version_blocks_watches_and_fails_reads_with_504() {
    let Some(pair) = Pair::new().await else { return };
    let future = pair.maps().await + 1_000_000;
    let watch = pair.path(&format!("?watch=1&resourceVersion={future}&timeoutSeconds=2"));
    let (answer, _) = pair.same_watch(RequestSpec::get(&watch)).await;
    assert_eq!(answer.body.len(), 0, "it lasted as long as requested");
    let list =
        format!("resourceVersion={future}&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1");
    let (answer, [_, took]) = pair.same_watch(RequestSpec::get(&pair.path(&format!("?watch=1&{list}")))).await;
    assert!(answer.text().contains("\"code\":504"), "{}", answer.text());
    assert!(took >= 2.5, "after three seconds: {took:.1} s");
    for path in [format!("?resourceVersion={future}"), format!("/cm-a?resourceVersion={future}")] {
        let answer = pair.same(RequestSpec::get(&pair.path(&path))).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (504, "1"));
    }
}

#[tokio::test]
async fn query_parameters_are_parsed_like_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    let version = pair.maps().await;
    for (query, code) in
        [("?resourceVersion=abc", 400), ("?watch=1&resourceVersion=abc", 500), ("/cm-a?resourceVersion=abc", 500)]
    {
        assert_eq!(pair.same(RequestSpec::get(&pair.path(query))).await.status.as_u16(), code, "{query}");
    }
    // Each of these queries either is a watch or is not.
    let watches = ["watch=", "watch=no", "watch=1&watch=0"].map(async |query| {
        let (answer, _) =
            pair.same_watch_of(RequestSpec::get(&pair.path(&format!("?{query}&timeoutSeconds=3"))), 2).await;
        assert_eq!(bed::normal::events(&answer).len(), 2, "{query}");
    });
    join_all(watches).await;
    for query in ["watch=False", "watch=0", "watch=false&watch=true", "Watch=1", "timeoutSeconds=1"] {
        let answer = pair.same(RequestSpec::get(&pair.path(&format!("?{query}")))).await;
        assert_eq!(answer.value()["kind"], "ConfigMapList", "{query}");
    }
    // With a version, because without one it varies how much the apiserver sends before it notices the timeout.
    let over = pair.path(&format!("?watch=1&timeoutSeconds=-1&resourceVersion={version}"));
    let (answer, _) = pair.same_watch(RequestSpec::get(&over)).await;
    assert!(answer.body.is_empty(), "over before it began: {}", answer.text());
    // In nanoseconds, this number overflows and is negative.
    for seconds in ["9223372037", "18446744073", "9223372036854775807"] {
        let over = pair.path(&format!("?watch=1&timeoutSeconds={seconds}&resourceVersion={version}"));
        let (answer, _) = pair.same_watch(RequestSpec::get(&over)).await;
        assert!(answer.body.is_empty(), "{seconds}: {}", answer.text());
    }
    let none = pair.same(RequestSpec::get(&pair.path("?watch=1&timeoutSeconds=18446744073709551616"))).await;
    assert_eq!(none.status.as_u16(), 400);
    let mut endless = both(&pair, &pair.path("?watch=1&timeoutSeconds=0")).await;
    next_of_both(&mut endless).await;
    next_of_both(&mut endless).await;
    pair.create_map(&pair.namespace, "endless").await;
    assert_eq!(next_of_both(&mut endless).await.name(), "endless", "zero is the server's choice, not zero");
    let one =
        pair.same(RequestSpec::get(&pair.path("?limit=1&limit=5&foo=bar&labelselector=app%3Dnone"))).await.value();
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn bookmarks_exceed_start_version_and_never_precede_events() {
    let Some(pair) = Pair::new().await else { return };
    let version = pair.maps().await;
    // The timeout may expire before the writes arrive. In that case the watches are opened again with a longer one.
    let mut query = format!("?watch=1&allowWatchBookmarks=1&resourceVersion={version}&timeoutSeconds=4");
    let changes = loop {
        let changes = changes_with_bookmarks(&pair, &query, version).await;
        match bed::longer(&query) {
            Some(more) if changes == 0 => query = more,
            _ => break changes,
        }
    };
    assert!(changes > 0, "changes while the watches were open");
    log_line(&format!("{changes} changes with bookmarks between them"));
}

/// Writes while both watches are open, and compares until the timeout of one. Returns the number of changes that both
/// sent.
async fn changes_with_bookmarks(pair: &Pair, query: &str, version: u64) -> usize {
    let watches = both(pair, &pair.path(query)).await;
    let first = bed::unique("first");
    pair.direct.patch(&pair.path("/cm-a"), json!({"data": {"k": first}})).await;
    let churn = ["--namespace", &pair.namespace, "--resource", "configmaps", "--ops", "100", "--rate", "50"];
    pair.bed.drive("churn").args(churn).start().finish().await;
    let mut changes = Vec::new();
    for mut watch in watches {
        let (events, ended) = watch.rest().await;
        assert_eq!(ended, Ended::Clean);
        let mut last = version;
        for event in &events {
            let at_least = if event.kind == "BOOKMARK" { last } else { last + 1 };
            assert!(event.version() >= at_least && event.version() > version, "{} after {last}", event.line);
            last = event.version();
        }
        changes.push(
            events.into_iter().filter(|event| event.kind != "BOOKMARK").map(|event| event.line).collect::<Vec<_>>(),
        );
    }
    // The timeout of one may expire a little earlier than that of the other.
    let both = changes[0].len().min(changes[1].len());
    assert_eq!(changes[1][..both], changes[0][..both], "the same changes");
    both
}

/// A proxy that receives SIGTERM ends its watches between two events, over HTTP/1.1 and HTTP/2, and exits with 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_watches_cleanly() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().config("drain: 20s\n").start(&bed).await;
    let namespace = bed.namespace("drain").await;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?watch=1&allowWatchBookmarks=1");
    let clients = [bed::Protocol::H1, bed::Protocol::H2].map(|protocol| Http::new(proxy.target(), protocol));
    let mut watches = Vec::new();
    for at in 0..60 {
        let mut watch = clients[at % 2].watch(RequestSpec::get(&path)).await;
        watch.initial().await;
        watches.push(watch);
    }
    let churn = ["--namespace", &namespace, "--resource", "configmaps", "--ops", "300", "--rate", "60"];
    let churn = bed.drive("churn").args(churn).start();
    churn.wrote(20).await;
    // All are read concurrently, because the proxy rightly disconnects a client that does not read in time.
    let reading: Vec<_> =
        watches.into_iter().map(|mut watch| tokio::spawn(async move { watch.rest().await })).collect();
    let stopped = Instant::now();
    let stopping = proxy.terminate();
    let mut ends = Vec::new();
    for read in reading {
        let (events, ended) = read.await.expect("it is read to its end");
        assert_eq!(ended, Ended::Clean);
        assert!(events.iter().all(|event| event.kind != "ERROR"));
        ends.push(events.last().map_or(0, Event::version));
    }
    let status = stopping.await;
    assert_eq!(status.code(), Some(0));
    drop(churn);
    ends.sort_unstable();
    ends.dedup();
    log_line(&format!("60 watches ended cleanly at {} versions, exit after {:.1?}", ends.len(), stopped.elapsed()));
}
