//! Decoder of JSON: of event lines, LIST pages and objects. An object takes a single validating pass that keeps only
//! the values at the paths of a [`JsonPaths`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use memchr::{memchr, memchr2};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

use super::WireError;
use super::bookmark::INITIAL_EVENTS_END;
use super::envelope::{JSON_EVENT_HEAD, JSON_EVENT_OBJECT, JSON_EVENT_TAIL, json_text};
use super::object::{DecodedObjectFields, ResourceVersionSpan, parse_resource_version, sort_labels};
use kubeapi::{EventType, ObjectKey, ResourceVersion, SelectableAttributes, SelectableFieldSpec, SelectableFieldTable};

/// Splits an event line into its type and its object. The line must have the bytes that
/// [`FrameEnvelope::frame`](super::FrameEnvelope::frame) puts around them: another layout could not be reproduced from
/// the body. The object's reader checks that it is one JSON value.
pub(super) fn split_event(line: &[u8]) -> Result<(EventType, &[u8]), WireError> {
    const UNEXPECTED_LAYOUT: WireError =
        WireError::Layout("a watch line is not {\"type\":…,\"object\":…} and a newline");
    if line.first() != Some(&b'{') {
        return Err(WireError::WrongEncoding);
    }
    let rest = line.strip_prefix(JSON_EVENT_HEAD).ok_or(UNEXPECTED_LAYOUT)?;
    let name = &rest[..memchr(b'"', rest).ok_or(UNEXPECTED_LAYOUT)?];
    let rest = rest[name.len()..].strip_prefix(JSON_EVENT_OBJECT).ok_or(UNEXPECTED_LAYOUT)?;
    let object = rest.strip_suffix(JSON_EVENT_TAIL).ok_or(UNEXPECTED_LAYOUT)?;
    let event_type = std::str::from_utf8(name).ok().and_then(EventType::parse).ok_or(WireError::UnknownEventType)?;
    Ok((event_type, object))
}

/// Returns the length of the `TypeMeta` at the start of a built-in kind's object, which its body omits.
pub(super) fn type_meta_len(document: &str, kind: &str, api_version: &str) -> Result<usize, WireError> {
    let head = |document: &str| -> Option<usize> {
        let rest = document.strip_prefix(r#"{"kind":"#)?.strip_prefix(&*json_text(kind))?;
        let rest = rest.strip_prefix(r#","apiVersion":"#)?.strip_prefix(&*json_text(api_version))?;
        Some(document.len() - rest.strip_prefix(',')?.len())
    };
    head(document).ok_or(WireError::Layout("an object does not begin with kind and apiVersion"))
}

/// Converts JSON text to a `str`, so that it is validated once.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8)
}

/// A LIST page; its items are slices of the document.
#[derive(Deserialize)]
pub(super) struct ParsedListPage<'a> {
    #[serde(borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, rename = "apiVersion")]
    pub(super) api_version: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) metadata: ParsedListMetadata<'a>,
    /// The items: `null` for an empty `PartialObjectMetadataList` (R-META-1). The member is required, so that an object
    /// is not mistaken for a list.
    #[serde(borrow)]
    pub(super) items: RawListItems<'a>,
}

#[derive(Deserialize)]
pub(super) struct RawListItems<'a>(#[serde(borrow)] pub(super) Option<Vec<&'a RawValue>>);

#[derive(Deserialize, Default)]
pub(super) struct ParsedListMetadata<'a> {
    #[serde(borrow, default, rename = "resourceVersion")]
    pub(super) resource_version: Cow<'a, str>,
    #[serde(default, rename = "continue")]
    pub(super) continue_token: String,
    #[serde(default, rename = "remainingItemCount")]
    pub(super) remaining: Option<i64>,
}

/// The paths that are read from the objects of one feed. One walk over an object visits them all and skips everything
/// else.
pub(super) struct JsonPaths {
    fields: Arc<SelectableFieldTable>,
    /// The paths, sorted, so that those with the same first steps are neighbours.
    paths: Vec<JsonPath>,
}

/// The keys on the way to a value, and the slot in which a text or number there is stored.
type JsonPath = (Vec<String>, usize);

/// The values found by one pass. Strings are borrowed from the document unless they have escapes.
pub(super) struct ParsedObjectParts<'de> {
    pub(super) document: &'de str,
    texts: Vec<Option<Cow<'de, str>>>,
    labels: Vec<(Cow<'de, str>, Cow<'de, str>)>,
}

impl JsonPaths {
    pub(super) fn new(table: &Arc<SelectableFieldTable>) -> Self {
        // This order is that of the slot constants below.
        let own: [&[&str]; FIELDS_FROM] = [
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "resourceVersion"],
            &["metadata", "labels"],
            &["kind"],
            &["apiVersion"],
            &["metadata", "annotations", INITIAL_EVENTS_END],
            &["metadata", "uid"],
        ];
        let own = own.map(|path| path.iter().map(|step| (*step).to_owned()).collect());
        let of_fields = table.fields.iter().flat_map(|field| field.json.iter().cloned());
        let mut paths: Vec<_> = own.into_iter().chain(of_fields).zip(0..).collect();
        paths.sort();
        Self { fields: table.clone(), paths }
    }

    /// Reads `document`, which must be exactly one JSON value.
    pub(super) fn read<'de>(&self, document: &'de str) -> Result<ParsedObjectParts<'de>, WireError> {
        let texts = vec![None; self.paths.len()];
        let mut found = ParsedObjectParts { document, texts, labels: Vec::new() };
        let mut deserializer = serde_json::Deserializer::from_str(document);
        PathsDeserializer { paths: &self.paths, depth: 0, found: &mut found }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        check_depth(document)?;
        Ok(found)
    }

    /// Converts the values to an object's parts. The body begins `body_at` bytes into the document.
    pub(super) fn reading(
        &self,
        found: ParsedObjectParts<'_>,
        body_at: usize,
    ) -> Result<DecodedObjectFields, WireError> {
        let (rv, rv_at) = found.resource_version(body_at)?;
        let key = ObjectKey::new(found.text(NAMESPACE), found.text(NAME));
        let ParsedObjectParts { texts, mut labels, .. } = found;
        sort_labels(&mut labels)?;
        let mut rest = &texts[FIELDS_FROM..];
        let value = |field: &SelectableFieldSpec| {
            let (alternatives, after) = rest.split_at(field.json.len());
            rest = after;
            let value = alternatives.iter().flatten().map(|text| &**text).find(|text| !text.is_empty());
            value.unwrap_or(field.kind.absent_text())
        };
        let fields: Vec<_> = self.fields.fields.iter().map(value).collect();
        let attributes =
            SelectableAttributes::new(&labels, &fields).with_uid(texts[UID].as_deref().unwrap_or_default().as_bytes());
        Ok(DecodedObjectFields { key, rv, rv_at, attributes })
    }
}

impl<'de> ParsedObjectParts<'de> {
    pub(super) fn kind(&self) -> Option<&str> {
        self.texts[KIND].as_deref()
    }

    pub(super) fn api_version(&self) -> Option<&str> {
        self.texts[API_VERSION].as_deref()
    }

    pub(super) fn is_initial_events_end(&self) -> bool {
        self.text(INITIAL_EVENTS_END_SLOT) == "true"
    }

    /// Returns the resourceVersion in its original spelling, if it has no escapes.
    pub(super) fn resource_version_text(&self) -> Option<&'de str> {
        match self.texts[RESOURCE_VERSION] {
            Some(Cow::Borrowed(digits)) => Some(digits),
            _ => None,
        }
    }

    fn text(&self, slot: usize) -> &str {
        self.texts[slot].as_deref().unwrap_or_default()
    }

    fn resource_version(&self, body_at: usize) -> Result<(ResourceVersion, ResourceVersionSpan), WireError> {
        // A borrowed string is a part of the document, so its digits can be overwritten there.
        let digits = self.resource_version_text().ok_or(WireError::BadResourceVersion)?;
        let rv = parse_resource_version(digits)?;
        let in_document = digits.as_ptr().addr() - self.document.as_ptr().addr();
        let offset = in_document.checked_sub(body_at).and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.ok_or(WireError::BadResourceVersion)?;
        Ok((
            rv,
            ResourceVersionSpan { offset, len: u8::try_from(digits.len()).map_err(|_| WireError::BadResourceVersion)? },
        ))
    }
}

/// Decodes an object in one pass, and makes the checks that do not depend on the layout of its `TypeMeta`.
pub(super) fn json_found<'a>(
    paths: &JsonPaths,
    object: &'a [u8],
    named: bool,
) -> Result<ParsedObjectParts<'a>, WireError> {
    // Insignificant whitespace is legal JSON, but a newline inside a body would end its watch frame early.
    if memchr(b'\n', object).is_some() {
        return Err(WireError::Layout("object spans several lines"));
    }
    // A body starts at or after the first byte, and that byte must be the brace that a list adds back.
    if object.first() != Some(&b'{') {
        return Err(WireError::Layout("object does not begin with a brace"));
    }
    let found = paths.read(utf8(object)?)?;
    check_name(named, found.text(NAMESPACE), found.text(NAME))?;
    Ok(found)
}

/// Checks that an object's name and namespace are path segments. A slash in one could give two objects the same key.
pub(super) fn check_name(named: bool, namespace: &str, name: &str) -> Result<(), WireError> {
    let valid = !named || !(name.is_empty() || name.contains('/') || namespace.contains('/'));
    if valid { Ok(()) } else { Err(WireError::BadName) }
}

/// Checks the nesting limit of Go's decoder. `serde_json` skips values without recursion, so its own limit does not
/// apply to them.
fn check_depth(document: &str) -> Result<(), WireError> {
    // A level takes two bytes, so most objects are too short to be too deep and need no scan.
    if document.len() <= 2 * DEPTH_MAX {
        return Ok(());
    }
    let bytes = document.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = string_end(bytes, at),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(WireError::TooDeep);
        }
    }
    Ok(())
}

/// Returns the position after the string whose text starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(step) = memchr2(b'"', b'\\', bytes.get(at..).unwrap_or_default()) {
        at += step + 1;
        if bytes[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
    bytes.len()
}

/// A deserializer of the value after the first `depth` steps of `paths`, which all have these steps.
struct PathsDeserializer<'p, 'f, 'de> {
    paths: &'p [JsonPath],
    depth: usize,
    found: &'f mut ParsedObjectParts<'de>,
}

impl<'p, 'de> PathsDeserializer<'p, '_, 'de> {
    fn put(self, text: Cow<'de, str>) {
        let ends = self.paths.iter().filter(|(path, _)| path.len() == self.depth);
        for ((_, slot), text) in ends.zip(std::iter::repeat(text)) {
            self.found.texts[*slot] = Some(text);
        }
    }

    /// Stores a number or boolean. Names and versions must be strings; selectable fields of custom resources may be any
    /// scalar.
    fn put_scalar<E: Error>(self, value: Unexpected<'_>, text: impl fmt::Display) -> Result<(), E> {
        if self.paths.iter().any(|(path, slot)| path.len() == self.depth && *slot < FIELDS_FROM) {
            return Err(E::invalid_type(value, &"a string"));
        }
        self.put(Cow::Owned(text.to_string()));
        Ok(())
    }

    /// Returns a deserializer of the value after one step more, with a bit that is unique among its siblings. `None` if
    /// no path has this step. (No table has 64 paths. The bit of a 65th is 0, so it always counts as unseen.)
    #[inline]
    fn below(&mut self, step: &str) -> Option<(u64, PathsDeserializer<'p, '_, 'de>)> {
        let has_step = |(path, _): &JsonPath| path.get(self.depth).is_some_and(|own| own == step);
        let from = self.paths.iter().position(has_step)?;
        let count = self.paths[from..].iter().take_while(|path| has_step(path)).count();
        let below =
            PathsDeserializer { paths: &self.paths[from..from + count], depth: self.depth + 1, found: self.found };
        Some((if from < 64 { 1 << from } else { 0 }, below))
    }
}

impl<'de> DeserializeSeed<'de> for PathsDeserializer<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PathsDeserializer<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        if let [(_, LABELS), ..] = self.paths {
            while let Some((BorrowedJsonText(key), BorrowedJsonText(value))) = map.next_entry()? {
                self.found.labels.push((key, value));
            }
            return Ok(());
        }
        // The bits of the steps seen. If a key occurs twice, decoders disagree about its value.
        let mut seen = 0_u64;
        while let Some(BorrowedJsonText(step)) = map.next_key()? {
            let Some((bit, below)) = self.below(&step) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if seen & bit != 0 {
                return Err(A::Error::custom("a key occurs twice"));
            }
            seen |= bit;
            map.next_value_seed(below)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        if let Some((_, first)) = self.below("0")
            && seq.next_element_seed(first)?.is_none()
        {
            return Ok(());
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        self.put(Cow::Borrowed(text));
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.put(Cow::Owned(text.to_owned()));
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.put_scalar(Unexpected::Bool(value), value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.put_scalar(Unexpected::Signed(value), value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.put_scalar(Unexpected::Unsigned(value), value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.put_scalar(Unexpected::Float(value), value)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A string that is borrowed whenever it has no escapes.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BorrowedJsonText<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Returns the metadata of a JSON body in its original spelling. The body is a whole custom resource, or a built-in
/// object without its `TypeMeta`.
pub(super) fn raw_metadata(body: &[u8]) -> Result<&str, serde_json::Error> {
    #[derive(Deserialize)]
    struct CustomObject<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let metadata = match body.strip_prefix(br#""metadata":"#) {
        Some(metadata) => <&RawValue>::deserialize(&mut serde_json::Deserializer::from_slice(metadata)),
        None => serde_json::from_slice(body).map(|CustomObject { metadata }| metadata),
    };
    metadata.map(RawValue::get)
}

/// Returns the members of a JSON object in their order, with values in their original spelling.
pub(super) fn members(object: &str) -> Result<Vec<(Cow<'_, str>, &RawValue)>, serde_json::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some((BorrowedJsonText(key), value)) = map.next_entry()? {
                members.push((key, value));
            }
            Ok(members)
        }
    }

    serde_json::Deserializer::from_str(object).deserialize_map(Members)
}

/// The slots of [`JsonPaths`]; those from `FIELDS_FROM` on are selectable fields.
const NAME: usize = 0;
const NAMESPACE: usize = 1;
const RESOURCE_VERSION: usize = 2;
const LABELS: usize = 3;
const KIND: usize = 4;
const API_VERSION: usize = 5;
const INITIAL_EVENTS_END_SLOT: usize = 6;
const UID: usize = 7;
const FIELDS_FROM: usize = 8;

/// The value of `maxNestingDepth` of Go's encoding/json and of the apiserver's own decoder.
const DEPTH_MAX: usize = 10_000;
