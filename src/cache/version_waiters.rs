use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::Notify;

use super::timeline::Timeline;

/// Who waits for the newest version to be whole. While nobody does, the writer's task need not find that out soon: on a
/// node whose clients only watch it would be woken twice for each event.
#[derive(Debug, Default)]
pub(super) struct VersionWaiters {
    /// How many wait for the feed's progress.
    waiting: AtomicUsize,
    /// Whether the readers of lanes are to be woken when it is whole.
    wakes_lanes: AtomicBool,
    /// Tells the writer's task that somebody begins to wait.
    awaited: Notify,
}

/// Somebody waits, until this is dropped.
#[derive(Debug)]
pub(super) struct VersionWait<'a>(&'a VersionWaiters);

impl VersionWaiters {
    /// Begins to wait. The writer's task either sees that when it takes in an event, or is told now.
    pub(super) fn wait(&self, timeline: &RwLock<Timeline>) -> VersionWait<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if !timeline.read().is_whole() {
            self.tell();
        }
        VersionWait(self)
    }

    /// Tells the writer's task that somebody waits for a version that is not whole.
    pub(super) fn tell(&self) {
        self.awaited.notify_one();
    }

    /// Asks for the readers of lanes to be woken when it is whole. The lock of the timeline is to be taken behind this:
    /// the writer closes a version under it and looks here afterwards.
    pub(super) fn wake_lanes(&self) {
        self.wakes_lanes.store(true, Ordering::Release);
    }

    /// Whether readers of lanes are to be woken now that it is whole.
    pub(super) fn take_wake(&self) -> bool {
        self.wakes_lanes.swap(false, Ordering::AcqRel)
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.wakes_lanes.load(Ordering::Acquire)
    }

    /// Completes when somebody has begun to wait.
    pub(super) async fn awaited(&self) {
        self.awaited.notified().await;
    }
}

impl Drop for VersionWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
