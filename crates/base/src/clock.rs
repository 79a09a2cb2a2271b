use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

/// The start of monotonic time in this process: the first use of the clock.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the nanoseconds since the process-wide epoch. Values are comparable only within this process.
pub fn now_ns() -> u64 {
    ns_at(Instant::now())
}

/// Returns the nanoseconds from the process-wide epoch to `moment`; 0 before the epoch.
pub fn ns_at(moment: Instant) -> u64 {
    u64::try_from(moment.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX)
}

/// Completes at `due`; never if `due` is `None`.
pub async fn sleep_until_opt(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The wall clock, which decides when credentials expire. It may be set forwards or backwards at any time, so nothing
/// is measured or ordered by it. Clones share the clock.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    /// The offset of the clock to the system's clock, in seconds.
    offset_seconds: Arc<AtomicI64>,
}

impl WallClock {
    #[allow(clippy::disallowed_methods, reason = "credentials expire by the wall clock")]
    pub fn now(&self) -> SystemTime {
        let offset_seconds = self.offset_seconds.load(Ordering::Relaxed);
        let (now, by) = (SystemTime::now(), Duration::from_secs(offset_seconds.unsigned_abs()));
        if offset_seconds < 0 { now - by } else { now + by }
    }

    /// Sets the clock forwards by `seconds`, or backwards if negative, like an administrator who sets a machine's
    /// clock.
    pub fn step(&self, seconds: i64) {
        self.offset_seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}
