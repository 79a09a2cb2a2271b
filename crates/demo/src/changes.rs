use std::sync::Arc;

use bytes::Bytes;

use super::store::{ObjectStore, StoreEvent};
use tokio::sync::watch;

/// A subscription to the changes of one resource, read from the store itself. No fault affects it.
#[derive(Debug)]
pub struct StoreSubscription {
    store: Arc<ObjectStore>,
    kind: usize,
    position: u64,
    changed: watch::Receiver<u64>,
}

/// A stored change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChange {
    pub revision: u64,
    /// The key of the object: `namespace/name`, or `name`.
    pub key: String,
    /// The object after the change, as a GET returns it; `None` for a deletion.
    pub object: Option<Bytes>,
    /// Whether the change created the object.
    pub is_new: bool,
}

impl StoreSubscription {
    pub(crate) fn of(store: &Arc<ObjectStore>, kind: usize) -> Self {
        let (_, _, position) = store.now(kind);
        Self { store: store.clone(), kind, position, changed: store.subscribe(kind) }
    }

    /// Returns the changes since the last call, in order.
    ///
    /// # Panics
    /// If the store has forgotten changes that were not taken: a mistake of the caller.
    pub fn take(&mut self) -> Vec<StoredChange> {
        self.changed.mark_unchanged();
        let pulled = self.store.pull(self.kind, self.position, usize::MAX).expect("nothing was forgotten");
        self.position = pulled.next;
        pulled.events.iter().filter_map(|event| StoredChange::of(event)).collect()
    }

    /// Completes when the store has changed since the last [`take`](Self::take). Never completes once the store is
    /// gone.
    pub async fn ready(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.changed.mark_changed();
    }
}

impl StoredChange {
    fn of(event: &StoreEvent) -> Option<Self> {
        let subject = event.current.as_ref().or(event.previous.as_ref())?;
        Some(Self {
            revision: event.rv,
            key: subject.meta.key(),
            object: event.current.as_ref().map(|object| object.body.clone()),
            is_new: event.previous.is_none(),
        })
    }
}
