//! Watch events as they were on the wire.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

/// An event: its type, its key, and the object's bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: String,
    /// The object's `namespace/name`, or `name` if it has no namespace.
    pub key: String,
    pub rv: u64,
    pub body: Bytes,
}

/// How a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The stream ended between two frames, without an ERROR.
    Clean,
    /// One ERROR 410 `Expired`, then the end.
    Expired,
    /// One ERROR with another code, then the end.
    Refused(u64),
    /// A reset, a partial frame, or anything else that a client would report as an error.
    Broken(String),
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: String,
}

impl Event {
    /// Parses a frame. Any encoding other than the apiserver's is an error.
    pub fn parse(frame: &Bytes) -> Result<Self, String> {
        let wrong = || format!("not a frame: {}", String::from_utf8_lossy(&frame[..frame.len().min(300)]));
        let rest = frame.strip_prefix(b"{\"type\":\"").ok_or_else(wrong)?;
        let end = rest.iter().position(|byte| *byte == b'"').ok_or_else(wrong)?;
        let (kind, rest) = rest.split_at(end);
        let body = rest.strip_prefix(b"\",\"object\":").and_then(|rest| rest.strip_suffix(b"}\n")).ok_or_else(wrong)?;
        let Head { metadata } = serde_json::from_slice(body).map_err(|error| format!("{error}: {}", wrong()))?;
        let Metadata { name, namespace, resource_version } = metadata;
        Ok(Self {
            kind: String::from_utf8_lossy(kind).into_owned(),
            key: if namespace.is_empty() { name } else { format!("{namespace}/{name}") },
            rv: resource_version.parse().unwrap_or(0),
            body: frame.slice_ref(body),
        })
    }

    pub fn is_bookmark(&self) -> bool {
        self.kind == "BOOKMARK"
    }

    pub fn is_error(&self) -> bool {
        self.kind == "ERROR"
    }

    /// Whether this is the bookmark that ends the initial events.
    pub fn ends_initial_events(&self) -> bool {
        self.is_bookmark() && self.object()["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
    }

    pub fn object(&self) -> Value {
        serde_json::from_slice(&self.body).expect("an object")
    }

    /// The end of the watch that this ERROR announces.
    pub fn as_end(&self) -> Ended {
        let status = self.object();
        match (status["code"].as_u64(), status["reason"].as_str()) {
            (Some(410), Some("Expired")) => Ended::Expired,
            (code, _) => Ended::Refused(code.unwrap_or(0)),
        }
    }
}

/// An event in a failure message, for example `ADDED ns/name @7`.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.as_str() {
            "BOOKMARK" => write!(f, "BOOKMARK @{}", self.rv),
            "ERROR" => write!(f, "ERROR {}", String::from_utf8_lossy(&self.body)),
            other => write!(f, "{other} {} @{}", self.key, self.rv),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
