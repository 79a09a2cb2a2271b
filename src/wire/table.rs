//! Tables: the rows that upstream prints, each with the object that it was made of.
//!
//! A Table feed's objects are rows. Their [body](super::Object::body) is that of a Table with this one row and without
//! columns, from `"metadata":` to the final `}`, as a watch event has it: the Table's version, which is the object's,
//! then the cells, then the object itself. So one body serves every event that tells of the row, and a
//! [`Renderer`](super::Renderer) puts what a client wants to see of the object in its place. The columns are the same
//! for all rows; they are taken out when they come and put back for each client's first event.
//!
//! Only upstream knows what it prints of an object: its printers are code, and forks of it patch them. So a Table is an
//! encoding of a feed of its own, asked for with `includeObject=Object`. Key, version, labels and fields are read from
//! the object inside, and store, ring, lanes, resume, mending and proofs are those of every feed. A thousand `kubectl
//! get --watch` cost upstream one watch, and the feed holds rows and objects of the whole collection.
//!
//! Cells are as of when they were printed, AGE for example. That is right for a live event and wrong for a state, so no
//! row of the store is ever sent as a state. LISTs and GETs pass through. A watch of one object that begins with its
//! state has that listed upstream and goes on from the feed behind the list's version; any other watch with a state
//! passes through, and so does a watch from before the feed's history, for kubectl would end rather than list again.
//! Other columns than before mean other cells: the feed ends, as it does when a definition changes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use memchr::{memchr, memmem};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::WireError;
use super::json_document::{self, PageMetadata, utf8};
use super::json_object::{JsonPaths, ObjectParts, json_found};
use kubeapi::EventType;

/// The columns of a Table, once upstream has sent them. Cloning shares.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    known: Arc<OnceLock<Box<str>>>,
}

impl Columns {
    /// Takes note of columns. Cells that were printed under others cannot be told from these.
    pub(super) fn note(&self, columns: &str) -> Result<(), WireError> {
        let known = self.known.get_or_init(|| columns.into());
        if **known == *columns { Ok(()) } else { Err(WireError::OtherColumns) }
    }

    /// The watch frame with the columns in it, as the first one of a watch has them. `None` for a frame that is no
    /// Table, and until the columns are known.
    pub fn put(&self, frame: &[u8]) -> Option<Bytes> {
        let (at, columns) = memmem::find(frame, NO_COLUMNS.as_bytes()).zip(self.known.get())?;
        let (before, after) = (&frame[..at + COLUMNS.len()], &frame[at + NO_COLUMNS.len()..]);
        Some([before, columns.as_bytes(), after].concat().into())
    }
}

/// A Table with one row, understood.
pub(super) struct OneRow<'a> {
    pub(super) event_type: EventType,
    pub(super) found: ObjectParts<'a>,
    /// In the normal form.
    pub(super) body: Range<usize>,
    /// Where the object begins in the body.
    pub(super) object_at: usize,
}

/// A list's rows, in the normal form.
pub(super) struct Rows<'a> {
    pub(super) metadata: PageMetadata<'a>,
    pub(super) rows: Vec<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    metadata: PageMetadata<'a>,
    #[serde(borrow)]
    column_definitions: &'a RawValue,
    /// `null` for an empty list of what has no printer of its own.
    #[serde(borrow)]
    rows: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The frame without its columns, which are noted. `None` if it has none.
pub(super) fn without_columns(frame: &[u8], columns: &Columns) -> Result<Option<Bytes>, WireError> {
    let (_, document) = json_document::split_event(frame)?;
    let body = document.strip_prefix(TYPE_META.as_bytes()).unwrap_or_default();
    if version_and_rows(body).is_some() {
        return Ok(None);
    }
    let definitions = document_of(utf8(document)?)?.column_definitions.get();
    if definitions == NULL {
        return Ok(None);
    }
    columns.note(definitions)?;
    let at = definitions.as_ptr().addr() - frame.as_ptr().addr();
    Ok(Some([&frame[..at], NULL.as_bytes(), &frame[at + definitions.len()..]].concat().into()))
}

/// Takes a frame apart that has no columns.
pub(super) fn one_row<'a>(frame: &'a [u8], paths: &JsonPaths) -> Result<OneRow<'a>, WireError> {
    const ODD: WireError = WireError::Layout("not a Table of one row");
    let (event_type, document) = json_document::split_event(frame)?;
    let document = utf8(document)?;
    let Document { metadata, rows, .. } = document_of(document)?;
    let Some([row]) = rows.as_deref() else { return Err(ODD) };
    let rest = document.strip_prefix(TYPE_META).and_then(|body| body.strip_prefix(VERSION)).ok_or(ODD)?;
    let rest = rest.strip_prefix(&*metadata.resource_version).and_then(|rest| rest.strip_prefix(ROWS)).ok_or(ODD)?;
    if rest.strip_prefix(row.get()) != Some(TAIL) {
        return Err(ODD);
    }
    let object = object_in(row.get())?;
    let found = json_found(paths, &row.get().as_bytes()[object.clone()], event_type != EventType::Bookmark)?;
    if found.resource_version_text() != Some(&*metadata.resource_version) {
        return Err(WireError::BadResourceVersion);
    }
    let start = document.as_ptr().addr() + TYPE_META.len() - frame.as_ptr().addr();
    let object_at = VERSION.len() + metadata.resource_version.len() + ROWS.len() + object.start;
    Ok(OneRow { event_type, found, body: start..start + document.len() - TYPE_META.len(), object_at })
}

/// Takes a list apart; its columns are noted.
pub(super) fn rows<'a>(list: &'a str, columns: &Columns) -> Result<Rows<'a>, WireError> {
    let Document { metadata, column_definitions, rows, .. } = document_of(list)?;
    if column_definitions.get() != NULL {
        columns.note(column_definitions.get())?;
    }
    Ok(Rows { metadata, rows: rows.unwrap_or_default().into_iter().map(RawValue::get).collect() })
}

/// The parts of a list's row, the place of the object in its body, and the body.
pub(super) fn listed_row<'a>(row: &'a str, paths: &JsonPaths) -> Result<(ObjectParts<'a>, usize, Bytes), WireError> {
    if memchr(b'\n', row.as_bytes()).is_some() {
        return Err(WireError::Layout("a row is spread over several lines"));
    }
    let object = object_in(row)?;
    let found = json_found(paths, &row.as_bytes()[object.clone()], true)?;
    let version = found.resource_version_text().ok_or(WireError::BadResourceVersion)?;
    let object_at = VERSION.len() + version.len() + ROWS.len() + object.start;
    let body = [VERSION, version, ROWS, row, TAIL].concat().into();
    Ok((found, object_at, body))
}

fn document_of(document: &str) -> Result<Document<'_>, WireError> {
    let table: Document<'_> = serde_json::from_str(document)?;
    if (&*table.kind, &*table.api_version) == (KIND, API_VERSION) { Ok(table) } else { Err(WireError::WrongKind) }
}

/// Where in a row its object is: at the end.
fn object_in(row: &str) -> Result<Range<usize>, WireError> {
    let Row { object } = serde_json::from_str(row)?;
    let at = object.get().as_ptr().addr() - row.as_ptr().addr();
    let end = at + object.get().len();
    if row[..at].ends_with(OBJECT) && &row[end..] == "}" {
        Ok(at..end)
    } else {
        Err(WireError::Layout("a row that does not end with its object"))
    }
}

/// Where in a body its row's object is. `None` for what is no such body.
pub(super) fn object_of(body: &[u8]) -> Option<Range<usize>> {
    let (_, row) = version_and_rows(body)?;
    let row_at = body.len() - row.len();
    let object = object_in(utf8(row.strip_suffix(TAIL.as_bytes())?).ok()?).ok()?;
    Some(row_at + object.start..row_at + object.end)
}

/// The version of a body without columns, and what follows from its first row on.
pub(super) fn version_and_rows(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = body.strip_prefix(VERSION.as_bytes())?;
    let (version, rest) = rest.split_at(memchr(b'"', rest)?);
    Some((version, rest.strip_prefix(ROWS.as_bytes())?))
}

/// The body with other digits where its object has its version, and where the Table has it.
pub(super) fn restamped(body: &[u8], (start, end): (usize, usize), digits: &[u8]) -> Bytes {
    let table_end = VERSION.len() + (end - start);
    [VERSION.as_bytes(), digits, &body[table_end..start], digits, &body[end..]].concat().into()
}

/// Whether `list` has these rows' objects, in this order. Cells are as of when they were printed.
pub fn same_rows(bodies: &[Bytes], list: &[u8]) -> bool {
    let Some(Ok(rows)) = utf8(list).ok().map(|list| rows(list.trim_end(), &Columns::default())) else { return false };
    let same = |(body, row): (&Bytes, &&str)| {
        let (ours, theirs) = (object_of(body), object_in(row).ok());
        ours.zip(theirs).is_some_and(|(ours, theirs)| body[ours] == row.as_bytes()[theirs])
    };
    rows.rows.len() == bodies.len() && bodies.iter().zip(&rows.rows).all(same)
}

/// Every Table begins with it.
pub(super) const TYPE_META: &str = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","#;
pub(super) const KIND: &str = "Table";
pub(super) const API_VERSION: &str = "meta.k8s.io/v1";
/// A body is these three, with the version before the second and the row before the third.
pub(super) const VERSION: &str = r#""metadata":{"resourceVersion":""#;
pub(super) const ROWS: &str = r#""},"columnDefinitions":null,"rows":["#;
pub(super) const TAIL: &str = "]}";
/// In front of a row's object.
const OBJECT: &str = r#""object":"#;
/// A quotation mark inside of a string has a backslash before it: these are never part of one.
const NO_COLUMNS: &str = r#""columnDefinitions":null"#;
const COLUMNS: &str = r#""columnDefinitions":"#;
const NULL: &str = "null";
