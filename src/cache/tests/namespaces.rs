//! Whether a feed has objects in a namespace.

use super::fixture::{POD, Pod, added, deleted, listed, ring, snapshot};
use crate::cache::CacheWriter;
use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout};
use kubeapi::Gvr;

#[test]
fn feed_has_a_namespace_as_long_as_it_has_an_object_there() {
    let other = Pod { name: "q", ..POD };
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5), (Pod { namespace: "a-b", ..POD }, 6)]);
    let has = |namespaces: [&str; 6]| namespaces.map(|namespace| reader.has_namespace(namespace));
    let names = ["a", "a-b", "a-", "b", "p", ""];
    assert_eq!(has(names), [true, true, false, false, false, false]);
    writer.apply([added(&other, 11), deleted(&POD, 12)]).expect("in order");
    assert!(reader.has_namespace("a"));
    writer.apply([deleted(&other, 13)]).expect("in order");
    assert_eq!(has(names), [false, true, false, false, false, false]);
    drop(writer);
    assert_eq!(has(names), [true; 6], "it is not known");

    let envelope = FrameEnvelope::new(FeedEncoding::Json, "v1", "Namespace", JsonLayout::BuiltIn);
    let (mut writer, reader) = CacheWriter::new(ring(10), Gvr::new("", "v1", "namespaces"), envelope, false);
    writer.replace(snapshot(10, &[(Pod { namespace: "", name: "a", ..POD }, 5)]));
    assert_eq!(["a", "a-b", ""].map(|namespace| reader.has_namespace(namespace)), [true, false, false]);
}
