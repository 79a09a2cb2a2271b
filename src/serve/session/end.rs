use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};

use super::super::response_context::FeedStatus;
use super::super::sources::Sources;
use super::super::watch_end::WatchEnd;
use super::{Phase, WatchSession};
use crate::cache::{Pull, Settling};
use crate::feeds::FeedHandle;
use kubeapi::{ResourceVersion, Status};

/// How long the end of a watch waits for the rest of a transaction.
const REST_MAX: Duration = Duration::from_secs(3);

/// A version that the end of the watch waits for until it is whole, or until that time is over.
pub(super) struct AwaitedVersion {
    of: ResourceVersion,
    max: Pin<Box<Sleep>>,
}

impl WatchSession {
    /// Whether the client has been told a part of a transaction, and the rest is still to be told or may still come. If
    /// the watch ended here, its client would go on behind all of it. A client that is sent away with a bookmark waits
    /// for the newest version to be whole as well.
    pub(super) fn is_amid(&mut self, end: WatchEnd, cx: &mut Context<'_>) -> bool {
        if !self.cursor.skips(self.told) {
            // A partial view waits for verdicts, which may not come. Its events are sifted, and come again with rights.
            if self.partial.is_none() && self.cursor.is_next_at(self.told) {
                return true;
            }
            let settling = self.feed.reader.waits_for_whole(self.told);
            if settling == Settling::WhenToldSo {
                self.feed.freshness.want_version(self.told);
            }
            if settling != Settling::Already {
                return self.rests(self.told, cx);
            }
        }
        if end == WatchEnd::Drained && self.bookmarks {
            // The newest of the first look: on a busy feed there is always a newer one.
            let newest = self.rest.as_ref().map_or_else(|| self.feed.reader.newest(), |rest| rest.of);
            if self.feed.reader.waits_for_whole(newest) == Settling::Soon {
                return self.rests(newest, cx);
            }
        }
        self.rest = None;
        false
    }

    /// Whether that version is still waited for.
    fn rests(&mut self, of: ResourceVersion, cx: &mut Context<'_>) -> bool {
        let rest = self.rest.get_or_insert_with(|| AwaitedVersion { of, max: Box::pin(sleep(REST_MAX)) });
        rest.of = of;
        rest.max.as_mut().poll(cx).is_pending()
    }

    /// Whether the end of the watch waits for a version that is not whole yet.
    pub(super) fn is_resting(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| self.feed.reader.is_open(rest.of))
    }

    /// Ends the watch with an ERROR event. The version that was asked for plays no part any more.
    pub(in super::super) fn end_with(&mut self, status: &Status, end: WatchEnd) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let envelope = self.cursor.renderer().envelope();
        let frame = envelope.error_frame(&status.to_event_json(), &status.to_protobuf());
        self.phase = Phase::Last(Box::new((frame, end)));
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

    /// Notes that a proxy follows the feed. Returns how many times another build had come to write its bodies.
    pub(super) fn begins_for_a_proxy(feed: &FeedHandle, start: ResourceVersion) -> u32 {
        feed.proxy_begins();
        feed.vintage.written_from(start).changes
    }

    /// What a proxy is told of the watch when it begins.
    pub(in super::super) fn standing(&self, feed: &FeedHandle) -> FeedStatus {
        let written = feed.vintage.written_from(self.told);
        let written_by = written.by.filter(|_| self.changes == Some(written.changes));
        FeedStatus { stale_seconds: Sources::stale_seconds(feed), written_by }
    }

    /// Whether another build has come to write the feed's bodies, and the watch is of a proxy, which says so to nobody
    /// until it asks again.
    pub(super) fn has_another_writer(&self) -> bool {
        self.changes.is_some_and(|changes| changes != self.feed.vintage.changes())
    }

    /// Ends a watch that has told everything up to this version, if it is of a proxy and another build has come. Where
    /// the proxy goes on everything is by that build.
    pub(super) fn ends_for_another_writer(&mut self, reached: ResourceVersion) -> bool {
        let is_whole = || matches!(self.feed.reader.waits_for_whole(self.told), Settling::Already);
        if !self.has_another_writer() || !self.is_settled() || !is_whole() {
            return false;
        }
        match self.bookmark(reached) {
            Ok(bookmark) if self.bookmarks && reached > self.told => {
                self.phase = Phase::Last(Box::new((bookmark, WatchEnd::Upgraded)));
            }
            _ => self.end_without_a_word(WatchEnd::Upgraded),
        }
        true
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
        self.watchdog.clear_alarm();
        if self.changes.is_some() {
            self.feed.proxy_ends();
        }
        if !matches!(self.phase, Phase::Ended) {
            self.metrics.ended(self.watchdog.cut().why().map_or(WatchEnd::Closed, WatchEnd::Cut));
        }
    }
}
