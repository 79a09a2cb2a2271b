//! Joins the events of one transaction. Only the resource `events` needs it.
//!
//! An expired etcd lease deletes its objects in one transaction. A watch receives the deletions one by one, at one
//! version, and none is marked as the last one (R-VERSION-2). A client that lists or resumes at that version must have
//! all of them. Only `events` have leases. The apiserver writes every other object in its own transaction, so every
//! other version is complete when its event arrives.
//!
//! The apiserver has no watch cache for `events` and forwards etcd's responses (R-EVENT-4). etcd sends a transaction in
//! one response, so after the first deletion the rest is in flight. Therefore a deletion is buffered until a later item
//! arrives, or until nothing follows for twice [`QUIET`]. Then all changes of its version are applied together.
//!
//! If the stream ends before that, the buffered changes are dropped. The feed has not reached their version, so the
//! next stream repeats them.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::stream::{StreamItem, UpstreamWatchStream, WatchStreamEnd};
use crate::cache::ObjectChange;
use crate::wire::ObjectReader;
use kubeapi::{EventType, Gvr};

/// Reads the items of a stream, and buffers the changes of a transaction until it is complete.
#[derive(Debug)]
pub(super) struct TransactionBuffer {
    buffered: Option<(ObjectChange, Vec<ObjectChange>)>,
    /// The item that completed the transaction.
    ahead: Option<StreamItem>,
    /// The number of timers that have fired since the last change.
    fired: u32,
    /// The time at which the next timer fires.
    timer: Instant,
}

/// The duration of each of the two timers after the last change. If the process was not scheduled, the first one fires
/// before the stream was read. The second one leaves time to read it.
const QUIET: Duration = Duration::from_millis(100);
const TIMERS: u32 = 2;
/// The maximum number of buffered changes. The apiserver attaches at most 1,000 objects to a lease.
const BUFFERED_MAX: usize = 10_000;

impl TransactionBuffer {
    /// Creates the buffer for a resource; `None` if each change has its own version.
    pub(super) fn for_resource(gvr: &Gvr) -> Option<Self> {
        (!gvr.has_watch_cache()).then(|| Self { buffered: None, ahead: None, fired: 0, timer: Instant::now() })
    }

    /// Returns the next item of the stream. Cancel-safe.
    pub(super) async fn next(
        &mut self,
        stream: &mut UpstreamWatchStream,
        reader: &ObjectReader,
    ) -> Result<StreamItem, WatchStreamEnd> {
        loop {
            let item = match self.ahead.take() {
                Some(item) => item,
                None if self.buffered.is_none() => stream.next(reader).await?,
                None => tokio::select! {
                    biased;
                    item = stream.next(reader) => item?,
                    Some(joined) = self.flush_if_idle() => return Ok(joined),
                },
            };
            if let Some(item) = self.take(item) {
                return Ok(item);
            }
        }
    }

    /// Processes an item of the stream. Returns `None` if the item is buffered for its transaction.
    fn take(&mut self, item: StreamItem) -> Option<StreamItem> {
        match item {
            StreamItem::Change { change, .. } if self.belongs(&change) => {
                match &mut self.buffered {
                    Some((_, more)) => more.push(change),
                    None => self.buffered = Some((change, Vec::new())),
                }
                (self.fired, self.timer) = (0, Instant::now() + QUIET);
                None
            }
            item => match self.complete() {
                None => Some(item),
                joined => {
                    self.ahead = Some(item);
                    joined
                }
            },
        }
    }

    fn belongs(&self, change: &ObjectChange) -> bool {
        match &self.buffered {
            Some((first, more)) => first.object.rv == change.object.rv && more.len() + 1 < BUFFERED_MAX,
            None => change.event_type == EventType::Deleted,
        }
    }

    fn complete(&mut self) -> Option<StreamItem> {
        self.buffered.take().map(|(change, more)| StreamItem::Change { change, more })
    }

    /// Returns the buffered changes once nothing has followed them for long enough.
    async fn flush_if_idle(&mut self) -> Option<StreamItem> {
        while self.fired < TIMERS {
            sleep_until(self.timer).await;
            self.fired += 1;
            self.timer = Instant::now() + QUIET;
        }
        self.complete()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::reflect::stream::decoded;
    use crate::wire::{FeedEncoding, JsonLayout};

    /// Describes what the reader of `events` returns for these items: `+` joins the changes of a transaction.
    fn received(items: &[(&str, &str, u64)]) -> Vec<String> {
        let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default());
        let mut transactions =
            TransactionBuffer::for_resource(&Gvr::new("", "v1", "events")).expect("they have leases");
        let mut seen = Vec::new();
        for (kind, name, version) in items {
            let metadata = format!(r#"{{"name":"{name}","namespace":"a","resourceVersion":"{version}"}}"#);
            let object = format!(r#"{{"kind":"Event","apiVersion":"v1","metadata":{metadata}}}"#);
            let frame = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
            let mut next = Some(decoded(&reader, frame.into()).expect("it is well-formed"));
            while let Some(item) = next {
                seen.extend(transactions.take(item).map(|received| match received {
                    StreamItem::Bookmark { rv, .. } => format!("bookmark {rv}"),
                    StreamItem::Change { change, more } => {
                        let changes = std::iter::once(change).chain(more);
                        let changes = changes.map(|change| format!("{} {}", change.object.key, change.object.rv));
                        changes.collect::<Vec<_>>().join(" + ")
                    }
                }));
                next = transactions.ahead.take();
            }
        }
        seen
    }

    #[test]
    fn deletions_of_events_at_one_version_are_joined_until_a_later_item_arrives() {
        const ITEMS: [(&str, &str, u64); 5] = [
            ("ADDED", "p", 11),
            ("DELETED", "q", 12),
            ("DELETED", "r", 12),
            ("DELETED", "s", 13),
            ("MODIFIED", "p", 14),
        ];
        assert_eq!(received(&ITEMS), ["a/p 11", "a/q 12 + a/r 12", "a/s 13", "a/p 14"]);
        assert!(TransactionBuffer::for_resource(&Gvr::new("", "v1", "pods")).is_none());
    }

    #[test]
    fn bookmark_completes_a_transaction() {
        const GONE: [(&str, &str, u64); 2] = [("DELETED", "q", 12), ("DELETED", "r", 12)];
        assert_eq!(received(&GONE), Vec::<String>::new());
        let bookmark = [GONE[0], GONE[1], ("BOOKMARK", "", 12)];
        assert_eq!(received(&bookmark), ["a/q 12 + a/r 12", "bookmark 12"]);
    }

    #[test]
    fn every_change_at_the_version_of_a_deletion_is_joined() {
        let items = [("DELETED", "q", 12), ("ADDED", "r", 12), ("ADDED", "s", 13)];
        assert_eq!(received(&items), ["a/q 12 + a/r 12", "a/s 13"]);
        let added_first = [("ADDED", "q", 12), ("DELETED", "r", 12), ("ADDED", "s", 13)];
        assert_eq!(received(&added_first), ["a/q 12", "a/r 12", "a/s 13"]);
    }
}
