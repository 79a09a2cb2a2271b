//! Holds watches without a version whose proof is late, rather than refusing them.
//!
//! What has to be proven is fixed when the request comes (L5). A client that is refused asks again, for a state that is
//! newer than the one that was nearly proven. So does everybody else, for ever while the cache lags
//! (kubernetes#139766). A held request has a watch's place already, so those who wait are counted and limited like
//! those who are served. All that they cost upstream is the one proof that all wait for.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::metrics;
use super::serve_config::Consistency;
use super::sources::Sources;
use crate::cache::FeedState;
use crate::feeds::{FeedHandle, Freshness};
use kubeapi::WatchTimeout;

/// What became of a held request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldOutcome {
    /// The request can be answered.
    Proven,
    /// The proof did not come in the time that the request is held for.
    Late,
    /// Upstream has not been reachable for a while.
    CutOff,
    /// The feed has ended.
    Over,
    /// The proxy is going away.
    Draining,
}

/// How long a feed may be without its stream before requests that need a proof are told so.
const CUT_OFF_MAX: Duration = Duration::from_secs(3);

impl Sources {
    /// Waits until the feed is proven to have everything that was complete when the request came. If it is dropped,
    /// nothing stays behind.
    pub(super) async fn hold(&self, feed: &FeedHandle, received: Instant, timeout_seconds: Option<i64>) -> HoldOutcome {
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

/// The time that a request is held: as long as the client wants the watch to last, within a bound.
fn held_for(timeout_seconds: Option<i64>) -> Duration {
    WatchTimeout::of(timeout_seconds).within(Freshness::WAIT_MAX)
}

/// Completes when the feed is over, or has been without its stream for too long.
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
    fn a_watch_is_held_as_long_as_it_would_last_and_not_longer_than_the_bound() {
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
