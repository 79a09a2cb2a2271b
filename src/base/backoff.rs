use std::time::Duration;

use tokio::time::Instant;

/// How long to wait before the next attempt: doubling, with jitter, forgotten after a healthy spell.
///
/// The numbers are client-go's reflector's (800 ms to 30 s, reset after 2 min; semantics.md §9.1), so that a fleet of
/// proxies is as gentle on a returning apiserver as a fleet of informers.
#[derive(Debug)]
pub struct Backoff {
    waits: Waits,
    next: Duration,
    healthy_since: Option<Instant>,
}

/// The first wait and the longest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self { first: Backoff::FIRST, longest: Backoff::LONGEST }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(Waits::default())
    }
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const LONGEST: Duration = Duration::from_secs(30);
    const HEALTHY: Duration = Duration::from_secs(120);

    pub fn new(waits: Waits) -> Self {
        Self { waits, next: waits.first, healthy_since: None }
    }

    /// An attempt worked; if it keeps working for two minutes, the next failure starts from the shortest wait again.
    pub fn succeeded(&mut self, now: Instant) {
        self.healthy_since.get_or_insert(now);
    }

    /// An attempt failed: how long to wait, in `[d, 2d)` for a `d` that doubles with each failure.
    pub fn failed(&mut self, now: Instant) -> Duration {
        if self.healthy_since.take().is_some_and(|since| now.duration_since(since) >= Self::HEALTHY) {
            self.next = self.waits.first;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(self.waits.longest);
        wait.mul_f64(1.0 + fastrand::f64()).min(self.waits.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_longest_wait() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.failed(now)).collect();
        assert!(waits[0] >= Backoff::FIRST && waits[0] < Backoff::FIRST * 2, "{waits:?}");
        assert!(waits[1] >= Backoff::FIRST * 2, "{waits:?}");
        assert_eq!(waits[7], Backoff::LONGEST);
    }

    #[test]
    fn a_short_success_does_not_reset_it_and_a_long_one_does() {
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
