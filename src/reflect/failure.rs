//! The upstream failures of a feed, and the consequence of each.

#[cfg(test)]
mod tests;

use crate::cache::{FeedEnd, OutOfOrder};
use crate::upstream::Error;
use crate::wire::WireError;

use super::stream::StreamEnd;

/// The reason that a step of the reflector failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepFailure {
    /// The feed must end for the given reason.
    #[error("feed terminated: {}", .0.as_str())]
    Over(FeedEnd),
    #[error(transparent)]
    Stream(#[from] StreamEnd),
    #[error(transparent)]
    Upstream(#[from] Error),
    #[error(transparent)]
    OutOfOrder(#[from] OutOfOrder),
}

/// The class of a failure, for metrics and retry decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureKind {
    Over,
    Ended,
    Silent,
    OutOfOrder,
    Unreachable,
    Untrusted,
    Broken,
    Timeout,
    Credentials,
    Refused,
    OverBudget,
    Unreadable,
}

/// Converts an error into the failure that either ends the feed or leads to a retry.
pub(super) fn over(error: Error) -> StepFailure {
    match &error {
        Error::Refused(status) => match status.code {
            403 => StepFailure::Over(FeedEnd::Forbidden),
            404 | 405 => StepFailure::Over(FeedEnd::Gone),
            406 => StepFailure::Over(FeedEnd::NotOffered),
            _ => StepFailure::Upstream(error),
        },
        // The response has a form that a feed cannot follow, and a retry would get the same form.
        Error::OtherRepresentation { .. } | Error::NotInitial(_) | Error::EndlessPages | Error::InvalidRequest(_) => {
            tracing::info!(
                %error,
                "upstream does not serve a list and watch in the requested encoding; ending the feed"
            );
            StepFailure::Over(FeedEnd::NotOffered)
        }
        Error::OverBudget => StepFailure::Over(FeedEnd::OverBudget),
        // The path to upstream failed, or the error cannot occur for a feed. A truncated response is retried; one that
        // cannot be decoded would fail again.
        Error::Wire(WireError::Truncated)
        | Error::Unreachable(_)
        | Error::Broken(_)
        | Error::Timeout(_)
        | Error::Credentials(_)
        | Error::Unsendable(_)
        | Error::OtherDocument(_)
        | Error::HiddenDefinitions
        | Error::TooLarge(_) => StepFailure::Upstream(error),
        // The cached rows were printed with other columns, for example by another apiserver release.
        Error::Wire(WireError::OtherColumns) => StepFailure::Over(FeedEnd::Outdated),
        Error::Wire(wire) => {
            tracing::warn!(error = %wire, "cannot decode objects from upstream; ending the feed");
            StepFailure::Over(FeedEnd::Unreadable)
        }
    }
}

/// Whether the error shows that a server does not support streamed lists, to which it responds with 422 or 400. A
/// server that is temporarily unable responds with other codes.
pub(super) fn refuses_watch_list(error: &Error) -> bool {
    matches!(error.code(), Some(400 | 422))
}

impl StepFailure {
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Over(_) => FailureKind::Over,
            Self::Stream(StreamEnd::Clean) => FailureKind::Ended,
            Self::Stream(StreamEnd::Silent) => FailureKind::Silent,
            Self::OutOfOrder(_) => FailureKind::OutOfOrder,
            Self::Stream(StreamEnd::Failed(error)) | Self::Upstream(error) => FailureKind::of(error),
        }
    }

    fn error(&self) -> Option<&Error> {
        match self {
            Self::Stream(StreamEnd::Failed(error)) | Self::Upstream(error) => Some(error),
            _ => None,
        }
    }

    /// Whether upstream no longer has the requested version (410).
    pub(super) fn is_expired(&self) -> bool {
        self.error().is_some_and(Error::is_expired)
    }

    /// Returns the failure as text without confidential details.
    pub(super) fn in_brief(&self) -> String {
        self.error().map_or_else(|| self.to_string(), Error::in_brief)
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        self.error()?.retry_after_seconds()
    }
}

impl FailureKind {
    fn of(error: &Error) -> Self {
        match error {
            error if error.is_untrusted() => Self::Untrusted,
            Error::Unreachable(_) => Self::Unreachable,
            Error::Broken(_) => Self::Broken,
            Error::Timeout(_) => Self::Timeout,
            Error::Credentials(_) => Self::Credentials,
            Error::Refused(_) | Error::Unsendable(_) => Self::Refused,
            Error::OverBudget => Self::OverBudget,
            Error::InvalidRequest(_)
            | Error::OtherDocument(_)
            | Error::OtherRepresentation { .. }
            | Error::NotInitial(_)
            | Error::EndlessPages
            | Error::HiddenDefinitions
            | Error::TooLarge(_)
            | Error::Wire(_) => Self::Unreadable,
        }
    }

    /// Whether the failure concerns the path to upstream rather than this feed.
    pub(super) fn is_connection(self) -> bool {
        self.facts().0
    }

    /// Returns the failure as a metric label.
    pub(super) fn as_str(self) -> &'static str {
        self.facts().1
    }

    fn facts(self) -> (bool, &'static str) {
        match self {
            Self::Over => (false, "feed_terminated"),
            Self::Ended => (true, "closed_at_once"),
            Self::Silent => (true, "idle_timeout"),
            Self::OutOfOrder => (false, "out_of_order"),
            Self::Unreachable => (true, "unreachable"),
            Self::Untrusted => (true, "untrusted"),
            Self::Broken => (true, "connection_lost"),
            Self::Timeout => (true, "timeout"),
            Self::Credentials => (false, "credentials"),
            Self::Refused => (false, "refused"),
            Self::OverBudget => (false, "over_budget"),
            Self::Unreadable => (false, "unreadable"),
        }
    }
}
