//! Tables: the rows that upstream prints, each with its object.
//!
//! The objects of a Table feed are rows. Their [body](super::ObjectRevision::body) is that of a Table with this one row
//! and without columns, from `"metadata":` to the final `}`, as in a watch event. It contains the Table's version,
//! which is the object's, then the cells, then the object itself. So one body serves every event of the row, and an
//! [`ObjectRenderer`](super::ObjectRenderer) replaces the object with the part that a client requested. The columns are
//! the same for all rows; they are removed on receipt and added back for each client's first event.
//!
//! Only upstream can print a built-in object: its printers are code, and forks patch them. So a Table is an encoding with
//! its own feed, requested with `includeObject=Object`. Key, version, labels and fields are read from the object inside,
//! and store, ring, lanes, resume, repair and proofs work as for every feed. A thousand `kubectl get --watch` cost
//! upstream one watch, and the feed holds rows and objects of the whole collection.
//!
//! Cells show values as of the time of printing, AGE for example. That is correct for a live event and wrong for a
//! state, so stored rows are never sent as a state. LISTs and GETs of custom resources are printed
//! ([`TablePrinter`](super::TablePrinter)); others pass through, and a filtered LIST has upstream's rows. A filtered
//! watch has stored rows of namespaces that become readable. A watch of one object that begins with its state gets it
//! from an upstream list, then continues from the feed after the list's version. Any other watch with a state passes
//! through. So does a watch from before the feed's history, because kubectl would end rather than relist. If the columns
//! change, the cells change too: the feed ends, as after a change of its definition.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use memchr::{memchr, memmem};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json_reader::{self, JsonPaths, ParsedListMetadata, ParsedObjectParts, json_found, raw_metadata, utf8};
use super::{ListMeta, WireError};
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The columns of a Table, once upstream has sent them. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct TableColumns {
    known: Arc<OnceLock<Box<str>>>,
}

impl TableColumns {
    /// Records columns, and rejects columns that differ from the recorded ones. Cells printed under other columns could
    /// not be distinguished.
    pub(super) fn record(&self, columns: &str) -> Result<(), WireError> {
        let known = self.known.get_or_init(|| columns.into());
        if **known == *columns { Ok(()) } else { Err(WireError::OtherColumns) }
    }

    /// Returns the watch frame with the columns, as the first frame of a watch has them. `None` if the frame is not a
    /// Table, or if the columns are not known yet.
    pub fn with_columns(&self, frame: &[u8]) -> Option<Bytes> {
        let (at, columns) = memmem::find(frame, NO_COLUMNS.as_bytes()).zip(self.known.get())?;
        let (before, after) = (&frame[..at + COLUMNS.len()], &frame[at + NO_COLUMNS.len()..]);
        Some([before, columns.as_bytes(), after].concat().into())
    }
}

/// A decoded Table with one row.
pub(super) struct SingleRowTable<'a> {
    pub(super) event_type: EventType,
    pub(super) found: ParsedObjectParts<'a>,
    /// The range of the body in the normal form.
    pub(super) body: Range<usize>,
    /// The offset of the object in the body.
    pub(super) object_at: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TableDocument<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    metadata: ParsedListMetadata<'a>,
    #[serde(borrow)]
    column_definitions: &'a RawValue,
    /// The rows; `null` for an empty list of a resource without a printer of its own.
    #[serde(borrow)]
    rows: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct TableRow<'a> {
    #[serde(borrow)]
    object: &'a RawValue,
}

/// A page of a Table LIST, whose rows have at least their object's metadata.
pub struct TablePage<'a> {
    pub resource_version: ResourceVersion,
    pub continue_token: String,
    pub columns: &'a str,
    pub rows: Vec<TablePageRow<'a>>,
}

/// A row of a page.
pub struct TablePageRow<'a> {
    pub key: ObjectKey,
    text: &'a str,
    object: Range<usize>,
}

#[derive(Deserialize)]
struct TableRowMetadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
}

impl<'a> TablePage<'a> {
    /// Parses a page of a resource.
    ///
    /// # Errors
    /// The document is not a Table, or a row does not have the key of such an object.
    pub fn parse(list: &'a [u8], namespaced: bool) -> Result<Self, WireError> {
        let TableDocument { metadata, column_definitions, rows, .. } = document_of(utf8(list)?.trim_end())?;
        let row = |row: &'a RawValue| {
            let object = object_in(row.get())?;
            let metadata: TableRowMetadata<'_> =
                serde_json::from_str(raw_metadata(row.get()[object.clone()].as_bytes())?)?;
            if metadata.name.is_empty() || metadata.namespace.is_empty() == namespaced {
                return Err(WireError::Layout("Table row without the key of its object"));
            }
            Ok(TablePageRow { key: ObjectKey::new(&metadata.namespace, &metadata.name), text: row.get(), object })
        };
        Ok(Self {
            resource_version: metadata.resource_version.parse().map_err(|_| WireError::BadResourceVersion)?,
            continue_token: metadata.continue_token,
            columns: column_definitions.get(),
            rows: rows.unwrap_or_default().into_iter().map(row).collect::<Result<_, _>>()?,
        })
    }
}

impl TablePageRow<'_> {
    /// Returns the row as the apiserver writes it, with its object or with `null` in its place.
    pub fn text(&self, with_object: bool) -> String {
        if with_object { self.text.to_owned() } else { format!("{}{NULL}}}", &self.text[..self.object.start]) }
    }
}

/// Returns what comes before and after the rows of a Table LIST. It has the version and the columns of a page, and no
/// count of remaining rows.
pub fn table_list(page: &TablePage<'_>, continue_token: &str) -> [Bytes; 2] {
    let TablePage { resource_version, columns, .. } = *page;
    let meta = ListMeta { resource_version, continue_token: continue_token.to_owned(), ..ListMeta::default() };
    [format!("{TYPE_META}{}", head(&meta, columns)).into(), Bytes::from_static(b"]}\n")]
}

/// Returns what comes between the type and the rows of a Table.
pub(super) fn head(meta: &ListMeta, columns: &str) -> String {
    // A Table does not show the shard (R-SHARD-2).
    let ListMeta { resource_version, continue_token, remaining, shard: _ } = meta;
    let next = match continue_token.as_str() {
        "" => String::new(),
        token => format!(r#","continue":"{token}""#),
    };
    let remaining = remaining.map(|count| format!(r#","remainingItemCount":{count}"#)).unwrap_or_default();
    format!("{VERSION}{resource_version}\"{next}{remaining}}},{COLUMNS}{columns},\"rows\":[")
}

/// Returns the frame without its columns, which are recorded. `None` if it has none.
pub(super) fn without_columns(frame: &[u8], columns: &TableColumns) -> Result<Option<Bytes>, WireError> {
    let (_, document) = json_reader::split_event(frame)?;
    let body = document.strip_prefix(TYPE_META.as_bytes()).unwrap_or_default();
    if version_and_rows(body).is_some() {
        return Ok(None);
    }
    let definitions = document_of(utf8(document)?)?.column_definitions.get();
    if definitions == NULL {
        return Ok(None);
    }
    columns.record(definitions)?;
    let at = definitions.as_ptr().addr() - frame.as_ptr().addr();
    Ok(Some([&frame[..at], NULL.as_bytes(), &frame[at + definitions.len()..]].concat().into()))
}

/// Decodes a Table frame without columns.
pub(super) fn one_row<'a>(frame: &'a [u8], paths: &JsonPaths) -> Result<SingleRowTable<'a>, WireError> {
    const UNEXPECTED_LAYOUT: WireError = WireError::Layout("not a Table of one row");
    let (event_type, document) = json_reader::split_event(frame)?;
    let document = utf8(document)?;
    let TableDocument { metadata, rows, .. } = document_of(document)?;
    let Some([row]) = rows.as_deref() else { return Err(UNEXPECTED_LAYOUT) };
    let body = document.strip_prefix(TYPE_META).ok_or(UNEXPECTED_LAYOUT)?;
    let (version, rows) = version_and_rows(body.as_bytes()).ok_or(UNEXPECTED_LAYOUT)?;
    if version != metadata.resource_version.as_bytes()
        || rows.strip_prefix(row.get().as_bytes()) != Some(TAIL.as_bytes())
    {
        return Err(UNEXPECTED_LAYOUT);
    }
    let object = object_in(row.get())?;
    let found = json_found(paths, &row.get().as_bytes()[object.clone()], event_type != EventType::Bookmark)?;
    if found.resource_version_text() != Some(&*metadata.resource_version) {
        return Err(WireError::BadResourceVersion);
    }
    let start = body.as_ptr().addr() - frame.as_ptr().addr();
    let object_at = VERSION.len() + version.len() + ROWS.len() + object.start;
    Ok(SingleRowTable { event_type, found, body: start..start + body.len(), object_at })
}

/// Splits a list into its metadata and its rows in the normal form, and records its columns.
pub(super) fn rows<'a>(
    list: &'a str,
    columns: &TableColumns,
) -> Result<(ParsedListMetadata<'a>, Vec<&'a str>), WireError> {
    let TableDocument { metadata, column_definitions, rows, .. } = document_of(list)?;
    if column_definitions.get() != NULL {
        columns.record(column_definitions.get())?;
    }
    Ok((metadata, rows.unwrap_or_default().into_iter().map(RawValue::get).collect()))
}

/// Returns the values read from a list's row, the offset of the object in its body, and the body.
pub(super) fn listed_row<'a>(
    row: &'a str,
    paths: &JsonPaths,
) -> Result<(ParsedObjectParts<'a>, usize, Bytes), WireError> {
    if memchr(b'\n', row.as_bytes()).is_some() {
        return Err(WireError::Layout("row spans several lines"));
    }
    let object = object_in(row)?;
    let found = json_found(paths, &row.as_bytes()[object.clone()], true)?;
    let version = found.resource_version_text().ok_or(WireError::BadResourceVersion)?;
    let object_at = VERSION.len() + version.len() + ROWS.len() + object.start;
    let body = [VERSION, version, ROWS, row, TAIL].concat().into();
    Ok((found, object_at, body))
}

fn document_of(document: &str) -> Result<TableDocument<'_>, WireError> {
    let table: TableDocument<'_> = serde_json::from_str(document)?;
    if (&*table.kind, &*table.api_version) == (KIND, API_VERSION) { Ok(table) } else { Err(WireError::WrongKind) }
}

/// Returns the range of the object in a row, at its end.
fn object_in(row: &str) -> Result<Range<usize>, WireError> {
    let TableRow { object } = serde_json::from_str(row)?;
    let at = object.get().as_ptr().addr() - row.as_ptr().addr();
    let end = at + object.get().len();
    if row[..at].ends_with(OBJECT) && &row[end..] == "}" {
        Ok(at..end)
    } else {
        Err(WireError::Layout("row does not end with its object"))
    }
}

/// Returns the range of the row's object in a Table body; `None` if the body is not one.
pub(super) fn object_of(body: &[u8]) -> Option<Range<usize>> {
    let (_, row) = version_and_rows(body)?;
    let row_at = body.len() - row.len();
    let object = object_in(utf8(row.strip_suffix(TAIL.as_bytes())?).ok()?).ok()?;
    Some(row_at + object.start..row_at + object.end)
}

/// Returns the version of a body without columns, and the rest from its first row on.
pub(super) fn version_and_rows(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = body.strip_prefix(VERSION.as_bytes())?;
    let (version, rest) = rest.split_at(memchr(b'"', rest)?);
    Some((version, rest.strip_prefix(ROWS.as_bytes())?))
}

/// Returns the body with other digits in the object's version and in the Table's.
pub(super) fn restamped(body: &[u8], (start, end): (usize, usize), digits: &[u8]) -> Bytes {
    let table_end = VERSION.len() + (end - start);
    [VERSION.as_bytes(), digits, &body[table_end..start], digits, &body[end..]].concat().into()
}

/// Returns whether `list` has the objects of these rows, in this order. Cells are not compared, because they depend on
/// the time of printing.
pub fn same_rows(bodies: &[Bytes], list: &[u8]) -> bool {
    let Some(Ok((_, rows))) = utf8(list).ok().map(|list| rows(list.trim_end(), &TableColumns::default())) else {
        return false;
    };
    let same = |(body, row): (&Bytes, &&str)| {
        let (ours, theirs) = (object_of(body), object_in(row).ok());
        ours.zip(theirs).is_some_and(|(ours, theirs)| body[ours] == row.as_bytes()[theirs])
    };
    rows.len() == bodies.len() && bodies.iter().zip(&rows).all(same)
}

/// The start of every Table in JSON.
pub(super) const TYPE_META: &str = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","#;
pub(super) const KIND: &str = "Table";
pub(super) const API_VERSION: &str = "meta.k8s.io/v1";
/// The three constant parts of a Table body, with the version before the second and the row before the third.
pub(super) const VERSION: &str = r#""metadata":{"resourceVersion":""#;
pub(super) const ROWS: &str = r#""},"columnDefinitions":null,"rows":["#;
pub(super) const TAIL: &str = "]}";
/// The bytes before a row's object.
const OBJECT: &str = r#""object":"#;
/// The patterns of columns in a Table. A quotation mark inside a string is escaped, so these never match inside one.
const NO_COLUMNS: &str = r#""columnDefinitions":null"#;
const COLUMNS: &str = r#""columnDefinitions":"#;
const NULL: &str = "null";
