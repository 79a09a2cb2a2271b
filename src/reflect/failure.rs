//! The failures of a feed's upstream, and what follows from each.

#[cfg(test)]
mod tests;

use crate::cache::FeedEnd;
use crate::upstream::Error;
use crate::wire::WireError;

use super::session::BrokenStream;
use super::stream::Ended;

/// Why a step did not reach the state that it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepFailure {
    /// The feed is over.
    #[error("feed ended: {}", .0.as_str())]
    Over(FeedEnd),
    #[error(transparent)]
    Stream(#[from] Ended),
    #[error(transparent)]
    Upstream(#[from] Error),
    #[error(transparent)]
    Broken(#[from] BrokenStream),
}

/// The kind of a failure.
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

/// The failure for an error: it ends the feed, or the step is tried again.
pub(super) fn over(error: Error) -> StepFailure {
    match &error {
        Error::Refused(status) => match status.code {
            403 => StepFailure::Over(FeedEnd::Forbidden),
            404 | 405 => StepFailure::Over(FeedEnd::Gone),
            406 => StepFailure::Over(FeedEnd::NotOffered),
            _ => StepFailure::Upstream(error),
        },
        // The answer came in a way that a feed cannot follow, and would come so again.
        Error::OtherRepresentation { .. } | Error::NotInitial(_) | Error::EndlessPages | Error::Unaskable(_) => {
            tracing::info!(%error, "upstream does not offer this form");
            StepFailure::Over(FeedEnd::NotOffered)
        }
        Error::OverBudget => StepFailure::Over(FeedEnd::OverBudget),
        // The way to upstream failed, or these answers belong to no feed. A torn answer is tried again. One that cannot
        // be decoded would not decode next time.
        Error::Wire(WireError::Truncated)
        | Error::Unreachable(_)
        | Error::Broken(_)
        | Error::Timeout(_)
        | Error::Credentials(_)
        | Error::Unsendable(_)
        | Error::OtherDocument(_)
        | Error::HiddenDefinitions
        | Error::TooLarge(_) => StepFailure::Upstream(error),
        // What is held was printed under other columns, as when the apiserver has another release now.
        Error::Wire(WireError::OtherColumns) => StepFailure::Over(FeedEnd::Outdated),
        Error::Wire(wire) => {
            tracing::warn!(error = %wire, "upstream's objects cannot be read");
            StepFailure::Over(FeedEnd::Unreadable)
        }
    }
}

/// Whether a server does not know streamed lists: then it answers 422 or 400. A server that only cannot do it now
/// answers other codes.
pub(super) fn refuses_watch_list(error: &Error) -> bool {
    matches!(error.code(), Some(400 | 422))
}

impl StepFailure {
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Over(_) => FailureKind::Over,
            Self::Stream(Ended::Clean) => FailureKind::Ended,
            Self::Stream(Ended::Silent) => FailureKind::Silent,
            Self::Broken(BrokenStream::OutOfOrder(_)) => FailureKind::OutOfOrder,
            Self::Stream(Ended::Failed(error))
            | Self::Upstream(error)
            | Self::Broken(BrokenStream::Upstream(error)) => FailureKind::of(error),
        }
    }

    /// Whether upstream has forgotten what was asked for (410).
    pub(super) fn is_expired(&self) -> bool {
        match self {
            Self::Stream(Ended::Failed(error)) | Self::Upstream(error) => error.is_expired(),
            _ => false,
        }
    }

    /// The failure without anything that is not for everybody to read.
    pub(super) fn in_brief(&self) -> String {
        match self {
            Self::Stream(Ended::Failed(error))
            | Self::Upstream(error)
            | Self::Broken(BrokenStream::Upstream(error)) => error.in_brief(),
            other => other.to_string(),
        }
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Stream(Ended::Failed(error)) | Self::Upstream(error) => error.retry_after_seconds(),
            _ => None,
        }
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
            Error::Unaskable(_)
            | Error::OtherDocument(_)
            | Error::OtherRepresentation { .. }
            | Error::NotInitial(_)
            | Error::EndlessPages
            | Error::HiddenDefinitions
            | Error::TooLarge(_)
            | Error::Wire(_) => Self::Unreadable,
        }
    }

    /// Whether the failure concerns the way to upstream rather than this feed.
    pub(super) fn is_connection(self) -> bool {
        match self {
            Self::Ended | Self::Silent | Self::Unreachable | Self::Untrusted | Self::Broken | Self::Timeout => true,
            Self::Over | Self::OutOfOrder | Self::Credentials | Self::Refused | Self::OverBudget | Self::Unreadable => {
                false
            }
        }
    }

    /// The label of the metric.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Over => "over",
            Self::Ended => "ended",
            Self::Silent => "silent",
            Self::OutOfOrder => "out_of_order",
            Self::Unreachable => "unreachable",
            Self::Untrusted => "untrusted",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
            Self::Credentials => "credentials",
            Self::Refused => "refused",
            Self::OverBudget => "over_budget",
            Self::Unreadable => "unreadable",
        }
    }
}
