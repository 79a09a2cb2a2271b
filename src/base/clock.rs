use std::sync::LazyLock;

use tokio::time::{Instant, sleep_until};

/// Where monotonic time starts in this process: its first use.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the process-wide epoch. Comparable between any two places in this process, and nowhere else.
pub fn now_ns() -> u64 {
    u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Completes at `due`; never, if there is no such time.
pub async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
