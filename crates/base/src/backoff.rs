use std::time::Duration;

use tokio::time::Instant;

use super::random;

/// The wait before the next attempt. It doubles with each failure, has jitter, and is reset after two minutes without
/// failures.
///
/// The defaults are those of client-go's reflector (800 ms to 30 s, reset after 2 min; R-CLIENT-2), so that a fleet of
/// proxies loads a returning apiserver no more than a fleet of informers.
#[derive(Debug)]
pub struct Backoff {
    bounds: BackoffBounds,
    next: Duration,
    healthy_since: Option<Instant>,
}

/// The first and the longest delay between retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffBounds {
    pub first: Duration,
    pub longest: Duration,
}

impl BackoffBounds {
    /// The waits after the proxy's identity was refused. The first is half a minute, because an apiserver that has just
    /// started denies requests until its caches are filled. The longest is an hour, because permissions rarely change
    /// more often.
    pub const REFUSED: Self = Self { first: Duration::from_secs(30), longest: Duration::from_secs(60 * 60) };

    /// Returns the delay after `times` failures in a row without jitter. It doubles with each failure.
    pub fn doubled(self, times: u32) -> Duration {
        self.first.saturating_mul(1 << times.saturating_sub(1).min(31)).min(self.longest)
    }

    /// Returns the delay after `times` failures in a row. Delays after the first are up to a fifth shorter, so that
    /// thousands of processes that started together do not retry at the same time.
    pub fn after(self, times: u32) -> Duration {
        let wait = self.doubled(times);
        if times <= 1 { wait } else { wait.mul_f64(1.0 - random::f64() / 5.0) }
    }
}

impl Default for BackoffBounds {
    fn default() -> Self {
        Self { first: Backoff::FIRST, longest: Backoff::LONGEST }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(BackoffBounds::default())
    }
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const LONGEST: Duration = Duration::from_secs(30);
    const HEALTHY: Duration = Duration::from_secs(120);

    pub fn new(bounds: BackoffBounds) -> Self {
        Self { bounds, next: bounds.first, healthy_since: None }
    }

    /// Records a success. If no failure follows for two minutes, the next failure starts from the shortest wait again.
    pub fn succeeded(&mut self, now: Instant) {
        self.healthy_since.get_or_insert(now);
    }

    /// Records a failure. Returns the delay: in `[d, 2d)` for a `d` that doubles with each failure, up to the longest
    /// delay, from which up to a fifth is cut off at random.
    pub fn failed(&mut self, now: Instant) -> Duration {
        if self.healthy_since.take().is_some_and(|since| now.duration_since(since) >= Self::HEALTHY) {
            self.next = self.bounds.first;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(self.bounds.longest);
        let random = random::f64();
        wait.mul_f64(1.0 + random).min(self.bounds.longest.mul_f64(1.0 - random / 5.0))
    }

    /// Records a failure after which the server requested a delay (`Retry-After`), of which at most 30 s count. Returns
    /// the longer of [`failed`](Self::failed) and that delay with up to half of it as jitter, because a server requests
    /// the same delay from all clients that it refuses at once.
    pub fn refused(&mut self, now: Instant, requested: Duration) -> Duration {
        self.failed(now).max(requested.min(Self::LONGEST).mul_f64(1.0 + random::f64() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..8).map(|_| backoff.failed(now)).collect();
        assert!(delays[0] >= Backoff::FIRST && delays[0] < Backoff::FIRST * 2, "{delays:?}");
        assert!(delays[1] >= Backoff::FIRST * 2, "{delays:?}");
        assert!(delays[7] > Backoff::LONGEST.mul_f64(0.8) && delays[7] <= Backoff::LONGEST, "{delays:?}");
    }

    /// Thousands of processes that wait for the same apiserver do not retry together.
    #[test]
    fn delays_at_the_maximum_are_jittered() {
        let now = Instant::now();
        for longest in [Backoff::FIRST, Backoff::LONGEST] {
            let mut backoff = Backoff::new(BackoffBounds { first: Backoff::FIRST, longest });
            let delays: Vec<_> = (0..40).map(|_| backoff.failed(now)).skip(8).collect();
            let distinct: std::collections::HashSet<_> = delays.iter().collect();
            assert!(distinct.len() > 16, "{delays:?}");
            assert!(delays.iter().all(|delay| *delay >= longest.mul_f64(0.8) && *delay <= longest), "{delays:?}");
        }
    }

    #[test]
    fn refused_requests_retry_with_backoff_up_to_one_hour() {
        let delay = |times| BackoffBounds::REFUSED.after(times).as_secs_f64();
        assert!((delay(1) - 30.0).abs() < 0.001);
        for (times, longest) in (2..).zip([60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]) {
            let wait = delay(times);
            assert!(wait <= longest && wait >= longest * 0.8, "{times}: {wait}");
        }
        assert!(delay(u32::MAX) <= 3600.0);
    }

    #[test]
    fn backoff_resets_only_after_a_long_success() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        for _ in 0..6 {
            let _ = backoff.failed(start);
        }
        backoff.succeeded(start);
        assert!(backoff.failed(start + Duration::from_secs(5)) > Backoff::FIRST * 2);
        backoff.succeeded(start);
        assert!(backoff.failed(start + Backoff::HEALTHY) < Backoff::FIRST * 2);
    }
}
