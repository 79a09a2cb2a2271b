//! The proxy reads back changes from a time without upstream connection, even if the apiserver that sent them is dead.

use serde_json::{Value, json};

use crate::bed::{self, Event, Plan, RequestSpec, Watch, log_line, version_of};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, app: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": app}}, "data": {"k": "0"}})
}

/// A change in a watch: type, name, version, label and value.
type WatchedChange = (String, String, u64, String, String);

fn watched_change(event: &Event) -> WatchedChange {
    let (label, value) = (&event.object["metadata"]["labels"]["app"], &event.object["data"]["k"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (event.kind.clone(), event.name().to_owned(), event.version(), text(label), text(value))
}

/// Changes up to and including the one of the object `last`.
async fn until(watch: &mut Watch, last: &str) -> Vec<WatchedChange> {
    let mut all = Vec::new();
    loop {
        let event = watch.change().await;
        let done = event.name() == last;
        all.push(watched_change(&event));
        if done {
            return all;
        }
    }
}

#[tokio::test]
async fn changes_missed_in_an_apiserver_crash_reach_watches_once() {
    let Some(bed) = bed::own("gaps").await else { return };
    let proxy = Plan::tls().start(&bed).await;
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")] {
        bed.direct().create(MAPS, map(name, app)).await;
    }
    let version = bed.direct().version(MAPS).await;
    let watch = |query: &str| RequestSpec::get(&format!("{MAPS}?watch=1&resourceVersion={version}{query}"));
    let client = proxy.client();
    let mut all = client.watch(watch("")).await;
    let mut selected = client.watch(watch("&labelSelector=app%3Dx")).await;
    let mut named = client.watch(watch("&fieldSelector=metadata.name%3Da")).await;
    bed.direct().create(MAPS, map("before", "x")).await;
    assert_eq!(all.change().await.name(), "before");
    assert_eq!(selected.change().await.name(), "before");
    proxy.stop();
    bed.kill_apiserver().await;
    bed.start_apiserver().await;
    // This apiserver is killed before the proxy receives the changes from it.
    let changes = change_much(&bed).await;
    bed.kill_apiserver().await;
    bed.start_apiserver().await;
    proxy.go_on();
    let last = version_of(&bed.direct().create(MAPS, map("last", "x")).await);
    assert_eq!(until(&mut all, "last").await, with(&changes, "all", last));
    assert_eq!(until(&mut selected, "last").await, with(&changes, "selected", last));
    bed.direct().patch(&format!("{MAPS}/a"), json!({"data": {"k": "end"}})).await;
    for expected in changes.iter().filter(|(_, of)| of.contains(&"named")).map(|(expected_change, _)| expected_change) {
        assert_eq!(watched_change(&named.change().await), *expected);
    }
    assert_eq!(watched_change(&named.change().await).4, "end");
    let metrics = proxy.metrics().await;
    let gaps = |outcome| metrics.sum("kube_fanout_history_gaps_total", &[("outcome", outcome)]);
    assert_eq!(gaps("new_history"), 0);
    let (past, relists) = (proxy.feed_requests("past_object").await, proxy.feed_requests("relist").await);
    log_line(&format!(
        "{} changes read back; gaps mended: {}; upstream requests: relist {relists}, past {past}",
        changes.len(),
        gaps("mended")
    ));
}

fn with(changes: &[(WatchedChange, &'static [&'static str])], which: &str, last: u64) -> Vec<WatchedChange> {
    let of = changes.iter().filter(|(_, of)| of.contains(&which)).map(|(change, _)| change.clone());
    of.chain([("ADDED".to_owned(), "last".to_owned(), last, "x".to_owned(), "0".to_owned())]).collect()
}

/// Changes, and for each the watches that must receive it: of everything, of a label or of a name.
async fn change_much(bed: &bed::Plane) -> Vec<(WatchedChange, &'static [&'static str])> {
    const EVERYBODY: &[&str] = &["all", "selected", "named"];
    const ALL: &[&str] = &["all"];
    const BOTH: &[&str] = &["all", "selected"];
    let client = bed.direct();
    let mut changes = Vec::new();
    let patch = async |name: &str, app: &str, value: &str| {
        let body = json!({"metadata": {"labels": {"app": app}}, "data": {"k": value}});
        version_of(&client.patch(&format!("{MAPS}/{name}"), body).await)
    };
    let of = |kind: &str, name: &str, version: u64, app: &str, value: &str| -> WatchedChange {
        (kind.to_owned(), name.to_owned(), version, app.to_owned(), value.to_owned())
    };
    for value in ["1", "2", "3"] {
        let version = patch("a", "x", value).await;
        changes.push((of("MODIFIED", "a", version, "x", value), EVERYBODY));
    }
    // b leaves the selection and returns.
    let version = patch("b", "y", "1").await;
    changes.push((of("MODIFIED", "b", version, "y", "1"), ALL));
    changes.push((of("DELETED", "b", version, "x", "0"), &["selected"]));
    let version = patch("b", "x", "2").await;
    changes.push((of("MODIFIED", "b", version, "x", "2"), ALL));
    changes.push((of("ADDED", "b", version, "x", "2"), &["selected"]));
    // c is changed outside the selection, d is changed and deleted, e is created.
    let version = patch("c", "y", "1").await;
    changes.push((of("MODIFIED", "c", version, "y", "1"), ALL));
    let version = patch("d", "x", "1").await;
    changes.push((of("MODIFIED", "d", version, "x", "1"), BOTH));
    // A list would have a later version, because others also write, an apiserver that has just started most of all.
    let mut end = client.watch(RequestSpec::get(&format!("{MAPS}?watch=1&resourceVersion={version}"))).await;
    client.delete(&format!("{MAPS}/d")).await;
    let version = end.change().await.version();
    changes.push((of("DELETED", "d", version, "x", "1"), BOTH));
    let version = version_of(&client.create(MAPS, map("e", "x")).await);
    changes.push((of("ADDED", "e", version, "x", "0"), BOTH));
    changes
}
