//! Joins the events of one transaction. Only the resource `events` needs it.
//!
//! An expired etcd lease deletes its objects in one transaction. A watch receives the deletions one by one, at one
//! version, and none is marked as the last one (R-VERSION-2). A client that lists or resumes at that version must have
//! all of them. Only `events` have leases. The apiserver writes every other object in its own transaction, so every
//! other version is complete when its event arrives.
//!
//! The apiserver has no watch cache for `events` and forwards etcd's responses (R-EVENT-4). etcd sends a transaction in
//! one response, so after the first deletion the rest is in flight. Therefore a deletion is held until a later item
//! arrives, or until nothing follows for twice [`QUIET`]. Then all changes of its version are applied together.
//!
//! If the stream ends before that, the held changes are dropped. The feed has not reached their version, so the next
//! stream repeats them.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::stream::{StreamEnd, WatchStream};
use crate::cache::Change;
use crate::wire::{Object, ObjectReader, WatchItem};
use kubeapi::{EventType, Gvr};

/// Reads the items of a stream, and holds the changes of a transaction until it is complete.
#[derive(Debug)]
pub(super) struct Transactions {
    /// Whether several events may share a version.
    joins: bool,
    held: Vec<Change>,
    /// The item that completed the transaction.
    ahead: Option<WatchItem>,
    /// The number of timers that have fired since the last change.
    fired: u32,
    /// The time at which the next timer fires.
    timer: Instant,
}

/// An item that a watch stream has delivered.
#[derive(Debug)]
pub(super) enum Received {
    Item(WatchItem),
    /// All changes of one resourceVersion.
    Transaction(Vec<Change>),
}

/// The duration of each of the two timers after the last change. If the process was not scheduled, the first one fires
/// before the stream was read. The second one leaves time to read it.
const QUIET: Duration = Duration::from_millis(100);
const TIMERS: u32 = 2;
/// The maximum number of held changes. The apiserver attaches at most 1,000 objects to a lease.
const HELD_MAX: usize = 10_000;

impl Transactions {
    pub(super) fn of(gvr: &Gvr) -> Self {
        Self { joins: !gvr.has_watch_cache(), held: Vec::new(), ahead: None, fired: 0, timer: Instant::now() }
    }

    /// Returns the next item of the stream, or the changes of a transaction. Cancel-safe.
    pub(super) async fn next(
        &mut self,
        stream: &mut WatchStream,
        reader: &ObjectReader,
    ) -> Result<Received, StreamEnd> {
        loop {
            let item = match self.ahead.take() {
                Some(item) => item,
                None if self.held.is_empty() => stream.next(reader).await?,
                None => tokio::select! {
                    biased;
                    item = stream.next(reader) => item?,
                    () = self.silence() => return Ok(self.complete()),
                },
            };
            if let Some(received) = self.take(item) {
                return Ok(received);
            }
        }
    }

    /// Processes an item of the stream. Returns `None` if the item is held for its transaction.
    fn take(&mut self, item: WatchItem) -> Option<Received> {
        match item {
            WatchItem::Change { event_type, object, frame } if self.holds(event_type, &object) => {
                self.held.push(Change { event_type, object, frame: Some(frame) });
                (self.fired, self.timer) = (0, Instant::now() + QUIET);
                None
            }
            WatchItem::Error { .. } => {
                self.held.clear();
                Some(Received::Item(item))
            }
            item if self.held.is_empty() => Some(Received::Item(item)),
            item => {
                self.ahead = Some(item);
                Some(self.complete())
            }
        }
    }

    fn holds(&self, event_type: EventType, object: &Object) -> bool {
        let belongs = || match self.held.first() {
            Some(first) => first.object.rv == object.rv && self.held.len() < HELD_MAX,
            None => event_type == EventType::Deleted,
        };
        self.joins && belongs()
    }

    fn complete(&mut self) -> Received {
        Received::Transaction(std::mem::take(&mut self.held))
    }

    async fn silence(&mut self) {
        while self.fired < TIMERS {
            sleep_until(self.timer).await;
            self.fired += 1;
            self.timer = Instant::now() + QUIET;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::{Encoding, JsonLayout};

    /// Describes what the reader of `resource` returns for these items: `+` joins the changes of a transaction.
    fn received(resource: &str, items: &[(&str, &str, u64)]) -> Vec<String> {
        let reader = ObjectReader::new(Encoding::Json, JsonLayout::BuiltIn, Arc::default());
        let mut transactions = Transactions::of(&Gvr::new("", "v1", resource));
        let mut seen = Vec::new();
        for (kind, name, version) in items {
            let metadata = format!(r#"{{"name":"{name}","namespace":"a","resourceVersion":"{version}"}}"#);
            let object = format!(r#"{{"kind":"Event","apiVersion":"v1","code":500,"metadata":{metadata}}}"#);
            let frame = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
            let mut next = Some(reader.watch_event(frame.into()).expect("it is well-formed"));
            while let Some(item) = next {
                seen.extend(transactions.take(item).map(|received| match received {
                    Received::Item(WatchItem::Change { object, .. }) => format!("{} {}", object.key, object.rv),
                    Received::Item(WatchItem::Bookmark { rv, .. }) => format!("bookmark {rv}"),
                    Received::Item(WatchItem::Error { .. }) => "error".to_owned(),
                    Received::Transaction(changes) => {
                        let changes =
                            changes.iter().map(|change| format!("{} {}", change.object.key, change.object.rv));
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
        assert_eq!(received("events", &ITEMS), ["a/p 11", "a/q 12 + a/r 12", "a/s 13", "a/p 14"]);
        assert_eq!(received("pods", &ITEMS), ["a/p 11", "a/q 12", "a/r 12", "a/s 13", "a/p 14"]);
    }

    #[test]
    fn bookmark_completes_a_transaction_and_error_drops_it() {
        const GONE: [(&str, &str, u64); 2] = [("DELETED", "q", 12), ("DELETED", "r", 12)];
        assert_eq!(received("events", &GONE), Vec::<String>::new());
        let bookmark = [GONE[0], GONE[1], ("BOOKMARK", "", 12)];
        assert_eq!(received("events", &bookmark), ["a/q 12 + a/r 12", "bookmark 12"]);
        assert_eq!(received("events", &[GONE[0], GONE[1], ("ERROR", "", 0)]), ["error"]);
    }

    #[test]
    fn every_change_at_the_version_of_a_deletion_is_joined() {
        let items = [("DELETED", "q", 12), ("ADDED", "r", 12), ("ADDED", "s", 13)];
        assert_eq!(received("events", &items), ["a/q 12 + a/r 12", "a/s 13"]);
        let added_first = [("ADDED", "q", 12), ("DELETED", "r", 12), ("ADDED", "s", 13)];
        assert_eq!(received("events", &added_first), ["a/q 12", "a/r 12", "a/s 13"]);
    }
}
