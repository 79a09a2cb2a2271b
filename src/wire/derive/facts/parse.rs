//! Parser of the generated text. The text is compiled in and covered by tests, so an error in it is a bug.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::{
    AbsentFieldJson, FieldCardinality, FieldOmission, MINORS_MAX, MessageSchema, MessageSchemaId, NONE,
    ProtobufFieldSchema, ReleaseSchema, SchemaKindEntry, SchemaValueType,
};

/// Returns the minor releases that the schema text covers.
pub(super) fn minors(text: &str) -> RangeInclusive<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix("minors: ")).expect(GENERATED);
    let minors = range(line, ' ');
    assert!(minors.clone().count() <= MINORS_MAX, "{GENERATED}");
    minors
}

/// Parses the schema of one minor release.
pub(super) fn facts(text: &'static str, minor: u32) -> ReleaseSchema {
    let ids = message_ids(text);
    let mut kinds = Vec::new();
    let mut messages: Vec<MessageSchema> = Vec::with_capacity(ids.len());
    let mut name = "";
    for line in lines(text) {
        let columns: Vec<_> = line.split(' ').collect();
        match *columns {
            ["message:", message] => {
                name = message;
                messages.push(MessageSchema::default());
            }
            ["minors:", ..] => {}
            _ if columns.get(4).is_some_and(|minors| !range(minors, '-').contains(&minor)) => {}
            ["kind:", api_version, kind, message, ..] => {
                kinds.push(SchemaKindEntry { api_version, kind, message: ids[message] });
            }
            [json_name, number, kind, flags, ..] => {
                let field = field(name, json_name, kind_of(kind, &ids), flags);
                messages.last_mut().expect(GENERATED).push(number.parse().expect(GENERATED), field);
            }
            _ => panic!("{GENERATED}: {line}"),
        }
    }
    ReleaseSchema { kinds, messages, object_meta: ids["meta/v1.ObjectMeta"] }
}

/// Numbers the messages of the schema in their order of appearance.
fn message_ids(text: &'static str) -> HashMap<&'static str, MessageSchemaId> {
    let names = lines(text).filter_map(|line| line.strip_prefix("message: "));
    names.zip(0..).map(|(name, id)| (name, MessageSchemaId(id))).collect()
}

fn field(message: &str, name: &'static str, kind: SchemaValueType, flags: &str) -> ProtobufFieldSchema {
    let has = |flag: char| flags.contains(flag);
    let arity = match () {
        () if has('i') => FieldCardinality::Embedded,
        () if has('r') => FieldCardinality::Many,
        () if has('m') => FieldCardinality::Map,
        () if has('p') => FieldCardinality::Pointer,
        () => FieldCardinality::One,
    };
    let scalar = matches!(
        kind,
        SchemaValueType::Bool
            | SchemaValueType::Int32
            | SchemaValueType::Int64
            | SchemaValueType::Double
            | SchemaValueType::Text
            | SchemaValueType::Bytes
            | SchemaValueType::Strings
    );
    assert!(!has('z') || kind == SchemaValueType::Time, "{GENERATED}: omitzero of anything but a time");
    assert!(
        arity != FieldCardinality::Embedded || matches!(kind, SchemaValueType::Message(_)),
        "{GENERATED}: embedded, but no message"
    );
    let omit = match arity {
        FieldCardinality::One if has('z') => FieldOmission::ZeroTime,
        FieldCardinality::One if has('e') && scalar => FieldOmission::ZeroScalar,
        _ => FieldOmission::Never,
    };
    let key = format!(r#","{name}":"#).into_bytes().into();
    ProtobufFieldSchema {
        key,
        name,
        kind,
        arity,
        omit,
        absent: absent(message, name, kind, arity, has('e')),
        element_head: element_head(message, name),
    }
}

/// Returns the JSON of an absent field (R-DERIVE-6): no omitempty and nil; absent on the wire; empty LIST.
fn absent(
    message: &str,
    name: &str,
    kind: SchemaValueType,
    arity: FieldCardinality,
    omitempty: bool,
) -> AbsentFieldJson {
    let nil_or_empty = matches!(arity, FieldCardinality::Many | FieldCardinality::Map)
        || matches!(kind, SchemaValueType::Bytes | SchemaValueType::Strings);
    match arity {
        _ if omitempty => AbsentFieldJson::Nothing,
        FieldCardinality::Many if name == "items" && message.ends_with("List") => AbsentFieldJson::EmptyList,
        // Stored as JSON: R-DERIVE-6, nil vs empty slice.
        _ if nil_or_empty && STORED_AS_JSON.iter().any(|package| message.starts_with(package)) => {
            AbsentFieldJson::Ambiguous
        }
        FieldCardinality::Pointer => AbsentFieldJson::Null,
        _ if nil_or_empty => AbsentFieldJson::Null,
        _ => AbsentFieldJson::Nothing,
    }
}

/// Returns the text of the only embedded `TypeMeta` of all watched kinds. Upstream's conversion of every `StatefulSet`
/// writes it, to behave as before 1.17 (pkg/apis/apps/v1/conversion.go).
fn element_head(message: &str, name: &str) -> &'static [u8] {
    if name == "volumeClaimTemplates" && message.starts_with("apps/") && message.ends_with(".StatefulSetSpec") {
        return br#""kind":"PersistentVolumeClaim","apiVersion":"v1""#;
    }
    b""
}

fn kind_of(word: &str, ids: &HashMap<&'static str, MessageSchemaId>) -> SchemaValueType {
    let (name, message) = word.split_once(':').unwrap_or((word, ""));
    let message = || ids[message];
    match name {
        "bool" => SchemaValueType::Bool,
        "int32" => SchemaValueType::Int32,
        "int64" => SchemaValueType::Int64,
        "double" => SchemaValueType::Double,
        "string" => SchemaValueType::Text,
        "bytes" => SchemaValueType::Bytes,
        "strings" => SchemaValueType::Strings,
        "time" => SchemaValueType::Time,
        "microtime" => SchemaValueType::MicroTime,
        "duration" => SchemaValueType::Duration,
        "quantity" => SchemaValueType::Quantity,
        "intorstring" => SchemaValueType::IntOrString,
        "raw" | "fields" | "json" => SchemaValueType::Raw,
        "orbool" => SchemaValueType::OrBool(message()),
        "orarray" => SchemaValueType::OrArray(message()),
        "orstrings" => SchemaValueType::OrStrings(message()),
        "message" => SchemaValueType::Message(message()),
        _ => panic!("{GENERATED}: {word}"),
    }
}

impl MessageSchema {
    fn push(&mut self, number: usize, field: ProtobufFieldSchema) {
        if self.by_number.len() <= number {
            self.by_number.resize(number + 1, NONE);
        }
        assert_eq!(self.by_number[number], NONE, "{GENERATED}: {} has another field's number", field.name);
        self.by_number[number] = u8::try_from(self.fields.len()).expect("no message has 255 fields");
        self.fields.push(field);
    }
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

fn range(text: &str, between: char) -> RangeInclusive<u32> {
    let (first, last) = text.split_once(between).expect(GENERATED);
    first.parse().expect(GENERATED)..=last.parse().expect(GENERATED)
}

const GENERATED: &str = "facts.txt is as tests/facts writes it";
/// The packages of the two kinds that etcd stores as JSON: CustomResourceDefinition and APIService.
const STORED_AS_JSON: [&str; 2] = ["apiextensions/", "apiregistration/"];
