//! Watches and lists as upstream sends them.

use std::sync::Arc;

use bytes::Bytes;
use kube_fanout::wire::{
    BookmarkTemplate, DeltaFrame, FeedEncoding, FrameEnvelope, FrameSplitter, IncludeObjectPolicy, JsonLayout,
    ListItemLengths, ListMeta, ObjectReader, ObjectRenderer, ObjectRevision, Representation, WatchItem, WireError,
    same_items, same_rows, websocket_payload,
};
use kubeapi::{Gvr, MetaApiVersion, ResourceVersion, SelectableFieldTable};

use super::choice;

/// Every encoding and layout of a feed.
const FEEDS: [(FeedEncoding, JsonLayout); 5] = [
    (FeedEncoding::Json, JsonLayout::BuiltIn),
    (FeedEncoding::Json, JsonLayout::Custom),
    (FeedEncoding::Protobuf, JsonLayout::BuiltIn),
    (FeedEncoding::Table, JsonLayout::BuiltIn),
    (FeedEncoding::Table, JsonLayout::Custom),
];

const FRAME_MAX: usize = 1 << 16;

/// Decoder and encoder of one feed.
struct Feed {
    reader: ObjectReader,
    envelope: FrameEnvelope,
}

impl Feed {
    fn of(choice: usize) -> Self {
        let (encoding, layout) = FEEDS[choice % FEEDS.len()];
        let (api_version, kind, fields) = match layout {
            JsonLayout::BuiltIn => ("v1", "Pod", SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods"))),
            JsonLayout::Custom => {
                let fields = SelectableFieldTable::of_custom(&[".spec.color".to_owned()], true);
                ("verify.kube-fanout.io/v1", "Sample", fields)
            }
        };
        let reader = ObjectReader::new(encoding, layout, Arc::new(fields)).with_kind(api_version, kind);
        Self { reader, envelope: FrameEnvelope::new(encoding, api_version, kind, layout) }
    }
}

/// Frames of a stream, and how it ended: complete, in the middle of a frame, or with one that is too large.
fn split<'a>(
    encoding: FeedEncoding,
    (max, has_deltas): (usize, bool),
    chunks: impl Iterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, &'static str) {
    let (splitter, mut frames) = (FrameSplitter::new(encoding, max), Vec::new());
    let mut splitter = if has_deltas { splitter.with_deltas() } else { splitter };
    for chunk in chunks {
        splitter.push(chunk);
        loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, "too large"),
            }
        }
    }
    (frames, if splitter.finish().is_ok() { "whole" } else { "torn" })
}

/// A stream has the same frames in any chunks, and their bytes are the stream's.
pub fn frames(input: &[u8]) {
    let (first, stream) = choice(input);
    let encoding = [FeedEncoding::Json, FeedEncoding::Protobuf][first % 2];
    let form = ([40, FRAME_MAX][first / 2 % 2], first / 12 % 2 == 1);
    let expected = split(encoding, form, [stream].into_iter());
    for delta in expected.0.iter().filter_map(|frame| DeltaFrame::parse(frame).ok()) {
        let _ = delta.frame(stream, FRAME_MAX).inspect(|frame| assert!(frame.len() <= FRAME_MAX));
    }
    let joined = expected.0.concat();
    assert_eq!(stream.get(..joined.len()), Some(joined.as_slice()), "frames are the stream's own bytes");
    assert!(expected.1 != "whole" || joined.len() == stream.len());
    let size = [1, 2 + first / 4, 1 + stream.len() / 2][first / 4 % 3];
    assert_eq!(split(encoding, form, stream.chunks(size)), expected, "in pieces of {size}");
}

/// A parsed frame equals the one that kube-fanout would write. Its object has another version when it is given one.
pub fn events(input: &[u8]) {
    let (first, frame) = choice(input);
    let Feed { reader, envelope } = Feed::of(first);
    let frame = Bytes::copy_from_slice(frame);
    let _ = websocket_payload(envelope.encoding(), &frame);
    let _ = reader.object(&frame);
    match reader.watch_event(frame) {
        Ok(WatchItem::Change { event_type, object, frame }) => {
            assert_eq!(envelope.frame(event_type, object.body()), frame, "it is written as it came");
            assert_eq!(envelope.frame_len(event_type, object.body().len()), frame.len());
            for version in [7, object.rv.0, u64::MAX] {
                let version = ResourceVersion(version);
                let again = reader.watch_event(envelope.frame(event_type, &object.with_resource_version(version)));
                let Ok(WatchItem::Change { object: again, .. }) = again else { panic!("restamped: {again:?}") };
                assert_eq!((&again.key, again.rv), (&object.key, version));
                assert!(again.attributes == object.attributes);
            }
            if envelope.encoding() != FeedEncoding::Table {
                let whole = reader.object(&envelope.object(object.body())).expect("a single object");
                assert_eq!((&whole.key, whole.rv), (&object.key, object.rv));
            }
            derived(&envelope, &object);
        }
        Ok(WatchItem::Bookmark { object, .. }) => {
            let Ok(template) = BookmarkTemplate::from_object(&envelope, &object) else { return };
            for (version, end) in [(ResourceVersion(5), true), (ResourceVersion(u64::MAX), false)] {
                match reader.watch_event(template.frame(version, end)) {
                    Ok(WatchItem::Bookmark { rv, initial_events_end, .. }) => {
                        assert_eq!((rv, initial_events_end), (version, end));
                    }
                    other => panic!("a bookmark of ours: {other:?}"),
                }
            }
        }
        Ok(WatchItem::Error { .. }) | Err(_) => {}
    }
}

/// A derived form of an object has the same key and version, in its own encoding.
fn derived(envelope: &FrameEnvelope, object: &ObjectRevision) {
    let of_objects = [FeedEncoding::Json, FeedEncoding::Protobuf].into_iter().flat_map(|encoding| {
        let of_metadata =
            [MetaApiVersion::V1, MetaApiVersion::V1beta1].map(|version| Representation::Metadata(encoding, version));
        [Representation::Object(encoding)].into_iter().chain(of_metadata)
    });
    for representation in of_objects.chain(IncludeObjectPolicy::ALL.map(Representation::Table)) {
        let Some(renderer) = ObjectRenderer::derived(representation, envelope, 37) else { continue };
        let Ok(body) = renderer.body(object.body()) else { continue };
        let mut put = Vec::new();
        renderer.put_body(object.body(), &mut put).expect("it was just derived");
        assert_eq!(put, body, "{representation:?}");
        let of_metadata = matches!(representation, Representation::Metadata(_, MetaApiVersion::V1));
        let (api_version, kind) = if of_metadata {
            ("meta.k8s.io/v1", "PartialObjectMetadata")
        } else if representation == Representation::Object(FeedEncoding::Json) {
            (envelope.api_version(), envelope.kind())
        } else {
            continue;
        };
        let encoding = renderer.envelope().encoding();
        let layout = renderer.envelope().layout();
        let fields = Arc::new(SelectableFieldTable::default());
        let reader = ObjectReader::new(encoding, layout, fields).with_kind(api_version, kind);
        let document = renderer.envelope().object(&body);
        let read = match reader.object(&document) {
            Ok(read) => read,
            // JSON within protobuf, such as managed fields, is copied as Go writes it, without a check for UTF-8.
            Err(WireError::NotUtf8) if envelope.encoding() == FeedEncoding::Protobuf => continue,
            Err(error) => panic!("{representation:?}: {error}: {}", document.escape_ascii()),
        };
        assert_eq!((&read.key, read.rv), (&object.key, object.rv), "{representation:?}");
        assert!(read.attributes.labels().eq(object.attributes.labels()), "{representation:?}");
    }
}

/// The items of a parsed page can be written as the same page.
pub fn pages(input: &[u8]) {
    let (first, page) = choice(input);
    let Feed { reader, envelope } = Feed::of(first);
    let _ = same_items(envelope.encoding(), page, page);
    let Ok(read) = reader.list(&Bytes::copy_from_slice(page)) else { return };
    if envelope.encoding() == FeedEncoding::Table {
        let bodies: Vec<_> = read.items.iter().map(|row| row.body().clone()).collect();
        assert!(same_rows(&bodies, page), "the rows that were read are those of the page");
        return;
    }
    let page = read;
    let remaining = (!page.continue_token.is_empty()).then_some(3);
    let meta = ListMeta {
        resource_version: page.resource_version,
        continue_token: page.continue_token.clone(),
        remaining,
        shard: None,
    };
    let list = envelope.with_list_kind(&page.kind).list(&meta);
    let mut lengths = ListItemLengths::default();
    page.items.iter().for_each(|item| lengths.add(item.body().len()));
    let items_len = list.items_len(lengths);
    let mut written = list.head(page.items.len(), items_len).to_vec();
    for (nth, item) in page.items.iter().enumerate() {
        list.put_item(nth == 0, item.body(), &mut written);
    }
    written.extend_from_slice(&list.tail());
    assert_eq!(written.len(), list.content_length(page.items.len(), items_len));
    let again = reader.list(&written.into()).expect("a page of ours");
    let digests =
        |items: &[ObjectRevision]| items.iter().map(|item| (item.key.clone(), item.rv, item.body().clone())).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = (digests(&again.items), digests(&page.items));
    assert_eq!(ours, theirs);
    assert_eq!((again.resource_version, &again.continue_token), (page.resource_version, &page.continue_token));
    assert_eq!(again.kind, page.kind);
}
