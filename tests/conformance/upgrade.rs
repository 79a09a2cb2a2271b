//! The apiserver is replaced by another release while the proxy's feeds are running (F10).
//!
//! `make upgrade` builds the previous Kubernetes minor. Without it, the current one is restarted and emulates the
//! previous one. The proxy treats that as another release too, although it writes the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use kube_fanout::wire::{FeedEncoding, JsonLayout, ObjectReader};
use kubeapi::SelectableFieldTable;
use serde_json::json;

use crate::bed::{self, Frame, Http, Plan, Plane, Proxy, RequestSpec, Watch, eventually, kubectl, log_line};
use crate::refused_json::{self, Derived};
use crate::representations::{Resource, built_ins};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The wait for bytes that must not be sent.
const QUIET: Duration = Duration::from_millis(300);

/// Bodies by key and version.
type State = BTreeMap<(String, u64), Bytes>;

fn state(encoding: FeedEncoding, list: &Bytes) -> State {
    let reader = ObjectReader::new(encoding, JsonLayout::BuiltIn, Arc::new(SelectableFieldTable::default()));
    let page = reader.list(list).expect("a list");
    page.items.iter().map(|object| ((object.key.as_str().to_owned(), object.rv.0), object.body().clone())).collect()
}

/// The state of every resource in one encoding.
async fn states(direct: &Http, paths: &[String], accept: &str, encoding: FeedEncoding) -> BTreeMap<String, State> {
    let mut states = BTreeMap::new();
    for path in paths {
        let list = direct.fetch(RequestSpec::get(path).accept(accept)).await;
        assert_eq!(list.status, 200, "{path}: {}", list.text());
        states.insert(path.clone(), state(encoding, &list.body));
    }
    states
}

/// The number of objects with the same version and different bytes.
fn differing(before: &State, after: &State) -> usize {
    before.iter().filter(|(key, body)| after.get(key).is_some_and(|now| now != *body)).count()
}

/// Creates objects of all kinds with many fields, and those that every cluster has.
fn make_objects(bed: &Plane) {
    let objects = bed::repository().join("tests/conformance/world/objects");
    let objects = objects.to_str().expect("a path");
    let out = kubectl(bed, &bed.target(), &["apply", "--server-side", "--validate=false", "-f", objects]).output();
    let out = out.expect("kubectl runs");
    // Omits kinds that the release does not serve.
    log_line(&format!("{} objects made", String::from_utf8_lossy(&out.stdout).lines().count()));
}

/// The state that is served from memory in one encoding, as soon as the feed has a stream again.
async fn from_memory(through: &Http, path: &str, (accept, encoding): (&str, FeedEncoding)) -> State {
    eventually(&format!("{path} is followed again"), async || {
        let list = through.fetch(RequestSpec::get(&format!("{path}?resourceVersion=0")).accept(accept)).await;
        let is_followed = list.status == 200 && list.is_cached() && list.header("kube-fanout-stale-seconds").is_empty();
        is_followed.then(|| state(encoding, &list.body))
    })
    .await
}

async fn open(proxy: &Proxy, paths: &[String]) -> Vec<(String, Watch)> {
    let opened = paths.iter().map(async |path| {
        // One connection each, because a connection has a limited number of watches.
        let request = RequestSpec::get(&format!("{path}?watch=1&resourceVersion=0")).accept(PROTOBUF);
        let mut watch = proxy.client().watch(request).await;
        watch.catch_up(QUIET).await.expect("it continues");
        (path.clone(), watch)
    });
    join_all(opened).await
}

/// The lists and streamed lists of whole collections that this apiserver has answered since its start.
async fn lists(bed: &Plane) -> i64 {
    let labels = [("verb", "LIST"), ("scope", "cluster"), ("code", "200")];
    bed.metrics().await.sum("apiserver_request_total", &labels)
}

/// Reads a watch until an event contains these bytes. Returns the number of events.
async fn events_until(watch: &mut Watch, bytes: &[u8]) -> usize {
    let mut events = 0;
    loop {
        let Some(Frame::Protobuf(frame)) = watch.frame().await else { panic!("it is protobuf, and continues") };
        events += 1;
        if frame.windows(bytes.len()).any(|part| part == bytes) {
            return events;
        }
    }
}

async fn no_state_is_of_the_old_release(bed: &Plane, upgrade: impl AsyncFnOnce(&Plane)) -> i64 {
    make_objects(bed);
    let proxy = Plan::tls().config("limits: {watches: 4000}").start(bed).await;
    let (direct, through) = (bed.direct(), proxy.client());
    let mut paths: Vec<_> = built_ins(bed).await.iter().map(Resource::path).collect();
    let encodings = [(JSON, FeedEncoding::Json), (PROTOBUF, FeedEncoding::Protobuf)];
    let mut before = Vec::new();
    for (accept, encoding) in encodings {
        before.push(states(&direct, &paths, accept, encoding).await);
        for path in &paths {
            from_memory(&through, path, (accept, encoding)).await;
        }
    }
    let mut watches = open(&proxy, &paths).await;
    let questions = async |what: &str| proxy.feed_requests(what).await;
    let before_upgrade = [questions("relist").await, questions("release_change").await];
    bed.kill_apiserver().await;
    upgrade(bed).await;
    // A resource that the new release no longer serves is excluded from the comparison.
    let served: Vec<_> = built_ins(bed).await.iter().map(Resource::path).collect();
    paths.retain(|path| served.contains(path));
    let (mut compared, mut otherwise) = (0, 0);
    for (at, (accept, encoding)) in encodings.into_iter().enumerate() {
        for path in &paths {
            let ours = from_memory(&through, path, (accept, encoding)).await;
            let theirs =
                states(&direct, std::slice::from_ref(path), accept, encoding).await.remove(path).expect("a state");
            // A starting apiserver writes some objects itself, whose versions may differ.
            let of_theirs = ours.iter().filter(|(key, _)| theirs.contains_key(*key));
            for (key, body) in of_theirs {
                assert!(theirs[key] == *body, "{path} as {accept}: {key:?} is of the old release");
                compared += 1;
            }
            otherwise += differing(&before[at][path], &theirs);
        }
    }
    assert!(compared > 2 * paths.len(), "{compared} objects of {} resources", paths.len());
    let (relists, renewals) =
        (questions("relist").await - before_upgrade[0], questions("release_change").await - before_upgrade[1]);
    log_line(&format!(
        "{} resources, {compared} objects compared in two forms: {otherwise} have other bytes",
        paths.len()
    ));
    log_line(&format!(
        "feeds listed for a gap: {relists}, for the release: {renewals}; lists upstream: {}",
        lists(bed).await
    ));
    let map = json!({"metadata": {"name": "after"}});
    direct.create("/api/v1/namespaces/default/configmaps", map).await;
    let mut ended = Vec::new();
    let (_, maps) = watches.iter_mut().find(|(path, _)| path == "/api/v1/configmaps").expect("they are watched");
    let mut events = events_until(maps, b"\x0a\x05after").await;
    let watched = watches.iter_mut().filter(|(path, _)| paths.contains(path));
    let caught_up = join_all(watched.map(async |(path, watch)| (path, watch.catch_up(QUIET).await))).await;
    for (path, frames) in caught_up {
        match frames {
            Some(frames) => events += frames,
            None => ended.push(path.clone()),
        }
    }
    log_line(&format!("{} watches open, {events} events since; ended: {ended:?}", watches.len()));
    assert!(ended.is_empty(), "{ended:?}");
    assert!(relists + renewals <= i64::try_from(watches.len()).expect("few") + 4, "one list a feed");
    assert_eq!(proxy.metrics().await.sum("kube_fanout_history_gaps_total", &[("outcome", "new_history")]), 0);
    renewals
}

#[tokio::test]
async fn cache_is_refreshed_after_emulated_version_changes() {
    let Some(bed) = bed::own("emulation").await else { return };
    let emulated = async |bed: &Plane| bed.direct().json("/version").await["emulationMinor"].clone();
    let before = emulated(&bed).await;
    let minor = before.as_str().and_then(|minor| minor.parse::<u32>().ok()).expect("a minor");
    let flag = format!("--emulated-version=1.{}", minor - 1);
    let renewed = no_state_is_of_the_old_release(&bed, async |bed| {
        bed.start_apiserver_as(&bed.binary, &[&flag]).await;
    })
    .await;
    assert_ne!(emulated(&bed).await, before);
    assert!(renewed > 0, "some feeds resume, and are not listed for a gap");
}

/// The proxy derives nothing else of the resource, so it reads the release only every minute.
#[tokio::test]
async fn json_refused_as_only_derivation_is_retried() {
    refused_json::is_retried_after_release_change(Derived::Nothing).await;
}

#[tokio::test]
async fn cache_is_refreshed_and_no_watch_ends_after_minor_upgrade() {
    let Some((bed, present)) = bed::previous("previous").await else { return };
    let old = bed.direct().json("/version").await["gitVersion"].clone();
    no_state_is_of_the_old_release(&bed, async |bed| bed.start_apiserver_as(&present, &[]).await).await;
    let new = bed.direct().json("/version").await["gitVersion"].clone();
    log_line(&format!("upgraded from {old} to {new}"));
    assert_ne!(old, new);
}
