use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::random;

/// Starts a drain and knows when it is over.
///
/// A drain has two parts. While what was under way at its start **leaves**, each at a moment of its own, whoever comes
/// is still served: there may be nobody else who would. Then everything **closes**, which takes `CLOSING_MAX` at
/// most, for that is how long nobody answers. Whoever has a [`DrainWatch`] keeps the process alive until the deadline
/// (ztunnel's drain).
#[derive(Debug)]
pub struct DrainTrigger {
    stage: watch::Sender<Stage>,
    under_way: TaskTracker,
    done: mpsc::Receiver<Never>,
    blocker: mpsc::Sender<Never>,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Serving,
    Leaving(Deadline),
    Closing,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    started: Instant,
    /// How long it takes until everything closes, if anything is under way for so long.
    leaving: Duration,
}

/// Tells its holder how far a drain is, and keeps it from ending.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    stage: watch::Receiver<Stage>,
    under_way: TaskTracker,
    blocker: mpsc::Sender<Never>,
}

/// Holds the drain open until dropped.
#[derive(Debug)]
pub struct Draining {
    _under_way: Option<UnderWay>,
    _blocker: mpsc::Sender<Never>,
}

/// Something that is under way: in a drain it leaves before anything closes.
#[derive(Debug)]
pub struct UnderWay(#[expect(dead_code, reason = "it counts until it is dropped")] TaskTrackerToken);

/// A type without values, so that nobody can send one: the channel only counts its senders.
#[derive(Debug)]
enum Never {}

/// The longest time that closing may take; it is also a [`CLOSING_SHARE`] of the drain time at most. Nobody answers
/// meanwhile, nor until a successor has started: a leader that renews every two seconds has ten to succeed in.
const CLOSING_MAX: Duration = Duration::from_secs(2);
const CLOSING_SHARE: u32 = 5;

/// The part of the leaving in which connections are told, each at a moment of its own. It comes before anything on
/// them ends: a client that comes back uses another connection, and so perhaps another replica.
const NOTICE: f64 = 0.1;
/// The part of the leaving by the end of which whatever lasts long has been told to end. What it has to say first, as
/// a watch that waits for the rest of a version, has the other part for it, and the closing.
const LEAVING: f64 = 0.8;

impl Deadline {
    /// The moment at which so much of the leaving has passed.
    fn at(self, part: f64) -> Instant {
        self.started + self.leaving.mul_f64(part)
    }
}

impl DrainTrigger {
    pub fn new() -> (Self, DrainWatch) {
        let (stage, watch) = watch::channel(Stage::Serving);
        let (blocker, done) = mpsc::channel(1);
        let under_way = TaskTracker::new();
        let watch = DrainWatch { stage: watch, under_way: under_way.clone(), blocker: blocker.clone() };
        (Self { stage, under_way, done, blocker }, watch)
    }

    /// Drains for at most `grace`, and no longer than something is under way.
    ///
    /// Returns whether everything had ended in time.
    pub async fn drain(self, grace: Duration) -> bool {
        let Self { stage, under_way, mut done, blocker } = self;
        drop(blocker);
        let closing_max = CLOSING_MAX.min(grace / CLOSING_SHARE);
        let leaving = grace.saturating_sub(closing_max);
        stage.send_replace(Stage::Leaving(Deadline { started: Instant::now(), leaving }));
        under_way.close();
        let _ = timeout(leaving, under_way.wait()).await;
        stage.send_replace(Stage::Closing);
        timeout(closing_max, done.recv()).await.is_ok()
    }
}

impl DrainWatch {
    pub fn has_started(&self) -> bool {
        !matches!(*self.stage.borrow(), Stage::Serving)
    }

    /// Completes when the drain starts.
    pub async fn started(&mut self) {
        // An error means that the trigger is gone: the process is ending, which is a drain without grace.
        let _ = self.stage.wait_for(|stage| !matches!(stage, Stage::Serving)).await;
    }

    /// Completes when nobody is let in any more, and everything that is here has to end.
    pub async fn closing(&mut self) {
        let _ = self.stage.wait_for(|stage| matches!(stage, Stage::Closing)).await;
    }

    /// Completes when the drain starts, with the time in which those end one by one who were there before: at moments
    /// of their own, so that a thousand goodbyes do not become a thousand reconnects at once (typha's paced shutdown).
    /// `None` if everything closes at once. A client that comes during the drain has found no other server, and stays
    /// until everything closes.
    pub async fn slots(&mut self) -> Option<(Instant, Instant)> {
        match *self.stage.wait_for(|stage| !matches!(stage, Stage::Serving)).await.ok()? {
            Stage::Leaving(deadline) => Some((deadline.at(NOTICE), deadline.at(LEAVING))),
            Stage::Serving | Stage::Closing => None,
        }
    }

    /// Completes at this holder's own moment to give notice, before anything that it carries ends.
    pub fn my_notice(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut stage, is_late) = (self.stage.clone(), self.has_started());
        async move {
            let slot = stage.wait_for(|stage| !matches!(stage, Stage::Serving)).await.map(|stage| match *stage {
                Stage::Leaving(deadline) if !is_late => Some(deadline),
                _ => None,
            });
            match slot {
                Ok(Some(deadline)) => sleep_until(deadline.at(NOTICE * random::f64())).await,
                Ok(None) => drop(stage.wait_for(|stage| matches!(stage, Stage::Closing)).await),
                Err(_) => {}
            }
        }
    }

    /// Begins something long, which in a drain leaves before everything closes. What begins during a drain does not
    /// delay it, or clients that come again and again would.
    pub fn under_way(&self) -> UnderWay {
        UnderWay(self.under_way.token())
    }

    /// Keeps the drain from ending while held, from now on.
    pub fn hold(&self) -> Draining {
        let under_way = (!self.has_started()).then(|| self.under_way());
        Draining { _under_way: under_way, _blocker: self.blocker.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn waits_for_every_holder() {
        let (trigger, watch) = DrainTrigger::new();
        let mut holder = watch.clone();
        drop(watch);
        let held = holder.hold();
        let work = tokio::spawn(async move {
            holder.started().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(held);
        });
        let began = Instant::now();
        assert!(trigger.drain(Duration::from_secs(10)).await);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        work.await.expect("the holder ends by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_at_the_deadline() {
        for seconds in [0, 1, 5, 20, 600] {
            let (trigger, watch) = DrainTrigger::new();
            let _held = watch.hold();
            drop(watch);
            let (grace, began) = (Duration::from_secs(seconds), Instant::now());
            assert!(!trigger.drain(grace).await);
            assert!(began.elapsed() <= grace + Duration::from_millis(2), "{:?}", began.elapsed());
        }
    }

    /// As timers tell it, which are of milliseconds.
    fn is_about(time: Duration, expected: Duration) -> bool {
        time.abs_diff(expected) <= Duration::from_millis(2)
    }

    /// However long the drain is, nobody answers for two seconds at most.
    #[tokio::test(start_paused = true)]
    async fn closes_last_and_not_for_long() {
        for (grace, held, leaving, closing) in [(20, 100, 18, 2), (600, 1_000, 598, 2), (5, 100, 4, 1), (20, 3, 3, 2)] {
            let (trigger, mut watch) = DrainTrigger::new();
            let (began, seconds) = (Instant::now(), Duration::from_secs);
            let under_way = watch.under_way();
            tokio::spawn(async move {
                tokio::time::sleep(seconds(held)).await;
                drop(under_way);
            });
            let draining = tokio::spawn(trigger.drain(seconds(grace)));
            watch.started().await;
            assert_eq!(began.elapsed(), Duration::ZERO);
            watch.closing().await;
            let closed = began.elapsed();
            assert!(is_about(closed, seconds(leaving)), "{grace} s: {closed:?}");
            // The watch itself is what it waits for now.
            assert!(!draining.await.expect("no panic"));
            assert!(is_about(began.elapsed(), closed + seconds(closing)), "{grace} s: {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_during_a_drain_stays_until_it_closes_and_does_not_delay_it() {
        let (trigger, watch) = DrainTrigger::new();
        let (mut early, under_way) = (watch.clone(), watch.under_way());
        let draining = tokio::spawn(trigger.drain(GRACE));
        let began = Instant::now();
        let (first, last) = early.slots().await.expect("there is time to leave");
        let leaving = GRACE.saturating_sub(CLOSING_MAX);
        assert_eq!((first - began, last - began), (leaving.mul_f64(NOTICE), leaving.mul_f64(LEAVING)));
        let (late, late_work) = (watch.my_notice(), watch.hold());
        sleep_until(first).await;
        let gone = began.elapsed();
        drop((early, under_way));
        late.await;
        assert_eq!(began.elapsed(), gone, "it closes when those who were there are gone");
        drop((late_work, watch));
        assert!(draining.await.expect("no panic"));
        assert_eq!(began.elapsed(), gone);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_told_before_anything_on_them_ends() {
        let (trigger, watch) = DrainTrigger::new();
        let notices: Vec<_> = (0..100).map(|_| watch.my_notice()).collect();
        let began = Instant::now();
        let _draining = tokio::spawn(trigger.drain(GRACE));
        let _held = watch.hold();
        let (first, _) = watch.clone().slots().await.expect("there is time to leave");
        futures_util::future::join_all(notices).await;
        let told = began.elapsed();
        assert!(told > Duration::ZERO && told <= first - began + Duration::from_millis(1), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_trigger_nobody_has_a_moment_of_its_own() {
        let (trigger, mut watch) = DrainTrigger::new();
        drop(trigger);
        assert_eq!(watch.slots().await, None);
    }
}
