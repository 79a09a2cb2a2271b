mod protobuf;

use super::go_text::{escape_html, escape_json, quote};
use super::protobuf::ProtobufError;
use super::{AccessAttributes, AccessTarget, Gvr};
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

/// The retry delay for "too large resource version", as in the watch cache.
const TOO_LARGE_RETRY_AFTER_SECONDS: i32 = 1;

/// One constructor per refusal of R-STATUS-1 to R-STATUS-3, R-LIST-5, R-VERSION-4, R-GONE-1, R-GONE-2, R-AUTHZ-3.
impl Status {
    /// Creates a Status with the result `Failure` and no details.
    fn failure(code: i32, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: "Status".to_owned(),
            api_version: "v1".to_owned(),
            status: "Failure".to_owned(),
            message: message.into(),
            reason: reason.to_owned(),
            code,
            ..Self::default()
        }
    }

    /// Creates the Status of a response with only a code and some text. The reason is the one for the code
    /// (apimachinery's `NewGenericServerResponse`), so that callers handle only Statuses.
    pub fn from_code(code: u16, text: &str) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "Unknown",
        };
        Self::failure(i32::from(code), reason, text)
    }

    /// Sets the retry delay of the Status, in seconds.
    pub fn set_retry_after(&mut self, seconds: u32) {
        let details = self.details.get_or_insert_with(StatusDetails::default);
        details.retry_after_seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
    }

    fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(details);
        self
    }

    /// Creates the 404 for an object that does not exist in an existing collection.
    pub fn not_found(gvr: &Gvr, name: &str) -> Self {
        let message = format!("{} {} not found", gvr.group_resource(), quote(name));
        Self::failure(404, "NotFound", message).with_details(about(gvr, name))
    }

    /// Creates a 400 Status with only a message.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message)
    }

    /// Creates a 410 Status with any message.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, "Expired", message)
    }

    /// Creates the 410 for a watch from a version older than the history, always sent as an in-stream `ERROR`
    /// (R-GONE-1). `oldest_start` is the oldest version that a watch may start from; a
    /// proxy below parses it from this text.
    pub fn too_old(requested: u64, oldest_start: u64) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest_start})"))
    }

    /// Creates the 410 for a list at an exact version that is no longer available (R-LIST-5).
    pub fn too_old_list() -> Self {
        Self::expired("The resourceVersion for the provided list is too old.")
    }

    /// Creates the 504 for a future version that was not reached in time (R-VERSION-4).
    pub fn too_large(requested: u64, current: u64) -> Self {
        let cause = StatusCause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        };
        let retry_after_seconds = TOO_LARGE_RETRY_AFTER_SECONDS;
        let details = StatusDetails { causes: vec![cause], retry_after_seconds, ..StatusDetails::default() };
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        Self::failure(504, "Timeout", message).with_details(details)
    }

    /// Creates the 429 for a request that may be retried after `retry_after_seconds`.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let mut status = Self::failure(429, "TooManyRequests", message);
        status.set_retry_after(retry_after_seconds);
        status
    }

    /// Creates the 429 for a request while a cache fills (R-LIST-5).
    pub fn initializing(retry_after_seconds: u32) -> Self {
        Self::too_many_requests("storage is (re)initializing", retry_after_seconds)
    }

    /// Creates the 401 Status for a request without a valid credential.
    pub fn unauthorized() -> Self {
        Self::failure(401, "Unauthorized", "Unauthorized")
    }

    /// Creates the 403 Status with the apiserver's text (R-AUTHZ-3). `reason` is the authorizer's, which may be empty.
    ///
    /// As in the apiserver, text that the caller controls is HTML-escaped; the authorizer's reason and the object's
    /// name are not.
    pub fn forbidden_access(user: &str, access: &AccessAttributes, reason: &str) -> Self {
        let denied = escape_html(&denied_access(user, access));
        let denied = if reason.is_empty() { denied } else { format!("{denied}: {reason}") };
        let (gvr, name) = match &access.target {
            AccessTarget::Path(_) => (Gvr::new("", "", ""), ""),
            AccessTarget::Resource(of) => (Gvr::new(&of.group, &of.version, &of.resource), of.name.as_str()),
        };
        let message = match (gvr.group.is_empty() && gvr.resource.is_empty(), name) {
            (true, _) => format!("forbidden: {denied}"),
            (false, "") => format!("{} is forbidden: {denied}", gvr.group_resource()),
            (false, name) => format!("{} {} is forbidden: {denied}", gvr.group_resource(), quote(name)),
        };
        Self::failure(403, "Forbidden", message).with_details(about(&gvr, name))
    }

    /// Creates a 503 Status without details.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, "ServiceUnavailable", message)
    }

    /// Creates the 503 during shutdown (R-STATUS-3). The caller adds the header `Retry-After: 1`, which is not in the
    /// body.
    pub fn shutting_down() -> Self {
        Self::service_unavailable("apiserver is shutting down")
    }
}

fn about(gvr: &Gvr, name: &str) -> StatusDetails {
    StatusDetails {
        name: name.to_owned(),
        group: gvr.group.to_string(),
        kind: gvr.resource.to_string(),
        ..StatusDetails::default()
    }
}

/// Returns the sentence that states the denied user, access and scope.
pub fn denied_access(user: &str, access: &AccessAttributes) -> String {
    let (user, verb) = (quote(user), &access.verb);
    let of = match &access.target {
        AccessTarget::Path(path) => return format!("User {user} cannot {verb} path {}", quote(path)),
        AccessTarget::Resource(of) => of,
    };
    let resource = if of.subresource.is_empty() {
        quote(&of.resource)
    } else {
        quote(&format!("{}/{}", of.resource, of.subresource))
    };
    let scope = if of.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {}", quote(&of.namespace))
    };
    format!("User {user} cannot {verb} resource {resource} in API group {} {scope}", quote(&of.group))
}

#[cfg(test)]
mod tests;
