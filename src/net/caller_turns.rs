mod line;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::Connection;
use super::connection::{EVERYBODY, STRANGER};
use crate::base::PerCore;
use line::{Entered, Lines, Place};

/// The turns of callers at the cores of a listener. A caller who has just had a slice of a core, on however many
/// connections, has one of them polled at a time, and everything else that is ready goes on before its next slice.
/// Nothing is refused by that and no core is idle: where nobody else wants one, the next slice begins at once.
#[derive(Debug)]
pub(super) struct CallerTurns(PerCore<Arc<CoreTurns>>);

#[derive(Debug, Default)]
struct CoreTurns {
    /// Whether all connections are one caller's and none of them waits: then none has to.
    is_free: AtomicBool,
    state: Mutex<CoreState>,
}

#[derive(Debug, Default)]
struct CoreState {
    /// How many connections each caller has.
    open: HashMap<u64, usize>,
    lines: Lines,
}

/// The turns of one connection, which stays on one core.
#[derive(Debug)]
pub(super) struct ConnectionTurns {
    core: Arc<CoreTurns>,
    connection: Connection,
    /// The caller that it is counted for.
    caller: u64,
    place: Option<Place>,
}

/// A connection may be polled until this is dropped.
#[derive(Debug)]
#[must_use = "it is over when it is dropped"]
pub(super) struct CallerTurn<'a> {
    core: &'a CoreTurns,
    connection: &'a Connection,
    /// Who has it, and since when; `None` where it is not taken down.
    taken: Option<(u64, Instant)>,
}

impl CallerTurns {
    pub(super) fn shared() -> Arc<Self> {
        Arc::new(Self(PerCore::new(Arc::default)))
    }

    /// The turns of a connection that is served on the core whose thread this is.
    pub(super) fn of(&self, connection: &Connection) -> ConnectionTurns {
        let (core, connection) = (self.0.here().clone(), connection.clone());
        core.change(|state| state.count(STRANGER));
        ConnectionTurns { core, connection, caller: STRANGER, place: None }
    }
}

impl ConnectionTurns {
    /// Is ready when the connection may be polled. If not, the task is woken when it may.
    pub(super) fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<CallerTurn<'_>> {
        let caller = self.connection.caller();
        // In a line it stays in that.
        if caller != self.caller && self.place.is_none() {
            self.core.change(|state| {
                state.count(caller);
                state.discount(self.caller);
            });
            self.caller = caller;
        }
        let (core, connection, caller) = (&*self.core, &self.connection, self.caller);
        if caller == EVERYBODY || (self.place.is_none() && core.is_free.load(Ordering::Relaxed)) {
            return Poll::Ready(CallerTurn { core, connection, taken: None });
        }
        let now = Instant::now();
        let entered = match caller {
            STRANGER => Entered::Goes,
            _ => core.change(|state| state.lines.enter(caller, now, &mut self.place, cx.waker())),
        };
        match entered {
            Entered::Goes => Poll::Ready(CallerTurn { core, connection, taken: Some((caller, now)) }),
            Entered::Waits => Poll::Pending,
            Entered::LetsOthersIn(back) => {
                // The runtime asks its driver what is ready and runs that. Then it wakes this.
                let back = Waker::from(back);
                let _ = pin!(yield_now()).poll(&mut Context::from_waker(&back));
                Poll::Pending
            }
        }
    }
}

impl Drop for CallerTurn<'_> {
    fn drop(&mut self) {
        let Some((caller, began)) = self.taken else { return };
        // A stranger may have become known by what was asked.
        let caller = if caller == STRANGER { self.connection.caller() } else { caller };
        if [STRANGER, EVERYBODY].contains(&caller) {
            return;
        }
        let next = self.core.change(|state| state.lines.end(caller, began, Instant::now()));
        next.iter().for_each(Waker::wake_by_ref);
    }
}

impl Drop for ConnectionTurns {
    fn drop(&mut self) {
        let place = self.place.take();
        let next = self.core.change(|state| {
            state.discount(self.caller);
            place.and_then(|place| state.lines.leave(&place))
        });
        next.iter().for_each(Waker::wake_by_ref);
    }
}

impl CoreTurns {
    fn change<T>(&self, change: impl FnOnce(&mut CoreState) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        let is_free = state.is_of_one() && state.lines.waiting() == 0;
        if self.is_free.load(Ordering::Relaxed) != is_free {
            self.is_free.store(is_free, Ordering::Relaxed);
        }
        changed
    }
}

impl CoreState {
    fn is_of_one(&self) -> bool {
        self.open.len() <= 1 && !self.open.contains_key(&STRANGER)
    }

    fn count(&mut self, caller: u64) {
        *self.open.entry(caller).or_default() += 1;
    }

    fn discount(&mut self, caller: u64) {
        if let Some(open) = self.open.get_mut(&caller) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&caller);
            }
        }
    }
}

#[cfg(test)]
mod tests;
