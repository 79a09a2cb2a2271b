//! Responses of the proxy itself: bodies, headers, Statuses and refusals.

mod body;
mod context;

pub use body::ResponseBody;

pub(crate) use body::WatchFrameSource;
pub(crate) use context::{
    AUDIT_ID, FILTERED, LIST_RETRY_SECONDS, REASON, REFUSED_BY, ResponseContext, ServedFeedStatus, TEXT, auth_refusal,
    denied_status, expectation_failed, gzipped, has_unsupported_expect, malformed, new_audit_id, plain, put_served,
    put_stale_rules, revoked, too_many, too_many_waiting, unavailable,
};
