use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::auth::Permit;
use crate::cache::{CacheReader, Lease, Segments, Snapshot, View};
use crate::kube::{ContinueAt, ContinueToken, Selector, VersionMatch};
use crate::wire::{Form, ListFrame, ListMeta, Object, Refused, Renderer};

use super::route::ListRead;

/// One page of a collection, not yet written.
#[derive(Debug)]
pub(super) struct Page {
    reader: CacheReader,
    meta: ListMeta,
    objects: Vec<Arc<Object>>,
}

/// A LIST on its way out: shared objects and the place reached among them.
#[derive(Debug)]
pub(super) struct ListBody {
    reader: CacheReader,
    renderer: Renderer,
    frame: ListFrame,
    objects: Vec<Arc<Object>>,
    next: usize,
    head: Option<Bytes>,
    tail: Option<Bytes>,
}

/// Bytes put together for one write.
const CHUNK_BYTES: usize = 64 << 10;
/// Objects that are derived before others get their turn.
const DERIVED_AT_A_TIME: usize = 64;

/// One page of `snapshot`, as the read asks for it. A page that is not the last keeps the snapshot for the next ones.
pub(super) fn page(permit: &Permit, lease: &Lease, snapshot: &Snapshot, read: &ListRead) -> Page {
    let reader = &lease.reader;
    let namespaced = reader.namespaced();
    // Keys of continue tokens are relative to the request's collection (semantics.md §2.6).
    let start = read.plan.start.as_deref().map(|start| match read.view.namespace() {
        Some(namespace) if read.in_namespace => format!("{namespace}/{start}"),
        _ => start.to_owned(),
    });
    let seen = |object: &&Arc<Object>| permit.sees(object.key.namespace());
    let found = snapshot.select(&read.view, namespaced, start.as_deref()).filter(seen);
    let limit = read.plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let objects: Vec<_> = found.take(limit).cloned().collect();
    let mut meta = ListMeta { resource_version: snapshot.rv, continue_token: String::new(), remaining: None };
    let full = objects.last().filter(|_| objects.len() == limit);
    let more = full.map_or(0, |last| left_behind(permit, lease, snapshot, read, last));
    if let (Some(last), true) = (full, more > 0) {
        meta.continue_token =
            ContinueToken::after(ContinueAt::Version(snapshot.rv), &last.key, read.in_namespace).encode();
        // With a selector the apiserver does not count (semantics.md §2.6).
        let counts = read.view.selector().is_everything() && permit.part().is_none();
        meta.remaining = counts.then(|| i64::try_from(more).unwrap_or(i64::MAX));
        reader.hold(snapshot);
    }
    Page { reader: reader.clone(), meta, objects }
}

impl Page {
    /// The answer in a representation. That every object can be written in it is known before the first byte is sent.
    pub(super) async fn written_by(self, renderer: &Renderer) -> Result<ListBody, Refused> {
        let Self { reader, meta, objects } = self;
        let representation = renderer.representation();
        if !renderer.is_verbatim() {
            let mut written = 0;
            for object in objects.iter().filter(|object| !object.was_written(representation)) {
                reader.body(object, renderer)?;
                written += 1;
                if written % DERIVED_AT_A_TIME == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
        let frame = renderer.list(&meta, objects.len());
        // A JSON head says nothing of lengths.
        let mut items_len = 0;
        for (index, object) in objects.iter().enumerate().filter(|_| representation.form() == Form::Protobuf) {
            items_len += frame.item_len(reader.body(object, renderer)?.len());
            if index % DERIVED_AT_A_TIME == 0 && !renderer.is_verbatim() {
                tokio::task::yield_now().await;
            }
        }
        let (head, tail) = (Some(frame.head(objects.len(), items_len)), Some(frame.tail()));
        Ok(ListBody { reader, renderer: renderer.clone(), frame, objects, next: 0, head, tail })
    }
}

/// How many objects the apiserver would have left to look at behind a full page's `last`. It applies a selector to what
/// it scans, one by one, and offers to go on as long as there is something to scan: the last page may be empty. With a
/// selector only whether there are any is told.
fn left_behind(permit: &Permit, lease: &Lease, snapshot: &Snapshot, read: &ListRead, last: &Object) -> usize {
    let namespaced = lease.reader.namespaced();
    if read.view.single(namespaced).is_some() {
        return 0;
    }
    let start = format!("{}\0", last.key.as_str());
    if permit.part().is_some() {
        // How much there is that is not shown must not show.
        let mut found = snapshot.select(&read.view, namespaced, Some(&start));
        return usize::from(found.any(|object| permit.sees(object.key.namespace())));
    }
    let scope = View::new(read.view.namespace(), Selector::everything());
    let mut scanned = snapshot.select(&scope, namespaced, Some(&start));
    if read.view.selector().is_everything() {
        return scanned.count();
    }
    let indexed = index(lease, read);
    usize::from(scanned.any(|object| indexed.is_none_or(|(field, value)| object.attributes.field(field) == value)))
}

/// The field by which the apiserver finds what it scans, and its value: it uses its index but for lists of an exact
/// version.
fn index<'a>(lease: &'a Lease, read: &'a ListRead) -> Option<(usize, &'a str)> {
    let key = lease.spec.index_field.as_deref().filter(|_| !matches!(read.plan.version, VersionMatch::Exact(_)))?;
    let value = read.view.selector().fields.required_field(key)?;
    Some((lease.spec.fields.fields.iter().position(|field| field.key == key)?, value))
}

impl ListBody {
    /// The next piece; `None` after the last.
    pub(super) fn next_chunk(&mut self) -> Option<Result<Bytes, Refused>> {
        self.tail.as_ref()?;
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        if let Some(head) = self.head.take() {
            chunk.extend_from_slice(&head);
        }
        while let Some(object) = self.objects.get(self.next) {
            let body = match self.reader.body(object, &self.renderer) {
                Ok(body) => body,
                Err(refused) => return Some(Err(refused)),
            };
            let len = self.frame.item_len(body.len());
            if !chunk.is_empty() && chunk.len() + len > CHUNK_BYTES {
                return Some(Ok(chunk.freeze()));
            }
            self.frame.put_item(self.next == 0, &body, &mut chunk);
            self.next += 1;
        }
        if let Some(tail) = self.tail.take() {
            chunk.extend_from_slice(&tail);
        }
        Some(Ok(chunk.freeze()))
    }

    /// Whether the answer has more than so many bytes.
    pub(super) fn is_longer_than(&self, bytes: usize) -> bool {
        let mut len = self.head().len() + self.tail().len();
        for object in &self.objects {
            if len > bytes {
                break;
            }
            len += self.reader.body(object, &self.renderer).map_or(0, |body| self.frame.item_len(body.len()));
        }
        len > bytes
    }

    pub(super) fn head(&self) -> Bytes {
        self.head.clone().unwrap_or_default()
    }

    pub(super) fn tail(&self) -> Bytes {
        self.tail.clone().unwrap_or_default()
    }

    /// The next run of neighbours. Where runs end is a matter of the keys alone, so that a run is the same in every
    /// list that has all of its objects, and a change touches one of them.
    pub(super) fn next_run(&mut self) -> Option<Range<usize>> {
        let start = self.next;
        let ends = |object: &Arc<Object>| hash(&object.key).is_multiple_of(RUN_OBJECTS);
        let last = self.objects.get(start..)?.iter().take(RUN_OBJECTS_MAX).position(ends);
        let end = last.map_or(self.objects.len().min(start + RUN_OBJECTS_MAX), |last| start + last + 1);
        self.next = end;
        (start < end).then_some(start..end)
    }

    /// What a run is made from, as a number that no other run has.
    pub(super) fn name_of(&self, run: &Range<usize>) -> u128 {
        let parts = || self.objects[run.clone()].iter().map(|object| (&object.key, object.rv));
        let whole = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, self.renderer.representation(), self.renderer.release(), run.len()).hash(&mut hasher);
            parts().for_each(|part| part.hash(&mut hasher));
            hasher.finish()
        };
        u128::from(whole(0)) << 64 | u128::from(whole(1))
    }

    /// A run's items, without what separates it from the one before.
    pub(super) fn run(&self, run: &Range<usize>) -> Result<Vec<u8>, Refused> {
        let mut out = Vec::new();
        for (index, object) in self.objects[run.clone()].iter().enumerate() {
            let body = self.reader.body(object, &self.renderer)?;
            self.frame.put_item(index == 0, &body, &mut out);
        }
        Ok(out)
    }

    /// Whether a comma goes before a run.
    pub(super) fn separates(&self, run: &Range<usize>) -> bool {
        run.start > 0 && self.renderer.representation().form() == Form::Json
    }

    pub(super) fn segments(&self) -> &Segments {
        self.reader.segments()
    }
}

/// Objects in a run, on average and at most.
const RUN_OBJECTS: u64 = 32;
const RUN_OBJECTS_MAX: usize = 256;

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
