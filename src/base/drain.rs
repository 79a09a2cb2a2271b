use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Starts a drain and knows when it is over: when every [`Draining`] has been dropped.
///
/// Shutdown is ownership: whoever holds a blocker keeps the process alive until the deadline (ztunnel's drain).
#[derive(Debug)]
pub struct DrainTrigger {
    signal: watch::Sender<Option<Deadline>>,
    done: mpsc::Receiver<Never>,
    blocker: mpsc::Sender<Never>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    started: Instant,
    grace: Duration,
}

/// Tells its holder that a drain began.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    signal: watch::Receiver<Option<Deadline>>,
    blocker: mpsc::Sender<Never>,
}

/// Holds the drain open until dropped.
#[derive(Debug)]
pub struct Draining {
    _blocker: mpsc::Sender<Never>,
}

/// Cannot be made, so nobody can send it: the channel only counts its senders.
#[derive(Debug)]
enum Never {}

impl DrainTrigger {
    pub fn new() -> (Self, DrainWatch) {
        let (signal, watch) = watch::channel(None);
        let (blocker, done) = mpsc::channel(1);
        (Self { signal, done, blocker: blocker.clone() }, DrainWatch { signal: watch, blocker })
    }

    /// Starts the drain and waits for every blocker, at most `grace`.
    ///
    /// Returns whether all were gone in time.
    pub async fn drain(self, grace: Duration) -> bool {
        let Self { signal, mut done, blocker } = self;
        drop(blocker);
        signal.send_replace(Some(Deadline { started: Instant::now(), grace }));
        tokio::time::timeout(grace, done.recv()).await.is_ok()
    }
}

impl DrainWatch {
    /// Completes when the drain starts.
    pub async fn started(&mut self) -> Draining {
        // An error means that the trigger is gone: the process is ending, which is a drain without grace.
        let _ = self.signal.wait_for(Option::is_some).await;
        Draining { _blocker: self.blocker.clone() }
    }

    /// Completes at this holder's own moment inside the grace period, so that a thousand goodbyes are spread over it
    /// instead of becoming a thousand reconnects at once (typha's paced shutdown).
    pub async fn my_slot(mut self) -> Draining {
        let held = self.started().await;
        let deadline = *self.signal.borrow();
        if let Some(Deadline { started, grace }) = deadline {
            tokio::time::sleep_until(started + grace.mul_f64(0.8 * fastrand::f64())).await;
        }
        held
    }

    /// Keeps the drain from ending while held, from now on.
    pub fn hold(&self) -> Draining {
        Draining { _blocker: self.blocker.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_every_holder() {
        let (trigger, watch) = DrainTrigger::new();
        let mut holder = watch.clone();
        drop(watch);
        let work = tokio::spawn(async move {
            let held = holder.started().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(held);
        });
        assert!(trigger.drain(Duration::from_secs(10)).await);
        work.await.expect("the holder ends by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_at_the_deadline() {
        let (trigger, watch) = DrainTrigger::new();
        let _held = watch.hold();
        drop(watch);
        assert!(!trigger.drain(Duration::from_secs(1)).await);
    }
}
