//! What can go wrong with a feed's upstream, and what follows from it.

use crate::cache::End;
use crate::upstream::Error;
use crate::wire::WireError;

use super::session::Broken;
use super::stream::Ended;

/// Why a step did not lead where it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The feed is over.
    #[error("{0:?}")]
    Over(End),
    #[error(transparent)]
    Stream(#[from] Ended),
    #[error(transparent)]
    Upstream(#[from] Error),
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// An answer that ends the feed, or one to try again after.
pub(super) fn over(error: Error) -> Failure {
    match &error {
        Error::Refused(status) => match status.code {
            403 => Failure::Over(End::Forbidden),
            404 | 405 => Failure::Over(End::Gone),
            406 => Failure::Over(End::NotOffered),
            _ => Failure::Upstream(error),
        },
        Error::Form(why) => {
            tracing::info!(%why, "upstream does not offer this form");
            Failure::Over(End::NotOffered)
        }
        Error::OverBudget => Failure::Over(End::OverBudget),
        // A torn answer is tried again; one that reads wrong would read wrong again.
        Error::Wire(WireError::Truncated) => Failure::Upstream(error),
        // What is held was printed under other columns, as when the apiserver is of another release now.
        Error::Wire(WireError::OtherColumns) => Failure::Over(End::Outdated),
        Error::Wire(wire) => {
            tracing::warn!(error = %wire, "upstream's objects cannot be read");
            Failure::Over(End::Unreadable)
        }
        _ => Failure::Upstream(error),
    }
}

/// A server that does not know streamed lists says 422 or 400; one that cannot do it now says so by other codes.
pub(super) fn refuses_watch_list(error: &Error) -> bool {
    matches!(error.code(), Some(400 | 422))
}

impl Failure {
    /// A closed set of words for the metric.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Over(_) => "over",
            Self::Stream(Ended::Clean) => "ended",
            Self::Stream(Ended::Silent) => "silent",
            Self::Broken(Broken::OutOfOrder(_)) => "out_of_order",
            Self::Stream(Ended::Failed(error)) | Self::Upstream(error) | Self::Broken(Broken::Upstream(error)) => {
                match error {
                    Error::Unreachable(_) => "unreachable",
                    Error::Broken(_) => "broken",
                    Error::Timeout(_) => "timeout",
                    Error::Credentials(_) => "credentials",
                    Error::Refused(_) => "refused",
                    Error::OverBudget => "over_budget",
                    Error::Form(_) | Error::TooLarge(_) | Error::Wire(_) => "unreadable",
                }
            }
        }
    }

    /// Whether it says more about the way to upstream than about this feed.
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
