//! A state that is confirmed at a version that upstream's watch has not reached yet (R-VERSION-1).

use std::pin::pin;

use futures_util::FutureExt as _;

use super::fixture::{POD, Pod, added, deleted, listed, reported, ring, rv};
use crate::cache::{CacheReader, CacheWriter, CollectionView, WatchStartPosition};

const OTHER: Pod = Pod { name: "q", ..POD };

/// One pod, listed at 10 and confirmed at 15.
fn confirmed() -> (CacheWriter, CacheReader) {
    let (writer, reader) = listed(ring(10), 10, &[(POD, 5)]);
    assert!(reader.confirm(reader.state_id(), rv(15)));
    (writer, reader)
}

/// The version and size of the state that readers get, and the version that open watches have reached.
fn shown(reader: &CacheReader) -> (u64, usize, u64) {
    let current = reader.current().expect("it runs");
    assert_eq!(current.rv, reader.served_version());
    (current.rv.0, current.len(), reader.progress().rv.0)
}

#[test]
fn confirmed_version_advances_state_and_sends_no_events() {
    let (_writer, reader) = confirmed();
    assert_eq!(shown(&reader), (15, 1, 10));
    assert_eq!(reader.applied().map(|state| state.rv), Some(rv(10)), "the stream is where it was");
    assert_eq!([12, 15, 16].map(|at| reader.snapshot_at(rv(at)).is_some()), [false, true, false]);
    for (start, at) in [(WatchStartPosition::Current, 15), (WatchStartPosition::UpstreamProgress, 10)] {
        let opened = reader.open(start, CollectionView::everything()).expect("a state");
        assert_eq!((opened.snapshot.map(|state| state.rv), opened.cursor.start()), (Some(rv(at)), rv(at)));
    }
    assert!(reader.confirm(reader.state_id(), rv(12)), "it is the present state");
    assert_eq!(shown(&reader), (15, 1, 10), "and does not get older");
}

/// An object was created and deleted below the confirmed version; its events arrive late.
#[test]
fn late_events_below_the_confirmed_version_reach_open_watches_only() {
    let (mut writer, reader) = confirmed();
    let mut before =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    let mut with_state =
        reader.open(WatchStartPosition::Current, CollectionView::everything()).expect("a state").cursor;
    let mut resumed =
        reader.open(WatchStartPosition::After(rv(15)), CollectionView::everything()).expect("in the ring").cursor;
    let state_id = reader.state_id();
    for (late, at) in [(added(&OTHER, 12), 12), (deleted(&OTHER, 13), 13)] {
        assert_eq!(writer.apply([late]), Ok(1));
        assert_eq!(shown(&reader), (15, 1, at));
    }
    assert!(!reader.confirm(state_id, rv(20)), "the feed has changed since");
    let mut between = reader.open(WatchStartPosition::Current, CollectionView::everything()).expect("a state").cursor;
    writer.apply([added(&OTHER, 16)]).expect("in order");
    assert_eq!(shown(&reader), (16, 2, 16));
    assert_eq!(reported(&mut before), ["ADDED a/q 12", "DELETED a/q 13", "ADDED a/q 16"]);
    for cursor in [&mut with_state, &mut resumed, &mut between] {
        assert_eq!(reported(cursor), ["ADDED a/q 16"]);
    }
}

#[test]
fn stream_reaching_the_confirmed_version_replaces_confirmation() {
    for at in [15, 20] {
        let (mut writer, reader) = confirmed();
        writer.advance(rv(12), true);
        assert_eq!(shown(&reader), (15, 1, 12));
        writer.advance(rv(at), true);
        assert_eq!(shown(&reader), (at, 1, at));
    }
    let (mut writer, reader) = confirmed();
    writer.replace(super::fixture::snapshot(11, &[]));
    assert_eq!(shown(&reader), (11, 0, 11), "another history");
}

#[test]
fn confirmation_wakes_readers_waiting_for_that_version() {
    let (_writer, reader) = listed(ring(10), 10, &[]);
    let mut states = reader.follow_progress();
    let (mut state, mut stream) = (pin!(states.wait_served(rv(15))), pin!(reader.reached(rv(15))));
    assert!(state.as_mut().now_or_never().is_none());
    assert!(reader.confirm(reader.state_id(), rv(15)));
    assert!(state.as_mut().now_or_never().is_some());
    assert!(stream.as_mut().now_or_never().is_none(), "the stream has not come so far");
}
