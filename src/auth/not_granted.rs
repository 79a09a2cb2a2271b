use std::sync::Arc;
use std::time::Duration;

use crate::kube::{Access, RequestInfo, Status};
use crate::upstream::{Error, set_retry_after};

/// Why a caller gets nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotGranted {
    /// The credential was not accepted, or there is none: 401.
    #[error("unauthenticated")]
    Unauthenticated,
    /// Upstream denied it, in the authorizer's words, which may be empty: 403.
    #[error("denied: {0}")]
    Denied(Arc<str>),
    /// It cannot be found out now: 503, and never a yes.
    #[error("{0}")]
    Unavailable(String),
    /// Upstream does not let us ask: 503, and soon the end of everything that depends on an answer.
    #[error("upstream does not let this proxy ask about its callers")]
    Disowned,
    /// There are too many questions about one user, or about unknown callers: 429.
    #[error("too many questions about who you are or what you may; try again")]
    TooMany { retry_after_seconds: u32 },
}

/// When a caller may try again whose rights could not be found out.
const RETRY_AFTER_SECONDS: u32 = 1;
/// How long watches go on once upstream refuses our questions.
const DISOWNED_GRACE: Duration = Duration::from_secs(30);

impl NotGranted {
    /// Upstream did not answer.
    pub(super) fn unanswered(error: &Error, what: &str) -> Self {
        match error.code() {
            Some(401 | 403) => Self::Disowned,
            _ => Self::Unavailable(format!("{what} cannot be found out")),
        }
    }

    /// Denied without words.
    pub(super) fn denied() -> Self {
        Self::Denied(Arc::from(""))
    }

    /// The label of metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Denied(_) => "denied",
            Self::Unavailable(_) => "unavailable",
            Self::Disowned => "disowned",
            Self::TooMany { .. } => "too_many",
        }
    }

    /// Whether it only says that nobody could tell.
    pub(super) fn is_doubt(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Disowned | Self::TooMany { .. })
    }

    /// How long open watches go on while this is the only answer. If upstream does not let us ask, that is no outage
    /// (R-CLOSED-1).
    pub(super) fn grace(&self, outage: Duration) -> Duration {
        if *self == Self::Disowned { outage.min(DISOWNED_GRACE) } else { outage }
    }

    /// The Status in the apiserver's words (R-STATUS-3, R-AUTHZ-3).
    pub fn status(&self, user: &str, info: &RequestInfo) -> Status {
        self.status_of(user, &Access::of(info))
    }

    /// The Status for an access that need not be a request.
    pub(super) fn status_of(&self, user: &str, access: &Access) -> Status {
        match self {
            Self::Unauthenticated => Status::unauthorized(),
            Self::Denied(reason) => Status::forbidden_access(user, access, reason),
            Self::Unavailable(_) | Self::Disowned => {
                let mut status = Status::service_unavailable(self.to_string());
                set_retry_after(&mut status, RETRY_AFTER_SECONDS);
                status
            }
            Self::TooMany { retry_after_seconds } => Status::too_many_requests(self.to_string(), *retry_after_seconds),
        }
    }
}
