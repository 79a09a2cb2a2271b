use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

/// Where monotonic time starts in this process: its first use.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the process-wide epoch. Comparable between any two places in this process, and nowhere else.
pub fn now_ns() -> u64 {
    ns_at(Instant::now())
}

/// The same of a moment; 0 before the epoch.
pub fn ns_at(moment: Instant) -> u64 {
    u64::try_from(moment.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX)
}

/// Completes at `due`; never, if there is no such time.
pub async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The time of day, by which credentials end. It may be set at any moment, forwards and backwards: nothing is measured
/// or ordered by it. Clones are the same clock.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    /// How many seconds it is ahead of the system's.
    ahead: Arc<AtomicI64>,
}

impl WallClock {
    #[allow(clippy::disallowed_methods, reason = "nothing else says when a credential is over")]
    pub fn now(&self) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let (now, by) = (SystemTime::now(), Duration::from_secs(ahead.unsigned_abs()));
        if ahead < 0 { now - by } else { now + by }
    }

    /// Sets it forwards by so many seconds, or backwards, as whoever sets a machine's clock does.
    pub fn step(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::Relaxed);
    }
}
