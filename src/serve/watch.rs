use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use super::audit::AuditRecord;
use super::overdue::Watchdog;
use super::session::WatchSession;
use crate::base::WakeFlag;

/// A watch as an HTTP body: JSON lines or length-prefixed protobuf, several events a chunk when the client is behind.
#[derive(Debug)]
pub(super) struct WatchBody {
    /// `None` once it has put its last frame.
    session: Option<WatchSession>,
    /// Cuts what is not taken.
    _watchdog: Arc<Watchdog>,
    /// Set by what the session waits for. A codec also polls a body whenever it has made room in itself.
    flag: WakeFlag,
    batch: Vec<Bytes>,
    /// Records the end of the watch when it is dropped.
    _record: Option<Arc<AuditRecord>>,
}

/// How many bytes are pulled at a time: one client may make us hold so much for it.
pub(super) const BATCH_BYTES: usize = 32 << 10;

impl WatchBody {
    pub(super) fn new(session: WatchSession, record: Option<Arc<AuditRecord>>) -> Self {
        Self {
            _watchdog: session.watchdog().clone(),
            session: Some(session),
            flag: WakeFlag::rung(),
            batch: Vec::new(),
            _record: record,
        }
    }

    pub(super) fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let Some(session) = &mut self.session else { return Poll::Ready(None) };
        if !self.flag.has_rung(cx) && session.is_parked() {
            return Poll::Pending;
        }
        let mut cx = Context::from_waker(self.flag.waker());
        let polled = session.poll_frames(&mut cx, BATCH_BYTES, &mut self.batch);
        if session.is_ended() {
            // The session is over, whatever happens to its last frames.
            self.session = None;
        }
        match polled {
            Poll::Pending => {
                // An idle watch keeps no buffer.
                self.batch = Vec::new();
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(())) => Poll::Ready(Some(joined(&mut self.batch))),
        }
    }
}

/// One chunk of several frames. A single frame is not copied but shared with every other watch.
fn joined(batch: &mut Vec<Bytes>) -> Bytes {
    match batch.as_slice() {
        [_] => batch.pop().unwrap_or_default(),
        frames => {
            let mut chunk = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
            frames.iter().for_each(|frame| chunk.extend_from_slice(frame));
            // A client that does not take the chunk keeps no events alive.
            batch.clear();
            chunk.freeze()
        }
    }
}
