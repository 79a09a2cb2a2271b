//! Bytes written for one release of upstream are not sent for another.

use bytes::Bytes;

use crate::cache::tests::fixture::{POD, added, listed, ring, rv};
use crate::cache::{CacheReader, CollectionView, WatchStartPosition};
use crate::feeds::{DerivedRepresentationMode, DerivedRepresentationRefusal, DerivedRepresentations};
use crate::wire::{FeedEncoding, ObjectRenderer, Representation};
use kubeapi::MetaApiVersion;

const METADATA: Representation = Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1);

fn renderer(reader: &CacheReader, minor: u32) -> ObjectRenderer {
    ObjectRenderer::derived(METADATA, reader.envelope(), minor).expect("metadata of every kind")
}

fn frames(reader: &CacheReader, renderer: ObjectRenderer) -> Vec<Bytes> {
    let opened =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("it is in the ring");
    let mut frames = Vec::new();
    opened.cursor.rendered_by(renderer).pull(usize::MAX, None, &mut frames);
    frames
}

#[tokio::test]
async fn event_frame_is_reencoded_for_another_release() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    writer.apply([added(&POD, 11)]).expect("in order");
    // Until 1.33 an absent time was printed as null.
    let is_null = |frame: &Bytes| frame.windows(24).any(|part| part == br#""creationTimestamp":null"#);
    for (minor, null) in [(33, true), (34, false), (33, true)] {
        let written = frames(&reader, renderer(&reader, minor));
        assert_eq!(written.iter().map(is_null).collect::<Vec<_>>(), [null], "1.{minor}: {written:?}");
    }
    let derived = reader.stats().derived_bytes;
    assert_eq!(derived, frames(&reader, renderer(&reader, 33))[0].len(), "one of them is kept");
}

#[tokio::test]
async fn rendering_refusal_keeps_its_release_and_reason() {
    let (_writer, reader) = listed(ring(10), 10, &[]);
    let renderings = DerivedRepresentations::default();
    assert_eq!(renderings.release(), None);
    renderings.set_release(36);
    for (reason, wrong) in
        [(DerivedRepresentationRefusal::UnsupportedObject, false), (DerivedRepresentationRefusal::Mismatch, true)]
    {
        renderings.start_over();
        let used = renderer(&reader, 36);
        renderings.qualify(used.clone());
        assert!(renderings.refuse(METADATA, reason));
        assert_eq!((used.is_revoked(), used.is_mismatched()), (true, wrong), "{reason:?}");
    }
    renderings.begin();
    assert!(matches!(
        renderings.mode(METADATA),
        Some(DerivedRepresentationMode::Refused(DerivedRepresentationRefusal::Mismatch))
    ));
    assert_eq!(renderings.release(), Some(36), "refusals stay, and so does what they were found with");
}
