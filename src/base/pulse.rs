use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::now_ns;

/// Tells others whether a runtime still runs its tasks. The runtime [beats](Self::beat); whoever is on another thread
/// asks for how long it has been silent. Clones are the same pulse.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<AtomicU64>);

/// The time between two beats. It wakes the process, also one that has nothing to do.
const EVERY: Duration = Duration::from_secs(5);
/// A runtime that has been silent for longer will not come back: whatever blocks it, a deadlock or work without end,
/// it serves nobody.
const SILENT_MAX: Duration = Duration::from_secs(30);

impl Pulse {
    /// A pulse that has just beaten.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(now_ns())))
    }

    /// Beats on the current runtime for as long as it is polled.
    pub async fn beat(self) -> Infallible {
        loop {
            self.0.store(now_ns(), Ordering::Relaxed);
            tokio::time::sleep(EVERY).await;
        }
    }

    /// How long it has been silent beyond the pause that is between two beats.
    pub fn silent(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.0.load(Ordering::Relaxed))).saturating_sub(EVERY)
    }

    /// Whether it is given up.
    pub fn is_lost(&self) -> bool {
        self.silent() > SILENT_MAX
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_beats_is_not_silent_and_one_that_does_not_is_lost_in_time() {
        let pulse = Pulse::new();
        let beating = tokio::spawn(pulse.clone().beat());
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(pulse.silent() < Duration::from_millis(10) && !pulse.is_lost(), "{:?}", pulse.silent());
        }
        beating.abort();
        tokio::time::sleep(SILENT_MAX).await;
        assert!(!pulse.is_lost(), "{:?}", pulse.silent());
        tokio::time::sleep(2 * EVERY).await;
        assert!(pulse.is_lost(), "{:?}", pulse.silent());
    }
}
