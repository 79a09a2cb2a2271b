use bytes::{Buf as _, Bytes};
use zlib_rs::{Inflate, InflateFlush, Status as StreamState};

use crate::wire::WireError;

/// Inflates a body that a proxy has compressed as one gzip member (RFC 1952), piece by piece. So a reader's limits on the
/// inflated body hold before it costs memory.
pub(super) struct GzipBody {
    inflate: Inflate,
    /// The room that each piece is inflated into.
    piece: Box<[u8]>,
    /// The received bytes that are not inflated yet.
    input: Bytes,
    /// Whether the plain rest of the body follows.
    pub(super) is_prefix: bool,
    /// Whether the whole member was read.
    is_whole: bool,
}

/// The maximum length of a piece in bytes.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;
/// The size of the window (RFC 1951 §2), plus zlib's number for a gzip header.
const WINDOW_BITS: u8 = 15 + 16;

impl GzipBody {
    pub(super) fn new(is_prefix: bool) -> Self {
        let (inflate, piece) = (Inflate::new(true, WINDOW_BITS), vec![0; PIECE_BYTES_MAX].into());
        Self { inflate, piece, input: Bytes::new(), is_prefix, is_whole: false }
    }

    /// Appends received bytes after [`next`](Self::next) has returned `None`.
    pub(super) fn push(&mut self, input: Bytes) {
        self.input = input;
    }

    /// Returns the next inflated bytes; `None` if more bytes must be received, or only the plain rest follows.
    ///
    /// # Errors
    /// [`WireError::Gzip`] if the bytes are not gzip, their checksum is wrong, or more than a member was received.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, WireError> {
        let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
        let len = |len| usize::try_from(len).expect("the length of a slice");
        if !self.is_whole {
            let state = self.inflate.decompress(&self.input, &mut self.piece, InflateFlush::NoFlush);
            self.is_whole = state.map_err(|_| WireError::Gzip)? == StreamState::StreamEnd;
            self.input.advance(len(self.inflate.total_in() - read));
        }
        if self.is_whole && !self.is_prefix && !self.input.is_empty() {
            return Err(WireError::Gzip);
        }
        let piece = &self.piece[..len(self.inflate.total_out() - written)];
        Ok((!piece.is_empty()).then(|| Bytes::copy_from_slice(piece)))
    }

    /// Returns the first bytes of the plain rest once the compressed part has ended.
    pub(super) fn plain_rest(&mut self) -> Option<Bytes> {
        (self.is_prefix && self.is_whole).then(|| std::mem::take(&mut self.input))
    }

    /// Checks that the body may end here.
    ///
    /// # Errors
    /// [`WireError::Gzip`] if the member is incomplete.
    pub(super) fn finish(&self) -> Result<(), WireError> {
        if self.is_whole || self.inflate.total_in() == 0 { Ok(()) } else { Err(WireError::Gzip) }
    }
}

impl std::fmt::Debug for GzipBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GzipBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, GzBuilder};

    use super::*;

    /// Returns a gzip member.
    fn member(text: &[u8]) -> Vec<u8> {
        let mut writer = GzBuilder::new().filename("page").write(Vec::new(), Compression::default());
        writer.write_all(text).and_then(|()| writer.finish()).expect("a vector has room")
    }

    /// Reads a body that is received in chunks of a length. Returns the text and the plain rest.
    fn read(body: &[u8], chunk: usize, is_prefix: bool) -> Result<(Vec<u8>, Option<Vec<u8>>), WireError> {
        let (mut gzip, mut text) = (GzipBody::new(is_prefix), Vec::new());
        let mut received = 0;
        for input in body.chunks(chunk) {
            gzip.push(Bytes::copy_from_slice(input));
            received += input.len();
            while let Some(piece) = gzip.next()? {
                assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES_MAX);
                text.extend_from_slice(&piece);
            }
            if let Some(rest) = gzip.plain_rest() {
                return Ok((text, Some([&rest, &body[received..]].concat())));
            }
        }
        gzip.finish().map(|()| (text, None))
    }

    /// A text of some pieces with and without repetitions.
    fn text() -> Vec<u8> {
        let noise = (0..100_000_u32).map(|at| at.wrapping_mul(0x9e37_79b1).to_le_bytes()[3]);
        noise.chain(std::iter::repeat_n(b'a', 300_000)).collect()
    }

    #[test]
    fn body_is_inflated_however_it_is_cut() {
        let text = text();
        let (short, whole) = (member(b"short"), member(&text));
        let changed = |at: usize| {
            let mut changed = short.clone();
            changed[at] ^= 1;
            changed
        };
        let rest = [whole.as_slice(), b"{rest"].concat();
        for chunk in [1, 2, 7, 4_096, usize::MAX] {
            let plain = |body: &[u8]| read(body, chunk, false).map(|(text, _)| text).map_err(|error| error.to_string());
            assert_eq!(plain(b""), Ok(Vec::new()));
            assert_eq!(plain(&short).as_deref(), Ok(b"short".as_slice()), "{chunk}");
            assert_eq!(plain(&whole).as_ref(), Ok(&text), "{chunk}");
            let bad = Err(WireError::Gzip.to_string());
            for cut in [1, 9, 12, whole.len() / 2, whole.len() - 9, whole.len() - 8, whole.len() - 1] {
                assert_eq!(plain(&whole[..cut]), bad, "{chunk} {cut}");
            }
            assert_eq!(plain(b"{}"), bad, "{chunk}");
            for garbage in [b"{".as_slice(), b"\0", &short] {
                assert_eq!(plain(&[&short, garbage].concat()), bad, "{chunk}");
            }
            // The magic number, the checksum, the length.
            for at in [0, short.len() - 8, short.len() - 1] {
                assert_eq!(plain(&changed(at)), bad, "{chunk} {at}");
            }
            for body in [&rest, &whole] {
                let expected = (text.clone(), Some(body[whole.len()..].to_vec()));
                assert_eq!(read(body, chunk, true).ok(), Some(expected), "{chunk}");
            }
        }
    }

    #[test]
    fn bomb_is_inflated_only_as_far_as_it_is_read() {
        let bomb = member(&vec![0; 64 << 20]);
        assert!(bomb.len() < 80 << 10);
        let mut gzip = GzipBody::new(false);
        gzip.push(bomb.into());
        for pieces in 1..=8 {
            assert_eq!(gzip.next().expect("no error").map(|piece| piece.len()), Some(PIECE_BYTES_MAX));
            assert!(gzip.inflate.total_out() <= pieces * PIECE_BYTES_MAX as u64);
        }
    }
}
