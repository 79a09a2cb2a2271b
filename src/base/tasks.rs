use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

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
        let stop = self.stop.clone();
        let work = async move {
            tokio::select! {
                () = future => {}
                () = stop.cancelled() => {}
            }
        };
        self.tracker.spawn(work.instrument(tracing::debug_span!("task", name)));
    }

    /// A part of this owner that can also be stopped alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { tracker: self.tracker.clone(), stop: self.stop.child_token() }
    }

    /// Asks every task to end; does not wait.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Completes when the tasks have been stopped.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Stops every task and waits for the last one.
    pub async fn join(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
