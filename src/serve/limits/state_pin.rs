use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::cache;
use base::{AbortSignal, Timed, Timer, Timers};

/// A state that is being sent to a client, with a deadline that progress extends. If the deadline passes, the response
/// is aborted.
#[derive(Debug)]
pub(crate) struct StatePin {
    _pin: cache::Pin,
    deadline: Arc<StateDeadline>,
}

/// The deadline of a pinned state. Times are in microseconds, as those of [`Timers`].
#[derive(Debug)]
struct StateDeadline {
    timer: Timer,
    at: AtomicU64,
    /// The time after progress until the next deadline.
    max: Duration,
    cut: AbortSignal,
    why: &'static str,
}

impl StatePin {
    /// Starts the deadline of the pinned state. The signal `cut` ends the response with the reason `why`.
    pub(crate) fn new(
        pin: cache::Pin,
        timers: &Timers,
        (max, why): (Duration, &'static str),
        cut: &AbortSignal,
    ) -> Self {
        let (timer, at, cut) = (timers.timer(), AtomicU64::new(timers.after(max)), cut.clone());
        let deadline = Arc::new(StateDeadline { timer, at, max, cut, why });
        Timer::schedule(&deadline);
        Self { _pin: pin, deadline }
    }

    /// Moves the deadline, because the client has taken something.
    pub(crate) fn progressed(&self) {
        let StateDeadline { timer, at, max, .. } = &*self.deadline;
        // Otherwise, the timer is rescheduled when it fires.
        if at.swap(timer.timers().after(*max), Ordering::AcqRel) == Timers::NEVER {
            Timer::schedule(&self.deadline);
        }
    }

    /// Suspends the deadline until the next progress, because the response waits for something other than its client.
    pub(crate) fn pause(&self) {
        self.deadline.at.store(Timers::NEVER, Ordering::Release);
    }
}

impl Timed for StateDeadline {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn next(&self, now: u64) -> u64 {
        Some(self.at.load(Ordering::Acquire)).filter(|at| *at > now).unwrap_or(Timers::NEVER)
    }

    fn fire(&self, _at: u64, now: u64) {
        if self.at.load(Ordering::Acquire) <= now {
            self.cut.cut(self.why);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::cache::{CacheConfig, CacheWriter, Pins};
    use crate::wire::{Encoding, Envelope, JsonLayout};
    use kubeapi::Gvr;

    const MAX: Duration = Duration::from_secs(60);

    fn pin(timers: &Timers) -> (AbortSignal, StatePin) {
        let envelope = Envelope::new(Encoding::Json, "v1", "Pod", JsonLayout::BuiltIn);
        let (_writer, reader) = CacheWriter::new(CacheConfig::default(), Gvr::new("", "v1", "pods"), envelope, true);
        let cut = AbortSignal::default();
        let pin = reader.pin(&Pins::default(), &reader.snapshot(), cut.clone());
        (cut.clone(), StatePin::new(pin, timers, (MAX, "stalled"), &cut))
    }

    fn timers() -> Timers {
        let timers = Timers::default();
        tokio::spawn(timers.clone().run());
        timers
    }

    async fn pass(seconds: u64) {
        for _ in 0..seconds {
            advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_progress_moves_the_deadline() {
        let timers = timers();
        let ((stuck, _stuck_pin), (slow, slow_pin)) = (pin(&timers), pin(&timers));
        pass(32).await;
        slow_pin.progressed();
        pass(27).await;
        assert_eq!(stuck.why(), None);
        pass(3).await;
        assert_eq!((stuck.why(), slow.why()), (Some("stalled"), None));
        pass(29).await;
        assert_eq!(slow.why(), None);
        pass(3).await;
        assert_eq!(slow.why(), Some("stalled"));
        // The same again after all deadlines have passed.
        pass(100).await;
        let (late, _pin) = pin(&timers);
        pass(62).await;
        assert_eq!(late.why(), Some("stalled"));
    }

    #[tokio::test(start_paused = true)]
    async fn client_is_not_blamed_while_the_response_waits_for_something_else() {
        let timers = timers();
        let (cut, pin) = pin(&timers);
        pin.pause();
        pass(1_000).await;
        assert_eq!(cut.why(), None);
        pin.progressed();
        pass(58).await;
        assert_eq!(cut.why(), None);
        pass(4).await;
        assert_eq!(cut.why(), Some("stalled"));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_pin_cuts_nothing() {
        let timers = timers();
        let (cut, pin) = pin(&timers);
        drop(pin);
        pass(100).await;
        assert_eq!(cut.why(), None);
    }
}
