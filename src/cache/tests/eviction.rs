//! Eviction from the ring: its conditions, and its effect on readers.

use std::time::Duration;

use tokio::time::advance;

use super::fixture::{POD, Pod, added, deleted, listed, read_frame, reported, ring, rv, short_lanes, snapshot, view};
use crate::cache::{CacheConfig, CacheReader, CacheWriter, CollectionView, FeedEvent, WatchStartPosition};
use kubeapi::EventType::{Added, Deleted};

fn changed(writer: &mut CacheWriter, version: u64) {
    writer.apply([added(&POD, version)]).expect("in order");
}

fn open(reader: &CacheReader, after: u64) -> Result<Vec<String>, u64> {
    let opened = reader.open(WatchStartPosition::After(rv(after)), CollectionView::everything());
    opened.map(|mut opened| reported(&mut opened.cursor)).map_err(|too_old| too_old.floor.0)
}

const AGE: Duration = Duration::from_secs(60);

fn aging() -> CacheConfig {
    CacheConfig { window_age_max: AGE, ..short_lanes() }
}

#[tokio::test(start_paused = true)]
async fn events_are_evicted_only_after_the_maximum_age() {
    let (mut writer, reader) = listed(aging(), 10, &[]);
    changed(&mut writer, 11);
    advance(AGE).await;
    changed(&mut writer, 12);
    assert_eq!(reader.stats().events, 2, "exactly as old as it may be");
    assert_eq!(open(&reader, 10).map(|reported| reported.len()), Ok(2));
    advance(Duration::from_millis(1)).await;
    changed(&mut writer, 13);
    assert_eq!((reader.stats().events, reader.stats().floor), (2, rv(11)));
    assert_eq!(open(&reader, 10), Err(11));
    assert_eq!(open(&reader, 11), Ok(vec!["MODIFIED a/p 12".to_owned(), "MODIFIED a/p 13".to_owned()]));
}

/// A quiet resource only learns from bookmarks that its events are too old.
#[tokio::test(start_paused = true)]
async fn bookmark_evicts_events_above_the_maximum_age() {
    for announce in [false, true] {
        let (mut writer, reader) = listed(aging(), 10, &[]);
        changed(&mut writer, 11);
        advance(AGE * 2).await;
        writer.advance(rv(30), announce);
        assert_eq!((reader.stats().events, reader.stats().event_bytes), (0, 0));
        assert_eq!((reader.stats().floor, reader.stats().progress), (rv(11), rv(30)));
        assert_eq!(open(&reader, 10), Err(11), "oldest - 1, of a ring that is empty");
        for after in [11, 20, 30, 31] {
            assert_eq!(open(&reader, after), Ok(vec![]), "after {after}");
        }
        changed(&mut writer, 31);
        assert_eq!(open(&reader, 11), Ok(vec!["MODIFIED a/p 31".to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_aged_out_events_expires() {
    let (mut writer, reader) = listed(aging(), 10, &[]);
    let mut stalled =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    let mut current =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    changed(&mut writer, 11);
    assert_eq!(reported(&mut current), ["ADDED a/p 11"]);
    advance(AGE * 2).await;
    writer.advance(rv(12), true);
    assert_eq!(reported(&mut stalled), ["expired 11"]);
    assert_eq!(reported(&mut current), Vec::<String>::new());
}

#[test]
fn window_bytes_limit_evicts_events() {
    // The charge of an event with a previous object.
    let one = {
        let (mut writer, reader) = listed(ring(1), 10, &[(POD, 10)]);
        changed(&mut writer, 11);
        reader.stats().event_bytes
    };
    let config = CacheConfig { window_bytes_max: 3 * one, ..short_lanes() };
    let (mut writer, reader) = listed(config, 10, &[(POD, 10)]);
    for version in 11..30 {
        changed(&mut writer, version);
        let stats = reader.stats();
        assert!(stats.event_bytes <= 3 * one, "{stats:?}");
        assert_eq!(stats.events, usize::try_from(version - 10).expect("small").min(3));
    }
    assert_eq!(reader.stats().floor, rv(26));
}

/// Current readers still get it. Otherwise an object above the limit would end every watch.
#[test]
fn event_above_the_byte_limit_is_cached_alone() {
    let config = CacheConfig { window_bytes_max: 1, ..short_lanes() };
    let (mut writer, reader) = listed(config, 10, &[]);
    let mut opened = reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring");
    for version in 11..14 {
        changed(&mut writer, version);
        assert_eq!((reader.stats().events, reader.stats().floor), (1, rv(version - 1)));
        assert_eq!(reported(&mut opened.cursor).len(), 1);
    }
}

#[test]
fn quiet_lane_reader_survives_eviction_of_other_lanes_events() {
    let quiet = Pod { namespace: "b", node: "n2", ..POD };
    let (mut writer, reader) = listed(ring(2), 10, &[(quiet, 4)]);
    let mut readers = [
        view("b", "", ""),
        view("b", "", "metadata.name=p"),
        view("", "", "spec.nodeName=n2"),
        view("", "app=x", "spec.nodeName=n2"),
        // These follow all events, regardless of their selectors.
        CollectionView::everything(),
        view("", "", "spec.nodeName!=n1"),
    ]
    .map(|view| reader.open(WatchStartPosition::After(rv(10)), view).expect("in the ring").cursor);
    for version in 11..20 {
        changed(&mut writer, version);
    }
    writer.apply([deleted(&quiet, 20)]).expect("in order");
    let reported = readers.each_mut().map(reported);
    for (narrow, reported) in reported[..4].iter().enumerate() {
        assert_eq!(*reported, ["DELETED b/p 20"], "reader {narrow}");
    }
    for reported in &reported[4..] {
        assert_eq!(*reported, ["expired 18"]);
    }
}

#[test]
fn quiet_lane_reader_expires_when_its_own_events_are_evicted() {
    let quiet = Pod { namespace: "b", ..POD };
    let (mut writer, reader) = listed(ring(2), 10, &[(quiet, 4)]);
    let open = || reader.open(WatchStartPosition::After(rv(10)), view("b", "", "")).expect("in the ring").cursor;
    let (mut stalled, mut current) = (open(), open());
    writer.apply([deleted(&quiet, 11)]).expect("in order");
    assert_eq!(reported(&mut current), ["DELETED b/p 11"]);
    changed(&mut writer, 12);
    changed(&mut writer, 13);
    assert_eq!(reported(&mut stalled), ["expired 11"]);
    assert_eq!(reported(&mut current), Vec::<String>::new());
    writer.apply([added(&quiet, 14)]).expect("in order");
    assert_eq!(reported(&mut current), ["ADDED b/p 14"]);
}

#[tokio::test(start_paused = true)]
async fn accounting_returns_to_zero_after_delete_and_eviction() {
    let (mut writer, reader) = listed(aging(), 10, &[]);
    let names = ["p", "q", "r", "s"];
    for (name, version) in names.into_iter().zip(11..) {
        writer.apply([added(&Pod { name, ..POD }, version)]).expect("in order");
    }
    let full = reader.stats();
    assert_eq!((full.objects, full.events), (4, 4));
    let bodies = names.into_iter().zip(11..).map(|(name, rv)| Pod { name, ..POD }.body(rv).len());
    assert_eq!(full.object_bytes, bodies.sum::<usize>());
    for (name, version) in names.into_iter().zip(15..) {
        writer.apply([deleted(&Pod { name, ..POD }, version)]).expect("in order");
    }
    assert_eq!((reader.stats().objects, reader.stats().object_bytes), (0, 0));
    let frames = names.into_iter().zip(11..).flat_map(|(name, rv)| {
        let pod = Pod { name, ..POD };
        [pod.frame(Added, rv).len(), pod.frame(Deleted, rv + 4).len()]
    });
    assert!(reader.stats().event_bytes >= frames.sum::<usize>() + 8 * size_of::<FeedEvent>());
    advance(AGE * 2).await;
    writer.advance(rv(20), false);
    let empty = reader.stats();
    assert_eq!((empty.objects, empty.object_bytes, empty.events, empty.event_bytes), (0, 0, 0, 0));
}

#[test]
fn relist_resets_object_and_event_accounting() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5)]);
    changed(&mut writer, 11);
    let other = Pod { name: "q", note: 12_345, ..POD };
    writer.replace(snapshot(20, &[(other, 19)]));
    let stats = reader.stats();
    assert_eq!((stats.objects, stats.object_bytes), (1, other.body(19).len()));
    assert_eq!((stats.events, stats.event_bytes, stats.lanes), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn window_span_is_time_between_first_and_last_event() {
    let (mut writer, reader) = listed(aging(), 10, &[]);
    assert!(reader.stats().span_seconds.abs() < f64::EPSILON);
    changed(&mut writer, 11);
    advance(Duration::from_secs(7)).await;
    changed(&mut writer, 12);
    advance(Duration::from_secs(5)).await;
    assert!((reader.stats().span_seconds - 7.0).abs() < 1e-9, "{}", reader.stats().span_seconds);
}

/// Old bodies live only as long as they are referenced.
#[tokio::test(start_paused = true)]
async fn evicted_events_release_their_bodies() {
    let (mut writer, reader) = listed(aging(), 10, &[]);
    let mut narrow = reader.open(WatchStartPosition::After(rv(10)), view("a", "", "")).expect("in the ring").cursor;
    let upstream = POD.frame(Added, 11);
    writer.apply([read_frame(upstream.clone())]).expect("in order");
    writer.apply([deleted(&POD, 12)]).expect("in order");
    assert!(!upstream.is_unique(), "the ring has it");
    assert_eq!(reported(&mut narrow).len(), 2);
    advance(AGE * 2).await;
    writer.advance(rv(20), false);
    assert!(upstream.is_unique(), "neither store nor ring nor a lane has it");
}
