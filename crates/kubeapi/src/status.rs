mod protobuf;
#[cfg(test)]
mod tests;

use super::go_text::escape_json;
use super::protobuf::ProtobufError;
use serde::{Deserialize, Serialize};

/// The API's `Status`: the apiserver's response if there is no object to return, usually an error, in a response or in
/// a watch's `ERROR` event.
///
/// Members are in wire order, empty ones are omitted, and `details` is absent or `{}` as R-STATUS-1 defines for each
/// constructor. So two equal statuses have equal bytes. Every text is the apiserver's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(default, rename_all = "camelCase")]
#[error("{code} {reason}: {message}")]
pub struct Status {
    /// The kind `Status`; empty only in the apiserver's own deadline response (R-TIMEOUT-3).
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub kind: String,
    /// The API version `v1`; empty if `kind` is empty.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub api_version: String,
    #[serde(deserialize_with = "or_default")]
    pub metadata: StatusMetadata,
    /// The result: `Success` or `Failure`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub status: String,
    /// A human-readable description of the Status.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub message: String,
    /// The machine-readable reason: `NotFound`, `Expired`, … It is empty if the apiserver had none.
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
    /// The plural resource name, although the member is called `kind` (only `ListOptions` is a kind).
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub causes: Vec<StatusCause>,
    /// The retry delay in seconds. If above zero, it is also sent in the `Retry-After` header.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub retry_after_seconds: i32,
}

/// One of several causes of a failure, such as an invalid field.
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

/// The reason that bytes are not a [`Status`].
#[derive(Debug, thiserror::Error)]
pub enum StatusDecodeError {
    #[error("cannot decode a Status from JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot decode a Status from protobuf: {0}")]
    Protobuf(#[from] ProtobufError),
    #[error("cannot decode a Status: the object is of kind {0:?}")]
    OtherKind(String),
}

impl Status {
    /// Encodes the body of an error response: compact JSON and a newline (R-JSON-1).
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = self.to_event_json();
        json.push(b'\n');
        json
    }

    /// Encodes the Status as JSON without the newline, for use inside a watch event.
    pub fn to_event_json(&self) -> Vec<u8> {
        finished(serde_json::to_string(self))
    }

    /// Encodes the Status as JSON with two spaces of indentation and no final newline. The apiserver sends it for
    /// pretty requests, and if no clause of the Accept header fits an error (R-ACCEPT-5, R-JSON-2).
    pub fn to_json_indented(&self) -> Vec<u8> {
        finished(serde_json::to_string_pretty(self))
    }

    /// Encodes the `k8s\0` document of an error response; a watch event contains the same bytes (R-PROTO-1).
    pub fn to_protobuf(&self) -> Vec<u8> {
        protobuf::encode(self)
    }

    /// Parses the output of [`to_json`](Self::to_json) or of the apiserver. Unknown members are ignored.
    ///
    /// # Errors
    /// The text is not JSON, or an object of another kind.
    pub fn from_json(json: &[u8]) -> Result<Self, StatusDecodeError> {
        serde_json::from_slice::<Self>(json)?.checked_kind()
    }

    /// Parses the output of [`to_protobuf`](Self::to_protobuf) or of the apiserver. Unknown fields are ignored.
    ///
    /// # Errors
    /// The bytes are not a valid `k8s\0` document, or an object of another kind.
    pub fn from_protobuf(document: &[u8]) -> Result<Self, StatusDecodeError> {
        protobuf::decode(document)?.checked_kind()
    }

    /// Returns the code for the response's status line; 500 if the Status has no valid one.
    pub fn http_code(&self) -> u16 {
        u16::try_from(self.code).ok().filter(|code| (100..=999).contains(code)).unwrap_or(500)
    }

    /// Returns the value for the `Retry-After` header, which every status writer of the apiserver takes from here
    /// (R-STATUS-2).
    pub fn retry_after_seconds(&self) -> Option<u32> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        u32::try_from(seconds).ok().filter(|&seconds| seconds > 0)
    }

    /// Whether the requested version is no longer available and the reader must relist: client-go's `IsResourceExpired`
    /// or `IsGone`.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_str(), "Expired" | "Gone")
    }

    /// Whether the server has not reached the requested version: client-go's `IsResourceVersionTooLarge`. An error
    /// within a watch may lack the details.
    pub fn is_too_large_version(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
            || self.code == 504 && self.message.contains("Too large resource version")
    }

    fn checked_kind(self) -> Result<Self, StatusDecodeError> {
        if matches!(self.kind.as_str(), "" | "Status") {
            Ok(self)
        } else {
            Err(StatusDecodeError::OtherKind(self.kind))
        }
    }
}

fn finished(json: serde_json::Result<String>) -> Vec<u8> {
    escape_json(&json.expect("strings and numbers always serialize")).into_bytes()
}

/// Deserializes `null` as the default, as Go does.
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
