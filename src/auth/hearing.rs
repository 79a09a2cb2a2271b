use parking_lot::Mutex;
use tokio::time::Instant;

use super::changes::SETTLES;

/// What is known of changes of policy as such: whether they are heard, and since when.
#[derive(Debug)]
pub(super) struct Hearing(Mutex<Heard>);

#[derive(Debug, Clone, Copy)]
struct Heard {
    /// Whether a change would be heard at once.
    is_open: bool,
    /// When one was heard last, or that began or ended.
    moved: Instant,
    /// Since when none can have been missed; what comes while nothing is heard is heard afterwards.
    whole_since: Instant,
}

impl Hearing {
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
    pub(super) fn is(&self, is_open: bool) {
        let mut heard = self.0.lock();
        if heard.is_open != is_open {
            (heard.is_open, heard.moved) = (is_open, Instant::now());
        }
    }

    /// Since when no change has been heard; `None` where it would not be.
    pub(super) fn unchanged_since(&self) -> Option<Instant> {
        let heard = *self.0.lock();
        heard.is_open.then_some(heard.moved)
    }

    /// Whether each change is heard, and each was that upstream's authorizers may not have known yet at that moment.
    pub(super) fn has_heard_all_since(&self, asked: Instant) -> bool {
        let heard = *self.0.lock();
        heard.is_open && asked >= heard.whole_since + SETTLES
    }
}
