//! Pods as kube-apiserver 1.37.1 writes them into watches, including managed fields: 2.8 KB in protobuf, 4.2 KB in
//! JSON.
//!
//! One captured frame in each form, and any number of pods that differ from it only in digits: their names, their
//! versions, and ten namespaces, nodes and values of the label `app`.

use std::sync::Arc;

use bytes::Bytes;
use kube_fanout::cache::{CollectionView, FeedSnapshot, ObjectChange};
use kube_fanout::wire::{
    FeedEncoding, FrameEnvelope, JsonLayout, ObjectReader, ObjectRevision, TableColumns, WatchItem,
};
use kubeapi::{EventType, FieldSelector, Gvr, LabelSelector, ResourceVersion, SelectableFieldTable, Selector};

/// The release that wrote the frames.
pub const MINOR: u32 = 37;

/// Added to the version of every pod, so that all have the same number of digits.
const VERSIONS_AFTER: u64 = 1_000_000_000;

/// Generates pods in one form, and parses them as a feed of pods does.
pub struct Pods {
    pub reader: ObjectReader,
    pub envelope: FrameEnvelope,
    /// Known columns of a Table.
    pub columns: TableColumns,
    /// A MODIFIED event.
    frame: Vec<u8>,
    /// Positions of digits to replace, their number, and the source of the new ones.
    places: Vec<(usize, usize, Digits)>,
}

#[derive(Clone, Copy)]
enum Digits {
    Name,
    Namespace,
    Node,
    App,
    Version,
}

impl Pods {
    pub fn new(encoding: FeedEncoding) -> Self {
        let captured: &'static [u8] = match encoding {
            FeedEncoding::Json => include_bytes!("pod.json"),
            FeedEncoding::Protobuf => include_bytes!("pod.pb"),
            FeedEncoding::Table => include_bytes!("pod.table"),
        };
        let columns = TableColumns::default();
        let reader =
            ObjectReader::new(encoding, JsonLayout::BuiltIn, Arc::new(Self::fields())).with_table_columns(&columns);
        let envelope = FrameEnvelope::new(encoding, "v1", "Pod", JsonLayout::BuiltIn);
        let object = object(reader.watch_event(Bytes::from_static(captured)));
        let body = object.with_resource_version(ResourceVersion(VERSIONS_AFTER));
        let frame = envelope.frame(EventType::Modified, &body).to_vec();
        let marks = [
            ("checkout-7d9f8c6b5d-", 6, Digits::Name),
            ("shop-", 1, Digits::Namespace),
            ("node-", 1, Digits::Node),
            ("app-", 1, Digits::App),
            ("", 10, Digits::Version),
        ];
        let zeros = |count, digits| match digits {
            Digits::Version => VERSIONS_AFTER.to_string(),
            _ => "0".repeat(count),
        };
        let find = |(before, count, digits): (&str, usize, Digits)| {
            let text = format!("{before}{}", zeros(count, digits));
            let found: Vec<_> =
                frame.windows(text.len()).enumerate().filter(|(_, at)| *at == text.as_bytes()).collect();
            assert!(!found.is_empty(), "{text} is in a pod");
            found.into_iter().map(|(at, _)| (at + before.len(), count, digits)).collect::<Vec<_>>()
        };
        let places = marks.into_iter().flat_map(find).collect();
        Self { reader, envelope, columns, frame, places }
    }

    pub fn gvr() -> Gvr {
        Gvr::new("", "v1", "pods")
    }

    pub fn fields() -> SelectableFieldTable {
        SelectableFieldTable::of_builtin(&Self::gvr())
    }

    /// The MODIFIED event of the `n`-th pod at the `rv`-th version.
    pub fn frame(&self, n: u64, rv: u64) -> Bytes {
        let mut frame = self.frame.clone();
        for (at, count, digits) in &self.places {
            let mut rest = match digits {
                Digits::Name => n,
                Digits::Namespace => n % 10,
                Digits::Node => n / 10 % 10,
                Digits::App => n / 100 % 10,
                Digits::Version => VERSIONS_AFTER + rv,
            };
            for byte in frame[*at..at + count].iter_mut().rev() {
                *byte = b'0' + u8::try_from(rest % 10).expect("a digit");
                rest /= 10;
            }
        }
        frame.into()
    }

    pub fn object(&self, n: u64, rv: u64) -> ObjectRevision {
        object(self.reader.watch_event(self.frame(n, rv)))
    }

    /// The same event, parsed for the cache.
    pub fn change(&self, n: u64, rv: u64) -> ObjectChange {
        match self.reader.watch_event(self.frame(n, rv)) {
            Ok(WatchItem::Change { event_type, object, frame }) => {
                ObjectChange { event_type, object, frame: Some(frame) }
            }
            other => panic!("a pod reads as one: {other:?}"),
        }
    }

    /// The first `count` pods.
    pub fn snapshot(&self, count: u64) -> FeedSnapshot {
        let rv = ResourceVersion(VERSIONS_AFTER + count);
        FeedSnapshot::from_objects(rv, (0..count).map(|n| self.object(n, n)))
    }
}

pub fn view(namespace: Option<&str>, labels: &str, fields: &str) -> CollectionView {
    CollectionView::new(namespace, selector(labels, fields))
}

pub fn selector(labels: &str, fields: &str) -> Selector {
    let fields = FieldSelector::parse(fields).and_then(|parsed| parsed.compile(&Pods::fields())).expect("a selector");
    Selector { labels: LabelSelector::parse(labels).expect("a selector"), fields, shard: None }
}

fn object<E: std::fmt::Debug>(item: Result<WatchItem, E>) -> ObjectRevision {
    match item {
        Ok(WatchItem::Change { object, .. }) => object,
        other => panic!("a pod reads as one: {other:?}"),
    }
}
