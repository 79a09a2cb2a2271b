use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use super::audit::AuditRecord;
use super::event_chunks::EventChunks;
use super::session::WatchSession;
use super::slow_readers::Watchdog;
use super::watch_transport::WatchTransport;
use crate::wire::Encoding;
use base::WakeFlag;

/// A watch as an HTTP body: JSON lines or length-prefixed protobuf. Over HTTP/1.1 each event is a chunk of its own. A
/// piece of HTTP/2 has several events when the client is behind.
#[derive(Debug)]
pub(super) struct WatchBody {
    /// `None` once it has put its last frame.
    session: Option<WatchSession>,
    /// Cuts what is not taken.
    _watchdog: Arc<Watchdog>,
    /// For HTTP/1.1.
    chunked: Option<Box<Chunked>>,
    /// Records the end of the watch when it is dropped.
    _record: Option<Arc<AuditRecord>>,
}

/// What a watch over HTTP/1.1 needs besides.
#[derive(Debug)]
struct Chunked {
    /// Set by what the session waits for, because the codec polls a body also whenever it has made room. That of HTTP/2
    /// polls it when its waker was woken, and mostly not otherwise.
    flag: WakeFlag,
    events: EventChunks,
}

thread_local! {
    /// The list into which all watches of a thread pull, one after the other: an idle watch keeps none.
    static BATCH: Cell<Vec<Bytes>> = const { Cell::new(Vec::new()) };
}

/// How many bytes are pulled at a time: one client may make us hold so much for it.
pub(super) const BATCH_BYTES: usize = 32 << 10;

impl WatchBody {
    pub(super) fn new(
        session: WatchSession,
        record: Option<Arc<AuditRecord>>,
        (protocol, encoding): (WatchTransport, Encoding),
    ) -> Self {
        let chunked = || Box::new(Chunked { flag: WakeFlag::rung(), events: EventChunks::new(encoding) });
        Self {
            _watchdog: session.watchdog().clone(),
            session: Some(session),
            chunked: (protocol != WatchTransport::Http2).then(chunked),
            _record: record,
        }
    }

    /// Whether there is nothing until the waker is woken that it was last polled with.
    pub(super) fn is_parked(&self) -> bool {
        self.session.as_ref().is_some_and(WatchSession::is_parked)
    }

    pub(super) fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(event) = self.chunked.as_mut().and_then(|chunked| chunked.events.next()) {
            return Poll::Ready(Some(event));
        }
        let Some(session) = &mut self.session else { return Poll::Ready(None) };
        if self.chunked.as_mut().is_some_and(|chunked| !chunked.flag.has_rung(cx)) && session.is_parked() {
            return Poll::Pending;
        }
        let mut cx = Context::from_waker(self.chunked.as_ref().map_or(cx.waker(), |chunked| chunked.flag.waker()));
        let mut batch = BATCH.take();
        let polled = session.poll_frames(&mut cx, BATCH_BYTES, &mut batch);
        if session.is_ended() {
            // The session is over, whatever happens to its last frames.
            self.session = None;
        }
        let chunk = polled.map(|more| {
            more.map(|()| match &mut self.chunked {
                Some(chunked) => chunked.events.first_of(&mut batch),
                None => joined(&mut batch),
            })
        });
        batch.clear();
        BATCH.set(batch);
        chunk
    }
}

/// One piece of several frames. A single frame is not copied but shared with every other watch.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one for each watch.
    #[test]
    fn what_a_watch_is_made_of_is_small() {
        assert!(size_of::<WatchBody>() <= 384, "{} bytes", size_of::<WatchBody>());
    }
}
