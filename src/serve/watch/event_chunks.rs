use std::collections::VecDeque;

use bytes::Bytes;
use memchr::memchr;

use crate::wire::Encoding;

/// Splits the batches of a watch session into events. Over HTTP/1.1, each event becomes one chunk, as with the
/// apiserver (R-HTTP-4). Some clients read one event per chunk and then wait for the next chunk.
///
/// Nothing is copied. An event that spans several pieces, such as an initial event above 32 KiB, becomes several
/// chunks.
#[derive(Debug)]
pub(crate) struct EventChunks {
    encoding: Encoding,
    /// The unsent pieces of the current batch. An idle watch keeps no allocation.
    pieces: VecDeque<Bytes>,
    /// The number of bytes of the current event that later pieces contain, for protobuf.
    left: usize,
}

/// The size of the length prefix of a protobuf event.
const PREFIX_BYTES: usize = 4;

impl EventChunks {
    pub(crate) fn new(encoding: Encoding) -> Self {
        Self { encoding, pieces: VecDeque::new(), left: 0 }
    }

    /// Returns the next event of the batch, or the next part of one.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let mut piece = self.pieces.pop_front()?;
        let event = self.split(&mut piece);
        if !piece.is_empty() {
            self.pieces.push_front(piece);
        } else if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        Some(event)
    }

    /// Starts a new batch after the previous one is used up. Returns its first event.
    pub(crate) fn first_of(&mut self, batch: &mut Vec<Bytes>) -> Bytes {
        let mut pieces = batch.drain(..);
        let mut first = pieces.next().unwrap_or_default();
        let event = self.split(&mut first);
        // Most batches are one event, which needs no allocation.
        if !first.is_empty() {
            self.pieces.push_back(first);
        }
        self.pieces.extend(pieces);
        event
    }

    /// Splits the first event, or the available part of it, off a piece.
    fn split(&mut self, piece: &mut Bytes) -> Bytes {
        let end = match self.encoding {
            Encoding::Json | Encoding::Table => memchr(b'\n', piece).map_or(piece.len(), |at| at + 1),
            Encoding::Protobuf => {
                if self.left == 0 {
                    let body = piece.first_chunk::<PREFIX_BYTES>().map_or(0, |prefix| u32::from_be_bytes(*prefix));
                    self.left = PREFIX_BYTES.saturating_add(body as usize);
                }
                let end = self.left.min(piece.len());
                self.left -= end;
                end
            }
        };
        piece.split_to(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of pieces, and the expected chunks.
    type Row<'a> = (&'a [&'a [&'static [u8]]], &'a [&'a [u8]]);

    /// Returns the chunks for batches of pieces.
    fn chunks(encoding: Encoding, batches: &[&[&'static [u8]]]) -> Vec<Bytes> {
        let mut events = EventChunks::new(encoding);
        let mut chunks = Vec::new();
        for batch in batches {
            chunks.push(events.first_of(&mut batch.iter().copied().map(Bytes::from_static).collect()));
            chunks.extend(std::iter::from_fn(|| events.next()));
            assert_eq!(events.pieces.capacity(), 0, "an idle watch keeps no list");
        }
        chunks
    }

    #[test]
    fn each_watch_event_is_its_own_chunk() {
        let rows: [Row<'_>; 4] = [
            (&[&[b"{1}\n"], &[b"{2}\n"]], &[b"{1}\n", b"{2}\n"]),
            (&[&[b"{1}\n", b"{2}\n", b"{3}\n"]], &[b"{1}\n", b"{2}\n", b"{3}\n"]),
            (&[&[b"{1}\n{2}\n", b"{3}\n"]], &[b"{1}\n", b"{2}\n", b"{3}\n"]),
            (&[&[b"{1}\n{2", b"large"], &[b"}\n{3}\n"]], &[b"{1}\n", b"{2", b"large", b"}\n", b"{3}\n"]),
        ];
        for (batches, expected) in rows {
            assert_eq!(chunks(Encoding::Json, batches), expected);
        }
        let rows: [Row<'_>; 2] = [
            (&[&[b"\0\0\0\x02ab\0\0\0\0", b"\0\0\0\x01\n"]], &[b"\0\0\0\x02ab", b"\0\0\0\0", b"\0\0\0\x01\n"]),
            (&[&[b"\0\0\0\x04a"], &[b"bc", b"d\0\0\0\x01e"]], &[b"\0\0\0\x04a", b"bc", b"d", b"\0\0\0\x01e"]),
        ];
        for (batches, expected) in rows {
            assert_eq!(chunks(Encoding::Protobuf, batches), expected);
        }
    }
}
