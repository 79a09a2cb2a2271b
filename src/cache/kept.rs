use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::wire::{Object, Renderer};

/// Derived JSON of objects, kept with them so that it is made once and not for every reader: bounded, the oldest go
/// first.
///
/// The bodies are in the objects; here is who has one.
#[derive(Debug, Default)]
pub(super) struct Kept {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    objects: VecDeque<Weak<Object>>,
    /// Charged for each: an object that is gone is still charged until its turn comes.
    sizes: VecDeque<usize>,
    bytes: usize,
}

/// What one feed may keep: the JSON of some five thousand pods.
const BYTES_MAX: usize = 64 << 20;

impl Kept {
    /// Keeps `body`, which `renderer` made, with its object.
    pub(super) fn keep(&self, object: &Arc<Object>, body: Bytes, renderer: &Renderer) {
        let len = body.len();
        if len > BYTES_MAX {
            return;
        }
        let mut queue = self.queue.lock();
        // Under the lock: what is revoked before everything is let go leaves nothing behind.
        if renderer.is_revoked() || object.keep_json(Some(body)) {
            return;
        }
        queue.objects.push_back(Arc::downgrade(object));
        queue.sizes.push_back(len);
        queue.bytes += len;
        while queue.bytes > BYTES_MAX {
            queue.drop_oldest();
        }
    }

    /// Lets everything go.
    pub(super) fn clear(&self) {
        let mut queue = self.queue.lock();
        while !queue.objects.is_empty() {
            queue.drop_oldest();
        }
    }

    /// Bytes that are charged.
    pub(super) fn bytes(&self) -> usize {
        self.queue.lock().bytes
    }
}

impl Queue {
    fn drop_oldest(&mut self) {
        if let Some(object) = self.objects.pop_front().and_then(|object| object.upgrade()) {
            object.keep_json(None);
        }
        self.bytes -= self.sizes.pop_front().unwrap_or_default();
    }
}
