//! Lanes are an optimization: a reader of a lane gets the same events as among all events.

use proptest::prelude::*;

use super::fixture::{
    LANE_EVENTS, POD, Pod, added, change, deleted, listed, pods, pull_all, reported, ring, rv, snapshot, view,
};
use super::want::{self, Want};
use crate::cache::lane::{EventLane, LANE_VALUES_MAX, LaneKey, LaneTerm, shard_node};
use crate::cache::{CacheConfig, CacheReader, CacheWriter, CollectionView, FeedCursor, WatchStartPosition};
use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout};
use kubeapi::EventType::{Added, Deleted, Modified};
use kubeapi::{Gvr, ObjectKey, SelectableFieldTable, Selector, ShardKey, ShardSelector, shard_hash};

/// Indices of `spec.nodeName` and `status.phase` in the table of pods.
const NODE: usize = 0;
const PHASE: usize = 5;

fn open(reader: &CacheReader, after: u64, view: CollectionView) -> FeedCursor {
    reader.open(WatchStartPosition::After(rv(after)), view).expect("in the ring").cursor
}

fn lanes(reader: &CacheReader) -> usize {
    reader.stats().lanes
}

fn labels(key: &str, values: &[&str]) -> Vec<LaneTerm<Box<str>>> {
    values.iter().map(|value| LaneTerm::Label(key.into(), (*value).into())).collect()
}

#[test]
fn view_follows_the_narrowest_sufficient_lane() {
    let whole = || vec![LaneTerm::Whole];
    let set = |values: &[&str]| labels("app", values);
    let app_x = || set(&["x"]);
    let name = || vec![LaneTerm::Name("p".into())];
    let node = |value: &str| vec![LaneTerm::Field(NODE, value.into())];
    let running = || vec![LaneTerm::Field(PHASE, "Running".into())];
    let has = |key: &str| vec![LaneTerm::HasLabel(key.into())];
    let in_a = Some("a");
    for (namespace, labels, fields, expected_namespace, expected) in [
        ("", "", "", None, whole()),
        ("a", "", "", in_a, whole()),
        ("", "", "metadata.namespace=a", in_a, whole()),
        ("", "", "metadata.namespace!=a", None, whole()),
        ("", "", "metadata.namespace=", Some(""), whole()),
        // One label value, several, any.
        ("", "app=x", "", None, app_x()),
        ("a", "app==x", "", in_a, app_x()),
        ("a", "app in (x)", "metadata.namespace=a", in_a, app_x()),
        ("", "app in (y,x,y)", "", None, set(&["x", "y"])),
        ("a", "app in (x,y)", "", in_a, set(&["x", "y"])),
        ("", "app", "", None, has("app")),
        ("", "app>5", "", None, has("app")),
        ("", "app<5", "", None, has("app")),
        // A negative requirement matches nearly all objects.
        ("", "app!=x", "", None, whole()),
        ("", "app notin (x)", "", None, whole()),
        ("a", "!app", "", in_a, whole()),
        // With several labels: the single value, the smaller set, the first of equals.
        ("", "a,app=x,b in (c)", "", None, app_x()),
        ("", "a in (d,e,f),app in (x,y)", "", None, set(&["x", "y"])),
        ("", "tier=front,app=x", "", None, app_x()),
        ("", "a!=b,tier", "", None, has("tier")),
        // A name, in one namespace or all.
        ("a", "", "metadata.name=p", in_a, name()),
        ("", "", "metadata.namespace=a,metadata.name=p", in_a, name()),
        ("", "app=x", "metadata.name=p", None, name()),
        ("a", "", "metadata.name=p,spec.nodeName=n1", in_a, name()),
        ("a", "", "metadata.name!=p", in_a, whole()),
        // A field that identifies objects precedes labels; any other field follows them.
        ("", "", "spec.nodeName=n1", None, node("n1")),
        ("", "", "spec.host=n1", None, node("n1")),
        ("a", "app=x", "spec.nodeName=n1", in_a, node("n1")),
        ("", "", "spec.nodeName=", None, node("")),
        ("", "app=x", "spec.nodeName=", None, app_x()),
        ("", "", "spec.nodeName!=n1", None, whole()),
        ("", "", "status.podIPs=", None, whole()),
        ("", "", "status.phase=Running", None, running()),
        ("", "", "status.phase=Running,spec.nodeName=n1", None, node("n1")),
        ("", "app=x", "status.phase=Running", None, app_x()),
        ("", "app in (x,y)", "status.phase=Running", None, set(&["x", "y"])),
        ("", "app", "status.phase=Running", None, running()),
        ("", "app", "status.phase!=Running", None, has("app")),
    ] {
        let expected = LaneKey { namespace: expected_namespace.map(Into::into), terms: expected };
        assert_eq!(LaneKey::of(&view(namespace, labels, fields)), expected, "{namespace:?} {labels:?} {fields:?}");
    }
}

#[test]
fn selector_with_many_values_follows_the_has_label_lane() {
    let values = |n: usize| (0..n).map(|n| format!("v{n}")).collect::<Vec<_>>().join(",");
    let terms = |n| LaneKey::of(&view("", &format!("app in ({})", values(n)), "")).terms;
    let largest = terms(LANE_VALUES_MAX);
    assert!(largest.len() == LANE_VALUES_MAX && largest.iter().all(|term| matches!(term, LaneTerm::Label(..))));
    assert_eq!(terms(LANE_VALUES_MAX + 1), [LaneTerm::HasLabel("app".into())]);
}

/// The text of a shard of namespaces with these ranges, given in 1/256 of the hashes, and one more hash at its end.
fn shard(ranges: &[(u64, u64)]) -> String {
    let range = |(start, end): &(u64, u64)| {
        let (start, end) = (start << 56, (u128::from(*end) << 56) + 1);
        format!("shardRange(object.metadata.namespace, '{start:#018x}', '{:#018x}')", end.min(1 << 64))
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(" || ")
}

fn sharded(text: &str, labels: &str, fields: &str) -> CollectionView {
    let selector = view("", labels, fields).selector().clone();
    let shard = Some(Box::new(ShardSelector::parse(text).expect(text)));
    CollectionView::new(None, Selector { shard, ..selector })
}

#[test]
fn shard_follows_the_lane_of_its_nodes() {
    let nodes = |nodes: &[usize]| -> Vec<LaneTerm<Box<str>>> {
        nodes.iter().map(|node| LaneTerm::Shard(ShardKey::Namespace, *node)).collect()
    };
    let half = shard(&[(128, 256)]);
    let app_x = labels("app", &["x"]);
    let many: Vec<_> = (0..100).map(|n| (2 * n, 2 * n)).collect();
    for (text, labels, fields, expected) in [
        // All hashes are no selection.
        (&*shard(&[(0, 256)]), "", "", vec![LaneTerm::Whole]),
        (&half, "", "", nodes(&[3])),
        (&shard(&[(0, 128)]), "", "", nodes(&[2, 384])),
        // All but the first and the last of 256 nodes.
        (&shard(&[(1, 254)]), "", "", nodes(&[5, 6, 9, 14, 17, 30, 33, 62, 65, 126, 129, 254, 257, 510])),
        (&shard(&[(128, 256), (192, 256), (0, 0)]), "", "", nodes(&[3, 7, 256])),
        // So many ranges have larger nodes.
        (&shard(&many), "", "", nodes(&(16..=28).collect::<Vec<_>>())),
        // Other terms that are narrower, or wider.
        (&half, "app=x", "", app_x),
        (&half, "", "spec.nodeName=n1", vec![LaneTerm::Field(NODE, "n1".into())]),
        (&half, "", "status.phase=Running", nodes(&[3])),
        (&half, "app", "", nodes(&[3])),
        (&half, "!app", "", nodes(&[3])),
    ] {
        assert_eq!(LaneKey::of(&sharded(text, labels, fields)).terms, expected, "{text} {labels:?} {fields:?}");
    }
}

#[test]
fn shard_watches_share_a_lane_and_get_only_their_namespaces() {
    let (mut writer, reader) = listed(ring(20), 10, &[]);
    let (low, high) = (shard_hash(b"a"), shard_hash(b"b"));
    assert!(low < high);
    let range =
        |start: u64, end: u128| format!("shardRange(object.metadata.namespace, '{start:#018x}', '{end:#018x}')");
    let of_a = open(&reader, 10, sharded(&range(0, high.into()), "", ""));
    let of_b = open(&reader, 10, sharded(&range(high, 1 << 64), "", ""));
    // A label joined with the shard is compared before and after each change.
    let tierless = open(&reader, 10, sharded(&range(high, 1 << 64), "!tier", ""));
    assert_eq!(lanes(&reader), 2);
    let mut watches = [of_a, of_b, tierless];
    for (namespace, note, version) in [("a", 0, 11), ("b", 0, 12), ("a", 1, 13), ("b", 1, 14), ("b", 2, 15)] {
        writer.apply([added(&Pod { namespace, note, ..POD }, version)]).expect("in order");
    }
    let [of_a, of_b, tierless] = watches.each_mut().map(reported);
    assert_eq!(of_a, ["ADDED a/p 11", "MODIFIED a/p 13"]);
    assert_eq!(of_b, ["ADDED b/p 12", "MODIFIED b/p 14", "MODIFIED b/p 15"]);
    assert_eq!(tierless, ["ADDED b/p 12", "DELETED b/p 14"]);
    drop(watches);
    assert_eq!(lanes(&reader), 0);
}

#[test]
fn test_model_assigns_views_to_the_same_lanes() {
    for want in Want::ALL {
        let lane = want.lane();
        let terms = match lane.term {
            want::Term::Whole => vec![LaneTerm::Whole],
            want::Term::Name(name) => vec![LaneTerm::Name(name.into())],
            want::Term::Node(node) => vec![LaneTerm::Field(NODE, node.into())],
            want::Term::Phase(phase) => vec![LaneTerm::Field(PHASE, phase.into())],
            want::Term::Label(key, values) => labels(key, values),
            want::Term::HasLabel(key) => vec![LaneTerm::HasLabel(key.into())],
        };
        assert_eq!(LaneKey::of(&want.view()), LaneKey { namespace: lane.namespace.map(Into::into), terms }, "{want:?}");
    }
}

#[test]
fn lane_is_dropped_with_its_last_reader() {
    let (_writer, reader) = listed(ring(10), 10, &[]);
    let open_all = || Want::ALL.map(|want| open(&reader, 10, want.view()));
    let mut narrow: Vec<_> = Want::ALL.map(|want| LaneKey::of(&want.view())).into();
    narrow.retain(|key| !key.is_all());
    narrow.sort_by_cached_key(|key| format!("{key:?}"));
    narrow.dedup();
    let first = open_all();
    assert_eq!(lanes(&reader), narrow.len());
    let second = open_all();
    assert_eq!(lanes(&reader), narrow.len(), "lanes are shared");
    drop(first);
    assert_eq!(lanes(&reader), narrow.len());
    drop(second);
    assert_eq!(lanes(&reader), 0);
    let _everything = open(&reader, 10, CollectionView::everything());
    assert_eq!(lanes(&reader), 0, "all events are not a lane of their own");
}

#[test]
fn rejected_watch_leaves_no_lane() {
    let (_writer, reader) = listed(ring(10), 10, &[]);
    assert!(reader.open(WatchStartPosition::After(rv(9)), view("a", "", "")).is_err());
    assert_eq!(lanes(&reader), 0);
}

#[test]
fn reader_of_old_history_does_not_affect_lanes_after_relist() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let old = open(&reader, 10, view("a", "", ""));
    writer.replace(snapshot(20, &[]));
    assert_eq!(lanes(&reader), 0);
    let mut new = open(&reader, 20, view("a", "", ""));
    drop(old);
    assert_eq!(lanes(&reader), 1);
    writer.apply([added(&POD, 21)]).expect("in order");
    assert_eq!(reported(&mut new), ["ADDED a/p 21"]);
}

#[test]
fn late_lane_is_filled_from_the_ring() {
    let (mut writer, reader) = listed(ring(4), 10, &[]);
    for version in 11..=16 {
        let namespace = if version % 2 == 0 { "a" } else { "b" };
        writer.apply([added(&Pod { namespace, ..POD }, version)]).expect("in order");
    }
    assert!(reader.open(WatchStartPosition::After(rv(11)), view("a", "", "")).is_err());
    let mut cursor = open(&reader, 12, view("a", "", ""));
    assert_eq!(reported(&mut cursor), ["MODIFIED a/p 14", "MODIFIED a/p 16"]);
}

/// The second reader starts before the first, which created the lane.
#[test]
fn lane_extends_backwards_for_an_older_reader() {
    for namespace_view in [view("a", "", ""), view("a", "", "metadata.name=p"), view("", "", "spec.nodeName=n1")] {
        let (mut writer, reader) = listed(ring(10), 10, &[]);
        for version in [11, 13, 15] {
            writer.apply([added(&POD, version)]).expect("in order");
            writer.apply([added(&Pod { namespace: "b", node: "n2", ..POD }, version + 1)]).expect("in order");
        }
        let mut young = open(&reader, 14, namespace_view.clone());
        let mut old = open(&reader, 10, namespace_view.clone());
        let mut middle = open(&reader, 12, namespace_view);
        writer.apply([deleted(&POD, 17)]).expect("in order");
        let all = ["ADDED a/p 11", "MODIFIED a/p 13", "MODIFIED a/p 15", "DELETED a/p 17"];
        assert_eq!(reported(&mut young), all[2..]);
        assert_eq!(reported(&mut old), all);
        assert_eq!(reported(&mut middle), all[1..]);
    }
}

#[test]
fn recreated_lane_includes_events_missed_while_dropped() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    writer.apply([added(&POD, 11)]).expect("in order");
    drop(open(&reader, 11, view("a", "", "")));
    writer.apply([added(&POD, 12)]).expect("the lane has no readers now");
    let mut cursor = open(&reader, 11, view("a", "", ""));
    writer.apply([added(&POD, 13)]).expect("in order");
    assert_eq!(reported(&mut cursor), ["MODIFIED a/p 12", "MODIFIED a/p 13"]);
}

#[test]
fn object_moving_nodes_is_delivered_once_to_each_node_lane() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5)]);
    let mut nodes = ["n1", "n2", ""].map(|node| open(&reader, 10, view("", "", &format!("spec.nodeName={node}"))));
    for (event_type, node, version) in
        [(Modified, "n1", 11), (Modified, "n2", 12), (Modified, "", 13), (Modified, "n2", 14), (Deleted, "n2", 15)]
    {
        writer.apply([change(event_type, &Pod { node, ..POD }, version)]).expect("in order");
    }
    let reported = nodes.each_mut().map(reported);
    assert_eq!(reported[0], ["MODIFIED a/p 11", "DELETED a/p 12"]);
    assert_eq!(reported[1], ["ADDED a/p 12", "DELETED a/p 13", "ADDED a/p 14", "DELETED a/p 15"]);
    assert_eq!(reported[2], ["ADDED a/p 13", "DELETED a/p 14"]);
}

/// A set leads to its lane from the value before and from the one after.
#[test]
fn object_changing_within_a_value_set_is_delivered_once() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5)]);
    let mut set = open(&reader, 10, view("", "app in (x,y)", ""));
    for (app, version, expected) in [
        ("y", 11, "MODIFIED a/p 11"),
        ("x", 12, "MODIFIED a/p 12"),
        ("", 13, "DELETED a/p 13"),
        ("y", 14, "ADDED a/p 14"),
        ("gone", 15, "DELETED a/p 15"),
    ] {
        writer.apply([change(Modified, &Pod { app, ..POD }, version)]).expect("in order");
        // Checked after each event, because the lane does not hold all of them.
        assert_eq!(reported(&mut set), [expected]);
    }
}

/// The lane of all events is the ring, and holds the same events.
#[test]
fn narrow_lane_keeps_at_most_the_configured_events() {
    for lane_events_max in [1, LANE_EVENTS, 8] {
        let config = CacheConfig { lane_events_max, ..ring(20) };
        let (mut writer, reader) = listed(config, 10, &[]);
        let narrow = view("a", "", "");
        let _reader = open(&reader, 10, narrow.clone());
        for version in 11..31 {
            writer.apply([added(&POD, version)]).expect("in order");
        }
        let mut timeline = reader.shared.timeline.write();
        let versions =
            |lane: &EventLane| lane.with_events(|events| events.iter().map(|event| event.rv.0).collect::<Vec<_>>());
        let held = u64::try_from(lane_events_max).expect("a few");
        assert_eq!(versions(&timeline.ring.open_lane(&LaneKey::of(&narrow))), (31 - held..31).collect::<Vec<_>>());
        assert_eq!(versions(&timeline.ring.all), (11..31).collect::<Vec<_>>());
    }
}

/// The lane only holds the end of its sequence; a reader further behind gets the rest from the ring.
#[test]
fn reader_older_than_its_lane_continues_from_the_ring() {
    for narrow in [view("a", "", ""), view("", "app in (x,y)", ""), view("a", "", "metadata.name=p")] {
        let (mut writer, reader) = listed(ring(100), 10, &[]);
        let mut slow = open(&reader, 10, narrow);
        for version in (11..71).step_by(2) {
            writer.apply([added(&POD, version)]).expect("in order");
            writer.apply([added(&Pod { namespace: "b", app: "", name: "q", ..POD }, version + 1)]).expect("in order");
        }
        let seen = pull_all(&mut slow).0;
        assert_eq!(seen.iter().map(|seen| seen.rv).collect::<Vec<_>>(), (11..71).step_by(2).collect::<Vec<_>>());
    }
}

/// A reader only misses events that were in its lane, regardless of evicted events of other lanes.
#[test]
fn reader_expires_only_if_its_own_lane_events_are_evicted() {
    let (mut writer, reader) = listed(ring(8), 10, &[]);
    let mut slow = open(&reader, 10, view("a", "", ""));
    let other = |version| added(&Pod { namespace: "b", ..POD }, version);
    for version in 11..17 {
        writer.apply([other(version)]).expect("in order");
    }
    for version in 17..25 {
        writer.apply([added(&POD, version)]).expect("in order");
    }
    assert_eq!(reported(&mut slow).len(), 8, "what was evicted was of another lane");
    let mut slow = open(&reader, 16, view("a", "", ""));
    writer.apply([other(25)]).expect("in order");
    assert_eq!(reported(&mut slow), ["expired 17"]);
}

#[test]
fn cluster_scoped_object_watch_by_name_uses_a_lane() {
    let gvr = Gvr::new("", "v1", "nodes");
    let envelope = FrameEnvelope::new(FeedEncoding::Json, "v1", "Pod", JsonLayout::BuiltIn);
    let fields = SelectableFieldTable::of_builtin(&gvr);
    let (mut writer, reader) = CacheWriter::new(ring(10), gvr, envelope, false);
    let by_name = kubeapi::FieldSelector::parse("metadata.name=p").and_then(|parsed| parsed.compile(&fields));
    let selector = Selector { fields: by_name.expect("a known field"), ..Selector::everything() };
    let mut one = open(&reader, 0, CollectionView::new(None, selector));
    let mut all = open(&reader, 0, CollectionView::everything());
    assert_eq!(lanes(&reader), 1);
    for (name, version) in [("p", 11), ("q", 12), ("p", 13)] {
        writer.apply([added(&Pod { namespace: "", name, ..POD }, version)]).expect("in order");
    }
    assert_eq!(reported(&mut one), ["ADDED p 11", "MODIFIED p 13"]);
    assert_eq!(reported(&mut all), ["ADDED p 11", "ADDED q 12", "MODIFIED p 13"]);
}

/// Opens the view among all events, instead of in its lane.
fn among_all(reader: &CacheReader, view: CollectionView) -> FeedCursor {
    let (after, next, all) = {
        let timeline = reader.shared.timeline.read();
        (timeline.progress, timeline.ring.next_seq, timeline.ring.all.clone())
    };
    FeedCursor::new(reader.shared.clone(), all, view, next, after, after)
}

#[derive(Debug, Clone)]
struct Write {
    pod: Pod,
    delete: bool,
}

fn write() -> impl Strategy<Value = Write> {
    let parts = (0..2_usize, 0..2_usize, 0..3_usize, 0..3_usize, prop::bool::weighted(0.3));
    parts.prop_map(|(namespace, name, app, node, delete)| {
        let (namespace, name) = (["a", "b"][namespace], ["p", "q"][name]);
        let pod = Pod { namespace, name, app: ["x", "y", ""][app], node: ["n1", "n2", ""][node], note: 0 };
        Write { pod, delete }
    })
}

proptest! {
    #[test]
    fn lane_of_a_shard_has_every_hash_of_its_ranges(
        bounds in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 1..30),
        inside in any::<prop::sample::Index>(),
    ) {
        let ranges: Vec<_> = bounds.iter().map(|(one, other, is_short)| {
            let start = *one.min(other);
            let end = if *is_short { u128::from(start) + 1 + u128::from(one % 3) } else { u128::from(*one.max(other)) + 1 };
            (u128::from(start), end.min(1 << 64))
        }).collect();
        let text = |(start, end): &(u128, u128)| {
            format!("shardRange(object.metadata.uid, '{start:#018x}', '{end:#018x}')")
        };
        let text = ranges.iter().map(text).collect::<Vec<_>>().join("||");
        let terms = LaneKey::of(&sharded(&text, "", "")).terms;
        prop_assert!(terms.len() <= LANE_VALUES_MAX);
        let (start, end) = ranges[inside.index(ranges.len())];
        for hash in [start, start.midpoint(end), end - 1].into_iter().filter(|hash| *hash < end) {
            let is_found = terms.iter().any(|term| match term {
                LaneTerm::Shard(ShardKey::Uid, node) => shard_node(hash, 1 << node.ilog2()) == *node,
                _ => false,
            });
            prop_assert!(is_found, "{hash:#x} in {terms:?} of {text}");
        }
    }

    /// The same view twice: in its lane, and among all events.
    #[test]
    fn narrow_lane_delivers_the_same_events_as_the_full_ring(
        writes in prop::collection::vec(write(), 1..60),
        // The number of writes before each view is opened, and the number of writes between reads.
        opened in 0..40_usize,
        every in 1..9_usize,
    ) {
        let (mut writer, reader) = pods(ring(1_000));
        let mut pairs = Vec::new();
        let mut reported = Vec::new();
        for (n, Write { pod, delete }) in writes.into_iter().enumerate() {
            if n == opened {
                // Both start at the same position, regardless of the ring's content.
                let narrow = |view: CollectionView| reader.open(WatchStartPosition::After(reader.progress().rv), view).expect("now").cursor;
                pairs = Want::ALL.map(|want| (narrow(want.view()), among_all(&reader, want.view()))).into();
                reported = vec![(Vec::new(), Vec::new()); pairs.len()];
            }
            let at = 11 + n as u64;
            let last = reader.snapshot().get(&ObjectKey::new(pod.namespace, pod.name)).is_some();
            let event_type = if delete && last { Deleted } else { Added };
            // A deletion carries the last content.
            let note = u32::try_from(n).expect("small");
            let pod = if event_type == Deleted { last_of(&reader, &pod) } else { Pod { note, ..pod } };
            writer.apply([change(event_type, &pod, at)]).expect("in order");
            if n % every == 0 {
                read(&mut pairs, &mut reported);
            }
        }
        read(&mut pairs, &mut reported);
        for (want, (narrow, all)) in Want::ALL.into_iter().zip(reported) {
            prop_assert_eq!(narrow, all, "{:?}", want);
        }
    }
}

fn read(
    pairs: &mut [(FeedCursor, FeedCursor)],
    reported: &mut [(Vec<super::fixture::Seen>, Vec<super::fixture::Seen>)],
) {
    for ((narrow, all), reported) in pairs.iter_mut().zip(reported) {
        reported.0.extend(pull_all(narrow).0);
        reported.1.extend(pull_all(all).0);
    }
}

fn last_of(reader: &CacheReader, pod: &Pod) -> Pod {
    let snapshot = reader.snapshot();
    let object = snapshot.get(&ObjectKey::new(pod.namespace, pod.name)).expect("it is there");
    super::fixture::seen(&reader.envelope().frame(Added, object.body())).pod
}
