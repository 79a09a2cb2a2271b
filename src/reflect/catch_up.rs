//! Reads a short watch until a bookmark shows up to which version its changes are complete.

use super::stream::{StreamEnd, WatchStream};
use crate::cache::Change;
use crate::upstream::Error;
use crate::wire::{ObjectReader, WatchItem};
use kubeapi::ResourceVersion;

/// The maximum size of the collected changes, in bytes. Above it, a relist is cheaper.
const BYTES_MAX: usize = 64 << 20;

/// Reads until a bookmark. Returns the changes and the version of the bookmark. Fails if the stream ends before, if
/// upstream sends an error, or if the changes exceed [`BYTES_MAX`].
pub(super) async fn catch_up(
    stream: &mut WatchStream,
    reader: &ObjectReader,
) -> Result<(Vec<Change>, ResourceVersion), StreamEnd> {
    let (mut changes, mut bytes) = (Vec::new(), 0);
    while bytes <= BYTES_MAX {
        match stream.next(reader).await? {
            WatchItem::Change { event_type, object, frame } => {
                bytes += frame.len();
                changes.push(Change { event_type, object, frame: Some(frame) });
            }
            WatchItem::Bookmark { rv, .. } => return Ok((changes, rv)),
            WatchItem::Error { status } => return Err(Error::Refused(status).into()),
        }
    }
    Err(Error::TooLarge(BYTES_MAX).into())
}
