use std::future::poll_fn;
use std::sync::Arc;

use super::chunk_writer::ListChunkWriter;
use super::list_body::{ListBody, PLAIN_BYTES_MAX};
use super::namespace_check;
use super::page_chunks::PageChunks;
use super::scan_pacer::ScanPacer;
use crate::auth::ReadPermission;
use crate::cache::{CacheReader, CollectionView, FeedSnapshot};
use crate::feeds::FeedHandle;
use crate::wire::{FeedEncoding, ListMeta, ObjectRenderer, ObjectRevision, Representation, TranscodeError};
use kubeapi::{ContinueToken, ContinueVersion, ListPageSource, ListPlan, ResourceVersionMatch, Selector};

/// A request for one page of a collection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListPageRequest {
    pub(crate) representation: Representation,
    pub(crate) view: CollectionView,
    pub(crate) plan: ListPlan,
    /// Whether the path names a namespace. If so, keys in continue tokens are relative to that namespace.
    pub(crate) in_namespace: bool,
    /// The store whose spelling of continue tokens is used.
    pub(crate) pages: ListPageSource,
}

/// One page of a collection, before it is encoded.
#[derive(Debug)]
pub(crate) struct CollectionPage {
    reader: CacheReader,
    meta: ListMeta,
    chunks: PageChunks,
}

/// Selects the objects of a page of `snapshot`. If the page is not the last, the snapshot is kept for the next ones.
pub(crate) async fn page(
    permit: &ReadPermission,
    feed: &FeedHandle,
    snapshot: &FeedSnapshot,
    read: &ListPageRequest,
    pace: &mut ScanPacer,
) -> CollectionPage {
    let reader = &feed.reader;
    let namespaced = reader.namespaced();
    // Keys of continue tokens are relative to the request's collection (R-CONTINUE-2).
    let start = read.plan.start.as_deref().map(|start| match read.view.namespace() {
        Some(namespace) if read.in_namespace => format!("{namespace}/{start}"),
        _ => start.to_owned(),
    });
    let limit = read.plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let whole = PageChunks::suit(&read.view);
    let shared = if whole { snapshot.chunks().await } else { Arc::default() };
    let mut chunks = PageChunks::new(snapshot.clone(), shared);
    let mut more = if whole {
        chunks.put_chunks(permit, &read.view, namespaced, start.as_deref(), limit)
    } else {
        let looked_at = snapshot.looked_at(&read.view, namespaced, start.as_deref());
        namespace_check::pick(&mut chunks, looked_at, (permit, &read.view), limit, pace).await;
        0
    };
    let mut meta = ListMeta { resource_version: snapshot.rv, continue_token: String::new(), remaining: None };
    if let Some(last) = chunks.last().filter(|_| chunks.lengths().items == limit) {
        if !whole {
            more = usize::from(is_left_behind(permit, feed, snapshot, read, last, pace).await);
        }
        if more > 0 {
            meta.continue_token =
                ContinueToken::after(ContinueVersion::Version(snapshot.rv), &last.key, read.in_namespace)
                    .encode(read.pages);
            // With a selector the apiserver does not count (R-CONTINUE-5). A caller with partial access must not learn
            // how many objects it cannot see.
            let counts = read.view.selector().is_everything() && permit.part().is_none();
            meta.remaining = counts.then(|| i64::try_from(more).unwrap_or(i64::MAX));
            reader.hold(snapshot);
        }
    }
    CollectionPage { reader: reader.clone(), meta, chunks }
}

impl CollectionPage {
    /// Returns the length of all objects in upstream's encoding.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.lengths().bytes
    }

    /// Encodes the page in a representation. Every object is checked to be encodable before the first byte is sent.
    pub(crate) async fn written_by(
        self,
        renderer: &ObjectRenderer,
        pace: &mut ScanPacer,
    ) -> Result<ListBody, TranscodeError> {
        let Self { reader, meta, chunks } = self;
        let items = chunks.lengths().items;
        let frame = renderer.list(&meta, items);
        let writer = ListChunkWriter::items(reader, renderer.clone(), frame.clone());
        let mut items_len = frame.items_len(chunks.lengths());
        if !renderer.is_verbatim() {
            // A JSON head contains no lengths, so it only matters whether the list is long enough to be compressed.
            let measures = renderer.representation().encoding() == FeedEncoding::Protobuf;
            items_len = 0;
            for index in 0..chunks.len() {
                if measures || items_len <= PLAIN_BYTES_MAX || !writer.was_written(&chunks, index) {
                    let plain = poll_fn(|cx| writer.poll_plain(&chunks, index, cx)).await?;
                    items_len += plain.iter().map(bytes::Bytes::len).sum::<usize>();
                    pace.rest().await;
                }
            }
        }
        Ok(ListBody::new(writer, chunks, &frame, items_len, pace.scan_budget()))
    }
}

/// Returns whether the apiserver would have more objects to scan after `last`, which fills a page of a selection. The
/// apiserver applies the selector during its scan, and returns a continue token while objects remain to be scanned. So
/// the last page may be empty.
async fn is_left_behind(
    permit: &ReadPermission,
    feed: &FeedHandle,
    snapshot: &FeedSnapshot,
    read: &ListPageRequest,
    last: &ObjectRevision,
    pace: &mut ScanPacer,
) -> bool {
    let namespaced = feed.reader.namespaced();
    if read.view.single(namespaced).is_some() {
        return false;
    }
    let start = format!("{}\0", last.key.as_str());
    if permit.part().is_some() {
        // A caller with partial access must not learn how many objects it cannot see.
        let looked_at = snapshot.looked_at(&read.view, namespaced, Some(&start));
        return namespace_check::first(looked_at, (permit, &read.view), pace).await.is_some();
    }
    let scope = CollectionView::new(read.view.namespace(), Selector::everything());
    let Some((field, value)) = index(feed, read) else {
        return snapshot.select(&scope, namespaced, Some(&start)).next().is_some();
    };
    for object in snapshot.select(&scope, namespaced, Some(&start)) {
        if object.attributes.field(field) == value {
            return true;
        }
        if pace.spend(scope.cost_of(object)) {
            pace.rest_from_looking().await;
        }
    }
    false
}

/// Returns the field that the apiserver's scan uses as an index, and its value. It uses its index except for lists of
/// an exact version.
fn index<'a>(feed: &'a FeedHandle, read: &'a ListPageRequest) -> Option<(usize, &'a str)> {
    let key =
        feed.spec.index_field.as_deref().filter(|_| !matches!(read.plan.version, ResourceVersionMatch::Exact(_)))?;
    let value = read.view.selector().fields.required_field(key)?;
    Some((feed.spec.fields.fields.iter().position(|field| field.key == key)?, value))
}
