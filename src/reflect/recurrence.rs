use std::time::Duration;

use tokio::time::Instant;

/// The earliest time of an action that was in vain the last time. The wait doubles each time, from `FIRST` to `LONGEST`
/// seconds, and starts over after twice the wait.
#[derive(Debug, Default)]
pub(super) struct RecurrenceBackoff<const FIRST: u64, const LONGEST: u64> {
    /// When it happened last, and how many times in a row before that.
    last: Option<(Instant, u32)>,
}

impl<const FIRST: u64, const LONGEST: u64> RecurrenceBackoff<FIRST, LONGEST> {
    fn delay(times: u32) -> Duration {
        Duration::from_secs(FIRST).saturating_mul(1 << times.min(10)).min(Duration::from_secs(LONGEST))
    }

    /// The earliest time of the next one.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.last.map(|(at, times)| at + Self::delay(times))
    }

    pub(super) fn record(&mut self, now: Instant) {
        let again = self.last.filter(|(at, times)| now.duration_since(*at) < 2 * Self::delay(*times));
        self.last = Some((now, again.map_or(0, |(_, times)| times + 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recurring_actions_back_off_until_a_quiet_period() {
        let (mut recurrence, mut now) = (RecurrenceBackoff::<10, 300>::default(), Instant::now());
        assert_eq!(recurrence.earliest(), None);
        for delay in [10, 20, 40, 80, 160, 300, 300] {
            recurrence.record(now);
            now += Duration::from_secs(delay);
            assert_eq!(recurrence.earliest(), Some(now));
        }
        now += Duration::from_secs(600);
        recurrence.record(now);
        assert_eq!(recurrence.earliest(), Some(now + Duration::from_secs(10)), "long after, it is the first one");
    }
}
