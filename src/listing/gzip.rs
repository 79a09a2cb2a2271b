//! Compressed answers, as the apiserver compresses: GET and LIST above 128 KiB, for clients that name `gzip`
//! (R-GZIP-1; `APIResponseCompression`).
//!
//! Each chunk of a list is compressed on its own and kept by the feed. So a thousand clients cost one compression, and
//! a changed object costs that of its chunk. The chunks of one answer are one gzip member (RFC 1952), for some clients
//! stop reading behind the first.

mod deflate;
mod list;
mod literals;
mod member;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use self::list::GzipList;

use bytes::{Bytes, BytesMut};

use self::deflate::{deflated, piece, pieces};
use self::member::Member;
use self::text::Text;

/// Longer answers are compressed; the bound is the apiserver's own.
pub(crate) const PLAIN_BYTES_MAX: usize = 128 << 10;

/// Whether the value of `Accept-Encoding` names gzip as the apiserver reads it: by that word alone, without a quality.
pub(crate) fn is_asked_for(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| token.trim() == "gzip")
}

/// Compresses a whole answer. It yields to other tasks about every millisecond.
pub(crate) async fn whole(plain: Bytes) -> Bytes {
    let mut member = Member::begin();
    for index in 0..pieces(plain.len()) {
        let range = piece(plain.len(), index);
        let made = deflated(&plain[..range.start], &plain[range.clone()], false);
        member.put(&made, || Text::from_iter([plain.slice(range)]));
        tokio::task::yield_now().await;
    }
    member.end();
    let mut out = BytesMut::new();
    while let Some(slice) = member.next() {
        out.extend_from_slice(&slice);
    }
    out.freeze()
}
