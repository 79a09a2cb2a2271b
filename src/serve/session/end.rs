use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::super::watch_end::WatchEnd;
use super::{Phase, WatchSession};
use crate::cache::{Pull, Settling};
use crate::kube::Status;

/// How long the end of a watch waits for the rest of a transaction.
const REST_MAX: Duration = Duration::from_secs(3);

impl WatchSession {
    /// Whether the client has been told a part of a transaction, and the rest is still to be told or may still come. If
    /// the watch ended here, its client would go on behind all of it.
    pub(super) fn is_amid(&mut self, cx: &mut Context<'_>) -> bool {
        // A partial view waits for verdicts, which may not come. Its events are sifted, and come again with rights.
        if self.partial.is_none() && self.cursor.is_next_at(self.told) {
            return true;
        }
        match self.feed.reader.waits_for_whole(self.told) {
            Settling::Already => {
                self.rest = None;
                return false;
            }
            Settling::Soon => {}
            Settling::WhenToldSo => self.feed.freshness.want_version(self.told),
        }
        let rest = self.rest.get_or_insert_with(|| Box::pin(sleep(REST_MAX)));
        rest.as_mut().poll(cx).is_pending()
    }

    /// Ends the watch with an ERROR event. The version that was asked for plays no part any more.
    pub(in super::super) fn end_with(&mut self, status: &Status, end: WatchEnd) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let envelope = self.cursor.renderer().envelope();
        let frame = envelope.error_frame(&status.to_event_json(), &status.to_protobuf());
        self.phase = Phase::Last(frame, end);
        // The client takes the frame soon, or not at all.
        self.watchdog.end();
    }

    /// Ends the watch without a frame. If the permission is over, it is looked at next and says why.
    pub(super) fn end_without_a_word(&mut self, end: WatchEnd) {
        if end == WatchEnd::Revoked {
            self.fired = None;
            return;
        }
        self.phase = Phase::Ended;
        self.metrics.ended(end);
    }

    /// The bookmark for a client that is sent away, with which it resumes here or at another replica without a list.
    pub(super) fn last_bookmark(&mut self, end: WatchEnd) -> Option<Bytes> {
        if end != WatchEnd::Drained || !self.bookmarks {
            return None;
        }
        match self.pull(0, None, &mut Vec::new()) {
            _ if !self.is_settled() => None,
            Pull::CaughtUp { progress } if progress.rv > self.told => self.bookmark(progress.rv).ok(),
            _ => None,
        }
    }
}

impl Drop for WatchSession {
    fn drop(&mut self) {
        if !matches!(self.phase, Phase::Ended) {
            self.metrics.ended(self.watchdog.cut().why().map_or(WatchEnd::Closed, WatchEnd::Cut));
        }
    }
}
