//! Watches that show only some namespaces: the frames and their order as permissions change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use super::fixture::{Client, ROOM, Stage, TERMS, WATCH_LIST, app_x};
use crate::auth::{NamespaceAccess, ReadableNamespaces};
use crate::cache::{CacheConfig, CollectionView, WatchStartPosition};
use crate::listing::cost;
use kubeapi::ResourceVersion;

const NOTHING: [String; 0] = [];

fn stage() -> Stage {
    Stage::new(CacheConfig::default(), &[("a/p", "x", 1), ("b/p", "x", 2), ("b/q", "x", 3), ("c/p", "x", 4)])
}

fn readable() -> ReadableNamespaces {
    ReadableNamespaces::with_decisions(&[
        ("a", NamespaceAccess::Allowed),
        ("b", NamespaceAccess::Denied),
        ("c", NamespaceAccess::Allowed),
    ])
}

fn named(names: &[&str]) -> NamespaceAccess {
    NamespaceAccess::Named(Arc::new(names.iter().map(|&name| name.into()).collect()))
}

fn watch_list(stage: &Stage, readable: &ReadableNamespaces) -> Client {
    stage.watch_part(readable, WatchStartPosition::Current, CollectionView::everything(), WATCH_LIST)
}

#[tokio::test(start_paused = true)]
async fn unreadable_namespaces_are_hidden_in_state_and_events() {
    let mut stage = stage();
    let mut client = watch_list(&stage, &readable());
    assert_eq!(client.reported(), ["ADDED p 1", "ADDED c/p 4", "BOOKMARK 10 end"]);
    stage.put("b/p", "x", 11);
    assert_eq!(client.reported(), NOTHING);
    stage.put("c/p", "x", 12);
    stage.delete("b/q", "x", 13);
    stage.bookmark(14);
    assert_eq!(client.reported(), ["MODIFIED c/p 12", "BOOKMARK 14"]);
}

#[tokio::test(start_paused = true)]
async fn newly_readable_namespace_is_added_at_watch_position() {
    let mut stage = stage();
    let readable = readable();
    let mut client = watch_list(&stage, &readable);
    client.reported();
    stage.put("b/q", "x", 11);
    let woken = client.woken();
    readable.set_decision("b", NamespaceAccess::Allowed);
    stage.put("a/p", "x", 12);
    assert!(client.woken() > woken);
    assert_eq!(client.reported(), ["MODIFIED p 12", "ADDED b/p 2", "ADDED b/q 11", "BOOKMARK 12"]);
    stage.put("b/p", "x", 13);
    assert_eq!(client.reported(), ["MODIFIED b/p 13"]);
}

#[tokio::test(start_paused = true)]
async fn revoked_namespace_deletes_only_known_objects() {
    let mut stage = stage();
    let readable = ReadableNamespaces::with_decisions(&[
        ("a", NamespaceAccess::Allowed),
        ("b", NamespaceAccess::Allowed),
        ("c", NamespaceAccess::Denied),
    ]);
    let mut client = watch_list(&stage, &readable);
    client.reported();
    // All of this happens before the client has room again.
    stage.put("b/p", "x", 11);
    stage.put("b/r", "x", 12);
    stage.put("b/p", "x", 13);
    readable.set_decision("b", NamespaceAccess::Denied);
    stage.put("a/p", "x", 14);
    let reported = ["DELETED b/p 11 as of 2", "MODIFIED p 14", "DELETED b/q 14 as of 3", "BOOKMARK 14"];
    assert_eq!(client.reported(), reported);
    stage.delete("b/q", "x", 15);
    assert_eq!(client.reported(), NOTHING);
    readable.set_decision("b", NamespaceAccess::Allowed);
    assert_eq!(client.reported(), ["ADDED b/p 13", "ADDED b/r 12", "BOOKMARK 15"], "and again");
}

#[tokio::test(start_paused = true)]
async fn revoked_namespace_is_skipped_in_rest_of_initial_state() {
    let stage = stage();
    let readable = ReadableNamespaces::with_decisions(&[
        ("a", NamespaceAccess::Allowed),
        ("b", NamespaceAccess::Allowed),
        ("c", NamespaceAccess::Allowed),
    ]);
    let mut client = watch_list(&stage, &readable);
    for expected in ["ADDED p 1", "ADDED b/p 2"] {
        assert_eq!(client.poll(1), Poll::Ready(Some(vec![expected.to_owned()])));
    }
    readable.set_decision("b", NamespaceAccess::Denied);
    readable.set_decision("c", NamespaceAccess::Denied);
    assert_eq!(client.reported(), ["BOOKMARK 10 end", "DELETED b/p 10 as of 2", "BOOKMARK 10"], "b/q was never known");
}

#[tokio::test(start_paused = true)]
async fn watch_waits_for_decision_on_new_namespace() {
    let mut stage = stage();
    let readable = readable();
    let mut client = watch_list(&stage, &readable);
    client.reported();
    stage.put("d/p", "x", 11);
    stage.put("a/p", "x", 12);
    assert_eq!(client.reported(), NOTHING, "in order");
    assert!(readable.is_review_pending("d"));
    readable.set_decision("d", NamespaceAccess::Allowed);
    assert_eq!(client.reported(), ["ADDED d/p 11", "MODIFIED p 12"]);
    stage.put("e/p", "x", 13);
    stage.put("f/p", "x", 14);
    stage.put("a/p", "x", 15);
    assert_eq!(client.reported(), NOTHING);
    readable.set_decision("e", NamespaceAccess::Denied);
    readable.set_decision("f", NamespaceAccess::Unanswered);
    assert_eq!(client.reported(), ["MODIFIED p 15"], "no answer does not hold up the others");
    readable.set_decision("f", NamespaceAccess::Allowed);
    assert_eq!(client.reported(), ["ADDED f/p 14", "BOOKMARK 15"]);
}

/// The charge is the same as for watches without restrictions.
#[tokio::test(start_paused = true)]
async fn derived_frames_of_restricted_watch_are_charged() {
    let names: Vec<_> = (0..100).map(|n| format!("a/p{n:03}")).collect();
    let pods: Vec<_> = names.iter().map(|name| (name.as_str(), "x", 1)).collect();
    let stage = Stage::new(CacheConfig::default(), &pods);
    let readable = readable();
    let slice = stage.take_slice();
    let mut client = stage.watch_metadata_of_part(&readable, WATCH_LIST);
    assert_eq!(client.reported().len(), cost::FREE_SCAN_COST / cost::DERIVED, "the rest waits for a slice");
    drop(slice);
    super::fixture::pass(1).await;
    assert_eq!(client.reported().len(), 100 - cost::FREE_SCAN_COST / cost::DERIVED + 1);
    assert_eq!(watch_list(&stage, &readable).reported().len(), 101, "what goes out as it came costs nothing");
}

/// A minute passes, and the due bookmark does not make a waiting watch spin.
#[tokio::test(start_paused = true)]
async fn watch_waiting_for_decision_does_not_spin() {
    let mut stage = stage();
    let readable = readable();
    let mut client = watch_list(&stage, &readable);
    client.reported();
    stage.put("d/p", "x", 11);
    super::fixture::pass(61).await;
    assert_eq!(client.reported(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn resumed_watch_deletes_listed_objects_of_revoked_namespace() {
    let mut stage = stage();
    stage.delete("c/p", "x", 11);
    let readable =
        ReadableNamespaces::with_decisions(&[("a", NamespaceAccess::Allowed), ("b", NamespaceAccess::Allowed)]);
    let after = WatchStartPosition::After(ResourceVersion(10));
    let mut client = stage.watch_part(&readable, after, CollectionView::everything(), TERMS);
    assert_eq!(client.reported(), NOTHING);
    assert!(readable.is_review_pending("c"), "it had objects at version 10");
    readable.set_decision("c", NamespaceAccess::Allowed);
    assert_eq!(client.reported(), ["DELETED c/p 11"]);
    readable.set_decision("b", NamespaceAccess::Denied);
    let reported = ["DELETED b/p 11 as of 2", "DELETED b/q 11 as of 3", "BOOKMARK 11"];
    assert_eq!(client.reported(), reported);
}

#[tokio::test(start_paused = true)]
async fn objects_are_shown_by_name_as_long_as_they_are_allowed() {
    let mut stage = stage();
    let readable = ReadableNamespaces::with_decisions(&[
        ("a", NamespaceAccess::Denied),
        ("b", named(&["q", "new"])),
        ("c", NamespaceAccess::Denied),
    ]);
    let mut client = watch_list(&stage, &readable);
    assert_eq!(client.reported(), ["ADDED b/q 3", "BOOKMARK 10 end"]);
    stage.put("b/p", "x", 11);
    stage.put("b/q", "x", 12);
    stage.put("b/new", "x", 13);
    assert_eq!(client.reported(), ["MODIFIED b/q 12", "ADDED b/new 13"]);
    readable.set_decision("b", named(&["p", "q"]));
    assert_eq!(client.reported(), ["DELETED b/new 13", "ADDED b/p 11", "BOOKMARK 13"]);
    // Each object is sent once, whether the whole namespace is shown or its names.
    readable.set_decision("b", NamespaceAccess::Allowed);
    assert_eq!(client.reported(), ["ADDED b/new 13", "BOOKMARK 13"]);
    readable.set_decision("b", named(&["p"]));
    stage.put("b/p", "x", 14);
    stage.put("b/q", "x", 15);
    assert_eq!(
        client.reported(),
        ["MODIFIED b/p 14", "DELETED b/q 15 as of 12", "DELETED b/new 15 as of 13", "BOOKMARK 15"]
    );
    // A namespace that occurs for the first time.
    readable.set_decision("d", named(&["one", "two"]));
    for (name, rv) in [("one", 16), ("other", 17), ("two", 18)] {
        stage.put(&format!("d/{name}"), "x", rv);
    }
    assert_eq!(client.reported(), ["ADDED d/one 16", "ADDED d/two 18", "BOOKMARK 18"]);
    for namespace in ["b", "d"] {
        readable.set_decision(namespace, NamespaceAccess::Unanswered);
    }
    stage.delete("d/one", "x", 19);
    let deleted = ["DELETED d/one 19 as of 16", "DELETED b/p 19 as of 14", "DELETED d/two 19 as of 18", "BOOKMARK 19"];
    assert_eq!(client.reported(), deleted);
}

/// Each name costs its caller CPU time, also if no object has it. A name that is revoked before its turn is not sent.
#[tokio::test(start_paused = true)]
async fn many_shown_names_wait_for_cpu_slice() {
    let names: Vec<_> = (0..2_000).map(|number| format!("n{number:04}")).collect();
    let named = |names: &[String]| NamespaceAccess::Named(Arc::new(names.iter().map(|name| (**name).into()).collect()));
    let pods: Vec<_> = names[1_000..].iter().map(|name| (name.as_str(), "x", 5)).collect();
    let stage = Stage::new(CacheConfig::default(), &pods);
    let readable = ReadableNamespaces::with_decisions(&[("a", NamespaceAccess::Denied)]);
    let mut client = watch_list(&stage, &readable);
    client.reported();
    let others = stage.take_slice();
    readable.set_decision("a", named(&names));
    assert_eq!(client.reported(), NOTHING, "the names without objects use up the time");
    readable.set_decision("a", named(&names[..1_500]));
    drop(others);
    let mut reported = Vec::new();
    for _ in 0..100 {
        super::fixture::pass_ms(64).await;
        reported.extend(client.reported());
    }
    let added: Vec<_> = names[1_000..1_500].iter().map(|name| format!("ADDED {name} 5")).collect();
    let bookmark = ["BOOKMARK 10".to_owned()];
    assert_eq!(reported, [&added[..], &bookmark].concat());
}

/// The state of a client: its objects and their versions.
#[derive(Default)]
struct Informer(BTreeMap<String, String>);

impl Informer {
    /// Applies a frame that was received while `readable` was the permission.
    fn take(&mut self, frame: &str, readable: &ReadableNamespaces) {
        let words: Vec<_> = frame.split(' ').collect();
        let (kind, key) = (words[0], words[1]);
        let written = words.last().copied().unwrap_or_default().to_owned();
        let (namespace, name) = key.split_once('/').unwrap_or(("a", key));
        let allowed = readable.access(namespace).allows(name);
        match kind {
            "ADDED" | "MODIFIED" => {
                assert!(allowed, "{frame}");
                let is_new = self.0.insert(key.to_owned(), written).is_none();
                assert_eq!(is_new, kind == "ADDED", "{frame}");
            }
            "DELETED" => {
                let previous = self.0.remove(key);
                assert!(allowed || previous == Some(written), "{frame}: known as of {previous:?}");
            }
            "BOOKMARK" => {}
            _ => panic!("{frame}"),
        }
    }
}

/// In any order of changes, a client never receives what it may not read, and in the end it has all that it may read.
#[tokio::test(start_paused = true)]
async fn informers_converge_on_readable_objects() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut stage = Stage::new(CacheConfig { window_events_max: 1_000, ..CacheConfig::default() }, &[]);
        let readable = ReadableNamespaces::with_decisions(&[]);
        let namespaces = ["a", "b", "b-c", "d"];
        let view = if rng.bool() { CollectionView::everything() } else { app_x() };
        let selects = !view.is_everything();
        let mut client = stage.watch_part(&readable, WatchStartPosition::Current, view, WATCH_LIST);
        let (mut informer, mut state) = (Informer::default(), BTreeMap::new());
        let mut rv = 10;
        for _ in 0..200 {
            // The runtime limits how many changes a task sees without yielding.
            tokio::task::yield_now().await;
            let namespace = namespaces[rng.usize(..namespaces.len())];
            let key = format!("{namespace}/{}", ["p", "q", "r"][rng.usize(..3)]);
            match rng.u8(..6) {
                0 => readable.set_decision(
                    namespace,
                    match rng.u8(..4) {
                        0 => NamespaceAccess::Allowed,
                        1 => NamespaceAccess::Denied,
                        2 => named(&["p", "none"]),
                        _ => named(&["q", "p"]),
                    },
                ),
                1 if state.contains_key(&key) => {
                    rv += 1;
                    let app = state.remove(&key).map_or("x", |(app, _)| app);
                    stage.delete(&key, app, rv);
                }
                2 | 3 => {
                    rv += 1;
                    let app = if rng.u8(..3) == 0 { "y" } else { "x" };
                    stage.put(&key, app, rv);
                    state.insert(key, (app, rv.to_string()));
                }
                _ => {
                    if let Poll::Ready(Some(frames)) = client.poll(rng.usize(1..400)) {
                        frames.iter().for_each(|frame| informer.take(frame, &readable));
                    }
                }
            }
        }
        for namespace in namespaces {
            if readable.decision(namespace).is_none() {
                readable.set_decision(namespace, NamespaceAccess::Denied);
            }
        }
        tokio::task::yield_now().await;
        while let Poll::Ready(Some(frames)) = client.poll(ROOM) {
            tokio::task::yield_now().await;
            frames.iter().for_each(|frame| informer.take(frame, &readable));
        }
        let allowed =
            |key: &str| key.split_once('/').is_some_and(|(namespace, name)| readable.access(namespace).allows(name));
        let seen = state.into_iter().filter(|(key, (app, _))| allowed(key) && (!selects || *app == "x"));
        let expected: BTreeMap<_, _> =
            seen.map(|(key, (_, rv))| (key.strip_prefix("a/").unwrap_or(&key).to_owned(), rv)).collect();
        assert_eq!(informer.0, expected, "seed {seed}");
    }
}
