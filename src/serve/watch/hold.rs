//! Holds watches without a version while their freshness proof is pending, instead of rejecting them.
//!
//! The required version is fixed when the request arrives (L5). A rejected client retries and then requires a newer
//! version than the one that was almost proven. All its peers do the same, for as long as the cache lags
//! (kubernetes#139766). A held request already holds a watch permit, so waiting watches are counted and limited like
//! served ones. Upstream receives only one proof request for all of them.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::cache::FeedState;
use crate::feeds::{FeedHandle, Freshness};
use crate::serve::activity::metrics;
use crate::serve::read::Sources;
use crate::serve::serve_config::Consistency;
use kubeapi::WatchTimeout;

/// The outcome of a held request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldOutcome {
    /// The request can be answered.
    Proven,
    /// The proof did not arrive before the hold timeout.
    Late,
    /// Upstream has been unreachable for [`CUT_OFF_MAX`].
    CutOff,
    /// The feed has ended.
    Over,
    /// The proxy is draining.
    Draining,
}

/// How long a feed may be disconnected before requests that need a proof fail.
const CUT_OFF_MAX: Duration = Duration::from_secs(3);

impl Sources {
    /// Waits until the feed is proven to contain every write that was complete when the request arrived. The future is
    /// cancel-safe.
    pub(crate) async fn hold(&self, feed: &FeedHandle, received: Instant, timeout_seconds: Option<i64>) -> HoldOutcome {
        let is_bounded =
            feed.reader.state() == FeedState::Live && self.config.get().consistency == Consistency::Bounded;
        if is_bounded || feed.freshness.covers(received) {
            return HoldOutcome::Proven;
        }
        let began = Instant::now();
        let _counted = metrics::HeldWatch::new();
        let mut drain = self.drain.clone();
        tokio::select! {
            biased;
            () = feed.freshness.reached(received) => HoldOutcome::Proven,
            gone = upstream_is_gone(feed, began) => gone,
            () = drain.started() => HoldOutcome::Draining,
            () = sleep_until(began + held_for(timeout_seconds)) => HoldOutcome::Late,
        }
    }
}

/// Returns how long a request is held: the requested duration of the watch, up to a limit.
fn held_for(timeout_seconds: Option<i64>) -> Duration {
    WatchTimeout::of(timeout_seconds).within(Freshness::WAIT_MAX)
}

/// Completes when the feed has ended, or has been disconnected for too long.
async fn upstream_is_gone(feed: &FeedHandle, began: Instant) -> HoldOutcome {
    let mut state = feed.reader.watch_state();
    loop {
        let now = *state.borrow_and_update();
        let cut_off = match now {
            FeedState::Ended(_) => return HoldOutcome::Over,
            FeedState::Stale { since } => Some(since.max(began) + CUT_OFF_MAX),
            FeedState::Live | FeedState::Syncing => None,
        };
        tokio::select! {
            biased;
            changed = state.changed() => if changed.is_err() { return HoldOutcome::Over },
            () = sleep_until(cut_off.unwrap_or(began)), if cut_off.is_some() => return HoldOutcome::CutOff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_waits_for_proof_at_most_its_timeout_or_the_limit() {
        for (asked, held) in [
            (None, Freshness::WAIT_MAX),
            (Some(0), Freshness::WAIT_MAX),
            (Some(-1), Freshness::WAIT_MAX),
            (Some(5), Duration::from_secs(5)),
            (Some(i64::MAX), Freshness::WAIT_MAX),
        ] {
            assert_eq!(held_for(asked), held, "{asked:?}");
        }
    }
}
