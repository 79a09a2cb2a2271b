//! Refusals, with the bodies that the apiserver writes for them.

use std::borrow::Cow;

use super::json::write_string;
use super::kinds::DemoResourceKind;

/// A refusal. The HTTP layer turns it into a response, the watch into an ERROR event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DemoStatus {
    pub(crate) code: u16,
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: String,
    /// The JSON text of `details`; absent for some constructors, `{}` for others.
    pub(crate) details: Option<String>,
    /// The value of `metadata.continue`, which only the Status for an expired continue token has.
    pub(crate) next: Option<String>,
    pub(crate) retry_after: Option<u32>,
}

impl DemoStatus {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let (reason, message) = (Cow::Borrowed(reason), message.into());
        Self { code, reason, message, details: None, next: None, retry_after: None }
    }

    fn details(self, details: impl Into<String>) -> Self {
        Self { details: Some(details.into()), ..self }
    }

    fn about(self, kind: &DemoResourceKind, name: &str) -> Self {
        let mut members = vec![];
        if !name.is_empty() {
            members.push(format!(r#""name":{}"#, quoted(name)));
        }
        if !kind.group.is_empty() {
            members.push(format!(r#""group":"{}""#, kind.group));
        }
        members.push(format!(r#""kind":"{}""#, kind.plural));
        self.details(format!("{{{}}}", members.join(",")))
    }

    /// Creates the refusal of an invalid query, with the apiserver's code and reason, but not its message.
    pub(crate) fn invalid(code: u16) -> Self {
        let reason = match code {
            400 => "BadRequest",
            422 => "Invalid",
            _ => "",
        };
        Self::new(code, reason, "the query is invalid")
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn not_found(kind: &DemoResourceKind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.qualified())).about(kind, name)
    }

    pub(crate) fn no_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").details("{}")
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .details("{}")
    }

    pub(crate) fn already_exists(kind: &DemoResourceKind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", kind.qualified())).about(kind, name)
    }

    pub(crate) fn conflict(kind: &DemoResourceKind, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: the object has been modified; \
             please apply your changes to the latest version and try again",
            kind.qualified()
        );
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// Refuses a write whose uid is not the current one. The apiserver's text for it names the kind, not the resource.
    pub(crate) fn precondition(kind: &DemoResourceKind, name: &str, expected: &str, found: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: the UID in the precondition ({expected}) does not match the \
             UID in record ({found}). The object might have been deleted and then recreated",
            kind.name
        );
        Self::new(409, "Conflict", message).details(format!(r#"{{"name":{},"kind":"{}"}}"#, quoted(name), kind.name))
    }

    pub(crate) fn name_required(kind: &DemoResourceKind) -> Self {
        let text = "Required value: name or generateName is required";
        let cause = format!(r#"{{"reason":"FieldValueRequired","message":"{text}","field":"metadata.name"}}"#);
        let details = format!(r#"{{"kind":"{}","causes":[{cause}]}}"#, kind.name);
        Self::new(422, "Invalid", format!("{} \"\" is invalid: metadata.name: {text}", kind.name)).details(details)
    }

    pub(crate) fn unsupported_body() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include: \
                       application/json, application/yaml, application/vnd.kubernetes.protobuf";
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn unsupported_patch() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").details("{}")
    }

    pub(crate) fn too_large(requested: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let cause = r#"{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}"#;
        let details = format!(r#"{{"causes":[{cause}],"retryAfterSeconds":1}}"#);
        let status = Self::new(504, "Timeout", message).details(details);
        Self { retry_after: Some(1), ..status }
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Refuses a watch from a revision that is older than the ring.
    pub(crate) fn too_old(kind: &DemoResourceKind, requested: u64, oldest: u64) -> Self {
        if kind.cached {
            Self::expired(format!("too old resource version: {requested} ({oldest})"))
        } else {
            Self::expired("The resourceVersion for the provided watch is too old.")
        }
    }

    pub(crate) fn expired_continue(next: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start \
                       a new list without the continue parameter, or use the continue token in this response to \
                       retrieve the remainder of the results. Continuing with the provided token results in an \
                       inconsistent list - objects that were created, modified, or deleted between the time the \
                       first chunk was returned and now may show up in the list.";
        Self { next: Some(next), ..Self::expired(message) }
    }

    pub(crate) fn not_acceptable(message: impl Into<String>, by_router: bool) -> Self {
        let status = Self::new(406, "NotAcceptable", message);
        if by_router { status.details("{}") } else { status }
    }

    /// Returns the Status that a test ordered. Retry-After is also in its details, as the apiserver writes it.
    pub(crate) fn ordered(code: u16, retry_after: Option<u32>) -> Self {
        let (reason, message) = match code {
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden: refused by the demo upstream"),
            404 => ("NotFound", "the server could not find the requested resource"),
            410 => ("Expired", "The resourceVersion for the provided list is too old."),
            422 => ("Invalid", "ListOptions.meta.k8s.io \"\" is invalid: ordered by the demo upstream"),
            429 => ("TooManyRequests", "storage is (re)initializing"),
            503 => ("ServiceUnavailable", "apiserver is shutting down"),
            504 => ("Timeout", "Timeout: request did not complete within the allotted timeout"),
            _ => ("InternalError", "Internal error occurred: ordered by the demo upstream"),
        };
        let status = Self { retry_after, ..Self::new(code, reason, message) };
        match retry_after {
            Some(seconds) => status.details(format!(r#"{{"retryAfterSeconds":{seconds}}}"#)),
            None => status,
        }
    }

    /// Returns compact JSON, without a final newline.
    pub(crate) fn to_json(&self) -> String {
        let next = self.next.as_ref().map(|token| format!(r#""continue":{}"#, quoted(token))).unwrap_or_default();
        let mut out = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{{next}}},"status":"Failure","message":{}"#,
            quoted(&self.message)
        );
        if !self.reason.is_empty() {
            out.extend([r#","reason":""#, &self.reason, r#"""#]);
        }
        if let Some(details) = &self.details {
            out.extend([r#","details":"#, details]);
        }
        out + &format!(r#","code":{}}}"#, self.code)
    }
}

/// Returns the body of a successful DELETE.
pub(crate) fn deleted(kind: &DemoResourceKind, name: &str, uid: &str) -> String {
    let group = if kind.group.is_empty() { String::new() } else { format!(r#","group":"{}""#, kind.group) };
    let details = format!(r#"{{"name":{}{group},"kind":"{}","uid":"{uid}"}}"#, quoted(name), kind.plural);
    let head = r#""kind":"Status","apiVersion":"v1","metadata":{},"status":"Success""#;
    format!(r#"{{{head},"details":{details}}}"#)
}

fn quoted(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(text, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, by_plural};
    use super::*;

    #[test]
    fn status_fields_are_in_the_apiservers_order() {
        let missing = DemoStatus::not_found(&KINDS[by_plural("deployments").unwrap()], "x").to_json();
        let (head, message) =
            (r#"{"kind":"Status","apiVersion":"v1","metadata":{}"#, r#""deployments.apps \"x\" not found""#);
        let details = r#"{"name":"x","group":"apps","kind":"deployments"}"#;
        let body = format!(
            r#"{head},"status":"Failure","message":{message},"reason":"NotFound","details":{details},"code":404}}"#
        );
        assert_eq!(missing, body);
        assert!(DemoStatus::too_large(9, 4).to_json().contains(r#""retryAfterSeconds":1},"code":504}"#));
    }
}
