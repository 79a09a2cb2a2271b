use std::sync::Arc;

use crate::kube::{RequestInfo, Status};
use crate::upstream::set_retry_after;

/// Why somebody gets nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The credential is nobody's, or there is none: 401.
    #[error("unauthenticated")]
    Unauthenticated,
    /// In the authorizer's words, which may be none: 403.
    #[error("denied: {0}")]
    Denied(Arc<str>),
    /// Whether it may be cannot be found out now: 503, and never a yes.
    #[error("{0}")]
    Unavailable(String),
    /// Too many questions about callers that nobody knows: 429.
    #[error("too many requests with unknown credentials")]
    TooMany { retry_after_seconds: u32 },
}

/// When a caller may try again whose rights could not be found out.
const RETRY_AFTER_SECONDS: u32 = 1;

impl Refused {
    /// Denied without a word.
    pub(super) fn denied() -> Self {
        Self::Denied(Arc::from(""))
    }

    /// The label of metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Denied(_) => "denied",
            Self::Unavailable(_) => "unavailable",
            Self::TooMany { .. } => "too_many",
        }
    }

    /// In the apiserver's words (semantics.md §7.4, §10.3).
    pub fn status(&self, user: &str, info: &RequestInfo) -> Status {
        match self {
            Self::Unauthenticated => Status::unauthorized(),
            Self::Denied(reason) => Status::forbidden(user, info, reason),
            Self::Unavailable(why) => {
                let mut status = Status::service_unavailable(why.clone());
                set_retry_after(&mut status, RETRY_AFTER_SECONDS);
                status
            }
            Self::TooMany { retry_after_seconds } => Status::too_many_requests(self.to_string(), *retry_after_seconds),
        }
    }
}
