use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::json_reader::{self, JsonPaths, ParsedListMetadata, ParsedListPage, ParsedObjectParts, json_found, utf8};
use super::list_frame::{
    LIST_ITEMS, LIST_META_CONTINUE, LIST_META_REMAINING, LIST_META_RESOURCE_VERSION, LIST_METADATA,
};
use super::object::{DecodedObjectFields, parse_resource_version};
use super::proto_reader::{self, ProtoPaths, ProtobufDocument};
use super::table::{self, SingleRowTable};
use super::{FeedEncoding, JsonLayout, ObjectRevision, TableColumns, WireError};
use base::MemoryAccount;
use kubeapi::protobuf::FieldReader;
use kubeapi::{EventType, ResourceVersion, SelectableFieldTable, Status};

/// The maximum size of the Status in an ERROR event, in bytes: that of a Status in an error response. Because a decoded
/// cause takes much more memory than an encoded one, the limit of a frame does not suffice.
const STATUS_BYTES_MAX: usize = 1 << 20;

const ROW_WITHOUT_TYPE_META: &str = "a row whose object has no kind and apiVersion";

/// Decoder for the objects of one feed.
///
/// It is created once per feed and compiles the table's paths, so that each object is read in one pass. All methods
/// take `&self`, so one reader serves a feed's LIST and all its watches.
pub struct ObjectReader {
    layout: JsonLayout,
    paths: ObjectPaths,
    /// `apiVersion` and kind.
    expected: Option<(String, String)>,
    /// The memory account for everything that is read.
    account: Option<Arc<MemoryAccount>>,
}

enum ObjectPaths {
    Json(JsonPaths),
    Protobuf(ProtoPaths),
    Table(JsonPaths, TableColumns),
}

/// One decoded watch frame.
#[derive(Debug)]
pub enum WatchItem {
    /// A change to one object: ADDED, MODIFIED or DELETED.
    Change {
        /// The event type: Added, Modified or Deleted.
        event_type: EventType,
        /// The object as the event has it. Its body is a slice of `frame`, so the event's bytes exist once.
        object: ObjectRevision,
        /// The frame as received, without a Table's columns; equal to
        /// [`FrameEnvelope::frame`](super::FrameEnvelope::frame) of `event_type` and the body.
        frame: Bytes,
    },
    /// A bookmark: everything up to `rv` has been sent.
    Bookmark {
        /// The zero-value object of the kind, with an empty key, for [`BookmarkTemplate`](super::BookmarkTemplate).
        object: ObjectRevision,
        rv: ResourceVersion,
        /// Whether the bookmark ends the initial events of a streamed list.
        initial_events_end: bool,
    },
    /// The watch has ended with an error. Boxed, because every event has the size of the largest variant.
    Error { status: Box<Status> },
}

/// One decoded page of a LIST.
#[derive(Debug)]
pub struct ListPage {
    /// The resourceVersion of the collection, the same on every page of one list.
    pub resource_version: ResourceVersion,
    /// The token of the next page; empty on the last page.
    pub continue_token: String,
    /// The number of objects after this page, if upstream reports it. It is a hint that upstream does not guarantee.
    pub remaining: Option<u64>,
    /// The objects in upstream's order. Each body is a separate allocation of exact size, so none keeps the page alive.
    pub items: Vec<ObjectRevision>,
    /// The kind of the list itself, such as `PodList`.
    pub kind: String,
    pub api_version: String,
}

impl ListPage {
    fn of(
        metadata: ParsedListMetadata<'_>,
        items: Result<Vec<ObjectRevision>, WireError>,
        kind: &str,
        api_version: &str,
    ) -> Result<Self, WireError> {
        Ok(Self {
            resource_version: parse_resource_version(&metadata.resource_version)?,
            continue_token: metadata.continue_token,
            remaining: metadata.remaining.and_then(|count| u64::try_from(count).ok()),
            items: items?,
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
        })
    }
}

impl ObjectReader {
    /// Creates a reader for `encoding` that extracts the fields in `fields` besides key, version and labels. `shape`
    /// only affects JSON.
    pub fn new(encoding: FeedEncoding, shape: JsonLayout, fields: Arc<SelectableFieldTable>) -> Self {
        let paths = match encoding {
            FeedEncoding::Json => ObjectPaths::Json(JsonPaths::new(&fields)),
            FeedEncoding::Protobuf => ObjectPaths::Protobuf(ProtoPaths(fields)),
            FeedEncoding::Table => ObjectPaths::Table(JsonPaths::new(&fields), TableColumns::default()),
        };
        Self { layout: shape, paths, expected: None, account: None }
    }

    /// Records the columns of Tables in `columns`.
    #[must_use]
    pub fn with_table_columns(mut self, columns: &TableColumns) -> Self {
        if let ObjectPaths::Table(_, noted) = &mut self.paths {
            *noted = columns.clone();
        }
        self
    }

    /// Charges every frame and object that the reader decodes to an account, for as long as they live.
    #[must_use]
    pub fn with_account(self, account: &Arc<MemoryAccount>) -> Self {
        Self { account: Some(account.clone()), ..self }
    }

    /// Rejects objects with `TypeMeta` of another kind ([`WireError::WrongKind`]). Without this check, a stream of
    /// Tables, for example, would be read as objects.
    #[must_use]
    pub fn with_kind(self, api_version: &str, kind: &str) -> Self {
        Self { expected: Some((api_version.to_owned(), kind.to_owned())), ..self }
    }

    /// Returns the encoding that the reader decodes.
    pub fn encoding(&self) -> FeedEncoding {
        match self.paths {
            ObjectPaths::Json(_) => FeedEncoding::Json,
            ObjectPaths::Protobuf(_) => FeedEncoding::Protobuf,
            ObjectPaths::Table(..) => FeedEncoding::Table,
        }
    }

    /// Decodes one whole frame from a [`FrameSplitter`](super::FrameSplitter).
    ///
    /// # Errors
    /// Every [`WireError`]; `FrameTooLarge` only for frames of about 4 GiB or more, and for a Status above 1 MiB.
    pub fn watch_event(&self, frame: Bytes) -> Result<WatchItem, WireError> {
        check_size(&frame)?;
        let (event_type, document) = match self.paths {
            ObjectPaths::Json(_) | ObjectPaths::Table(..) => json_reader::split_event(&frame)?,
            ObjectPaths::Protobuf(_) => proto_reader::split_event(&frame)?,
        };
        if event_type == EventType::Error {
            if document.len() > STATUS_BYTES_MAX {
                return Err(WireError::FrameTooLarge { max: STATUS_BYTES_MAX });
            }
            let status = match self.paths {
                // Of any kind, although the apiserver sends no other.
                ObjectPaths::Json(_) | ObjectPaths::Table(..) => serde_json::from_slice(document)?,
                ObjectPaths::Protobuf(_) => Status::from_protobuf(document)?,
            };
            return Ok(WatchItem::Error { status: Box::new(status) });
        }
        if let ObjectPaths::Table(paths, columns) = &self.paths {
            return self.row_event(paths, columns, frame);
        }
        let named = event_type != EventType::Bookmark;
        let (body, reading, initial_events_end) = self.read(document, named)?;
        let at = body.as_ptr().addr() - frame.as_ptr().addr();
        let body = at..at + body.len();
        let (object, frame) = self.within(frame, body, reading);
        Ok(if named {
            WatchItem::Change { event_type, object, frame }
        } else {
            WatchItem::Bookmark { rv: object.rv, object, initial_events_end }
        })
    }

    /// Decodes a GET response. The body is copied from it.
    ///
    /// # Errors
    /// As for [`watch_event`](Self::watch_event).
    pub fn object(&self, document: &[u8]) -> Result<ObjectRevision, WireError> {
        check_size(document)?;
        // Go's encoder ends a document with a newline.
        let document = match self.paths {
            ObjectPaths::Json(_) | ObjectPaths::Table(..) => document.strip_suffix(b"\n").unwrap_or(document),
            ObjectPaths::Protobuf(_) => document,
        };
        let (body, reading, _) = self.read(document, true)?;
        Ok(self.copied(body, reading))
    }

    /// Decodes one page of a LIST response.
    ///
    /// # Errors
    /// As for [`watch_event`](Self::watch_event), except `UnknownEventType`; one invalid item fails the page.
    pub fn list(&self, page: &Bytes) -> Result<ListPage, WireError> {
        match &self.paths {
            ObjectPaths::Json(paths) => self.json_list(paths, page),
            ObjectPaths::Protobuf(paths) => self.protobuf_list(paths, page),
            ObjectPaths::Table(paths, columns) => self.table_list(paths, columns, page),
        }
    }

    /// Reads an object with `TypeMeta`. Returns its body, the values read from it, and whether it closes the initial
    /// events.
    fn read<'a>(&self, document: &'a [u8], named: bool) -> Result<(&'a [u8], DecodedObjectFields, bool), WireError> {
        match &self.paths {
            ObjectPaths::Json(paths) => {
                let found = json_found(paths, document, named)?;
                let body_at = self.check_type_meta(&found, "an object without kind and apiVersion")?;
                let initial_events_end = found.is_initial_events_end();
                Ok((&document[body_at..], paths.reading(found, body_at)?, initial_events_end))
            }
            ObjectPaths::Protobuf(paths) => {
                let ProtobufDocument { api_version, kind, raw } = ProtobufDocument::split(document)?;
                self.check_kind(api_version, kind)?;
                let (reading, initial_events_end) = paths.read(raw, named)?;
                Ok((raw, reading, initial_events_end))
            }
            ObjectPaths::Table(..) => Err(WireError::Layout("a Table row outside of a watch or a list")),
        }
    }

    fn check_kind(&self, api_version: &str, kind: &str) -> Result<(), WireError> {
        match &self.expected {
            Some((version, expected)) if expected != kind || version != api_version => Err(WireError::WrongKind),
            _ => Ok(()),
        }
    }

    fn json_list(&self, paths: &JsonPaths, document: &[u8]) -> Result<ListPage, WireError> {
        if document.first() != Some(&b'{') {
            return Err(WireError::WrongEncoding);
        }
        let ParsedListPage { kind, api_version, metadata, items } = serde_json::from_str(utf8(document)?)?;
        let items = items.0.unwrap_or_default().into_iter().map(|item| self.json_item(paths, item.get().as_bytes()));
        ListPage::of(metadata, items.collect(), &kind, &api_version)
    }

    fn json_item(&self, paths: &JsonPaths, item: &[u8]) -> Result<ObjectRevision, WireError> {
        check_size(item)?;
        let found = json_found(paths, item, true)?;
        let body_at = match (self.layout, found.kind(), found.api_version()) {
            (JsonLayout::BuiltIn, None, None) => 1,
            (JsonLayout::BuiltIn, ..) => return Err(WireError::Layout("a list item of a built-in kind with TypeMeta")),
            (JsonLayout::Custom, Some(kind), Some(api_version)) => self.check_kind(api_version, kind).map(|()| 0)?,
            (JsonLayout::Custom, ..) => return Err(WireError::Layout("a custom resource without kind and apiVersion")),
        };
        let reading = paths.reading(found, body_at)?;
        Ok(self.copied(&item[body_at..], reading))
    }

    /// Decodes a Table with one row, and removes its columns.
    fn row_event(&self, paths: &JsonPaths, columns: &TableColumns, frame: Bytes) -> Result<WatchItem, WireError> {
        let frame = table::without_columns(&frame, columns)?.unwrap_or(frame);
        let SingleRowTable { event_type, found, body, object_at } = table::one_row(&frame, paths)?;
        self.check_type_meta(&found, ROW_WITHOUT_TYPE_META)?;
        let initial_events_end = found.is_initial_events_end();
        let reading = paths.reading(found, 0)?.shifted(object_at)?;
        let (object, frame) = self.within(frame, body, reading);
        Ok(match event_type {
            EventType::Bookmark => WatchItem::Bookmark { rv: object.rv, object, initial_events_end },
            _ => WatchItem::Change { event_type, object, frame },
        })
    }

    fn table_list(&self, paths: &JsonPaths, columns: &TableColumns, page: &[u8]) -> Result<ListPage, WireError> {
        let (metadata, rows) = table::rows(utf8(page)?, columns)?;
        let items = rows.into_iter().map(|row| {
            check_size(row.as_bytes())?;
            let (found, object_at, body) = table::listed_row(row, paths)?;
            self.check_type_meta(&found, ROW_WITHOUT_TYPE_META)?;
            let (reading, len) = (paths.reading(found, 0)?.shifted(object_at)?, body.len());
            Ok(self.within(body, 0..len, reading).0)
        });
        ListPage::of(metadata, items.collect(), table::KIND, table::API_VERSION)
    }

    /// Checks the `TypeMeta` of an object outside of lists, or of a row's object. Returns the offset of the object's
    /// body.
    fn check_type_meta(&self, found: &ParsedObjectParts<'_>, missing: &'static str) -> Result<usize, WireError> {
        let (Some(kind), Some(api_version)) = (found.kind(), found.api_version()) else {
            return Err(WireError::Layout(missing));
        };
        self.check_kind(api_version, kind)?;
        match self.layout {
            JsonLayout::BuiltIn => json_reader::type_meta_len(found.document, kind, api_version),
            JsonLayout::Custom => Ok(0),
        }
    }

    fn protobuf_list(&self, paths: &ProtoPaths, page: &[u8]) -> Result<ListPage, WireError> {
        let ProtobufDocument { api_version, kind, raw } = ProtobufDocument::split(page)?;
        let (mut metadata, mut items) = (ParsedListMetadata::default(), Vec::new());
        let mut fields = FieldReader::new(raw);
        while let Some(field) = fields.next_field()? {
            let message = field.bytes()?;
            match u8::try_from(field.number).unwrap_or(u8::MAX) {
                LIST_METADATA => {
                    let mut fields = FieldReader::new(message);
                    while let Some(field) = fields.next_field()? {
                        match u8::try_from(field.number).unwrap_or(u8::MAX) {
                            LIST_META_RESOURCE_VERSION => metadata.resource_version = field.text()?.into(),
                            LIST_META_CONTINUE => metadata.continue_token = field.text()?.into(),
                            LIST_META_REMAINING => metadata.remaining = field.count().map(u64::cast_signed),
                            _ => {}
                        }
                    }
                }
                LIST_ITEMS => {
                    check_size(message)?;
                    items.push(self.copied(message, paths.read(message, true)?.0));
                }
                _ => return Err(WireError::Protobuf("a list with fields beyond metadata and items")),
            }
        }
        ListPage::of(metadata, Ok(items), kind, api_version)
    }

    /// Returns the same object with its own copy of the body, so that the frame is not kept alive.
    pub fn detached(&self, object: ObjectRevision) -> ObjectRevision {
        let (body, reading) = object.into_parts();
        self.copied(&body, reading)
    }

    /// Returns an object whose body is a part of `frame`, and the frame, which is charged together with it.
    fn within(&self, frame: Bytes, body: Range<usize>, reading: DecodedObjectFields) -> (ObjectRevision, Bytes) {
        let allocated = frame.len();
        let frame = match &self.account {
            Some(account) => account.charge_with_overhead(frame, reading.bytes_without_body()),
            None => frame,
        };
        (ObjectRevision::new(self.encoding(), frame.slice(body), allocated, reading), frame)
    }

    /// Returns an object with its own copy of the body.
    fn copied(&self, body: &[u8], reading: DecodedObjectFields) -> ObjectRevision {
        self.within(Bytes::copy_from_slice(body), 0..body.len(), reading).0
    }
}

/// Checks that offsets into the data fit into 32 bits.
fn check_size(bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() <= OBJECT_BYTES_MAX { Ok(()) } else { Err(WireError::FrameTooLarge { max: OBJECT_BYTES_MAX }) }
}

/// The maximum size of an object. A frame's length prefix has 32 bits; the ~100 bytes of an envelope must fit as well.
const OBJECT_BYTES_MAX: usize = u32::MAX as usize - 4096;
