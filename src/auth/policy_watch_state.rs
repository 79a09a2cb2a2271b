use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::changes::SETTLES;

/// The state of the policy watches: whether they are open, and since when they are complete.
#[derive(Debug)]
pub(super) struct PolicyWatchState(Mutex<WatchCompleteness>);

#[derive(Debug, Clone, Copy)]
struct WatchCompleteness {
    /// Whether a policy change would be received at once.
    is_open: bool,
    /// The time at which a change was last received, or the watches began or ended.
    moved: Instant,
    /// The time since which no change can have been missed. Changes during an interruption are received afterwards.
    whole_since: Instant,
}

impl PolicyWatchState {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self(Mutex::new(WatchCompleteness { is_open: false, moved: now, whole_since: now }))
    }

    /// Records that a policy change was received.
    pub(super) fn changed(&self) {
        self.0.lock().moved = Instant::now();
    }

    /// Records that the watch of one more kind of RBAC objects has begun. Earlier changes may have been missed.
    pub(super) fn begins(&self) {
        let (now, mut heard) = (Instant::now(), self.0.lock());
        (heard.moved, heard.whole_since) = (now, now);
    }

    /// Records whether the watches of all kinds of RBAC objects are open.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut heard = self.0.lock();
        if heard.is_open != is_open {
            (heard.is_open, heard.moved) = (is_open, Instant::now());
        }
    }

    /// Returns the time at which a change was last received, or the watches began or ended.
    pub(super) fn moved(&self) -> Instant {
        self.0.lock().moved
    }

    /// Returns the time since which no change was received; `None` if changes would not be received at once.
    pub(super) fn unchanged_since(&self) -> Option<Instant> {
        let heard = *self.0.lock();
        heard.is_open.then_some(heard.moved)
    }

    /// Whether a permission from RBAC, as reviewed at `asked`, still holds.
    ///
    /// It holds if every change is seen, including those that upstream's authorizers may not have known at `asked`. The
    /// caller must have dropped the decisions that a change affects. An authorizer before RBAC may have begun to deny,
    /// so the result is false after `max`.
    pub(super) fn upholds(&self, asked: Instant, max: Duration) -> bool {
        let heard = *self.0.lock();
        asked.elapsed() < max && heard.is_open && asked >= heard.whole_since + SETTLES
    }
}
