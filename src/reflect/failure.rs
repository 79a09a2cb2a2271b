//! The upstream failures of a feed, and the consequence of each.

#[cfg(test)]
mod tests;

use crate::cache::{FeedEndReason, OutOfOrderChange};
use crate::upstream::UpstreamError;
use crate::wire::WireError;

use super::stream::WatchStreamEnd;

/// The reason that a step of the reflector failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReflectorStepError {
    /// The feed must end for the given reason.
    #[error("cannot list and watch the resource: {}", .0.as_str())]
    Over(FeedEndReason),
    #[error(transparent)]
    Stream(#[from] WatchStreamEnd),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    OutOfOrder(#[from] OutOfOrderChange),
}

/// The class of a failure, for metrics and retry decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReflectorFailureKind {
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
pub(super) fn over(error: UpstreamError) -> ReflectorStepError {
    match &error {
        UpstreamError::Refused(status) => match status.code {
            403 => ReflectorStepError::Over(FeedEndReason::Forbidden),
            404 | 405 => ReflectorStepError::Over(FeedEndReason::Gone),
            406 => ReflectorStepError::Over(FeedEndReason::NotOffered),
            _ => ReflectorStepError::Upstream(error),
        },
        // The response has a form that a feed cannot follow, and a retry would get the same form.
        UpstreamError::OtherRepresentation { .. }
        | UpstreamError::NotInitial(_)
        | UpstreamError::EndlessPages
        | UpstreamError::InvalidRequest(_) => {
            tracing::info!(
                %error,
                "upstream does not serve a list and watch in the requested encoding; ending the feed"
            );
            ReflectorStepError::Over(FeedEndReason::NotOffered)
        }
        UpstreamError::OverBudget => ReflectorStepError::Over(FeedEndReason::OverBudget),
        // The path to upstream failed, or the error cannot occur for a feed. A truncated response is retried; one that
        // cannot be decoded would fail again.
        UpstreamError::Wire(WireError::Truncated)
        | UpstreamError::Unreachable(_)
        | UpstreamError::Broken(_)
        | UpstreamError::Timeout(_)
        | UpstreamError::Credentials(_)
        | UpstreamError::Unsendable(_)
        | UpstreamError::OtherDocument(_)
        | UpstreamError::HiddenDefinitions
        | UpstreamError::TooLarge(_) => ReflectorStepError::Upstream(error),
        // The cached rows were printed with other columns, for example by another apiserver release.
        UpstreamError::Wire(WireError::OtherColumns) => ReflectorStepError::Over(FeedEndReason::Outdated),
        UpstreamError::Wire(wire) => {
            tracing::warn!(error = %wire, "cannot decode objects from upstream; ending the feed");
            ReflectorStepError::Over(FeedEndReason::Unreadable)
        }
    }
}

/// Whether the error shows that a server does not support streamed lists, to which it responds with 422 or 400. A
/// server that is temporarily unable responds with other codes.
pub(super) fn refuses_watch_list(error: &UpstreamError) -> bool {
    matches!(error.code(), Some(400 | 422))
}

impl ReflectorStepError {
    pub(super) fn kind(&self) -> ReflectorFailureKind {
        match self {
            Self::Over(_) => ReflectorFailureKind::Over,
            Self::Stream(WatchStreamEnd::Clean) => ReflectorFailureKind::Ended,
            Self::Stream(WatchStreamEnd::Silent) => ReflectorFailureKind::Silent,
            Self::OutOfOrder(_) => ReflectorFailureKind::OutOfOrder,
            Self::Stream(WatchStreamEnd::Failed(error)) | Self::Upstream(error) => ReflectorFailureKind::of(error),
        }
    }

    fn error(&self) -> Option<&UpstreamError> {
        match self {
            Self::Stream(WatchStreamEnd::Failed(error)) | Self::Upstream(error) => Some(error),
            _ => None,
        }
    }

    /// Whether upstream no longer has the requested version (410).
    pub(super) fn is_expired(&self) -> bool {
        self.error().is_some_and(UpstreamError::is_expired)
    }

    /// Returns the failure as text without confidential details.
    pub(super) fn in_brief(&self) -> String {
        self.error().map_or_else(|| self.to_string(), UpstreamError::in_brief)
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        self.error()?.retry_after_seconds()
    }
}

impl ReflectorFailureKind {
    fn of(error: &UpstreamError) -> Self {
        match error {
            error if error.is_untrusted() => Self::Untrusted,
            UpstreamError::Unreachable(_) => Self::Unreachable,
            UpstreamError::Broken(_) => Self::Broken,
            UpstreamError::Timeout(_) => Self::Timeout,
            UpstreamError::Credentials(_) => Self::Credentials,
            UpstreamError::Refused(_) | UpstreamError::Unsendable(_) => Self::Refused,
            UpstreamError::OverBudget => Self::OverBudget,
            UpstreamError::InvalidRequest(_)
            | UpstreamError::OtherDocument(_)
            | UpstreamError::OtherRepresentation { .. }
            | UpstreamError::NotInitial(_)
            | UpstreamError::EndlessPages
            | UpstreamError::HiddenDefinitions
            | UpstreamError::TooLarge(_)
            | UpstreamError::Wire(_) => Self::Unreadable,
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
