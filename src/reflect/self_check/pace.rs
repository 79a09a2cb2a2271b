use std::time::Duration;

use tokio::time::Instant;

/// Limits how often a feed's state is discarded because it differs from upstream.
///
/// If the bug was in the cached history, discarding it once suffices. If the feed differs again soon, upstream's
/// watches and lists or the comparison itself are wrong. Clients must not relist repeatedly because of that.
#[derive(Debug, Default)]
pub(super) struct DivergenceRateLimit {
    /// The time at which the state was last discarded, and the number of times in a row before that.
    last: Option<(Instant, u32)>,
}

impl DivergenceRateLimit {
    const REST: Duration = Duration::from_secs(3600);
    const REST_MAX: Duration = Duration::from_secs(24 * 3600);

    fn rest(times: u32) -> Duration {
        Self::REST.saturating_mul(1 << times.min(10)).min(Self::REST_MAX)
    }

    /// Whether the state must not be discarded yet.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.last.is_some_and(|(at, times)| now.duration_since(at) < Self::rest(times))
    }

    pub(super) fn given_up(&mut self, now: Instant) {
        let again = self.last.filter(|(at, times)| now.duration_since(*at) < 2 * Self::rest(*times));
        self.last = Some((now, again.map_or(0, |(_, times)| times + 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeatedly_diverging_feed_is_discarded_with_backoff() {
        let (mut pace, mut now) = (DivergenceRateLimit::default(), Instant::now());
        assert!(!pace.is_resting(now));
        let hour = Duration::from_secs(3600);
        for hours in [1, 2, 4, 8, 16, 24, 24] {
            pace.given_up(now);
            let over = now + hours * hour;
            assert!(pace.is_resting(over - Duration::from_secs(1)) && !pace.is_resting(over), "{hours}");
            now = over;
        }
        now += 48 * hour;
        pace.given_up(now);
        assert!(!pace.is_resting(now + hour), "long after, it is the first one");
    }
}
