use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::auth::Grant;
use crate::cache::{Lease, Snapshot, View};
use crate::kube::{ContinueAt, ContinueToken, Selector, VersionMatch};
use crate::wire::{ListFrame, ListMeta, Object};

use super::route::ListRead;

/// A LIST on its way out: shared objects and the place reached among them.
#[derive(Debug)]
pub(super) struct ListBody {
    frame: ListFrame,
    objects: Vec<Arc<Object>>,
    next: usize,
    head: Option<Bytes>,
    tail: Option<Bytes>,
}

/// Bytes put together for one write.
const CHUNK_BYTES: usize = 64 << 10;

/// One page of `snapshot`, as the read asks for it. A page that is not the last keeps the snapshot for the next ones.
pub(super) fn page(_grant: &Grant, lease: &Lease, snapshot: &Snapshot, read: &ListRead) -> ListBody {
    let reader = &lease.reader;
    let namespaced = reader.namespaced();
    // Keys of continue tokens are relative to the request's collection (semantics.md §2.6).
    let start = read.plan.start.as_deref().map(|start| match read.view.namespace() {
        Some(namespace) if read.in_namespace => format!("{namespace}/{start}"),
        _ => start.to_owned(),
    });
    let found = snapshot.select(&read.view, namespaced, start.as_deref());
    let limit = read.plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let objects: Vec<_> = found.take(limit).cloned().collect();
    let mut meta = ListMeta { resource_version: snapshot.rv, continue_token: String::new(), remaining: None };
    let full = objects.last().filter(|_| objects.len() == limit);
    let more = full.map_or(0, |last| left_behind(lease, snapshot, read, last));
    if let (Some(last), true) = (full, more > 0) {
        meta.continue_token =
            ContinueToken::after(ContinueAt::Version(snapshot.rv), &last.key, read.in_namespace).encode();
        // With a selector the apiserver does not count (semantics.md §2.6).
        meta.remaining = read.view.selector().is_everything().then(|| i64::try_from(more).unwrap_or(i64::MAX));
        reader.hold(snapshot);
    }
    ListBody::new(reader.envelope().list(&meta), objects)
}

/// How many objects the apiserver would have left to look at behind a full page's `last`. It applies a selector to what
/// it scans, one by one, and offers to go on as long as there is something to scan: the last page may be empty. With a
/// selector only whether there are any is told.
fn left_behind(lease: &Lease, snapshot: &Snapshot, read: &ListRead, last: &Object) -> usize {
    let namespaced = lease.reader.namespaced();
    if read.view.single(namespaced).is_some() {
        return 0;
    }
    let scope = View::new(read.view.namespace(), Selector::everything());
    let start = format!("{}\0", last.key.as_str());
    let mut scanned = snapshot.select(&scope, namespaced, Some(&start));
    if read.view.selector().is_everything() {
        return scanned.count();
    }
    let indexed = index(lease, read);
    usize::from(scanned.any(|object| indexed.is_none_or(|(field, value)| &*object.attributes.fields[field] == value)))
}

/// The field by which the apiserver finds what it scans, and its value: it has the same index as we have lanes, and
/// uses it but for lists of an exact version.
fn index<'a>(lease: &'a Lease, read: &'a ListRead) -> Option<(usize, &'a str)> {
    let key = lease.spec.lane_field.as_deref().filter(|_| !matches!(read.plan.version, VersionMatch::Exact(_)))?;
    let value = read.view.selector().fields.required_field(key)?;
    Some((lease.spec.fields.fields.iter().position(|field| field.key == key)?, value))
}

impl ListBody {
    fn new(frame: ListFrame, objects: Vec<Arc<Object>>) -> Self {
        let items_len = objects.iter().map(|object| frame.item_len(object.body().len())).sum();
        let head = Some(frame.head(objects.len(), items_len));
        let tail = Some(frame.tail());
        Self { frame, objects, next: 0, head, tail }
    }

    /// The next piece; `None` after the last.
    pub(super) fn next_chunk(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        if let Some(head) = self.head.take() {
            chunk.extend_from_slice(&head);
        }
        while let Some(object) = self.objects.get(self.next) {
            let len = self.frame.item_len(object.body().len());
            if !chunk.is_empty() && chunk.len() + len > CHUNK_BYTES {
                return Some(chunk.freeze());
            }
            self.frame.put_item(self.next == 0, object.body(), &mut chunk);
            self.next += 1;
        }
        if let Some(tail) = self.tail.take() {
            chunk.extend_from_slice(&tail);
        }
        Some(chunk.freeze())
    }
}
