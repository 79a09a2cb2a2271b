use std::collections::{HashMap, VecDeque};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::net::connections_by_owner::ConnectionOwner;
use base::RecordingWaker;

/// The recent CPU use of each owner on a core, and the connections that wait.
#[derive(Debug)]
pub(super) struct ConnectionOwnerQueues {
    all: HashMap<ConnectionOwner, ConnectionOwnerQueue>,
    /// The owners with a waiting connection, the next one first.
    order: VecDeque<ConnectionOwner>,
    /// The waker of the next connection, while all other tasks run before it.
    yielding: Option<RecordingWaker>,
    tickets: u64,
    waiting: usize,
    /// The number of queues at which those without state are removed.
    sweep_at: usize,
}

/// The recent CPU use of one owner, and its connections that wait for a turn.
#[derive(Debug)]
struct ConnectionOwnerQueue {
    /// The CPU time that the owner had used and not regained at `at`.
    cpu_used: Duration,
    at: Instant,
    /// The waiting connections by their tickets' numbers, in ascending order. The next one is first.
    waiting: VecDeque<(u64, Waker)>,
}

/// A position in an owner's queue.
#[derive(Debug)]
pub(super) struct OwnerQueueTicket {
    owner: ConnectionOwner,
    number: u64,
}

/// The decision about a connection that requests a turn.
#[derive(Debug)]
pub(super) enum PollDecision {
    Run,
    /// The connection waits. Its task is woken when the connection is next.
    Wait,
    /// The connection waits, because its owner has used more than a slice. The caller must wake the next owner's
    /// connection.
    WakeNext(Waker),
    /// The connection is next, and is polled after this waker has woken its task. All other tasks that can run go
    /// first.
    YieldToOthers(Waker),
}

/// The CPU time that one owner gets before all other tasks run.
///
/// A poll that begins within the slice may end later. The owner then skips one turn for each slice that it has used.
pub(super) const SLICE: Duration = Duration::from_micros(100);
/// The maximum CPU time charged to an owner. This bounds the charge to a thread that the system did not schedule.
const CPU_USED_MAX: Duration = SLICE.saturating_mul(10);
/// The number of slices of time between polls in which an owner regains one slice, while none of its connections waits.
/// So an owner that uses less than a fifth of a core never waits.
const REGAINED_IN: u32 = 4;
/// The minimum number of queues before some are removed.
const SWEEP_MIN: usize = 64;

impl ConnectionOwnerQueues {
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Handles a connection that requests a turn. `ticket` is its position in its owner's queue, if any; it is set or
    /// cleared here.
    pub(super) fn enter(
        &mut self,
        owner: ConnectionOwner,
        now: Instant,
        ticket: &mut Option<OwnerQueueTicket>,
        waker: &Waker,
    ) -> PollDecision {
        let number = match ticket {
            Some(ticket) => ticket.number,
            None => {
                let queue = self.queue(owner, now);
                queue.regain(now);
                if queue.waiting.is_empty() && queue.cpu_used < SLICE {
                    return PollDecision::Run;
                }
                let number = self.join(owner, now, waker);
                *ticket = Some(OwnerQueueTicket { owner, number });
                number
            }
        };
        let Some(queue) = self.all.get_mut(&owner) else { return PollDecision::Wait };
        let Ok(at) = queue.index_of(number) else { return PollDecision::Wait };
        if at > 0 || self.order.front() != Some(&owner) {
            queue.waiting[at].1.clone_from(waker);
            return PollDecision::Wait;
        }
        let cx = Context::from_waker(waker);
        if let Some(yielding) = &mut self.yielding {
            if !yielding.take_woken(&cx) {
                // Another waker has woken the task.
                return PollDecision::Wait;
            }
            self.yielding = None;
            queue.cpu_used = queue.cpu_used.saturating_sub(SLICE);
            if queue.cpu_used >= SLICE && self.order.len() > 1 {
                queue.waiting[0].1.clone_from(waker);
                self.order.rotate_left(1);
                return self.next().map_or(PollDecision::Wait, PollDecision::WakeNext);
            }
        }
        if queue.cpu_used >= SLICE {
            let mut yielding = RecordingWaker::new_woken();
            yielding.take_woken(&cx);
            return PollDecision::YieldToOthers(self.yielding.insert(yielding).waker().clone());
        }
        self.remove(owner, 0);
        *ticket = None;
        PollDecision::Run
    }

    /// Records the duration of a turn. Returns the connection to wake next.
    pub(super) fn end(&mut self, owner: ConnectionOwner, began: Instant, now: Instant) -> Option<Waker> {
        let cpu_used = self.charge(owner, began, now);
        if cpu_used >= SLICE && self.order.len() > 1 && self.order.front() == Some(&owner) {
            self.order.rotate_left(1);
            self.yielding = None;
        }
        self.next()
    }

    /// Charges an owner for a period of CPU time. Returns the owner's recent use.
    pub(super) fn charge(&mut self, owner: ConnectionOwner, began: Instant, now: Instant) -> Duration {
        let queue = self.queue(owner, now);
        queue.regain(began);
        queue.cpu_used = (queue.cpu_used + now.saturating_duration_since(began)).min(CPU_USED_MAX);
        queue.at = now;
        queue.cpu_used
    }

    /// Removes a connection from its owner's queue. Returns the waker of the connection that is next, if there is one.
    pub(super) fn leave(&mut self, ticket: &OwnerQueueTicket) -> Option<Waker> {
        let at = self.all.get(&ticket.owner)?.index_of(ticket.number).ok()?;
        if at == 0 && self.order.front() == Some(&ticket.owner) {
            self.yielding = None;
        }
        self.remove(ticket.owner, at);
        self.next()
    }

    /// Returns the waker of the next connection, unless all other tasks run before it now.
    fn next(&self) -> Option<Waker> {
        let first = self.order.front().filter(|_| self.yielding.is_none())?;
        self.all.get(first)?.waiting.front().map(|(_, waker)| waker.clone())
    }

    /// Adds a connection at the end of its owner's queue. Returns its ticket's number.
    fn join(&mut self, owner: ConnectionOwner, now: Instant, waker: &Waker) -> u64 {
        self.tickets += 1;
        self.waiting += 1;
        let number = self.tickets;
        let queue = self.queue(owner, now);
        queue.waiting.push_back((number, waker.clone()));
        if queue.waiting.len() == 1 {
            self.order.push_back(owner);
        }
        number
    }

    /// Removes the connection at position `at` of its owner's queue.
    fn remove(&mut self, owner: ConnectionOwner, at: usize) {
        let Some(queue) = self.all.get_mut(&owner) else { return };
        queue.waiting.remove(at);
        self.waiting -= 1;
        if queue.waiting.is_empty() {
            self.order.retain(|waits| *waits != owner);
        }
    }

    fn queue(&mut self, owner: ConnectionOwner, now: Instant) -> &mut ConnectionOwnerQueue {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|_, queue| !queue.has_no_state(now));
            self.sweep_at = SWEEP_MIN.max(2 * self.all.len());
        }
        self.all.entry(owner).or_insert_with(|| ConnectionOwnerQueue {
            cpu_used: Duration::ZERO,
            at: now,
            waiting: VecDeque::new(),
        })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Default for ConnectionOwnerQueues {
    fn default() -> Self {
        let (all, order) = (HashMap::new(), VecDeque::new());
        Self { all, order, yielding: None, tickets: 0, waiting: 0, sweep_at: SWEEP_MIN }
    }
}

impl ConnectionOwnerQueue {
    fn regain(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            self.cpu_used = self.cpu_used.saturating_sub(now.saturating_duration_since(self.at) / REGAINED_IN);
        }
        self.at = now;
    }

    /// Whether the queue has no state worth keeping, so that it equals a new one.
    fn has_no_state(&mut self, now: Instant) -> bool {
        self.regain(now);
        self.waiting.is_empty() && self.cpu_used.is_zero()
    }

    fn index_of(&self, number: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&number, |(number, _)| *number)
    }
}
