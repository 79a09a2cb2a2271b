use super::{WatchSessionContext, WatchSessionState};
use crate::cache::{EventFilterDecision, PullResult};
use crate::feeds::DerivedRepresentationRefusal;
use crate::serve::activity::WatchEndReason;
use crate::wire::TranscodeError;
use kubeapi::{ResourceVersion, Status};

/// The reason that a watch ends, and the last frame that its client receives.
pub(super) enum WatchExit {
    /// The client receives no further frame, and resumes after the last event.
    Silent(WatchEndReason),
    /// The client receives a bookmark at this version, from which it resumes.
    Bookmark(ResourceVersion, WatchEndReason),
    /// The watch ends with an ERROR event that has this Status.
    Error(Box<Status>, WatchEndReason),
    /// The client receives no further frame, because an object cannot be converted for it. The watch ends between two
    /// events, as watches may. The client resumes after the last version it has received, from a feed that has the
    /// whole object.
    Unrenderable(TranscodeError),
}

impl WatchExit {
    pub(super) fn error(status: Status, end: WatchEndReason) -> Self {
        Self::Error(Box::new(status), end)
    }
}

impl From<TranscodeError> for WatchExit {
    fn from(refused: TranscodeError) -> Self {
        Self::Unrenderable(refused)
    }
}

impl WatchSessionContext {
    /// Ends the watch, and counts the end, unless a last frame is to be sent first.
    pub(super) fn end(&self, exit: WatchExit) -> WatchSessionState {
        let (frame, end) = match exit {
            WatchExit::Silent(end) => (None, end),
            WatchExit::Bookmark(rv, end) => (self.bookmark(rv).ok(), end),
            WatchExit::Error(status, end) => {
                // From here on, the client has a limited time to read the frame.
                self.timers.watchdog().end();
                let envelope = self.cursor.renderer().envelope();
                (Some(envelope.error_frame(&status.to_event_json(), &status.to_protobuf())), end)
            }
            WatchExit::Unrenderable(refused) => {
                self.feed.refuse(
                    self.cursor.renderer().representation().full(),
                    DerivedRepresentationRefusal::UnsupportedObject,
                    &refused,
                );
                (None, WatchEndReason::NotDerivable)
            }
        };
        if let Some(frame) = frame {
            return WatchSessionState::Last(Box::new((frame, end)));
        }
        self.metrics.ended(end.as_str());
        WatchSessionState::Ended
    }

    /// Returns the exit of a drained watch with bookmarks. With a last bookmark, its client resumes here or at another
    /// replica without a list.
    pub(super) fn drained(&mut self) -> WatchExit {
        let (cursor, limits, batch) = (&mut self.cursor, (0, self.scan_budget.left()), &mut Vec::new());
        let pull = match &mut self.partial {
            Some(partial) => partial.pull(cursor, limits, None, batch),
            None => cursor.pull_filtered(None, limits, None, batch, |_, _| EventFilterDecision::Send),
        };
        match pull {
            PullResult::CaughtUp { progress } if self.is_settled() && progress.rv > self.last_sent_rv => {
                WatchExit::Bookmark(progress.rv, WatchEndReason::Drained)
            }
            _ => WatchExit::Silent(WatchEndReason::Drained),
        }
    }

    /// Returns the exit of a downstream proxy's watch that has sent everything up to the version `reached`, if another
    /// build has taken over. That build encodes all bodies after the version.
    pub(super) fn encoder_change_exit(&self, reached: ResourceVersion) -> Option<WatchExit> {
        if !self.encoder_changed() || !self.is_settled() {
            return None;
        }
        if self.bookmarks && reached > self.last_sent_rv {
            Some(WatchExit::Bookmark(reached, WatchEndReason::UpstreamUpgraded))
        } else {
            Some(WatchExit::Silent(WatchEndReason::UpstreamUpgraded))
        }
    }

    /// Whether only a part of the events of a version was sent. If the watch ended here, its client would resume after
    /// all of them. A partial view may wait for authorization decisions that never arrive, so it does not continue:
    /// it sends filtered events again when a permission is granted.
    pub(super) fn is_mid_version(&mut self) -> bool {
        self.partial.is_none()
            && !self.cursor.skips_version(self.last_sent_rv)
            && self.cursor.next_is_at(self.last_sent_rv)
    }
}
