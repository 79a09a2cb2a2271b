use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake as _, Waker};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::WatchOptions;
use super::end::WatchExit;
use crate::auth::GrantStatus;
use crate::cache::FeedSnapshot;
use crate::feeds::FeedHandle;
use crate::serve::activity::WatchEndReason;
use crate::serve::limits::{FiredWatchTimer, SlowReaderReaper, TimedSnapshotPin, WatchDeadlineTimer};
use crate::serve::response::revoked;
use base::{AbortSignal, DrainGuard, DrainWatch, random};
use kubeapi::WatchTimeout;

/// The timers of a watch, and the watchdog that fires them even if the watch is never polled.
pub(crate) struct WatchTimers {
    deadline: Instant,
    next_bookmark: Instant,
    watchdog: Arc<WatchDeadlineTimer>,
    /// The future of the permission's end, if the permission can end. It wakes the watchdog.
    _revocation: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Keeps the drain waiting until the watch has ended, even after its request has ended (WebSocket).
    _drain_guard: DrainGuard,
    /// The waker of the task that polls the watch.
    task: Waker,
    /// The timer that has fired, until the watch has reacted to it.
    fired: Option<FiredWatchTimer>,
    /// Whether to send a bookmark once no events are pending.
    is_bookmark_due: bool,
}

/// The interval between bookmarks (KEP-956). One more is sent two seconds before the end (KEP-1904; R-BOOKMARK-1).
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// The maximum timeout of a watch, one year, so that no arithmetic overflows.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl WatchTimers {
    /// Starts the timers of a watch that was requested at `received`. The timeout counts from there, regardless of what
    /// the request has waited for (R-TIMEOUT-1). Without a client timeout, the watch lasts between `duration_min` and
    /// twice that. `abort` ends a watch that is not polled.
    pub(crate) fn start(
        received: Instant,
        options: &WatchOptions,
        grant: GrantStatus,
        slow_readers: SlowReaderReaper,
        abort: AbortSignal,
        drain: &DrainWatch,
    ) -> Self {
        let duration = match WatchTimeout::of(options.timeout_seconds) {
            WatchTimeout::Unset => options.duration_min.mul_f64(1.0 + random::f64()),
            WatchTimeout::Elapsed => Duration::ZERO,
            WatchTimeout::After(length) => length.min(DURATION_MAX),
        };
        let deadline = received + duration;
        let watchdog = WatchDeadlineTimer::new(slow_readers, abort, deadline, grant, drain.has_started());
        let mut timers = Self {
            deadline,
            next_bookmark: (received + BOOKMARK_PERIOD).min(last_bookmark(received, deadline)),
            _revocation: revocation(&watchdog),
            watchdog,
            _drain_guard: drain.block_end(),
            task: Waker::noop().clone(),
            fired: None,
            is_bookmark_due: false,
        };
        timers.set(timers.next_bookmark.min(deadline));
        timers
    }

    pub(super) fn watchdog(&self) -> &Arc<WatchDeadlineTimer> {
        &self.watchdog
    }

    /// Pins a state that the watch sends. The pin is released if the watch is aborted.
    pub(super) fn pin(&self, feed: &FeedHandle, state: &FeedSnapshot) -> TimedSnapshotPin {
        self.watchdog.slow_readers().pin(feed, state, self.watchdog.abort(), false)
    }

    /// Returns the exit of a watch whose permission was revoked.
    pub(super) fn revocation(&self) -> Option<WatchExit> {
        let status = self.watchdog.grant().revoked().map(revoked)?;
        Some(WatchExit::error(status, WatchEndReason::Revoked))
    }

    /// Returns how the watch ends, if a timer that ends it has fired. Otherwise, the timer is set again.
    pub(super) fn exit(&mut self, cx: &Context<'_>) -> Option<WatchExit> {
        match self.fired(cx)? {
            FiredWatchTimer::Time if self.deadline <= Instant::now() => {
                Some(WatchExit::Silent(WatchEndReason::Timeout))
            }
            FiredWatchTimer::Drained => Some(WatchExit::Silent(WatchEndReason::Drained)),
            FiredWatchTimer::Revoked => self.revocation(),
            FiredWatchTimer::Time => {
                self.fired = None;
                self.is_bookmark_due = true;
                self.set(self.deadline);
                None
            }
        }
    }

    /// Returns the timer that has fired and to which the watch has not reacted yet.
    pub(super) fn fired(&mut self, cx: &Context<'_>) -> Option<FiredWatchTimer> {
        if self.watchdog.has_fired(&mut self.task, cx) && self.fired.is_none() {
            self.fired = self.watchdog.due();
        }
        self.fired
    }

    /// Whether the watch must be polled again once no events are pending: a bookmark is due, or a timer has fired to
    /// which it has not reacted.
    pub(super) fn is_due(&self) -> bool {
        self.is_bookmark_due || self.fired.is_some()
    }

    /// Whether a bookmark is due now. If so, the next one is scheduled.
    pub(super) fn take_bookmark(&mut self) -> bool {
        if !std::mem::take(&mut self.is_bookmark_due) {
            return false;
        }
        let now = Instant::now();
        let is_due = now >= self.next_bookmark;
        if is_due {
            let last = last_bookmark(now, self.deadline);
            self.next_bookmark = if last > now { (now + BOOKMARK_PERIOD).min(last) } else { self.deadline };
        }
        self.set(self.next_bookmark.min(self.deadline));
        is_due
    }

    /// Sets the timer of the watch. If it fires at once, the watch is woken, and reacts when it is polled next, which
    /// may be never.
    fn set(&mut self, at: Instant) {
        self.watchdog.set_timer(at);
        self.fired = self.watchdog.due();
        if self.fired.is_some() {
            self.watchdog.wake_by_ref();
        }
    }
}

/// Returns the future of the permission's end, which wakes the watchdog from now on.
fn revocation(watchdog: &Arc<WatchDeadlineTimer>) -> Option<Pin<Box<WaitForCancellationFutureOwned>>> {
    let mut ended = Box::pin(watchdog.grant().end_token()?.cancelled_owned());
    let watchdog = Waker::from(watchdog.clone());
    // If the permission has already ended, the next poll checks it first.
    let _ = ended.as_mut().poll(&mut Context::from_waker(&watchdog));
    Some(ended)
}

/// Returns the time at which the bookmark before the end is due. Watches shorter than [`BOOKMARK_BEFORE_END`] have
/// none.
fn last_bookmark(now: Instant, deadline: Instant) -> Instant {
    deadline.checked_sub(BOOKMARK_BEFORE_END).filter(|at| *at > now).unwrap_or(deadline)
}
