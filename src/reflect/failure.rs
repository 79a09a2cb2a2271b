//! The failures of a feed's upstream, and what follows from each.

use crate::cache::FeedEnd;
use crate::upstream::Error;
use crate::wire::WireError;

use super::session::BrokenStream;
use super::stream::Ended;

/// Why a step did not reach the state that it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepFailure {
    /// The feed is over.
    #[error("{0:?}")]
    Over(FeedEnd),
    #[error(transparent)]
    Stream(#[from] Ended),
    #[error(transparent)]
    Upstream(#[from] Error),
    #[error(transparent)]
    Broken(#[from] BrokenStream),
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
        Error::Form(why) => {
            tracing::info!(%why, "upstream does not offer this form");
            StepFailure::Over(FeedEnd::NotOffered)
        }
        Error::OverBudget => StepFailure::Over(FeedEnd::OverBudget),
        // A torn answer is tried again. One that cannot be decoded would not decode next time.
        Error::Wire(WireError::Truncated) => StepFailure::Upstream(error),
        // What is held was printed under other columns, as when the apiserver has another release now.
        Error::Wire(WireError::OtherColumns) => StepFailure::Over(FeedEnd::Outdated),
        Error::Wire(wire) => {
            tracing::warn!(error = %wire, "upstream's objects cannot be read");
            StepFailure::Over(FeedEnd::Unreadable)
        }
        _ => StepFailure::Upstream(error),
    }
}

/// Whether a server does not know streamed lists: then it answers 422 or 400. A server that only cannot do it now
/// answers other codes.
pub(super) fn refuses_watch_list(error: &Error) -> bool {
    matches!(error.code(), Some(400 | 422))
}

impl StepFailure {
    /// The label of metrics, one of a fixed set.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Over(_) => "over",
            Self::Stream(Ended::Clean) => "ended",
            Self::Stream(Ended::Silent) => "silent",
            Self::Broken(BrokenStream::OutOfOrder(_)) => "out_of_order",
            Self::Stream(Ended::Failed(error))
            | Self::Upstream(error)
            | Self::Broken(BrokenStream::Upstream(error)) => match error {
                Error::Unreachable(_) => "unreachable",
                Error::Broken(_) => "broken",
                Error::Timeout(_) => "timeout",
                Error::Credentials(_) => "credentials",
                Error::Refused(_) => "refused",
                Error::OverBudget => "over_budget",
                Error::Form(_) | Error::TooLarge(_) | Error::Wire(_) => "unreadable",
            },
        }
    }

    /// Whether the failure concerns the way to upstream rather than this feed.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self.word(), "ended" | "silent" | "unreachable" | "broken" | "timeout")
    }

    pub(super) fn is_unreadable(&self) -> bool {
        self.word() == "unreadable"
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Stream(Ended::Failed(error)) | Self::Upstream(error) => error.retry_after_seconds(),
            _ => None,
        }
    }
}
