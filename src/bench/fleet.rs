use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lane::{Lane, companion};
use super::plan::Plan;
use super::shared::Shared;
use super::tally::Counts;
use super::watcher::{Role, Watcher};
use crate::base::Tasks;

/// Between two looks at counts that tell nobody when they change.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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
        self.shared.begin_storm();
        self.shared.open_gate();
    }

    /// Cuts every connection. The watches go on from where they were.
    pub(super) fn cut(&self) {
        self.shared.begin_storm();
        self.shared.cut.send_replace(());
    }

    pub(super) fn counts(&self) -> Counts {
        self.shared.tally.counts()
    }

    /// Waits until every watch has been synced in every storm; says how long it took, or `None` when it did not happen.
    pub(super) async fn synced(&self, patience: Duration) -> Option<Duration> {
        let wanted = self.shared.storm().0 * self.watches as u64;
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
