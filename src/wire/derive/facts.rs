//! The table of the API's types in both encodings, one [`ReleaseSchema`] per minor of Kubernetes.
//!
//! `make facts` (tests/facts) generates `facts/facts.json` from the published Go modules, because no other source is
//! complete. The `.proto` files contain neither omitempty nor the order of the JSON, and not always its names
//! (R-DERIVE-5). The text is compiled in and covered by tests, so an error in it is a bug.

use std::ops::RangeInclusive;
use std::sync::{LazyLock, OnceLock};

use serde::Deserialize;

/// The types of all minor releases.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'static"))]
struct SchemaTable {
    minors: (u32, u32),
    object_meta: MessageSchemaId,
    kinds: Vec<SchemaKindEntry>,
    messages: Vec<Vec<ProtobufFieldSchema>>,
}

/// The types of one minor release.
pub(super) struct ReleaseSchema {
    kinds: Vec<SchemaKindEntry>,
    messages: Vec<MessageSchema>,
    object_meta: MessageSchemaId,
}

/// One kind and its message.
#[derive(Deserialize)]
struct SchemaKindEntry {
    api_version: &'static str,
    kind: &'static str,
    message: MessageSchemaId,
    #[serde(default)]
    minors: Minors,
}

/// The first and the last minor release of a kind or a field that not every release has.
type Minors = Option<(u32, u32)>;

/// An index into the messages of the same [`ReleaseSchema`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct MessageSchemaId(u16);

/// The schema of one message, with its fields in JSON order, which is Go's declaration order.
pub(super) struct MessageSchema {
    pub(super) fields: Vec<ProtobufFieldSchema>,
    /// The index in `fields` of each field number, or [`NONE`].
    by_number: Vec<u8>,
}

/// The schema of one field in both encodings.
#[derive(Deserialize)]
pub(super) struct ProtobufFieldSchema {
    pub(super) name: &'static str,
    pub(super) number: usize,
    pub(super) kind: SchemaValueType,
    pub(super) arity: FieldCardinality,
    /// Whether JSON omits the field although it is on the wire.
    pub(super) omit: FieldOmission,
    pub(super) absent: AbsentFieldJson,
    #[serde(default)]
    minors: Minors,
    /// The text at the beginning of each element, which only hand-written conversions produce.
    #[serde(default)]
    pub(super) element_head: Box<str>,
    /// The field's key in JSON, with punctuation: `,"name":`.
    #[serde(skip)]
    key: Box<[u8]>,
}

/// The type of one field value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum SchemaValueType {
    Bool,
    Int32,
    Int64,
    Double,
    Text,
    Bytes,
    /// A message of strings, which is an array in JSON: `ExtraValue`.
    Strings,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// `RawExtension`, `FieldsV1` and JSON: a message with JSON as its bytes.
    Raw,
    /// `JSONSchemaPropsOrBool` and the other two unions of schemas.
    OrBool(MessageSchemaId),
    OrArray(MessageSchemaId),
    OrStrings(MessageSchemaId),
    Message(MessageSchemaId),
}

/// The number of values that a field may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum FieldCardinality {
    One,
    Pointer,
    Many,
    Map,
    /// One message whose fields belong to its parent in JSON.
    Embedded,
}

/// The condition for omitting a singular field from the JSON although it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum FieldOmission {
    Never,
    /// The tag `omitempty`, which applies to scalars and not to structs.
    ZeroScalar,
    /// The tag `omitzero`, which `ObjectMeta.creationTimestamp` has since 1.34.
    ZeroTime,
}

/// The JSON of a field that is not on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum AbsentFieldJson {
    /// Nothing is written: the field is omitempty, or it is a singular field, which the server's encoder always writes,
    /// so the server does not have the field.
    Nothing,
    Null,
    /// An empty list is written, because the items are made from an empty slice instead of nil.
    EmptyList,
    /// The value is `null` or `[]`, which protobuf cannot distinguish: see
    /// [`TranscodeRefusal::NilOrEmpty`](super::TranscodeRefusal::NilOrEmpty).
    Ambiguous,
}

/// Returns whether Kubernetes itself defines types of a group and version, in any minor release of the table.
pub fn is_builtin_group_version(api_version: &str) -> bool {
    // Only the entries of kinds begin with two texts.
    TEXT.contains(&format!(r#"["{api_version}",""#))
}

impl ReleaseSchema {
    /// Returns the schema of release `1.minor`, if the table has it.
    pub(super) fn of(minor: u32) -> Option<&'static Self> {
        static TABLES: [OnceLock<ReleaseSchema>; MINORS_MAX] = [const { OnceLock::new() }; MINORS_MAX];
        let minors = Self::minors();
        let table = TABLES.get(usize::try_from(minor.checked_sub(*minors.start())?).ok()?)?;
        minors.contains(&minor).then(|| table.get_or_init(|| Self::read(minor)))
    }

    fn read(minor: u32) -> Self {
        let SchemaTable { minors: _, object_meta, mut kinds, messages } = SchemaTable::read();
        let has = |minors: Minors| minors.is_none_or(|(first, last)| (first..=last).contains(&minor));
        kinds.retain(|kind| has(kind.minors));
        let of_minor = |mut fields: Vec<ProtobufFieldSchema>| {
            fields.retain(|field| has(field.minors));
            MessageSchema::new(fields)
        };
        Self { kinds, messages: messages.into_iter().map(of_minor).collect(), object_meta }
    }

    /// Returns the facts of the newest release in the table.
    pub(super) fn newest() -> &'static Self {
        Self::of(*Self::minors().end()).expect("the table has its own minors")
    }

    /// Returns the minor releases that the table covers, at most [`MINORS_MAX`].
    pub(super) fn minors() -> RangeInclusive<u32> {
        static MINORS: LazyLock<(u32, u32)> = LazyLock::new(|| {
            let minors = SchemaTable::read().minors;
            assert!((minors.0..=minors.1).count() <= MINORS_MAX, "more minor releases than tables");
            minors
        });
        MINORS.0..=MINORS.1
    }

    /// Returns the message of `kind` in `api_version`, if it is a built-in kind with a protobuf encoding.
    pub(super) fn kind(&self, api_version: &str, kind: &str) -> Option<&MessageSchema> {
        let known = self.kinds.iter().find(|known| known.kind == kind && known.api_version == api_version)?;
        Some(self.message(known.message))
    }

    /// Returns the message of every object's metadata.
    pub(super) fn object_meta(&self) -> &MessageSchema {
        self.message(self.object_meta)
    }

    pub(super) fn message(&self, id: MessageSchemaId) -> &MessageSchema {
        &self.messages[usize::from(id.0)]
    }
}

impl SchemaTable {
    fn read() -> Self {
        serde_json::from_str(TEXT).expect("facts.json is as tests/facts writes it")
    }
}

impl MessageSchema {
    fn new(mut fields: Vec<ProtobufFieldSchema>) -> Self {
        assert!(fields.len() <= usize::from(NONE), "more fields than an index can be");
        let last = fields.iter().map(|field| field.number).max().unwrap_or_default();
        let mut by_number = vec![NONE; last + 1];
        for (index, field) in (0..).zip(&mut fields) {
            assert_eq!(by_number[field.number], NONE, "{} has another field's number", field.name);
            by_number[field.number] = index;
            field.key = format!(r#","{}":"#, field.name).into_bytes().into();
        }
        Self { fields, by_number }
    }

    /// Returns the index in `fields` of the field with this number.
    #[inline]
    pub(super) fn index_of(&self, number: u32) -> Option<u8> {
        let index = *self.by_number.get(usize::try_from(number).ok()?)?;
        (index != NONE).then_some(index)
    }
}

impl ProtobufFieldSchema {
    /// Returns `,"name":`, with or without the comma.
    #[inline]
    pub(super) fn key(&self, comma: bool) -> &[u8] {
        &self.key[usize::from(!comma)..]
    }
}

const TEXT: &str = include_str!("facts/facts.json");
/// The maximum number of minor releases in the table.
const MINORS_MAX: usize = 8;
/// The entry of [`MessageSchema::by_number`] for a number without a field.
const NONE: u8 = u8::MAX;
