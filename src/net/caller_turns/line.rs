use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

/// What callers have had of a core lately, and who waits.
#[derive(Debug)]
pub(super) struct Lines {
    all: HashMap<u64, Line>,
    tickets: u64,
    waiting: usize,
    /// With so many lines, those that say nothing are removed.
    sweep_at: usize,
}

/// The connections of one caller.
#[derive(Debug)]
struct Line {
    /// What it has had, and not given back, at that time.
    spent: Duration,
    at: Instant,
    /// Those that wait, by their tickets, which ascend. The next one is first.
    waiting: VecDeque<(u64, Waker)>,
}

/// A place in a caller's line.
#[derive(Debug)]
pub(super) struct Place {
    caller: u64,
    ticket: u64,
    /// Whether everything else has been let in, once that was begun: it is the first in line then.
    back: Option<Arc<Back>>,
}

/// What is to be done with a connection that wants to be polled.
#[derive(Debug)]
pub(super) enum Entered {
    Goes,
    /// Its task is woken when it is the first in line.
    Waits,
    /// It is the first, and goes when this was woken behind everything else that is ready.
    LetsOthersIn(Arc<Back>),
}

/// Wakes a task and says that it was this that woke it.
#[derive(Debug)]
pub(super) struct Back {
    is_back: AtomicBool,
    task: Waker,
}

/// How much of a core one caller has until everything else is let in. A poll that begins within it may end later: then
/// everything else is let in more often before the next, once for each slice.
pub(super) const SLICE: Duration = Duration::from_micros(100);
/// More is not held against a caller: a thread that the system did not run has polled nothing meanwhile.
const SPENT_MAX: Duration = SLICE.saturating_mul(10);
/// A slice is given back while so many times as much passes between polls and none of the caller's connections waits:
/// who takes less of a core waits for nobody.
const GIVEN_BACK_IN: u32 = 4;
/// How many lines there are at least until some are removed.
const SWEEP_MIN: usize = 64;

impl Lines {
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// A connection wants to be polled. `place` is what it has in its caller's line, or is to have.
    pub(super) fn enter(&mut self, caller: u64, now: Instant, place: &mut Option<Place>, waker: &Waker) -> Entered {
        let line = self.line(caller, now);
        line.give_back(now);
        let Some(has) = place else {
            if line.waiting.is_empty() && line.spent < SLICE {
                return Entered::Goes;
            }
            let back = line.waiting.is_empty().then(|| Back::of(waker));
            self.tickets += 1;
            self.waiting += 1;
            let ticket = self.tickets;
            self.line(caller, now).waiting.push_back((ticket, waker.clone()));
            *place = Some(Place { caller, ticket, back: back.clone() });
            return back.map_or(Entered::Waits, Entered::LetsOthersIn);
        };
        match line.waiting.binary_search_by_key(&has.ticket, |(ticket, _)| *ticket) {
            Ok(0) => {}
            Ok(at) => {
                let kept = &mut line.waiting[at].1;
                kept.clone_from(waker);
                return Entered::Waits;
            }
            Err(_) => return Entered::Waits,
        }
        match &has.back {
            // Something else has woken the task.
            Some(back) if !back.is_back() => return Entered::Waits,
            Some(_) => line.spent = line.spent.saturating_sub(SLICE),
            None => {}
        }
        if line.spent >= SLICE {
            let back = Back::of(waker);
            has.back = Some(back.clone());
            return Entered::LetsOthersIn(back);
        }
        line.waiting.pop_front();
        self.waiting -= 1;
        *place = None;
        Entered::Goes
    }

    /// Takes down what a turn took. Returns the caller's next connection.
    pub(super) fn end(&mut self, caller: u64, began: Instant, now: Instant) -> Option<Waker> {
        let line = self.line(caller, now);
        line.give_back(began);
        line.spent = (line.spent + now.saturating_duration_since(began)).min(SPENT_MAX);
        line.at = now;
        line.first()
    }

    /// Returns who is first then, if that was this place.
    pub(super) fn leave(&mut self, place: &Place) -> Option<Waker> {
        let line = self.all.get_mut(&place.caller)?;
        let at = line.waiting.binary_search_by_key(&place.ticket, |(ticket, _)| *ticket).ok()?;
        line.waiting.remove(at);
        self.waiting -= 1;
        line.first().filter(|_| at == 0)
    }

    fn line(&mut self, caller: u64, now: Instant) -> &mut Line {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|_, line| !line.says_nothing(now));
            self.sweep_at = SWEEP_MIN.max(2 * self.all.len());
        }
        self.all.entry(caller).or_insert_with(|| Line { spent: Duration::ZERO, at: now, waiting: VecDeque::new() })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self { all: HashMap::new(), tickets: 0, waiting: 0, sweep_at: SWEEP_MIN }
    }
}

impl Line {
    fn give_back(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            self.spent = self.spent.saturating_sub(now.saturating_duration_since(self.at) / GIVEN_BACK_IN);
        }
        self.at = now;
    }

    /// Whether it is as good as a new one.
    fn says_nothing(&mut self, now: Instant) -> bool {
        self.give_back(now);
        self.waiting.is_empty() && self.spent.is_zero()
    }

    fn first(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }
}

impl Back {
    fn of(task: &Waker) -> Arc<Self> {
        Arc::new(Self { is_back: AtomicBool::new(false), task: task.clone() })
    }

    fn is_back(&self) -> bool {
        self.is_back.load(Ordering::Acquire)
    }
}

impl Wake for Back {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_back.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}
