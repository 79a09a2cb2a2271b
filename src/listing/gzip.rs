//! Compressed responses under the apiserver's conditions: GET and LIST above 128 KiB, and watches, for clients that
//! accept `gzip` (R-GZIP-1; `APIResponseCompression`, `WatchListCompression`).
//!
//! Each chunk of a list is compressed separately and cached by the feed. So a thousand clients cost one compression,
//! and a changed object costs the compression of its chunk. The chunks of one response form one gzip member (RFC 1952),
//! because some clients stop reading after the first.
//!
//! Attacks that guess a secret from the length of compressed text (CRIME, BREACH) need text of the attacker in the same
//! response. The apiserver compresses the same responses, and a caller who may write such objects can usually read them.
//! A watch reveals more than upstream's: upstream ends the member at each flush, and here an event may refer to the
//! preceding one. So the events of Secrets after the initial state refer to none, except to those that only this watch
//! receives at the same time.

mod deflate;
mod frames;
mod list;
mod member;
#[cfg(test)]
mod tests;

pub(crate) use self::frames::GzipFrames;
pub(crate) use self::list::GzipList;

use bytes::{Bytes, BytesMut};

use self::deflate::{deflated, piece, pieces};
use self::member::GzipMember;

/// Returns whether the value of `Accept-Encoding` names gzip as the apiserver parses it: the bare token, without a
/// quality.
pub(crate) fn is_accepted(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| token.trim() == "gzip")
}

/// Compresses a whole response. It yields to other tasks about every millisecond.
pub(crate) async fn compress(plain: Bytes) -> Bytes {
    let mut member = GzipMember::begin();
    for index in 0..pieces(plain.len()) {
        let range = piece(plain.len(), index);
        let made = deflated(&plain[..range.start], &plain[range.clone()], false);
        member.put(&made, || [plain.slice(range)]);
        tokio::task::yield_now().await;
    }
    member.end();
    let mut out = BytesMut::new();
    while let Some(slice) = member.next() {
        out.extend_from_slice(&slice);
    }
    out.freeze()
}
