//! How much is done in one go.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use super::cost;
use super::scans::Turn;

/// Counts what has been done since others were let in.
#[derive(Debug)]
pub(super) struct Pace {
    turn: Option<Turn>,
    slices: Slices,
    spent: usize,
    rests: usize,
}

impl Pace {
    /// `turn`: of what costs more than a slice.
    pub(super) fn new(turn: Option<Turn>, slices: Slices) -> Self {
        Self { turn, slices, spent: 0, rests: 0 }
    }

    /// Whether others are to be let in now.
    pub(super) fn spend(&mut self, cost: usize) -> bool {
        self.spent += cost;
        self.spent >= cost::SLICE
    }

    pub(super) async fn rest(&mut self) {
        self.spent = 0;
        self.rests += 1;
        match &mut self.turn {
            Some(turn) => turn.rest().await,
            None => tokio::task::yield_now().await,
        }
    }

    /// For what is done later, when it is polled.
    pub(super) fn looks(&self) -> Looks {
        Looks::new(self.slices.clone())
    }

    /// How often others were let in.
    #[cfg(test)]
    pub(super) fn rests(&self) -> usize {
        self.rests
    }
}

/// A pause of something that is polled: everything else is let in before it goes on.
#[derive(Default)]
pub(super) struct Rest(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Rest {
    pub(super) fn begin(&mut self) {
        // To wake oneself would not do: what is part of a task that has several is polled again at once.
        self.0 = Some(Box::pin(tokio::task::yield_now()));
    }

    /// Whether it is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

/// What is done in polls for one client alone: watches look through histories that they catch up with, and states that
/// they begin with, for what they show; selections are derived and compressed. Nobody waits for others in a poll, and a
/// client that does not read must not keep what others wait for; so each has a glance for itself, and beyond that a
/// slice when one is free. As much time as slices take is left to everything else.
#[derive(Debug, Clone)]
pub(super) struct Slices(Arc<Mutex<Vec<Instant>>>);

/// May be used now, in one poll.
#[derive(Debug)]
pub(super) struct Slice {
    slices: Slices,
    taken: Instant,
}

/// What one of them may do.
#[derive(Debug)]
pub(super) struct Looks {
    slices: Slices,
    left: usize,
    wait: Option<Pin<Box<Sleep>>>,
    tries: u32,
}

/// At least so long nobody has a slice that somebody has had.
const SLICE_GAP: Duration = Duration::from_millis(1);
/// How long a watch that found none waits before it tries again: longer each time, and not all at once.
const TRY_AGAIN: Duration = Duration::from_millis(1);
const TRY_AGAIN_MAX: u32 = 64;

impl Slices {
    pub(super) fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Instant::now(); at_a_time])))
    }

    fn take(&self) -> Option<Slice> {
        let now = Instant::now();
        let mut free = self.0.lock();
        let place = free.iter().position(|since| *since <= now)?;
        free.swap_remove(place);
        drop(free);
        Some(Slice { slices: self.clone(), taken: now })
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let now = Instant::now();
        let took = now.duration_since(self.taken);
        self.slices.0.lock().push(now + took.max(SLICE_GAP));
    }
}

impl Looks {
    pub(super) fn new(slices: Slices) -> Self {
        Self { slices, left: cost::GLANCE, wait: None, tries: 0 }
    }

    /// Ready when there is something [`left`](Self::left), which may be used as long as what is returned is held.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Slice>> {
        if self.left > 0 {
            return Poll::Ready(None);
        }
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            if let Some(slice) = self.slices.take() {
                (self.left, self.tries) = (cost::SLICE, 0);
                return Poll::Ready(Some(slice));
            }
            self.tries += 1;
            let longest = (1 << self.tries.min(6)).min(TRY_AGAIN_MAX);
            self.wait = Some(Box::pin(sleep(TRY_AGAIN * fastrand::u32(1..=longest))));
        }
    }

    /// What may be done yet, in costs.
    pub(super) fn left(&mut self) -> &mut usize {
        &mut self.left
    }

    pub(super) fn are_used_up(&self) -> bool {
        self.left == 0
    }

    /// There is nothing more to look at: what comes next is new.
    pub(super) fn begin_anew(&mut self) {
        self.left = cost::GLANCE;
    }
}
