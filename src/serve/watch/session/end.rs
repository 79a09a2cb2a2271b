use std::task::Context;

use super::{WatchSessionContext, WatchSessionState};
use crate::cache::PullResult;
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
    /// Decides whether the watch ends before it sends more, and why. Otherwise, returns the state to continue with.
    ///
    /// A revocation comes first, even if frames are pending (A4), except for the rest of a chunk of the initial state.
    /// A live watch then ends for its renderer, its timeout or the drain, unless it must first send the rest of a
    /// version.
    pub(super) fn decide(
        &mut self,
        state: WatchSessionState,
        cx: &Context<'_>,
    ) -> Result<WatchSessionState, WatchExit> {
        if matches!(state, WatchSessionState::Last(_) | WatchSessionState::Ended) {
            return Ok(state);
        }
        // A watch ends between two events (W13). Its timers are not read here, so a client that does not read the rest
        // of the chunk is cut after the grace period.
        if matches!(&state, WatchSessionState::Initial(initial) if initial.is_within_chunk()) {
            return Ok(state);
        }
        if let Some(exit) = self.timers.revocation() {
            return Err(exit);
        }
        match state {
            WatchSessionState::Initial(_) => return self.timers.exit(cx).map_or(Ok(state), Err),
            WatchSessionState::Live => {}
            state => return Ok(state),
        }
        // A renderer is disproven before it is revoked, so this order of loads never misses a disproof.
        let is_revoked = self.cursor.renderer().is_revoked();
        if self.cursor.renderer().is_disproven() {
            // What this client holds may be wrong, and would stay so if it went on from here.
            let status = Status::too_old(self.last_sent_rv.0, self.feed.reader.progress().rv.0);
            return Err(WatchExit::error(status, WatchEndReason::NotDerivable));
        }
        let exit =
            if is_revoked { Some(WatchExit::Silent(WatchEndReason::NotDerivable)) } else { self.timers.exit(cx) };
        match exit {
            None => Ok(WatchSessionState::Live),
            Some(WatchExit::Silent(_)) if self.is_amid() => Ok(WatchSessionState::Live),
            Some(WatchExit::Silent(WatchEndReason::Drained)) if self.bookmarks => Err(self.drained()),
            Some(exit) => Err(exit),
        }
    }

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
                    self.cursor.renderer().representation(),
                    DerivedRepresentationRefusal::Unrenderable,
                    &refused,
                );
                (None, WatchEndReason::NotDerivable)
            }
        };
        if let Some(frame) = frame {
            return WatchSessionState::Last(Box::new((frame, end)));
        }
        self.metrics.ended(end);
        WatchSessionState::Ended
    }

    /// Returns the exit of a drained watch with bookmarks. With a last bookmark, its client resumes here or at another
    /// replica without a list.
    fn drained(&mut self) -> WatchExit {
        match self.pull(0, None, &mut Vec::new()) {
            PullResult::CaughtUp { progress } if self.is_settled() && progress.rv > self.last_sent_rv => {
                WatchExit::Bookmark(progress.rv, WatchEndReason::Drained)
            }
            _ => WatchExit::Silent(WatchEndReason::Drained),
        }
    }

    /// Returns the exit of a downstream proxy's watch that has sent everything up to the version `reached`, if another
    /// build has taken over. That build encodes all bodies after the version.
    pub(super) fn exit_for_another_writer(&self, reached: ResourceVersion) -> Option<WatchExit> {
        if !self.has_another_writer() || !self.is_settled() {
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
    fn is_amid(&mut self) -> bool {
        self.partial.is_none() && !self.cursor.skips(self.last_sent_rv) && self.cursor.is_next_at(self.last_sent_rv)
    }
}
