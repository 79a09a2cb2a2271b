//! Hand-written pods in the apiserver's encoding, and a cache for them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Wake, Waker};

use bytes::Bytes;
use serde_json::Value;

use crate::cache::{
    CacheConfig, CacheReader, CacheWriter, CollectionView, FeedCursor, FeedSnapshot, ObjectChange, PullResult,
};
use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout, ObjectReader, ObjectRevision, WatchItem};
use kubeapi::{EventType, FieldSelector, Gvr, LabelSelector, ResourceVersion, SelectableFieldTable, Selector};

/// The attributes that selectors use, and a note that is unique per revision and determines the phase and the label
/// `tier`. Empty texts are absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    pub(crate) app: &'static str,
    pub(crate) node: &'static str,
    pub(crate) note: u32,
}

/// One event as a client decodes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) event_type: EventType,
    pub(crate) rv: u64,
    pub(crate) pod: Pod,
}

/// A pod in namespace `a` that every selector of the tests matches.
pub(crate) const POD: Pod = Pod { namespace: "a", name: "p", app: "x", node: "n1", note: 0 };

const HEAD: &str = r#"{"kind":"Pod","apiVersion":"v1","#;

impl Pod {
    pub(crate) fn key(&self) -> String {
        if self.namespace.is_empty() { self.name.to_owned() } else { format!("{}/{}", self.namespace, self.name) }
    }

    /// Alternates with each revision.
    pub(crate) fn phase(&self) -> &'static str {
        ["Running", "Pending"][self.note as usize % 2]
    }

    /// A label that is added and removed.
    pub(crate) fn tier(&self) -> &'static str {
        ["", "front", "back", "front"][self.note as usize % 4]
    }

    /// A list item without its opening brace, which is the body in the cache.
    pub(crate) fn body(&self, rv: u64) -> String {
        let Self { namespace, name, app, node, note } = self;
        let namespace = if namespace.is_empty() { String::new() } else { format!(r#","namespace":"{namespace}""#) };
        let label = |key, value: &str| Some(format!(r#""{key}":"{value}""#)).filter(|_| !value.is_empty());
        let labels: Vec<_> = [label("app", app), label("tier", self.tier())].into_iter().flatten().collect();
        let labels = if labels.is_empty() { String::new() } else { format!(r#","labels":{{{}}}"#, labels.join(",")) };
        let node = if node.is_empty() { String::new() } else { format!(r#","nodeName":"{node}""#) };
        let annotations = format!(r#","annotations":{{"note":"{note}"}}"#);
        let metadata = format!(r#""name":"{name}"{namespace},"resourceVersion":"{rv}"{labels}{annotations}"#);
        format!(
            r#""metadata":{{{metadata}}},"spec":{{"containers":[]{node}}},"status":{{"phase":"{}"}}}}"#,
            self.phase()
        )
    }

    pub(crate) fn frame(&self, event_type: EventType, rv: u64) -> Bytes {
        format!("{{\"type\":\"{event_type}\",\"object\":{HEAD}{}}}\n", self.body(rv)).into()
    }

    pub(crate) fn object(&self, rv: u64) -> ObjectRevision {
        change(EventType::Added, self, rv).object
    }
}

/// Prints `a/p app=x on n1, note 7`, because failures print whole histories.
impl fmt::Debug for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, app, node, note } = self;
        write!(f, "{namespace}/{name} app={app} on {node:?}, note {note}")
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} at {}", self.event_type, self.pod, self.rv)
    }
}

/// The content of one upstream frame.
type Told = (EventType, Pod, u64);

// Caching decoded frames per thread makes a million worlds affordable.
thread_local! {
    static READ: RefCell<HashMap<Told, (ObjectRevision, Bytes)>> = RefCell::default();
    static SEEN: RefCell<HashMap<Bytes, Seen>> = RefCell::default();
}

static FIELDS: LazyLock<SelectableFieldTable> =
    LazyLock::new(|| SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods")));
static ENVELOPE: LazyLock<FrameEnvelope> =
    LazyLock::new(|| FrameEnvelope::new(FeedEncoding::Json, "v1", "Pod", JsonLayout::BuiltIn));

/// Returns the change in upstream's frame.
pub(crate) fn change(event_type: EventType, pod: &Pod, rv: u64) -> ObjectChange {
    let read = || {
        let ObjectChange { object, frame, .. } = read_frame(pod.frame(event_type, rv));
        (object, frame.expect("it came in one"))
    };
    let reported = (event_type, *pod, rv);
    let (object, frame) = READ.with_borrow_mut(|known| known.entry(reported).or_insert_with(read).clone());
    ObjectChange { event_type, object, frame: Some(frame) }
}

/// Decodes any frame without the cache.
pub(crate) fn read_frame(frame: Bytes) -> ObjectChange {
    let reader =
        ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::new(FIELDS.clone())).with_kind("v1", "Pod");
    match reader.watch_event(frame).expect("a well-formed frame") {
        WatchItem::Change { event_type, object, frame } => ObjectChange { event_type, object, frame: Some(frame) },
        other => panic!("{other:?} is not a change"),
    }
}

pub(crate) fn added(pod: &Pod, rv: u64) -> ObjectChange {
    change(EventType::Added, pod, rv)
}

pub(crate) fn deleted(pod: &Pod, rv: u64) -> ObjectChange {
    change(EventType::Deleted, pod, rv)
}

/// Decodes a frame as a client would, without the code under test. The frame must equal upstream's bytes.
pub(crate) fn seen(frame: &Bytes) -> Seen {
    SEEN.with_borrow_mut(|seen| match seen.get(frame) {
        Some(seen) => *seen,
        // A copy, so that the cache does not keep the frame alive.
        None => *seen.entry(Bytes::copy_from_slice(frame)).or_insert_with(|| read_as_client(frame)),
    })
}

fn read_as_client(frame: &Bytes) -> Seen {
    let event: Value = serde_json::from_slice(frame).expect("one JSON document");
    let text = |pointer: &str| -> &'static str {
        let text = event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        known(text)
    };
    let pod = Pod {
        namespace: text("/object/metadata/namespace"),
        name: text("/object/metadata/name"),
        app: text("/object/metadata/labels/app"),
        node: text("/object/spec/nodeName"),
        note: event["object"]["metadata"]["annotations"]["note"].as_str().expect("a note").parse().expect("a number"),
    };
    let event_type = EventType::parse(event["type"].as_str().expect("a type")).expect("a known type");
    let rv = event["object"]["metadata"]["resourceVersion"].as_str().expect("a version").parse().expect("a number");
    assert_eq!(*frame, pod.frame(event_type, rv), "not the bytes that upstream would send");
    Seen { event_type, rv, pod }
}

/// Returns one of the few words that the tests use.
fn known(text: &str) -> &'static str {
    const WORDS: [&str; 17] =
        ["", "a", "b", "c", "d", "p", "q", "r", "s", "x", "y", "n1", "n2", "t1", "t1-a", "t1.a", "gone"];
    WORDS.into_iter().find(|word| *word == text).unwrap_or_else(|| panic!("{text:?} is no word of the tests"))
}

pub(crate) fn rv(version: u64) -> ResourceVersion {
    ResourceVersion(version)
}

/// Events in a narrow lane: few, so that readers reach its limit.
pub(crate) const LANE_EVENTS: usize = 3;

/// Short lanes; the other bounds are out of reach.
pub(crate) fn short_lanes() -> CacheConfig {
    CacheConfig { lane_events_max: LANE_EVENTS, ..CacheConfig::default() }
}

/// The same with a ring of `events` events.
pub(crate) fn ring(events: usize) -> CacheConfig {
    CacheConfig { window_events_max: events, ..short_lanes() }
}

/// Creates an empty cache of pods.
pub(crate) fn pods(config: CacheConfig) -> (CacheWriter, CacheReader) {
    let gvr = Gvr::new("", "v1", "pods");
    CacheWriter::new(config, gvr, ENVELOPE.clone(), true)
}

/// Creates a cache listed at `version` with these pods.
pub(crate) fn listed(config: CacheConfig, version: u64, listed: &[(Pod, u64)]) -> (CacheWriter, CacheReader) {
    let (mut writer, reader) = pods(config);
    writer.replace(snapshot(version, listed));
    (writer, reader)
}

pub(crate) fn snapshot(version: u64, listed: &[(Pod, u64)]) -> FeedSnapshot {
    FeedSnapshot::from_objects(rv(version), listed.iter().map(|(pod, rv)| pod.object(*rv)))
}

/// Parses a view; `""` means no namespace or no selector.
pub(crate) fn view(namespace: &str, labels: &str, fields_text: &str) -> CollectionView {
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    let labels = LabelSelector::parse(labels).expect("a label selector");
    let fields = FieldSelector::parse(fields_text).and_then(|parsed| parsed.compile(&FIELDS));
    CollectionView::new(
        namespace,
        Selector { labels, fields: fields.expect("a field selector"), ..Selector::default() },
    )
}

/// Counts wake-ups.
#[derive(Debug, Default)]
pub(crate) struct WakeCounter(AtomicUsize);

impl WakeCounter {
    pub(crate) fn woken(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Pulls everything available. Returns the events and the final result.
pub(crate) fn pull_all(cursor: &mut FeedCursor) -> (Vec<Seen>, PullResult) {
    let mut frames = Vec::new();
    loop {
        match cursor.pull(usize::MAX, None, &mut frames) {
            PullResult::Frames { .. } => {}
            end => return (frames.iter().map(seen).collect(), end),
        }
    }
}

/// Pulls everything available, formatted as `ADDED a/p 5` for each event.
pub(crate) fn reported(cursor: &mut FeedCursor) -> Vec<String> {
    let (seen, end) = pull_all(cursor);
    let mut reported: Vec<_> =
        seen.iter().map(|seen| format!("{} {} {}", seen.event_type, seen.pod.key(), seen.rv)).collect();
    if let PullResult::Expired { oldest } = end {
        reported.push(format!("expired {oldest}"));
    }
    reported
}

/// Returns keys and versions of the objects that a view sees in a snapshot, in its order.
pub(crate) fn shown(snapshot: &FeedSnapshot, view: &CollectionView) -> Vec<String> {
    snapshot.select(view, true, None).map(|object| format!("{} {}", object.key, object.rv)).collect()
}

/// Returns the seed of randomized tests: fixed by default, and random in `make properties` (.cargo/config.toml).
pub(crate) fn drawn_seed() -> u64 {
    std::env::var("PROPTEST_RNG_SEED").map_or(1, |seed| seed.parse().expect("a number"))
}
