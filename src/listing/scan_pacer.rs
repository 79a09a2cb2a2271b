//! Limits of the work that one task does before it yields to others.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep};

use super::cost;
use super::cpu_slices::{CallerCpuSlices, CpuSlice, CpuSliceWaiter};
use super::scan_queue::{ScanPayer, ScanPermit, ScanQueue};

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
            None => tokio::task::yield_now().await,
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

/// A pause of a polled task, during which other tasks run.
#[derive(Default)]
pub(crate) struct YieldPause(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl YieldPause {
    pub(crate) fn begin(&mut self) {
        // Waking itself is not sufficient: a task of several parts would poll this part again immediately.
        self.0 = Some(Box::pin(tokio::task::yield_now()));
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
