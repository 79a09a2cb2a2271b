use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much may be under way at once. Beyond it a request is refused at once: nothing queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Watches served from the cache.
    pub watches_max: usize,
    /// Requests that are passed through and answered within seconds.
    pub forwards_max: usize,
    /// Passed-through streams and tunnels.
    pub streams_max: usize,
    /// Reads that are passed through because their feed is not ready.
    pub unready_forwards_max: usize,
    /// Requests of nobody in particular that are passed through.
    pub anonymous_forwards_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            watches_max: 100_000,
            forwards_max: 600,
            streams_max: 2_000,
            unready_forwards_max: 16,
            anonymous_forwards_max: 32,
        }
    }
}

/// Counts what is under way.
#[derive(Debug)]
pub(super) struct Admission {
    watches: Arc<Semaphore>,
    forwards: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    unready: Arc<Semaphore>,
    anonymous: Arc<Semaphore>,
}

/// A place; given back on drop.
pub(super) type Place = OwnedSemaphorePermit;

/// No place is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many {0} are under way")]
pub(super) struct Shed(pub(super) &'static str);

impl Admission {
    pub(super) fn new(limits: &Limits) -> Self {
        let room = |places: usize| Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        Self {
            watches: room(limits.watches_max),
            forwards: room(limits.forwards_max),
            streams: room(limits.streams_max),
            unready: room(limits.unready_forwards_max),
            anonymous: room(limits.anonymous_forwards_max),
        }
    }

    pub(super) fn watch(&self) -> Result<Place, Shed> {
        take(&self.watches, "watches")
    }

    pub(super) fn forward(&self) -> Result<Place, Shed> {
        take(&self.forwards, "requests")
    }

    pub(super) fn stream(&self) -> Result<Place, Shed> {
        take(&self.streams, "streams")
    }

    pub(super) fn unready(&self) -> Result<Place, Shed> {
        take(&self.unready, "reads of resources that are not ready")
    }

    pub(super) fn anonymous(&self) -> Result<Place, Shed> {
        take(&self.anonymous, "requests without a credential")
    }
}

fn take(places: &Arc<Semaphore>, what: &'static str) -> Result<Place, Shed> {
    places.clone().try_acquire_owned().map_err(|_| Shed(what))
}
