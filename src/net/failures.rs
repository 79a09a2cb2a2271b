use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::idle_connections::ConnectionSource;

/// The recent failed handshakes, by source.
///
/// Each failure costs a signature, and a client can cause the next one at once. So a source with many failures waits a
/// moment before its next handshake.
#[derive(Debug, Default)]
pub(super) struct HandshakeFailures {
    /// The failures per source. One lock suffices: a look-up takes 0.1 µs and a handshake 1,000 µs. It also bounds the
    /// number of sources.
    of: Mutex<HashMap<ConnectionSource, LeakyBucket>>,
}

/// A leaky bucket that counts failures: its level at a time.
#[derive(Debug, Clone, Copy)]
struct LeakyBucket {
    failures: f64,
    at: Instant,
}

/// The number of recent failures that have no effect. A fleet whose certificates have all expired at once is not an
/// attack.
const FREE_MAX: f64 = 50.0;
/// The number of failed handshakes that are forgotten per second.
const FORGOTTEN_PER_SECOND: f64 = 10.0;
/// How long a source with too many failed handshakes waits.
const PAUSE: Duration = Duration::from_millis(200);
/// The maximum number of sources remembered. Beyond that, all are forgotten, which does not help an attacker with one
/// address.
const SOURCES_MAX: usize = 4_096;

impl HandshakeFailures {
    /// Records a failed handshake of a source.
    pub(super) fn note(&self, source: ConnectionSource) {
        let now = Instant::now();
        let mut of = self.of.lock();
        if of.len() >= SOURCES_MAX && !of.contains_key(&source) {
            of.clear();
        }
        let level = of.entry(source).or_insert(LeakyBucket { failures: 0.0, at: now });
        *level = LeakyBucket { failures: level.now(now) + 1.0, at: now };
    }

    /// Completes when a handshake of the source may begin: at once, unless many have failed.
    pub(super) async fn wait(&self, source: ConnectionSource) {
        let pauses = self.of.lock().get(&source).is_some_and(|level| level.now(Instant::now()) > FREE_MAX);
        if pauses {
            sleep(PAUSE).await;
        }
    }
}

impl LeakyBucket {
    fn now(&self, now: Instant) -> f64 {
        (self.failures - now.duration_since(self.at).as_secs_f64() * FORGOTTEN_PER_SECOND).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    fn source(last: u8) -> ConnectionSource {
        ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    #[tokio::test(start_paused = true)]
    async fn source_with_repeated_failures_is_delayed_and_others_are_not() {
        let failures = HandshakeFailures::default();
        let waits = |of| failures.wait(of).now_or_never().is_none();
        (0..50).for_each(|_| failures.note(source(1)));
        assert!(!waits(source(1)), "it may happen");
        failures.note(source(1));
        assert!(waits(source(1)) && !waits(source(2)));
        let began = Instant::now();
        failures.wait(source(1)).await;
        assert_eq!(began.elapsed(), PAUSE);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!waits(source(1)), "it is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn failure_table_bounds_number_of_sources() {
        let failures = HandshakeFailures::default();
        for at in 0..=u32::try_from(SOURCES_MAX).expect("few") {
            failures.note(ConnectionSource::V4(Ipv4Addr::from_bits(at)));
        }
        assert!(failures.of.lock().len() <= SOURCES_MAX);
    }
}
