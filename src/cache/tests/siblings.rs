//! Several events at one version: an expired etcd lease deletes many objects in one transaction, and upstream reports
//! them one by one (R-VERSION-2). The reflector passes them on together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fixture::{POD, Pod, Seen, added, deleted, listed, pull_all, reported, ring, rv, seen, view};
use crate::cache::{CacheReader, CacheWriter, CollectionView, FeedSnapshot, PullResult, WatchStartPosition};
use kubeapi::EventType::{Added, Deleted};
use kubeapi::ResourceVersion;

const NAMES: [&str; 4] = ["p", "q", "r", "s"];

fn pod(name: &'static str) -> Pod {
    Pod { name, ..POD }
}

/// Four objects, listed at 10; all of them are deleted at 20.
fn leased(events: usize) -> (CacheWriter, CacheReader) {
    let objects: Vec<_> = NAMES.into_iter().zip(1..).map(|(name, rv)| (pod(name), rv)).collect();
    listed(ring(events), 10, &objects)
}

/// Deletes these objects together.
fn revoke(writer: &mut CacheWriter, names: &[&'static str]) {
    let changes = names.iter().map(|name| deleted(&pod(name), 20));
    assert_eq!(writer.apply(changes), Ok(names.len()), "{names:?}");
}

const ALL_GONE: [&str; 4] = ["DELETED a/p 20", "DELETED a/q 20", "DELETED a/r 20", "DELETED a/s 20"];

#[test]
fn events_at_one_version_are_delivered_once() {
    for narrow in
        [CollectionView::everything(), view("a", "", ""), view("", "app=x", ""), view("", "", "spec.nodeName=n1")]
    {
        let (mut writer, reader) = leased(10);
        let mut resumed = reader.open(WatchStartPosition::After(rv(10)), narrow.clone()).expect("in the ring").cursor;
        let mut current = reader.open(WatchStartPosition::Current, narrow).expect("current").cursor;
        revoke(&mut writer, &NAMES);
        for cursor in [&mut resumed, &mut current] {
            assert_eq!(reported(cursor), ALL_GONE);
            assert_eq!(reported(cursor), Vec::<String>::new());
        }
        assert_eq!(reader.stats().objects, 0);
    }
}

/// W17: no state, version or watch is between two events of one version.
#[test]
fn no_reader_gets_a_part_of_changes_that_are_applied_together() {
    const ROUNDS: u64 = 2_000;
    let (mut writer, reader) = listed(ring(100_000), 10, &[]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut states = Vec::new();
        for _ in 0..2 {
            states.push(scope.spawn(|| {
                let mut states = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let opened =
                        reader.open(WatchStartPosition::Current, CollectionView::everything()).expect("current");
                    states.push(opened.snapshot.expect("a state was asked for"));
                    states.extend(reader.current());
                    states.extend(reader.snapshot_at(reader.progress().rv));
                }
                states
            }));
        }
        for round in 0..ROUNDS {
            let version = 11 + round;
            let change = |name| if round % 2 == 0 { added(&pod(name), version) } else { deleted(&pod(name), version) };
            assert_eq!(writer.apply(NAMES.into_iter().map(change)), Ok(4));
        }
        is_over.store(true, Ordering::Relaxed);
        for state in states.into_iter().flat_map(|states| states.join().expect("no panic")) {
            let expected = if state.rv.0 % 2 == 0 { 0 } else { 4 };
            assert_eq!(state.len(), expected, "at {}", state.rv);
        }
    });
}

#[test]
fn changes_of_several_versions_are_applied_in_order() {
    let (mut writer, reader) = leased(10);
    let mut cursor =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    let changes = vec![deleted(&pod("p"), 20), deleted(&pod("q"), 20), added(&pod("p"), 21), deleted(&pod("r"), 20)];
    let error = writer.apply(changes).expect_err("the last one is late");
    assert_eq!((error.rv.0, error.progress.0), (20, 21));
    assert_eq!(reported(&mut cursor), ["DELETED a/p 20", "DELETED a/q 20", "ADDED a/p 21"]);
    assert_eq!((reader.progress().rv, reader.stats().objects), (rv(21), 3));
}

#[test]
fn batch_may_end_between_events_of_one_version() {
    let (mut writer, reader) = leased(10);
    let mut opened = reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring");
    revoke(&mut writer, &NAMES);
    for name in NAMES {
        let mut batch = Vec::new();
        let pull = opened.cursor.pull(1, None, &mut batch);
        assert!(matches!(pull, PullResult::Frames { last: ResourceVersion(20), .. }), "{pull:?}");
        let expected = Seen { event_type: Deleted, rv: 20, pod: pod(name) };
        assert_eq!(batch.iter().map(seen).collect::<Vec<_>>(), [expected]);
    }
}

/// The apiserver writes one object per transaction, but another upstream may send a further event at a version that is
/// already announced. Open watches and the state get it. A client that resumes at that version does not, as at the
/// apiserver (R-WATCH-4).
#[test]
fn further_event_at_the_newest_version_is_applied_and_delivered_to_open_watches_in_order() {
    let (mut writer, reader) = leased(10);
    let mut before =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    assert_eq!(writer.apply([deleted(&pod("p"), 20)]), Ok(1));
    assert_eq!(reported(&mut before), ALL_GONE[..1]);
    let between = reader.open(WatchStartPosition::Current, CollectionView::everything()).expect("current");
    assert_eq!(between.snapshot.map(|state| (state.rv, state.len())), Some((rv(20), 3)));
    let mut from_now = reader.open_at_end(CollectionView::everything()).cursor;
    let mut resumed =
        reader.open(WatchStartPosition::After(rv(20)), CollectionView::everything()).expect("in the ring").cursor;
    writer.advance(rv(20), true);
    assert_eq!(writer.apply([deleted(&pod("q"), 20)]), Ok(1));
    assert_eq!(writer.apply([deleted(&pod("q"), 20)]), Ok(0));
    assert_eq!(writer.apply([added(&POD, 21)]), Ok(1));
    for cursor in [&mut before, &mut { between.cursor }, &mut from_now] {
        assert_eq!(reported(cursor), ["DELETED a/q 20", "ADDED a/p 21"]);
    }
    assert_eq!(reported(&mut resumed), ["ADDED a/p 21"]);
    assert_eq!((reader.snapshot().rv, reader.stats().objects), (rv(21), 3));
}

/// etcd #18089: deletions lost at the boundary of eviction. The store must remove every object, however small the ring.
#[test]
fn more_events_of_one_version_than_the_ring_holds_are_applied() {
    for events in 1..=4 {
        let (mut writer, reader) = leased(events);
        let mut eager = reader.open(WatchStartPosition::Current, CollectionView::everything()).expect("current").cursor;
        let mut known = Vec::new();
        for name in NAMES {
            revoke(&mut writer, &[name]);
            known.extend(reported(&mut eager));
        }
        assert_eq!(known, ALL_GONE, "ring of {events}");
        assert_eq!(reader.stats().objects, 0, "ring of {events}");
        assert_eq!(reader.stats().events, events);
    }
}

/// For all transactions and all events in between: a reader that resumes from a published version and state converges
/// to the full state.
#[test]
fn reader_that_resumes_from_a_published_state_misses_nothing() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut writer, reader) = listed(ring(1_000), 10, &[]);
        let mut known: Vec<(u64, BTreeMap<String, u64>)> = Vec::new();
        let mut version = 10;
        for _ in 0..random.u32(1..12) {
            version += random.u64(1..4);
            let now = state_of(&reader.snapshot());
            let changed = NAMES.into_iter().filter(|_| random.bool());
            let change = |name| {
                let pod = pod(name);
                if now.contains_key(&pod.key()) { deleted(&pod, version) } else { added(&pod, version) }
            };
            writer.apply(changed.map(change)).expect("in order");
            if random.u8(..3) == 0 {
                writer.advance(rv(version), random.bool());
            }
            let state = reader.snapshot();
            known.push((state.rv.0, state_of(&state)));
            let at = reader.snapshot_at(reader.progress().rv).expect("it is the current state");
            known.push((reader.progress().rv.0, state_of(&at)));
        }
        let last = state_of(&reader.snapshot());
        for (from, mut state) in known {
            assert!(state.values().all(|version| *version <= from), "seed {seed}: {state:?} at {from}");
            let mut cursor = reader
                .open(WatchStartPosition::After(rv(from)), CollectionView::everything())
                .expect("in the ring")
                .cursor;
            for Seen { event_type, rv, pod } in pull_all(&mut cursor).0 {
                assert!(rv > from, "seed {seed}: {rv} from {from}");
                match event_type {
                    Deleted => drop(state.remove(&pod.key())),
                    _ => drop(state.insert(pod.key(), rv)),
                }
            }
            assert_eq!(state, last, "seed {seed}: from {from}");
        }
    }
}

fn state_of(state: &FeedSnapshot) -> BTreeMap<String, u64> {
    state.iter().map(|object| (object.key.to_string(), object.rv.0)).collect()
}

#[test]
fn ring_that_begins_within_a_version_serves_no_earlier_watch() {
    let (mut writer, reader) = leased(2);
    revoke(&mut writer, &NAMES[..3]);
    assert_eq!(reader.stats().floor, rv(20));
    for after in [10, 19] {
        assert!(
            reader.open(WatchStartPosition::After(rv(after)), CollectionView::everything()).is_err(),
            "{after}: one deletion is gone"
        );
    }
    let mut opened =
        reader.open(WatchStartPosition::After(rv(20)), CollectionView::everything()).expect("nothing later is missing");
    assert_eq!(pull_all(&mut opened.cursor).0, vec![]);
}

/// Two streams of one history overlap: the second repeats everything.
#[test]
fn replayed_deletions_are_duplicates_after_eviction() {
    for events in 1..=4 {
        let (mut writer, reader) = leased(events);
        revoke(&mut writer, &NAMES);
        let before = reader.stats();
        for name in NAMES {
            assert_eq!(writer.apply([deleted(&pod(name), 20)]), Ok(0), "{name}, ring of {events}");
        }
        assert_eq!((reader.stats().events, reader.stats().objects), (before.events, before.objects));
    }
}

#[test]
fn replayed_add_among_deletions_is_duplicate_after_eviction() {
    let (mut writer, reader) = leased(1);
    let created = Pod { name: "x", ..POD };
    assert_eq!(writer.apply(vec![added(&created, 20), deleted(&pod("p"), 20)]), Ok(2));
    assert_eq!(writer.apply([added(&created, 20)]), Ok(0));
    assert_eq!(reader.stats().objects, 4);
}

#[test]
fn event_at_the_list_version_is_a_duplicate() {
    let (mut writer, reader) = leased(10);
    assert_eq!(writer.apply([deleted(&pod("p"), 10)]), Ok(0));
    assert_eq!(reader.stats().objects, 4);
}

#[test]
fn event_at_a_version_before_a_later_bookmark_is_out_of_order() {
    let (mut writer, _reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    writer.advance(rv(20), true);
    revoke(&mut writer, &NAMES[2..3]);
    writer.advance(rv(21), true);
    let error = writer.apply([deleted(&pod("s"), 20)]).expect_err("everything up to 21 has been applied");
    assert_eq!((error.rv, error.progress, error.key.as_str()), (rv(20), rv(21), "a/s"));
}

#[test]
fn second_change_of_an_object_at_one_version_is_duplicate() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    assert_eq!(writer.apply([added(&POD, 11)]), Ok(1));
    let mut opened = reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring");
    assert_eq!(writer.apply([deleted(&POD, 11)]), Ok(0));
    assert_eq!(pull_all(&mut opened.cursor).0, [Seen { event_type: Added, rv: 11, pod: POD }]);
}
