use std::task::{Context, Poll};

use bytes::Bytes;

use super::WatchSession;

impl WatchSession {
    /// The next frames, about `room` bytes of them; `None` when the watch is over. Onlookers are told how far it is.
    pub(in super::super) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        batch: &mut Vec<Bytes>,
    ) -> Poll<Option<()>> {
        let polled = self.poll_next(cx, room, batch);
        self.metrics.told(self.told, self.cursor.next(), self.is_parked);
        polled
    }
}
