//! The upstream failures of a feed, and the consequence of each.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::cache::{FeedEndReason, OutOfOrderChange};
use crate::upstream::UpstreamError;
use crate::wire::WireError;

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
    OutOfOrder(#[from] OutOfOrderChange),
}

/// What a failure concerns, which decides how the feed goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureScope {
    /// The path to upstream.
    Connection,
    /// A response that cannot be read.
    Response,
    /// This feed, or its permissions.
    Feed,
}

/// Converts an error into the failure that either ends the feed or leads to a retry.
pub(super) fn classify(error: UpstreamError) -> ReflectorStepError {
    match &error {
        UpstreamError::Refused(status) => match status.code {
            403 => ReflectorStepError::FeedTerminated(FeedEndReason::Forbidden),
            404 | 405 => ReflectorStepError::FeedTerminated(FeedEndReason::Gone),
            406 => ReflectorStepError::FeedTerminated(FeedEndReason::NotOffered),
            _ => error.into(),
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
        // The cached rows were printed with other columns, for example by another apiserver release.
        UpstreamError::Wire(WireError::OtherColumns) => ReflectorStepError::FeedTerminated(FeedEndReason::Outdated),
        UpstreamError::Wire(wire) if !matches!(wire, WireError::Truncated | WireError::Gzip | WireError::Delta(_)) => {
            tracing::warn!(error = %wire, "cannot decode objects from upstream; ending the feed");
            ReflectorStepError::FeedTerminated(FeedEndReason::Unreadable)
        }
        // The path to upstream failed, or the error cannot occur for a feed. A truncated response is retried; one that
        // cannot be decoded would fail again.
        _ => error.into(),
    }
}

impl From<UpstreamError> for ReflectorStepError {
    fn from(error: UpstreamError) -> Self {
        Self::Stream(error.into())
    }
}

/// Whether the error shows that a server does not support streamed lists, to which it responds with 422 or 400. A
/// server that is temporarily unable responds with other codes.
pub(super) fn refuses_watch_list(error: &UpstreamError) -> bool {
    matches!(error.code(), Some(400 | 422))
}

impl ReflectorStepError {
    /// Returns the failure as a metric label, and what it concerns.
    fn class(&self) -> (&'static str, FailureScope) {
        use FailureScope::{Connection, Feed, Response};
        match self {
            Self::FeedTerminated(_) => ("feed_terminated", Feed),
            Self::OutOfOrder(_) => ("out_of_order", Feed),
            Self::Stream(WatchStreamEnd::Closed) => ("closed_at_once", Connection),
            Self::Stream(WatchStreamEnd::IdleTimeout) => ("idle_timeout", Connection),
            Self::Stream(WatchStreamEnd::Failed(error)) => match error {
                error if error.is_untrusted() => ("untrusted", Connection),
                UpstreamError::Unreachable(_) => ("unreachable", Connection),
                UpstreamError::ConnectionLost(_) => ("connection_lost", Connection),
                UpstreamError::Timeout(_) => ("timeout", Connection),
                // A difference between proxies cannot be applied. The next stream has whole events.
                UpstreamError::Wire(WireError::Delta(error)) => (error.as_str(), Connection),
                UpstreamError::Credentials(_) => ("credentials", Feed),
                UpstreamError::Refused(_) | UpstreamError::Unsendable(_) => ("refused", Feed),
                UpstreamError::OverBudget => ("over_budget", Feed),
                UpstreamError::InvalidRequest(_)
                | UpstreamError::OtherDocument(_)
                | UpstreamError::OtherRepresentation { .. }
                | UpstreamError::NotInitial(_)
                | UpstreamError::EndlessPages
                | UpstreamError::HiddenDefinitions
                | UpstreamError::TooLarge(_)
                | UpstreamError::Wire(_) => ("unreadable", Response),
            },
        }
    }

    /// Returns the failure as a metric label.
    pub(super) fn as_str(&self) -> &'static str {
        self.class().0
    }

    /// Whether the failure concerns the path to upstream rather than this feed.
    pub(super) fn is_connection(&self) -> bool {
        self.class().1 == FailureScope::Connection
    }

    /// Whether upstream's response cannot be read.
    pub(super) fn is_unreadable(&self) -> bool {
        self.class().1 == FailureScope::Response
    }

    /// Returns the error of upstream, if that was the reason.
    pub(super) fn error(&self) -> Option<&UpstreamError> {
        if let Self::Stream(WatchStreamEnd::Failed(error)) = self { Some(error) } else { None }
    }

    /// Whether upstream no longer has the requested version (410).
    pub(super) fn is_expired(&self) -> bool {
        self.error().is_some_and(UpstreamError::is_expired)
    }

    /// Returns the failure as text without confidential details.
    pub(super) fn summary(&self) -> String {
        self.error().map_or_else(|| self.to_string(), UpstreamError::summary)
    }

    /// Returns the delay that upstream requested before a retry; zero if none.
    pub(super) fn retry_after(&self) -> Duration {
        Duration::from_secs(self.error().and_then(UpstreamError::retry_after_seconds).unwrap_or_default())
    }
}
