//! When a watch ends, and what its client receives then.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake as _, Waker};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{WatchOptions, WatchSessionContext, WatchSessionState};
use crate::auth::GrantStatus;
use crate::cache::{EventFilterDecision, FeedSnapshot, PullResult};
use crate::feeds::{DerivedRepresentationRefusal, FeedHandle};
use crate::serve::activity::WatchEndReason;
use crate::serve::limits::{FiredWatchTimer, SlowReaderReaper, TimedSnapshotPin, WatchDeadlineTimer};
use crate::serve::response::revoked;
use crate::wire::TranscodeError;
use base::{AbortSignal, DrainGuard, DrainWatch, random};
use kubeapi::{ResourceVersion, Status, WatchTimeout};

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

    /// Sets the timer of the watch. If the time has passed, the watch is woken. It reacts when it is polled, and a client
    /// that does not read never polls it.
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

/// The reason that a watch ends, and the last frame that its client receives.
pub(super) enum WatchExit {
    /// The client receives no further frame, and resumes after the last event.
    Silent(WatchEndReason),
    /// The client receives a bookmark at this version, from which it resumes.
    Bookmark(ResourceVersion, WatchEndReason),
    /// The watch ends with an ERROR event that has this Status.
    Error(Box<Status>, WatchEndReason),
    /// The client receives no further frame, because an object cannot be converted for it. The watch ends between two
    /// events, as watches may. The client resumes after the last version it has received, from a feed that has the
    /// whole object.
    Unrenderable(TranscodeError),
}

impl WatchExit {
    pub(super) fn error(status: Status, end: WatchEndReason) -> Self {
        Self::Error(Box::new(status), end)
    }
}

impl From<TranscodeError> for WatchExit {
    fn from(refused: TranscodeError) -> Self {
        Self::Unrenderable(refused)
    }
}

impl WatchSessionContext {
    /// Ends the watch, and counts the end, unless a last frame is to be sent first.
    pub(super) fn end(&self, exit: WatchExit) -> WatchSessionState {
        let (frame, end) = match exit {
            WatchExit::Silent(end) => (None, end),
            WatchExit::Bookmark(rv, end) => (self.bookmark(rv).ok(), end),
            WatchExit::Error(status, end) => {
                // From here on, the client has a limited time to read the frame.
                self.timers.watchdog().end();
                let envelope = self.cursor.renderer().envelope();
                (Some(envelope.error_frame(&status.to_event_json(), &status.to_protobuf())), end)
            }
            WatchExit::Unrenderable(refused) => {
                self.feed.refuse(
                    self.cursor.renderer().representation().full(),
                    DerivedRepresentationRefusal::UnsupportedObject,
                    &refused,
                );
                (None, WatchEndReason::NotDerivable)
            }
        };
        if let Some(frame) = frame {
            return WatchSessionState::Last(Box::new((frame, end)));
        }
        self.metrics.ended(end.as_str());
        WatchSessionState::Ended
    }

    /// Returns the exit of a drained watch with bookmarks. With a last bookmark, its client resumes here or at another
    /// replica without a list.
    pub(super) fn drained(&mut self) -> WatchExit {
        let (cursor, limits, batch) = (&mut self.cursor, (0, self.scan_budget.left()), &mut Vec::new());
        let pull = match &mut self.partial {
            Some(partial) => partial.pull(cursor, limits, None, batch),
            None => cursor.pull_filtered(None, limits, None, batch, |_, _| EventFilterDecision::Send),
        };
        match pull {
            PullResult::CaughtUp { progress } if self.is_settled() && progress.rv > self.last_sent_rv => {
                WatchExit::Bookmark(progress.rv, WatchEndReason::Drained)
            }
            _ => WatchExit::Silent(WatchEndReason::Drained),
        }
    }

    /// Returns the exit of a downstream proxy's watch that has sent everything up to the version `reached`, if another
    /// build has taken over. That build encodes all bodies after the version.
    pub(super) fn encoder_change_exit(&self, reached: ResourceVersion) -> Option<WatchExit> {
        if !self.encoder_changed() || !self.is_settled() {
            return None;
        }
        if self.bookmarks && reached > self.last_sent_rv {
            Some(WatchExit::Bookmark(reached, WatchEndReason::UpstreamUpgraded))
        } else {
            Some(WatchExit::Silent(WatchEndReason::UpstreamUpgraded))
        }
    }

    /// Whether only a part of the events of a version was sent. If the watch ended here, its client would resume after
    /// all of them. A partial view may wait for authorization decisions that never arrive, so it does not continue:
    /// it sends filtered events again when a permission is granted.
    pub(super) fn is_mid_version(&mut self) -> bool {
        self.partial.is_none()
            && !self.cursor.skips_version(self.last_sent_rv)
            && self.cursor.next_is_at(self.last_sent_rv)
    }
}
