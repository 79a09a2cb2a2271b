//! JSON that preserves the order of keys, and is written as Go writes it.
//!
//! The apiserver writes built-in kinds in the order of their struct fields, and custom resources with sorted keys.
//! `serde_json::Value` (without `preserve_order`) can only do the second, hence this small tree.

mod merge;
mod pretty;

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

pub(crate) use merge::{merge_patch, strategic_patch};
pub(crate) use pretty::pretty;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Json {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Self>),
    Object(JsonMembers),
}

/// The members of an object, in the order in which they were read or set. Keys are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JsonMembers(pub(crate) Vec<(String, Json)>);

impl Json {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.get(key),
            _ => None,
        }
    }

    /// Returns the value at a dotted path, such as `spec.nodeName`.
    pub(crate) fn at(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |value, key| value.get(key))
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    pub(crate) fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    pub(crate) fn into_fields(self) -> Option<JsonMembers> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns the text that a field selector compares: strings unchanged, booleans and integers in their JSON form.
    pub(crate) fn selectable(&self) -> String {
        match self {
            Self::String(text) => text.clone(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number.to_string(),
            _ => String::new(),
        }
    }

    /// Sorts the keys at every level, as in custom resources.
    pub(crate) fn sort(&mut self) {
        match self {
            Self::Array(items) => items.iter_mut().for_each(Self::sort),
            Self::Object(fields) => {
                fields.0.sort_by(|a, b| a.0.cmp(&b.0));
                fields.0.iter_mut().for_each(|(_, value)| value.sort());
            }
            _ => {}
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push(b'[');
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Object(fields) => fields.write(out),
        }
    }

    #[cfg(test)]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

impl JsonMembers {
    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Sets a member of a JSON object in place, or adds it at the end.
    pub(crate) fn set(&mut self, key: &str, value: Json) {
        match self.get_mut(key) {
            Some(slot) => *slot = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Json> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(at).1)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (n, (key, value)) in self.0.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            write_string(key, out);
            out.push(b':');
            value.write(out);
        }
        out.push(b'}');
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number.into())
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => Self::String(text),
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Value::Object(map) => {
                Self::Object(JsonMembers(map.into_iter().map(|(key, value)| (key, Self::from(value))).collect()))
            }
        }
    }
}

/// Writes a string as Go's `encoding/json` does, which also escapes HTML characters and the two line separators.
pub(crate) fn write_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            '\u{2028}' => out.extend_from_slice(b"\\u2028"),
            '\u{2029}' => out.extend_from_slice(b"\\u2029"),
            '\0'..' ' | '<' | '>' | '&' => {
                let code = c as usize;
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[code >> 4], HEX[code & 15]]);
            }
            _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = JsonMembers::default();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            fields.set(&key, value);
        }
        Ok(Json::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> String {
        String::from_utf8(Json::parse(text.as_bytes()).unwrap().to_bytes()).unwrap()
    }

    #[test]
    fn key_order_is_kept_and_strings_are_escaped_as_in_go() {
        assert_eq!(rewritten(r#"{"b": 1, "a": [true, null, -2, 1.5]}"#), r#"{"b":1,"a":[true,null,-2,1.5]}"#);
        assert_eq!(rewritten(r#""a<b>&\u2028\u0001\n\"é""#), "\"a\\u003cb\\u003e\\u0026\\u2028\\u0001\\n\\\"é\"");
    }

    #[test]
    fn sort_orders_keys_at_every_level() {
        let mut json = Json::parse(br#"{"b":{"d":1,"c":[{"z":1,"y":2}]},"a":0}"#).unwrap();
        json.sort();
        assert_eq!(json.to_bytes(), br#"{"a":0,"b":{"c":[{"y":2,"z":1}],"d":1}}"#);
    }
}
