//! Several events at one version: an expired etcd lease deletes many objects in one transaction, and upstream reports
//! them one by one (R-VERSION-2). Such a version is not a position.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fixture::{POD, Pod, Seen, WakeCounter, added, deleted, listed, pull_all, ring, rv, seen, told, view};
use crate::cache::{Applied, CacheReader, CacheWriter, Pull, REST_FOLLOWS_WITHIN, Settling, Snapshot, Start, View};
use kubeapi::EventType::{Added, Deleted};
use kubeapi::{Gvr, ResourceVersion};

const NAMES: [&str; 4] = ["p", "q", "r", "s"];

fn pod(name: &'static str) -> Pod {
    Pod { name, ..POD }
}

/// Four objects, listed at 10; all of them are deleted at 20.
fn leased(events: usize) -> (CacheWriter, CacheReader) {
    let objects: Vec<_> = NAMES.into_iter().zip(1..).map(|(name, rv)| (pod(name), rv)).collect();
    listed(ring(events), 10, &objects)
}

fn revoke(writer: &mut CacheWriter, names: &[&'static str]) {
    for name in names {
        assert_eq!(writer.take(deleted(&pod(name), 20)), Ok(Applied::Fresh), "{name}");
    }
}

const ALL_GONE: [&str; 4] = ["DELETED a/p 20", "DELETED a/q 20", "DELETED a/r 20", "DELETED a/s 20"];

#[test]
fn all_events_of_one_version_are_delivered_once() {
    let (mut writer, reader) = leased(10);
    let mut opened = reader.open(Start::After(rv(10)), View::everything()).expect("in the ring");
    revoke(&mut writer, &NAMES);
    assert_eq!(told(&mut opened.cursor), ALL_GONE);
    assert_eq!(told(&mut opened.cursor), Vec::<String>::new());
    assert_eq!(reader.stats().objects, 0);
}

#[test]
fn batch_can_end_between_events_of_one_version() {
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

/// W3: such a watch must not keep an object forever that other watches know to be deleted.
#[test]
fn watch_list_amid_a_version_starts_before_that_version() {
    for narrow in [View::everything(), view("a", "", ""), view("", "app=x", ""), view("", "", "spec.nodeName=n1")] {
        let (mut writer, reader) = leased(10);
        revoke(&mut writer, &NAMES[..2]);
        let mut opened = reader.open(Start::Current, narrow).expect("current");
        let snapshot = opened.snapshot.expect("a state was asked for");
        assert_eq!((snapshot.rv, snapshot.len()), (rv(19), 4));
        revoke(&mut writer, &NAMES[2..]);
        assert_eq!(told(&mut opened.cursor), ALL_GONE);
    }
}

#[test]
fn watch_from_now_amid_a_version_gets_all_its_events() {
    let (mut writer, reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    let mut opened = reader.open_at_end(View::everything());
    revoke(&mut writer, &NAMES[2..]);
    assert_eq!(told(&mut opened.cursor), ALL_GONE);
}

/// Returns the state's version and size, the progress, and every version that has a state.
fn announced(reader: &CacheReader) -> (u64, usize, u64, Vec<u64>) {
    let state = reader.snapshot();
    let versions = (8..24).filter(|version| reader.snapshot_at(rv(*version)).is_some()).collect();
    (state.rv.0, state.len(), reader.progress().rv.0, versions)
}

#[test]
fn version_is_published_when_a_later_version_arrives() {
    let (mut writer, reader) = leased(10);
    assert_eq!(announced(&reader), (10, 4, 10, vec![10]));
    for name in NAMES {
        revoke(&mut writer, &[name]);
        assert_eq!(announced(&reader), (19, 4, 19, (10..20).collect()), "{name}");
        assert_eq!((reader.is_whole(), reader.is_open(rv(20)), reader.is_open(rv(19))), (false, true, false));
    }
    assert_eq!(writer.take(added(&POD, 22)), Ok(Applied::Fresh));
    assert_eq!(announced(&reader), (21, 0, 21, vec![20, 21]), "22 is in doubt now");
    writer.settle();
    assert_eq!(announced(&reader), (22, 1, 22, vec![22]));
}

#[test]
fn only_a_later_bookmark_completes_the_open_version() {
    for (bookmark, expected) in [(19, (19, 4, 19)), (23, (23, 2, 23))] {
        let (mut writer, reader) = leased(10);
        revoke(&mut writer, &NAMES[..2]);
        writer.bookmark(rv(bookmark));
        let (version, objects, progress, _) = announced(&reader);
        assert_eq!((version, objects, progress), expected, "a bookmark at {bookmark}");
        assert_eq!(reader.progress().bookmarks, 1);
    }
}

/// The apiserver sends bookmarks periodically, so also between two of the events.
#[test]
fn bookmark_completes_its_version_only_if_silence_follows() {
    let (mut writer, reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    for (names, silence) in [(&NAMES[..0], Some(REST_FOLLOWS_WITHIN)), (&NAMES[2..3], None)] {
        writer.bookmark(rv(20));
        revoke(&mut writer, names);
        assert_eq!(writer.settles_after(), silence, "and then {names:?}");
        assert_eq!((announced(&reader).0, reader.progress().bookmarks), (19, 0), "and then {names:?}");
    }
    writer.bookmark(rv(20));
    assert_eq!(reader.waits_for_whole(rv(20)), Settling::Soon);
    assert_eq!(writer.take(deleted(&pod("p"), 20)), Ok(Applied::Duplicate));
    assert_eq!(writer.settles_after(), None, "another stream tells them from the first");
    writer.bookmark(rv(20));
    writer.settle();
    assert_eq!((announced(&reader).0, reader.progress().bookmarks), (20, 1), "the bookmark goes on to the readers");
    writer.settle();
    assert_eq!(reader.progress().bookmarks, 1);
}

#[test]
fn bookmark_at_a_single_events_version_keeps_settle_delay() {
    let (mut writer, reader) = leased(10);
    revoke(&mut writer, &NAMES[..1]);
    let alone = writer.settles_after();
    writer.bookmark(rv(20));
    assert_eq!((announced(&reader).0, writer.settles_after()), (19, alone));
    writer.settle();
    assert_eq!((announced(&reader).0, reader.progress().bookmarks), (20, 1));
}

#[test]
fn silence_completes_a_version_with_only_one_event() {
    let (mut writer, reader) = leased(10);
    assert_eq!(writer.settles_after(), None, "nothing is open");
    revoke(&mut writer, &NAMES[..1]);
    assert!(writer.settles_after().is_some());
    assert_eq!(reader.waits_for_whole(rv(20)), Settling::Soon);
    revoke(&mut writer, &NAMES[1..2]);
    assert_eq!((writer.settles_after(), reader.waits_for_whole(rv(20))), (None, Settling::WhenToldSo));
    writer.settle();
    assert_eq!(reader.waits_for_whole(rv(20)), Settling::Already);
}

/// A reader that registers before it parks is woken, however the version becomes complete.
#[test]
fn waiting_reader_is_woken_when_the_version_completes() {
    type Settle = fn(&mut CacheWriter);
    let ways: [Settle; 3] =
        [CacheWriter::settle, |writer| writer.advance(rv(20), false), |writer| drop(writer.take(added(&POD, 21)))];
    for settle in ways {
        for waits in [true, false] {
            let (mut writer, reader) = leased(10);
            let mut cursor = reader.open(Start::After(rv(10)), view("b", "", "")).expect("in the ring").cursor;
            revoke(&mut writer, &NAMES[..2]);
            if waits {
                assert_eq!(reader.waits_for_whole(rv(20)), Settling::WhenToldSo);
            }
            let wakes = Arc::<WakeCounter>::default();
            let pull = cursor.pull(1, Some(&wakes.waker()), &mut Vec::new());
            assert!(matches!(pull, Pull::CaughtUp { .. }), "{pull:?}: nothing of its namespace has changed");
            settle(&mut writer);
            assert_eq!(wakes.woken(), usize::from(waits));
        }
    }
}

/// A client that resumes after a version gets only later events, as from upstream. But a reader that disconnected in
/// the middle of the version may be the one that resumes, so then the rest is sent.
#[test]
fn watch_from_open_version_gets_rest_only_if_a_reader_left_amid() {
    let who_left = [("nobody", &[] as &[&str]), ("who had seen none", &[]), ("who had seen one", &ALL_GONE[2..])];
    for (left, rest) in who_left {
        for is_closed in [false, true] {
            let (mut writer, reader) = leased(10);
            let mut cursor = reader.open(Start::After(rv(10)), View::everything()).expect("in the ring").cursor;
            revoke(&mut writer, &NAMES[..2]);
            if left == "who had seen one" {
                cursor.pull(1, None, &mut Vec::new());
            }
            if left != "nobody" {
                drop(cursor);
            }
            if is_closed {
                writer.settle();
            }
            let mut opened = reader.open(Start::After(rv(20)), View::everything()).expect("in the ring");
            revoke(&mut writer, &NAMES[2..]);
            writer.take(added(&POD, 21)).expect("in order");
            let expected = if is_closed { &[] } else { rest };
            assert_eq!(told(&mut opened.cursor), [expected, &["ADDED a/p 21"]].concat(), "{left} left, {is_closed}");
            let mut before = reader.open(Start::After(rv(19)), View::everything()).expect("in the ring");
            assert_eq!(told(&mut before.cursor)[..4], ALL_GONE);
        }
    }
}

/// A reader opened after their version has processed none of it, regardless of the ring's progress.
#[test]
fn reader_opened_after_the_open_version_leaves_no_effect() {
    let (mut writer, reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    drop(reader.open(Start::After(rv(20)), View::everything()).expect("in the ring"));
    let mut opened = reader.open(Start::After(rv(20)), View::everything()).expect("in the ring");
    revoke(&mut writer, &NAMES[2..]);
    assert_eq!(told(&mut opened.cursor), Vec::<String>::new());
}

/// A deleted Event is rarely the only one, because a lease has expired. No bookmark follows, so silence decides.
#[test]
fn deletion_of_an_event_object_waits_longer_to_settle() {
    let moment = |writer: &CacheWriter| writer.settles_after().is_some_and(|lasts| lasts < REST_FOLLOWS_WITHIN);
    let table = [("events", true, false), ("events", false, true), ("pods", true, true)];
    for (resource, goes, soon) in table {
        let (_, reader) = leased(10);
        let gvr = Gvr { resource: resource.into(), ..reader.gvr().clone() };
        let (mut writer, reader) = CacheWriter::new(ring(10), gvr, reader.envelope().clone(), true);
        writer.replace(super::fixture::snapshot(10, &[]));
        writer.take(if goes { deleted(&POD, 11) } else { added(&POD, 11) }).expect("in order");
        assert_eq!(moment(&writer), soon, "{resource}, deleted: {goes}");
        assert_eq!(reader.waits_for_whole(rv(11)), Settling::Soon, "{resource}, deleted: {goes}");
        writer.take(deleted(&pod("other"), 11)).expect("of the same version");
        let rest = Some(REST_FOLLOWS_WITHIN).filter(|_| resource == "events");
        assert_eq!(writer.settles_after(), rest, "{resource}, deleted: {goes}");
    }
}

/// etcd #18089: deletions lost at the boundary of eviction. The store must remove every object, however small the ring.
#[test]
fn deletions_of_one_version_apply_even_above_the_ring_size() {
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

/// For all splits of transactions and all events in between: a reader that resumes from a published version and state
/// converges to the full state.
#[test]
fn resume_from_any_published_version_misses_nothing() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut writer, reader) = listed(ring(1_000), 10, &[]);
        let mut known: Vec<(u64, BTreeMap<String, u64>)> = Vec::new();
        let mut version = 10;
        for _ in 0..random.u32(1..12) {
            version += random.u64(1..4);
            for name in NAMES {
                if random.bool() {
                    continue;
                }
                let is_there = reader.applied().is_some_and(|state| state.iter().any(|o| o.key.name() == name));
                let change = if is_there { deleted(&pod(name), version) } else { added(&pod(name), version) };
                writer.take(change).expect("in order");
                if random.u8(..3) == 0 {
                    let state = reader.snapshot();
                    known.push((state.rv.0, state_of(&state)));
                    if let Some(state) = reader.snapshot_at(reader.progress().rv) {
                        known.push((reader.progress().rv.0, state_of(&state)));
                    }
                }
            }
            match random.u8(..4) {
                0 => writer.settle(),
                1 => writer.advance(rv(version), random.bool()),
                _ => {}
            }
        }
        writer.settle();
        let last = state_of(&reader.snapshot());
        for (from, mut state) in known {
            assert!(state.values().all(|version| *version <= from), "seed {seed}: {state:?} at {from}");
            let mut cursor = reader.open(Start::After(rv(from)), View::everything()).expect("in the ring").cursor;
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

fn state_of(state: &Snapshot) -> BTreeMap<String, u64> {
    state.iter().map(|object| (object.key.to_string(), object.rv.0)).collect()
}

#[test]
fn partly_evicted_version_expires_watches_from_earlier_versions() {
    let (mut writer, reader) = leased(2);
    revoke(&mut writer, &NAMES[..3]);
    assert_eq!(reader.stats().floor, rv(20));
    for after in [10, 19] {
        assert!(reader.open(Start::After(rv(after)), View::everything()).is_err(), "{after}: one deletion is gone");
    }
    let mut opened = reader.open(Start::After(rv(20)), View::everything()).expect("nothing later is missing");
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
            assert_eq!(writer.apply(deleted(&pod(name), 20)), Ok(Applied::Duplicate), "{name}, ring of {events}");
        }
        assert_eq!((reader.stats().events, reader.stats().objects), (before.events, before.objects));
    }
}

#[test]
fn replayed_add_among_deletions_is_duplicate_after_eviction() {
    let (mut writer, reader) = leased(1);
    let created = Pod { name: "x", ..POD };
    assert_eq!(writer.apply(added(&created, 20)), Ok(Applied::Fresh));
    revoke(&mut writer, &NAMES[..1]);
    assert_eq!(writer.apply(added(&created, 20)), Ok(Applied::Duplicate));
    assert_eq!(reader.stats().objects, 4);
}

#[test]
fn event_at_the_list_version_is_a_duplicate() {
    let (mut writer, reader) = leased(10);
    assert_eq!(writer.apply(deleted(&pod("p"), 10)), Ok(Applied::Duplicate));
    assert_eq!(reader.stats().objects, 4);
}

#[test]
fn late_event_after_a_later_bookmark_is_out_of_order() {
    let (mut writer, _reader) = leased(10);
    revoke(&mut writer, &NAMES[..2]);
    writer.bookmark(rv(20));
    writer.settle();
    // The rest of the transaction arrived later than allowed.
    revoke(&mut writer, &NAMES[2..3]);
    writer.bookmark(rv(21));
    let error = writer.apply(deleted(&pod("s"), 20)).expect_err("21 was vouched for");
    assert_eq!((error.rv, error.progress, error.key.as_str()), (rv(20), rv(21), "a/s"));
}

#[test]
fn second_change_of_an_object_at_one_version_is_duplicate() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    assert_eq!(writer.apply(added(&POD, 11)), Ok(Applied::Fresh));
    let mut opened = reader.open(Start::After(rv(10)), View::everything()).expect("in the ring");
    assert_eq!(writer.apply(deleted(&POD, 11)), Ok(Applied::Duplicate));
    assert_eq!(pull_all(&mut opened.cursor).0, [Seen { event_type: Added, rv: 11, pod: POD }]);
}
