//! Reads a short watch until it is certain up to which version its changes are complete.

use super::stream::{Ended, WatchStream};
use crate::cache::{Change, REST_FOLLOWS_WITHIN};
use crate::upstream::Error;
use crate::wire::{ObjectReader, WatchItem};
use kubeapi::ResourceVersion;
use tokio::time::timeout;

/// The maximum size of the collected changes, in bytes. Above it, a relist is cheaper.
const BYTES_MAX: usize = 64 << 20;

/// The changes that a short watch has sent so far.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    pub(super) changes: Vec<Change>,
    bytes: usize,
    /// The version of the last change, once a bookmark at the same version has come. More changes of that transaction
    /// may follow (W17).
    bookmark: Option<ResourceVersion>,
}

impl CatchUp {
    /// Reads until all changes up to some version have come, and returns that version. Fails if the stream ends before,
    /// if upstream sends an error, or if the changes exceed [`BYTES_MAX`].
    pub(super) async fn read(
        &mut self,
        stream: &mut WatchStream,
        reader: &ObjectReader,
    ) -> Result<ResourceVersion, Ended> {
        loop {
            let item = match self.bookmark {
                None => stream.next(reader).await?,
                Some(at) => match timeout(REST_FOLLOWS_WITHIN, stream.next(reader)).await {
                    Ok(item) => item?,
                    Err(_) => return Ok(at),
                },
            };
            if let Some(until) = self.take(item)? {
                return Ok(until);
            }
        }
    }

    /// Processes the next item. Returns the version up to which the changes are complete, once that is certain.
    fn take(&mut self, item: WatchItem) -> Result<Option<ResourceVersion>, Error> {
        match item {
            WatchItem::Change { .. } if self.bytes > BYTES_MAX => Err(Error::TooLarge(BYTES_MAX)),
            WatchItem::Change { event_type, object, frame } => {
                let whole = self.bookmark.take().filter(|at| *at < object.rv);
                if whole.is_none() {
                    self.bytes += frame.len();
                    self.changes.push(Change { event_type, object, frame: Some(frame) });
                }
                Ok(whole)
            }
            WatchItem::Bookmark { rv, .. } => {
                let is_amid = self.changes.last().is_some_and(|last| last.object.rv == rv);
                self.bookmark = is_amid.then_some(rv);
                Ok((!is_amid).then_some(rv))
            }
            WatchItem::Error { event } => Err(Error::Refused(Box::new(super::session::status_of(&event)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::{Encoding, JsonLayout};

    fn item(reader: &ObjectReader, kind: &str, name: &str, version: u64) -> WatchItem {
        let metadata = format!(r#"{{"name":"{name}","namespace":"a","resourceVersion":"{version}"}}"#);
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata}}}"#);
        let frame = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        reader.watch_event(frame.into()).expect("it is well-formed")
    }

    /// Description, items, the version that is certain, the version if nothing follows, and the number of changes.
    type Case = (&'static str, &'static [(&'static str, u64)], Option<u64>, Option<u64>, usize);

    #[test]
    fn catch_up_stops_at_the_last_complete_version() {
        const CHANGE: &str = "DELETED";
        const MARK: &str = "BOOKMARK";
        let cases: [Case; 9] = [
            ("nothing yet", &[], None, None, 0),
            ("a bookmark alone", &[(MARK, 20)], Some(20), None, 0),
            ("changes before a bookmark", &[(CHANGE, 19), (CHANGE, 20), (MARK, 21)], Some(21), None, 2),
            ("changes alone", &[(CHANGE, 19), (CHANGE, 20)], None, None, 2),
            ("a bookmark at one change", &[(CHANGE, 20), (MARK, 20)], None, Some(20), 1),
            ("a bookmark amid several", &[(CHANGE, 20), (CHANGE, 20), (MARK, 20), (CHANGE, 20)], None, None, 3),
            ("a second bookmark", &[(CHANGE, 20), (MARK, 20), (CHANGE, 20), (MARK, 20)], None, Some(20), 2),
            ("a later bookmark", &[(CHANGE, 20), (MARK, 20), (CHANGE, 20), (MARK, 22)], Some(22), None, 2),
            ("a later change, which is left out", &[(CHANGE, 20), (MARK, 20), (CHANGE, 21)], Some(20), None, 1),
        ];
        let reader = ObjectReader::new(Encoding::Json, JsonLayout::BuiltIn, Arc::default());
        for (what, items, certain, if_silent, changes) in cases {
            let mut told = CatchUp::default();
            let mut found = None;
            for (n, (kind, version)) in items.iter().enumerate() {
                assert_eq!(found, None, "{what}: it goes on");
                found = told.take(item(&reader, kind, &format!("p{n}"), *version)).expect("no error");
            }
            assert_eq!(found, certain.map(ResourceVersion), "{what}");
            assert_eq!(told.bookmark, if_silent.map(ResourceVersion), "{what}");
            assert_eq!(told.changes.len(), changes, "{what}");
        }
    }
}
