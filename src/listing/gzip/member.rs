use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use crc32fast::Hasher;

use crate::cache::DeflatedChunk;

/// One gzip member (RFC 1952), assembled from separately compressed pieces.
#[derive(Debug, Default)]
pub(super) struct GzipMember {
    /// The checksum of the text so far.
    crc: u32,
    len: u64,
    /// The stored bytes that are not written yet. A stored block begins with its length, and may span several pieces.
    stored: Vec<Bytes>,
    stored_len: usize,
    /// Whether stored bytes were put after the last piece that ends with an empty block.
    is_stored: bool,
    out: VecDeque<Bytes>,
}

/// The gzip header: no name, no time, the fastest algorithm, an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// An empty last block of DEFLATE, which ends a stream.
const LAST_BLOCK: [u8; 2] = [3, 0];
/// An empty stored block, with which zlib ends a flush too.
const EMPTY_BLOCK: [u8; 5] = [0, 0, 0, 0xff, 0xff];
/// The maximum length of joined output. Longer output is not copied.
const JOINED_BYTES_MAX: usize = 16 << 10;
/// The maximum length of a stored block.
const STORED_BYTES_MAX: usize = 0xffff;

impl GzipMember {
    pub(super) fn begin() -> Self {
        let out = VecDeque::from([Bytes::from_static(&HEADER)]);
        Self { out, ..Self::default() }
    }

    /// Appends a piece to the gzip member. If the piece is stored, `plain` returns its bytes.
    pub(super) fn put<P: IntoIterator<Item = Bytes>>(&mut self, piece: &DeflatedChunk, plain: impl FnOnce() -> P) {
        self.crc = combined_crc(self.crc, piece.crc, piece.shift);
        self.len += piece.len;
        match &piece.bytes {
            Some(bytes) => {
                self.flush();
                self.is_stored = false;
                self.out.push_back(bytes.clone());
            }
            None => self.store(plain()),
        }
    }

    /// Appends bytes that belong to this response alone.
    pub(super) fn put_plain(&mut self, bytes: Bytes) {
        let mut crc = Hasher::new_with_initial(self.crc);
        crc.update(&bytes);
        self.crc = crc.finalize();
        self.len += bytes.len() as u64;
        self.store([bytes]);
    }

    fn store(&mut self, plain: impl IntoIterator<Item = Bytes>) {
        self.is_stored = true;
        for mut bytes in plain {
            while self.stored_len + bytes.len() >= STORED_BYTES_MAX {
                self.stored.push(bytes.split_to(STORED_BYTES_MAX - self.stored_len));
                self.stored_len = STORED_BYTES_MAX;
                self.flush();
            }
            if !bytes.is_empty() {
                self.stored_len += bytes.len();
                self.stored.push(bytes);
            }
        }
    }

    /// Completes the output, so that a client can read everything that was put. Go's reader returns the text before an
    /// empty block, not the text of a stored one.
    pub(super) fn sync(&mut self) {
        self.flush();
        if std::mem::take(&mut self.is_stored) {
            self.out.push_back(Bytes::from_static(&EMPTY_BLOCK));
        }
    }

    /// Writes the pending stored block of DEFLATE.
    fn flush(&mut self) {
        let (stored, len) = (std::mem::take(&mut self.stored), std::mem::take(&mut self.stored_len));
        if stored.is_empty() {
            return;
        }
        let len = u16::try_from(len).expect("no more than a block");
        let mut head = BytesMut::with_capacity(5);
        head.extend_from_slice(&[0]);
        head.extend_from_slice(&len.to_le_bytes());
        head.extend_from_slice(&(!len).to_le_bytes());
        self.out.push_back(head.freeze());
        self.out.extend(stored);
    }

    /// Appends the checksum and, modulo 2^32, the length of everything (RFC 1952 §2.3.1).
    pub(super) fn end(&mut self) {
        self.flush();
        let mut out = LAST_BLOCK.to_vec();
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes()[..4]);
        self.out.push_back(out.into());
    }

    /// Returns the next bytes of the gzip member to send.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    /// Returns the next bytes to send, joined if they are short. An empty member then holds no buffer.
    pub(super) fn next_joined(&mut self) -> Option<Bytes> {
        let first = self.out.pop_front()?;
        let mut joined = BytesMut::new();
        while let Some(next) = self.out.front()
            && first.len().max(joined.len()) + next.len() <= JOINED_BYTES_MAX
        {
            if joined.is_empty() {
                joined.extend_from_slice(&first);
            }
            joined.extend_from_slice(next);
            self.out.pop_front();
        }
        if self.out.is_empty() {
            self.out = VecDeque::new();
        }
        Some(if joined.is_empty() { first } else { joined.freeze() })
    }

    /// Whether all output was returned. Then the member holds no buffer.
    pub(super) fn is_drained(&self) -> bool {
        self.out.is_empty() && self.stored.is_empty()
    }
}

/// The polynomial of CRC-32 (RFC 1952 §8), with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0 in that order of bits.
const ONE: u32 = 1 << 31;

/// Returns the checksum of two texts together. `shift` is that of the second, so that a shared piece is appended in
/// constant time.
fn combined_crc(first: u32, second: u32, shift: u32) -> u32 {
    product(first, shift) ^ second
}

/// Returns the factor that appends a text of `len` bytes: x^(8 · len).
pub(super) fn shift(mut len: u64) -> u32 {
    let (mut power, mut square) = (ONE, ONE >> 8);
    while len > 0 {
        if len & 1 == 1 {
            power = product(power, square);
        }
        square = product(square, square);
        len >>= 1;
    }
    power
}

/// Returns the product of two polynomials modulo [`POLYNOMIAL`].
fn product(left: u32, mut right: u32) -> u32 {
    let mut sum = 0;
    for power in (0..u32::BITS).rev() {
        sum ^= right & ((left >> power) & 1).wrapping_neg();
        right = (right >> 1) ^ ((right & 1).wrapping_neg() & POLYNOMIAL);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_pieces_is_that_of_the_whole_text() {
        let text: Vec<u8> = (0..70_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
        for at in [0, 1, 2, 255, 256, 4_000, 65_536, text.len()] {
            let (first, second) = text.split_at(at);
            let (first, crc) = (crc32fast::hash(first), crc32fast::hash(second));
            assert_eq!(combined_crc(first, crc, shift(second.len() as u64)), crc32fast::hash(&text), "{at}");
        }
    }
}
