//! Limits of the work that one task does before it yields to others, and turns for scans of objects one by one.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::cost;
use super::cpu_slices::{CallerCpuSlices, CpuSlice, CpuSliceWaiter, ScanPayer};

/// Counts the work since the last yield.
#[derive(Debug)]
pub(crate) struct ScanPacer {
    turn: Option<ScanPermit>,
    scans: ScanQueue,
    slices: CallerCpuSlices,
    owner: ScanPayer,
    spent: usize,
    yields: usize,
}

impl ScanPacer {
    /// Creates the pace of a scan. `turn` must be given for work that will probably cost more than a slice.
    pub(crate) fn new(
        turn: Option<ScanPermit>,
        (scans, slices): (ScanQueue, CallerCpuSlices),
        owner: ScanPayer,
    ) -> Self {
        Self { turn, scans, slices, owner, spent: 0, yields: 0 }
    }

    /// Adds the cost of scanned objects, and returns whether the scan must yield.
    pub(crate) fn spend(&mut self, cost: usize) -> bool {
        self.spent += cost;
        self.spent >= cost::SLICE
    }

    /// Yields to other tasks after work that is shared by all clients, or short.
    pub(crate) async fn yield_now(&mut self) {
        self.spent = 0;
        self.yields += 1;
        match &mut self.turn {
            Some(turn) => turn.yield_now().await,
            None => yield_now().await,
        }
    }

    /// Yields after a scan of objects one by one. If work without a turn becomes expensive, because there are more or
    /// larger objects than expected, it waits for a turn from then on.
    pub(crate) async fn rest_after_scan(&mut self) {
        self.yield_now().await;
        if self.turn.is_none() {
            self.turn = Some(self.scans.acquire_unlimited(self.owner.clone()).await);
        }
    }

    /// Returns the scan budget for work that is done later, in polls.
    pub(crate) fn scan_budget(&self) -> ScanBudget {
        ScanBudget::new(self.slices.clone(), self.owner.clone(), false)
    }

    /// Returns the number of yields of the scan.
    #[cfg(test)]
    pub(crate) fn yields(&self) -> usize {
        self.yields
    }
}

/// The queue of scans. A scan uses a whole core. So fewer scans run than there are cores, one per caller, and callers
/// alternate about every millisecond. Work of less than a slice needs no turn.
#[derive(Debug, Clone)]
pub(crate) struct ScanQueue(base::RoundRobinSemaphore<ScanPayer>);

/// The permission to scan. Dropping it lets the next caller scan.
#[derive(Debug)]
pub(crate) struct ScanPermit(base::RoundRobinPermit<ScanPayer>);

/// The error of a request that exceeds the concurrency limit with this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many {0} in progress; try again")]
pub(crate) struct LimitExceeded(pub(crate) &'static str);

/// The maximum number of waiting scans, in all and per caller. Each holds a request and a shared state.
const WAITING_MAX: usize = 1_024;
const WAITING_PER_CALLER_MAX: usize = 64;
/// The approximate duration of a CPU slice of a scan.
const SLICE: Duration = Duration::from_millis(1);
/// The longest wait of a scan for its first turn.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl ScanQueue {
    pub(crate) fn at_a_time(running_max: usize) -> Self {
        Self(base::RoundRobinSemaphore::new(running_max, Option::is_some))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// Too many scans wait, or the wait takes too long.
    pub(crate) async fn acquire(&self, owner: ScanPayer) -> Result<ScanPermit, LimitExceeded> {
        let (all, own) = self.0.waiting(&owner);
        if all >= WAITING_MAX || (owner.is_some() && own >= WAITING_PER_CALLER_MAX) {
            return Err(LimitExceeded("selections"));
        }
        let called = timeout(WAIT_MAX, self.acquire_unlimited(owner)).await;
        called.map_err(|_| LimitExceeded("selections"))
    }

    /// Waits for a turn without a limit, because the caller has already started and is counted elsewhere.
    pub(crate) async fn acquire_unlimited(&self, owner: ScanPayer) -> ScanPermit {
        ScanPermit(self.0.wait(owner).await)
    }
}

impl ScanPermit {
    /// Yields to other tasks, and to scans of other callers if any wait. A caller's own scans run one by one.
    pub(crate) async fn yield_now(&mut self) {
        yield_now().await;
        if self.0.is_contended() {
            // Competing scans leave half of their time for other work: a slice takes about as long.
            sleep(SLICE).await;
            self.0.yield_to_others().await;
        }
    }
}

/// A pause of a polled task, during which other tasks run.
#[derive(Default)]
pub(crate) struct YieldPause(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl YieldPause {
    pub(crate) fn begin(&mut self) {
        // Waking itself is not sufficient: a task of several parts would poll this part again immediately.
        self.0 = Some(Box::pin(yield_now()));
    }

    /// Completes when the pause is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(rest) = &mut self.0 {
            ready!(rest.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for YieldPause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("YieldPause").field(&self.0.is_some()).finish()
    }
}

/// The selector cost that one client's polls may incur: a small amount immediately, and more if a slice is free.
#[derive(Debug)]
pub(crate) struct ScanBudget {
    slices: CallerCpuSlices,
    owner: ScanPayer,
    left: usize,
    wait: Option<Box<CpuSliceWait>>,
    is_expensive: bool,
}

#[derive(Debug)]
struct CpuSliceWait {
    timer: Pin<Box<Sleep>>,
    _counted: CpuSliceWaiter,
}

impl ScanBudget {
    /// Creates a budget. If `is_expensive` is set, the client gets [`cost::FREE_SCAN_COST`] once, rather than each time
    /// that it has caught up, because the number of changes is unbounded.
    pub(crate) fn new(slices: CallerCpuSlices, owner: ScanPayer, is_expensive: bool) -> Self {
        Self { slices, owner, left: cost::FREE_SCAN_COST, wait: None, is_expensive }
    }

    /// Completes when some budget is [`left`](Self::left). The caller holds the returned slice while it uses the
    /// budget.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<CpuSlice>> {
        if self.left > 0 {
            return Poll::Ready(None);
        }
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.timer.as_mut().poll(cx));
            }
            match (self.slices.take(&self.owner), &mut self.wait) {
                (Ok(slice), _) => {
                    (self.left, self.wait) = (cost::SLICE, None);
                    return Poll::Ready(Some(slice));
                }
                (Err(again), Some(wait)) => wait.timer.as_mut().reset(Instant::now() + again),
                (Err(again), wait) => {
                    let timer = Box::pin(sleep(again));
                    *wait = Some(Box::new(CpuSliceWait { timer, _counted: self.slices.wait(&self.owner) }));
                }
            }
        }
    }

    /// Returns the remaining budget, in units of [`cost`].
    pub(crate) fn left(&mut self) -> &mut usize {
        &mut self.left
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Renews the budget, because the reader has caught up and further events are new.
    pub(crate) fn renew(&mut self) {
        if !self.is_expensive {
            (self.left, self.wait) = (cost::FREE_SCAN_COST, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use parking_lot::Mutex;

    use super::*;
    use kubeapi::{FlowDistinguisher, User};

    fn caller(n: u8) -> FlowDistinguisher {
        FlowDistinguisher::from_user(&User { name: n.to_string(), ..User::default() })
    }

    /// Scans this number of slices and records each.
    async fn scan(scans: ScanQueue, owner: ScanPayer, slices: usize, notes: Arc<Mutex<Vec<u8>>>, name: u8) {
        let mut turn = scans.acquire(owner).await.expect("there is room");
        for slice in 0..slices {
            if slice > 0 {
                turn.yield_now().await;
            }
            notes.lock().push(name);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_alternate_slices_and_scans_of_one_caller_are_serial() {
        let (scans, notes) = (ScanQueue::at_a_time(1), Arc::<Mutex<Vec<u8>>>::default());
        let scan = |owner, slices, name| scan(scans.clone(), owner, slices, notes.clone(), name);
        tokio::join!(
            scan(Some(caller(1)), 4, b'a'),
            scan(Some(caller(1)), 2, b'b'),
            scan(Some(caller(2)), 3, b'x'),
            scan(Some(caller(3)), 1, b'y')
        );
        assert_eq!(String::from_utf8_lossy(&notes.lock()), "axyaxaxabb");
        assert!(scans.0.is_empty());
    }

    #[tokio::test]
    async fn scans_are_limited_to_one_per_caller_and_in_total() {
        let scans = ScanQueue::at_a_time(2);
        let first = scans.acquire(Some(caller(1))).await.expect("no scan runs");
        assert!(scans.acquire(Some(caller(1))).now_or_never().is_none(), "its one scans");
        let second = scans.acquire(Some(caller(2))).now_or_never().expect("at once").expect("there is room");
        let mut third = Box::pin(scans.acquire(Some(caller(3))));
        assert!(third.as_mut().now_or_never().is_none(), "two scan");
        drop(first);
        assert!(third.await.is_ok());
        drop(second);
        assert!(scans.0.is_empty());
    }

    #[tokio::test]
    async fn scans_without_caller_identity_share_only_the_total_limit() {
        let scans = ScanQueue::at_a_time(2);
        let turns = [scans.acquire(None).await, scans.acquire(None).await];
        assert!(turns.iter().all(Result::is_ok) && scans.acquire(None).now_or_never().is_none());
    }

    #[tokio::test]
    async fn canceled_scan_passes_its_turn_to_next_waiter() {
        let scans = ScanQueue::at_a_time(1);
        let turn = scans.acquire(Some(caller(1))).await.expect("no scan runs");
        let mut gone = Box::pin(scans.acquire(Some(caller(2))));
        let mut next = Box::pin(scans.acquire(Some(caller(3))));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(turn);
        // It was dropped before it could use the turn.
        drop(gone);
        let turn = next.await.expect("it is its turn");
        let waits = Box::pin(scans.acquire(Some(caller(4))));
        assert!(waits.now_or_never().is_none(), "and is gone again");
        drop(turn);
        assert!(scans.0.is_empty());
    }

    #[tokio::test]
    async fn waiting_scans_are_limited_per_caller_and_in_total() {
        let scans = ScanQueue::at_a_time(1);
        let _turn = scans.acquire(Some(caller(0))).await.expect("no scan runs");
        let wait = |n| {
            let mut waits = Box::pin(scans.acquire(Some(caller(n))));
            assert!(waits.as_mut().now_or_never().is_none());
            waits
        };
        let own: Vec<_> = (0..WAITING_PER_CALLER_MAX).map(|_| wait(1)).collect();
        assert_eq!(scans.acquire(Some(caller(1))).await.err(), Some(LimitExceeded("selections")));
        drop(wait(2));
        let all: Vec<_> = (own.len()..WAITING_MAX).map(|n| wait(2 + u8::try_from(n / 64).expect("few"))).collect();
        assert_eq!(scans.acquire(Some(caller(200))).await.err(), Some(LimitExceeded("selections")));
        drop((own, all));
        drop(wait(200));
    }

    #[tokio::test(start_paused = true)]
    async fn scan_wait_times_out() {
        let scans = ScanQueue::at_a_time(1);
        let turn = scans.acquire(Some(caller(0))).await.expect("no scan runs");
        assert_eq!(scans.acquire(Some(caller(1))).await.err(), Some(LimitExceeded("selections")));
        drop(turn);
        assert!(scans.0.is_empty());
    }
}
