use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::random;

/// Starts a drain and detects its end.
///
/// A drain has two phases. In the **leaving** phase, the work in progress at its start ends, spread over time. New
/// clients are still served, because there may be no other server. In the **closing** phase, everything ends. It takes
/// `CLOSING_MAX` at most, because no server responds during that time. A held [`DrainWatch`] keeps the process alive
/// until the deadline (as in ztunnel's drain).
#[derive(Debug)]
pub struct DrainTrigger {
    stage: watch::Sender<DrainStage>,
    in_flight: TaskTracker,
    done: mpsc::Receiver<Never>,
    blocker: mpsc::Sender<Never>,
}

#[derive(Debug, Clone, Copy)]
enum DrainStage {
    Serving,
    Leaving(DrainDeadline),
    Closing,
}

#[derive(Debug, Clone, Copy)]
struct DrainDeadline {
    started: Instant,
    /// The maximum duration of the leaving phase, if work is in progress that long.
    leaving: Duration,
}

/// Observes a drain, and keeps the drain from ending until it is dropped.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    stage: watch::Receiver<DrainStage>,
    in_flight: TaskTracker,
    blocker: mpsc::Sender<Never>,
}

/// Keeps the drain from ending until dropped.
#[derive(Debug)]
pub struct DrainGuard {
    _in_flight: Option<InFlightGuard>,
    _blocker: mpsc::Sender<Never>,
}

/// Work in progress, which a drain lets end before the closing phase.
#[derive(Debug)]
pub struct InFlightGuard(#[expect(dead_code, reason = "it counts until it is dropped")] TaskTrackerToken);

/// A type without values, so that nothing can be sent: the channel only counts its senders.
#[derive(Debug)]
enum Never {}

/// The maximum duration of the closing phase, which is also limited to a [`CLOSING_SHARE`] of the drain time. No server
/// responds during it, nor until a successor has started. A leader that renews its lease every two seconds has ten
/// seconds to succeed.
const CLOSING_MAX: Duration = Duration::from_secs(2);
const CLOSING_SHARE: u32 = 5;

/// The fraction of the leaving phase in which connections are notified, spread over time. It precedes the end of their
/// streams, so that a reconnecting client uses another connection, and perhaps another replica.
const NOTICE: f64 = 0.1;
/// The fraction of the leaving phase after which all long-lived work has been notified to end. The rest of that phase
/// and the closing phase remain for final output, such as the rest of a version on a watch.
const LEAVING: f64 = 0.8;

impl DrainDeadline {
    /// Returns the time at which a fraction of the leaving phase has passed.
    fn at(self, part: f64) -> Instant {
        self.started + self.leaving.mul_f64(part)
    }
}

impl DrainTrigger {
    pub fn new() -> (Self, DrainWatch) {
        let (stage, watch) = watch::channel(DrainStage::Serving);
        let (blocker, done) = mpsc::channel(1);
        let in_flight = TaskTracker::new();
        let watch = DrainWatch { stage: watch, in_flight: in_flight.clone(), blocker: blocker.clone() };
        (Self { stage, in_flight, done, blocker }, watch)
    }

    /// Drains for at most `grace`, and no longer than work is in progress.
    ///
    /// Returns whether everything ended in time.
    pub async fn drain(self, grace: Duration) -> bool {
        let Self { stage, in_flight, mut done, blocker } = self;
        drop(blocker);
        let closing_max = CLOSING_MAX.min(grace / CLOSING_SHARE);
        let leaving = grace.saturating_sub(closing_max);
        stage.send_replace(DrainStage::Leaving(DrainDeadline { started: Instant::now(), leaving }));
        in_flight.close();
        let _ = timeout(leaving, in_flight.wait()).await;
        stage.send_replace(DrainStage::Closing);
        timeout(closing_max, done.recv()).await.is_ok()
    }
}

impl DrainWatch {
    pub fn has_started(&self) -> bool {
        !matches!(*self.stage.borrow(), DrainStage::Serving)
    }

    /// Completes when the drain starts.
    pub async fn started(&mut self) {
        // An error means that the trigger was dropped: the process is ending, which is a drain without grace.
        let _ = self.stage.wait_for(|stage| !matches!(stage, DrainStage::Serving)).await;
    }

    /// Completes when the closing phase starts: no new clients are accepted, and everything must end.
    pub async fn closing(&mut self) {
        let _ = self.stage.wait_for(|stage| matches!(stage, DrainStage::Closing)).await;
    }

    /// Completes when the drain starts, with the interval over which earlier work ends. The spread keeps a thousand
    /// closed connections from becoming a thousand simultaneous reconnects (like typha's paced shutdown). `None` if
    /// everything closes at once. Clients that arrive during the drain have found no other server, and stay until the
    /// closing phase.
    pub async fn slots(&mut self) -> Option<(Instant, Instant)> {
        match *self.stage.wait_for(|stage| !matches!(stage, DrainStage::Serving)).await.ok()? {
            DrainStage::Leaving(deadline) => Some((deadline.at(NOTICE), deadline.at(LEAVING))),
            DrainStage::Serving | DrainStage::Closing => None,
        }
    }

    /// Completes at a random time for this holder to notify its client, before any of its streams end.
    pub fn notice_due(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut stage, is_late) = (self.stage.clone(), self.has_started());
        async move {
            let slot = stage.wait_for(|stage| !matches!(stage, DrainStage::Serving)).await.map(|stage| match *stage {
                DrainStage::Leaving(deadline) if !is_late => Some(deadline),
                _ => None,
            });
            match slot {
                Ok(Some(deadline)) => sleep_until(deadline.at(NOTICE * random::f64())).await,
                Ok(None) => drop(stage.wait_for(|stage| matches!(stage, DrainStage::Closing)).await),
                Err(_) => {}
            }
        }
    }

    /// Registers long-lived work, which a drain lets end before the closing phase. Work that begins during a drain does
    /// not delay it; otherwise returning clients would.
    pub fn in_flight(&self) -> InFlightGuard {
        InFlightGuard(self.in_flight.token())
    }

    /// Returns a guard that keeps the drain from ending until it is dropped.
    pub fn block_end(&self) -> DrainGuard {
        let in_flight = (!self.has_started()).then(|| self.in_flight());
        DrainGuard { _in_flight: in_flight, _blocker: self.blocker.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn drain_waits_for_every_holder() {
        let (trigger, watch) = DrainTrigger::new();
        let mut holder = watch.clone();
        drop(watch);
        let guard = holder.block_end();
        let work = tokio::spawn(async move {
            holder.started().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(guard);
        });
        let began = Instant::now();
        assert!(trigger.drain(Duration::from_secs(10)).await);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        work.await.expect("the holder ends by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn drain_gives_up_at_the_deadline() {
        for seconds in [0, 1, 5, 20, 600] {
            let (trigger, watch) = DrainTrigger::new();
            let _held = watch.block_end();
            drop(watch);
            let (grace, began) = (Duration::from_secs(seconds), Instant::now());
            assert!(!trigger.drain(grace).await);
            assert!(began.elapsed() <= grace + Duration::from_millis(2), "{:?}", began.elapsed());
        }
    }

    /// Compares with the millisecond precision of timers.
    fn is_about(time: Duration, expected: Duration) -> bool {
        time.abs_diff(expected) <= Duration::from_millis(2)
    }

    /// However long the drain is, the server is unavailable for two seconds at most.
    #[tokio::test(start_paused = true)]
    async fn drain_ends_with_a_closing_phase_of_at_most_two_seconds() {
        for (grace, guard, leaving, closing) in [(20, 100, 18, 2), (600, 1_000, 598, 2), (5, 100, 4, 1), (20, 3, 3, 2)]
        {
            let (trigger, mut watch) = DrainTrigger::new();
            let (began, seconds) = (Instant::now(), Duration::from_secs);
            let in_flight = watch.in_flight();
            tokio::spawn(async move {
                tokio::time::sleep(seconds(guard)).await;
                drop(in_flight);
            });
            let draining = tokio::spawn(trigger.drain(seconds(grace)));
            watch.started().await;
            assert_eq!(began.elapsed(), Duration::ZERO);
            watch.closing().await;
            let closed = began.elapsed();
            assert!(is_about(closed, seconds(leaving)), "{grace} s: {closed:?}");
            // The drain now waits for the watch itself.
            assert!(!draining.await.expect("no panic"));
            assert!(is_about(began.elapsed(), closed + seconds(closing)), "{grace} s: {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_client_is_served_until_closing_without_delaying_drain() {
        let (trigger, watch) = DrainTrigger::new();
        let (mut early, in_flight) = (watch.clone(), watch.in_flight());
        let draining = tokio::spawn(trigger.drain(GRACE));
        let began = Instant::now();
        let (first, last) = early.slots().await.expect("there is time to leave");
        let leaving = GRACE.saturating_sub(CLOSING_MAX);
        assert_eq!((first - began, last - began), (leaving.mul_f64(NOTICE), leaving.mul_f64(LEAVING)));
        let (late, late_work) = (watch.notice_due(), watch.block_end());
        sleep_until(first).await;
        let ended = began.elapsed();
        drop((early, in_flight));
        late.await;
        assert_eq!(began.elapsed(), ended, "it closes when those who were there are gone");
        drop((late_work, watch));
        assert!(draining.await.expect("no panic"));
        assert_eq!(began.elapsed(), ended);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_notifies_connections_before_their_streams_end() {
        let (trigger, watch) = DrainTrigger::new();
        let notices: Vec<_> = (0..100).map(|_| watch.notice_due()).collect();
        let began = Instant::now();
        let _draining = tokio::spawn(trigger.drain(GRACE));
        let _held = watch.block_end();
        let (first, _) = watch.clone().slots().await.expect("there is time to leave");
        futures_util::future::join_all(notices).await;
        let reported = began.elapsed();
        assert!(reported > Duration::ZERO && reported <= first - began + Duration::from_millis(1), "{reported:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn watch_without_trigger_has_no_drain_interval() {
        let (trigger, mut watch) = DrainTrigger::new();
        drop(trigger);
        assert_eq!(watch.slots().await, None);
    }
}
