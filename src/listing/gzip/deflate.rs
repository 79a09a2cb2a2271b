//! Compression of one piece of a text, if that makes it smaller.
//!
//! A compressed piece is shared by all clients, so it may cost more than the apiserver spends on each response (Go's
//! fastest level). Measured on lists of 1,500 pods and 1,500 config maps, each piece with the previous one as
//! dictionary; a Go client inflates at about the same speed at every level:
//!
//! | | pods, protobuf | pods, JSON | config maps, JSON | compressing | inflating in Go, pods / config maps |
//! |---|---|---|---|---|---|
//! | apiserver | 167 KB | 260 KB | 698 KB | 2.1–11 ns/B | 0.9 / 5.1 ns/B |
//! | level 1 | 230 KB | 308 KB | 916 KB | 2.2–6 ns/B | 0.7 / 5.3 ns/B |
//! | level 2 | 139 KB | 153 KB | 664 KB | 1.6–9 ns/B | 0.6 / 5.0 ns/B |
//! | level 4 | 124 KB | 133 KB | 641 KB | 2.0–11 ns/B | 0.5 / 5.0 ns/B |
//! | level 6 | 108 KB | 121 KB | 632 KB | 2.5–12 ns/B | 0.5 / 4.9 ns/B |
//! | level 8 | 102 KB | 113 KB | 626 KB | 3.8–16 ns/B | 0.5 / 4.8 ns/B |
//! | level 9 | 106 KB | 117 KB | 646 KB | 4.5–20 ns/B | 0.6 / 6.8 ns/B |
//!
//! Text without repetitions behaves differently. For 300 Secrets of 200 KB of random bytes:
//!
//! | | protobuf | compressing | inflating in Go | JSON (base64) | compressing | inflating in Go |
//! |---|---|---|---|---|---|---|
//! | apiserver | + 0.008 % | 3.9 ns/B | 0.2 ns/B | 75.24 % | 6.4 ns/B | 7 ns/B |
//! | level 1 | + 5.5 % | 13 ns/B | 12 ns/B | 99.8 % | 13 ns/B | 7 ns/B |
//! | level 6 | + 0.03 % | 26 ns/B | 0.1 ns/B | 75.33 % | 25 ns/B | 7 ns/B |
//!
//! So a piece without repetitions is stored, or compressed with Huffman codes alone. Huffman codes take a quarter of
//! the time of level 6 (4.2 instead of 16 ns/B for base64 on another machine). Their output is 0.07 % longer than the
//! apiserver's.

use std::cell::RefCell;

use bytes::Bytes;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Strategy};

use super::member::shift;
use crate::cache::DeflatedChunk;

/// The compression level with the best trade-off in the table above.
const LEVEL: i32 = 6;
/// The divisor of a piece's length that gives the smallest useful gain. With less gain a piece is stored, because
/// clients read it a hundred times as fast. Go's own compressor requires a sixteenth.
const GAIN: usize = 18;
/// The divisor of a piece's length. Less repeated text than that does not justify a search for matches, which takes
/// several times as long as Huffman codes alone. The estimate stops there.
const MATCHED: usize = 256;
/// The maximum distance of a match (RFC 1951 §2).
pub(super) const WINDOW_BYTES: usize = 32 << 10;
/// The maximum length of a piece in bytes: a millisecond of work, or two for text that compresses badly.
pub(super) const PIECE_BYTES_MAX: usize = 160 << 10;

thread_local! {
    /// The compressor for text with matches. Each one has half a megabyte of buffers.
    static DEFLATE: RefCell<Deflate> = RefCell::new(compressor(Strategy::Default));
    /// The table of [`matched`].
    static SEEN: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Compresses a piece, which may refer to the text `before` it.
pub(super) fn deflated(before: &[u8], piece: &[u8], is_last: bool) -> DeflatedChunk {
    let before = &before[before.len().saturating_sub(WINDOW_BYTES)..];
    let max = piece.len() - piece.len() / GAIN;
    let matched = matched(before, piece);
    let bytes = if matched < piece.len() / MATCHED {
        compressed(&mut compressor(Strategy::HuffmanOnly), &[], piece, max)
    } else {
        DEFLATE.with_borrow_mut(|deflate| compressed(deflate, before, piece, max))
    };
    let (crc, len) = (crc32fast::hash(piece), piece.len() as u64);
    DeflatedChunk { bytes, crc, shift: shift(len), len, is_last }
}

/// Returns the number of pieces for a text of `len` bytes. Pieces have about equal lengths.
pub(super) fn pieces(len: usize) -> usize {
    len.div_ceil(PIECE_BYTES_MAX).max(1)
}

/// Returns the byte range of a piece in a text.
pub(super) fn piece(len: usize, index: usize) -> std::ops::Range<usize> {
    let pieces = pieces(len);
    len * index / pieces..len * (index + 1) / pieces
}

/// Returns DEFLATE blocks that end on a byte boundary and are not the last of their stream, if they are shorter than
/// `max`.
fn compressed(deflate: &mut Deflate, before: &[u8], piece: &[u8], max: usize) -> Option<Bytes> {
    deflate.reset();
    if !before.is_empty() {
        deflate.set_dictionary(before).ok()?;
    }
    let mut out = vec![0; max];
    deflate.compress(piece, &mut out, DeflateFlush::SyncFlush).ok()?;
    // Unused room shows that the output is complete.
    let len = usize::try_from(deflate.total_out()).ok().filter(|len| *len < max)?;
    Some(Bytes::copy_from_slice(&out[..len]))
}

fn compressor(strategy: Strategy) -> Deflate {
    // Negative window bits mean no header (zlib's manual, `deflateInit2`).
    // The highest memory level makes the longest blocks, so the fewest tables of codes.
    let config = DeflateConfig { level: LEVEL, window_bits: -15, mem_level: 9, strategy, ..DeflateConfig::default() };
    Deflate::new_with_config(config)
}

/// Estimates how much of a piece repeats earlier text, up to the amount that is sufficient. Where nothing repeats, its
/// steps become longer.
fn matched(before: &[u8], piece: &[u8]) -> usize {
    let text = [before, piece].concat();
    let mut seen = SEEN.take();
    seen.clear();
    seen.resize(1 << PLACE_BITS, u32::MAX);
    for at in (0..before.len().saturating_sub(MATCH_BYTES)).step_by(2) {
        seen[place(&text, at)] = u32::try_from(at).unwrap_or(u32::MAX);
    }
    let (mut at, mut misses, mut matched) = (before.len(), 0, 0);
    while at + MATCH_BYTES <= text.len() {
        let place = &mut seen[place(&text, at)];
        let earlier = std::mem::replace(place, u32::try_from(at).unwrap_or(u32::MAX)) as usize;
        let is_near = earlier < at && at - earlier <= WINDOW_BYTES;
        if !is_near || text[earlier..earlier + MATCH_BYTES] != text[at..at + MATCH_BYTES] {
            misses += 1;
            at += 1 + misses / MISSES_PER_SKIP;
            continue;
        }
        let len = text[at..].iter().zip(&text[earlier..]).take_while(|(a, b)| a == b).count();
        (at, misses, matched) = (at + len, 0, matched + len);
        if matched >= piece.len() / MATCHED {
            break;
        }
    }
    SEEN.set(seen);
    matched
}

/// The minimum length of a repetition that counts; shorter ones occur by chance.
const MATCH_BYTES: usize = 5;
const PLACE_BITS: u32 = 14;
/// The number of misses after which the steps become longer.
const MISSES_PER_SKIP: usize = 32;

fn place(text: &[u8], at: usize) -> usize {
    let bytes = u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
    (bytes.wrapping_mul(0x9e37_79b1) >> (u32::BITS - PLACE_BITS)) as usize
}
