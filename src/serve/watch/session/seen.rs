use std::task::{Context, Poll};

use bytes::Bytes;

use super::WatchSession;

impl WatchSession {
    /// Polls the next frames, about `room` bytes; `None` when the watch has ended. Updates the watch's entry on the
    /// debug pages.
    pub(crate) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        batch: &mut Vec<Bytes>,
    ) -> Poll<Option<()>> {
        let polled = self.poll_next(cx, room, batch);
        self.metrics.told(self.last_sent_rv, self.cursor.next(), self.is_parked);
        polled
    }
}
