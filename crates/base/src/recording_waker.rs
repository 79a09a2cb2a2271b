use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

/// A waker that also records that it was called. A task that waits for many events checks only those whose flag is set.
#[derive(Debug)]
pub struct RecordingWaker {
    shared: Arc<RecordingWakerState>,
    waker: Waker,
    /// A copy of the waker in `shared`. It is usually unchanged, and then nothing is written.
    task: Waker,
}

#[derive(Debug)]
struct RecordingWakerState {
    task: Mutex<Waker>,
    is_woken: AtomicBool,
}

impl RecordingWaker {
    /// Creates a flag that is set, so that the first check happens.
    pub fn new_woken() -> Self {
        let shared = RecordingWakerState { task: Mutex::new(Waker::noop().clone()), is_woken: AtomicBool::new(true) };
        let shared = Arc::new(shared);
        Self { waker: shared.clone().into(), shared, task: Waker::noop().clone() }
    }

    /// Whether the flag was set since the last check; clears it. After this, the flag wakes the task of `cx`.
    pub fn take_woken(&mut self, cx: &Context<'_>) -> bool {
        if !self.task.will_wake(cx.waker()) {
            self.task.clone_from(cx.waker());
            self.shared.task.lock().clone_from(cx.waker());
        }
        // The flag is usually not set, and a read does not invalidate the cache line for other cores.
        self.shared.is_woken.load(Ordering::Acquire) && self.shared.is_woken.swap(false, Ordering::AcqRel)
    }

    /// Returns the waker that sets the flag.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

impl Wake for RecordingWakerState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Set before the task is woken, because the task may check at once.
        self.is_woken.swap(true, Ordering::AcqRel);
        self.task.lock().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wake_flag_wakes_the_task_that_polled_last() {
        let tasks: [Arc<Woken>; 2] = Default::default();
        let wakers = tasks.clone().map(Waker::from);
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        let mut flag = RecordingWaker::new_woken();
        assert!(flag.take_woken(&Context::from_waker(&wakers[0])));
        assert!(!flag.take_woken(&Context::from_waker(&wakers[0])));
        flag.waker().wake_by_ref();
        flag.waker().wake_by_ref();
        assert_eq!(woken(), [2, 0]);
        assert!(flag.take_woken(&Context::from_waker(&wakers[1])));
        assert!(!flag.take_woken(&Context::from_waker(&wakers[1])));
        flag.waker().wake_by_ref();
        assert_eq!(woken(), [2, 1], "it moved to another task");
    }
}
