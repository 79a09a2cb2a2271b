//! Wakes watches when their timers fire, and cuts watches whose clients do not read.
//!
//! A watch ends itself when it is polled, and a codec polls it when its client has room. If the client never has room,
//! the watch is never polled again. It would hold its permit, its feed and perhaps a snapshot forever. So each watch
//! has a [`Watchdog`], which its timers wake. If a watch is not polled within the grace period after a timer fired, it
//! is checked. It is cut if its timeout has expired, its permission was revoked or the proxy drains. Watches whose
//! timers do not fire cost nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::auth::GrantStatus;
use crate::cache::PinTerms;
use crate::serve::limits::timer_queue::{Leaving, NEVER, TimerQueue, TimerTarget, WatchAlarm};
use base::{Cut, Deadlines, DrainWatch, until};

/// The time limits for clients that do not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// The grace period for a watch to end after its timer fired, and for the client to take the last bytes.
    pub grace: Duration,
    /// The maximum time between two pieces of the initial state.
    pub state_idle_max: Duration,
}

impl Default for Unread {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), state_idle_max: Duration::from_secs(60) }
    }
}

/// The watches to wake and check, and when. Clones share the same data.
#[derive(Debug, Clone)]
pub(crate) struct SlowReaderReaper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    unread: Unread,
    started: Instant,
    /// The scheduled checks, at most three per watch: one grace period after a timer fired, after its deadline and
    /// after its end.
    scan_budget: Deadlines<Watchdog>,
    /// The timers of watches, in microseconds since `started`.
    alarms: Mutex<TimerQueue<Watchdog>>,
    next: AtomicU64,
    /// Notified when there is an earlier first timer.
    earlier: Notify,
    is_draining: AtomicBool,
}

/// Wakes a watch when one of its timers fires, and detects when it does not react.
#[derive(Debug)]
pub(crate) struct Watchdog {
    slow_readers: SlowReaderReaper,
    cut: Cut,
    /// In microseconds since [`Shared::started`].
    deadline: u64,
    grant: GrantStatus,
    alarm: WatchAlarm,
    /// The task of the watch.
    task: Mutex<Waker>,
    /// When a timer last fired, in microseconds since [`Shared::started`]; 0 if the watch has been polled since.
    fired: AtomicU64,
    /// When the watch put its last frame, in microseconds since [`Shared::started`], or [`NEVER`].
    over: AtomicU64,
    /// Whether the watch was opened during a drain.
    is_late: bool,
    is_awaited: AtomicBool,
    is_awaited_at_the_end: AtomicBool,
}

/// The kind of timer that fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fired {
    /// The time that the watch has set.
    Time,
    /// The watch's time to leave in a drain.
    Drained,
    /// The revocation of the permission.
    Revoked,
}

/// The outcome for a watch that has not reacted to its timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Cut(&'static str),
    /// Check the watch again at that time.
    Later(Instant),
}

/// The input of the verdict.
#[derive(Debug, Clone, Copy)]
struct Case {
    now: Instant,
    /// The deadline plus the grace period.
    last: Instant,
    is_over: bool,
    is_revoked: bool,
    is_draining: bool,
}

impl SlowReaderReaper {
    pub(crate) fn new(unread: Unread) -> Self {
        Self(Arc::new(Shared {
            unread,
            started: Instant::now(),
            scan_budget: Deadlines::default(),
            alarms: Mutex::default(),
            next: AtomicU64::new(0),
            earlier: Notify::new(),
            is_draining: AtomicBool::new(false),
        }))
    }

    /// Returns the terms of the pin on an initial state.
    pub(crate) fn state_terms(&self) -> PinTerms {
        PinTerms { until: None, idle_max: Some(self.0.unread.state_idle_max) }
    }

    /// Wakes and checks watches when they are due; never completes.
    pub(crate) async fn keep(self, drain: DrainWatch) {
        tokio::join!(self.hear(drain), self.look_on());
    }

    /// Makes watches leave in a drain.
    async fn hear(&self, mut drain: DrainWatch) {
        let slots = drain.slots().await;
        self.0.is_draining.store(true, Ordering::Release);
        if let Some((from, until)) = slots {
            self.leave(Leaving::Early(self.micros(from), self.micros(until)));
            drain.closing().await;
        }
        self.leave(Leaving::Everybody);
    }

    fn leave(&self, leaving: Leaving) {
        let all = self.0.alarms.lock().leave(leaving, self.micros(Instant::now()));
        // A watch that does not react to this would not react to its own timer either.
        all.into_iter().for_each(Watchdog::wake);
        self.0.earlier.notify_one();
    }

    async fn look_on(&self) {
        loop {
            let alarm = self.0.alarms.lock().first().map(|at| self.at(at));
            tokio::select! {
                biased;
                () = until(alarm) => self.ring(Instant::now()),
                due = self.0.scan_budget.due() => {
                    let now = Instant::now();
                    due.iter().for_each(|watchdog| watchdog.look(now));
                }
                () = self.0.earlier.notified() => {}
            }
        }
    }

    /// Wakes the watches whose timers are due.
    fn ring(&self, now: Instant) {
        let due = self.0.alarms.lock().take_due(self.micros(now));
        due.into_iter().for_each(Watchdog::wake);
    }

    /// Returns a time in microseconds since [`Shared::started`].
    fn micros(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.0.started);
        u64::try_from(passed.as_micros()).unwrap_or(NEVER - 1)
    }

    fn at(&self, micros: u64) -> Instant {
        self.0.started + Duration::from_micros(micros)
    }

    fn put(&self, at: Instant, watchdog: &Arc<Watchdog>) {
        self.0.scan_budget.put(at, Arc::downgrade(watchdog));
    }
}

impl TimerTarget for Watchdog {
    fn alarm(&self) -> &WatchAlarm {
        &self.alarm
    }

    fn is_late(&self) -> bool {
        self.is_late
    }
}

impl Watchdog {
    /// Creates the watchdog of a watch that `cut` ends. `is_late` marks a watch that was opened during a drain.
    pub(crate) fn new(
        slow_readers: SlowReaderReaper,
        cut: Cut,
        deadline: Instant,
        grant: GrantStatus,
        is_late: bool,
    ) -> Arc<Self> {
        let alarm = WatchAlarm::new(slow_readers.0.next.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self {
            deadline: slow_readers.micros(deadline),
            slow_readers,
            alarm,
            cut,
            grant,
            task: Mutex::new(Waker::noop().clone()),
            fired: AtomicU64::new(0),
            over: AtomicU64::new(NEVER),
            is_late,
            is_awaited: AtomicBool::new(false),
            is_awaited_at_the_end: AtomicBool::new(false),
        })
    }

    /// Returns the cut, which ends the watch and records the reason.
    pub(crate) fn cut(&self) -> &Cut {
        &self.cut
    }

    pub(crate) fn slow_readers(&self) -> &SlowReaderReaper {
        &self.slow_readers
    }

    /// Returns the permission of the watch.
    pub(crate) fn grant(&self) -> &GrantStatus {
        &self.grant
    }

    /// Sets the watch's timer to `at`, replacing the previous time.
    pub(crate) fn set_alarm(self: &Arc<Self>, at: Instant) {
        let Shared { alarms, earlier, started, .. } = &*self.slow_readers.0;
        // Rounds up, so that the timer never fires early.
        let micros = at.saturating_duration_since(*started).as_nanos().div_ceil(1_000);
        let (micros, now) = (u64::try_from(micros).unwrap_or(NEVER - 1), self.slow_readers.micros(Instant::now()));
        let is_first = alarms.lock().set(self, micros, now);
        if is_first {
            earlier.notify_one();
        }
    }

    /// Removes the timer of a watch that has ended.
    pub(crate) fn clear_alarm(&self) {
        self.slow_readers.0.alarms.lock().clear(&self.alarm);
    }

    /// Returns the timer that has fired, if any.
    pub(crate) fn due(&self) -> Option<Fired> {
        let now = self.slow_readers.micros(Instant::now());
        match () {
            () if self.grant.revoked().is_some() => Some(Fired::Revoked),
            () if self.alarm.is_leaving(now) => Some(Fired::Drained),
            () if self.alarm.is_due(now) => Some(Fired::Time),
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
        let now = Instant::now();
        let micros = self.slow_readers.micros(now);
        if self.over.compare_exchange(NEVER, micros, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.slow_readers.put(now + self.slow_readers.0.unread.grace, self);
        }
    }

    fn await_look(self: &Arc<Self>, at: Instant) {
        if !self.is_awaited.swap(true, Ordering::AcqRel) {
            self.slow_readers.put(at, self);
        }
    }

    /// Returns when a timer fired to which the watch has not reacted.
    fn fired(&self) -> Option<Instant> {
        let micros = self.fired.load(Ordering::Acquire);
        (micros != 0).then(|| self.slow_readers.at(micros))
    }

    /// Returns when the watch put its last frame.
    fn over(&self) -> Option<Instant> {
        let micros = self.over.load(Ordering::Acquire);
        (micros != NEVER).then(|| self.slow_readers.at(micros))
    }

    fn look(self: &Arc<Self>, now: Instant) {
        self.is_awaited.store(false, Ordering::Release);
        let grace = self.slow_readers.0.unread.grace;
        let is_over = self.over().is_some_and(|over| over + grace <= now);
        match self.fired() {
            _ if is_over => {}
            // The check belongs to an earlier timer, to which the watch has reacted.
            Some(fired) if now < fired + grace => return self.await_look(fired + grace),
            Some(_) => {}
            None => return,
        }
        let case = Case {
            now,
            last: self.slow_readers.at(self.deadline) + grace,
            is_over,
            is_revoked: self.grant.revoked().is_some(),
            is_draining: self.slow_readers.0.is_draining.load(Ordering::Acquire),
        };
        match case.verdict() {
            Verdict::Cut(why) => self.cut.cut(why),
            Verdict::Later(_) if self.is_awaited_at_the_end.swap(true, Ordering::AcqRel) => {}
            Verdict::Later(at) => self.slow_readers.put(at, self),
        }
    }
}

impl Case {
    fn verdict(self) -> Verdict {
        let Self { now, last, is_over, is_revoked, is_draining } = self;
        match () {
            () if is_over => Verdict::Cut("client_closed"),
            () if is_revoked => Verdict::Cut("revoked"),
            () if last <= now => Verdict::Cut("timeout"),
            () if is_draining => Verdict::Cut("drained"),
            // Only a bookmark is due.
            () => Verdict::Later(last),
        }
    }
}

impl Wake for Watchdog {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now = Instant::now();
        // Stored before the task is woken, because the task reads it immediately.
        self.fired.swap(self.slow_readers.micros(now).max(1), Ordering::AcqRel);
        self.task.lock().wake_by_ref();
        self.await_look(now + self.slow_readers.0.unread.grace);
    }
}

#[cfg(test)]
mod tests;
