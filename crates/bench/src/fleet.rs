use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::{Instant, sleep};

use super::load_connection::{WatchLoadConnection, companion};
use super::plan::{BenchPlan, ResolvedWatchGroup};
use super::shared::WatchFleetState;
use super::tally::{WatchCounts, WatchProgress};
use super::watcher::{BenchWatcher, WatcherRole};
use base::{BackgroundTasks, now_ns};
use probe::TargetServer;

/// The polling interval for counts that do not notify.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A set of watches of one server that run in the background, with their counts.
pub struct WatchFleet {
    shared: Arc<WatchFleetState>,
    watches: usize,
    lanes: usize,
    tasks: BackgroundTasks,
}

impl WatchFleet {
    /// Connects the watches of a plan. No request is sent before [`set_out`](Self::set_out).
    pub fn start(plan: &BenchPlan, target: &TargetServer) -> Self {
        Self::start_at(plan, target, None)
    }

    /// Like [`start`](Self::start), with the version at which watches without one begin. This saves one request for
    /// each watch.
    pub(super) fn start_at(plan: &BenchPlan, target: &TargetServer, version: Option<u64>) -> Self {
        let (tasks, shared) = (BackgroundTasks::new(), WatchFleetState::new(plan, target, version));
        let kinds = shared.kinds.iter().enumerate();
        let all: Vec<_> = kinds.flat_map(|(kind, of)| (0..of.kind.watches).map(move |nth| (kind, nth))).collect();
        let lanes = plan.connection_count().max(1);
        let role = |lane| role(lane, plan);
        let mut watchers: Vec<Vec<BenchWatcher>> = (0..lanes).map(|_| Vec::new()).collect();
        for (index, place) in all.iter().enumerate() {
            let lane = index % lanes;
            watchers[lane].push(BenchWatcher::new(&shared, index, *place, lane, role(lane)));
        }
        for (lane, watchers) in watchers.into_iter().enumerate().filter(|(_, watchers)| !watchers.is_empty()) {
            tasks.spawn("bench connection", WatchLoadConnection::new(&shared, watchers, role(lane)).run());
        }
        let every = (plan.companion_reconnect_ms > 0).then(|| Duration::from_millis(plan.companion_reconnect_ms));
        for _ in 0..plan.companions {
            let (shared, reads) = (shared.clone(), plan.companion_reads);
            tasks.spawn("bench companion", companion(shared, every, reads));
        }
        let (watches, lanes) = (all.len(), lanes.min(all.len()));
        Self { shared, watches, lanes, tasks }
    }

    /// Waits until every connection is open; returns `false` if that takes longer than `patience`.
    pub(super) async fn connected(&self, patience: Duration) -> bool {
        let lanes = self.lanes as u64;
        self.until(patience, |counts| counts.connected >= lanes).await
    }

    /// Lets the watches send their requests. The time until they are synced is measured from here.
    pub fn set_out(&self) {
        self.shared.begin_storm();
        self.shared.open_gate();
    }

    /// Closes every connection of the fleet. The watches resume at their positions.
    pub(super) fn cut(&self) {
        self.shared.begin_storm();
        self.shared.cut.send_replace(());
    }

    /// Starts to measure the latency of writes.
    pub fn open_window(&self) {
        self.shared.tally.window.open(now_ns());
    }

    /// Stops measuring the latency of later writes.
    pub(super) fn close_window(&self) {
        self.shared.tally.window.close(now_ns());
    }

    pub fn counts(&self) -> WatchCounts {
        self.shared.tally.counts()
    }

    /// Waits until every watch has synced in every storm. Returns how long it took, or `None` after `patience`.
    pub async fn synced(&self, patience: Duration) -> Option<Duration> {
        let needed = self.shared.storm().0 * self.watches as u64;
        let began = Instant::now();
        self.until(patience, |counts| counts.synced >= needed).await.then(|| began.elapsed())
    }

    /// Returns the latencies from write to arrival, in microseconds, of the writes in the window. Only writes of this
    /// process count, because both times come from one clock.
    pub fn latency(&self) -> Histogram<u64> {
        self.shared.tally.latency()
    }

    /// Returns the times from the beginning of a storm until a watch was synced, in microseconds.
    pub(super) fn time_to_sync(&self) -> Histogram<u64> {
        self.shared.tally.synced()
    }

    /// The cipher suite of the connections, if they use TLS.
    pub(super) fn cipher(&self) -> Option<&'static str> {
        self.shared.cipher.get().copied()
    }

    /// Returns the number of missing events if each watch should have received `events` since it was synced. Watches
    /// that do not read all the time, or that relisted, are excluded.
    pub fn missed(&self, events: u64) -> u64 {
        self.balance(|_, _| events, |seen| &seen.events).0
    }

    /// Returns how many events had a version that their watch had already passed.
    pub fn repeated(&self) -> u64 {
        self.shared.tally.seen.iter().map(|seen| seen.repeated.load(Ordering::Relaxed)).sum()
    }

    /// Returns the first error of any watch.
    pub fn complaint(&self) -> Option<String> {
        self.shared.complaint()
    }

    /// Returns how many events watches lack, and how many they received in excess. `expected` is called with a kind and
    /// the number of the watch within it.
    pub(super) fn balance(
        &self,
        expected: impl Fn(&ResolvedWatchGroup, usize) -> u64,
        had: fn(&WatchProgress) -> &AtomicU64,
    ) -> (u64, u64) {
        let (mut missed, mut unexpected) = (0, 0);
        let kinds = self.shared.kinds.iter().map(|watched| &watched.kind);
        let places = kinds.flat_map(|kind| (0..kind.watches).map(move |nth| (kind, nth)));
        for ((kind, nth), seen) in places.zip(&self.shared.tally.seen) {
            if seen.lags.load(Ordering::Relaxed) || seen.broken.load(Ordering::Relaxed) {
                continue;
            }
            let expected = expected(kind, nth);
            let repeated = seen.repeated.load(Ordering::Relaxed).min(expected);
            let had = had(seen).load(Ordering::Relaxed).saturating_sub(repeated);
            missed += expected.saturating_sub(had);
            unexpected += had.saturating_sub(expected);
        }
        (missed, unexpected)
    }

    /// Waits until the counts satisfy `is_reached`; returns whether they did within `patience`.
    pub async fn until(&self, patience: Duration, is_reached: impl Fn(&WatchCounts) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        while !is_reached(&self.counts()) {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK_AGAIN).await;
        }
        true
    }

    /// Ends all watches of the fleet.
    pub async fn stop(self) {
        self.tasks.join().await;
    }
}

/// Spreads the stuck and the slow readers evenly among the connections.
fn role(lane: usize, plan: &BenchPlan) -> WatcherRole {
    let (stuck, odd) = (plan.stuck as usize, (plan.stuck + plan.slow) as usize);
    let (before, after) = (lane * odd / 100, (lane + 1) * odd / 100);
    let raw = plan.gzip_raw as usize;
    if after == before {
        if lane * raw / 100 == (lane + 1) * raw / 100 { WatcherRole::Reads } else { WatcherRole::Raw }
    } else if (before + 1) * stuck / odd > before * stuck / odd {
        WatcherRole::Stuck
    } else {
        WatcherRole::Slow(plan.slow_kib_per_s << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_and_slow_watchers_match_the_planned_share() {
        let plan = BenchPlan { stuck: 30, slow: 10, ..BenchPlan::default() };
        let roles: Vec<_> = (0..1000).map(|lane| role(lane, &plan)).collect();
        let count = |expected: WatcherRole| roles.iter().filter(|role| **role == expected).count();
        assert_eq!(
            (count(WatcherRole::Stuck), count(WatcherRole::Slow(64 << 10)), count(WatcherRole::Reads)),
            (300, 100, 600)
        );
        assert!((0..1000).all(|lane| role(lane, &BenchPlan::default()) == WatcherRole::Reads));
        let plan = BenchPlan { gzip: true, gzip_raw: 95, ..BenchPlan::default() };
        assert_eq!((0..1000).filter(|lane| role(*lane, &plan) == WatcherRole::Raw).count(), 950);
    }
}
