//! Table tests of the signs that upstream's storage went back.

use std::sync::Arc;

use super::*;
use crate::cache::{CacheConfig, CacheWriter, ObjectChange};
use crate::reflect::stream::{WatchStreamEnd, decoded};
use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout, ObjectReader, ObjectRevision};
use kubeapi::Gvr;

fn rv(version: u64) -> ResourceVersion {
    ResourceVersion(version)
}

fn item(kind: &str, name: &str, version: u64) -> Result<StreamItem, WatchStreamEnd> {
    let frame = format!(
        r#"{{"type":"{kind}","object":{{"kind":"Pod","apiVersion":"v1","code":{version},"metadata":{{{}}}}}}}"#,
        format_args!(r#""name":"{name}","namespace":"a","resourceVersion":"{version}""#)
    ) + "\n";
    let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default());
    decoded(&reader, frame.into()).map_err(WatchStreamEnd::Failed)
}

fn change(kind: &str, name: &str, version: u64) -> ObjectChange {
    let Ok(StreamItem::Change { change, .. }) = item(kind, name, version) else { panic!("not a change") };
    change
}

fn object(name: &str, version: u64) -> ObjectRevision {
    change("ADDED", name, version).object
}

fn snapshot(at: u64, objects: &[(&str, u64)]) -> FeedSnapshot {
    FeedSnapshot::from_objects(rv(at), objects.iter().map(|(name, version)| object(name, *version)))
}

fn cache() -> (CacheWriter, CacheReader) {
    let gvr = Gvr { group: "".into(), version: "v1".into(), resource: "pods".into() };
    CacheWriter::new(
        CacheConfig::default(),
        gvr,
        FrameEnvelope::new(FeedEncoding::Json, "v1", "Pod", JsonLayout::BuiltIn),
        true,
    )
}

fn apply(writer: &mut CacheWriter, kind: &str, name: &str, version: u64) {
    assert_eq!(writer.apply([change(kind, name, version)]), Ok(1), "{kind} {name} {version}");
}

type Listed = (u64, &'static [(&'static str, u64)]);

#[test]
fn list_inconsistent_with_known_state_is_another_history() {
    use HistoryComparison::{Later, Other, Same};
    const KNOWN: Listed = (20, &[("p", 12), ("q", 18)]);
    let cases: [(&str, Listed, HistoryComparison); 14] = [
        ("nothing has happened", (20, &[("p", 12), ("q", 18)]), Same),
        ("nothing has happened to these", (30, &[("p", 12), ("q", 18)]), Same),
        ("a change", (30, &[("p", 21), ("q", 18)]), Later),
        ("a creation", (30, &[("p", 12), ("q", 18), ("r", 21)]), Later),
        ("a deletion", (30, &[("q", 18)]), Later),
        ("everything is gone", (30, &[]), Later),
        ("behind, and the same", (19, &[("p", 12), ("q", 18)]), Other),
        ("behind", (15, &[("p", 12)]), Other),
        ("it has passed, and a change is undone", (30, &[("p", 12), ("q", 14)]), Other),
        ("it has passed, and another change took its version", (30, &[("p", 18), ("q", 18)]), Other),
        ("it has passed, and a deletion is undone", (30, &[("p", 12), ("q", 18), ("r", 11)]), Other),
        ("it has come to the same version", (20, &[("p", 12), ("q", 17)]), Other),
        ("it has come to the same version without one", (20, &[("p", 12)]), Other),
        ("it has come to the same version with one more", (20, &[("p", 12), ("q", 18), ("r", 20)]), Other),
    ];
    let known = snapshot(KNOWN.0, KNOWN.1);
    for (what, (at, objects), expected) in cases {
        let listed = snapshot(at, objects);
        assert_eq!(compare(&known, object_versions(&listed), listed.rv), expected, "{what}");
    }
}

/// The first item of a stream that was opened right before our newest change.
#[test]
fn first_event_of_reopened_watch_proves_or_refutes_history() {
    let (mut writer, reader) = cache();
    writer.replace(snapshot(10, &[("p", 5), ("q", 7)]));
    let of_a_state = reader.resume_marker().expect("there are objects");
    assert_eq!(of_a_state.before(), rv(6));
    apply(&mut writer, "MODIFIED", "p", 12);
    apply(&mut writer, "DELETED", "q", 14);
    apply(&mut writer, "ADDED", "r", 14);
    writer.advance(rv(20), true);
    let of_events = reader.resume_marker().expect("there are events");
    assert_eq!(of_events.before(), rv(13));
    for (resume_marker, kind, name, version, expected) in [
        (&of_events, "DELETED", "q", 14, true),
        (&of_events, "ADDED", "r", 14, true),
        (&of_events, "MODIFIED", "r", 14, true),
        (&of_events, "MODIFIED", "q", 14, false),
        (&of_events, "DELETED", "r", 14, false),
        (&of_events, "DELETED", "s", 14, false),
        (&of_events, "ADDED", "p", 14, false),
        (&of_events, "ADDED", "r", 15, false),
        (&of_events, "ADDED", "s", 30, false),
        (&of_events, "BOOKMARK", "", 30, false),
        (&of_a_state, "ADDED", "q", 7, true),
        (&of_a_state, "DELETED", "unknown", 7, true),
        (&of_a_state, "DELETED", "unknown", 8, false),
        (&of_a_state, "ADDED", "q", 8, false),
        (&of_a_state, "ADDED", "p", 7, false),
    ] {
        let first = item(kind, name, version).expect("no error");
        assert_eq!(is_repeated(resume_marker, &first), expected, "{kind} {name} {version}");
    }
}

#[test]
fn repeated_events_after_resume_are_duplicates() {
    let (mut writer, reader) = cache();
    writer.replace(snapshot(10, &[("p", 5)]));
    let again = |writer: &mut CacheWriter, kind, name, version| writer.apply([change(kind, name, version)]);
    assert_eq!(again(&mut writer, "ADDED", "p", 5), Ok(0), "the newest object of a state");
    assert_eq!(again(&mut writer, "DELETED", "gone", 8), Ok(0), "what went before it was listed");
    apply(&mut writer, "MODIFIED", "p", 12);
    writer.advance(rv(15), true);
    assert_eq!(again(&mut writer, "MODIFIED", "p", 12), Ok(0), "the newest event");
    assert_eq!(reader.progress().rv, rv(15));
}

#[test]
fn resume_marker_exists_only_for_a_nonempty_unsure_feed() {
    let (mut writer, reader) = cache();
    assert_eq!(reader.resume_marker(), None);
    writer.replace(snapshot(10, &[("p", 5)]));
    let mut continuity = HistoryContinuity::default();
    assert_eq!(continuity.resume_marker(&reader), None);
    continuity.connection_lost();
    assert!(continuity.resume_marker(&reader).is_some());
    continuity = HistoryContinuity::Unknown;
    continuity.connection_lost();
    assert_eq!(continuity, HistoryContinuity::Unknown, "what has left upstream's window does not come back");
    assert_eq!(continuity.resume_marker(&reader), None);
}
