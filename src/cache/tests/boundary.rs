//! W6–W8: the versions that a watch may start from, and its first events.

use super::fixture::{POD, Pod, added, deleted, listed, pull_all, reported, ring, rv, snapshot, view};
use crate::cache::{CacheConfig, CacheReader, CacheWriter, CollectionView, PullResult, WatchStartPosition};
use kubeapi::ResourceVersion;

/// Returns the events of a watch from `after`, or the error if it cannot be opened.
fn from(reader: &CacheReader, after: u64) -> Vec<String> {
    match reader.open(WatchStartPosition::After(rv(after)), CollectionView::everything()) {
        Ok(mut opened) => reported(&mut opened.cursor),
        Err(too_old) => vec![format!("too old: {}, at least {}", too_old.requested, too_old.floor)],
    }
}

/// Creates one object at each version in `at`.
fn creating(config: CacheConfig, base: u64, at: &[u64]) -> (CacheWriter, CacheReader) {
    let (mut writer, reader) = listed(config, base, &[]);
    for (name, version) in ["p", "q", "r", "s", "x", "y"].into_iter().zip(at) {
        writer.apply([added(&Pod { name, ..POD }, *version)]).expect("in order");
    }
    (writer, reader)
}

#[test]
fn watch_starts_around_ring_bounds_get_exactly_later_events() {
    // Four events, three of which fit: oldest 12, newest 14.
    let (_writer, reader) = creating(ring(3), 10, &[11, 12, 13, 14]);
    let (q, r, s) = ("ADDED a/q 12", "ADDED a/r 13", "ADDED a/s 14");
    for (start, after, expected) in [
        ("oldest - 2", 10, vec!["too old: 10, at least 11"]),
        ("oldest - 1", 11, vec![q, r, s]),
        ("oldest", 12, vec![r, s]),
        ("newest - 1", 13, vec![s]),
        ("newest", 14, vec![]),
        ("newest + 1", 15, vec![]),
        ("zero, which no door lets through", 0, vec!["too old: 0, at least 11"]),
    ] {
        assert_eq!(from(&reader, after), expected, "{start}");
    }
}

#[test]
fn watch_with_empty_ring_starts_at_the_list_version() {
    let (mut writer, reader) = listed(ring(3), 10, &[(POD, 4)]);
    assert_eq!(from(&reader, 8), ["too old: 8, at least 10"]);
    assert_eq!(from(&reader, 9), ["too old: 9, at least 10"], "what happened at 10 is not known");
    for after in [10, 11] {
        let mut opened = reader
            .open(WatchStartPosition::After(rv(after)), CollectionView::everything())
            .expect("nothing is missing");
        assert_eq!(reported(&mut opened.cursor), Vec::<String>::new());
        drop(opened);
    }
    let mut opened =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("nothing is missing");
    writer.apply([deleted(&POD, 11)]).expect("in order");
    assert_eq!(reported(&mut opened.cursor), ["DELETED a/p 11"], "the first event after the list");
}

#[test]
fn unlisted_feed_has_an_empty_history_from_version_zero() {
    let (_writer, reader) = super::fixture::pods(ring(3));
    assert_eq!(reader.stats().floor, rv(0));
    assert_eq!(from(&reader, 0), Vec::<String>::new());
}

#[test]
fn watch_can_start_at_versions_between_events() {
    let (_writer, reader) = creating(ring(2), 10, &[20, 30, 40]);
    for (after, expected) in [
        (19, vec!["too old: 19, at least 20"]),
        (20, vec!["ADDED a/q 30", "ADDED a/r 40"]),
        (25, vec!["ADDED a/q 30", "ADDED a/r 40"]),
        (29, vec!["ADDED a/q 30", "ADDED a/r 40"]),
        (30, vec!["ADDED a/r 40"]),
        (39, vec!["ADDED a/r 40"]),
    ] {
        assert_eq!(from(&reader, after), expected, "after {after}");
    }
}

#[test]
fn upstream_bookmark_does_not_move_the_oldest_start() {
    let (mut writer, reader) = listed(ring(2), 10, &[]);
    writer.advance(rv(50), true);
    for after in [10, 30, 50] {
        assert_eq!(from(&reader, after), Vec::<String>::new(), "after {after}");
    }
    assert_eq!(from(&reader, 9), ["too old: 9, at least 10"]);
    assert_eq!(reader.stats().floor, rv(10));
}

/// etcd #20221 sent old events, and bookmarks, to watches from the future.
#[test]
fn watch_from_a_future_version_gets_no_older_events() {
    let (mut writer, reader) = creating(ring(10), 10, &[11, 12]);
    let mut opened =
        reader.open(WatchStartPosition::After(rv(14)), CollectionView::everything()).expect("the future is no error");
    assert_eq!(reported(&mut opened.cursor), Vec::<String>::new());
    for (name, version) in [("r", 13), ("s", 14), ("x", 15), ("y", 16)] {
        writer.apply([added(&Pod { name, ..POD }, version)]).expect("in order");
    }
    assert_eq!(reported(&mut opened.cursor), ["ADDED a/x 15", "ADDED a/y 16"]);
    assert_eq!(opened.cursor.start(), rv(14));
}

#[test]
fn watch_from_a_future_version_expires_after_eviction() {
    let (mut writer, reader) = creating(ring(2), 10, &[11]);
    let mut opened =
        reader.open(WatchStartPosition::After(rv(99)), CollectionView::everything()).expect("the future is no error");
    for version in 12..16 {
        writer.apply([added(&POD, version)]).expect("in order");
    }
    // No event that it wants is missing, but unprocessed events were evicted, so 410 is the safe result.
    assert_eq!(reported(&mut opened.cursor), ["expired 13"]);
}

#[test]
fn expired_reader_receives_no_further_events() {
    let (mut writer, reader) = creating(ring(2), 10, &[]);
    let mut opened = reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring");
    for version in 11..=13 {
        writer.apply([added(&POD, version)]).expect("in order");
    }
    for _ in 0..2 {
        assert_eq!(pull_all(&mut opened.cursor), (vec![], PullResult::Expired { oldest: rv(11) }));
    }
    writer.apply([added(&POD, 14)]).expect("in order");
    assert_eq!(pull_all(&mut opened.cursor), (vec![], PullResult::Expired { oldest: rv(12) }));
}

/// etcd #18089 and #19179 lost deletions here.
#[test]
fn reader_at_the_ring_edge_loses_no_deletion() {
    let (mut writer, reader) = listed(ring(2), 10, &[(POD, 4), (Pod { name: "q", ..POD }, 5)]);
    let mut opened = reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring");
    writer.apply([deleted(&POD, 11)]).expect("in order");
    writer.apply([deleted(&Pod { name: "q", ..POD }, 12)]).expect("in order");
    let mut batch = Vec::new();
    assert!(matches!(opened.cursor.pull(1, None, &mut batch), PullResult::Frames { last: ResourceVersion(11), .. }));
    // The deletion at 11 leaves the ring. The reader is just past it; its next event is the one at 12.
    writer.apply([added(&POD, 13)]).expect("in order");
    assert_eq!(reader.stats().floor, rv(11));
    assert_eq!(reported(&mut opened.cursor), ["DELETED a/q 12", "ADDED a/p 13"]);
}

#[test]
fn relist_expires_all_watches_of_the_old_history() {
    let (mut writer, reader) = creating(ring(10), 10, &[11, 12]);
    let open = |after| {
        reader.open(WatchStartPosition::After(rv(after)), CollectionView::everything()).expect("in the ring").cursor
    };
    let (mut behind, mut at_the_end) = (open(10), open(12));
    let mut narrow = reader.open(WatchStartPosition::Current, view("a", "", "")).expect("current").cursor;
    for cursor in [&mut at_the_end, &mut narrow] {
        assert_eq!(reported(cursor), Vec::<String>::new());
    }
    // Even a history that continues where the old one stopped: the changes in between are unknown (F6).
    let history = reader.history();
    writer.replace(snapshot(12, &[(POD, 11)]));
    assert_ne!(reader.history(), history, "what was learned of the old one says nothing of the new one");
    writer.apply([added(&POD, 13)]).expect("in order");
    for cursor in [&mut behind, &mut at_the_end, &mut narrow] {
        assert_eq!(reported(cursor), ["expired 12"]);
    }
    assert_eq!(from(&reader, 12), ["MODIFIED a/p 13"]);
}

#[test]
fn relist_at_an_older_version_restarts_from_that_version() {
    let (mut writer, reader) = creating(ring(10), 100, &[101]);
    let mut old =
        reader.open(WatchStartPosition::After(rv(101)), CollectionView::everything()).expect("in the ring").cursor;
    writer.replace(snapshot(50, &[(POD, 40)]));
    assert_eq!(reader.progress().rv, rv(50));
    assert_eq!(reader.snapshot().rv, rv(50));
    writer.apply([added(&POD, 51)]).expect("in order");
    assert_eq!(reported(&mut old), ["expired 50"]);
    assert_eq!(from(&reader, 50), ["MODIFIED a/p 51"]);
    // For a watch, a version of the old history lies in the future: it gets nothing, rather than a mixture.
    assert_eq!(from(&reader, 101), Vec::<String>::new());
}

#[test]
fn ended_feed_expires_its_watches() {
    let (writer, reader) = creating(ring(10), 10, &[11]);
    let mut opened = reader.open(WatchStartPosition::After(rv(11)), CollectionView::everything()).expect("in the ring");
    drop(writer);
    assert_eq!(reported(&mut opened.cursor), ["expired 10"]);
    let mut late =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("the ring is still there");
    assert_eq!(reported(&mut late.cursor), ["expired 10"]);
}

#[test]
fn watch_from_now_skips_all_existing_events() {
    for view in [CollectionView::everything(), view("a", "app=x", ""), view("a", "", "metadata.name=p")] {
        let (mut writer, reader) = creating(ring(1), 10, &[11, 12, 13]);
        writer.advance(rv(20), false);
        let mut opened = reader.open_at_end(view);
        assert!(opened.snapshot.is_none());
        assert_eq!(opened.cursor.start(), rv(20));
        assert_eq!(reported(&mut opened.cursor), Vec::<String>::new());
        writer.apply([deleted(&POD, 21)]).expect("in order");
        assert_eq!(reported(&mut opened.cursor), ["DELETED a/p 21"]);
    }
}
