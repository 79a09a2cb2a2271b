use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::serve::activity::WatchTransport;
use crate::serve::audit::AuditRecord;
use crate::serve::limits::Watchdog;
use crate::serve::response::WatchFrames;
use crate::serve::watch::event_chunks::EventChunks;
use crate::serve::watch::session::WatchSession;
use crate::wire::Encoding;
use base::WakeFlag;

/// A watch as an HTTP body: JSON lines or length-prefixed protobuf. Over HTTP/1.1, each event is a separate chunk. Over
/// HTTP/2, a piece contains several events if the client lags.
#[derive(Debug)]
pub(crate) struct WatchBody {
    /// The watch session; `None` once the last frame was put.
    session: Option<WatchSession>,
    /// Aborts the watch if the client does not read.
    _watchdog: Arc<Watchdog>,
    /// The state of the chunked encoding; set for HTTP/1.1 only.
    chunked: Option<Box<ChunkedState>>,
    /// Records the end of the watch when it is dropped.
    _record: Option<Arc<AuditRecord>>,
}

/// The additional state of a watch over HTTP/1.1.
#[derive(Debug)]
struct ChunkedState {
    /// Set when the session has something new to send. This is needed because this codec also polls a body when it has
    /// made room. The HTTP/2 codec rarely polls a body unless its waker was woken.
    flag: WakeFlag,
    events: EventChunks,
}

thread_local! {
    /// The batch buffer that all watches of a thread share in turn, so that an idle watch keeps no buffer.
    static BATCH: Cell<Vec<Bytes>> = const { Cell::new(Vec::new()) };
}

/// The number of bytes that are pulled at a time. This limits the memory that one client can occupy.
pub(crate) const BATCH_BYTES: usize = 32 << 10;

impl WatchBody {
    pub(crate) fn new(
        session: WatchSession,
        record: Option<Arc<AuditRecord>>,
        transport: WatchTransport,
        encoding: Encoding,
    ) -> Self {
        let chunked = || Box::new(ChunkedState { flag: WakeFlag::rung(), events: EventChunks::new(encoding) });
        Self {
            _watchdog: session.watchdog().clone(),
            session: Some(session),
            chunked: (transport != WatchTransport::Http2).then(chunked),
            _record: record,
        }
    }
}

impl WatchFrames for WatchBody {
    /// Whether no frames will come until the waker of the last poll is woken.
    fn is_parked(&self) -> bool {
        self.session.as_ref().is_some_and(WatchSession::is_parked)
    }

    fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
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
            // Frees the session now; only its last frames remain.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each open watch has one body.
    #[test]
    fn watch_body_size_is_bounded() {
        assert!(size_of::<WatchBody>() <= 384, "{} bytes", size_of::<WatchBody>());
    }
}
