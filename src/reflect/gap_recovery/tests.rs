//! Tests finding the differences between two states, with a table and against a naive implementation.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::wire::{FeedEncoding, JsonLayout, ObjectReader};

#[test]
fn window_start_is_parsed_from_the_410_message() {
    for (message, start) in [
        ("too old resource version: 1 (258)", Some(258)),
        ("too old resource version: 4711 (4712): extra", Some(4712)),
        ("The resourceVersion for the provided watch is too old.", None),
        ("too old resource version: 1 (x)", None),
        ("too old resource version: 1 (258", None),
        ("too old resource version: 1", None),
        ("too old resource version: 1 (-5)", None),
        ("too old resource version: 1 ()", None),
        ("old resource version: 1 (258)", None),
        ("", None),
    ] {
        assert_eq!(window_start(message), start.map(ResourceVersion), "{message:?}");
    }
}

/// A pod `key` at `rv`, decoded from a watch event.
fn object(key: &str, rv: u64) -> ObjectRevision {
    let (namespace, name) = key.split_once('/').expect("namespace/name");
    let frame = format!(
        r#"{{"type":"ADDED","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{{}}}}}}}"#,
        format_args!(r#""name":"{name}","namespace":"{namespace}","resourceVersion":"{rv}""#)
    ) + "\n";
    match decoded(&ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default()), frame.into()) {
        Ok(StreamItem::Change { change, .. }) => change.object,
        other => panic!("{other:?} is not a change"),
    }
}

type State = BTreeMap<String, u64>;

fn snapshot(rv: u64, state: &State) -> FeedSnapshot {
    FeedSnapshot::from_objects(ResourceVersion(rv), state.iter().map(|(key, rv)| object(key, *rv)))
}

/// The differences as `a/p 1→2`, with `-` for absent, in the order in which they were found.
fn said(differences: &[GapObjectDifference]) -> Vec<String> {
    let side =
        |object: &Option<Arc<ObjectRevision>>| object.as_ref().map_or("-".to_owned(), |object| object.rv.to_string());
    let one = |difference: &GapObjectDifference| {
        for object in [&difference.before, &difference.after].into_iter().flatten() {
            assert_eq!(object.key, difference.key);
        }
        format!("{} {}→{}", difference.key, side(&difference.before), side(&difference.after))
    };
    differences.iter().map(one).collect()
}

fn state(objects: &[(&str, u64)]) -> State {
    objects.iter().map(|(key, rv)| ((*key).to_owned(), *rv)).collect()
}

#[test]
fn differences_are_added_deleted_or_changed_objects() {
    let none: &[(&str, u64)] = &[];
    for (before, after, expected) in [
        (none, none, vec![]),
        (&[("a/p", 1)], &[("a/p", 1)], vec![]),
        (none, &[("a/p", 1)], vec!["a/p -→1"]),
        (&[("a/p", 1)], none, vec!["a/p 1→-"]),
        (&[("a/p", 1)], &[("a/p", 2)], vec!["a/p 1→2"]),
        // A store that went back in time differs as well.
        (&[("a/p", 2)], &[("a/p", 1)], vec!["a/p 2→1"]),
        (&[("a/p", 1)], &[("b/p", 1)], vec!["a/p 1→-", "b/p -→1"]),
        (&[("b/p", 1)], &[("a/p", 1)], vec!["a/p -→1", "b/p 1→-"]),
        (&[("a/p", 1), ("a/r", 3)], &[("a/p", 1), ("a/q", 2), ("a/r", 3)], vec!["a/q -→2"]),
        (&[("a/p", 1), ("a/q", 2), ("a/r", 3)], &[("a/p", 1), ("a/r", 3)], vec!["a/q 2→-"]),
        (&[("a/p", 1), ("a/q", 2)], &[("a/q", 5), ("a/r", 3)], vec!["a/p 1→-", "a/q 2→5", "a/r -→3"]),
        // Keys are ordered as strings: `-` sorts before `/`.
        (&[("t1/p", 1), ("t1-a/p", 2)], none, vec!["t1-a/p 2→-", "t1/p 1→-"]),
    ] as [(&[(&str, u64)], &[(&str, u64)], Vec<&str>); 12]
    {
        let found = differences(&snapshot(10, &state(before)), &snapshot(20, &state(after)));
        assert_eq!(said(&found), expected, "{before:?} to {after:?}");
    }
}

#[test]
fn snapshot_versions_do_not_affect_differences() {
    let same = state(&[("a/p", 1), ("b/q", 2)]);
    for (before, after) in [(10, 20), (20, 10), (10, 10)] {
        assert!(differences(&snapshot(before, &same), &snapshot(after, &same)).is_empty());
    }
}

#[test]
fn difference_returns_old_and_new_objects_unchanged() {
    let found = differences(&snapshot(10, &state(&[("a/p", 1)])), &snapshot(20, &state(&[("a/p", 2)])));
    let [GapObjectDifference { before: Some(before), after: Some(after), .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(before.body(), object("a/p", 1).body());
    assert_eq!(after.body(), object("a/p", 2).body());
}

/// Looks up every key of either side in both.
fn naive(before: &State, after: &State) -> Vec<String> {
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let side = |state: &State, key: &str| state.get(key).map_or("-".to_owned(), u64::to_string);
    let differing = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    differing.map(|key| format!("{key} {}→{}", side(before, key), side(after, key))).collect()
}

fn states() -> impl Strategy<Value = State> {
    prop::collection::btree_map("(a|b|a-b|a\\.b)/[pqr]{1,2}", 1..4_u64, 0..20)
}

proptest! {
    #[test]
    fn merge_diff_matches_key_by_key_lookup(before in states(), after in states()) {
        let found = differences(&snapshot(10, &before), &snapshot(20, &after));
        prop_assert_eq!(said(&found), naive(&before, &after));
    }

    /// The differences are complete: applied to one state they yield the other.
    #[test]
    fn applying_differences_turns_old_state_into_new_state(before in states(), after in states()) {
        let mut walked = before.clone();
        for GapObjectDifference { key, after, .. } in differences(&snapshot(10, &before), &snapshot(20, &after)) {
            match after {
                Some(object) => walked.insert(key.to_string(), object.rv.0),
                None => walked.remove(key.as_str()),
            };
        }
        prop_assert_eq!(walked, after);
    }
}
