//! Reads the differences that a proxy sends instead of events.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::feed_client::FeedTaskContext;
use crate::cache::ObjectChange;
use crate::feeds::{Feed, FeedTrafficCounts};
use crate::wire::{DeltaError, DeltaFrame};
use base::MemoryCharge;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The bases of one stream's differences: the feed's objects by version, as they are before the stream's next event.
///
/// The feed may be ahead of the stream, if a proof brought changes from another one. Then the base is the previous
/// object of a recent event.
#[derive(Debug)]
pub(super) struct DeltaBases {
    feed: Arc<Feed>,
    keys: HashMap<ResourceVersion, ObjectKey>,
    charge: MemoryCharge,
    /// The version of the base of the last event, if it was a difference.
    last: Option<ResourceVersion>,
}

/// The maximum size of a watch frame in bytes: many times etcd's limit for an object (R-UPSTREAM-7).
pub(super) const FRAME_BYTES_MAX: usize = 16 << 20;
/// The memory of an entry of the table, which has a byte more for each, and of which an eighth stays empty.
const KEY_BYTES: usize = (size_of::<(ResourceVersion, ObjectKey)>() + 1) * 8 / 7;
/// The number of objects that are indexed before the task yields.
const INDEXED_MAX: usize = 4096;

impl DeltaBases {
    pub(super) fn new(upstream: &FeedTaskContext) -> Self {
        let feed = upstream.feed.clone();
        let charge = feed.reader.account().charge(0);
        Self { feed, keys: HashMap::new(), charge, last: None }
    }

    /// Indexes the objects of the feed, which has every event before the stream's next one.
    pub(super) async fn index(&mut self) {
        self.keys.clear();
        let state = self.feed.reader.snapshot();
        for (n, object) in state.iter().enumerate() {
            self.keys.insert(object.rv, object.key.clone());
            if n % INDEXED_MAX == INDEXED_MAX - 1 {
                tokio::task::yield_now().await;
            }
        }
        self.charge.set(self.keys.capacity() * KEY_BYTES);
    }

    /// Returns the event's frame.
    pub(super) fn frame(&mut self, delta: &[u8]) -> Result<Bytes, DeltaError> {
        let frame = self.inflated(delta)?;
        let counts = &self.feed.counts;
        FeedTrafficCounts::add(&counts.delta_bytes, delta.len() as u64);
        FeedTrafficCounts::add(&counts.delta_plain_bytes, frame.len() as u64);
        Ok(frame)
    }

    fn inflated(&mut self, delta: &[u8]) -> Result<Bytes, DeltaError> {
        let delta = DeltaFrame::parse(delta)?;
        let Some(rv) = delta.base else { return delta.frame(&[], FRAME_BYTES_MAX) };
        let reader = &self.feed.reader;
        let base = self.keys.get(&rv).and_then(|key| reader.recent_version(key, rv)).ok_or(DeltaError::UnknownBase)?;
        self.last = Some(rv);
        delta.frame(&reader.envelope().frame(delta.event_type, base.body()), FRAME_BYTES_MAX)
    }

    /// Records an event of the stream before the feed applies it.
    pub(super) fn record(&mut self, change: &ObjectChange) {
        let ObjectChange { event_type, object, .. } = change;
        let before = self.last.take().or_else(|| self.feed.reader.version_of(&object.key));
        before.map(|before| self.keys.remove(&before));
        if *event_type != EventType::Deleted {
            self.keys.insert(object.rv, object.key.clone());
            self.charge.set(self.keys.capacity() * KEY_BYTES);
        }
    }
}
