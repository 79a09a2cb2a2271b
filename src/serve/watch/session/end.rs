use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};

use super::{Phase, WatchSession};
use crate::cache::{Pull, Settling};
use crate::feeds::FeedHandle;
use crate::serve::activity::WatchEnd;
use crate::serve::response::FeedStatus;
use kubeapi::{ResourceVersion, Status};

/// How long the end of a watch waits for the rest of a transaction.
const REST_MAX: Duration = Duration::from_secs(3);

/// A version that the end of the watch waits for, until it is complete or a timeout expires.
pub(super) struct AwaitedVersion {
    of: ResourceVersion,
    max: Pin<Box<Sleep>>,
}

impl WatchSession {
    /// Whether only a part of a transaction was sent, and the rest is pending or may still arrive. If the watch ended
    /// here, its client would resume after the whole transaction and miss the rest. In a drain with bookmarks, the
    /// watch also waits until the newest version is complete.
    pub(super) fn is_amid(&mut self, end: WatchEnd, cx: &mut Context<'_>) -> bool {
        if !self.cursor.skips(self.last_sent_rv) {
            // A partial view waits for authorization decisions, which may not arrive. Its events are filtered, and are
            // sent again when a permission is granted.
            if self.partial.is_none() && self.cursor.is_next_at(self.last_sent_rv) {
                return true;
            }
            let settling = self.feed.reader.waits_for_whole(self.last_sent_rv);
            if settling == Settling::WhenToldSo {
                self.feed.freshness.want_version(self.last_sent_rv);
            }
            if settling != Settling::Already {
                return self.rests(self.last_sent_rv, cx);
            }
        }
        if end == WatchEnd::Drained && self.bookmarks {
            // Keeps the newest version of the first call, because on a busy feed there is always a newer one.
            let newest = self.rest.as_ref().map_or_else(|| self.feed.reader.newest(), |rest| rest.of);
            if self.feed.reader.waits_for_whole(newest) == Settling::Soon {
                return self.rests(newest, cx);
            }
        }
        self.rest = None;
        false
    }

    /// Whether the end still waits for that version.
    fn rests(&mut self, of: ResourceVersion, cx: &mut Context<'_>) -> bool {
        let rest = self.rest.get_or_insert_with(|| AwaitedVersion { of, max: Box::pin(sleep(REST_MAX)) });
        rest.of = of;
        rest.max.as_mut().poll(cx).is_pending()
    }

    /// Whether the end of the watch waits for an incomplete version.
    pub(super) fn is_resting(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| self.feed.reader.is_open(rest.of))
    }

    /// Ends the watch with an ERROR event, regardless of the version that the end was waiting for.
    pub(crate) fn end_with(&mut self, status: &Status, end: WatchEnd) {
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
        let is_whole = || matches!(self.feed.reader.waits_for_whole(self.last_sent_rv), Settling::Already);
        if !self.has_another_writer() || !self.is_settled() || !is_whole() {
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
        if self.changes.is_some() {
            self.feed.proxy_ends();
        }
        if !matches!(self.phase, Phase::Ended) {
            self.metrics.ended(self.watchdog.cut().why().map_or(WatchEnd::ClientClosed, WatchEnd::Cut));
        }
    }
}
