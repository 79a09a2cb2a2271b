use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::until;

/// Values ordered by deadline, for one task that waits for all of them. A timer or a task for each would cost a wake-up
/// of another thread, and usually for nothing.
pub struct Deadlines<T: ?Sized> {
    waiting: Mutex<Waiting<T>>,
    /// Notified when the task must wake earlier than it intends to.
    earlier: Notify,
}

struct Waiting<T: ?Sized> {
    all: BTreeMap<Deadline, Weak<T>>,
    /// The number of the next deadline.
    next: u64,
    /// When the task wakes; `None` if it waits for nothing. Removals do not change it. So if values are added and
    /// removed one after the other, the task wakes once per timeout.
    wakes: Option<Instant>,
}

/// A time, with a number that makes it unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    at: Instant,
    number: u64,
}

impl<T: ?Sized> Deadlines<T> {
    /// Adds a value. If it is dropped before its deadline, it is skipped.
    pub fn put(&self, at: Instant, what: Weak<T>) -> Deadline {
        let mut waiting = self.waiting.lock();
        let deadline = Deadline { at, number: waiting.next };
        waiting.next += 1;
        waiting.all.insert(deadline, what);
        let is_earlier = waiting.wakes.is_none_or(|wakes| at < wakes);
        if is_earlier {
            waiting.wakes = Some(at);
        }
        drop(waiting);
        if is_earlier {
            self.earlier.notify_one();
        }
        deadline
    }

    /// Removes a value before its deadline; does nothing after it.
    pub fn remove(&self, deadline: Deadline) {
        // Dropped after the lock is released.
        let _what = self.waiting.lock().all.remove(&deadline);
    }

    /// Waits for the next deadline, and removes and returns all values that are due. For one task.
    pub async fn due(&self) -> Vec<Arc<T>> {
        loop {
            let due = self.take_due(Instant::now());
            if !due.is_empty() {
                return due;
            }
            let wakes = self.set_wakes();
            tokio::select! {
                () = until(wakes) => {}
                () = self.earlier.notified() => {}
            }
        }
    }

    fn take_due(&self, now: Instant) -> Vec<Arc<T>> {
        let due = {
            let mut waiting = self.waiting.lock();
            let later = waiting.all.split_off(&Deadline { at: now, number: u64::MAX });
            std::mem::replace(&mut waiting.all, later)
        };
        due.into_values().filter_map(|what| what.upgrade()).collect()
    }

    fn set_wakes(&self) -> Option<Instant> {
        let mut waiting = self.waiting.lock();
        waiting.wakes = waiting.all.first_key_value().map(|(first, _)| first.at);
        waiting.wakes
    }
}

impl<T: ?Sized> Default for Deadlines<T> {
    fn default() -> Self {
        let waiting = Mutex::new(Waiting { all: BTreeMap::new(), next: 0, wakes: None });
        Self { waiting, earlier: Notify::new() }
    }
}

impl<T: ?Sized> fmt::Debug for Deadlines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines").field("len", &self.waiting.lock().all.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn after(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_expire_in_order_and_equal_ones_together() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        let things = [3, 1, 2, 2].map(|seconds| (Arc::new(seconds), after(seconds)));
        let put = things.each_ref().map(|(thing, at)| deadlines.put(*at, Arc::downgrade(thing)));
        assert!(put[2] < put[3] && put[3] < put[0]);
        for (second, due) in [(1, vec![1]), (2, vec![2, 2]), (3, vec![3])] {
            assert_eq!(deadlines.due().await.iter().map(|thing| **thing).collect::<Vec<_>>(), due);
            assert_eq!(began.elapsed().as_secs(), second);
        }
        assert!(deadlines.due().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_wakes_when_an_earlier_deadline_is_added() {
        let (deadlines, began) = (Arc::new(Deadlines::default()), Instant::now());
        let (late, early) = (Arc::new("late"), Arc::new("early"));
        deadlines.put(after(60), Arc::downgrade(&late));
        let waits = tokio::spawn({
            let deadlines = deadlines.clone();
            async move { deadlines.due().await }
        });
        tokio::task::yield_now().await;
        deadlines.put(after(5), Arc::downgrade(&early));
        assert_eq!(waits.await.expect("no panic"), [early]);
        assert_eq!(began.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn adding_and_removing_deadlines_rarely_wakes_the_waiter() {
        let (deadlines, polls) = (Arc::new(Deadlines::default()), Arc::new(AtomicU64::new(0)));
        tokio::spawn({
            let (deadlines, polls) = (deadlines.clone(), polls.clone());
            async move {
                let mut due = pin!(deadlines.due());
                poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    due.as_mut().poll(cx)
                })
                .await
            }
        });
        tokio::task::yield_now().await;
        for _ in 0..100 {
            let thing = Arc::new(());
            let deadline = deadlines.put(after(60), Arc::downgrade(&thing));
            tokio::time::sleep(Duration::from_secs(1)).await;
            deadlines.remove(deadline);
        }
        // Once at first, once for the first deadline, and once when its time would have been over.
        assert_eq!(polls.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn removed_or_dropped_entries_never_expire() {
        let deadlines = Deadlines::default();
        let [taken, gone, there] = ["taken", "gone", "there"].map(Arc::new);
        let [taken_out, _, _] = [&taken, &gone, &there].map(|thing| deadlines.put(after(1), Arc::downgrade(thing)));
        deadlines.remove(taken_out);
        drop(gone);
        assert_eq!(deadlines.due().await, [there]);
        deadlines.remove(taken_out);
        assert_eq!(format!("{deadlines:?}"), "Deadlines { len: 0, .. }");
    }
}
