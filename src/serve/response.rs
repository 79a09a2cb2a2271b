//! Responses of the proxy itself: bodies, headers, Statuses and refusals.

mod body;
mod context;
mod refusals;

pub use body::ResponseBody;

pub(crate) use body::WatchFrameSource;
pub(crate) use context::{
    AUDIT_ID, FILTERED, REASON, REFUSED_BY, ResponseContext, ServedFeedStatus, TEXT, expectation_failed, gzipped,
    malformed, new_audit_id, plain, put_served, put_stale_rules,
};
pub(crate) use refusals::{
    LIST_RETRY_SECONDS, auth_refusal, denied_status, has_unsupported_expect, revoked, too_many, too_many_waiting,
    unavailable,
};
