use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::frames::{Frames, Framing};
use super::lane::{Lane, companion};
use super::link::{Sender, Windows};
use super::objects::{Objects, with};
use super::plan::{Kind, Plan};
use super::recognise::Recogniser;
use super::tally::{Counts, Tally};
use super::target::{Ask, Target};
use super::watcher::{Ended, Role, Watcher};
use super::words::{Protocol, Start};
use crate::base::{Tasks, now_ns};

/// Between two looks at counts that tell nobody when they change.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LIST_BYTES_MAX: usize = 1024;

/// What all watches of a fleet know.
pub(super) struct Shared {
    pub(super) target: Target,
    pub(super) protocol: Protocol,
    pub(super) windows: Windows,
    pub(super) start: Start,
    /// Where the watches begin that begin now.
    pub(super) version: u64,
    /// What was written before is none of this run's writes.
    pub(super) began_ns: u64,
    pub(super) objects: Objects,
    pub(super) kinds: Vec<Watched>,
    pub(super) tally: Tally,
    /// Permits for connecting and opening.
    pub(super) opening: Semaphore,
    /// Nobody asks anything before it is true.
    gate: watch::Sender<bool>,
    pub(super) cut: watch::Sender<()>,
    /// How many storms there were, the opening being the first, and when the last one began.
    storm: AtomicU64,
    storm_began_ns: AtomicU64,
    complaint: Mutex<Option<String>>,
    has_complained: AtomicBool,
}

/// One kind of watch, with what finds things in its frames.
pub(super) struct Watched {
    pub(super) kind: Kind,
    pub(super) recogniser: Recogniser,
}

impl Shared {
    pub(super) fn new(plan: &Plan, target: &Target, objects: &Objects, version: u64) -> Arc<Self> {
        let watched = |kind: Kind| Watched { recogniser: Recogniser::new(kind.encoding.is_protobuf()), kind };
        let all_at_once = plan.storm.is_some();
        Arc::new(Self {
            target: target.clone(),
            protocol: plan.protocol,
            windows: Windows::of(plan),
            start: plan.start(),
            version,
            began_ns: now_ns(),
            objects: objects.clone(),
            kinds: plan.kinds().into_iter().map(watched).collect(),
            tally: Tally::new(plan.watch_count()),
            opening: Semaphore::new(if all_at_once { Semaphore::MAX_PERMITS } else { plan.opening }),
            gate: watch::Sender::new(false),
            cut: watch::Sender::new(()),
            storm: AtomicU64::new(0),
            storm_began_ns: AtomicU64::new(0),
            complaint: Mutex::new(None),
            has_complained: AtomicBool::new(false),
        })
    }

    pub(super) async fn gate_open(&self) {
        if !*self.gate.borrow() {
            // The sender lives as long as this.
            let _ = self.gate.subscribe().wait_for(|open| *open).await;
        }
    }

    pub(super) fn storm(&self) -> (u64, u64) {
        (self.storm.load(Ordering::Relaxed), self.storm_began_ns.load(Ordering::Relaxed))
    }

    /// Keeps the first thing that went wrong: it explains the others.
    pub(super) fn complain(&self, why: &str) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            *self.complaint.lock() = Some(why.to_owned());
        }
    }

    pub(super) fn complaint(&self) -> Option<String> {
        self.complaint.lock().clone()
    }

    /// The version of the collection at this moment.
    pub(super) async fn version_now(&self, sender: &Sender, path: &str) -> Result<u64, Ended> {
        let path = with(path, "limit=1");
        let mut answer = sender.get(&self.target, &Ask::get(&path, "application/json")).await?;
        let (head, _) = answer.body.read(LIST_BYTES_MAX).await?;
        if !answer.status.is_success() {
            return Err(Ended::Refused(answer.status));
        }
        let version = Recogniser::new(false).list_version(&head);
        version.ok_or_else(|| Ended::Broken("a LIST without a version".to_owned()))
    }

    /// One stream of a companion: followed, or opened and left unread.
    pub(super) async fn read_aside(&self, sender: &Sender, version: &mut u64, reads: bool) {
        let Some(Watched { kind, recogniser }) = self.kinds.first() else { return };
        let path = with(&kind.path, &format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}"));
        let Ok(mut answer) = sender.get(&self.target, &Ask::get(&path, kind.encoding.of_watch())).await else { return };
        if !answer.status.is_success() {
            self.complain(&format!("a companion was refused: {}", answer.status));
            *version = self.version_now(sender, &kind.path).await.unwrap_or(*version);
            return;
        }
        if !reads {
            let _unread = answer;
            return pending().await;
        }
        let framing = match (answer.body.is_of_messages(), kind.encoding.is_protobuf()) {
            (true, _) => Framing::Messages,
            (false, true) => Framing::Lengths,
            (false, false) => Framing::Lines,
        };
        let mut frames = Frames::new(framing);
        while let Some(Ok(chunk)) = answer.body.chunk().await {
            let fed = frames.feed(&chunk, |frame| *version = recogniser.version(frame).unwrap_or(*version));
            if fed.is_err() {
                return;
            }
        }
    }
}

/// Many watches of one server, in the background.
pub(super) struct Fleet {
    shared: Arc<Shared>,
    watches: usize,
    lanes: usize,
    tasks: Tasks,
}

impl Fleet {
    /// Connects all lanes. Nothing is asked before [`set_out`](Self::set_out).
    pub(super) fn start(plan: &Plan, shared: &Arc<Shared>) -> Self {
        let tasks = Tasks::new();
        let kinds = shared.kinds.iter().enumerate();
        let all: Vec<_> = kinds.flat_map(|(kind, of)| (0..of.kind.watches).map(move |nth| (kind, nth))).collect();
        let lanes = plan.connection_count().max(1);
        let role = |lane| role(lane, plan);
        let mut watchers: Vec<Vec<Watcher>> = (0..lanes).map(|_| Vec::new()).collect();
        for (index, place) in all.iter().enumerate() {
            let lane = index % lanes;
            watchers[lane].push(Watcher::new(shared, index, *place, lane, role(lane)));
        }
        for (lane, watchers) in watchers.into_iter().enumerate().filter(|(_, watchers)| !watchers.is_empty()) {
            tasks.spawn("bench connection", Lane::new(shared, watchers, role(lane)).run());
        }
        let every = (plan.companion_reconnect_ms > 0).then(|| Duration::from_millis(plan.companion_reconnect_ms));
        for _ in 0..plan.companions {
            let (shared, reads) = (shared.clone(), plan.companion_reads);
            tasks.spawn("bench companion", companion(shared, every, reads));
        }
        Self { shared: shared.clone(), watches: all.len(), lanes: lanes.min(all.len()), tasks }
    }

    /// Waits until every connection is there.
    pub(super) async fn connected(&self, patience: Duration) -> bool {
        let lanes = self.lanes as u64;
        self.until(patience, |counts| counts.connected >= lanes).await
    }

    /// Lets the watches ask; the time until they are synced counts from here.
    pub(super) fn set_out(&self) {
        self.begin_storm();
        self.shared.gate.send_replace(true);
    }

    /// Cuts every connection. The watches go on from where they were.
    pub(super) fn cut(&self) {
        self.begin_storm();
        self.shared.cut.send_replace(());
    }

    fn begin_storm(&self) {
        self.shared.storm_began_ns.store(now_ns(), Ordering::Relaxed);
        self.shared.storm.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        self.shared.tally.counts()
    }

    /// Waits until every watch has been synced in every storm; says how long it took, or `None` when it did not happen.
    pub(super) async fn synced(&self, patience: Duration) -> Option<Duration> {
        let wanted = self.shared.storm.load(Ordering::Relaxed) * self.watches as u64;
        let began = Instant::now();
        self.until(patience, |counts| counts.synced >= wanted).await.then(|| began.elapsed())
    }

    pub(super) async fn until(&self, patience: Duration, wanted: impl Fn(&Counts) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        while !wanted(&self.counts()) {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK_AGAIN).await;
        }
        true
    }

    /// Ends all watches.
    pub(super) async fn stop(self) {
        self.tasks.join().await;
    }
}

/// Spreads the stuck and the slow evenly among the connections.
fn role(lane: usize, plan: &Plan) -> Role {
    let (stuck, odd) = (plan.stuck as usize, (plan.stuck + plan.slow) as usize);
    let (before, after) = (lane * odd / 100, (lane + 1) * odd / 100);
    if after == before {
        Role::Reads
    } else if (before + 1) * stuck / odd > before * stuck / odd {
        Role::Stuck
    } else {
        Role::Slow(plan.slow_kib_per_s << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stuck_and_the_slow_are_as_many_as_was_said() {
        let plan = Plan { stuck: 30, slow: 10, ..Plan::default() };
        let roles: Vec<_> = (0..1000).map(|lane| role(lane, &plan)).collect();
        let count = |wanted: Role| roles.iter().filter(|role| **role == wanted).count();
        assert_eq!((count(Role::Stuck), count(Role::Slow(64 << 10)), count(Role::Reads)), (300, 100, 600));
        assert!((0..1000).all(|lane| role(lane, &Plan::default()) == Role::Reads));
    }
}
