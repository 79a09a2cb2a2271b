//! Ends watches whose clients do not read, from outside.
//!
//! A watch ends itself when it is polled, and a codec polls it when its client has room. If the client never has room,
//! the watch is never polled again, and would keep its place, its feed and perhaps a state for ever. So each watch has
//! a [`Watchdog`], which its timers wake too. A watch that has not been polled for a while after a timer has fired is
//! cut if its time is up, its permission has ended or the proxy drains. Watches whose timers do not fire cost nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::auth::GrantStatus;
use crate::base::{Cut, DrainWatch, mutant, until};
use crate::cache::PinTerms;

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
pub(super) struct Overdue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    unread: Unread,
    started: Instant,
    /// For each watch at most three: a while after a timer fired, after its deadline, and after its end. In the
    /// order of time: what is due is taken out together.
    looks: Mutex<BTreeMap<(Instant, u64), Weak<Watchdog>>>,
    next: AtomicU64,
    /// Notified when there is an earlier first look.
    earlier: Notify,
    is_draining: AtomicBool,
}

/// Notices when a watch does not react to its timers, which wake it.
#[derive(Debug)]
pub(super) struct Watchdog {
    overdue: Overdue,
    cut: Cut,
    deadline: Instant,
    grant: GrantStatus,
    /// The task of the watch, which is woken.
    task: Mutex<Waker>,
    /// When a timer last fired, if the watch has not been polled since: microseconds after [`Shared::started`], or 0.
    fired: AtomicU64,
    /// When the watch put its last frame.
    over: OnceLock<Instant>,
    is_awaited: AtomicBool,
    is_awaited_at_the_end: AtomicBool,
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

impl Overdue {
    pub(super) fn new(unread: Unread) -> Self {
        Self(Arc::new(Shared {
            unread,
            started: Instant::now(),
            looks: Mutex::default(),
            next: AtomicU64::new(0),
            earlier: Notify::new(),
            is_draining: AtomicBool::new(false),
        }))
    }

    /// The terms of a pin on a state that a watch is told.
    pub(super) fn state_terms(&self) -> PinTerms {
        PinTerms { until: None, idle_max: Some(self.0.unread.state_idle_max) }
    }

    /// Looks at watches when it is time; never completes.
    pub(super) async fn keep(self, mut drain: DrainWatch) {
        let shared = self.0.clone();
        let hear = async move {
            drain.started().await;
            shared.is_draining.store(true, Ordering::Release);
        };
        tokio::join!(hear, self.look_on());
    }

    async fn look_on(&self) {
        loop {
            let first = self.0.looks.lock().first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                biased;
                () = until(first) => self.look(Instant::now()),
                () = self.0.earlier.notified() => {}
            }
        }
    }

    fn look(&self, now: Instant) {
        let later = (now, u64::MAX);
        let due = {
            let mut looks = self.0.looks.lock();
            let later = looks.split_off(&later);
            std::mem::replace(&mut *looks, later)
        };
        due.into_values().filter_map(|watchdog| watchdog.upgrade()).for_each(|watchdog| watchdog.look(now));
    }

    fn put(&self, at: Instant, watchdog: &Arc<Watchdog>) {
        let key = (at, self.0.next.fetch_add(1, Ordering::Relaxed));
        let mut looks = self.0.looks.lock();
        let is_first = looks.first_key_value().is_none_or(|(first, _)| key < *first);
        looks.insert(key, Arc::downgrade(watchdog));
        drop(looks);
        if is_first {
            self.0.earlier.notify_one();
        }
    }
}

impl Watchdog {
    /// Makes the watchdog of a watch that `cut` ends.
    pub(super) fn new(overdue: Overdue, cut: Cut, deadline: Instant, grant: GrantStatus) -> Arc<Self> {
        Arc::new(Self {
            overdue,
            cut,
            deadline,
            grant,
            task: Mutex::new(Waker::noop().clone()),
            fired: AtomicU64::new(0),
            over: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            is_awaited_at_the_end: AtomicBool::new(false),
        })
    }

    /// The cut, which ends the watch and says why.
    pub(super) fn cut(&self) -> &Cut {
        &self.cut
    }

    pub(super) fn overdue(&self) -> &Overdue {
        &self.overdue
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
        if self.over.set(now).is_ok() {
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
        (micros != 0).then(|| self.overdue.0.started + Duration::from_micros(micros))
    }

    fn look(self: &Arc<Self>, now: Instant) {
        self.is_awaited.store(false, Ordering::Release);
        let grace = self.overdue.0.unread.grace;
        let is_over = self.over.get().is_some_and(|over| *over + grace <= now);
        match self.fired() {
            _ if is_over => {}
            // The look belongs to an earlier timer, to which the watch has reacted since.
            Some(fired) if now < fired + grace => return self.await_look(fired + grace),
            Some(_) => {}
            None => return,
        }
        let case = Case {
            now,
            last: self.deadline + grace,
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
        let micros = now.duration_since(self.overdue.0.started).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        // Stored before the task is woken, for it looks at once.
        self.fired.swap(micros.max(1), Ordering::AcqRel);
        self.task.lock().wake_by_ref();
        self.await_look(now + self.overdue.0.unread.grace);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::auth::{Caller, Gate, Permit};
    use crate::kube::{Query, RequestInfo};

    fn grant() -> GrantStatus {
        let request = RequestInfo::parse("GET", "/api/v1/pods", &Query::parse("")).expect("a plain path");
        let grant = Gate::open().grant(&Caller::Ourselves, &request).now_or_never().expect("nobody is asked");
        Permit::Whole(grant.expect("whoever asks is us")).grant_status()
    }

    /// There is one for each watch.
    #[test]
    fn a_watchdog_is_small() {
        assert!(size_of::<Watchdog>() <= 104, "{} bytes", size_of::<Watchdog>());
    }

    /// Each watch hears when a drain starts, and once more at its own moment: the look that the first has called for
    /// may come right behind the second.
    #[tokio::test(start_paused = true)]
    async fn a_watch_has_its_whole_grace_behind_each_alarm() {
        let grace = Duration::from_secs(5);
        let overdue = Overdue::new(Unread { grace, ..Unread::default() });
        overdue.0.is_draining.store(true, Ordering::Release);
        let cut = Cut::default();
        let deadline = Instant::now() + Duration::from_secs(600);
        let watchdog = Watchdog::new(overdue.clone(), cut.clone(), deadline, grant());
        tokio::spawn(async move { overdue.look_on().await });
        let looked =
            |watchdog: &Watchdog| watchdog.has_fired(&mut Waker::noop().clone(), &Context::from_waker(Waker::noop()));
        let nearly = Duration::from_millis(4_999);

        watchdog.wake_by_ref();
        assert!(looked(&watchdog) && !looked(&watchdog));
        tokio::time::sleep(nearly).await;
        watchdog.wake_by_ref();
        tokio::time::sleep(nearly).await;
        assert_eq!(cut.why(), None);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(cut.why(), Some("drained"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_becomes_of_a_watch_that_does_not_heed_its_alarm() {
        let now = Instant::now();
        let (past, future) = (now, now + Duration::from_secs(1));
        for (last, [is_over, is_revoked, is_draining], expected) in [
            (future, [false, false, false], Verdict::Later(future)),
            (past, [false, false, false], Verdict::Cut("timeout")),
            (future, [false, true, false], Verdict::Cut("revoked")),
            (past, [false, true, true], Verdict::Cut("revoked")),
            (future, [false, false, true], Verdict::Cut("drained")),
            (past, [false, false, true], Verdict::Cut("timeout")),
            (past, [true, true, true], Verdict::Cut("closed")),
        ] {
            let case = Case { now, last, is_over, is_revoked, is_draining };
            assert_eq!(case.verdict(), expected, "{case:?}");
        }
    }
}
