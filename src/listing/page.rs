//! The objects of a page, found one by one or in whole chunks, and the chunks that they form.

use std::ops::Range;
use std::sync::Arc;

use super::scan_pacer::ScanPacer;
use crate::auth::{NamespaceAccess, ReadPermission};
use crate::cache::{CacheReader, CollectionView, FeedSnapshot, ObjectChunk, ObjectChunkBuilder};
use crate::feeds::FeedHandle;
use crate::wire::{ListItemLengths, ListMeta, ObjectRevision, Representation};
use kubeapi::{ContinueToken, ContinueVersion, ListPageSource, ListPlan, ObjectKey, ResourceVersionMatch, Selector};

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
    pub(super) reader: CacheReader,
    pub(super) meta: ListMeta,
    pub(super) chunks: PageChunks,
}

/// The objects of a page in key order: chunks that all lists share, and chunks of objects selected for this page alone.
#[derive(Debug)]
pub(crate) struct PageChunks {
    snapshot: FeedSnapshot,
    shared: Arc<[ObjectChunk]>,
    /// Whether the page is written at the time of its request, so that its bytes are not shared.
    is_private: bool,
    parts: Vec<PageChunk>,
    lengths: ListItemLengths,
}

#[derive(Debug)]
enum PageChunk {
    Shared(usize),
    Selected(ObjectChunk, Vec<Arc<ObjectRevision>>),
}

/// Consecutive objects that do not form a chunk yet.
#[derive(Debug)]
struct SelectedObjectRun {
    chunker: ObjectChunkBuilder,
    objects: Vec<Arc<ObjectRevision>>,
}

/// Consecutive chunks that are compressed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkBatch {
    pub(crate) chunks: Range<usize>,
    /// A number that identifies the content of the batch.
    pub(crate) name: u128,
    /// Whether the batch has only chunks of the snapshot, whose bytes all lists share.
    pub(crate) is_shared: bool,
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
    // A chunk has objects of one namespace, but many Namespaces.
    let has_whole_chunks = permit.namespaces().is_none_or(|part| namespaced && !part.has_names());
    let whole = PageChunks::can_share(&read.view) && has_whole_chunks;
    let shared = if whole { snapshot.chunks().await } else { Arc::default() };
    let mut chunks = PageChunks::new(snapshot.clone(), shared);
    chunks.is_private = matches!(read.representation, Representation::Printed(_));
    let mut more = if whole {
        chunks.put_chunks(permit, &read.view, namespaced, start.as_deref(), limit)
    } else {
        let objects = snapshot.scan_candidates(&read.view, namespaced, start.as_deref());
        chunks.put_matching(objects, (permit, &read.view), limit, pace).await;
        0
    };
    // A list of metadata does not repeat the shard selector (R-SHARD-2).
    let is_object = matches!(read.representation, Representation::Object(_) | Representation::Reduced(_, None));
    let shard = read.view.selector().shard.as_ref().filter(|_| is_object).map(ToString::to_string);
    let mut meta = ListMeta { resource_version: snapshot.rv, continue_token: String::new(), remaining: None, shard };
    if let Some(last) = chunks.last().filter(|_| chunks.lengths().items == limit) {
        if !whole {
            more = usize::from(has_more_to_scan(permit, feed, snapshot, read, last, pace).await);
        }
        if more > 0 {
            meta.continue_token =
                ContinueToken::after(ContinueVersion::Version(snapshot.rv), &last.key, read.in_namespace)
                    .encode(read.pages);
            // With a selector the apiserver does not count (R-CONTINUE-5). A caller with partial access must not learn
            // how many objects it cannot see.
            let counts = read.view.selector().is_everything() && permit.namespaces().is_none();
            meta.remaining = counts.then(|| i64::try_from(more).unwrap_or(i64::MAX));
            reader.keep_for_paging(snapshot);
        }
    }
    CollectionPage { reader: reader.clone(), meta, chunks }
}

impl CollectionPage {
    /// Returns the length of all objects in upstream's encoding.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.lengths().bytes
    }
}

impl PageChunks {
    /// Creates an empty page. `shared` are the chunks of the snapshot, or empty if objects are selected one by one.
    pub(crate) fn new(snapshot: FeedSnapshot, shared: Arc<[ObjectChunk]>) -> Self {
        Self { snapshot, shared, is_private: false, parts: Vec::new(), lengths: ListItemLengths::default() }
    }

    /// Returns whether the objects of a view form whole chunks except at its edges.
    pub(crate) fn can_share(view: &CollectionView) -> bool {
        view.selector().is_everything()
    }

    /// Appends the objects of a view that [`can_share`](Self::can_share) accepts, from `start` on, up to `limit`
    /// objects in all. Returns how many more there are.
    pub(crate) fn put_chunks(
        &mut self,
        permit: &ReadPermission,
        view: &CollectionView,
        namespaced: bool,
        start: Option<&str>,
        limit: usize,
    ) -> usize {
        let (shared, snapshot) = (self.shared.clone(), self.snapshot.clone());
        let namespace = view.namespace().filter(|_| namespaced);
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let start = start.unwrap_or_default().max(&prefix);
        let whole = shared.partition_point(|chunk| chunk.first.as_str() < start);
        // The rest of the chunk in whose middle the page starts.
        let end = shared.get(whole).map(|chunk| &chunk.first);
        let objects = snapshot.select(view, namespaced, Some(start).filter(|start| !start.is_empty()));
        let rest = objects.take_while(|object| end.is_none_or(|end| object.key < *end));
        let mut more = self.put(rest.filter(|object| permit.allows_namespace(object.key.namespace())), limit);
        for (index, chunk) in shared.iter().enumerate().skip(whole) {
            if !chunk.first.as_str().starts_with(&prefix) {
                break;
            }
            if !permit.allows_namespace(chunk.first.namespace()) {
                continue;
            }
            if chunk.lengths.items <= limit - self.lengths.items {
                self.lengths = self.lengths + chunk.lengths;
                self.parts.push(PageChunk::Shared(index));
            } else if self.lengths.items < limit {
                more += self.put(snapshot.objects_of(chunk), limit);
            } else {
                more += chunk.lengths.items;
            }
        }
        more
    }

    /// Appends the objects that the caller may see and that the view matches, up to `limit`, which is not zero.
    async fn put_matching<'a>(
        &mut self,
        objects: impl Iterator<Item = &'a Arc<ObjectRevision>>,
        seen: (&'a ReadPermission, &CollectionView),
        limit: usize,
        pace: &mut ScanPacer,
    ) {
        let (mut run, mut selected) = (self.begin_run(), 0);
        let select = |object| {
            self.extend_run(&mut run, object);
            selected += 1;
            selected < limit
        };
        scan(objects, seen, pace, select).await;
        self.end_run(run);
    }

    /// Appends objects to the page, up to `limit` in all. Returns how many more there are.
    fn put<'a>(&mut self, mut objects: impl Iterator<Item = &'a Arc<ObjectRevision>>, limit: usize) -> usize {
        let mut run = self.begin_run();
        for object in objects.by_ref().take(limit - self.lengths.items) {
            self.extend_run(&mut run, object);
        }
        self.end_run(run);
        objects.count()
    }

    fn begin_run(&self) -> SelectedObjectRun {
        SelectedObjectRun { chunker: self.snapshot.chunker(), objects: Vec::new() }
    }

    fn extend_run(&mut self, run: &mut SelectedObjectRun, object: &Arc<ObjectRevision>) {
        if let Some(chunk) = run.chunker.push(object) {
            self.put_selected(chunk, std::mem::take(&mut run.objects));
        }
        run.objects.push(object.clone());
    }

    fn end_run(&mut self, run: SelectedObjectRun) {
        if let Some(chunk) = run.chunker.end() {
            self.put_selected(chunk, run.objects);
        }
    }

    fn put_selected(&mut self, chunk: ObjectChunk, objects: Vec<Arc<ObjectRevision>>) {
        self.lengths = self.lengths + chunk.lengths;
        self.parts.push(PageChunk::Selected(chunk, objects));
    }

    /// Returns the number of objects and their length in upstream's encoding.
    pub(crate) fn lengths(&self) -> ListItemLengths {
        self.lengths
    }

    /// Returns the number of chunks of the page.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the chunk of the page at `index`.
    pub(crate) fn chunk(&self, index: usize) -> &ObjectChunk {
        match &self.parts[index] {
            PageChunk::Shared(chunk) => &self.shared[*chunk],
            PageChunk::Selected(chunk, _) => chunk,
        }
    }

    /// Returns whether a chunk is shared by all lists.
    pub(crate) fn is_shared(&self, index: usize) -> bool {
        !self.is_private && matches!(self.parts[index], PageChunk::Shared(_))
    }

    /// Groups chunks, so that short chunks at the ends of namespaces are compressed together, about
    /// [`ObjectChunk::BYTES`] at a time. As for chunks, the boundaries of a batch depend only on its content.
    pub(crate) fn batches(&self) -> Vec<ChunkBatch> {
        let mut batches: Vec<ChunkBatch> = Vec::new();
        let (mut bytes, mut is_full) = (0, true);
        for index in 0..self.len() {
            let (chunk, is_shared) = (self.chunk(index), self.is_shared(index));
            bytes += chunk.lengths.bytes;
            match batches.last_mut().filter(|_| !is_full && bytes <= ObjectChunk::BYTES_MAX) {
                Some(batch) => {
                    batch.chunks.end = index + 1;
                    batch.name = ObjectChunk::joined_name(batch.name, chunk.name);
                    batch.is_shared &= is_shared;
                }
                None => {
                    batches.push(ChunkBatch { chunks: index..index + 1, name: chunk.name, is_shared });
                    bytes = chunk.lengths.bytes;
                }
            }
            is_full = chunk.is_full;
        }
        batches
    }

    pub(crate) fn objects(&self, index: usize) -> Vec<&Arc<ObjectRevision>> {
        match &self.parts[index] {
            PageChunk::Shared(chunk) => self.snapshot.objects_of(&self.shared[*chunk]).collect(),
            PageChunk::Selected(_, objects) => objects.iter().collect(),
        }
    }

    pub(crate) fn last(&self) -> Option<&ObjectRevision> {
        let last = self.parts.len().checked_sub(1)?;
        self.objects(last).last().map(|object| &***object)
    }
}

/// Returns whether the apiserver would have more objects to scan after `last`, which fills a page of a selection. The
/// apiserver applies the selector during its scan, and returns a continue token while objects remain to be scanned. So
/// the last page may be empty.
async fn has_more_to_scan(
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
    if permit.namespaces().is_some() {
        // A caller with partial access must not learn how many objects it cannot see.
        let objects = snapshot.scan_candidates(&read.view, namespaced, Some(&start));
        let mut is_found = false;
        let select = |_| {
            is_found = true;
            false
        };
        scan(objects, (permit, &read.view), pace, select).await;
        return is_found;
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
            pace.rest_after_scan().await;
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

/// Passes the objects that the caller may see and that `view` matches to `select`, until it returns false. Permissions
/// are checked first: the selector is never evaluated on an object that the caller may not see.
async fn scan<'a>(
    objects: impl Iterator<Item = &'a Arc<ObjectRevision>>,
    (permit, view): (&'a ReadPermission, &CollectionView),
    pace: &mut ScanPacer,
    mut select: impl FnMut(&'a Arc<ObjectRevision>) -> bool,
) {
    // Adjacent objects are mostly of one namespace, which is checked once.
    let mut last: Option<(&str, NamespaceAccess)> = None;
    let mut sees = |key: &'a ObjectKey| match (&last, key.namespace_or_name()) {
        (Some((checked, access)), namespace) if *checked == namespace => access.allows(key.name()),
        (_, namespace) => last.insert((namespace, permit.access(namespace))).1.allows(key.name()),
    };
    for object in objects {
        if pace.spend(view.cost_of(object)) {
            pace.rest_after_scan().await;
        }
        if sees(&object.key) && view.matches(object) && !select(object) {
            break;
        }
    }
}

/// Returns up to `limit` namespaces that have an object in `view`, or that are one, in key order, from the first key that is not before
/// `start`. It skips the rest of a namespace after its first match.
pub(crate) async fn namespaces(
    snapshot: &FeedSnapshot,
    (view, namespaced): (&CollectionView, bool),
    start: Option<&str>,
    limit: usize,
    pace: &mut ScanPacer,
) -> Vec<Arc<str>> {
    let (mut found, mut start) = (Vec::<Arc<str>>::new(), start.map(str::to_owned));
    'namespaces: while found.len() < limit {
        for object in snapshot.scan_candidates(view, namespaced, start.as_deref()) {
            if pace.spend(view.cost_of(object)) {
                pace.rest_after_scan().await;
            }
            if view.matches(object) {
                let namespace = object.key.namespace_or_name();
                found.push(namespace.into());
                // '0' is the character after '/'.
                start = Some(format!("{namespace}{}", if namespaced { '0' } else { '\0' }));
                continue 'namespaces;
            }
        }
        break;
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::listing::{CallerCpuSlices, ScanQueue};
    use crate::wire::{FeedEncoding, JsonLayout, ObjectReader};
    use kubeapi::{FieldSelector, Gvr, LabelSelector, ResourceVersion, SelectableFieldTable, Selector};

    /// Pods in namespaces with common prefixes: `-` and `.` sort before `/` (R-LIST-4).
    fn snapshot() -> FeedSnapshot {
        let pods = [("t1", "p"), ("t1", "q"), ("t1-a", "p"), ("t1.a", "p"), ("a", "p"), ("b", "p"), ("t1", "a")];
        let item = |(namespace, name)| {
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","resourceVersion":"1"}}}}"#)
        };
        let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":["#;
        let page = format!("{head}{}]}}", pods.map(item).join(","));
        let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default());
        let listed = reader.list(&Bytes::from(page)).expect("it is well-formed");
        FeedSnapshot::from_objects(ResourceVersion(100), listed.items)
    }

    #[tokio::test]
    async fn namespaces_are_found_once_in_object_order() {
        let (snapshot, table) = (snapshot(), SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods")));
        for (labels, fields, start, limit, expected) in [
            ("", "", None, 9, vec!["a", "b", "t1-a", "t1.a", "t1"]),
            ("", "", None, 2, vec!["a", "b"]),
            ("", "metadata.name=a", None, 9, vec!["t1"]),
            ("", "metadata.namespace=t1", None, 9, vec!["t1"]),
            ("app=y", "", None, 9, vec![]),
            ("", "", Some("t1-a/p"), 9, vec!["t1-a", "t1.a", "t1"]),
            ("", "", Some("t1-a/p\0"), 9, vec!["t1.a", "t1"]),
        ] {
            let fields = FieldSelector::parse(fields).expect("valid").compile(&table).expect("known fields");
            let selector =
                Selector { labels: LabelSelector::parse(labels).expect("valid"), fields, ..Selector::default() };
            let view = CollectionView::new(None, selector);
            let mut pace = ScanPacer::new(None, (ScanQueue::at_a_time(1), CallerCpuSlices::new(1)), None);
            let found = namespaces(&snapshot, (&view, true), start, limit, &mut pace).await;
            assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected, "{labels:?} {start:?} {limit}");
        }
    }
}
