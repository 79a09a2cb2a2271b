//! Conversion of protobuf messages to JSON: one message after another, in JSON order.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::TranscodeRefusal;
use super::facts::{
    AbsentFieldJson, FieldCardinality, FieldOmission, MessageSchema, MessageSchemaId, ProtobufFieldSchema,
    ReleaseSchema, SchemaValueType,
};
use super::go_json::{put_double, put_int, put_text};
use super::scalar::{self, REPEATED};
use kubeapi::protobuf::{FieldReader, ProtobufFieldValue};

/// Writes one protobuf body as JSON.
pub(super) struct JsonBodyWriter<'f, 'b, 'o> {
    facts: &'f ReleaseSchema,
    out: &'o mut Vec<u8>,
    /// The position in `out` at which this body starts, and the maximum length of `out`.
    start: usize,
    limit: usize,
    depth: u32,
    /// The fields of the messages that are being written, innermost last, in one shared buffer.
    found: Vec<WireField<'b>>,
    /// The path of a refused field, ordered from the field outwards.
    path: Vec<&'static str>,
    /// Whether the object is its type's zero value, so that absent fields were never set.
    pub(super) of_zero_value: bool,
}

/// One protobuf field as it is on the wire.
struct WireField<'b> {
    /// The index of the field in the message's JSON order.
    index: u8,
    item: WireFieldValue<'b>,
}

#[derive(Clone, Copy)]
enum WireFieldValue<'b> {
    Varint(u64),
    Double(f64),
    Bytes(&'b [u8]),
}

impl<'f, 'b, 'o> JsonBodyWriter<'f, 'b, 'o> {
    pub(super) fn new(facts: &'f ReleaseSchema, body: &'b [u8], out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        let limit = start + GROWTH_MAX * body.len() + SLACK;
        out.reserve(2 * body.len());
        let found = Vec::with_capacity(FOUND);
        Self { facts, out, start, limit, depth: 0, found, path: Vec::new(), of_zero_value: false }
    }

    /// Returns the path of the refused field, from the innermost field outwards.
    pub(super) fn path(&self) -> &[&'static str] {
        &self.path
    }

    /// Writes the fields of one message without its braces.
    pub(super) fn fields(&mut self, message: &'f MessageSchema, bytes: &'b [u8]) -> Result<(), TranscodeRefusal> {
        let base = self.found.len();
        self.scan(message, bytes)?;
        let (mut at, end) = (base, self.found.len());
        for (index, field) in (0_u8..).zip(&message.fields) {
            let first = at;
            while at < end && self.found[at].index == index {
                at += 1;
            }
            if at == first && field.absent == AbsentFieldJson::Nothing {
                continue;
            }
            if let Err(why) = self.field(field, first..at) {
                self.path.push(field.name);
                return Err(why);
            }
        }
        self.found.truncate(base);
        Ok(())
    }

    /// Writes one protobuf message as a JSON object.
    fn message(&mut self, id: MessageSchemaId, bytes: &'b [u8]) -> Result<(), TranscodeRefusal> {
        self.element(id, bytes, "")
    }

    fn element(&mut self, id: MessageSchemaId, bytes: &'b [u8], head: &str) -> Result<(), TranscodeRefusal> {
        if self.depth == DEPTH_MAX {
            return Err(TranscodeRefusal::TooDeep);
        }
        self.depth += 1;
        self.out.push(b'{');
        self.out.extend_from_slice(head.as_bytes());
        self.fields(self.facts.message(id), bytes)?;
        self.out.push(b'}');
        self.depth -= 1;
        Ok(())
    }

    /// Collects the message's fields and sorts them in JSON order, because the wire order of 80 messages differs.
    fn scan(&mut self, message: &MessageSchema, bytes: &'b [u8]) -> Result<(), TranscodeRefusal> {
        let base = self.found.len();
        let (mut last, mut sorted) = (0, true);
        let mut fields = FieldReader::new(bytes);
        while let Some(field) = fields.next_field()? {
            let index = message.index_of(field.number).ok_or(TranscodeRefusal::UnknownField(field.number))?;
            let item = match field.value {
                ProtobufFieldValue::Varint(value) => WireFieldValue::Varint(value),
                ProtobufFieldValue::Bytes(bytes) => WireFieldValue::Bytes(bytes),
                ProtobufFieldValue::Fixed => {
                    // Doubles are the API's only numbers of a fixed size.
                    let bits = bytes[field.start..field.end].last_chunk().ok_or(WIRE_TYPE)?;
                    WireFieldValue::Double(f64::from_le_bytes(*bits))
                }
            };
            sorted &= last <= index;
            last = index;
            self.found.push(WireField { index, item });
        }
        if !sorted {
            self.found[base..].sort_by_key(|found| found.index);
        }
        Ok(())
    }

    /// Writes a field. `found` is the range of its values in `self.found`.
    fn field(&mut self, field: &'f ProtobufFieldSchema, found: Range<usize>) -> Result<(), TranscodeRefusal> {
        if found.is_empty() {
            return self.absent(field);
        }
        match field.arity {
            FieldCardinality::Many => return self.list(field, found),
            FieldCardinality::Map => return self.map(field, found),
            FieldCardinality::One | FieldCardinality::Pointer | FieldCardinality::Embedded => {}
        }
        if found.len() > 1 {
            return Err(REPEATED);
        }
        let item = self.found[found.start].item;
        if let (FieldCardinality::Embedded, SchemaValueType::Message(id)) = (field.arity, field.kind) {
            return self.fields(self.facts.message(id), item.bytes()?);
        }
        let left_out = match field.omit {
            FieldOmission::Never => false,
            FieldOmission::ZeroScalar => item.is_zero(),
            FieldOmission::ZeroTime => scalar::is_zero_time(item.bytes()?)?,
        };
        if left_out {
            // It is zero, but must have the right wire type.
            return item.check(field.kind);
        }
        self.key(field)?;
        self.value(field.kind, item)
    }

    fn absent(&mut self, field: &ProtobufFieldSchema) -> Result<(), TranscodeRefusal> {
        let value = match field.absent {
            AbsentFieldJson::Nothing => return Ok(()),
            AbsentFieldJson::Ambiguous if self.of_zero_value => "null",
            AbsentFieldJson::Ambiguous => return Err(TranscodeRefusal::NilOrEmpty),
            AbsentFieldJson::Null => "null",
            AbsentFieldJson::EmptyList => "[]",
        };
        self.key(field)?;
        self.out.extend_from_slice(value.as_bytes());
        Ok(())
    }

    /// Writes `,"name":`, without the comma at the beginning of an object.
    fn key(&mut self, field: &ProtobufFieldSchema) -> Result<(), TranscodeRefusal> {
        if self.out.len() > self.limit {
            return Err(TranscodeRefusal::TooLarge(self.limit));
        }
        let first = self.out.len() == self.start || self.out.last() == Some(&b'{');
        self.out.extend_from_slice(field.key(!first));
        Ok(())
    }

    fn list(&mut self, field: &'f ProtobufFieldSchema, found: Range<usize>) -> Result<(), TranscodeRefusal> {
        self.key(field)?;
        let mut separator = b'[';
        for at in found {
            self.out.push(separator);
            separator = b',';
            match (field.kind, self.found[at].item) {
                (SchemaValueType::Message(id), item) => self.element(id, item.bytes()?, &field.element_head)?,
                (kind, item) => self.value(kind, item)?,
            }
        }
        self.out.push(b']');
        Ok(())
    }

    /// Writes a map, sorted by key. The encoder has already sorted it.
    fn map(&mut self, field: &'f ProtobufFieldSchema, found: Range<usize>) -> Result<(), TranscodeRefusal> {
        self.key(field)?;
        let mut separator = b'{';
        let mut last: Option<&[u8]> = None;
        for at in found {
            let (key, value) = map_entry(self.found[at].item.bytes()?)?;
            if last.is_some_and(|last| last >= key) {
                return Err(TranscodeRefusal::Malformed("a map whose keys are not in order"));
            }
            last = Some(key);
            self.out.push(separator);
            separator = b',';
            put_text(self.out, key);
            self.out.push(b':');
            match value {
                Some(item) => self.value(field.kind, item)?,
                // The encoder omits nil bytes, and a decoder reads them as empty.
                None if field.kind == SchemaValueType::Bytes => self.out.extend_from_slice(br#""""#),
                None => return Err(TranscodeRefusal::Malformed("a map entry without a value")),
            }
        }
        self.out.push(b'}');
        Ok(())
    }

    fn value(&mut self, kind: SchemaValueType, item: WireFieldValue<'b>) -> Result<(), TranscodeRefusal> {
        match kind {
            SchemaValueType::Text => put_text(self.out, item.bytes()?),
            SchemaValueType::Message(id) => self.message(id, item.bytes()?)?,
            SchemaValueType::Bool => self.out.extend_from_slice(if item.bool()? { b"true" } else { b"false" }),
            SchemaValueType::Int32 => put_int(self.out, i64::from(scalar::int32(item.varint()?)?)),
            SchemaValueType::Int64 => put_int(self.out, item.varint()?.cast_signed()),
            SchemaValueType::Double => put_double(self.out, item.double()?)?,
            SchemaValueType::Bytes => self.base64(item.bytes()?),
            SchemaValueType::Strings => scalar::put_strings(self.out, item.bytes()?)?,
            SchemaValueType::Time => scalar::put_time(self.out, item.bytes()?, false)?,
            SchemaValueType::MicroTime => scalar::put_time(self.out, item.bytes()?, true)?,
            SchemaValueType::Duration => scalar::put_duration_message(self.out, item.bytes()?)?,
            SchemaValueType::Quantity => scalar::put_quantity(self.out, item.bytes()?)?,
            SchemaValueType::IntOrString => scalar::put_int_or_string(self.out, item.bytes()?)?,
            SchemaValueType::Raw => scalar::put_raw(self.out, item.bytes()?)?,
            SchemaValueType::OrBool(id) => self.schema_or_bool(id, item.bytes()?)?,
            SchemaValueType::OrArray(id) => {
                self.schema_or_list(id, item.bytes()?, |writer, props| writer.message(id, props))?;
            }
            SchemaValueType::OrStrings(id) => self.schema_or_list(id, item.bytes()?, |writer, text| {
                put_text(writer.out, text);
                Ok(())
            })?,
        }
        Ok(())
    }

    fn base64(&mut self, bytes: &[u8]) {
        self.out.push(b'"');
        let start = self.out.len();
        self.out.resize(start + bytes.len().div_ceil(3) * 4, 0);
        let written = BASE64.encode_slice(bytes, &mut self.out[start..]);
        debug_assert_eq!(written.ok(), Some(self.out.len() - start), "base64 has four characters for three bytes");
        self.out.push(b'"');
    }
}

/// The unions in apiextensions' `JSONSchemaProps`: each is written as the member that is set
/// (apiextensions/v1/marshal.go).
impl<'b> JsonBodyWriter<'_, 'b, '_> {
    fn schema_or_bool(&mut self, schema: MessageSchemaId, union: &'b [u8]) -> Result<(), TranscodeRefusal> {
        let (mut allows, mut props) = (None, None);
        scalar::for_each(union, |field| match (field.number, field.value) {
            (1, ProtobufFieldValue::Varint(value)) => scalar::once(&mut allows, value),
            (2, ProtobufFieldValue::Bytes(value)) => scalar::once(&mut props, value),
            _ => Err(scalar::unknown(field)),
        })?;
        if let Some(props) = props {
            return self.message(schema, props);
        }
        let allows = WireFieldValue::Varint(allows.unwrap_or_default()).bool()?;
        self.out.extend_from_slice(if allows { b"true" } else { b"false" });
        Ok(())
    }

    /// Writes a list if it has elements, else the schema, else `null`.
    fn schema_or_list(
        &mut self,
        schema: MessageSchemaId,
        union: &'b [u8],
        put: impl Fn(&mut Self, &'b [u8]) -> Result<(), TranscodeRefusal>,
    ) -> Result<(), TranscodeRefusal> {
        let mut props = None;
        let mut separator = b'[';
        scalar::for_each(union, |field| match (field.number, field.value) {
            (1, ProtobufFieldValue::Bytes(value)) => scalar::once(&mut props, value),
            (2, ProtobufFieldValue::Bytes(value)) => {
                self.out.push(separator);
                separator = b',';
                put(self, value)
            }
            _ => Err(scalar::unknown(field)),
        })?;
        match props {
            _ if separator == b',' => self.out.push(b']'),
            Some(props) => self.message(schema, props)?,
            None => scalar::put_null(self.out),
        }
        Ok(())
    }
}

impl<'b> WireFieldValue<'b> {
    #[inline]
    fn bytes(self) -> Result<&'b [u8], TranscodeRefusal> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(WIRE_TYPE) }
    }

    fn varint(self) -> Result<u64, TranscodeRefusal> {
        if let Self::Varint(value) = self { Ok(value) } else { Err(WIRE_TYPE) }
    }

    fn double(self) -> Result<f64, TranscodeRefusal> {
        if let Self::Double(value) = self { Ok(value) } else { Err(WIRE_TYPE) }
    }

    fn bool(self) -> Result<bool, TranscodeRefusal> {
        match self.varint()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(TranscodeRefusal::Value("neither true nor false")),
        }
    }

    fn is_zero(self) -> bool {
        match self {
            Self::Varint(value) => value == 0,
            Self::Double(value) => value.to_bits() == 0,
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }

    /// Checks that the field's wire type matches `kind`.
    fn check(self, kind: SchemaValueType) -> Result<(), TranscodeRefusal> {
        match kind {
            SchemaValueType::Bool | SchemaValueType::Int32 | SchemaValueType::Int64 => self.varint().map(drop),
            SchemaValueType::Double => self.double().map(drop),
            _ => self.bytes().map(drop),
        }
    }
}

/// Returns the key and value of one map entry.
fn map_entry(entry: &[u8]) -> Result<(&[u8], Option<WireFieldValue<'_>>), TranscodeRefusal> {
    let (mut key, mut item) = (None, None);
    scalar::for_each(entry, |field| match (field.number, field.value) {
        (1, ProtobufFieldValue::Bytes(value)) => scalar::once(&mut key, value),
        (2, ProtobufFieldValue::Bytes(value)) => scalar::once(&mut item, WireFieldValue::Bytes(value)),
        (2, ProtobufFieldValue::Varint(value)) => scalar::once(&mut item, WireFieldValue::Varint(value)),
        _ => Err(scalar::unknown(field)),
    })?;
    Ok((key.ok_or(TranscodeRefusal::Malformed("a map entry without a key"))?, item))
}

const WIRE_TYPE: TranscodeRefusal = TranscodeRefusal::Malformed("wire type differs from the API's");
/// Maximum ratio of derived JSON to its source. Small bodies may grow by more: two bytes of an empty message expand to
/// its name and many defaults.
const GROWTH_MAX: usize = 8;
const SLACK: usize = 8 << 10;
/// The nesting limit of messages. Schemas recurse, and Go's only limit is that of JSON.
const DEPTH_MAX: u32 = 200;
/// The initial capacity, sufficient for the fields of all open messages of most objects.
const FOUND: usize = 128;
