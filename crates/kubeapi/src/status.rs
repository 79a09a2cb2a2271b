mod constructors;
mod protobuf;
#[cfg(test)]
mod tests;

use super::go_text::escape_json;
use serde::{Deserialize, Serialize};

/// The apiserver's answer when there is no object to answer with: an error, inside a response or inside a watch's
/// `ERROR` event.
///
/// Members are in wire order, empty ones are left out, and `details` is absent or `{}` as R-STATUS-1
/// says for each constructor; so two equal statuses are equal bytes. Every text here is the apiserver's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(default, rename_all = "camelCase")]
#[error("{code} {reason}: {message}")]
pub struct Status {
    /// `Status`; empty only in the apiserver's own deadline answer (R-TIMEOUT-3).
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub kind: String,
    /// `v1`; empty where `kind` is.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub api_version: String,
    #[serde(deserialize_with = "or_default")]
    pub metadata: StatusMetadata,
    /// `Success` or `Failure`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub status: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub message: String,
    /// For programs: `NotFound`, `Expired`, … Empty when the apiserver did not know.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status code.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub code: i32,
}

/// The list metadata of a [`Status`]; only `continue` is ever set, by an expired continue token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusMetadata {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default", rename = "continue")]
    pub continue_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<i64>,
}

/// The details of a [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub group: String,
    /// The plural resource name, in spite of the member's name (only `ListOptions` is a kind).
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub causes: Vec<StatusCause>,
    /// Mirrored to the `Retry-After` header when above zero.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub retry_after_seconds: i32,
}

/// One of several reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusCause {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub field: String,
}

/// Bytes that were to be a [`Status`] and are not.
#[derive(Debug, thiserror::Error)]
pub enum NotAStatus {
    #[error("not a Status in JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("not a Status in protobuf: {0}")]
    Protobuf(&'static str),
    #[error("a {0:?}, not a Status")]
    OtherKind(String),
}

impl Status {
    /// The body of an error response: compact JSON and a newline (R-JSON-1).
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = self.to_event_json();
        json.push(b'\n');
        json
    }

    /// The JSON without the newline, for use inside a watch event.
    pub fn to_event_json(&self) -> Vec<u8> {
        finished(serde_json::to_string(self))
    }

    /// Two spaces of indentation and no newline at the end: what the apiserver writes for pretty requests and where no
    /// clause of the Accept header fits an error (R-ACCEPT-5, R-JSON-2).
    pub fn to_json_indented(&self) -> Vec<u8> {
        finished(serde_json::to_string_pretty(self))
    }

    /// The `k8s\0` document of an error response; the same bytes stand inside a watch event (R-PROTO-1).
    pub fn to_protobuf(&self) -> Vec<u8> {
        protobuf::encode(self)
    }

    /// Reads what [`to_json`](Self::to_json) or the apiserver wrote. Unknown members are ignored.
    ///
    /// # Errors
    /// Not JSON, or an object of another kind.
    pub fn from_json(json: &[u8]) -> Result<Self, NotAStatus> {
        serde_json::from_slice::<Self>(json)?.checked_kind()
    }

    /// Reads what [`to_protobuf`](Self::to_protobuf) or the apiserver wrote. Unknown fields are ignored.
    ///
    /// # Errors
    /// Not a `k8s\0` document, damaged, or an object of another kind.
    pub fn from_protobuf(document: &[u8]) -> Result<Self, NotAStatus> {
        protobuf::decode(document).map_err(NotAStatus::Protobuf)?.checked_kind()
    }

    /// For the response's status line; 500 when the code is none.
    pub fn http_code(&self) -> u16 {
        u16::try_from(self.code).ok().filter(|code| (100..=999).contains(code)).unwrap_or(500)
    }

    /// For the `Retry-After` header, which every status writer of the apiserver sets from here (R-STATUS-2).
    pub fn retry_after_seconds(&self) -> Option<u32> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        u32::try_from(seconds).ok().filter(|&seconds| seconds > 0)
    }

    /// The reader's resourceVersion is gone and it must list again: client-go's `IsResourceExpired` or `IsGone`.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_str(), "Expired" | "Gone")
    }

    /// The server has not come as far as the version that was asked for: client-go's
    /// `IsResourceVersionTooLarge`. An error within a watch may have lost its details.
    pub fn is_too_large_version(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
            || self.code == 504 && self.message.contains("Too large resource version")
    }

    fn checked_kind(self) -> Result<Self, NotAStatus> {
        if matches!(self.kind.as_str(), "" | "Status") { Ok(self) } else { Err(NotAStatus::OtherKind(self.kind)) }
    }
}

fn finished(json: serde_json::Result<String>) -> Vec<u8> {
    escape_json(&json.expect("strings and numbers always serialize")).into_bytes()
}

/// Go reads `null` as the zero value.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}
