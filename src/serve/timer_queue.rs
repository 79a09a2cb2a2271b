use base::random;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// When watches are woken besides events: for a bookmark, for their end, and in a drain at a moment of their own. All
/// of them stand in one map, for a timer and a drain that each watch waits for by itself were 400 bytes of 2 KiB.
///
/// Times are microseconds after some moment.
#[derive(Debug)]
pub(super) struct TimerQueue<W> {
    /// Every watch that is open has an entry.
    by_time: BTreeMap<(u64, u64), Weak<W>>,
    leaving: Leaving,
}

/// Somebody who is woken by an alarm.
pub(super) trait TimerTarget {
    fn alarm(&self) -> &WatchAlarm;

    /// Whether it has come during a drain.
    fn is_late(&self) -> bool;
}

/// How far a drain is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    #[default]
    Nobody,
    /// Those leave who were there before it, each at a moment between these.
    Early(u64, u64),
    Everybody,
}

/// The alarm of one watch. Only who has locked [`TimerQueue`] changes it.
#[derive(Debug)]
pub(super) struct WatchAlarm {
    /// Tells it from others at the same time.
    number: u64,
    /// Where it stands in the map.
    stands_at: AtomicU64,
    /// The time that the watch has asked for.
    at: AtomicU64,
    /// When the watch leaves.
    leaves: AtomicU64,
}

/// No time at all.
pub(super) const NEVER: u64 = u64::MAX;

impl WatchAlarm {
    pub(super) fn new(number: u64) -> Self {
        let [stands_at, at, leaves] = std::array::from_fn(|_| AtomicU64::new(NEVER));
        Self { number, stands_at, at, leaves }
    }

    /// Whether the time has come that the watch has asked for.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.at.load(Ordering::Acquire) <= now
    }

    /// Whether the watch is to leave.
    pub(super) fn is_leaving(&self, now: u64) -> bool {
        self.leaves.load(Ordering::Acquire) <= now
    }

    fn key(&self) -> (u64, u64) {
        (self.stands_at.load(Ordering::Acquire), self.number)
    }
}

impl<W> Default for TimerQueue<W> {
    fn default() -> Self {
        Self { by_time: BTreeMap::new(), leaving: Leaving::default() }
    }
}

impl<W: TimerTarget> TimerQueue<W> {
    /// Sets the time of a watch in the place of the one before. Returns whether it is the first of all now.
    pub(super) fn set(&mut self, watchdog: &Arc<W>, at: u64, now: u64) -> bool {
        let alarm = watchdog.alarm();
        self.by_time.remove(&alarm.key());
        alarm.at.store(at, Ordering::Release);
        self.see_off(watchdog, now);
        self.stand(watchdog, at.min(alarm.leaves.load(Ordering::Acquire)));
        self.by_time.first_key_value().is_some_and(|(first, _)| *first == alarm.key())
    }

    /// Forgets a watch.
    pub(super) fn clear(&mut self, alarm: &WatchAlarm) {
        self.by_time.remove(&alarm.key());
    }

    /// When somebody is to be woken next.
    pub(super) fn first(&self) -> Option<u64> {
        self.by_time.first_key_value().map(|((at, _), _)| *at).filter(|at| *at != NEVER)
    }

    /// Those whose time has come. They stay known, for they may not react.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<Arc<W>> {
        let later = self.by_time.split_off(&(now.saturating_add(1), 0));
        let due = std::mem::replace(&mut self.by_time, later);
        let due: Vec<_> = due.into_values().filter_map(|watchdog| watchdog.upgrade()).collect();
        for watchdog in &due {
            let alarm = watchdog.alarm();
            let times = [&alarm.at, &alarm.leaves].map(|time| time.load(Ordering::Acquire));
            self.stand(watchdog, times.into_iter().filter(|time| *time > now).min().unwrap_or(NEVER));
        }
        due
    }

    /// Lets watches leave, those that are here, which it returns, and those that come.
    pub(super) fn leave(&mut self, leaving: Leaving, now: u64) -> Vec<Arc<W>> {
        self.leaving = leaving;
        let all: Vec<_> = std::mem::take(&mut self.by_time).into_values().filter_map(|it| it.upgrade()).collect();
        for watchdog in &all {
            let alarm = watchdog.alarm();
            self.see_off(watchdog, now);
            let leaves = alarm.leaves.load(Ordering::Acquire);
            self.stand(watchdog, leaves.min(alarm.stands_at.load(Ordering::Acquire)));
        }
        all
    }

    /// Gives a watch its moment to leave, if it has none and is to leave.
    fn see_off(&self, watchdog: &W, now: u64) {
        let leaves = &watchdog.alarm().leaves;
        match self.leaving {
            Leaving::Early(from, until) if leaves.load(Ordering::Acquire) == NEVER && !watchdog.is_late() => {
                leaves.store(random::u64(from..=until.max(from)), Ordering::Release);
            }
            Leaving::Everybody => {
                leaves.fetch_min(now, Ordering::AcqRel);
            }
            Leaving::Nobody | Leaving::Early(..) => {}
        }
    }

    fn stand(&mut self, watchdog: &Arc<W>, at: u64) {
        watchdog.alarm().stands_at.store(at, Ordering::Release);
        self.by_time.insert(watchdog.alarm().key(), Arc::downgrade(watchdog));
    }
}
