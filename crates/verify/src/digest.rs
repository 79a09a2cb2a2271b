//! Digests of objects for comparing contents, as sixteen characters of text.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The first 64 bits of a SHA-256. They suffice, because a content is compared only with the one expected content and
/// never with all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentDigest(NonZeroU64);

impl ContentDigest {
    /// Returns a digest of raw bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut first = [0; 8];
        first.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..8]);
        Self(NonZeroU64::new(u64::from_be_bytes(first)).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns a digest of an object's content that does not depend on the order of members. It excludes `apiVersion`
    /// and `kind`, which lists omit, and the version, which is compared separately.
    pub fn of_object(object: &Value) -> Self {
        let mut text = Vec::new();
        write(object, JsonMemberPosition::Object, &mut text);
        Self::of_bytes(&text)
    }

    /// Returns a digest of an object's content as `PartialObjectMetadata`.
    pub fn of_metadata(object: &Value) -> Self {
        let mut text = b"{\"metadata\":".to_vec();
        write(object.get("metadata").unwrap_or(&Value::Null), JsonMemberPosition::Metadata, &mut text);
        text.push(b'}');
        Self::of_bytes(&text)
    }
}

/// The position of a value in an object, where a member may be omitted.
#[derive(Clone, Copy, PartialEq)]
enum JsonMemberPosition {
    Object,
    Metadata,
    Deeper,
}

/// Writes JSON without spaces, with members in the order of their names.
fn write(value: &Value, place: JsonMemberPosition, to: &mut Vec<u8>) {
    match value {
        Value::Object(members) => {
            let left_out = |name: &str| match place {
                JsonMemberPosition::Object => name == "apiVersion" || name == "kind",
                JsonMemberPosition::Metadata => name == "resourceVersion",
                JsonMemberPosition::Deeper => false,
            };
            let mut members: Vec<_> = members.iter().filter(|(name, _)| !left_out(name)).collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            to.push(b'{');
            for (at, (name, value)) in members.into_iter().enumerate() {
                if at > 0 {
                    to.push(b',');
                }
                to.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
                to.push(b':');
                let metadata = place == JsonMemberPosition::Object && name == "metadata";
                write(value, if metadata { JsonMemberPosition::Metadata } else { JsonMemberPosition::Deeper }, to);
            }
            to.push(b'}');
        }
        Value::Array(values) => {
            to.push(b'[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    to.push(b',');
                }
                write(value, JsonMemberPosition::Deeper, to);
            }
            to.push(b']');
        }
        plain => to.extend_from_slice(plain.to_string().as_bytes()),
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentDigest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = u64::from_str_radix(text, 16).ok().and_then(NonZeroU64::new);
        bits.map(Self).ok_or("no digest: at most sixteen hexadecimal digits, and not zero")
    }
}

impl Serialize for ContentDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DigestHexVisitor;
        impl serde::de::Visitor<'_> for DigestHexVisitor {
            type Value = ContentDigest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a digest in hexadecimal digits")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ContentDigest, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(DigestHexVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digest_ignores_key_order_version_and_type_only() {
        let stored = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "1", "kind": "x"},
            "metadata": {"name": "n"}});
        let received = json!({"metadata": {"resourceVersion": "7", "name": "n"}, "data": {"kind": "x", "a": "1"}});
        assert_eq!(ContentDigest::of_object(&stored), ContentDigest::of_object(&received));
        let others = [
            json!({"metadata": {"name": "n"}, "data": {"a": "1"}}),
            json!({"metadata": {"name": "n"}, "data": {"kind": "x", "a": 1}}),
            json!({"metadata": {"name": "n"}, "data": {"kind": "x", "a": "1", "resourceVersion": "7"}}),
        ];
        for other in others {
            assert_ne!(ContentDigest::of_object(&stored), ContentDigest::of_object(&other), "{other}");
        }
        let partial = json!({"kind": "PartialObjectMetadata", "metadata": {"name": "n", "resourceVersion": "9"}});
        assert_eq!(ContentDigest::of_metadata(&stored), ContentDigest::of_object(&partial));
    }

    #[test]
    fn digest_round_trips_as_text() {
        let digest = ContentDigest::of_bytes(b"x");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(serde_json::from_str::<ContentDigest>("\"a1\"").unwrap().to_string(), "a1");
        for wrong in ["\"no\"", "\"0\"", "7"] {
            assert!(serde_json::from_str::<ContentDigest>(wrong).is_err(), "{wrong}");
        }
    }
}
