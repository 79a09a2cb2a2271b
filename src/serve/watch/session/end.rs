use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::{Common, State};
use crate::cache::{Pull, Settling};
use crate::feeds::RenderingRefusal;
use crate::serve::activity::WatchEnd;
use crate::wire::Refused;
use kubeapi::{ResourceVersion, Status};

/// How long the end of a watch waits for the rest of a transaction.
const REST_MAX: Duration = Duration::from_secs(3);

/// A version that the end of the watch waits for, until it is complete or a timeout expires.
pub(super) struct AwaitedVersion {
    of: ResourceVersion,
    max: Pin<Box<Sleep>>,
}

/// Why a watch ends, and what its client receives last.
pub(super) enum Exit {
    /// Nothing: the client resumes after the last event.
    Silent(WatchEnd),
    /// A bookmark at this version, from which the client resumes.
    Bookmark(ResourceVersion, WatchEnd),
    /// An ERROR event.
    Error(Box<Status>, WatchEnd),
    /// Nothing, because an object cannot be rendered for this client. The watch ends between two events, as watches
    /// may. The client resumes after the last version it has seen, from a feed that has the whole object.
    Unrenderable(Refused),
}

impl Exit {
    pub(super) fn error(status: Status, end: WatchEnd) -> Self {
        Self::Error(Box::new(status), end)
    }
}

impl From<Refused> for Exit {
    fn from(refused: Refused) -> Self {
        Self::Unrenderable(refused)
    }
}

impl Common {
    /// Decides whether the watch ends before it sends more, and why. Otherwise, returns the state to continue with.
    ///
    /// A revocation comes first, even if frames are pending (A4). A live watch then ends for its renderer, its timeout or
    /// the drain, unless it must first send the rest of a version.
    pub(super) fn decide(&mut self, state: State, cx: &mut Context<'_>) -> Result<State, Exit> {
        if matches!(state, State::Last(_) | State::Ended) {
            return Ok(state);
        }
        if let Some(exit) = self.timers.revocation() {
            return Err(exit);
        }
        let mut rest = match state {
            State::Initial(_) => return self.timers.exit(cx).map_or(Ok(state), Err),
            State::Live => None,
            State::Ending(rest) => Some(rest),
            state => return Ok(state),
        };
        // A renderer is disproven before it is revoked, so this order of loads never misses a disproof.
        let is_revoked = self.cursor.renderer().is_revoked();
        if self.cursor.renderer().is_disproven() {
            // What this client holds may be wrong, and would stay so if it went on from here.
            let status = Status::too_old(self.last_sent_rv.0, self.feed.reader.progress().rv.0);
            return Err(Exit::error(status, WatchEnd::NotDerivable));
        }
        let exit = if is_revoked { Some(Exit::Silent(WatchEnd::NotDerivable)) } else { self.timers.exit(cx) };
        match exit {
            None => Ok(State::live(rest)),
            Some(Exit::Silent(end)) if self.is_amid(end, &mut rest, cx) => Ok(State::live(rest)),
            Some(Exit::Silent(WatchEnd::Drained)) if self.bookmarks => Err(self.drained()),
            Some(exit) => Err(exit),
        }
    }

    /// Ends the watch, and counts the end, unless a last frame is to be sent first.
    pub(super) fn end(&self, exit: Exit) -> State {
        let (frame, end) = match exit {
            Exit::Silent(end) => (None, end),
            Exit::Bookmark(rv, end) => (self.bookmark(rv).ok(), end),
            Exit::Error(status, end) => {
                // From here on, the client has a limited time to read the frame.
                self.timers.watchdog().end();
                let envelope = self.cursor.renderer().envelope();
                (Some(envelope.error_frame(&status.to_event_json(), &status.to_protobuf())), end)
            }
            Exit::Unrenderable(refused) => {
                self.feed.refuse(self.cursor.renderer().representation(), RenderingRefusal::Unrenderable, &refused);
                (None, WatchEnd::NotDerivable)
            }
        };
        if let Some(frame) = frame {
            return State::Last(Box::new((frame, end)));
        }
        self.metrics.ended(end);
        State::Ended
    }

    /// Returns the exit of a drained watch with bookmarks. With a last bookmark, its client resumes here or at another
    /// replica without a list.
    fn drained(&mut self) -> Exit {
        match self.pull(0, None, &mut Vec::new()) {
            Pull::CaughtUp { progress } if self.is_settled() && progress.rv > self.last_sent_rv => {
                Exit::Bookmark(progress.rv, WatchEnd::Drained)
            }
            _ => Exit::Silent(WatchEnd::Drained),
        }
    }

    /// Returns the exit of a downstream proxy's watch that has sent everything up to this version, if another build has
    /// taken over. All bodies after that version are written by that build.
    pub(super) fn exit_for_another_writer(&self, reached: ResourceVersion) -> Option<Exit> {
        let is_whole = || matches!(self.feed.reader.waits_for_whole(self.last_sent_rv), Settling::Already);
        if !self.has_another_writer() || !self.is_settled() || !is_whole() {
            return None;
        }
        if self.bookmarks && reached > self.last_sent_rv {
            Some(Exit::Bookmark(reached, WatchEnd::UpstreamUpgraded))
        } else {
            Some(Exit::Silent(WatchEnd::UpstreamUpgraded))
        }
    }

    /// Whether only a part of a transaction was sent, and the rest is pending or may still arrive. If the watch ended
    /// here, its client would resume after the whole transaction and miss the rest. In a drain with bookmarks, the
    /// watch also waits until the newest version is complete.
    fn is_amid(&mut self, end: WatchEnd, rest: &mut Option<AwaitedVersion>, cx: &mut Context<'_>) -> bool {
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
                return rests(self.last_sent_rv, rest, cx);
            }
        }
        if end == WatchEnd::Drained && self.bookmarks {
            // Keeps the newest version of the first call, because on a busy feed there is always a newer one.
            let newest = rest.as_ref().map_or_else(|| self.feed.reader.newest(), |rest| rest.of);
            if self.feed.reader.waits_for_whole(newest) == Settling::Soon {
                return rests(newest, rest, cx);
            }
        }
        false
    }

    /// Whether the end of the watch waits for an incomplete version.
    pub(super) fn is_resting(&self, rest: Option<&AwaitedVersion>) -> bool {
        rest.is_some_and(|rest| self.feed.reader.is_open(rest.of))
    }
}

/// Whether the end still waits for that version.
fn rests(of: ResourceVersion, rest: &mut Option<AwaitedVersion>, cx: &mut Context<'_>) -> bool {
    let rest = rest.get_or_insert_with(|| AwaitedVersion { of, max: Box::pin(sleep(REST_MAX)) });
    rest.of = of;
    rest.max.as_mut().poll(cx).is_pending()
}
