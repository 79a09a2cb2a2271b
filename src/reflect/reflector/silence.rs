use std::time::Duration;

use tokio::time::Instant;

/// A duration for which a stream must be silent. Only time in which the task ran counts: a task that was not scheduled
/// for a while may have missed items that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamSilence {
    began: Instant,
    ends: Instant,
    lasts: Duration,
    /// Whether the silence was restarted once. It is not restarted again, because on an overloaded machine it would
    /// never end.
    is_second: bool,
}

/// The duration of a silence if no reader waits for its end; readers that do not wait see the result then.
const UNAWAITED: Duration = Duration::from_secs(1);
/// The minimum remaining duration once a reader begins to wait for the end, unless the silence ends sooner.
const LISTENED_MIN: Duration = Duration::from_millis(5);
/// A timer that fires later than this indicates that the task was not scheduled.
const LATE_MAX: Duration = Duration::from_millis(5);

impl StreamSilence {
    pub(super) fn from(now: Instant, lasts: Duration) -> Self {
        Self { began: now, ends: now + lasts, lasts, is_second: false }
    }

    /// The same silence while no reader waits for its end. If an event follows before that, the task is not woken for
    /// it.
    pub(super) fn unawaited(self) -> Self {
        Self { ends: self.ends.max(self.began + UNAWAITED), ..self }
    }

    /// The same silence once a reader waits for its end. The task has slept since the silence began, so it listens for
    /// a short time.
    pub(super) fn awaited(self, now: Instant) -> Self {
        let soonest = (self.began + self.lasts).max(now + LISTENED_MIN);
        Self { ends: self.ends.min(soonest), ..self }
    }

    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// Whether the silence has lasted long enough, provided that the task ran all the time.
    pub(super) fn has_lasted(&self, now: Instant) -> bool {
        now >= self.began + self.lasts
    }

    /// The remaining silence when the timer fires: `None`, or the full duration once more if the timer fired too late.
    pub(super) fn rest(self, now: Instant) -> Option<Self> {
        let is_late = now > self.ends + LATE_MAX;
        (is_late && !self.is_second).then(|| Self { is_second: true, ..Self::from(now, self.lasts) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_period_is_shortened_once_a_reader_waits() {
        let (start, lasts) = (Instant::now(), Duration::from_millis(10));
        let ms = |instant: Instant| instant.duration_since(start).as_millis();
        let silence = StreamSilence::from(start, lasts);
        assert_eq!((ms(silence.ends()), ms(silence.unawaited().ends())), (10, 1_000));
        for (waits_from, ends) in [(0, 10), (4, 10), (5, 10), (6, 11), (500, 505), (998, 1_000)] {
            let awaited = silence.unawaited().awaited(start + Duration::from_millis(waits_from));
            assert_eq!(ms(awaited.ends()), ends, "from {waits_from} ms on");
            assert_eq!(silence.awaited(start + Duration::from_millis(waits_from)), silence, "it was awaited before");
        }
        // A restarted silence has the plain duration, whether a reader waits or not.
        let again = silence.rest(start + Duration::from_millis(300)).expect("it was late");
        assert_eq!(ms(again.awaited(start + Duration::from_millis(301)).ends()), 310);
        assert_eq!([9, 10].map(|ms| silence.unawaited().has_lasted(start + Duration::from_millis(ms))), [false, true]);
        let longer = StreamSilence::from(start, Duration::from_secs(2));
        assert_eq!(ms(longer.unawaited().ends()), 2_000);
    }

    #[test]
    fn silence_timer_that_fires_late_is_restarted_once() {
        let (start, lasts) = (Instant::now(), Duration::from_millis(10));
        let first = StreamSilence::from(start, lasts);
        assert_eq!(first.ends(), start + lasts);
        for (late_ms, is_over) in [(0, true), (5, true), (6, false), (300, false)] {
            let fired = first.ends() + Duration::from_millis(late_ms);
            let rest = first.rest(fired);
            assert_eq!(rest.is_none(), is_over, "{late_ms} ms late");
            if let Some(again) = rest {
                assert_eq!(again.ends(), fired + lasts);
                assert_eq!(again.rest(again.ends() + Duration::from_secs(1)), None, "not a third time");
            }
        }
    }
}
