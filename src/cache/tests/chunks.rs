//! The end of a chunk depends only on its objects, so that its encoded bytes are found in the cache.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt;

use super::fixture::read_frame;
use crate::cache::{CacheConfig, CacheWriter, FeedSnapshot, ObjectChunk};
use crate::wire::ObjectRevision;
use kubeapi::ResourceVersion;

/// Returns a pod with a body of about `bytes` bytes.
fn pod(namespace: &str, name: &str, rv: u64, bytes: usize) -> ObjectRevision {
    let padding = "x".repeat(bytes);
    let metadata = format!(r#""name":"{name}","namespace":"{namespace}","resourceVersion":"{rv}""#);
    let body = format!(r#""metadata":{{{metadata},"annotations":{{"padding":"{padding}"}}}}}}"#);
    let frame = format!("{{\"type\":\"ADDED\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",{body}}}\n");
    read_frame(frame.into()).object
}

fn chunks(objects: impl IntoIterator<Item = ObjectRevision>) -> (FeedSnapshot, Arc<[ObjectChunk]>) {
    let snapshot = FeedSnapshot::from_objects(ResourceVersion(1), objects);
    let chunks = snapshot.chunks().now_or_never().expect("few enough for one go");
    (snapshot, chunks)
}

fn names(chunks: &[ObjectChunk]) -> HashSet<u128> {
    chunks.iter().map(|chunk| chunk.name).collect()
}

const BYTES: usize = 5_000;

fn pods(namespaces: &[&str], count: usize) -> Vec<ObjectRevision> {
    let named = |namespace: &str, n: usize| pod(namespace, &format!("p{n:04}"), n as u64 + 10_000, BYTES);
    namespaces.iter().flat_map(|namespace| (0..count).map(move |n| named(namespace, n))).collect()
}

#[test]
fn chunks_hold_each_object_once_and_never_span_namespaces() {
    let (snapshot, chunks) = chunks(pods(&["t1", "t1-a", "t1.a"], 400));
    let reported: Vec<_> =
        chunks.iter().flat_map(|chunk| snapshot.objects_of(chunk)).map(|object| &object.key).collect();
    assert_eq!(reported, snapshot.iter().map(|object| &object.key).collect::<Vec<_>>());
    for chunk in &*chunks {
        let objects: Vec<_> = snapshot.objects_of(chunk).collect();
        assert!(objects.iter().all(|object| object.key.namespace() == chunk.first.namespace()));
        let bytes: usize = objects.iter().map(|object| object.body().len()).sum();
        assert_eq!((chunk.lengths.items, chunk.lengths.bytes), (objects.len(), bytes));
        assert!(bytes <= ObjectChunk::BYTES_MAX);
    }
    assert_eq!(names(&chunks).len(), chunks.len());
    let average = 1_200 * BYTES / chunks.len();
    assert!((ObjectChunk::BYTES / 3..ObjectChunk::BYTES_MAX).contains(&average), "{average} bytes on average");
}

#[test]
fn object_change_of_equal_length_changes_one_chunk() {
    let (_, before) = chunks(pods(&["a"], 600));
    for changed in [0, 1, 299, 598, 599] {
        let mut objects = pods(&["a"], 600);
        // The same length as before, because chunk boundaries depend on lengths.
        objects[changed] = pod("a", &format!("p{changed:04}"), 20_000, BYTES);
        let (_, after) = chunks(objects);
        assert_eq!(before.len(), after.len());
        assert_eq!(names(&before).difference(&names(&after)).count(), 1);
    }
}

/// A full chunk ends by its length, but chunks after the next natural boundary are unchanged.
#[test]
fn object_add_remove_or_growth_changes_few_chunks() {
    let (_, before) = chunks(pods(&["a"], 1_000));
    let mut grown = pods(&["a"], 1_000);
    grown[500] = pod("a", "p0500", 20_000, BYTES * 4);
    let come = [pods(&["a"], 1_000), vec![pod("a", "p0500a", 20_000, BYTES)]].concat();
    let mut gone = pods(&["a"], 1_000);
    gone.remove(500);
    for objects in [grown, come, gone] {
        let (_, after) = chunks(objects);
        let (before, after) = (names(&before), names(&after));
        let (new, over) = (after.difference(&before).count(), before.difference(&after).count());
        // An object that was a chunk of its own removes it, and no chunk is new.
        assert!((1..=10).contains(&new.max(over)), "{new} of {} chunks are new, {over} are over", after.len());
    }
}

#[test]
fn oversized_object_gets_its_own_chunk() {
    let large = |name: &str| pod("a", name, 1, ObjectChunk::BYTES_MAX * 2);
    let (_, chunks) = chunks([large("p"), large("q"), large("r")]);
    assert_eq!(chunks.iter().map(|chunk| chunk.lengths.items).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn chunks_are_computed_once_per_state() {
    let (mut writer, reader): (CacheWriter, _) = super::fixture::listed(CacheConfig::default(), 10, &[]);
    let cut = |snapshot: &FeedSnapshot| snapshot.chunks().now_or_never().expect("few enough for one go");
    let empty = reader.snapshot();
    assert_eq!(cut(&empty).len(), 0);
    writer.apply([super::fixture::added(&super::fixture::POD, 11)]).expect("in order");
    assert_eq!((cut(&empty).len(), cut(&reader.snapshot()).len()), (0, 1));
    assert!(Arc::ptr_eq(&cut(&reader.snapshot()), &cut(&reader.snapshot())));
    // A later version of the same state.
    writer.advance(ResourceVersion(20), false);
    let later = reader.snapshot_at(ResourceVersion(15)).expect("nothing has changed since 11");
    assert!(Arc::ptr_eq(&cut(&later), &cut(&reader.snapshot())));
}

/// After a restore from a backup the same version may have other content.
#[test]
fn chunk_names_differ_between_histories_at_the_same_version() {
    let (mut writer, reader) = super::fixture::listed(CacheConfig::default(), 10, &[(super::fixture::POD, 5)]);
    let name = || reader.snapshot().chunks().now_or_never().expect("few")[0].name;
    let before = name();
    writer.replace(super::fixture::snapshot(10, &[(super::fixture::POD, 5)]));
    assert_ne!(name(), before);
}
