use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};

use super::now_ns;

/// Detects runtimes that no longer run their tasks. Each runtime [beats](Self::beat); a caller on another thread gets
/// the longest silence of any of them. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct RuntimeHeartbeat(Arc<Mutex<Vec<Arc<RuntimeBeats>>>>);

/// The heartbeats of one runtime.
#[derive(Debug)]
struct RuntimeBeats {
    /// The time of the runtime's last heartbeat.
    last: AtomicU64,
    /// The metrics of the runtime, set at its first heartbeat.
    runtime: OnceLock<RuntimeMetrics>,
}

/// The interval between two heartbeats. Each wakes the process, even an idle one.
const EVERY: Duration = Duration::from_secs(5);
/// The silence after which a runtime is considered lost: a deadlock or an endless loop blocks it, and it serves no
/// requests.
const STALLED_AFTER: Duration = Duration::from_secs(30);

impl RuntimeHeartbeat {
    /// Sends heartbeats on the runtime that runs the future. The silence is measured from this call, even if that
    /// runtime never runs the future.
    pub fn beat(&self) -> impl Future<Output = Infallible> + Send + use<> {
        let beats = Arc::new(RuntimeBeats { last: AtomicU64::new(now_ns()), runtime: OnceLock::new() });
        self.0.lock().push(beats.clone());
        async move {
            beats.runtime.get_or_init(|| Handle::current().metrics());
            loop {
                beats.last.store(now_ns(), Ordering::Relaxed);
                tokio::time::sleep(EVERY).await;
            }
        }
    }

    /// Returns the longest silence of a runtime, beyond the interval between two heartbeats.
    pub fn silent(&self) -> Duration {
        let last = self.0.lock().iter().map(|beats| beats.last.load(Ordering::Relaxed)).min();
        last.map_or(Duration::ZERO, |last| Duration::from_nanos(now_ns().saturating_sub(last)).saturating_sub(EVERY))
    }

    /// Returns the number of tasks on all runtimes that have sent a heartbeat.
    pub fn tasks(&self) -> usize {
        self.0.lock().iter().filter_map(|beats| beats.runtime.get()).map(RuntimeMetrics::num_alive_tasks).sum()
    }

    /// Whether a runtime has sent no heartbeat for so long that it is considered lost.
    pub fn is_stalled(&self) -> bool {
        self.silent() > STALLED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn runtime_is_lost_only_after_its_heartbeat_stops() {
        let heartbeat = RuntimeHeartbeat::default();
        let (_other, beating) = (tokio::spawn(heartbeat.beat()), tokio::spawn(heartbeat.beat()));
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(
                heartbeat.silent() < Duration::from_millis(10) && !heartbeat.is_stalled(),
                "{:?}",
                heartbeat.silent()
            );
        }
        assert_eq!(heartbeat.tasks(), 2 * 2, "two tasks, counted twice: this runtime beats twice");
        beating.abort();
        tokio::time::sleep(STALLED_AFTER).await;
        assert!(!heartbeat.is_stalled(), "{:?}", heartbeat.silent());
        tokio::time::sleep(2 * EVERY).await;
        assert!(heartbeat.is_stalled(), "{:?}", heartbeat.silent());
    }
}
