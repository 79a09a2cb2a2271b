use std::time::Duration;

use tokio::time::Instant;

/// A time for which a stream has to be silent. Only what was listened to counts: a task that could not run for a while
/// has heard nothing, though more may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamSilence {
    began: Instant,
    ends: Instant,
    lasts: Duration,
    /// It has begun anew once. It does not a second time, or nothing would ever be silent on a machine without time.
    is_second: bool,
}

/// A silence lasts so long if nobody waits for its end: those who only look see it then.
const UNAWAITED: Duration = Duration::from_secs(1);
/// A silence lasts so much longer when somebody begins to wait for its end, unless it ends before.
const LISTENED_MIN: Duration = Duration::from_millis(5);
/// A timer that fires later than this tells of a task that could not run.
const LATE_MAX: Duration = Duration::from_millis(5);

impl StreamSilence {
    pub(super) fn from(now: Instant, lasts: Duration) -> Self {
        Self { began: now, ends: now + lasts, lasts, is_second: false }
    }

    /// The same while nobody waits for its end. An event that follows before that spares the task a wake-up.
    pub(super) fn unawaited(self) -> Self {
        Self { ends: self.ends.max(self.began + UNAWAITED), ..self }
    }

    /// The same once somebody waits for its end. The task has slept since it began, so it listens a little.
    pub(super) fn awaited(self, now: Instant) -> Self {
        let soonest = (self.began + self.lasts).max(now + LISTENED_MIN);
        Self { ends: self.ends.min(soonest), ..self }
    }

    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// Whether it has lasted long enough, for one who has heard all of it.
    pub(super) fn has_lasted(&self, now: Instant) -> bool {
        now >= self.began + self.lasts
    }

    /// What is still to be waited for when the timer fires: nothing, or the same time again if it fires too late.
    pub(super) fn rest(self, now: Instant) -> Option<Self> {
        let is_late = now > self.ends + LATE_MAX;
        (is_late && !self.is_second).then(|| Self { is_second: true, ..Self::from(now, self.lasts) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_lasts_no_longer_than_it_must_once_somebody_waits_for_its_end() {
        let (start, lasts) = (Instant::now(), Duration::from_millis(10));
        let ms = |instant: Instant| instant.duration_since(start).as_millis();
        let silence = StreamSilence::from(start, lasts);
        assert_eq!((ms(silence.ends()), ms(silence.unawaited().ends())), (10, 1_000));
        for (waits_from, ends) in [(0, 10), (4, 10), (5, 10), (6, 11), (500, 505), (998, 1_000)] {
            let awaited = silence.unawaited().awaited(start + Duration::from_millis(waits_from));
            assert_eq!(ms(awaited.ends()), ends, "from {waits_from} ms on");
            assert_eq!(silence.awaited(start + Duration::from_millis(waits_from)), silence, "it was awaited before");
        }
        // A second one is of its own length, whoever comes.
        let again = silence.rest(start + Duration::from_millis(300)).expect("it was late");
        assert_eq!(ms(again.awaited(start + Duration::from_millis(301)).ends()), 310);
        assert_eq!([9, 10].map(|ms| silence.unawaited().has_lasted(start + Duration::from_millis(ms))), [false, true]);
        let longer = StreamSilence::from(start, Duration::from_secs(2));
        assert_eq!(ms(longer.unawaited().ends()), 2_000);
    }

    #[test]
    fn silence_that_nobody_listened_to_is_waited_for_again_once() {
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
