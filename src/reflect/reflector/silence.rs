use std::time::Duration;

use tokio::time::Instant;

/// A time for which a stream has to be silent. Only what was listened to counts: a task that could not run for a while
/// has heard nothing, though more may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Silence {
    ends: Instant,
    lasts: Duration,
    /// It has begun anew once. It does not a second time, or nothing would ever be silent on a machine without time.
    is_second: bool,
}

/// A timer that fires later than this tells of a task that could not run.
const LATE_MAX: Duration = Duration::from_millis(5);

impl Silence {
    pub(super) fn from(now: Instant, lasts: Duration) -> Self {
        Self { ends: now + lasts, lasts, is_second: false }
    }

    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// What is still to be waited for when the timer fires: nothing, or the same time again if it fires too late.
    pub(super) fn rest(self, now: Instant) -> Option<Self> {
        let is_late = now > self.ends + LATE_MAX;
        (is_late && !self.is_second).then(|| Self { ends: now + self.lasts, is_second: true, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_that_nobody_listened_to_is_waited_for_again_once() {
        let (start, lasts) = (Instant::now(), Duration::from_millis(10));
        let first = Silence::from(start, lasts);
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
