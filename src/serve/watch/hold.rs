//! Holds watches whose feed cannot answer yet, instead of rejecting them.
//!
//! A rejected client retries and then requires a newer version than the one that was almost proven. All its peers do
//! the same, for as long as the cache lags (kubernetes#139766). A held request already holds a watch permit, so waiting
//! watches are counted and limited like served ones. Upstream receives only one request for all of them.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cache::FeedState;
use crate::feeds::{FeedHandle, Freshness};
use crate::serve::activity::metrics;
use crate::serve::read::{FeedSources, NotServable};
use crate::serve::response::unavailable;
use base::until;
use kubeapi::WatchTimeout;

/// The time for which a feed may be disconnected before requests that need a proof fail.
const CUT_OFF_MAX: Duration = Duration::from_secs(3);

impl FeedSources {
    /// Waits until `ready` completes, for the requested duration of the watch, at most `max`. Returns `None` after that
    /// time. Fails if the feed ends or the proxy drains. The future is cancel-safe.
    pub(super) async fn hold<T>(
        &self,
        feed: &FeedHandle,
        timeout_seconds: Option<i64>,
        max: Duration,
        ready: impl Future<Output = T>,
    ) -> Result<Option<T>, NotServable> {
        let _counted = metrics::HeldWatch::new();
        let mut drain = self.drain.clone();
        tokio::select! {
            biased;
            ready = ready => Ok(Some(ready)),
            // The next feed may have what this one does not.
            () = feed.reader.over() => Err(NotServable::FeedEnded),
            // The proxy that replaces this one may be ready.
            () = drain.started() => Err(NotServable::going_away()),
            () = sleep(held_for(timeout_seconds, max)) => Ok(None),
        }
    }

    /// Waits until the feed is proven to contain every write that was complete when the request was received (L5).
    /// Returns whether it is.
    pub(super) async fn proven(
        &self,
        feed: &FeedHandle,
        received: Instant,
        timeout_seconds: Option<i64>,
    ) -> Result<bool, NotServable> {
        if self.needs_no_proof(feed) || feed.freshness.covers(received) {
            return Ok(true);
        }
        let proof = async {
            tokio::select! {
                biased;
                () = feed.freshness.reached(received) => Ok(true),
                () = cut_off(feed) => Err(unreachable()),
            }
        };
        self.hold(feed, timeout_seconds, Freshness::WAIT_MAX, proof).await?.unwrap_or(Ok(false))
    }
}

/// Returns how long a watch is held: its requested duration, up to a limit.
fn held_for(timeout_seconds: Option<i64>, max: Duration) -> Duration {
    WatchTimeout::of(timeout_seconds).within(max)
}

/// Completes when the feed has been disconnected for too long, counted from now.
async fn cut_off(feed: &FeedHandle) {
    let began = Instant::now();
    let mut state = feed.reader.watch_state();
    loop {
        let cut_off = match *state.borrow_and_update() {
            FeedState::Stale { since } => Some(since.max(began) + CUT_OFF_MAX),
            _ => None,
        };
        tokio::select! {
            biased;
            // The sender lives as long as the feed's reader.
            Ok(()) = state.changed() => {}
            () = until(cut_off) => return,
        }
    }
}

/// Rejects a request that needs a proof from an upstream that cannot be reached.
pub(super) fn unreachable() -> NotServable {
    let why = "upstream is unreachable, so the cache cannot be proven current";
    NotServable::Refuse(Box::new(unavailable(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_waits_for_proof_at_most_its_timeout_or_the_limit() {
        let max = Duration::from_secs(8);
        for (asked, held) in
            [(None, max), (Some(0), max), (Some(-1), max), (Some(2), Duration::from_secs(2)), (Some(i64::MAX), max)]
        {
            assert_eq!(held_for(asked, max), held, "{asked:?}");
        }
    }
}
