//! Watch frames between proxies as the difference to a version that both have.
//!
//! ```text
//! mark (1 byte)   length of the rest (varint)   resourceVersion of the base, or 0 (varint)   digest (8 bytes)   pieces
//! ```
//!
//! A mark has its highest bit set, which no plain frame begins with, so a stream may contain both. The base is an
//! object in the same encoding, wrapped in a frame of the same event type, and is never sent. Each [`PIECE_BYTES`] of
//! the frame are one DEFLATE stream (RFC 1951) whose dictionary is the same part of the base and its neighbourhood.
//! Therefore objects above DEFLATE's window profit too.
//!
//! The digest is computed from the plain frame, so no error of either side goes unnoticed.
//!
//! A lease of a node is 35 to 50 bytes. The version names the base in 5 bytes, the object's key would need 30.

use std::cell::RefCell;

use bytes::Bytes;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Status as StreamState};

use super::error::DeltaError;
use kubeapi::protobuf::{put_varint, varint};
use kubeapi::{EventType, ResourceVersion};

/// A parsed difference. Its content is checked by [`frame`](Self::frame).
#[derive(Debug)]
pub struct DeltaFrame<'a> {
    pub event_type: EventType,
    /// The version of the base, if there is one.
    pub base: Option<ResourceVersion>,
    digest: [u8; DIGEST_BYTES],
    pieces: &'a [u8],
}

const MARKS: [(u8, EventType); 3] = [(0x81, EventType::Added), (0x82, EventType::Modified), (0x83, EventType::Deleted)];
const DIGEST_BYTES: usize = 8;
/// The length of a piece. With [`MARGIN_BYTES`] on both sides it fills DEFLATE's window of 32 KiB.
const PIECE_BYTES: usize = 16 << 10;
/// How far an edit may move the rest of an object that is larger than a piece.
const MARGIN_BYTES: usize = 8 << 10;
/// The compression level. With a dictionary that is almost the text, higher levels gain nothing.
const LEVEL: i32 = 6;

thread_local! {
    static DEFLATE: RefCell<Deflate> = RefCell::new(Deflate::new_with_config(DeflateConfig {
        level: LEVEL, window_bits: -15, mem_level: 9, ..DeflateConfig::default()
    }));
    static INFLATE: RefCell<Inflate> = RefCell::new(Inflate::new(false, 15));
}

/// Whether a frame is a difference.
pub fn is_delta(frame: &[u8]) -> bool {
    frame.first().is_some_and(|mark| *mark >= 0x80)
}

/// Returns a frame of an event type as the difference to `base`, an object's version and the frame that contains it.
///
/// # Panics
/// If the event type is not `Added`, `Modified` or `Deleted`.
pub fn delta(event_type: EventType, base: Option<(ResourceVersion, &[u8])>, frame: &[u8]) -> Bytes {
    let (rv, base) = base.map_or((0, [].as_slice()), |(rv, base)| (rv.0, base));
    let mut rest = Vec::new();
    put_varint(&mut rest, rv);
    rest.extend(digest(frame));
    DEFLATE.with_borrow_mut(|deflate| {
        for (at, piece) in frame.chunks(PIECE_BYTES).enumerate() {
            deflate.reset();
            deflate.set_dictionary(dictionary(base, at)).expect("a new stream");
            // A stored block of at most 64 KiB adds 5 bytes, and there may be several.
            let (len, room) = (rest.len(), piece.len() + piece.len() / 64 + 64);
            rest.resize(len + room, 0);
            let status = deflate.compress(piece, &mut rest[len..], DeflateFlush::Finish);
            assert_eq!(status.ok(), Some(StreamState::StreamEnd), "there is room for incompressible text");
            rest.truncate(len + usize::try_from(deflate.total_out()).unwrap_or(room));
        }
    });
    let (mark, _) = MARKS.iter().find(|(_, of)| *of == event_type).expect("the event type of a change");
    let mut out = Vec::with_capacity(1 + 5 + rest.len());
    out.push(*mark);
    put_varint(&mut out, rest.len() as u64);
    out.extend_from_slice(&rest);
    out.into()
}

/// Returns the length of the difference at the start of a stream; `None` if that needs more bytes.
pub(super) fn delta_len(stream: &[u8]) -> Result<Option<usize>, DeltaError> {
    let rest = &stream[1..];
    match varint(rest) {
        Ok((len, width)) => Ok(Some(usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1 + width))),
        Err(_) if rest.len() < 10 => Ok(None),
        Err(_) => Err(DeltaError::Malformed),
    }
}

impl<'a> DeltaFrame<'a> {
    pub fn parse(delta: &'a [u8]) -> Result<Self, DeltaError> {
        let bad = |_| DeltaError::Malformed;
        let (mark, rest) = delta.split_first().ok_or(DeltaError::Malformed)?;
        let (_, event_type) = MARKS.iter().find(|(of, _)| of == mark).ok_or(DeltaError::Malformed)?;
        let (len, width) = varint(rest).map_err(bad)?;
        let rest = &rest[width..];
        if len != rest.len() as u64 {
            return Err(DeltaError::Malformed);
        }
        let (rv, width) = varint(rest).map_err(bad)?;
        let (digest, pieces) = rest[width..].split_first_chunk().ok_or(DeltaError::Malformed)?;
        let base = (rv > 0).then_some(ResourceVersion(rv));
        Ok(Self { event_type: *event_type, base, digest: *digest, pieces })
    }

    /// Returns the plain frame. `base` is the frame that contains the base, and is empty if there is none. Memory
    /// follows the pieces one by one, up to `bytes_max`.
    pub fn frame(&self, base: &[u8], bytes_max: usize) -> Result<Bytes, DeltaError> {
        let (mut pieces, mut out) = (self.pieces, Vec::new());
        // One byte more than a piece has, so that a longer one is noticed.
        let mut piece = vec![0; PIECE_BYTES + 1];
        while !pieces.is_empty() {
            // Only the last piece may be short. So a frame of many pieces that are empty costs nothing.
            if out.len() % PIECE_BYTES != 0 {
                return Err(DeltaError::Malformed);
            }
            let (read, len) = inflate(dictionary(base, out.len() / PIECE_BYTES), pieces, &mut piece)?;
            if len == 0 || len > PIECE_BYTES || out.len() + len > bytes_max {
                return Err(DeltaError::Malformed);
            }
            out.extend_from_slice(&piece[..len]);
            pieces = &pieces[read..];
        }
        if digest(&out) == self.digest { Ok(Bytes::from(out.into_boxed_slice())) } else { Err(DeltaError::WrongDigest) }
    }
}

/// Inflates one DEFLATE stream at the start of `pieces`. Returns the lengths that were read and written.
fn inflate(dictionary: &[u8], pieces: &[u8], out: &mut [u8]) -> Result<(usize, usize), DeltaError> {
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(false);
        inflate.set_dictionary(dictionary).map_err(|_| DeltaError::Malformed)?;
        match inflate.decompress(pieces, out, InflateFlush::Finish) {
            Ok(StreamState::StreamEnd) => {
                let lens = (usize::try_from(inflate.total_in()), usize::try_from(inflate.total_out()));
                Ok((lens.0.map_err(|_| DeltaError::Malformed)?, lens.1.map_err(|_| DeltaError::Malformed)?))
            }
            _ => Err(DeltaError::Malformed),
        }
    })
}

/// Returns the part of a base that a piece may refer to.
fn dictionary(base: &[u8], piece: usize) -> &[u8] {
    let start = piece.saturating_mul(PIECE_BYTES);
    let end = start.saturating_add(PIECE_BYTES + MARGIN_BYTES).min(base.len());
    &base[start.saturating_sub(MARGIN_BYTES).min(end)..end]
}

fn digest(frame: &[u8]) -> [u8; DIGEST_BYTES] {
    let digest = ring::digest::digest(&ring::digest::SHA256, frame);
    *digest.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}
