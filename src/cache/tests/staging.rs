//! A staged state does not depend on the order of its objects.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixture::{POD, listed, read_frame, ring, rv};
use crate::cache::FeedSnapshot;
use crate::wire::ObjectRevision;
use kubeapi::EventType::Added;

/// Returns the pod with this number in its name, at a version.
fn pod(number: usize, version: u64) -> ObjectRevision {
    let frame = String::from_utf8(POD.frame(Added, version).to_vec()).expect("JSON");
    read_frame(frame.replace(r#""name":"p""#, &format!(r#""name":"p-{number:04}""#)).into()).object
}

/// Stages pods, each at its own version.
fn gathered(numbers: &[usize]) -> FeedSnapshot {
    let (_writer, reader) = listed(ring(1), 1, &[]);
    let mut staged = reader.stage();
    for (at, number) in numbers.iter().enumerate() {
        staged.push(pod(*number, 1 + at as u64)).expect("there is room");
    }
    staged.finish(rv(9_999))
}

fn assert_is_all(numbers: &[usize]) {
    let expected: BTreeMap<_, _> =
        numbers.iter().enumerate().map(|(at, number)| (format!("a/p-{number:04}"), 1 + at as u64)).collect();
    let gathered = gathered(numbers);
    let found = gathered.iter().map(|object| (object.key.as_str().to_owned(), object.rv.0));
    assert_eq!(found.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>(), "{numbers:?}");
}

#[test]
fn staged_objects_in_any_order_are_kept_once() {
    let many: Vec<_> = (0..2_000).collect();
    assert_is_all(&many);
    assert_is_all(&many.iter().copied().rev().collect::<Vec<_>>());
    assert_is_all(&[&many[..1_500], &many[1_000..]].concat());
    assert_is_all(&[]);
}

proptest! {
    /// The later of two objects with one key wins, wherever the first one is buffered.
    #[test]
    fn last_staged_object_wins_for_each_key(numbers in prop::collection::vec(0..8_usize, 0..12)) {
        assert_is_all(&numbers);
    }
}
