//! W3–W5 and W15: type, content and bytes of a watch's events (R-EVENT-2).

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::fixture::{
    POD, Pod, Seen, added, change, deleted, listed, pods, pull_all, read_frame, reported, ring, rv, seen, view,
};
use crate::cache::event::DerivedFrameAccounts;
use crate::cache::{
    CacheReader, CollectionView, FeedCursor, FeedEvent, ObjectChange, PullResult, WatchStartPosition, watch_event_type,
};
use crate::wire::{FeedEncoding, ObjectRenderer, Representation};
use base::MemoryAccount;
use kubeapi::EventType::{self, Added, Deleted, Modified};
use kubeapi::MetaApiVersion;

#[test]
fn event_type_depends_on_match_before_and_after_the_change() {
    for (before, now, expected) in
        [(false, false, None), (false, true, Some(Added)), (true, true, Some(Modified)), (true, false, Some(Deleted))]
    {
        assert_eq!(watch_event_type(before, now), expected, "{before} {now}");
    }
}

fn open(reader: &CacheReader, after: u64, view: CollectionView) -> FeedCursor {
    reader.open(WatchStartPosition::After(rv(after)), view).expect("in the ring").cursor
}

fn pull_one(cursor: &mut FeedCursor) -> Bytes {
    let mut batch = Vec::new();
    cursor.pull(1, None, &mut batch);
    batch.pop().expect("an event is due")
}

const INSIDE: Pod = Pod { note: 1, ..POD };
const CHANGED: Pod = Pod { note: 2, ..POD };
const OUTSIDE: Pod = Pod { app: "y", note: 3, ..POD };
const OUTSIDE_TOO: Pod = Pod { app: "", note: 4, ..POD };

/// One object through all transitions of the table, as seen by three kinds of readers.
#[test]
fn selector_transitions_have_correct_type_content_and_version() {
    let (mut writer, reader) = listed(ring(100), 10, &[]);
    let mut cursors = ["", "app=x", "app!=x"].map(|labels| open(&reader, 10, view("", labels, "")));
    let seen = |event_type, rv, pod| Some(Seen { event_type, rv, pod });
    // Upstream's change, then the events for all, app=x, app!=x.
    for (event_type, pod, at, expected) in [
        (Added, OUTSIDE, 11, [seen(Added, 11, OUTSIDE), None, seen(Added, 11, OUTSIDE)]),
        (Modified, OUTSIDE_TOO, 12, [seen(Modified, 12, OUTSIDE_TOO), None, seen(Modified, 12, OUTSIDE_TOO)]),
        (Modified, INSIDE, 13, [seen(Modified, 13, INSIDE), seen(Added, 13, INSIDE), seen(Deleted, 13, OUTSIDE_TOO)]),
        (Modified, CHANGED, 14, [seen(Modified, 14, CHANGED), seen(Modified, 14, CHANGED), None]),
        (Modified, OUTSIDE, 15, [seen(Modified, 15, OUTSIDE), seen(Deleted, 15, CHANGED), seen(Added, 15, OUTSIDE)]),
        (Deleted, OUTSIDE, 16, [seen(Deleted, 16, OUTSIDE), None, seen(Deleted, 16, OUTSIDE)]),
        (Added, INSIDE, 17, [seen(Added, 17, INSIDE), seen(Added, 17, INSIDE), None]),
        (Deleted, INSIDE, 18, [seen(Deleted, 18, INSIDE), seen(Deleted, 18, INSIDE), None]),
    ] {
        assert_eq!(writer.apply([change(event_type, &pod, at)]), Ok(1));
        for (cursor, expected) in cursors.iter_mut().zip(expected) {
            assert_eq!(pull_all(cursor).0, Vec::from_iter(expected), "{at} to {:?}", cursor.view());
        }
    }
}

/// In JSON the number of digits changes; nothing else may.
#[test]
fn leaving_selector_sends_old_content_with_the_new_version() {
    for (was, left) in [(9, 10), (99, 100), (10, 11), (999, 1_000_000)] {
        let (mut writer, reader) = listed(ring(10), 1, &[(INSIDE, 1)]);
        writer.apply([change(Modified, &CHANGED, was)]).expect("in order");
        let mut cursor = open(&reader, was, view("", "app=x", ""));
        writer.apply([change(Modified, &OUTSIDE, left)]).expect("in order");
        assert_eq!(pull_one(&mut cursor), CHANGED.frame(Deleted, left));
    }
}

#[test]
fn node_change_is_deleted_on_old_node_and_added_on_new_node() {
    let (mut writer, reader) = listed(ring(10), 10, &[(INSIDE, 5)]);
    let moved = Pod { node: "n2", note: 7, ..INSIDE };
    let mut nodes = ["n1", "n2", ""].map(|node| open(&reader, 10, view("", "", &format!("spec.nodeName={node}"))));
    writer.apply([change(Modified, &moved, 11)]).expect("in order");
    let reported: Vec<_> = nodes.iter_mut().map(|cursor| pull_all(cursor).0).collect();
    let gone = Seen { event_type: Deleted, rv: 11, pod: INSIDE };
    let come = Seen { event_type: Added, rv: 11, pod: moved };
    assert_eq!(reported, [vec![gone], vec![come], vec![]]);
}

/// #76624: a watch cache that skipped deletions of unknown objects.
#[test]
fn deletion_of_an_unknown_object_reaches_matching_watches() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut cursors = ["", "app=x", "app=y"].map(|labels| open(&reader, 10, view("", labels, "")));
    assert_eq!(writer.apply([deleted(&POD, 11)]), Ok(1));
    let reported = cursors.each_mut().map(reported);
    assert_eq!(reported, [vec!["DELETED a/p 11"], vec!["DELETED a/p 11"], vec![]]);
    assert_eq!((reader.stats().objects, reader.stats().object_bytes), (0, 0));
}

#[test]
fn event_type_is_corrected_from_the_cached_state() {
    let (mut writer, reader) = listed(ring(10), 10, &[(INSIDE, 5)]);
    let other = Pod { name: "q", ..INSIDE };
    let mut cursor = open(&reader, 10, CollectionView::everything());
    writer.apply([added(&CHANGED, 11)]).expect("in order");
    writer.apply([change(Modified, &other, 12)]).expect("in order");
    assert_eq!(pull_one(&mut cursor), CHANGED.frame(Modified, 11));
    assert_eq!(pull_one(&mut cursor), other.frame(Added, 12));
}

#[test]
fn change_without_a_frame_is_encoded_from_its_object() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut cursor = open(&reader, 10, CollectionView::everything());
    for (event_type, pod, at) in [(Added, INSIDE, 11), (Modified, CHANGED, 12), (Deleted, CHANGED, 13)] {
        let change = ObjectChange { frame: None, ..change(event_type, &pod, at) };
        writer.apply([change]).expect("in order");
        assert_eq!(pull_one(&mut cursor), pod.frame(event_type, at));
    }
}

#[test]
fn upstream_frame_is_forwarded_without_a_copy() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let change = added(&POD, 11);
    let upstream = change.frame.clone().expect("it came in a frame");
    let mut cursors = ["", "app=x", "!gone"].map(|labels| open(&reader, 10, view("", labels, "")));
    writer.apply([change]).expect("in order");
    for cursor in &mut cursors {
        assert_eq!(pull_one(cursor).as_ptr(), upstream.as_ptr());
    }
}

#[test]
fn selector_transition_frames_are_encoded_once_and_shared() {
    let (mut writer, reader) = listed(ring(10), 10, &[(INSIDE, 5)]);
    let mut leaving = ["app=x", "app in (x)", "app,app!=y"].map(|labels| open(&reader, 10, view("", labels, "")));
    let mut entering = ["app=y", "app in (y)", "app!=x"].map(|labels| open(&reader, 10, view("", labels, "")));
    writer.apply([change(Modified, &OUTSIDE, 11)]).expect("in order");
    for (cursors, event_type, pod) in [(&mut leaving, Deleted, INSIDE), (&mut entering, Added, OUTSIDE)] {
        let frames = cursors.each_mut().map(pull_one);
        assert_eq!(seen(&frames[0]), Seen { event_type, rv: 11, pod });
        assert!(frames.iter().all(|frame| frame.as_ptr() == frames[0].as_ptr()), "{event_type} was encoded again");
    }
}

#[test]
fn unknown_fields_survive_reencoding() {
    let known = POD.frame(Added, 11);
    let text = String::from_utf8(known.to_vec()).expect("text");
    let strange = text.replace(
        r#""status":{"phase":"Running"}"#,
        r#""status":{"not":["of",1.50e1,{"this":null}]},"world":"\u003c é""#,
    );
    let read = read_frame(Bytes::from(strange.clone()));
    let (mut writer, cache) = pods(ring(10));
    // Without the frame, so that it is rebuilt from the body.
    writer.apply([ObjectChange { frame: None, ..read }]).expect("in order");
    let frame = pull_one(&mut open(&cache, 0, CollectionView::everything()));
    assert_eq!(frame, strange);
}

#[test]
fn resumed_watch_reuses_the_encoded_frame() {
    let (mut writer, reader) = listed(ring(10), 10, &[(INSIDE, 5)]);
    writer.apply([change(Modified, &OUTSIDE, 11)]).expect("in order");
    let first = pull_one(&mut open(&reader, 10, view("", "app=x", "")));
    writer.apply([change(Modified, &INSIDE, 12)]).expect("in order");
    let again = pull_one(&mut open(&reader, 10, view("", "app=x", "")));
    assert_eq!((first.as_ptr(), first.len()), (again.as_ptr(), again.len()), "resuming costs no encoding");
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let parts = (0..3_usize, 0..3_usize, 0..1000_u32);
    parts.prop_map(|(app, node, note)| Pod { app: ["x", "y", ""][app], node: ["n1", "n2", ""][node], note, ..POD })
}

proptest! {
    /// A selector and its negation together see both sides of each change.
    #[test]
    fn selector_and_its_negation_together_see_every_change(before: Option<bool>, pods in [any_pod(), any_pod()]) {
        let [was, is] = pods;
        let (listing, event_type) = match before {
            None => (vec![], Added),
            Some(true) => (vec![(was, 5)], Modified),
            Some(false) => (vec![(was, 5)], Deleted),
        };
        let (mut writer, reader) = listed(ring(10), 10, &listing);
        let mut sides = ["app=x", "app!=x"].map(|labels| open(&reader, 10, view("", labels, "")));
        let reported_of = if event_type == Deleted { was } else { is };
        writer.apply([change(event_type, &reported_of, 11)]).expect("in order");
        let seen = sides.iter_mut().flat_map(|side| pull_all(side).0);
        let reported: Vec<EventType> = seen.map(|seen| seen.event_type).collect();
        let crosses = event_type == Modified && (was.app == "x") != (is.app == "x");
        let mut expected = if crosses { vec![Added, Deleted] } else { vec![event_type] };
        if crosses && was.app == "x" {
            expected.reverse();
        }
        prop_assert_eq!(reported, expected);
    }
}

/// Returns the types of the events that a reader receives, joined.
fn types(cursor: &mut FeedCursor, at: u64) -> String {
    let mut batch = Vec::new();
    while let PullResult::Frames { .. } = cursor.pull(1, None, &mut batch) {}
    let PullResult::CaughtUp { progress } = cursor.pull(1, None, &mut batch) else { panic!("all events are cached") };
    assert_eq!(progress.rv, rv(at), "an event that is not sent is passed");
    let of_frame =
        |frame: &Bytes| serde_json::from_slice::<serde_json::Value>(frame).expect("one event")["type"].clone();
    batch.iter().map(|frame| of_frame(frame).as_str().expect("a type").to_owned()).collect()
}

/// Metadata shows no node. Readers of all fields see every change.
#[test]
fn reader_that_leaves_fields_out_receives_only_events_that_show_a_change() {
    const MOVED: Pod = Pod { node: "n2", ..INSIDE };
    let (mut writer, reader) = listed(ring(100), 1, &[(INSIDE, 1)]);
    let metadata = Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1);
    let metadata = ObjectRenderer::derived(metadata, reader.envelope(), 37).expect("metadata of every kind");
    let reduced = |renderer: &ObjectRenderer| renderer.clone().with_fields_of(renderer.representation().reduced());
    let (full, on_n2) = (reader.verbatim().clone(), view("", "", "spec.nodeName=n2"));
    let all = CollectionView::everything;
    let mut cursors = [
        (all(), full.clone()),
        (all(), reduced(&full)),
        (all(), metadata.clone()),
        (all(), reduced(&metadata)),
        (on_n2, reduced(&metadata)),
    ]
    .map(|(view, renderer)| open(&reader, 1, view).rendered_by(renderer));
    for (event_type, pod, at, expected) in [
        // The version has more digits.
        (Modified, INSIDE, 10, ["MODIFIED", "", "MODIFIED", "", ""]),
        (Modified, MOVED, 11, ["MODIFIED", "MODIFIED", "MODIFIED", "", "ADDED"]),
        (Modified, MOVED, 12, ["MODIFIED", "", "MODIFIED", "", ""]),
        (Modified, INSIDE, 13, ["MODIFIED", "MODIFIED", "MODIFIED", "", "DELETED"]),
        (Modified, CHANGED, 14, ["MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", ""]),
        (Deleted, CHANGED, 15, ["DELETED", "DELETED", "DELETED", "DELETED", ""]),
        (Added, CHANGED, 16, ["ADDED", "ADDED", "ADDED", "ADDED", ""]),
    ] {
        writer.apply([change(event_type, &pod, at)]).expect("in order");
        assert_eq!(cursors.each_mut().map(|cursor| types(cursor, at)), expected, "{at}");
    }
    // A reader that comes later gets the same events, and none is compared again.
    let event = reader.events().into_iter().find(|event| event.rv == rv(12)).expect("in the ring");
    let made = DerivedFrameAccounts { bytes: Arc::default(), account: MemoryAccount::new() };
    assert_eq!(event.frame_as(Modified, &reduced(&full), &made).expect("no refusal"), None);
    assert_eq!(made.account.bytes(), 0, "the decision was kept with the event");
    // An event whose previous state is unknown is sent.
    let frame = INSIDE.frame(Modified, 20);
    let unknown = FeedEvent::new(1, Modified, Arc::new(INSIDE.object(20)), None, frame.clone(), Instant::now());
    assert_eq!(unknown.frame_as(Modified, &reduced(&full), &made).expect("no refusal"), Some(frame));
}
