use base::random;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The timers of all open watches: for bookmarks, for deadlines, and for leaving during a drain. All watches share one
/// map, because a timer and a drain future per watch took 400 bytes of 2 KiB.
///
/// Times are in microseconds since a reference time that the caller chooses.
#[derive(Debug)]
pub(crate) struct TimerQueue<W> {
    /// Every open watch has an entry.
    by_time: BTreeMap<(u64, u64), Weak<W>>,
    leaving: Leaving,
}

/// A target that timers wake.
pub(crate) trait TimerTarget {
    fn alarm(&self) -> &WatchAlarm;

    /// Whether the target was created during a drain.
    fn is_late(&self) -> bool;
}

/// The progress of a drain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Leaving {
    #[default]
    Nobody,
    /// Watches from before the drain leave, each at a random time between these two.
    Early(u64, u64),
    Everybody,
}

/// The timer of one watch. It may be changed only while [`TimerQueue`] is locked.
#[derive(Debug)]
pub(crate) struct WatchAlarm {
    /// Distinguishes timers with the same time.
    number: u64,
    /// The time of the entry in the map.
    stands_at: AtomicU64,
    /// The time that the watch has set.
    at: AtomicU64,
    /// The time at which the watch leaves in a drain.
    leaves: AtomicU64,
}

/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

impl WatchAlarm {
    pub(crate) fn new(number: u64) -> Self {
        let [stands_at, at, leaves] = std::array::from_fn(|_| AtomicU64::new(NEVER));
        Self { number, stands_at, at, leaves }
    }

    /// Whether the time that the watch has set has come.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.at.load(Ordering::Acquire) <= now
    }

    /// Whether the watch must leave.
    pub(crate) fn is_leaving(&self, now: u64) -> bool {
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
    /// Replaces the time that a watch has set. Returns whether its entry is now the first of all.
    pub(crate) fn set(&mut self, watchdog: &Arc<W>, at: u64, now: u64) -> bool {
        let alarm = watchdog.alarm();
        self.by_time.remove(&alarm.key());
        alarm.at.store(at, Ordering::Release);
        self.see_off(watchdog, now);
        self.stand(watchdog, at.min(alarm.leaves.load(Ordering::Acquire)));
        self.by_time.first_key_value().is_some_and(|(first, _)| *first == alarm.key())
    }

    /// Removes a watch.
    pub(crate) fn clear(&mut self, alarm: &WatchAlarm) {
        self.by_time.remove(&alarm.key());
    }

    /// Returns the next time at which a target must be woken.
    pub(crate) fn first(&self) -> Option<u64> {
        self.by_time.first_key_value().map(|((at, _), _)| *at).filter(|at| *at != NEVER)
    }

    /// Returns the targets that are due. They stay registered, because they may not react.
    pub(crate) fn take_due(&mut self, now: u64) -> Vec<Arc<W>> {
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

    /// Sets the progress of a drain for present and future watches. Returns the present ones.
    pub(crate) fn leave(&mut self, leaving: Leaving, now: u64) -> Vec<Arc<W>> {
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

    /// Assigns a watch its time to leave, if it must leave and has none yet.
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
