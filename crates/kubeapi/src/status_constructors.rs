//! One constructor per refusal of R-STATUS-1 to R-STATUS-3, R-LIST-5, R-VERSION-4, R-GONE-1, R-GONE-2, R-AUTHZ-3.

use super::go_text::{escape_html, quote};
use super::status::{Status, StatusCause, StatusDetails};
use super::{AccessAttributes, AccessTarget, Gvr};

/// The retry delay for "too large resource version", as in the watch cache.
const TOO_LARGE_RETRY_AFTER_SECONDS: i32 = 1;

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
        let retry_after_seconds = i32::try_from(retry_after_seconds).unwrap_or(i32::MAX);
        let details = StatusDetails { retry_after_seconds, ..StatusDetails::default() };
        Self::failure(429, "TooManyRequests", message).with_details(details)
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
