use bytes::Bytes;

use super::{Phase, WatchSession};
use crate::cache::Pull;
use crate::feeds::FeedHandle;
use crate::serve::activity::WatchEnd;
use crate::serve::response::FeedStatus;
use kubeapi::{ResourceVersion, Status};

impl WatchSession {
    /// Whether only a part of the events of a version was sent. If the watch ended here, its client would resume after
    /// all of them. A partial view may wait for authorization decisions that never arrive, so it does not continue:
    /// it sends filtered events again when a permission is granted.
    pub(super) fn is_amid(&mut self) -> bool {
        self.partial.is_none() && !self.cursor.skips(self.last_sent_rv) && self.cursor.is_next_at(self.last_sent_rv)
    }

    /// Ends the watch with an ERROR event.
    pub(in super::super) fn end_with(&mut self, status: &Status, end: WatchEnd) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let envelope = self.cursor.renderer().envelope();
        let frame = envelope.error_frame(&status.to_event_json(), &status.to_protobuf());
        self.phase = Phase::Last(Box::new((frame, end)));
        // From here on, the client has a limited time to read the frame.
        self.watchdog.end();
    }

    /// Ends the watch without a frame. After a revocation, the next poll ends it with an error instead.
    pub(super) fn end_silently(&mut self, end: WatchEnd) {
        if end == WatchEnd::Revoked {
            self.fired = None;
            return;
        }
        self.phase = Phase::Ended;
        self.metrics.ended(end);
    }

    /// Registers a downstream proxy as a follower of the feed. Returns how often the build that writes its bodies has
    /// changed.
    pub(super) fn begins_for_a_proxy(feed: &FeedHandle, start: ResourceVersion) -> u32 {
        feed.proxy_begins();
        feed.body_release.written_from(start).changes
    }

    /// Returns the state of the feed that a downstream proxy receives at the start of the watch.
    pub(crate) fn feed_status(&self, feed: &FeedHandle) -> FeedStatus {
        let written = feed.body_release.written_from(self.last_sent_rv);
        let written_by = written.by.filter(|_| self.changes == Some(written.changes));
        FeedStatus { stale_seconds: FeedStatus::stale_seconds(feed), written_by }
    }

    /// Whether the watch belongs to a downstream proxy and another build has begun to write the feed's bodies. The
    /// proxy learns about it only when it opens a new watch.
    pub(super) fn has_another_writer(&self) -> bool {
        self.changes.is_some_and(|changes| changes != self.feed.body_release.changes())
    }

    /// Ends a downstream proxy's watch that has sent everything up to this version, if another build has taken over.
    /// All bodies after that version are written by that build.
    pub(super) fn ends_for_another_writer(&mut self, reached: ResourceVersion) -> bool {
        if !self.has_another_writer() || !self.is_settled() {
            return false;
        }
        match self.bookmark(reached) {
            Ok(bookmark) if self.bookmarks && reached > self.last_sent_rv => {
                self.phase = Phase::Last(Box::new((bookmark, WatchEnd::UpstreamUpgraded)));
            }
            _ => self.end_silently(WatchEnd::UpstreamUpgraded),
        }
        true
    }

    /// Returns the bookmark for a drained client, which lets it resume here or at another replica without a list.
    pub(super) fn last_bookmark(&mut self, end: WatchEnd) -> Option<Bytes> {
        if end != WatchEnd::Drained || !self.bookmarks {
            return None;
        }
        match self.pull(0, None, &mut Vec::new()) {
            _ if !self.is_settled() => None,
            Pull::CaughtUp { progress } if progress.rv > self.last_sent_rv => self.bookmark(progress.rv).ok(),
            _ => None,
        }
    }
}

impl Drop for WatchSession {
    fn drop(&mut self) {
        self.watchdog.clear_alarm();
        if self.changes.is_some() {
            self.feed.proxy_ends();
        }
        if !matches!(self.phase, Phase::Ended) {
            self.metrics.ended(self.watchdog.cut().why().map_or(WatchEnd::ClientClosed, WatchEnd::Cut));
        }
    }
}
