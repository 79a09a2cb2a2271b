use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::Notify;

use super::timeline::Timeline;

/// Waiters for the newest version to become complete. If there are none, the writer's task can detect completion late.
/// On a node whose clients only watch, an early check would wake it twice for each event.
#[derive(Debug, Default)]
pub(super) struct VersionWaiters {
    /// Number of waiters for the feed's progress.
    waiting: AtomicUsize,
    /// Whether to wake the readers of lanes on completion.
    wakes_lanes: AtomicBool,
    /// Notifies the writer's task of a new waiter.
    awaited: Notify,
}

/// A registered waiter; dropping it removes the registration.
#[derive(Debug)]
pub(super) struct VersionWait<'a>(&'a VersionWaiters);

impl VersionWaiters {
    /// Registers a waiter. The writer's task either sees it when it applies an event, or is notified now.
    pub(super) fn wait(&self, timeline: &RwLock<Timeline>) -> VersionWait<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if !timeline.read().is_whole() {
            self.tell();
        }
        VersionWait(self)
    }

    /// Notifies the writer's task of a waiter for an incomplete version.
    pub(super) fn tell(&self) {
        self.awaited.notify_one();
    }

    /// Requests that the readers of lanes are woken on completion. The caller must lock the timeline after this call:
    /// the writer completes a version under that lock and checks this flag afterwards.
    pub(super) fn wake_lanes(&self) {
        self.wakes_lanes.store(true, Ordering::Release);
    }

    /// Returns whether to wake the readers of lanes on completion, and clears the request.
    pub(super) fn take_wake(&self) -> bool {
        self.wakes_lanes.swap(false, Ordering::AcqRel)
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.wakes_lanes.load(Ordering::Acquire)
    }

    /// Completes when a waiter has been registered.
    pub(super) async fn awaited(&self) {
        self.awaited.notified().await;
    }
}

impl Drop for VersionWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
