//! How much is done in one go.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep};

use super::cost;
use super::scans::{ScanTurn, Scans, Whose};
use super::slices::{Slice, Slices, WaitingForSlice};

/// Counts what has been done since others were let in.
#[derive(Debug)]
pub(crate) struct ScanPace {
    turn: Option<ScanTurn>,
    scans: Scans,
    slices: Slices,
    whose: Whose,
    spent: usize,
    rests: usize,
}

impl ScanPace {
    /// `turn`: of what is going to cost more than a slice, by all that is known.
    pub(crate) fn new(turn: Option<ScanTurn>, (scans, slices): (Scans, Slices), whose: Whose) -> Self {
        Self { turn, scans, slices, whose, spent: 0, rests: 0 }
    }

    /// Whether others are to be let in now.
    pub(crate) fn spend(&mut self, cost: usize) -> bool {
        self.spent += cost;
        self.spent >= cost::SLICE
    }

    /// Behind what everybody shares, or what is over soon.
    pub(crate) async fn rest(&mut self) {
        self.spent = 0;
        self.rests += 1;
        match &mut self.turn {
            Some(turn) => turn.rest().await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Behind objects that were looked at one by one. What was to cost little and does not, because there are more
    /// objects than there were, or more in them than in most, goes on when it is its turn.
    pub(crate) async fn rest_from_looking(&mut self) {
        self.rest().await;
        if self.turn.is_none() {
            self.turn = Some(self.scans.turn_late(self.whose.clone()).await);
        }
    }

    /// For what is done later, when it is polled.
    pub(crate) fn looks(&self) -> Looks {
        Looks::new(self.slices.clone(), self.whose.clone(), false)
    }

    /// How often others were let in.
    #[cfg(test)]
    pub(crate) fn rests(&self) -> usize {
        self.rests
    }
}

/// A pause of something that is polled: everything else is let in before it goes on.
#[derive(Default)]
pub(crate) struct Rest(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Rest {
    pub(crate) fn begin(&mut self) {
        // To wake oneself would not do: what is part of a task that has several is polled again at once.
        self.0 = Some(Box::pin(tokio::task::yield_now()));
    }

    /// Whether it is over.
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

/// What one client's polls may do: a glance for itself, and beyond that a slice when one is free.
#[derive(Debug)]
pub(crate) struct Looks {
    slices: Slices,
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

impl Looks {
    /// `is_dear`: one glance is all that there is for nothing, and not one each time that there is nothing more to look
    /// at. How often that is, is a matter of how much changes, which may grow.
    pub(crate) fn new(slices: Slices, whose: Whose, is_dear: bool) -> Self {
        Self { slices, whose, left: cost::GLANCE, wait: None, is_dear }
    }

    /// Ready when there is something [`left`](Self::left), which may be used as long as what is returned is held.
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

    /// What may be done yet, in costs.
    pub(crate) fn left(&mut self) -> &mut usize {
        &mut self.left
    }

    pub(crate) fn are_used_up(&self) -> bool {
        self.left == 0
    }

    /// There is nothing more to look at: what comes next is new.
    pub(crate) fn begin_anew(&mut self) {
        if !self.is_dear {
            self.left = cost::GLANCE;
        }
    }
}
