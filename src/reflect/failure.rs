//! The upstream failures of a feed, and the consequence of each.

#[cfg(test)]
mod tests;

use crate::cache::{FeedEndReason, OutOfOrderChange};
use crate::upstream::UpstreamError;
use crate::wire::{DeltaError, WireError};

use super::stream::WatchStreamEnd;

/// The reason that a step of the reflector failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReflectorStepError {
    /// The feed must end for the given reason.
    #[error("cannot list and watch the resource: {}", .0.as_str())]
    FeedTerminated(FeedEndReason),
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
    FeedTerminated,
    ClosedAtOnce,
    IdleTimeout,
    OutOfOrder,
    Unreachable,
    Untrusted,
    ConnectionLost,
    Timeout,
    Credentials,
    Refused,
    OverBudget,
    Unreadable,
    /// A difference between proxies cannot be applied. The next stream has whole events.
    Delta(DeltaError),
}

/// Converts an error into the failure that either ends the feed or leads to a retry.
pub(super) fn classify(error: UpstreamError) -> ReflectorStepError {
    match &error {
        UpstreamError::Refused(status) => match status.code {
            403 => ReflectorStepError::FeedTerminated(FeedEndReason::Forbidden),
            404 | 405 => ReflectorStepError::FeedTerminated(FeedEndReason::Gone),
            406 => ReflectorStepError::FeedTerminated(FeedEndReason::NotOffered),
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
            ReflectorStepError::FeedTerminated(FeedEndReason::NotOffered)
        }
        UpstreamError::OverBudget => ReflectorStepError::FeedTerminated(FeedEndReason::OverBudget),
        // The path to upstream failed, or the error cannot occur for a feed. A truncated response is retried; one that
        // cannot be decoded would fail again.
        UpstreamError::Wire(WireError::Truncated | WireError::Gzip | WireError::Delta(_))
        | UpstreamError::Unreachable(_)
        | UpstreamError::ConnectionLost(_)
        | UpstreamError::Timeout(_)
        | UpstreamError::Credentials(_)
        | UpstreamError::Unsendable(_)
        | UpstreamError::OtherDocument(_)
        | UpstreamError::HiddenDefinitions
        | UpstreamError::TooLarge(_) => ReflectorStepError::Upstream(error),
        // The cached rows were printed with other columns, for example by another apiserver release.
        UpstreamError::Wire(WireError::OtherColumns) => ReflectorStepError::FeedTerminated(FeedEndReason::Outdated),
        UpstreamError::Wire(wire) => {
            tracing::warn!(error = %wire, "cannot decode objects from upstream; ending the feed");
            ReflectorStepError::FeedTerminated(FeedEndReason::Unreadable)
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
            Self::FeedTerminated(_) => ReflectorFailureKind::FeedTerminated,
            Self::Stream(WatchStreamEnd::Closed) => ReflectorFailureKind::ClosedAtOnce,
            Self::Stream(WatchStreamEnd::IdleTimeout) => ReflectorFailureKind::IdleTimeout,
            Self::OutOfOrder(_) => ReflectorFailureKind::OutOfOrder,
            Self::Stream(WatchStreamEnd::Failed(error)) | Self::Upstream(error) => {
                ReflectorFailureKind::from_error(error)
            }
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
    pub(super) fn summary(&self) -> String {
        self.error().map_or_else(|| self.to_string(), UpstreamError::summary)
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        self.error()?.retry_after_seconds()
    }
}

impl ReflectorFailureKind {
    fn from_error(error: &UpstreamError) -> Self {
        match error {
            error if error.is_untrusted() => Self::Untrusted,
            UpstreamError::Unreachable(_) => Self::Unreachable,
            UpstreamError::ConnectionLost(_) => Self::ConnectionLost,
            UpstreamError::Timeout(_) => Self::Timeout,
            UpstreamError::Credentials(_) => Self::Credentials,
            UpstreamError::Refused(_) | UpstreamError::Unsendable(_) => Self::Refused,
            UpstreamError::OverBudget => Self::OverBudget,
            UpstreamError::Wire(WireError::Delta(error)) => Self::Delta(*error),
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
        self.retry_and_label().0
    }

    /// Returns the failure as a metric label.
    pub(super) fn as_str(self) -> &'static str {
        self.retry_and_label().1
    }

    fn retry_and_label(self) -> (bool, &'static str) {
        match self {
            Self::FeedTerminated => (false, "feed_terminated"),
            Self::ClosedAtOnce => (true, "closed_at_once"),
            Self::IdleTimeout => (true, "idle_timeout"),
            Self::OutOfOrder => (false, "out_of_order"),
            Self::Unreachable => (true, "unreachable"),
            Self::Untrusted => (true, "untrusted"),
            Self::ConnectionLost => (true, "connection_lost"),
            Self::Timeout => (true, "timeout"),
            Self::Credentials => (false, "credentials"),
            Self::Refused => (false, "refused"),
            Self::OverBudget => (false, "over_budget"),
            Self::Unreadable => (false, "unreadable"),
            Self::Delta(error) => (true, error.as_str()),
        }
    }
}
