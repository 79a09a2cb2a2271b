//! `ObjectMeta` from JSON to protobuf, as Go's generated encoder writes it. A metadata client of custom resources
//! prefers this encoding (R-DERIVE-9).
//!
//! The metadata of custom resources has passed through the apiserver's own `ObjectMeta`, so its JSON contains no other
//! fields. JSON with other fields is refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::TranscodeRefusal;
use kubeapi::protobuf::put_varint;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct ObjectMeta<'a> {
    #[serde(borrow)]
    name: BorrowedString<'a>,
    generate_name: BorrowedString<'a>,
    namespace: BorrowedString<'a>,
    self_link: BorrowedString<'a>,
    uid: BorrowedString<'a>,
    resource_version: BorrowedString<'a>,
    generation: i64,
    creation_timestamp: Option<BorrowedString<'a>>,
    deletion_timestamp: Option<BorrowedString<'a>>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<BorrowedString<'a>, BorrowedString<'a>>>,
    annotations: Option<BTreeMap<BorrowedString<'a>, BorrowedString<'a>>>,
    owner_references: Option<Vec<JsonObject<OwnerReference<'a>>>>,
    finalizers: Option<Vec<BorrowedString<'a>>>,
    managed_fields: Option<Vec<JsonObject<ManagedFields<'a>>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct OwnerReference<'a> {
    #[serde(borrow)]
    api_version: BorrowedString<'a>,
    kind: BorrowedString<'a>,
    name: BorrowedString<'a>,
    uid: BorrowedString<'a>,
    controller: Option<bool>,
    block_owner_deletion: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ManagedFields<'a> {
    #[serde(borrow)]
    manager: BorrowedString<'a>,
    operation: BorrowedString<'a>,
    api_version: BorrowedString<'a>,
    time: Option<BorrowedString<'a>>,
    fields_type: BorrowedString<'a>,
    /// The managed fields as raw JSON: the server's text is compact and HTML-safe in JSON and in protobuf.
    #[serde(rename = "fieldsV1")]
    fields_v1: Option<&'a RawValue>,
    subresource: BorrowedString<'a>,
}

/// A string that is borrowed unless it has escapes, also in collections.
#[derive(Deserialize, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct BorrowedString<'a>(#[serde(borrow)] Cow<'a, str>);

/// A struct that is deserialized from a JSON object only. Serde's default also accepts an array of the members.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JsonObject<T>(T);

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

impl<'a> ObjectMeta<'a> {
    /// Reads the metadata of a JSON body: a whole custom resource, or a built-in object without its `TypeMeta`.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, TranscodeRefusal> {
        #[derive(Deserialize)]
        struct CustomObject<'a> {
            #[serde(borrow)]
            metadata: JsonObject<ObjectMeta<'a>>,
        }
        let read = match body.strip_prefix(br#""metadata":"#) {
            Some(metadata) => JsonObject::deserialize(&mut serde_json::Deserializer::from_slice(metadata)),
            None => serde_json::from_slice(body).map(|JsonObject(CustomObject { metadata })| metadata),
        };
        match read {
            Ok(JsonObject(metadata)) => Ok(metadata),
            Err(_) => Err(TranscodeRefusal::Value("not metadata as the apiserver prints it")),
        }
    }

    pub(super) fn remove_annotations(&mut self, names: &[&str]) {
        if let Some(annotations) = &mut self.annotations {
            annotations.retain(|name, _| !names.contains(&&*name.0));
        }
    }

    /// Appends the metadata as a protobuf message. Go's encoder writes every field that is not a pointer, list or map,
    /// even if it is empty.
    pub(super) fn put_protobuf(&self, out: &mut Vec<u8>) -> Result<(), TranscodeRefusal> {
        let texts =
            [&self.name, &self.generate_name, &self.namespace, &self.self_link, &self.uid, &self.resource_version];
        for (number, text) in (1..).zip(texts) {
            put_text(out, number, text);
        }
        put_int(out, 7, self.generation);
        put_time(out, 8, self.creation_timestamp.as_ref())?;
        if self.deletion_timestamp.is_some() {
            put_time(out, 9, self.deletion_timestamp.as_ref())?;
        }
        if let Some(seconds) = self.deletion_grace_period_seconds {
            put_int(out, 10, seconds);
        }
        put_map(out, 11, self.labels.as_ref());
        put_map(out, 12, self.annotations.as_ref());
        for JsonObject(owner) in self.owner_references.iter().flatten() {
            put_message(out, 13, |out| owner.put_protobuf(out));
        }
        for finalizer in self.finalizers.iter().flatten() {
            put_text(out, 14, finalizer);
        }
        for JsonObject(entry) in self.managed_fields.iter().flatten() {
            let mut message = Vec::new();
            entry.put_protobuf(&mut message)?;
            put_bytes(out, 17, &message);
        }
        Ok(())
    }
}

impl OwnerReference<'_> {
    fn put_protobuf(&self, out: &mut Vec<u8>) {
        put_text(out, 1, &self.kind);
        put_text(out, 3, &self.name);
        put_text(out, 4, &self.uid);
        put_text(out, 5, &self.api_version);
        for (number, flag) in [(6, self.controller), (7, self.block_owner_deletion)] {
            if let Some(flag) = flag {
                put_int(out, number, i64::from(flag));
            }
        }
    }
}

impl ManagedFields<'_> {
    fn put_protobuf(&self, out: &mut Vec<u8>) -> Result<(), TranscodeRefusal> {
        put_text(out, 1, &self.manager);
        put_text(out, 2, &self.operation);
        put_text(out, 3, &self.api_version);
        if self.time.is_some() {
            put_time(out, 4, self.time.as_ref())?;
        }
        put_text(out, 6, &self.fields_type);
        if let Some(fields) = self.fields_v1 {
            put_message(out, 7, |out| put_bytes(out, 1, fields.get().as_bytes()));
        }
        put_text(out, 8, &self.subresource);
        Ok(())
    }
}

fn put_tag(out: &mut Vec<u8>, number: u64, wire_type: u64) {
    put_varint(out, number << 3 | wire_type);
}

fn put_int(out: &mut Vec<u8>, number: u64, value: i64) {
    put_tag(out, number, 0);
    put_varint(out, value.cast_unsigned());
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, number: u64, text: &BorrowedString<'_>) {
    put_bytes(out, number, text.0.as_bytes());
}

fn put_message(out: &mut Vec<u8>, number: u64, put: impl FnOnce(&mut Vec<u8>)) {
    let mut message = Vec::new();
    put(&mut message);
    put_bytes(out, number, &message);
}

fn put_map(out: &mut Vec<u8>, number: u64, map: Option<&BTreeMap<BorrowedString<'_>, BorrowedString<'_>>>) {
    for (key, value) in map.into_iter().flatten() {
        put_message(out, number, |out| {
            put_text(out, 1, key);
            put_text(out, 2, value);
        });
    }
}

/// Writes a `metav1.Time`: seconds, and nanoseconds that are always 0; the zero time is an empty message.
fn put_time(out: &mut Vec<u8>, number: u64, time: Option<&BorrowedString<'_>>) -> Result<(), TranscodeRefusal> {
    let seconds = time.map(|time| unix_seconds(&time.0)).transpose()?;
    put_message(out, number, |out| {
        if let Some(seconds) = seconds {
            put_int(out, 1, seconds);
            put_int(out, 2, 0);
        }
    });
    Ok(())
}

/// Returns the seconds since 1970 of `2006-01-02T15:04:05Z`, the only format that the apiserver prints.
pub(in crate::wire) fn unix_seconds(text: &str) -> Result<i64, TranscodeRefusal> {
    let error = TranscodeRefusal::Value("not a time as the apiserver prints it");
    let part = |at: usize, end: usize| {
        let digits = text.get(at..end).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse::<i64>().ok()).ok_or(error)
    };
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    let separators = [4, 7, 10, 13, 16, 19].map(|at| text.as_bytes().get(at).copied());
    let as_printed = text.len() == 20 && separators == [b'-', b'-', b'T', b':', b':', b'Z'].map(Some);
    let days_of_month = match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let in_calendar = year > 0 && (1..=12).contains(&month) && (1..=days_of_month).contains(&day);
    if !as_printed || !in_calendar || hour > 23 || minute > 59 || second > 59 {
        return Err(error);
    }
    // Years that begin in March, so that the leap day is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - EPOCH;
    Ok(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// The number of days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;
