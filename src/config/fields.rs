use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct BoundedNumber<const MIN: usize, const MAX: usize>(usize);

impl<const MIN: usize, const MAX: usize> BoundedNumber<MIN, MAX> {
    pub(super) const fn get(self) -> usize {
        self.0
    }

    pub(super) fn small(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for BoundedNumber<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let within = usize::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        within
            .map(Self)
            .ok_or_else(|| Error::custom(format_args!("{number} is out of range (expected {MIN} to {MAX})")))
    }
}

impl<const MIN: usize, const MAX: usize> JsonSchema for BoundedNumber<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A duration, written `90s`, `10m` or `1h 30m`, within bounds in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundedDuration<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(pub(super) Duration);

impl<const MIN: u64, const MAX: u64> Serialize for BoundedDuration<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for BoundedDuration<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = value.as_str().ok_or_else(|| {
            Error::custom(format_args!("{value} is not a duration (expected one such as 90s, 10m or 1h 30m)"))
        })?;
        let period = humantime::parse_duration(text).map_err(Error::custom)?;
        let (min, max) = (Duration::from_millis(MIN), Duration::from_millis(MAX));
        if (min..=max).contains(&period) {
            return Ok(Self(period));
        }
        Err(Error::custom(format_args!("{period:?} is out of range (expected {min:?} to {max:?})")))
    }
}

/// Deserializes an address or `off`, which YAML reads as `false` unless it is quoted.
pub(super) fn address_or_off<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        Value::Bool(false) => Ok("off".to_owned()),
        other => Err(Error::custom(format_args!("{other} is not supported (expected an address or off)"))),
    }
}

/// Deserializes a list of strings. A single string counts as a list of one.
pub(super) fn one_or_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(OneOrList)
}

struct OneOrList;

impl<'de> Visitor<'de> for OneOrList {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
        Ok(vec![text.to_owned()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<String>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }
}

/// The schema of [`one_or_list`].
pub(super) fn one_or_list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
}

impl<const MIN: u64, const MAX: u64> JsonSchema for BoundedDuration<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "string", "format": "duration", "examples": ["90s", "10m", "1h 30m"] });
        if MAX < u64::MAX {
            let text = |millis| humantime::format_duration(Duration::from_millis(millis)).to_string();
            schema.insert("x-bounds".to_owned(), format!("{}–{}", text(MIN), text(MAX)).into());
        }
        schema
    }
}
