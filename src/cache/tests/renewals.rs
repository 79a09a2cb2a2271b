//! Renewed bodies at unchanged versions: states contain the new bodies, bytes derived from the old ones are not reused,
//! and sizes are correct.

use std::sync::Arc;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::fixture::{POD, Pod, added, listed, read_frame, ring, rv, snapshot};
use crate::cache::pinned::PinnableFeed;
use crate::cache::{CacheReader, CacheWriter, CollectionView, FeedSnapshot, WatchStartPosition};
use crate::wire::ObjectRevision;
use kubeapi::EventType;

/// Returns the object as another release encodes it: with one more field.
fn otherwise(pod: &Pod, at: u64) -> ObjectRevision {
    let frame = String::from_utf8(pod.frame(EventType::Added, at).to_vec()).expect("text");
    read_frame(frame.replace(r#""spec":{"#, r#""spec":{"more":true,"#).into()).object
}

fn is_new(object: &ObjectRevision) -> bool {
    object.body().windows(11).any(|part| part == br#""more":true"#)
}

fn renew(writer: &mut CacheWriter, reader: &CacheReader, list: &FeedSnapshot) -> usize {
    let objects = reader.snapshot().with_different_bytes(list).now_or_never().expect("few");
    // The renewal yields once for each batch.
    let mut renewing = Box::pin(writer.renew(objects));
    (0..10).find_map(|_| renewing.as_mut().now_or_never()).expect("few")
}

fn names(state: &FeedSnapshot) -> Vec<u128> {
    state.chunks().now_or_never().expect("few").iter().map(|chunk| chunk.name).collect()
}

const Q: Pod = Pod { name: "q", ..POD };
const R: Pod = Pod { name: "r", ..POD };

#[test]
fn renewal_changes_bodies_and_chunk_names_without_events() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5), (Q, 6)]);
    let before = reader.snapshot();
    let (old_names, progress, history) = (names(&before), reader.progress(), reader.history());
    reader.keep_for_paging(&before);
    let mut watch =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    let list = FeedSnapshot::from_objects(rv(12), [otherwise(&POD, 5), otherwise(&Q, 6)]);
    assert_eq!(renew(&mut writer, &reader, &list), 2);
    let after = reader.snapshot();
    assert!(after.iter().all(|object| is_new(object)), "{after:?}");
    assert!(!before.iter().any(|object| is_new(object)), "a client that receives a state continues with it");
    assert_eq!(after.iter().map(|object| object.rv.0).collect::<Vec<_>>(), [5, 6]);
    assert_ne!(names(&after), old_names);
    assert_eq!(names(&after), names(&reader.snapshot()), "from here on they are the same");
    assert!(reader.paging_snapshot(rv(10)).is_none(), "pages go on upstream");
    reader.keep_for_paging(&before);
    assert!(reader.paging_snapshot(rv(10)).is_none(), "nor is a state with the old bodies kept afterwards");
    assert_eq!((reader.progress(), reader.history()), (progress, history), "nothing has happened");
    let mut frames = Vec::new();
    watch.pull(usize::MAX, None, &mut frames);
    assert!(frames.is_empty(), "no watch receives an event");
    assert_eq!(renew(&mut writer, &reader, &list), 0, "there is no more to do");
    assert_eq!(names(&after), names(&reader.snapshot()));
}

#[test]
fn renewal_replaces_only_bodies_of_the_same_version() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5), (Q, 6)]);
    writer.apply([added(&R, 11)]).expect("in order");
    // One is listed at a later version, one at the same version with another body, and one at an older version.
    let list = FeedSnapshot::from_objects(rv(12), [otherwise(&POD, 12), otherwise(&Q, 6), otherwise(&R, 9)]);
    assert_eq!(renew(&mut writer, &reader, &list), 1);
    let new: Vec<_> = reader.snapshot().iter().map(|object| is_new(object)).collect();
    assert_eq!(new, [false, true, false]);
    // Later events build on the current objects.
    writer.apply([added(&Pod { note: 1, ..Q }, 13)]).expect("in order");
    let mut watch =
        reader.open(WatchStartPosition::After(rv(12)), CollectionView::everything()).expect("in the ring").cursor;
    let mut frames = Vec::new();
    watch.pull(usize::MAX, None, &mut frames);
    assert_eq!(frames.len(), 1);
}

proptest! {
    /// For all differences, sizes match the held bodies, and an existing snapshot keeps its old bodies.
    #[test]
    fn renewal_accounting_matches_cached_bodies(
        held in prop::collection::vec((0usize..3, 1u64..9), 0..3),
        listed_as in prop::collection::vec((0usize..3, 1u64..9, any::<bool>()), 0..6),
    ) {
        let pods = [POD, Q, R];
        let held: Vec<_> = held.into_iter().map(|(pod, at)| (pods[pod], at)).collect();
        let (mut writer, reader) = listed(ring(10), 10, &held);
        let taken = reader.snapshot();
        let before = reader.stats().object_bytes;
        let list = listed_as.into_iter().map(|(pod, at, new)| {
            if new { otherwise(&pods[pod], at) } else { pods[pod].object(at) }
        });
        let list = FeedSnapshot::from_objects(rv(12), list);
        let fit = |object: &&Arc<ObjectRevision>| taken.get(&object.key).is_some_and(|held| held.rv == object.rv);
        let expected = list.iter().filter(fit).filter(|object| is_new(object)).count();
        prop_assert_eq!(renew(&mut writer, &reader, &list), expected);
        let bytes = |state: &FeedSnapshot| state.iter().map(|object| object.body().len()).sum::<usize>();
        prop_assert_eq!(reader.stats().object_bytes, bytes(&reader.snapshot()));
        prop_assert_eq!(bytes(&taken), before);
        prop_assert_eq!(reader.snapshot().iter().filter(|object| is_new(object)).count(), expected);
        let kept: usize = taken.iter().filter(|old| !Arc::ptr_eq(old, reader.snapshot().get(&old.key).expect("held")))
            .map(|old| old.body().len()).sum();
        prop_assert_eq!(reader.shared.kept_by(taken.capture_point), kept, "what the state keeps beyond the store");
        // A new history counts only its own objects.
        writer.replace(snapshot(20, &held));
        prop_assert_eq!(reader.stats().object_bytes, before);
    }
}
