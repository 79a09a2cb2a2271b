use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::Rarely;

/// Owner of background tasks: each has a name, and all end with their owner.
///
/// Cloning shares the owner. Everything long-lived is spawned here, so that nothing outlives shutdown unseen.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `future` until it ends or the tasks are stopped, whichever is first.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let stop = Rarely::new(self.stop.clone().cancelled_owned());
        // Boxed once: moved into a block that awaits it, a future has its size twice.
        let future = Box::pin(future);
        let work = async move {
            tokio::select! {
                biased;
                () = stop => {}
                () = future => {}
            }
        };
        self.tracker.spawn(work.instrument(tracing::debug_span!("task", name)));
    }

    /// Waits for tasks that end by themselves, at most for so long; then stops what is left.
    pub async fn finish(&self, longest: Duration) {
        self.tracker.close();
        let _ = timeout(longest, self.tracker.wait()).await;
        self.join().await;
    }

    /// Stops every task and waits for the last one.
    pub async fn join(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
