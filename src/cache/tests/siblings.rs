//! Several events at one version: an etcd lease that runs out deletes many objects in one transaction, and upstream
//! tells of them one by one (semantics.md §3.0). A version is then no position.

use super::fixture::{POD, Pod, Seen, added, deleted, listed, pull_all, ring, rv, seen, told, view};
use crate::cache::{Applied, CacheReader, CacheWriter, Pull, Start, View};
use crate::kube::EventType::{Added, Deleted};
use crate::kube::ResourceVersion;

const NAMES: [&str; 4] = ["p", "q", "r", "s"];

fn pod(name: &'static str) -> Pod {
    Pod { name, ..POD }
}

/// Four objects, listed at 10; they will all go at 20.
fn leased(events: usize) -> (CacheWriter, CacheReader) {
    let objects: Vec<_> = NAMES.into_iter().zip(1..).map(|(name, rv)| (pod(name), rv)).collect();
    listed(ring(events), 10, &objects)
}

fn revoke(writer: &mut CacheWriter, names: &[&'static str]) {
    for name in names {
        assert_eq!(writer.apply(deleted(&pod(name), 20)), Ok(Applied::Fresh), "{name}");
    }
}

const ALL_GONE: [&str; 4] = ["DELETED a/p 20", "DELETED a/q 20", "DELETED a/r 20", "DELETED a/s 20"];

#[test]
fn all_of_them_are_delivered_once() {
    let (mut writer, reader) = leased(10);
    let mut opened = reader.open(Start::After(rv(10)), View::everything()).expect("in the ring");
    revoke(&mut writer, &NAMES);
    assert_eq!(told(&mut opened.cursor), ALL_GONE);
    assert_eq!(told(&mut opened.cursor), Vec::<String>::new());
    assert_eq!(reader.stats().objects, 0);
}

#[test]
fn a_batch_may_end_between_them() {
    let (mut writer, reader) = leased(10);
    let mut opened = reader.open(Start::After(rv(10)), View::everything()).expect("in the ring");
    revoke(&mut writer, &NAMES);
    for name in NAMES {
        let mut batch = Vec::new();
        let pull = opened.cursor.pull(1, None, &mut batch);
        assert!(matches!(pull, Pull::Frames { last: ResourceVersion(20), .. }), "{pull:?}");
        let expected = Seen { event_type: Deleted, rv: 20, pod: pod(name) };
        assert_eq!(batch.iter().map(seen).collect::<Vec<_>>(), [expected]);
    }
}

/// W3: such a watch must not keep an object for ever that the others know to be gone.
#[test]
fn a_watch_that_starts_with_the_state_between_them_is_told_of_the_rest() {
    for narrow in [View::everything(), view("a", "", ""), view("", "app=x", ""), view("", "", "spec.nodeName=n1")] {
        let (mut writer, reader) = leased(10);
        revoke(&mut writer, &NAMES[..2]);
        let mut opened = reader.open(Start::Current, narrow).expect("current");
        let snapshot = opened.snapshot.expect("a state was asked for");
        assert_eq!((snapshot.rv, snapshot.len()), (rv(20), 2));
        revoke(&mut writer, &NAMES[2..]);
        assert_eq!(told(&mut opened.cursor), ALL_GONE[2..]);
    }
}

#[test]
fn a_watch_from_now_between_them_is_told_of_the_rest() {
    let (mut writer, reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    let mut opened = reader.open_at_end(View::everything());
    revoke(&mut writer, &NAMES[2..]);
    assert_eq!(told(&mut opened.cursor), ALL_GONE[2..]);
}

#[test]
fn whether_more_of_them_may_follow_is_known() {
    let (mut writer, reader) = leased(10);
    assert!(!reader.is_at_event(rv(10)), "the list contains everything at its version");
    revoke(&mut writer, &NAMES[..1]);
    assert!(reader.is_at_event(rv(20)));
    assert!(!reader.is_at_event(rv(19)) && !reader.is_at_event(rv(21)));
}

/// A client that asks for what is later than a version gets just that, as upstream would answer it.
#[test]
fn a_watch_from_their_version_is_not_told_of_any() {
    let (mut writer, reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    let mut opened = reader.open(Start::After(rv(20)), View::everything()).expect("in the ring");
    revoke(&mut writer, &NAMES[2..]);
    writer.apply(added(&POD, 21)).expect("in order");
    assert_eq!(told(&mut opened.cursor), ["ADDED a/p 21"]);
    let mut before = reader.open(Start::After(rv(19)), View::everything()).expect("in the ring");
    assert_eq!(told(&mut before.cursor)[..4], ALL_GONE);
}

/// etcd #18089: deletions lost at the boundary of eviction. The store must lose every object, however small the ring.
#[test]
fn more_of_them_than_the_ring_holds_are_still_applied() {
    for events in 1..=4 {
        let (mut writer, reader) = leased(events);
        let mut eager = reader.open(Start::Current, View::everything()).expect("current").cursor;
        let mut known = Vec::new();
        for name in NAMES {
            revoke(&mut writer, &[name]);
            known.extend(told(&mut eager));
        }
        assert_eq!(known, ALL_GONE, "ring of {events}");
        assert_eq!(reader.stats().objects, 0, "ring of {events}");
        assert_eq!(reader.stats().events, events);
    }
}

#[test]
fn a_ring_that_begins_in_the_middle_of_them_serves_nobody_who_needs_the_first() {
    let (mut writer, reader) = leased(2);
    revoke(&mut writer, &NAMES[..3]);
    assert_eq!(reader.stats().floor, rv(20));
    for after in [10, 19] {
        assert!(reader.open(Start::After(rv(after)), View::everything()).is_err(), "{after}: one deletion is gone");
    }
    let mut opened = reader.open(Start::After(rv(20)), View::everything()).expect("nothing later is missing");
    assert_eq!(pull_all(&mut opened.cursor).0, vec![]);
}

/// Two streams of one history overlap: the second tells of everything again.
#[test]
fn they_are_known_again_even_if_evicted() {
    for events in 1..=4 {
        let (mut writer, reader) = leased(events);
        revoke(&mut writer, &NAMES);
        let before = reader.stats();
        for name in NAMES {
            assert_eq!(writer.apply(deleted(&pod(name), 20)), Ok(Applied::Duplicate), "{name}, ring of {events}");
        }
        assert_eq!((reader.stats().events, reader.stats().objects), (before.events, before.objects));
    }
}

#[test]
fn a_creation_beside_them_is_known_again_even_if_evicted() {
    let (mut writer, reader) = leased(1);
    let created = Pod { name: "x", ..POD };
    assert_eq!(writer.apply(added(&created, 20)), Ok(Applied::Fresh));
    revoke(&mut writer, &NAMES[..1]);
    assert_eq!(writer.apply(added(&created, 20)), Ok(Applied::Duplicate));
    assert_eq!(reader.stats().objects, 4);
}

#[test]
fn the_list_contains_everything_at_its_own_version() {
    let (mut writer, reader) = leased(10);
    assert_eq!(writer.apply(deleted(&pod("p"), 10)), Ok(Applied::Duplicate));
    assert_eq!(reader.stats().objects, 4);
}

#[test]
fn a_straggler_after_upstream_vouched_for_more_is_out_of_order() {
    let (mut writer, _reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    writer.advance(rv(20), true);
    // A bookmark at the very version may overtake the rest of the transaction.
    revoke(&mut writer, &NAMES[2..3]);
    writer.advance(rv(21), true);
    let error = writer.apply(deleted(&pod("s"), 20)).expect_err("21 was vouched for");
    assert_eq!((error.rv, error.progress, error.key.as_str()), (rv(20), rv(21), "a/s"));
}

#[test]
fn one_object_changes_once_at_a_version() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    assert_eq!(writer.apply(added(&POD, 11)), Ok(Applied::Fresh));
    let mut opened = reader.open(Start::After(rv(10)), View::everything()).expect("in the ring");
    assert_eq!(writer.apply(deleted(&POD, 11)), Ok(Applied::Duplicate));
    assert_eq!(pull_all(&mut opened.cursor).0, [Seen { event_type: Added, rv: 11, pod: POD }]);
}
