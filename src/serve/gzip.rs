//! Compressed answers, as the apiserver compresses: GET and LIST above 128 KiB, for clients that name `gzip`
//! (semantics.md §5.8; `APIResponseCompression`).
//!
//! Each run of a list is compressed on its own and kept by the feed, so that a thousand clients cost one compression,
//! and a changed object that of its run. The runs of one answer are one gzip member
//! (RFC 1952): some clients stop reading behind the first.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress};

use super::list::ListBody;
use crate::cache::Deflated;
use crate::wire::Refused;

/// The apiserver's own bound: more is compressed.
pub(super) const PLAIN_BYTES_MAX: usize = 128 << 10;

/// No name, no time, the fastest algorithm, an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// An empty last block.
const LAST_BLOCK: [u8; 2] = [3, 0];
/// A block that holds a comma as it is.
const COMMA_BLOCK: [u8; 6] = [0, 1, 0, 0xfe, 0xff, b','];

/// Whether the value of `Accept-Encoding` names gzip as the apiserver reads it: by that word alone, without a quality.
pub(super) fn is_asked_for(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|token| token.trim() == "gzip")
}

/// A whole answer, compressed. Others are let in about every millisecond.
pub(super) async fn whole(plain: &[u8]) -> Bytes {
    let mut member = Member::default();
    let mut out = HEADER.to_vec();
    for part in plain.chunks(PLAIN_BYTES_MAX) {
        member.put(&compressed(part), &mut out);
        tokio::task::yield_now().await;
    }
    member.end(&mut out);
    out.into()
}

/// A LIST on its way out, compressed.
#[derive(Debug)]
pub(super) struct GzipList {
    list: ListBody,
    member: Member,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Stretch(usize),
    Over,
}

impl GzipList {
    pub(super) fn new(list: ListBody) -> Self {
        Self { list, member: Member::default(), stage: Stage::Head }
    }

    /// The next chunk; `None` after the last.
    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refused>>> {
        let mut out = Vec::new();
        match self.stage {
            Stage::Over => return Poll::Ready(None),
            Stage::Head => {
                out.extend_from_slice(&HEADER);
                self.member.put(&compressed(self.list.head()), &mut out);
                self.stage = Stage::Stretch(0);
            }
            Stage::Stretch(index) if index == self.list.stretches() => {
                self.member.put(&compressed(self.list.tail()), &mut out);
                self.member.end(&mut out);
                self.stage = Stage::Over;
            }
            Stage::Stretch(index) => {
                let deflated = match ready!(self.list.poll_deflated(index, cx, compressed)) {
                    Ok(deflated) => deflated,
                    Err(refused) => return Poll::Ready(Some(Err(refused))),
                };
                self.stage = Stage::Stretch(index + 1);
                if !self.list.separates(index) {
                    // What others have, too.
                    self.member.sum(&deflated);
                    return Poll::Ready(Some(Ok(deflated.bytes)));
                }
                self.member.put_comma(&mut out);
                self.member.put(&deflated, &mut out);
            }
        }
        Poll::Ready(Some(Ok(out.into())))
    }
}

/// One gzip member, put together from parts that were compressed apart.
#[derive(Debug, Default)]
struct Member {
    plain: Hasher,
    len: u64,
}

impl Member {
    fn put(&mut self, part: &Deflated, out: &mut Vec<u8>) {
        out.extend_from_slice(&part.bytes);
        self.sum(part);
    }

    fn sum(&mut self, part: &Deflated) {
        self.plain.combine(&Hasher::new_with_initial_len(part.crc, part.len));
        self.len += part.len;
    }

    fn put_comma(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&COMMA_BLOCK);
        self.plain.update(b",");
        self.len += 1;
    }

    /// The sum and, modulo 2^32, the length of it all (RFC 1952 §2.3.1).
    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&LAST_BLOCK);
        out.extend_from_slice(&self.plain.clone().finalize().to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes()[..4]);
    }
}

/// Compressed on its own and flushed to a byte boundary, so that others can come before and behind.
fn compressed(plain: &[u8]) -> Deflated {
    let mut deflate = Compress::new(Compression::fast(), false);
    let mut deflated = Vec::with_capacity(plain.len() / 4 + SLACK);
    let mut at = 0;
    loop {
        let before = deflate.total_in();
        let done = deflate.compress_vec(&plain[at..], &mut deflated, FlushCompress::Full);
        at += usize::try_from(deflate.total_in() - before).unwrap_or(usize::MAX);
        // Room that was not used says that there was nothing more to write.
        if done.is_err() || (at == plain.len() && deflated.len() < deflated.capacity()) {
            break;
        }
        deflated.reserve(deflated.capacity());
    }
    Deflated { bytes: deflated.into(), crc: crc32fast::hash(plain), len: plain.len() as u64 }
}

/// What an empty input takes, and more.
const SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn gunzipped(compressed: &[u8]) -> Vec<u8> {
        let (mut plain, mut decoder) = (Vec::new(), flate2::bufread::GzDecoder::new(compressed));
        decoder.read_to_end(&mut plain).expect("one whole member, and its sum is right");
        assert!(decoder.into_inner().is_empty(), "nothing behind the member");
        plain
    }

    #[tokio::test]
    async fn a_whole_answer_is_one_member() {
        let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(300_000).collect();
        for plain in [b"".as_slice(), b"a", &vec![b'x'; 200_000], &random, &random[..SLACK], &random[..SLACK * 2]] {
            assert_eq!(gunzipped(&whole(plain).await), plain, "{} bytes", plain.len());
        }
    }

    #[test]
    fn segments_are_joined_to_one_member() {
        let mut member = Member::default();
        let (mut out, long) = (HEADER.to_vec(), vec![b'y'; 70_000]);
        for (index, part) in [b"{\"items\":[".as_slice(), b"{1}", &long, b"]}\n"].iter().enumerate() {
            if index == 2 {
                member.put_comma(&mut out);
            }
            member.put(&compressed(part), &mut out);
        }
        member.end(&mut out);
        let expected = [b"{\"items\":[{1},".as_slice(), &long, b"]}\n"].concat();
        assert_eq!(gunzipped(&out), expected);
    }

    #[test]
    fn gzip_is_asked_for_by_its_name_alone() {
        for (value, asked) in [
            ("gzip", true),
            ("deflate, gzip", true),
            ("gzip,br", true),
            (" gzip ", true),
            ("gzip;q=1.0", false),
            ("*", false),
            ("x-gzip", false),
            ("GZIP", false),
            ("", false),
        ] {
            assert_eq!(is_asked_for(value), asked, "{value:?}");
        }
    }
}
