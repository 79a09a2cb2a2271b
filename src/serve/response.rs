//! Responses of the proxy itself: bodies, headers, Statuses and refusals.

mod body;
mod context;
pub(crate) mod outcome;
mod refusals;
mod statuses;

pub use body::ReplyBody;

pub(crate) use body::WatchFrames;
pub(crate) use context::{
    AUDIT_ID, FeedStatus, REASON, REFUSED_BY, ResponseContext, expectation_failed, gzipped, malformed, new_audit_id,
    put_served,
};
pub(crate) use refusals::{bad_timeout, expects_the_impossible, forbid, turned_away};
pub(crate) use statuses::{LIST_RETRY_SECONDS, not_granted, revoked, too_many, too_many_wait, unavailable};
