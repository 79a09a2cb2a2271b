use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use super::{FeedEncoding, Representation, WireError, table};
use kubeapi::protobuf::{self, put_varint, varint_len};
use kubeapi::{ObjectKey, ResourceVersion, SelectableAttributes};

/// One revision of one object, immutable. Its body is stored once: store, ring, LIST and every frame share it.
///
/// Only an [`ObjectReader`](super::ObjectReader) creates one, so its parts match its bytes. Callers keep it in an
/// `Arc`.
pub struct ObjectRevision {
    /// The key of the object; empty for a bookmark, which has no name.
    pub key: ObjectKey,
    /// The object's resourceVersion, which is never 0.
    pub rv: ResourceVersion,
    pub attributes: SelectableAttributes,
    body: Bytes,
    rv_at: ResourceVersionSpan,
    encoding: FeedEncoding,
    /// The number of bytes of the allocation that `body` keeps alive: its own, or the whole watch frame that contains
    /// it.
    allocated: u32,
    /// A bit for each representation in which the object has been written.
    written: AtomicU16,
    /// The object's derived JSON while it is cached; boxed, because most objects have none.
    json: Mutex<Option<Box<Bytes>>>,
}

/// The memory of an object besides its content, in bytes: its reference counts, allocator overhead of three
/// allocations, and its slot in the map that holds it. In the worst case the map's nodes are half full.
const OVERHEAD_BYTES: usize = 16 + 16 + 3 * 16 + 64;

const _: () = assert!(Representation::COUNT <= 16, "a bit each");

/// The position of the resourceVersion's digits in a body. Bodies are smaller than 4 GiB, and a `u64` has at most 20
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ResourceVersionSpan {
    pub(super) offset: u32,
    pub(super) len: u8,
}

/// The values that a reader has found in one body.
pub(super) struct DecodedObjectFields {
    pub(super) key: ObjectKey,
    pub(super) rv: ResourceVersion,
    pub(super) rv_at: ResourceVersionSpan,
    pub(super) attributes: SelectableAttributes,
}

impl DecodedObjectFields {
    /// Returns the memory of the object besides its body, in bytes.
    pub(super) fn bytes_without_body(&self) -> usize {
        bytes_without_body(&self.key, &self.attributes)
    }

    /// Returns the same reading for a body in which everything is shifted by `by` bytes.
    pub(super) fn shifted(self, by: usize) -> Result<Self, WireError> {
        let offset = u32::try_from(by).ok().and_then(|by| self.rv_at.offset.checked_add(by));
        let offset = offset.ok_or(WireError::BadResourceVersion)?;
        Ok(Self { rv_at: ResourceVersionSpan { offset, ..self.rv_at }, ..self })
    }
}

fn bytes_without_body(key: &ObjectKey, attributes: &SelectableAttributes) -> usize {
    size_of::<ObjectRevision>() + key.as_str().len() + attributes.heap_bytes() + OVERHEAD_BYTES
}

impl ObjectRevision {
    /// Creates an object. `allocated` is the size of the allocation that contains `body`; `reading.rv_at` must lie
    /// inside `body`.
    pub(super) fn new(encoding: FeedEncoding, body: Bytes, allocated: usize, reading: DecodedObjectFields) -> Self {
        let DecodedObjectFields { key, rv, rv_at, attributes } = reading;
        debug_assert!(allocated >= body.len() && rv_at.offset as usize + usize::from(rv_at.len) <= body.len());
        let allocated = u32::try_from(allocated).unwrap_or(u32::MAX);
        Self {
            key,
            rv,
            attributes,
            body,
            rv_at,
            encoding,
            allocated,
            written: AtomicU16::new(0),
            json: Mutex::new(None),
        }
    }

    /// Splits the object into its body and the values read from it.
    pub(super) fn into_parts(self) -> (Bytes, DecodedObjectFields) {
        let Self { key, rv, attributes, body, rv_at, .. } = self;
        (body, DecodedObjectFields { key, rv, rv_at, attributes })
    }

    /// Returns the bytes that a reader charges for the object, including the allocation that contains its body.
    #[cfg(test)]
    pub fn charged_bytes(&self) -> usize {
        self.allocated as usize + base::MemoryAccount::OVERHEAD_BYTES + bytes_without_body(&self.key, &self.attributes)
    }

    /// Returns upstream's bytes in the normal form described in [`wire`](super).
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the encoding of [`body`](Self::body).
    pub fn encoding(&self) -> FeedEncoding {
        self.encoding
    }

    /// Returns the body with `rv` in place of its own resourceVersion and nothing else changed. The apiserver sends it
    /// if an object leaves a watch's selection (R-EVENT-2). In protobuf the enclosing lengths follow the digit count; a
    /// Table has the version twice. The call makes one allocation of exact size, or none if `rv` is the object's own.
    pub fn with_resource_version(&self, rv: ResourceVersion) -> Bytes {
        if rv == self.rv {
            return self.body.clone();
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(rv.0).as_bytes();
        let (start, end) = (self.rv_at.offset as usize, self.rv_at.offset as usize + usize::from(self.rv_at.len));
        match self.encoding {
            FeedEncoding::Json => [&self.body[..start], digits, &self.body[end..]].concat().into(),
            FeedEncoding::Table => table::restamped(&self.body, (start, end), digits),
            FeedEncoding::Protobuf => self.restamped_protobuf(start, end, digits),
        }
    }

    /// Returns whether the object has been written in a representation, so that writing it again cannot fail.
    pub fn is_encodable(&self, representation: Representation) -> bool {
        self.written.load(Ordering::Relaxed) & (1 << representation.index()) != 0
    }

    /// Records that the object has been written in a representation.
    pub fn set_encodable(&self, representation: Representation) {
        self.written.fetch_or(1 << representation.index(), Ordering::Relaxed);
    }

    /// Returns the object's derived JSON body, if it is cached.
    pub fn cached_json(&self) -> Option<Bytes> {
        self.json.lock().as_deref().cloned()
    }

    /// Caches the object's derived JSON body, or drops it. Returns whether one was cached before.
    pub fn keep_json(&self, body: Option<Bytes>) -> bool {
        std::mem::replace(&mut *self.json.lock(), body.map(Box::new)).is_some()
    }

    /// Returns an estimate of the bytes to charge for this object: the allocation that contains its body, its key and
    /// attributes, and itself. If it came by watch, the allocation is the whole frame. The estimate excludes allocator
    /// overhead.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.allocated as usize + self.key.as_str().len() + self.attributes.heap_bytes()
    }

    fn restamped_protobuf(&self, start: usize, end: usize, digits: &[u8]) -> Bytes {
        let (metadata_at, metadata_len) = protobuf::leading_message(&self.body)
            .expect("the reader accepts no body that does not start with metadata");
        let metadata_end = metadata_at + metadata_len;
        // The length of the digits is the byte before them: it is at most 20, and the reader refuses longer encodings
        // of it.
        let length_at = start - 1;
        let new_len = metadata_len - (end - start) + digits.len();

        let mut body =
            BytesMut::with_capacity(1 + varint_len(new_len as u64) + new_len + self.body.len() - metadata_end);
        body.put_u8(self.body[0]);
        put_varint(&mut body, new_len as u64);
        body.put_slice(&self.body[metadata_at..length_at]);
        put_varint(&mut body, digits.len() as u64);
        body.put_slice(digits);
        body.put_slice(&self.body[end..]);
        debug_assert_eq!(body.len(), body.capacity());
        body.freeze()
    }
}

/// Clones the attributes and shares the body; the cached JSON is not cloned.
impl Clone for ObjectRevision {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            attributes: self.attributes.clone(),
            body: self.body.clone(),
            written: AtomicU16::new(self.written.load(Ordering::Relaxed)),
            json: Mutex::new(None),
            ..*self
        }
    }
}

/// Prints `ObjectRevision { default/web-1 @ 4711, 9690 bytes of protobuf }`, without the content, which may be a
/// Secret's.
impl fmt::Debug for ObjectRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectRevision {{ {} @ {}, {} bytes of {} }}", self.key, self.rv, self.body.len(), self.encoding)
    }
}

/// Parses the version of an object or list. 0 and the empty string mean "any" in requests, so they are invalid here.
pub(super) fn parse_resource_version(digits: &str) -> Result<ResourceVersion, WireError> {
    digits.parse().ok().filter(|rv| *rv != ResourceVersion(0)).ok_or(WireError::BadResourceVersion)
}

/// Sorts labels, and rejects duplicates. Go prints maps sorted and protobuf is written sorted, so they usually are
/// sorted.
pub(super) fn sort_labels<T: Ord>(labels: &mut [(T, T)]) -> Result<(), WireError> {
    let sorted = |labels: &[(T, T)]| labels.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !sorted(labels) {
        labels.sort_unstable();
        if !sorted(labels) {
            return Err(WireError::Layout("a label occurs twice"));
        }
    }
    Ok(())
}
