use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::changes::SETTLES;

/// What is known of changes of policy as such: whether they are heard, and since when.
#[derive(Debug)]
pub(super) struct PolicyWatchState(Mutex<Heard>);

#[derive(Debug, Clone, Copy)]
struct Heard {
    /// Whether a change would be heard at once.
    is_open: bool,
    /// When one was heard last, or that began or ended.
    moved: Instant,
    /// Since when none can have been missed; what comes while nothing is heard is heard afterwards.
    whole_since: Instant,
}

impl PolicyWatchState {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self(Mutex::new(Heard { is_open: false, moved: now, whole_since: now }))
    }

    /// Notes that a change is heard.
    pub(super) fn changed(&self) {
        self.0.lock().moved = Instant::now();
    }

    /// Notes that changes of one more kind of objects are heard from now on, and that earlier ones may have been
    /// missed.
    pub(super) fn begins(&self) {
        let (now, mut heard) = (Instant::now(), self.0.lock());
        (heard.moved, heard.whole_since) = (now, now);
    }

    /// Notes whether changes of all kinds are heard.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut heard = self.0.lock();
        if heard.is_open != is_open {
            (heard.is_open, heard.moved) = (is_open, Instant::now());
        }
    }

    /// When a change was heard last, or hearing them began or ended.
    pub(super) fn moved(&self) -> Instant {
        self.0.lock().moved
    }

    /// Since when no change has been heard; `None` where it would not be.
    pub(super) fn unchanged_since(&self) -> Option<Instant> {
        let heard = *self.0.lock();
        heard.is_open.then_some(heard.moved)
    }

    /// Whether RBAC still gives what it gave when upstream was asked: each change is heard, and each was heard that
    /// upstream's authorizers may not have known yet at that moment. Whoever asks has let go of what a change has
    /// touched. An authorizer in front of RBAC may have begun to deny, so not for longer than `max`.
    pub(super) fn upholds(&self, asked: Instant, max: Duration) -> bool {
        let heard = *self.0.lock();
        asked.elapsed() < max && heard.is_open && asked >= heard.whole_since + SETTLES
    }
}
