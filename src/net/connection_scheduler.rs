mod owner_queue;

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use http2::ConnectionWakeTarget;
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::DownstreamConnection;
use super::connection::SHARED_CALLER;
use super::connection_driver::{BoxError, ConnectionDriver};
use super::connections_by_owner::ConnectionOwner;
use super::idle_connections::ConnectionSource;
use base::PerCore;
use owner_queue::{ConnectionOwnerQueues, OwnerQueueTicket, PollDecision, SLICE};

/// Fair scheduling of connections by owner, on each core of a listener.
///
/// An owner is a caller, or an address whose callers are not authenticated yet. After an owner has used its slice of a
/// core, its connections wait in a queue, however many it has. The queues of a core get one slice each in turn, and
/// everything else that can run does so before each slice. So an owner that uses little of a core waits for at most one
/// slice. Beside a storm (`make siege ATTACK=storm`), another caller's cached GETs have a p99 of up to 2.0 ms, without
/// turns 12.1 ms.
///
/// Scheduling refuses nothing and leaves no core idle: if nothing else can run, the next slice begins at once.
#[derive(Debug)]
pub(super) struct ConnectionScheduler(PerCore<Arc<CoreScheduler>>);

#[derive(Debug, Default)]
struct CoreScheduler {
    /// Whether all connections belong to one owner and none of them waits, so that no connection needs a turn.
    is_free: AtomicBool,
    state: Mutex<CoreSchedulerState>,
}

#[derive(Debug, Default)]
struct CoreSchedulerState {
    /// The number of connections of each owner.
    open: HashMap<ConnectionOwner, usize>,
    queues: ConnectionOwnerQueues,
}

/// The turns of one connection, which stays on one core.
#[derive(Debug)]
pub(super) struct ScheduledConnection {
    core: Arc<CoreScheduler>,
    connection: DownstreamConnection,
    source: ConnectionSource,
    /// The owner to which the connection is charged.
    owner: ConnectionOwner,
    ticket: Option<OwnerQueueTicket>,
}

/// The owner of all connections if all callers count as one. Its connections never wait.
const ALL: ConnectionOwner = ConnectionOwner::Caller(SHARED_CALLER);

/// The permission to poll a connection, until it is dropped.
#[derive(Debug)]
#[must_use = "it is over when it is dropped"]
struct ConnectionPollPermit<'a> {
    core: &'a CoreScheduler,
    connection: &'a DownstreamConnection,
    /// The owner of the turn and the start time; `None` if the turn is not recorded.
    taken: Option<(ConnectionOwner, Instant)>,
}

impl ConnectionScheduler {
    pub(super) fn shared() -> Arc<Self> {
        Arc::new(Self(PerCore::new(Arc::default)))
    }

    /// Creates the turns of a connection on the current thread's core.
    pub(super) fn schedule(&self, connection: &DownstreamConnection, source: ConnectionSource) -> ScheduledConnection {
        let (core, connection) = (self.0.here().clone(), connection.clone());
        let owner = owner(&connection, source);
        core.change(|state| state.count(owner));
        ScheduledConnection { core, connection, source, owner, ticket: None }
    }
}

/// Returns the caller that was authenticated last on a connection, or the connection's source if there is none.
fn owner(connection: &DownstreamConnection, source: ConnectionSource) -> ConnectionOwner {
    connection.caller().map_or(ConnectionOwner::Source(source), ConnectionOwner::Caller)
}

impl ScheduledConnection {
    /// Runs a connection until it ends (`Break`) or `aside` completes (`Continue`).
    ///
    /// The connection is polled when it has its owner's turn. `aside` is polled whenever it was woken, without a turn.
    pub(super) async fn run_until<O>(
        &mut self,
        driver: &mut impl ConnectionDriver,
        mut aside: Pin<&mut impl Future<Output = O>>,
    ) -> ControlFlow<Result<(), BoxError>, O> {
        let wake_set = driver.wake_set().clone();
        let waker = wake_set.waker(ConnectionWakeTarget::BackgroundFuture);
        // `aside` may not have registered a waker yet, so it is polled at once.
        wake_set.mark_woken(ConnectionWakeTarget::BackgroundFuture);
        poll_fn(|cx| {
            match self.poll_turn(cx) {
                Poll::Ready(turn) => {
                    wake_set.limit_turn(turn.ends());
                    let polled = driver.poll(cx);
                    drop(turn);
                    if let Poll::Ready(ended) = polled {
                        return Poll::Ready(ControlFlow::Break(ended));
                    }
                }
                // The wake-up consumed the registered waker, and `aside` may be woken next, so the waker is registered
                // again.
                Poll::Pending => wake_set.wait(cx),
            }
            if !wake_set.take_woken(ConnectionWakeTarget::BackgroundFuture) {
                return Poll::Pending;
            }
            aside.as_mut().poll(&mut Context::from_waker(&waker)).map(ControlFlow::Continue)
        })
        .await
    }

    /// Ready when the connection may be polled. If not, the task is woken when it may.
    fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<ConnectionPollPermit<'_>> {
        let owner = owner(&self.connection, self.source);
        // A waiting connection keeps its owner, because its ticket belongs to that owner's queue.
        if owner != self.owner && self.ticket.is_none() {
            self.core.change(|state| {
                state.count(owner);
                state.discount(self.owner);
            });
            self.owner = owner;
        }
        let (core, connection, owner) = (&*self.core, &self.connection, self.owner);
        if owner == ALL || (self.ticket.is_none() && core.is_free.load(Ordering::Relaxed)) {
            return Poll::Ready(ConnectionPollPermit { core, connection, taken: None });
        }
        let now = Instant::now();
        match core.change(|state| state.queues.enter(owner, now, &mut self.ticket, cx.waker())) {
            PollDecision::Run => Poll::Ready(ConnectionPollPermit { core, connection, taken: Some((owner, now)) }),
            PollDecision::Wait => Poll::Pending,
            PollDecision::WakeNext(next) => {
                next.wake();
                Poll::Pending
            }
            PollDecision::YieldToOthers(recorder) => {
                // `yield_now` defers the wake-up until the runtime has polled its driver and run every ready task.
                let _ = pin!(yield_now()).poll(&mut Context::from_waker(&recorder));
                Poll::Pending
            }
        }
    }
}

impl ConnectionPollPermit<'_> {
    /// The time at which the slice ends; `None` if all connections of the core have one owner.
    fn ends(&self) -> Option<Instant> {
        self.taken.map(|(_, began)| began + SLICE)
    }
}

impl Drop for ConnectionPollPermit<'_> {
    fn drop(&mut self) {
        let Some((owner, began)) = self.taken else { return };
        // The caller is charged too. Otherwise, it would get a fresh slice on each new connection.
        let found = self.connection.caller().map(ConnectionOwner::Caller);
        let found = found.filter(|found| matches!(owner, ConnectionOwner::Source(_)) && *found != ALL);
        let now = Instant::now();
        let next = self.core.change(|state| {
            if let Some(caller) = found {
                state.queues.charge(caller, began, now);
            }
            state.queues.end(owner, began, now)
        });
        next.iter().for_each(Waker::wake_by_ref);
    }
}

impl Drop for ScheduledConnection {
    fn drop(&mut self) {
        let ticket = self.ticket.take();
        let next = self.core.change(|state| {
            state.discount(self.owner);
            ticket.and_then(|ticket| state.queues.leave(&ticket))
        });
        next.iter().for_each(Waker::wake_by_ref);
    }
}

impl CoreScheduler {
    fn change<T>(&self, change: impl FnOnce(&mut CoreSchedulerState) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        let is_free = state.open.len() <= 1 && state.queues.waiting() == 0;
        if self.is_free.load(Ordering::Relaxed) != is_free {
            self.is_free.store(is_free, Ordering::Relaxed);
        }
        changed
    }
}

impl CoreSchedulerState {
    fn count(&mut self, owner: ConnectionOwner) {
        *self.open.entry(owner).or_default() += 1;
    }

    fn discount(&mut self, owner: ConnectionOwner) {
        if let Some(open) = self.open.get_mut(&owner) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests;
