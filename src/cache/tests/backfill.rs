//! Backfilled events: they join the history, and readers get them as they happened.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fixture::{POD, Pod, added, change, deleted, drawn_seed, listed, pull_all, reported, ring, rv};
use super::model::{Fact, Model, State};
use super::want::Want;
use crate::cache::{BackfilledEvents, CacheReader, CacheWriter, ObjectChange, WatchStartPosition};
use kubeapi::EventType::{self, Added, Deleted, Modified};

const NAMESPACES: [&str; 2] = ["a", "b"];
const NAMES: [&str; 3] = ["p", "q", "r"];

/// Returns upstream's changes after `from`, up to `until`.
fn tells(model: &Model, from: u64, until: u64) -> Vec<ObjectChange> {
    let facts = model.facts.iter().filter(|fact| fact.rv > from && fact.rv <= until);
    facts.map(reported_to_all).collect()
}

fn reported_to_all(fact: &Fact) -> ObjectChange {
    let seen = fact.reported_to(Want::Everything).expect("every watch receives it");
    change(seen.event_type, &seen.pod, seen.rv)
}

/// Generates changes of a few pods, some of which share a version.
fn happens(random: &mut fastrand::Rng) -> Model {
    let mut model = Model::new(usize::MAX);
    model.replace(10, State::new());
    let mut version = 10;
    for note in 1..=random.u32(1..40) {
        let changed_now: BTreeSet<_> =
            model.facts.iter().filter(|fact| fact.rv == version).map(|fact| fact.pod().key()).collect();
        let namespace = NAMESPACES[random.usize(..NAMESPACES.len())];
        let name = NAMES[random.usize(..NAMES.len())];
        let (app, node) = (["", "x", "y"][random.usize(..3)], ["", "n1", "n2"][random.usize(..3)]);
        let pod = Pod { namespace, name, app, node, note };
        let is_there = model.now.contains_key(&pod.key());
        let shares = random.u8(..4) == 0 && !changed_now.contains(&pod.key());
        version += if shares { 0 } else { random.u64(1..3) };
        match (is_there, random.u8(..4)) {
            (true, 0) => {
                let last = model.now[&pod.key()].0;
                model.apply(Deleted, last, version);
            }
            (false, 0) => {}
            (true, _) => drop(model.apply(Modified, pod, version)),
            (false, _) => drop(model.apply(Added, pod, version)),
        }
    }
    model
}

/// Creates a cache that was listed at `base` and has received all later changes.
fn begun_at(model: &Model, base: u64) -> (CacheWriter, CacheReader) {
    let state: Vec<_> = model.state_at(base).into_values().collect();
    let (mut writer, reader) = listed(ring(1_000), base, &state);
    writer.apply(tells(model, base, u64::MAX)).expect("in order");
    (writer, reader)
}

fn joined(reader: &CacheReader, from: u64, changes: Vec<ObjectChange>) -> Result<BackfilledEvents, String> {
    let beginning = reader.history_start().expect("a whole first history");
    beginning.joined_by(rv(from), changes).map_err(|misfit| format!("{} {}", misfit.key, misfit.rv))
}

/// Returns the events of such a watch from `after` on, if it may start there.
fn sees(reader: &CacheReader, want: Want, after: u64) -> Option<Vec<super::fixture::Seen>> {
    let mut opened = reader.open(WatchStartPosition::After(rv(after)), want.view()).ok()?;
    Some(pull_all(&mut opened.cursor).0)
}

/// Checks that every watch that may start in the backfilled events gets the true events. Only watches that need an
/// unknown previous state may not start.
fn is_true_from(reader: &CacheReader, model: &Model, from: u64, unknown: Option<u64>, what: &str) {
    let end = model.progress.max(from);
    for want in Want::ALL {
        for after in from..=end {
            let expected: Vec<_> = model.reported(want, after, 0).into_iter().map(|(_, seen)| seen).collect();
            let may_start = want.view().depends_only_on_key() || unknown.is_none_or(|unknown| unknown <= after);
            let expected = may_start.then_some(expected);
            assert_eq!(sees(reader, want, after), expected, "{what}: {want:?} after {after}");
            assert_eq!(reader.reaches(rv(after), &want.view()), may_start, "{what}: {want:?} after {after}");
        }
    }
}

/// Returns the version of the last change between `from` and `until` whose object's previous state is unknown.
fn unknown(model: &Model, from: u64, until: u64) -> Option<u64> {
    let mut seen = BTreeSet::new();
    let between = model.facts.iter().filter(|fact| fact.rv > from && fact.rv <= until);
    let first = between.filter(|fact| seen.insert(fact.pod().key()));
    first.filter(|fact| fact.before.is_some() && fact.after.is_some()).map(|fact| fact.rv).last()
}

/// Adds the previous states of all changes after `from`. Returns the version after which they are known, if any earlier
/// one is not.
fn explain(writer: &mut CacheWriter, reader: &CacheReader, model: &Model, from: u64) -> Option<u64> {
    let unknown = reader.events_without_previous();
    let left = unknown.iter().map(|change| change.rv.0).filter(|rv| *rv <= from).max();
    let behind = unknown.into_iter().filter(|change| change.rv.0 > from);
    let before = behind.map(|change| {
        let (pod, rv) = model.state_at(change.rv.0 - 1)[change.object.key.as_str()];
        (change, Arc::new(pod.object(rv)))
    });
    let before = before.collect();
    writer.set_previous_states(rv(left.unwrap_or_default()), before);
    left
}

#[test]
fn backfilled_history_reads_as_if_watched_from_its_start() {
    for seed in drawn_seed()..drawn_seed() + 30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let model = happens(&mut random);
        let versions: Vec<_> = std::iter::once(10).chain(model.facts.iter().map(|fact| fact.rv)).collect();
        let mut points = [(); 3].map(|()| versions[random.usize(..versions.len())]);
        points.sort_unstable();
        let [earliest, earlier, base] = points;
        let (mut writer, reader) = begun_at(&model, base);
        let before: Vec<_> = Want::ALL.iter().map(|want| sees(&reader, *want, base)).collect();
        let resume_marker = reader.resume_marker();
        assert!(writer.prepend(joined(&reader, earlier, tells(&model, earlier, base)).expect("it joins")));
        let mut first = unknown(&model, earlier, base);
        is_true_from(&reader, &model, earlier, first, &format!("seed {seed}, {earlier} to {base}"));
        if random.bool() {
            let from = versions[random.usize(..versions.len())].clamp(earlier, base);
            first = explain(&mut writer, &reader, &model, from);
            is_true_from(&reader, &model, earlier, first, &format!("seed {seed}, known behind {from}"));
        }
        // Backfills a second time.
        let past = joined(&reader, earliest, tells(&model, earliest, earlier)).expect("it joins");
        assert!(writer.prepend(past));
        let second = first.or(unknown(&model, earliest, earlier));
        is_true_from(&reader, &model, earliest, second, &format!("seed {seed}, {earliest} to {earlier}"));
        // The existing history is unchanged.
        assert_eq!(before, Want::ALL.iter().map(|want| sees(&reader, *want, base)).collect::<Vec<_>>());
        assert_eq!(reader.resume_marker(), resume_marker, "seed {seed}");
        assert_eq!(reader.floor(), rv(earliest));
        let charges = reader.events().iter().map(|event| event.charge()).sum::<usize>();
        assert_eq!(reader.stats().event_bytes, charges, "seed {seed}");
        if earliest > 10 {
            assert!(
                reader.open(WatchStartPosition::After(rv(earliest - 1)), Want::Everything.view()).is_err(),
                "seed {seed}"
            );
        }
    }
}

const P: Pod = POD;
const Q: Pod = Pod { name: "q", ..POD };

/// Pods listed at 100, and some later changes.
fn held() -> (CacheWriter, CacheReader) {
    let (mut writer, reader) = listed(ring(100), 100, &[(P, 40), (Q, 90)]);
    writer.apply([change(Modified, &Pod { note: 1, ..P }, 101)]).expect("in order");
    writer.apply([deleted(&Q, 102)]).expect("in order");
    (writer, reader)
}

#[test]
fn backfill_inconsistent_with_the_snapshot_is_rejected() {
    let r = Pod { name: "r", ..POD };
    let changed = |pod: Pod, rv: u64| change(Modified, &pod, rv);
    for (what, from, changes, misfit) in [
        ("all that happened", 80, vec![changed(Q, 90)], None),
        ("an object was added", 80, vec![added(&Q, 90)], None),
        ("one came and went", 80, vec![added(&r, 85), changed(Q, 90), deleted(&r, 91)], None),
        ("one that was there went", 80, vec![deleted(&r, 85), changed(Q, 90)], None),
        ("it was created again", 80, vec![deleted(&Q, 85), added(&Q, 90)], None),
        ("nothing happened", 90, vec![], None),
        ("several share a version", 80, vec![changed(Q, 90), deleted(&r, 90)], None),
        ("at the version of the list", 90, vec![deleted(&r, 100)], None),
        ("a change is left out", 80, vec![], Some("a/q 90")),
        ("also of an object that has changed since", 30, vec![changed(Q, 90)], Some("a/p 40")),
        ("the last change is another", 80, vec![changed(Q, 89)], Some("a/q 89")),
        ("it went", 80, vec![deleted(&Q, 90)], Some("a/q 90")),
        ("what is not there was added", 80, vec![added(&r, 85), changed(Q, 90)], Some("a/r 85")),
        ("what did not change since changed", 80, vec![changed(P, 85), changed(Q, 90)], Some("a/p 85")),
        ("it was added twice", 80, vec![added(&Q, 85), added(&Q, 90)], Some("a/q 90")),
        ("what had gone changed", 80, vec![deleted(&Q, 85), changed(Q, 90)], Some("a/q 90")),
        ("what had gone went", 80, vec![deleted(&r, 85), deleted(&r, 86), changed(Q, 90)], Some("a/r 86")),
        ("twice at one version", 80, vec![changed(Q, 90), changed(Q, 90)], Some("a/q 90")),
        ("out of order", 80, vec![changed(Q, 90), deleted(&r, 85)], Some("a/r 85")),
        ("before where it was to begin", 80, vec![deleted(&r, 80), changed(Q, 90)], Some("a/r 80")),
        ("behind the list", 80, vec![changed(Q, 90), deleted(&r, 101)], Some("a/r 101")),
    ] {
        let (mut writer, reader) = held();
        let found = joined(&reader, from, changes);
        assert_eq!(found.as_ref().err().map(String::as_str), misfit, "{what}");
        assert_eq!(found.ok().map(|past| writer.prepend(past)), misfit.is_none().then_some(true), "{what}");
        assert_eq!(reader.floor(), rv(if misfit.is_none() { from } else { 100 }), "{what}");
    }
}

/// Events before the first backfill need not match the versions of its objects, only their existence.
#[test]
fn second_backfill_joins_the_first() {
    for (what, changes, fits) in [
        ("it changed before as well", vec![change(Modified, &Q, 60)], true),
        ("it was added", vec![added(&Q, 60)], true),
        ("nothing", vec![], true),
        ("it went, and then changed", vec![deleted(&Q, 60)], false),
    ] {
        let (mut writer, reader) = held();
        let first = joined(&reader, 80, vec![change(Modified, &Q, 90)]).expect("it joins");
        assert!(writer.prepend(first));
        let second = joined(&reader, 50, changes);
        assert_eq!(second.is_ok(), fits, "{what}");
    }
}

#[test]
fn backfill_needs_the_first_history_with_nothing_evicted() {
    let (mut writer, reader) = listed(ring(2), 100, &[]);
    assert!(reader.can_backfill());
    let past = joined(&reader, 90, vec![]).expect("nothing happened");
    writer.apply([added(&P, 101)]).expect("in order");
    assert!(reader.can_backfill(), "its beginning is there");
    writer.apply([added(&Q, 102)]).expect("in order");
    writer.apply([deleted(&Q, 103)]).expect("in order");
    assert!(!reader.can_backfill() && reader.history_start().is_none(), "the ring has let go of it");
    assert!(!writer.prepend(past), "it joins what is no longer there");

    let (mut writer, reader) = listed(ring(2), 100, &[]);
    let past = joined(&reader, 90, vec![]).expect("nothing happened");
    writer.replace(super::fixture::snapshot(100, &[]));
    assert!(!reader.can_backfill(), "what was before could not be proven");
    assert!(!writer.prepend(past));

    let (writer, reader) = listed(ring(2), 100, &[]);
    drop(writer);
    assert!(!reader.can_backfill() && reader.history_start().is_none());
}

/// Two backfills for the same beginning: the second no longer joins.
#[test]
fn concurrent_backfill_of_the_same_start_is_rejected() {
    let (mut writer, reader) = held();
    let [one, two] = [80, 85].map(|from| joined(&reader, from, vec![change(Modified, &Q, 90)]).expect("it joins"));
    assert!(writer.prepend(one));
    assert!(!writer.prepend(two));
    assert_eq!(reported_behind(&reader, 80), ["MODIFIED a/q 90", "MODIFIED a/p 101", "DELETED a/q 102"]);
}

fn reported_behind(reader: &CacheReader, after: u64) -> Vec<String> {
    reported(
        &mut reader.open(WatchStartPosition::After(rv(after)), Want::Everything.view()).expect("it is held").cursor,
    )
}

#[test]
fn ring_rejects_backfill_without_room_and_evicts_oldest_first() {
    let (mut writer, reader) = listed(ring(4), 100, &[(P, 90)]);
    let many = |names: [&'static str; 2]| {
        let gone = names.map(|name| deleted(&Pod { name, ..POD }, if name == "r" { 84 } else { 85 }));
        gone.into_iter().chain([change(Modified, &P, 90)]).collect::<Vec<_>>()
    };
    writer.apply([added(&Q, 101)]).expect("in order");
    let (events, bytes) = (reader.stats().events, reader.stats().event_bytes);
    let mut behind_list =
        reader.open(WatchStartPosition::After(rv(100)), Want::Everything.view()).expect("it is held").cursor;
    let fits = joined(&reader, 80, many(["r", "s"])).expect("it joins");
    writer.apply([added(&Pod { name: "c", ..POD }, 102)]).expect("in order");
    assert!(!writer.prepend(fits), "there is no room any more");
    assert_eq!((reader.floor(), reader.stats().events), (rv(100), events + 1));
    let fits = joined(&reader, 89, vec![change(Modified, &P, 90)]).expect("it joins");
    assert!(writer.prepend(fits));
    assert_eq!(reader.stats().events, 3);
    let mut early = reader.open(WatchStartPosition::After(rv(89)), Want::Everything.view()).expect("it is held").cursor;
    let mut narrow = reader.open(WatchStartPosition::After(rv(89)), Want::TheOneInA.view()).expect("it is held").cursor;
    for version in [103, 104] {
        let pod = Pod { note: u32::try_from(version).expect("small"), ..Q };
        writer.apply([change(Modified, &pod, version)]).expect("in order");
    }
    assert_eq!(reader.floor(), rv(90), "the oldest went");
    assert_eq!(reported(&mut early), ["expired 90"]);
    assert_eq!(reported(&mut narrow), ["expired 90"]);
    assert_eq!(reported(&mut behind_list).len(), 4, "others have lost nothing");
    assert!(reader.stats().event_bytes > bytes && !reader.can_backfill());
}

#[test]
fn backfill_accounting_matches_cached_events() {
    let (mut writer, reader) = held();
    let before = reader.stats();
    let past = joined(&reader, 80, vec![deleted(&Pod { name: "r", ..POD }, 85), change(Modified, &Q, 90)]);
    assert!(writer.prepend(past.expect("it joins")));
    let events = reader.events();
    assert_eq!(reader.stats().events, before.events + 2);
    assert_eq!(reader.stats().event_bytes, events.iter().map(|event| event.charge()).sum::<usize>());
    let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "dense: {seqs:?}");
}

/// A reopened watch may repeat listed changes, and is not rejected for it.
#[test]
fn stream_event_older_than_the_list_is_a_duplicate() {
    let (mut writer, reader) = held();
    assert!(writer.prepend(joined(&reader, 80, vec![change(Modified, &Q, 90)]).expect("it joins")));
    for (event_type, pod, version) in [(Modified, Q, 90), (Modified, Q, 85), (EventType::Added, P, 40)] {
        let applied = writer.apply([change(event_type, &pod, version)]);
        assert_eq!(applied, Ok(0), "{event_type} at {version}");
    }
}

/// In a feed scoped by a field selector, that selector does not restrict a view. Any other does.
#[test]
fn key_only_views_do_not_need_previous_objects() {
    for (namespace, labels, fields, everywhere, on_n1) in [
        ("", "", "", true, true),
        ("a", "", "", true, true),
        ("", "", "metadata.namespace=a", true, true),
        ("a", "", "metadata.name=p", true, true),
        ("", "", "metadata.name!=p", true, true),
        ("", "", "spec.nodeName=n1", false, true),
        ("", "", "spec.host=n1", false, true),
        ("a", "", "spec.nodeName=n1,metadata.name=p", false, true),
        ("", "", "spec.nodeName!=n1", false, false),
        ("", "", "spec.nodeName=n2", false, false),
        ("", "", "spec.nodeName=n1,status.phase=Running", false, false),
        ("", "app=x", "", false, false),
        ("", "!app", "spec.nodeName=n1", false, false),
    ] {
        let view = super::fixture::view(namespace, labels, fields);
        assert_eq!(view.depends_only_on_key(), everywhere, "{namespace} {labels} {fields}");
        assert_eq!(
            view.clone().with_fixed_field("spec.nodeName", "n1").depends_only_on_key(),
            on_n1,
            "{namespace} {labels} {fields}"
        );
        assert!(!view.with_previous_state().depends_only_on_key());
    }
}
