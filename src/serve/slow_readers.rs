//! Wakes watches when it is time, and ends those from outside whose clients do not read.
//!
//! A watch ends itself when it is polled, and a codec polls it when its client has room. If the client never has room,
//! the watch is never polled again, and would keep its place, its feed and perhaps a state for ever. So each watch has
//! a [`Watchdog`], which its timers wake. A watch that has not been polled for a while after a timer has fired is
//! cut if its time is up, its permission has ended or the proxy drains. Watches whose timers do not fire cost nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::timer_queue::{Leaving, NEVER, TimerQueue, TimerTarget, WatchAlarm};
use crate::auth::GrantStatus;
use crate::cache::PinTerms;
use base::{Cut, Deadlines, DrainWatch, mutant, until};

/// How much time is given to clients that do not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// The time for a watch to end by itself once it has to, and for its last bytes to be taken.
    pub grace: Duration,
    /// The time to take the next piece of the state that a watch begins with.
    pub state_idle_max: Duration,
}

impl Default for Unread {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), state_idle_max: Duration::from_secs(60) }
    }
}

/// The watches that must be looked at, and when. Cloning shares.
#[derive(Debug, Clone)]
pub(super) struct SlowReaderReaper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    unread: Unread,
    started: Instant,
    /// For each watch at most three: a while after a timer fired, after its deadline, and after its end.
    looks: Deadlines<Watchdog>,
    /// When watches are woken. Their times are microseconds after `started`.
    alarms: Mutex<TimerQueue<Watchdog>>,
    next: AtomicU64,
    /// Notified when there is an earlier first alarm.
    earlier: Notify,
    is_draining: AtomicBool,
}

/// Wakes a watch when one of its timers fires, and notices when it does not react.
#[derive(Debug)]
pub(super) struct Watchdog {
    overdue: SlowReaderReaper,
    cut: Cut,
    /// In microseconds as the alarms have it.
    deadline: u64,
    grant: GrantStatus,
    alarm: WatchAlarm,
    /// The task of the watch, which is woken.
    task: Mutex<Waker>,
    /// When a timer last fired, if the watch has not been polled since: microseconds after [`Shared::started`], or 0.
    fired: AtomicU64,
    /// When the watch put its last frame, in microseconds likewise, or [`NEVER`].
    over: AtomicU64,
    /// Whether the watch came during a drain.
    is_late: bool,
    is_awaited: AtomicBool,
    is_awaited_at_the_end: AtomicBool,
}

/// What fired first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fired {
    /// The time that was set has come.
    Time,
    /// It is this watch's turn to leave a proxy that goes away.
    Drained,
    /// The permission is over.
    Revoked,
}

/// What happens to a watch that has not reacted to its timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Cut(&'static str),
    /// It is looked at again at that time.
    Later(Instant),
}

/// Everything that the verdict depends on.
#[derive(Debug, Clone, Copy)]
struct Case {
    now: Instant,
    /// The deadline with the grace.
    last: Instant,
    is_over: bool,
    is_revoked: bool,
    is_draining: bool,
}

impl SlowReaderReaper {
    pub(super) fn new(unread: Unread) -> Self {
        Self(Arc::new(Shared {
            unread,
            started: Instant::now(),
            looks: Deadlines::default(),
            alarms: Mutex::default(),
            next: AtomicU64::new(0),
            earlier: Notify::new(),
            is_draining: AtomicBool::new(false),
        }))
    }

    /// The terms of a pin on a state that a watch is told.
    pub(super) fn state_terms(&self) -> PinTerms {
        PinTerms { until: None, idle_max: Some(self.0.unread.state_idle_max) }
    }

    /// Wakes watches, and looks at them, when it is time; never completes.
    pub(super) async fn keep(self, drain: DrainWatch) {
        tokio::join!(self.hear(drain), self.look_on());
    }

    /// Lets watches leave in a drain.
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
        // Who does not react to that now would not at its own moment.
        all.into_iter().for_each(Watchdog::wake);
        self.0.earlier.notify_one();
    }

    async fn look_on(&self) {
        loop {
            let alarm = self.0.alarms.lock().first().map(|at| self.at(at));
            tokio::select! {
                biased;
                () = until(alarm) => self.ring(Instant::now()),
                due = self.0.looks.due() => {
                    let now = Instant::now();
                    due.iter().for_each(|watchdog| watchdog.look(now));
                }
                () = self.0.earlier.notified() => {}
            }
        }
    }

    /// Wakes the watches whose time has come.
    fn ring(&self, now: Instant) {
        let due = self.0.alarms.lock().take_due(self.micros(now));
        due.into_iter().for_each(Watchdog::wake);
    }

    /// The time as the alarms have it.
    fn micros(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.0.started);
        u64::try_from(passed.as_micros()).unwrap_or(NEVER - 1)
    }

    fn at(&self, micros: u64) -> Instant {
        self.0.started + Duration::from_micros(micros)
    }

    fn put(&self, at: Instant, watchdog: &Arc<Watchdog>) {
        self.0.looks.put(at, Arc::downgrade(watchdog));
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
    /// Makes the watchdog of a watch that `cut` ends. `is_late` says that it has come during a drain.
    pub(super) fn new(
        overdue: SlowReaderReaper,
        cut: Cut,
        deadline: Instant,
        grant: GrantStatus,
        is_late: bool,
    ) -> Arc<Self> {
        let alarm = WatchAlarm::new(overdue.0.next.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self {
            deadline: overdue.micros(deadline),
            overdue,
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

    /// The cut, which ends the watch and says why.
    pub(super) fn cut(&self) -> &Cut {
        &self.cut
    }

    pub(super) fn overdue(&self) -> &SlowReaderReaper {
        &self.overdue
    }

    /// The permission of the watch.
    pub(super) fn grant(&self) -> &GrantStatus {
        &self.grant
    }

    /// Has the watch woken at this time, and no more at the one that was set before.
    pub(super) fn set_alarm(self: &Arc<Self>, at: Instant) {
        let Shared { alarms, earlier, started, .. } = &*self.overdue.0;
        // Not before its time.
        let micros = at.saturating_duration_since(*started).as_nanos().div_ceil(1_000);
        let (micros, now) = (u64::try_from(micros).unwrap_or(NEVER - 1), self.overdue.micros(Instant::now()));
        let is_first = alarms.lock().set(self, micros, now);
        if is_first {
            earlier.notify_one();
        }
    }

    /// The watch is over, and not woken any more.
    pub(super) fn clear_alarm(&self) {
        self.overdue.0.alarms.lock().clear(&self.alarm);
    }

    /// What has fired.
    pub(super) fn due(&self) -> Option<Fired> {
        let now = self.overdue.micros(Instant::now());
        match () {
            () if self.grant.revoked().is_some() => Some(Fired::Revoked),
            () if self.alarm.is_leaving(now) => Some(Fired::Drained),
            () if self.alarm.is_due(now) => Some(Fired::Time),
            () => None,
        }
    }

    /// Whether a timer has fired since this was last called. From now on timers wake the task of `cx`. `task` remembers
    /// which task that is, so that mostly nothing is written.
    pub(super) fn has_fired(&self, task: &mut Waker, cx: &Context<'_>) -> bool {
        if !task.will_wake(cx.waker()) {
            task.clone_from(cx.waker());
            self.task.lock().clone_from(cx.waker());
        }
        self.fired.load(Ordering::Acquire) != 0 && self.fired.swap(0, Ordering::AcqRel) != 0
    }

    /// Notes that the watch has put its last frame, which its client may take or not.
    pub(super) fn end(self: &Arc<Self>) {
        let now = Instant::now();
        let micros = self.overdue.micros(now);
        if self.over.compare_exchange(NEVER, micros, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.overdue.put(now + self.overdue.0.unread.grace, self);
        }
    }

    fn await_look(self: &Arc<Self>, at: Instant) {
        if !self.is_awaited.swap(true, Ordering::AcqRel) {
            self.overdue.put(at, self);
        }
    }

    /// When a timer fired to which the watch has not reacted.
    fn fired(&self) -> Option<Instant> {
        let micros = self.fired.load(Ordering::Acquire);
        (micros != 0).then(|| self.overdue.at(micros))
    }

    /// When the watch put its last frame.
    fn over(&self) -> Option<Instant> {
        let micros = self.over.load(Ordering::Acquire);
        (micros != NEVER).then(|| self.overdue.at(micros))
    }

    fn look(self: &Arc<Self>, now: Instant) {
        self.is_awaited.store(false, Ordering::Release);
        let grace = self.overdue.0.unread.grace;
        let is_over = self.over().is_some_and(|over| over + grace <= now);
        match self.fired() {
            _ if is_over => {}
            // The look belongs to an earlier timer, to which the watch has reacted since.
            Some(fired) if now < fired + grace => return self.await_look(fired + grace),
            Some(_) => {}
            None => return,
        }
        let case = Case {
            now,
            last: self.overdue.at(self.deadline) + grace,
            is_over,
            is_revoked: self.grant.revoked().is_some(),
            is_draining: self.overdue.0.is_draining.load(Ordering::Acquire),
        };
        match case.verdict() {
            Verdict::Cut(_) if mutant(15) => {}
            Verdict::Cut(why) => self.cut.cut(why),
            Verdict::Later(_) if self.is_awaited_at_the_end.swap(true, Ordering::AcqRel) => {}
            Verdict::Later(at) => self.overdue.put(at, self),
        }
    }
}

impl Case {
    fn verdict(self) -> Verdict {
        let Self { now, last, is_over, is_revoked, is_draining } = self;
        match () {
            () if is_over => Verdict::Cut("closed"),
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
        // Stored before the task is woken, for it looks at once.
        self.fired.swap(self.overdue.micros(now).max(1), Ordering::AcqRel);
        self.task.lock().wake_by_ref();
        self.await_look(now + self.overdue.0.unread.grace);
    }
}

#[cfg(test)]
mod tests;
