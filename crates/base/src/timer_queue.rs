use std::collections::BTreeMap;
use std::fmt;
use std::mem::replace;
use std::ptr::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::sleep_until_opt;

/// The timers of many objects, in one map that one task waits for. A timer or a task for each object would cost a
/// wake-up of another thread, and usually for nothing. Clones share the map.
///
/// Times are in microseconds since the map was created.
#[derive(Clone)]
pub struct TimerQueue(Arc<TimerQueueState>);

struct TimerQueueState {
    started: Instant,
    waiting: Mutex<PendingTimers>,
    /// Notified when the timer task must wake earlier than it intends to.
    earlier: Notify,
}

struct PendingTimers {
    /// The timers by time, and by the address of the [`Timer`], which makes the key unique.
    all: BTreeMap<(u64, usize), Weak<dyn TimerTarget>>,
    /// The time at which the task wakes. Removals do not change it. So if timers are added and removed one after the
    /// other, the task wakes once per timeout.
    wakes: u64,
}

/// An object that acts at certain times.
pub trait TimerTarget: Send + Sync {
    fn timer(&self) -> &Timer;

    /// Returns the first time after `now` at which the object must act, or [`TimerQueue::NEVER`].
    ///
    /// The map is locked during the call.
    fn next(&self, now: u64) -> u64;

    /// Acts on all times from `at` to `now`. `at` is the time that [`next`](Self::next) has returned; it is later than
    /// `now` if [`TimerQueue::fire_all`] fires the timer early.
    fn fire(&self, at: u64, now: u64);
}

/// The timer of one object. Dropping it removes the object from the map.
#[derive(Debug)]
pub struct Timer {
    timers: TimerQueue,
    /// The time of the object's entry in the map. It is changed only while the map is locked.
    at: AtomicU64,
}

impl TimerQueue {
    /// A time that is never reached.
    pub const NEVER: u64 = u64::MAX;

    /// Returns a timer that is not scheduled.
    pub fn timer(&self) -> Timer {
        Timer { timers: self.clone(), at: AtomicU64::new(Self::NEVER) }
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_micros()).unwrap_or(Self::NEVER - 1)
    }

    /// Returns the time after `duration` from now, on the clock of the timers.
    pub fn after(&self, duration: Duration) -> u64 {
        self.now().saturating_add(Self::micros(duration))
    }

    /// Converts a time, rounding up, so that no timer fires early.
    pub fn at(&self, at: Instant) -> u64 {
        Self::micros(at.saturating_duration_since(self.0.started))
    }

    /// Converts a duration to microseconds, rounding up.
    pub fn micros(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(Self::NEVER - 1)
    }

    /// Fires the timers of all objects when they are due; never completes. Only one task may run it.
    pub async fn run(self) {
        loop {
            self.fire(self.now());
            let wakes = self.set_wakes();
            tokio::select! {
                () = sleep_until_opt(wakes) => {}
                () = self.0.earlier.notified() => {}
            }
        }
    }

    /// Fires all timers now. For a change that affects all objects.
    pub fn fire_all(&self) {
        self.fire(Self::NEVER);
    }

    /// Fires all timers up to the time `last`.
    fn fire(&self, last: u64) {
        let now = self.now();
        for (at, timed) in self.take(last) {
            timed.fire(at, now);
            self.schedule(&*timed, Arc::downgrade(&timed), now);
        }
    }

    /// Removes and returns the objects with a timer up to the time `last`.
    fn take(&self, last: u64) -> Vec<(u64, Arc<dyn TimerTarget>)> {
        let mut waiting = self.0.waiting.lock();
        let later = waiting.all.split_off(&(last.saturating_add(1), 0));
        let due = replace(&mut waiting.all, later).into_iter().filter_map(|((at, _), timed)| {
            let timed = timed.upgrade()?;
            timed.timer().at.store(Self::NEVER, Ordering::Relaxed);
            Some((at, timed))
        });
        // An object that is dropped locks the map, so the caller drops them.
        due.collect()
    }

    fn set_wakes(&self) -> Option<Instant> {
        let mut waiting = self.0.waiting.lock();
        waiting.wakes = waiting.all.first_key_value().map_or(Self::NEVER, |((at, _), _)| *at);
        (waiting.wakes != Self::NEVER).then(|| self.0.started + Duration::from_micros(waiting.wakes))
    }

    fn schedule(&self, timed: &dyn TimerTarget, weak: Weak<dyn TimerTarget>, now: u64) {
        let timer = timed.timer();
        let mut waiting = self.0.waiting.lock();
        waiting.all.remove(&timer.key());
        // A time that is due and has not fired yet is kept. Computed under the lock, so that the last of several
        // concurrent calls knows of all changes.
        let at = timed.next(now.min(timer.at.load(Ordering::Relaxed).saturating_sub(1)));
        timer.at.store(at, Ordering::Relaxed);
        if at != Self::NEVER {
            waiting.all.insert(timer.key(), weak);
        }
        let is_earlier = at < waiting.wakes;
        if is_earlier {
            waiting.wakes = at;
        }
        drop(waiting);
        if is_earlier {
            self.0.earlier.notify_one();
        }
    }
}

impl Timer {
    /// Schedules an object again after its times have changed.
    pub fn schedule<T: TimerTarget + 'static>(timed: &Arc<T>) {
        let weak = Arc::downgrade(timed);
        let timers = timed.timer().timers();
        timers.schedule(&**timed, weak, timers.now());
    }

    pub fn timers(&self) -> &TimerQueue {
        &self.timers
    }

    fn key(&self) -> (u64, usize) {
        (self.at.load(Ordering::Relaxed), from_ref(self).addr())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if *self.at.get_mut() != TimerQueue::NEVER {
            self.timers.0.waiting.lock().all.remove(&self.key());
        }
    }
}

impl Default for TimerQueue {
    fn default() -> Self {
        let waiting = Mutex::new(PendingTimers { all: BTreeMap::new(), wakes: Self::NEVER });
        Self(Arc::new(TimerQueueState { started: Instant::now(), waiting, earlier: Notify::new() }))
    }
}

impl fmt::Debug for TimerQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerQueue").field("len", &self.0.waiting.lock().all.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Acts at each of these times, and records when it fired.
    struct Acts {
        timer: Timer,
        times: Mutex<Vec<u64>>,
        fired: Mutex<Vec<(u64, u64)>>,
    }

    impl TimerTarget for Acts {
        fn timer(&self) -> &Timer {
            &self.timer
        }

        fn next(&self, now: u64) -> u64 {
            self.times.lock().iter().copied().filter(|time| *time > now).min().unwrap_or(TimerQueue::NEVER)
        }

        fn fire(&self, at: u64, now: u64) {
            self.fired.lock().push((at, now));
        }
    }

    impl Acts {
        fn at(timers: &TimerQueue, seconds: &[u64]) -> Arc<Self> {
            let acts = Arc::new(Self { timer: timers.timer(), times: Mutex::default(), fired: Mutex::default() });
            acts.reschedule(seconds);
            acts
        }

        fn reschedule(self: &Arc<Self>, seconds: &[u64]) {
            *self.times.lock() = seconds.iter().map(|seconds| seconds * 1_000_000).collect();
            Timer::schedule(self);
        }

        /// Returns the seconds at which it has fired.
        fn fired(&self) -> Vec<u64> {
            self.fired.lock().iter().map(|(_, now)| now / 1_000_000).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_object_fires_at_its_times() {
        let timers = TimerQueue::default();
        tokio::spawn(timers.clone().run());
        let acts = [&[3][..], &[1, 4], &[2], &[2, 3], &[]].map(|seconds| Acts::at(&timers, seconds));
        sleep(10 * SECOND).await;
        assert_eq!(acts.each_ref().map(|acts| acts.fired()), [vec![3], vec![1, 4], vec![2], vec![2, 3], vec![]]);
    }

    #[tokio::test(start_paused = true)]
    async fn changed_times_take_effect_while_the_task_waits() {
        let timers = TimerQueue::default();
        tokio::spawn(timers.clone().run());
        let [earlier, later, none] = [60, 10, 10].map(|second| Acts::at(&timers, &[second]));
        sleep(SECOND).await;
        earlier.reschedule(&[5]);
        later.reschedule(&[20]);
        none.reschedule(&[]);
        sleep(100 * SECOND).await;
        assert_eq!([earlier, later, none].each_ref().map(|acts| acts.fired()), [vec![5], vec![20], vec![]]);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_due_survives_rescheduling() {
        let timers = TimerQueue::default();
        let acts = Acts::at(&timers, &[1]);
        sleep(2 * SECOND).await;
        acts.reschedule(&[1, 9]);
        timers.fire(timers.now());
        let at = acts.fired.lock()[0].0;
        assert_eq!((at, acts.fired()), (1_000_000, vec![2]));
    }

    #[tokio::test(start_paused = true)]
    async fn all_timers_can_be_fired_early_and_keep_their_times() {
        let timers = TimerQueue::default();
        let acts = [1, 2].map(|second| Acts::at(&timers, &[second]));
        timers.fire_all();
        assert_eq!(acts.each_ref().map(|acts| acts.fired()), [[0], [0]]);
        tokio::spawn(timers.clone().run());
        sleep(10 * SECOND).await;
        assert_eq!(acts.each_ref().map(|acts| acts.fired()), [[0, 1], [0, 2]]);
    }

    #[tokio::test(start_paused = true)]
    async fn timers_that_come_and_go_hardly_ever_wake_the_task() {
        let (timers, polls) = (TimerQueue::default(), Arc::new(AtomicU64::new(0)));
        tokio::spawn({
            let (timers, polls) = (timers.clone(), polls.clone());
            async move {
                let mut run = pin!(timers.run());
                poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    run.as_mut().poll(cx)
                })
                .await;
            }
        });
        tokio::task::yield_now().await;
        for second in 0..100 {
            let acts = Acts::at(&timers, &[second + 60]);
            sleep(SECOND).await;
            drop(acts);
        }
        // Once at first, once for the first timer, and once when its time would have been over.
        assert_eq!(polls.load(Ordering::Relaxed), 3);
        sleep(1_000 * SECOND).await;
        assert!(polls.load(Ordering::Relaxed) <= 4, "without timers the task sleeps");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_object_is_removed() {
        let timers = TimerQueue::default();
        let [gone, kept] = [1, 1].map(|second| Acts::at(&timers, &[second]));
        drop(gone);
        assert_eq!(format!("{timers:?}"), "TimerQueue { len: 1, .. }");
        tokio::spawn(timers.clone().run());
        sleep(2 * SECOND).await;
        assert_eq!(kept.fired(), [1]);
        assert_eq!(format!("{timers:?}"), "TimerQueue { len: 0, .. }");
    }
}
