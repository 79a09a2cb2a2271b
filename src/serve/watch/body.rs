use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use memchr::memchr;

use crate::listing::ScanBudget;
use crate::listing::gzip::GzipFrames;
use crate::serve::activity::WatchTransport;
use crate::serve::activity::metrics::GzipWatchBytes;
use crate::serve::audit::AuditRecord;
use crate::serve::limits::WatchDeadlineTimer;
use crate::serve::response::WatchFrameSource;
use crate::serve::watch::session::{WatchBatch, WatchSession};
use crate::wire::FeedEncoding;
use base::RecordingWaker;

/// A watch as an HTTP body: JSON lines or length-prefixed protobuf. Over HTTP/1.1, each event is a separate chunk. Over
/// HTTP/2, a piece contains several events if the client lags. A compressed piece may contain several events over either.
#[derive(Debug)]
pub(crate) struct WatchBody {
    /// The watch session; `None` once the last frame was put.
    session: Option<WatchSession>,
    /// Aborts the watch if the client does not read.
    _watchdog: Arc<WatchDeadlineTimer>,
    /// The state of the chunked encoding; set for HTTP/1.1 only.
    chunked: Option<Box<ChunkedWatchState>>,
    /// The compressed stream, if the client receives one.
    gzip: Option<Box<GzipWatchState>>,
    /// Records the end of the watch when it is dropped.
    _record: Option<Arc<AuditRecord>>,
}

/// The form of the bytes of a watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchBodyForm {
    pub(crate) encoding: FeedEncoding,
    /// Whether the stream is compressed; with `has_deltas`, only the initial events.
    pub(crate) is_gzip: bool,
    /// Whether events may be differences, which only proxies read.
    pub(crate) has_deltas: bool,
}

/// The additional state of a watch over HTTP/1.1.
#[derive(Debug)]
struct ChunkedWatchState {
    /// Set when the session has something new to send. This is needed because this codec also polls a body when it has
    /// made room. The HTTP/2 codec rarely polls a body unless its waker was woken.
    flag: RecordingWaker,
    events: EventChunkSplitter,
}

/// The additional state of a compressed watch.
#[derive(Debug)]
struct GzipWatchState {
    frames: GzipFrames,
    bytes: GzipWatchBytes,
    /// Whether only the initial events are compressed.
    is_initial_only: bool,
    /// Whether the last bytes were queued before this poll. What woke the body may have been the session's waker, so
    /// the session must be polled again even if it was parked.
    is_session_due: bool,
}

thread_local! {
    /// The batch buffer that all watches of a thread share in turn, so that an idle watch keeps no buffer.
    static BATCH: Cell<WatchBatch> = const { Cell::new(WatchBatch::new()) };
}

impl WatchBody {
    /// Creates the body. With a budget for the work of its own, the watch is compressed.
    pub(crate) fn new(
        session: WatchSession,
        record: Option<Arc<AuditRecord>>,
        transport: WatchTransport,
        form: WatchBodyForm,
        gzip: Option<ScanBudget>,
    ) -> Self {
        let chunked =
            || Box::new(ChunkedWatchState { flag: RecordingWaker::new_woken(), events: EventChunkSplitter::new(form) });
        Self {
            _watchdog: session.watchdog().clone(),
            chunked: (transport != WatchTransport::Http2).then(chunked),
            gzip: gzip.map(|budget| Box::new(GzipWatchState::new(&session, budget, form.has_deltas))),
            session: Some(session),
            _record: record,
        }
    }
}

impl WatchFrameSource for WatchBody {
    /// Whether no frames will come until the waker of the last poll is woken.
    fn is_parked(&self) -> bool {
        self.session.as_ref().is_some_and(WatchSession::is_parked)
            && self.gzip.as_ref().is_none_or(|gzip| gzip.frames.is_empty() && !gzip.is_session_due)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut is_session_polled = false;
        loop {
            if let Some(gzip) = &mut self.gzip {
                if let Some(bytes) = ready!(gzip.poll(cx)) {
                    gzip.is_session_due = !is_session_polled;
                    if self.session.as_ref().is_none_or(|session| session.is_parked() && is_session_polled) {
                        gzip.frames.release_idle();
                    }
                    return Poll::Ready(Some(bytes));
                }
                if gzip.is_initial_only && self.session.as_ref().is_some_and(|session| !session.is_initial()) {
                    let end = gzip.end();
                    self.gzip = None;
                    if end.is_some() {
                        return Poll::Ready(end);
                    }
                }
            } else if let Some(event) = self.chunked.as_mut().and_then(|chunked| chunked.events.next()) {
                return Poll::Ready(Some(event));
            }
            let Some(session) = &mut self.session else {
                return Poll::Ready(self.gzip.as_mut().and_then(|gzip| gzip.end()));
            };
            if self.chunked.as_mut().is_some_and(|chunked| !chunked.flag.take_woken(cx)) && session.is_parked() {
                return Poll::Pending;
            }
            let mut cx = Context::from_waker(self.chunked.as_ref().map_or(cx.waker(), |chunked| chunked.flag.waker()));
            let mut batch = BATCH.take();
            let polled = session.poll_frames(&mut cx, &mut batch);
            is_session_polled = true;
            if polled.is_pending()
                && session.is_parked()
                && let Some(gzip) = &mut self.gzip
            {
                gzip.frames.release_idle();
            }
            if session.is_ended() {
                // Frees the session now; only its last frames remain.
                self.session = None;
            }
            let chunk = self.queue_batch(&mut batch);
            batch.frames.clear();
            batch.keys.clear();
            BATCH.set(batch);
            if polled.is_pending() || chunk.is_some() {
                return chunk.map_or(Poll::Pending, |chunk| Poll::Ready(Some(chunk)));
            }
        }
    }
}

impl WatchBody {
    /// Queues the frames of a batch. Returns the first bytes to send, unless they are compressed later.
    fn queue_batch(&mut self, WatchBatch { frames, keys, .. }: &mut WatchBatch) -> Option<Bytes> {
        match (&mut self.gzip, &mut self.chunked) {
            (Some(gzip), _) => {
                gzip.bytes.before.increment(frames.iter().map(|frame| frame.len() as u64).sum());
                gzip.frames.push(frames, keys);
                None
            }
            _ if frames.is_empty() => None,
            (None, Some(chunked)) => Some(chunked.events.first_of(frames)),
            (None, None) => Some(joined(frames)),
        }
    }
}

impl GzipWatchState {
    fn new(session: &WatchSession, budget: ScanBudget, is_initial_only: bool) -> Self {
        let frames = GzipFrames::new(session.reader().clone(), budget, session.is_of_secrets());
        Self { frames, bytes: session.metrics().gzip_bytes(), is_initial_only, is_session_due: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.frames.poll(cx).map(|bytes| self.counted(bytes))
    }

    fn end(&mut self) -> Option<Bytes> {
        let end = self.frames.end();
        self.counted(end)
    }

    fn counted(&self, bytes: Option<Bytes>) -> Option<Bytes> {
        self.bytes.after.increment(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64));
        bytes
    }
}

/// Joins several frames into one piece. A single frame is not copied but shared with all other watches.
fn joined(batch: &mut Vec<Bytes>) -> Bytes {
    match batch.as_slice() {
        [_] => batch.pop().unwrap_or_default(),
        frames => {
            let mut chunk = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
            frames.iter().for_each(|frame| chunk.extend_from_slice(frame));
            chunk.freeze()
        }
    }
}

/// Splits the batches of a watch session into events. Over HTTP/1.1, each event becomes one chunk, as with the
/// apiserver (R-HTTP-4). Some clients read one event per chunk and then wait for the next chunk.
///
/// Nothing is copied. An event that spans several pieces, such as an initial event above 32 KiB, becomes several
/// chunks.
#[derive(Debug)]
struct EventChunkSplitter {
    form: WatchBodyForm,
    /// The unsent pieces of the current batch. An idle watch keeps no allocation.
    pieces: VecDeque<Bytes>,
    /// The number of bytes of the current event that later pieces contain, for protobuf.
    left: usize,
}

/// The size of the length prefix of a protobuf event.
const PREFIX_BYTES: usize = 4;

impl EventChunkSplitter {
    fn new(form: WatchBodyForm) -> Self {
        Self { form, pieces: VecDeque::new(), left: 0 }
    }

    /// Returns the next event of the batch, or the next part of one.
    fn next(&mut self) -> Option<Bytes> {
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
    fn first_of(&mut self, batch: &mut Vec<Bytes>) -> Bytes {
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
        let end = match self.form.encoding {
            // A proxy does not read chunk by chunk.
            _ if self.form.has_deltas => piece.len(),
            FeedEncoding::Json | FeedEncoding::Table => memchr(b'\n', piece).map_or(piece.len(), |at| at + 1),
            FeedEncoding::Protobuf => {
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

    /// Each open watch has one body.
    #[test]
    fn watch_body_size_is_bounded() {
        assert!(size_of::<WatchBody>() <= 384, "{} bytes", size_of::<WatchBody>());
    }

    /// Batches of pieces, and the expected chunks.
    type Row<'a> = (&'a [&'a [&'static [u8]]], &'a [&'a [u8]]);

    /// Returns the chunks for batches of pieces.
    fn chunks(encoding: FeedEncoding, batches: &[&[&'static [u8]]]) -> Vec<Bytes> {
        let mut events = EventChunkSplitter::new(WatchBodyForm { encoding, is_gzip: false, has_deltas: false });
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
            assert_eq!(chunks(FeedEncoding::Json, batches), expected);
        }
        let rows: [Row<'_>; 2] = [
            (&[&[b"\0\0\0\x02ab\0\0\0\0", b"\0\0\0\x01\n"]], &[b"\0\0\0\x02ab", b"\0\0\0\0", b"\0\0\0\x01\n"]),
            (&[&[b"\0\0\0\x04a"], &[b"bc", b"d\0\0\0\x01e"]], &[b"\0\0\0\x04a", b"bc", b"d", b"\0\0\0\x01e"]),
        ];
        for (batches, expected) in rows {
            assert_eq!(chunks(FeedEncoding::Protobuf, batches), expected);
        }
    }
}
