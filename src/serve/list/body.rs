use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::super::gzip::PLAIN_BYTES_MAX;
use super::super::pace::{Looks, Rest, Slice};
use super::super::scribe::Scribe;
use super::super::stretches::Stretches;
use crate::cache::{Deflated, Plain};
use crate::wire::{ListFrame, Refused};

/// A LIST on its way out. Of what it sends it holds the piece that it is at, and that is shared.
#[derive(Debug)]
pub(in super::super) struct ListBody {
    scribe: Scribe,
    stretches: Stretches,
    head: Bytes,
    tail: Bytes,
    /// Worth compressing.
    worth: bool,
    at: At,
    /// A piece that did not fit with those before it.
    next: Option<Bytes>,
    /// Behind each stretch of everybody's that took more than a copy.
    rest: Rest,
    /// For those that are nobody else's.
    looks: Looks,
}

/// The next piece.
#[derive(Debug)]
enum At {
    Head,
    /// A stretch.
    Stretch(usize),
    /// A piece of a stretch.
    Piece(usize, Plain, usize),
    Over,
}

/// Pieces are joined up to here: as much as a TLS record has, and a frame of HTTP/2 by default.
const JOINED_BYTES_MAX: usize = 16 << 10;

impl ListBody {
    /// `items_len`: of all items, or more than [`PLAIN_BYTES_MAX`] of them if the head does not tell.
    pub(super) fn new(scribe: Scribe, stretches: Stretches, frame: &ListFrame, items_len: usize, looks: Looks) -> Self {
        let items = stretches.lengths().items;
        let (head, tail) = (frame.head(items, items_len), frame.tail());
        let worth = frame.content_length(items, items_len) > PLAIN_BYTES_MAX;
        Self { scribe, stretches, head, tail, worth, at: At::Head, next: None, rest: Rest::default(), looks }
    }

    /// The next chunk; `None` after the last.
    pub(in super::super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refused>>> {
        let mut joined = BytesMut::new();
        loop {
            let piece = match self.next.take() {
                Some(piece) => piece,
                None => match self.poll_piece(cx) {
                    Poll::Ready(Some(Ok(piece))) => piece,
                    Poll::Ready(Some(Err(refused))) => return Poll::Ready(Some(Err(refused))),
                    _ if !joined.is_empty() => return Poll::Ready(Some(Ok(joined.freeze()))),
                    over_or_pending => return over_or_pending,
                },
            };
            if joined.len() + piece.len() <= JOINED_BYTES_MAX {
                joined.extend_from_slice(&piece);
            } else if joined.is_empty() {
                return Poll::Ready(Some(Ok(piece)));
            } else {
                self.next = Some(piece);
                return Poll::Ready(Some(Ok(joined.freeze())));
            }
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refused>>> {
        loop {
            match &mut self.at {
                At::Head => {
                    self.at = At::Stretch(0);
                    return Poll::Ready(Some(Ok(self.head.clone())));
                }
                At::Stretch(index) if *index == self.stretches.len() => {
                    self.at = At::Over;
                    return Poll::Ready(Some(Ok(self.tail.clone())));
                }
                At::Stretch(index) => {
                    let index = *index;
                    let _slice = ready!(self.poll_begin(index, cx));
                    let plain = ready!(self.scribe.poll_plain(&self.stretches, index, cx));
                    self.pause_behind(index);
                    match plain {
                        Ok(plain) => self.at = At::Piece(index, plain, 0),
                        Err(refused) => return Poll::Ready(Some(Err(refused))),
                    }
                }
                At::Piece(index, plain, piece) => match plain.get(*piece) {
                    Some(bytes) => {
                        // The first item has none before it.
                        let skipped = if (*index, *piece) == (0, 0) { self.scribe.separator() } else { 0 };
                        let bytes = bytes.slice(skipped..);
                        *piece += 1;
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                    None => self.at = At::Stretch(*index + 1),
                },
                At::Over => return Poll::Ready(None),
            }
        }
    }

    /// Whether a stretch may be made now, as long as what is returned is held.
    fn poll_begin(&mut self, index: usize, cx: &mut Context<'_>) -> Poll<Option<Slice>> {
        ready!(self.rest.poll(cx));
        if self.stretches.is_whole(index) { Poll::Ready(None) } else { self.looks.poll(cx) }
    }

    /// What everybody shares is made once, and by whoever comes first; what is one client's alone, when there is room.
    fn pause_behind(&mut self, index: usize) {
        match (self.scribe.has_worked(), self.stretches.is_whole(index)) {
            (false, _) => {}
            (true, true) => self.rest.begin(),
            (true, false) => *self.looks.left() = 0,
        }
    }

    /// Everything has been given out.
    pub(in super::super) fn is_over(&self) -> bool {
        matches!(self.at, At::Over) && self.next.is_none()
    }

    /// Whether it is so long that the apiserver would compress it.
    pub(in super::super) fn is_worth_compressing(&self) -> bool {
        self.worth
    }

    pub(in super::super) fn head(&self) -> &Bytes {
        &self.head
    }

    pub(in super::super) fn tail(&self) -> &Bytes {
        &self.tail
    }

    /// How many stretches there are to be compressed.
    pub(in super::super) fn stretches(&self) -> usize {
        self.stretches.len()
    }

    /// One of them, without what separates it from the one before.
    pub(in super::super) fn poll_deflated(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        deflate: impl FnOnce(&[u8]) -> Deflated,
    ) -> Poll<Result<Deflated, Refused>> {
        let _slice = ready!(self.poll_begin(index, cx));
        let deflated = self.scribe.poll_deflated(&self.stretches, index, cx, deflate);
        self.pause_behind(index);
        deflated
    }

    /// Whether a comma goes before one of them.
    pub(in super::super) fn separates(&self, index: usize) -> bool {
        index > 0 && self.scribe.separator() > 0
    }
}
