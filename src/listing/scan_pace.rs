//! How much one task does before it lets others run.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep};

use super::cost;
use super::cpu_slices::{CpuSlices, Slice, WaitingForSlice};
use super::scan_queue::{ScanQueue, ScanTurn, Whose};

/// Counts the work that was done since other tasks last ran.
#[derive(Debug)]
pub(crate) struct ScanPace {
    turn: Option<ScanTurn>,
    scans: ScanQueue,
    slices: CpuSlices,
    whose: Whose,
    spent: usize,
    rests: usize,
}

impl ScanPace {
    /// `turn` is given for work that will probably cost more than a slice.
    pub(crate) fn new(turn: Option<ScanTurn>, (scans, slices): (ScanQueue, CpuSlices), whose: Whose) -> Self {
        Self { turn, scans, slices, whose, spent: 0, rests: 0 }
    }

    /// Counts `cost`, and says whether it is time to yield.
    pub(crate) fn spend(&mut self, cost: usize) -> bool {
        self.spent += cost;
        self.spent >= cost::SLICE
    }

    /// Yields, after work that everybody shares or that is over soon.
    pub(crate) async fn rest(&mut self) {
        self.spent = 0;
        self.rests += 1;
        match &mut self.turn {
            Some(turn) => turn.rest().await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Yields, after objects that were looked at one by one. If work without a turn turns out to be dear, because there
    /// are more objects than there were or they are larger than most, it waits for a turn from then on.
    pub(crate) async fn rest_from_looking(&mut self) {
        self.rest().await;
        if self.turn.is_none() {
            self.turn = Some(self.scans.turn_late(self.whose.clone()).await);
        }
    }

    /// The looks for work that is done later, in polls.
    pub(crate) fn looks(&self) -> ScanBudget {
        ScanBudget::new(self.slices.clone(), self.whose.clone(), false)
    }

    /// How many times it has yielded.
    #[cfg(test)]
    pub(crate) fn rests(&self) -> usize {
        self.rests
    }
}

/// A pause of something that is polled: other tasks run before it goes on.
#[derive(Default)]
pub(crate) struct Rest(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Rest {
    pub(crate) fn begin(&mut self) {
        // Waking oneself would not do: a task of several parts would poll this part again at once.
        self.0 = Some(Box::pin(tokio::task::yield_now()));
    }

    /// Ready once the pause is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(rest) = &mut self.0 {
            ready!(rest.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rest").field(&self.0.is_some()).finish()
    }
}

/// The work that one client's polls may do: a glance at once, and beyond that a slice when one is free.
#[derive(Debug)]
pub(crate) struct ScanBudget {
    slices: CpuSlices,
    whose: Whose,
    left: usize,
    wait: Option<Box<Wait>>,
    is_dear: bool,
}

#[derive(Debug)]
struct Wait {
    timer: Pin<Box<Sleep>>,
    _counted: WaitingForSlice,
}

impl ScanBudget {
    /// `is_dear` says that the client gets one glance in all, rather than one each time that it has caught up: how
    /// often that happens depends on how much changes, which may grow.
    pub(crate) fn new(slices: CpuSlices, whose: Whose, is_dear: bool) -> Self {
        Self { slices, whose, left: cost::GLANCE, wait: None, is_dear }
    }

    /// Ready when something is [`left`](Self::left), which may be used as long as what is returned is held.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Slice>> {
        if self.left > 0 {
            return Poll::Ready(None);
        }
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.timer.as_mut().poll(cx));
            }
            match (self.slices.take(&self.whose), &mut self.wait) {
                (Ok(slice), _) => {
                    (self.left, self.wait) = (cost::SLICE, None);
                    return Poll::Ready(Some(slice));
                }
                (Err(again), Some(wait)) => wait.timer.as_mut().reset(Instant::now() + again),
                (Err(again), wait) => {
                    let timer = Box::pin(sleep(again));
                    *wait = Some(Box::new(Wait { timer, _counted: self.slices.wait(&self.whose) }));
                }
            }
        }
    }

    /// How much work may still be done, in costs.
    pub(crate) fn left(&mut self) -> &mut usize {
        &mut self.left
    }

    pub(crate) fn are_used_up(&self) -> bool {
        self.left == 0
    }

    /// Notes that there is nothing more to look at: what comes next is new.
    pub(crate) fn begin_anew(&mut self) {
        if !self.is_dear {
            self.left = cost::GLANCE;
        }
    }
}
