use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::{LruEviction, MemoryBudget};
use crate::wire::{ObjectRenderer, ObjectRevision};
use base::MemoryAccount;

/// Objects whose derived JSON is kept, so that it is encoded once and not for every reader. If the limit is reached,
/// the oldest is dropped first.
///
/// The JSON itself is kept in the objects.
#[derive(Debug)]
pub(super) struct DerivedJsonCache {
    budget: Arc<MemoryBudget>,
    account: Arc<MemoryAccount>,
    queue: Mutex<DerivedJsonQueue>,
}

#[derive(Debug, Default)]
struct DerivedJsonQueue {
    /// Each object with the bytes charged for its derived JSON, and the time of the charge. They stay charged until
    /// they are evicted, even if the object is gone.
    objects: VecDeque<(Weak<ObjectRevision>, usize, Instant)>,
    bytes: usize,
}

/// The limit of derived JSON per feed in bytes: about five thousand pods.
const BYTES_MAX: usize = 64 << 20;

impl DerivedJsonCache {
    pub(super) fn new(budget: Arc<MemoryBudget>, account: Arc<MemoryAccount>) -> Self {
        Self { budget, account, queue: Mutex::default() }
    }

    /// Stores `body`, written by `renderer`, with its object. Returns the body to send, which is charged to the
    /// account.
    pub(super) fn keep(&self, object: &Arc<ObjectRevision>, body: Bytes, renderer: &ObjectRenderer) -> Bytes {
        let len = body.len();
        if len > BYTES_MAX {
            return body;
        }
        let body = self.account.charge_bytes(body);
        let mut queue = self.queue.lock();
        // Checked under the lock, so that no revoked body remains if the renderer is revoked before everything is
        // dropped.
        if renderer.is_revoked() || object.keep_json(Some(body.clone())) {
            return body;
        }
        queue.objects.push_back((Arc::downgrade(object), len, Instant::now()));
        queue.bytes += len;
        while queue.bytes > BYTES_MAX {
            queue.drop_oldest();
        }
        drop(queue);
        self.budget.trim_derived();
        body
    }

    /// Drops all derived JSON.
    pub(super) fn clear(&self) {
        let mut queue = self.queue.lock();
        while !queue.objects.is_empty() {
            queue.drop_oldest();
        }
    }

    /// Returns the number of charged bytes of derived JSON.
    pub(super) fn bytes(&self) -> usize {
        self.queue.lock().bytes
    }
}

impl LruEviction for DerivedJsonCache {
    fn oldest(&self) -> Option<Instant> {
        self.queue.lock().objects.front().map(|(_, _, since)| *since)
    }

    fn drop_oldest(&self) {
        self.queue.lock().drop_oldest();
    }
}

impl DerivedJsonQueue {
    fn drop_oldest(&mut self) {
        let Some((object, bytes, _)) = self.objects.pop_front() else { return };
        if let Some(object) = object.upgrade() {
            object.keep_json(None);
        }
        self.bytes -= bytes;
    }
}
