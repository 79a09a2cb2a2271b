//! Resets responses whose clients do not read.
//!
//! One rule: a response that has something to send and makes no progress for a while, or that is not read by its
//! deadline, is reset. A codec polls a response only while its client has room. So a response that is not read cannot
//! end itself, and would hold its permit, its feed and perhaps a snapshot forever. Therefore each response has a timer
//! in one map ([`TimerQueue`]), for which one task waits:
//!
//! | What | No progress | Deadline |
//! |---|---|---|
//! | [`WatchDeadlineTimer`] of a watch | not polled for the grace period after one of its times | its timeout |
//! | [`TimedSnapshotPin`] on the initial state of a watch | nothing taken for `state_idle_max` | |
//! | `TimedSnapshotPin` on the state of a LIST | | `body_max` |
//! | [`DeadlineBody`](super::DeadlineBody): other responses, and forwarded requests | | `body_max` |
//!
//! A stream from upstream, such as `logs -f`, has no timer. Three related mechanisms are elsewhere.
//! [`AbortSignal::set_timeout`] limits small responses, because most of them are sent at once and must not allocate a timer.
//! `cache::SnapshotPins` resets the oldest responses when memory is short. `net::serve` closes connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::auth::GrantStatus;
use crate::cache::{self, FeedSnapshot};
use crate::feeds::Feed;
use base::{AbortSignal, DrainWatch, Timer, TimerQueue, TimerTarget, random};

/// The reason that is recorded for a body that was aborted.
pub(crate) const TOO_SLOW: &str = "too_slow";

/// The time limits for clients that do not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowReaderLimits {
    /// The grace period for a watch to end after its timer fired, and for the client to take the last bytes.
    pub grace: Duration,
    /// The maximum time between two pieces of the initial state.
    pub state_idle_max: Duration,
}

impl Default for SlowReaderLimits {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), state_idle_max: Duration::from_secs(60) }
    }
}

/// The timers of all responses, and the progress of a drain. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SlowReaderReaper(Arc<SlowReaderReaperState>);

#[derive(Debug)]
struct SlowReaderReaperState {
    unread: SlowReaderLimits,
    body_max: Duration,
    timers: TimerQueue,
    drain_progress: Mutex<DrainProgress>,
}

/// The progress of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainProgress {
    NotStarted,
    /// Watches from before the drain leave, each at a random time between these two.
    Spread(u64, u64),
    All,
}

/// Wakes a watch at its times, and aborts it if it must end and is not polled.
///
/// Its times are its own timer, its time to end during a drain, and the revocation of its permission. Times are in
/// microseconds, as those of [`TimerQueue`].
#[derive(Debug)]
pub(crate) struct WatchDeadlineTimer {
    slow_readers: SlowReaderReaper,
    timer: Timer,
    abort: AbortSignal,
    grant: GrantStatus,
    /// The waker of the watch's task.
    task: Mutex<Waker>,
    /// The time for which the watch has set its timer.
    timer_at: AtomicU64,
    /// The time at which the watch ends in a drain, once it is drawn at random.
    drain_at: AtomicU64,
    /// The time at which the watch was last woken; 0 if it has been polled since.
    fired: AtomicU64,
    /// The time at which the watch ends, or at which it put its last frame.
    deadline: AtomicU64,
    /// Whether the watch has put its last frame.
    has_ended: AtomicBool,
    /// Whether the watch was opened during a drain.
    opened_in_drain: bool,
}

/// The kind of timer that fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FiredWatchTimer {
    /// The watch's own timer.
    Time,
    /// The watch's time to leave in a drain.
    Drained,
    /// The permission of the watch was revoked.
    Revoked,
}

impl SlowReaderReaper {
    /// Creates the reaper. `body_max` is the time limit for a response that is not a stream, and for a request's body.
    pub(crate) fn new(unread: SlowReaderLimits, body_max: Duration) -> Self {
        let (timers, drain_progress) = (TimerQueue::default(), Mutex::new(DrainProgress::NotStarted));
        Self(Arc::new(SlowReaderReaperState { unread, body_max, timers, drain_progress }))
    }

    /// Returns the time limit for a response that is not a stream, and for a request's body.
    pub(crate) fn body_max(&self) -> Duration {
        self.0.body_max
    }

    pub(crate) fn timers(&self) -> &TimerQueue {
        &self.0.timers
    }

    /// Pins a state that is sent to a client. `abort` ends the response when the state's time is over: for a LIST, the
    /// time limit of a body; for the initial state of a watch, the time since its client took something.
    pub(crate) fn pin(
        &self,
        feed: &Feed,
        state: &FeedSnapshot,
        abort: &AbortSignal,
        is_list: bool,
    ) -> TimedSnapshotPin {
        let limit = if is_list { (self.0.body_max, TOO_SLOW) } else { (self.0.unread.state_idle_max, "stalled") };
        TimedSnapshotPin::new(feed.pin(state, abort.clone()), &self.0.timers, limit, abort)
    }

    /// Fires the timers of all watches when they are due; never completes.
    pub(crate) async fn run(self, drain: DrainWatch) {
        tokio::join!(self.follow_drain(drain), self.0.timers.clone().run());
    }

    /// Ends the watches in a drain: each at a random time, and those that are left when everything closes.
    async fn follow_drain(&self, mut drain: DrainWatch) {
        if let Some((from, until)) = drain.slots().await {
            let [from, until] = [from, until].map(|at| self.0.timers.at(at));
            self.set_drain(DrainProgress::Spread(from, until));
            drain.closing().await;
        }
        self.set_drain(DrainProgress::All);
    }

    fn set_drain(&self, drain_progress: DrainProgress) {
        *self.0.drain_progress.lock() = drain_progress;
        // Wakes every watch. One that does not react to this would not react to its own time either.
        self.0.timers.fire_all();
    }

    fn grace(&self) -> u64 {
        TimerQueue::micros(self.0.unread.grace)
    }
}

impl WatchDeadlineTimer {
    /// Creates the watchdog of a watch that the signal `abort` ends. `opened_in_drain`: the watch was opened during a
    /// drain.
    pub(crate) fn new(
        slow_readers: SlowReaderReaper,
        abort: AbortSignal,
        deadline: Instant,
        grant: GrantStatus,
        opened_in_drain: bool,
    ) -> Arc<Self> {
        let timers = &slow_readers.0.timers;
        Arc::new(Self {
            timer: timers.timer(),
            deadline: AtomicU64::new(timers.at(deadline)),
            slow_readers,
            abort,
            grant,
            task: Mutex::new(Waker::noop().clone()),
            timer_at: AtomicU64::new(TimerQueue::NEVER),
            drain_at: AtomicU64::new(TimerQueue::NEVER),
            fired: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            opened_in_drain,
        })
    }

    /// Returns the signal that ends the watch and records the reason.
    pub(crate) fn abort(&self) -> &AbortSignal {
        &self.abort
    }

    pub(crate) fn slow_readers(&self) -> &SlowReaderReaper {
        &self.slow_readers
    }

    /// Returns the permission of the watch.
    pub(crate) fn grant(&self) -> &GrantStatus {
        &self.grant
    }

    /// Sets the watch's timer to `at`, replacing the previous time. If that time has passed, the watch is not woken,
    /// but [`due`](Self::due) returns it.
    pub(crate) fn set_timer(self: &Arc<Self>, at: Instant) {
        self.timer_at.store(self.timer.timers().at(at), Ordering::Release);
        Timer::schedule(self);
    }

    /// Returns the timer that has fired, if any.
    pub(crate) fn due(&self) -> Option<FiredWatchTimer> {
        let now = self.timer.timers().now();
        match () {
            () if self.grant.revoked().is_some() => Some(FiredWatchTimer::Revoked),
            () if self.drain_time() <= now => Some(FiredWatchTimer::Drained),
            () if self.timer_at.load(Ordering::Acquire) <= now => Some(FiredWatchTimer::Time),
            () => None,
        }
    }

    /// Whether a timer has fired since the last call. From now on, timers wake the task of `cx`. `task` caches that
    /// waker, so that most calls take no lock.
    pub(crate) fn has_fired(&self, task: &mut Waker, cx: &Context<'_>) -> bool {
        if !task.will_wake(cx.waker()) {
            task.clone_from(cx.waker());
            self.task.lock().clone_from(cx.waker());
        }
        self.fired.load(Ordering::Acquire) != 0 && self.fired.swap(0, Ordering::AcqRel) != 0
    }

    /// Records that the watch has put its last frame. Its client then has the grace period to read it.
    pub(crate) fn end(self: &Arc<Self>) {
        if !self.has_ended.load(Ordering::Acquire) {
            self.deadline.store(self.timer.timers().now(), Ordering::Release);
            self.has_ended.store(true, Ordering::Release);
            Timer::schedule(self);
        }
    }

    /// Returns the time at which the watch leaves in a drain.
    fn drain_time(&self) -> u64 {
        // While this is locked, only one thread draws a time.
        match *self.slow_readers.0.drain_progress.lock() {
            DrainProgress::NotStarted => {}
            DrainProgress::Spread(..) if self.opened_in_drain => {}
            DrainProgress::Spread(from, until) => {
                if self.drain_at.load(Ordering::Relaxed) == TimerQueue::NEVER {
                    self.drain_at.store(random::u64(from..=until.max(from)), Ordering::Relaxed);
                }
            }
            DrainProgress::All => return 0,
        }
        self.drain_at.load(Ordering::Relaxed)
    }

    /// Returns when the watch may be aborted: a grace period after it was woken, unless it was polled since, and one
    /// after its deadline.
    fn limits(&self) -> (u64, u64) {
        let grace = self.slow_readers.grace();
        let unpolled = match self.fired.load(Ordering::Acquire) {
            0 => TimerQueue::NEVER,
            fired => fired.saturating_add(grace),
        };
        (unpolled, self.deadline.load(Ordering::Acquire).saturating_add(grace))
    }

    fn wake_task(&self, now: u64) {
        // Stored before the task is woken, because the task reads it immediately.
        self.fired.store(now.max(1), Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}

impl TimerTarget for WatchDeadlineTimer {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn next(&self, now: u64) -> u64 {
        let (unpolled, last) = self.limits();
        let times = [self.timer_at.load(Ordering::Acquire), self.drain_time(), unpolled, last];
        times.into_iter().filter(|time| *time > now).min().unwrap_or(TimerQueue::NEVER)
    }

    fn fire(&self, at: u64, now: u64) {
        let (unpolled, last) = self.limits();
        let has_ended = self.has_ended.load(Ordering::Acquire);
        let is_past_deadline = last <= now;
        if unpolled <= now || (has_ended && is_past_deadline) {
            let is_draining = *self.slow_readers.0.drain_progress.lock() != DrainProgress::NotStarted;
            let state = [has_ended, self.grant.revoked().is_some(), is_draining];
            abort_reason(is_past_deadline, state).into_iter().for_each(|reason| self.abort.abort(reason));
        }
        let is_due = |time: u64| (at..=now).contains(&time);
        // A timer that is due when all watches must leave is fired for that reason, too.
        let is_early = at > now || self.drain_time() == 0;
        // A watch that is past its deadline has reacted to it, but not ended. It is checked again.
        let is_overdue = is_past_deadline && unpolled == TimerQueue::NEVER;
        if is_early || is_overdue || is_due(self.timer_at.load(Ordering::Acquire)) || is_due(self.drain_time()) {
            self.wake_task(now);
        }
    }
}

/// Returns the reason that a watch is aborted, if it is. The watch was not polled for the grace period after it was
/// woken, or it has ended.
fn abort_reason(is_past_deadline: bool, [has_ended, is_revoked, is_draining]: [bool; 3]) -> Option<&'static str> {
    match () {
        () if has_ended && is_past_deadline => Some("client_closed"),
        () if is_revoked => Some("revoked"),
        () if is_past_deadline => Some("timeout"),
        () if is_draining => Some("drained"),
        // Only a bookmark is due.
        () => None,
    }
}

impl Wake for WatchDeadlineTimer {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_task(self.timer.timers().now());
        Timer::schedule(self);
    }
}

/// A state that is being sent to a client, with a deadline that progress extends. If the deadline passes, the response
/// is aborted.
#[derive(Debug)]
pub(crate) struct TimedSnapshotPin {
    _pin: cache::SnapshotPin,
    deadline: Arc<SnapshotDeadline>,
}

/// The deadline of a pinned state. Times are in microseconds, as those of [`TimerQueue`].
#[derive(Debug)]
struct SnapshotDeadline {
    timer: Timer,
    at: AtomicU64,
    /// The time after progress until the next deadline.
    max: Duration,
    abort: AbortSignal,
    reason: &'static str,
}

impl TimedSnapshotPin {
    /// Starts the deadline of the pinned state. The signal `abort` ends the response for `reason`.
    fn new(
        pin: cache::SnapshotPin,
        timers: &TimerQueue,
        (max, reason): (Duration, &'static str),
        abort: &AbortSignal,
    ) -> Self {
        let (timer, at, abort) = (timers.timer(), AtomicU64::new(timers.after(max)), abort.clone());
        let deadline = Arc::new(SnapshotDeadline { timer, at, max, abort, reason });
        Timer::schedule(&deadline);
        Self { _pin: pin, deadline }
    }

    /// Moves the deadline, because the client has taken something.
    pub(crate) fn extend(&self) {
        let SnapshotDeadline { timer, at, max, .. } = &*self.deadline;
        // Otherwise, the timer is rescheduled when it fires.
        if at.swap(timer.timers().after(*max), Ordering::AcqRel) == TimerQueue::NEVER {
            Timer::schedule(&self.deadline);
        }
    }

    /// Suspends the deadline until the next progress, because the response waits for something other than its client.
    pub(crate) fn pause(&self) {
        self.deadline.at.store(TimerQueue::NEVER, Ordering::Release);
    }
}

impl TimerTarget for SnapshotDeadline {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn next(&self, now: u64) -> u64 {
        Some(self.at.load(Ordering::Acquire)).filter(|at| *at > now).unwrap_or(TimerQueue::NEVER)
    }

    fn fire(&self, _at: u64, now: u64) {
        if self.at.load(Ordering::Acquire) <= now {
            self.abort.abort(self.reason);
        }
    }
}

#[cfg(test)]
mod tests;
