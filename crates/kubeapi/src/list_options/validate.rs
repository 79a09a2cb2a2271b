//! The table of R-OPTIONS-1, from apimachinery's `pkg/apis/meta/internalversion/validation`.

use super::super::go_text::json_string;
use super::super::{Status, StatusCause};
use super::{EXACT, ListOptions, NOT_OLDER_THAN};

impl ListOptions {
    /// Refuses options that exclude each other (R-OPTIONS-1). `as_watch` is the `watch` parameter, not the verb: the
    /// `/watch/` path form without `watch=true` is validated as a list.
    ///
    /// # Errors
    /// 422 with all problems, in the apiserver's order.
    pub fn validate(&self, as_watch: bool) -> Result<(), Status> {
        let problems = if as_watch { watch_problems(self) } else { list_problems(self) };
        if problems.is_empty() { Ok(()) } else { Err(Status::invalid_list_options(problems)) }
    }
}

fn list_problems(options: &ListOptions) -> Vec<StatusCause> {
    let mut problems = Vec::new();
    let version_match = options.resource_version_match.as_str();
    if !version_match.is_empty() {
        if options.resource_version.is_empty() {
            problems.push(match_forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !options.continue_token.is_empty() {
            problems.push(match_forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if version_match != EXACT && version_match != NOT_OLDER_THAN {
            problems.push(match_unsupported(version_match, r#""Exact", "NotOlderThan", """#));
        }
        if version_match == EXACT && options.resource_version == "0" {
            let why = r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#;
            problems.push(match_forbidden(why));
        }
    }
    if options.send_initial_events.is_some() {
        problems.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    problems
}

fn watch_problems(options: &ListOptions) -> Vec<StatusCause> {
    let mut problems = Vec::new();
    let version_match = options.resource_version_match.as_str();
    if options.send_initial_events.is_some() && version_match != NOT_OLDER_THAN {
        problems.push(match_forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if !version_match.is_empty() {
        if options.send_initial_events.is_none() {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            problems.push(match_forbidden(why));
        }
        if version_match != NOT_OLDER_THAN {
            problems.push(match_unsupported(version_match, r#""NotOlderThan""#));
        }
        if !options.continue_token.is_empty() {
            problems.push(match_forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    problems
}

fn match_forbidden(why: &str) -> StatusCause {
    forbidden("resourceVersionMatch", why)
}

fn forbidden(field: &str, why: &str) -> StatusCause {
    let reason = "FieldValueForbidden".to_owned();
    StatusCause { reason, message: format!("Forbidden: {why}"), field: field.to_owned() }
}

/// Returns the cause for an unsupported value. The value is formatted as JSON rather than with Go's quoting, because
/// its Go type is not plain `string`.
fn match_unsupported(value: &str, supported: &str) -> StatusCause {
    let message = format!("Unsupported value: {}: supported values: {supported}", json_string(value));
    StatusCause { reason: "FieldValueNotSupported".to_owned(), message, field: "resourceVersionMatch".to_owned() }
}
