use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::connection::ConnectionState;
use super::connections_by_owner::{
    ConnectionOwner, ConnectionSource, ConnectionsByOwner, IdleConnection, IdleConnections,
};
use super::metrics::{ConnectionFailure, open_connections};
use super::{ConnectionLimits, DownstreamConnection};
use base::{LogRateLimit, Reloadable, descriptor_requested, request_descriptor};

/// The limit on open connections of one listener, as slots.
///
/// If all slots are taken, each new connection closes one that has been idle for a moment: the oldest of the source
/// with the most.
///
/// If no connection is idle, some connections beyond the limit are accepted so that they can authenticate. When the
/// caller of one is known, one connection of the owner with the most closes: its oldest idle one, else its youngest. If
/// no owner has more than the caller (`ConnectionsByOwner`), the caller's own oldest idle one closes, else the new one
/// itself. A new connection closes at most one other, and no busy one before its caller is known.
///
/// If too many connections are unauthenticated as well, each further connection closes an idle one that has just
/// arrived, or waits if there is none. A connection then has time to authenticate until as many others have arrived.
/// Before that, connections of one source cannot be told apart, so those of a flood close each other, and also a
/// legitimate one from the same source. Other sources lose none.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    limits: Reloadable<ConnectionLimits>,
    /// The maximum number of connections that the process's file descriptors allow.
    descriptors_max: usize,
    closing_max: usize,
    state: Mutex<ConnectionLimiterState>,
    /// Notifies one task that waits for a free connection slot.
    freed: Notify,
    /// Notifies all tasks that wait for a file descriptor.
    closed: Notify,
    /// Limits the rate at which failures to accept are logged.
    failures: LogRateLimit,
}

/// A connection's slot in the limit, which is freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
}

#[derive(Debug, Default)]
struct ConnectionLimiterState {
    /// The connections by the number of connections that were accepted before.
    connections: BTreeMap<u64, AcceptedConnection>,
    owners: ConnectionsByOwner,
    /// The number of connections that were accepted so far.
    accepted: u64,
    /// The number of connections that were closed to make room and still hold a descriptor.
    closing: usize,
    /// The idle connections as of the last scan.
    idle: IdleConnections,
    scanned: Option<Instant>,
    /// The number of connections that remained when descriptors were last freed for other users, and the time of that.
    capped: Option<(usize, Instant)>,
}

/// A connection that was accepted, with its owner and its state.
#[derive(Debug)]
struct AcceptedConnection {
    connection: DownstreamConnection,
    source: ConnectionSource,
    owner: ConnectionOwner,
}

/// The share of the process's descriptors, in quarters, for the connections of one listener. The rest is for upstream,
/// files and health checks.
const DESCRIPTOR_QUARTERS: usize = 3;
/// The number of connections closed at a time for this listener when the process has no descriptors left.
const CLOSED_AT_ONCE: usize = 16;
/// The number of connections closed at a time for other users of descriptors, which request more if needed.
const CLOSED_FOR_OTHERS: usize = 4;
/// The time that a new connection has to send its first request before it may be evicted as idle.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_millis(500);
/// How long new connections do not use the descriptors that were freed for other users. A user that needs more requests
/// them again.
const CAP_LASTS: Duration = Duration::from_secs(2);
/// The maximum number of connections beyond the limit that were closed and still hold a descriptor. One in
/// `DESCRIPTORS_PER_CLOSING` descriptors is reserved for them.
const CLOSING_MAX: usize = 256;
const DESCRIPTORS_PER_CLOSING: usize = 16;
/// The number of slots for each connection that may be accepted beyond the limit so that it can authenticate. At least
/// one may be, and no more than may be closing at a time.
const SLOTS_PER_EXTRA: usize = 4;
/// The number of an owner's connections that are checked for idleness, the oldest first.
const SCANNED_PER_OWNER_MAX: usize = 64;
/// The time between two scans of a full listener while no connection is known to be idle. A scan of 20,000 connections
/// takes a millisecond or two.
const SCAN_EVERY: Duration = Duration::from_millis(25);
/// How long the result of a scan for idle connections stays valid.
const SCAN_VALID_FOR: Duration = Duration::from_secs(1);

impl ConnectionLimiter {
    /// Creates as many connection slots as the limit allows, but no more than the process has descriptors for.
    pub(super) fn within_descriptors(limits: Reloadable<ConnectionLimits>) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        let (slots_max, closing_max) = slots_within(descriptors.unwrap_or(usize::MAX));
        let connections_max = limits.get().connections_max;
        if slots_max < connections_max {
            let limit = descriptors.unwrap_or(usize::MAX);
            tracing::warn!(
                "file descriptor limit {limit} allows only {slots_max} connections \
                 (limits.connections={connections_max})"
            );
        }
        Self::new(limits, slots_max, closing_max)
    }

    fn new(limits: Reloadable<ConnectionLimits>, descriptors_max: usize, closing_max: usize) -> Arc<Self> {
        let (state, freed, closed, failures) =
            (Mutex::default(), Notify::new(), Notify::new(), LogRateLimit::default());
        Arc::new(Self { limits, descriptors_max, closing_max, state, freed, closed, failures })
    }

    /// Takes a slot for a connection, and waits until one is free.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        connection: &DownstreamConnection,
        source: ConnectionSource,
    ) -> ConnectionSlot {
        loop {
            if let Some(number) = self.try_acquire(connection, source) {
                open_connections(1.0);
                return ConnectionSlot { limiter: self.clone(), number };
            }
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                // The end of a connection's last request sends no notification, so this polls.
                () = sleep(SCAN_EVERY) => {}
            }
        }
    }

    /// Takes a slot for a connection that was queued when the listener ended; `None` if all are taken. No connection
    /// follows it, so it may use the descriptors that were freed for others.
    pub(super) fn acquire_final(
        self: &Arc<Self>,
        connection: &DownstreamConnection,
        source: ConnectionSource,
    ) -> Option<ConnectionSlot> {
        self.state.lock().capped = None;
        self.acquire(connection, source).now_or_never()
    }

    /// Makes room for a connection that could not be accepted. If no connection here is idle, requests that the other
    /// users of descriptors close one, and returns true.
    pub(super) async fn make_room_or_request(&self, error: &io::Error) -> bool {
        let requests = !self.close_idle(CLOSED_AT_ONCE, false).await;
        if requests {
            if let Some(failures) = self.failures.failed(Instant::now()) {
                tracing::warn!(%error, failures, "cannot accept connections and none is idle; freeing file descriptors");
            }
            request_descriptor().await;
        }
        requests
    }

    /// Makes room whenever another user of descriptors has none: upstream, or a listener of another kind.
    ///
    /// For a while, the listener then accepts no more connections than remained. Otherwise, clients that connect often
    /// would take the freed descriptors.
    pub(super) async fn serve_descriptor_requests(&self) -> Infallible {
        loop {
            descriptor_requested().await;
            self.close_idle(CLOSED_FOR_OTHERS, true).await;
        }
    }

    /// Closes some idle connections because the process has no descriptors left, and waits briefly until one has
    /// closed. Returns whether one has.
    ///
    /// Connections that are already closing count first. So frequent calls do not close new connections.
    async fn close_idle(&self, room: usize, is_for_others: bool) -> bool {
        let closed = self.closed.notified();
        // A new connection gets a moment to send a request. If the process has no descriptors, `accept` fails even
        // while no client waits, so this may run for no client at all.
        let latest = Instant::now().checked_sub(FIRST_REQUEST_WITHIN);
        let closing = {
            let mut state = self.state.lock();
            while state.closing < room.min(self.closing_max)
                && state.evict_idle(latest, IdleConnections::next_idle_by).is_some()
            {}
            if is_for_others {
                state.capped = Some((state.connections.len().min(state.cap()), Instant::now()));
            }
            state.closing
        };
        closing > 0 && timeout(SCAN_EVERY, closed).await.is_ok()
    }

    fn try_acquire(self: &Arc<Self>, connection: &DownstreamConnection, source: ConnectionSource) -> Option<u64> {
        let mut state = self.state.lock();
        if state.closing >= self.closing_max {
            return None;
        }
        let slots = self.slots_max();
        let is_full = state.connections.len() >= slots.min(state.cap());
        if is_full {
            let extra_max = self.closing_max.min((slots / SLOTS_PER_EXTRA).max(1));
            state.make_room(slots, extra_max)?;
        }
        let number = state.insert(connection, source);
        // New connections are added to a scan that is still valid. Otherwise, newer connections would be closed before
        // them.
        if let Some(since) = connection.idle_since().filter(|_| is_full || state.has_scanned(SCAN_VALID_FOR)) {
            state.idle.add(IdleConnection { number, source, since });
        }
        drop(state);
        let limiter = Arc::downgrade(self);
        connection
            .on_authenticated(move |caller| limiter.upgrade().is_none_or(|limiter| limiter.assign(number, caller)));
        Some(number)
    }

    /// Charges the connection with that number to its caller, unless it is closing. Returns whether it may stay.
    fn assign(&self, number: u64, caller: Option<u64>) -> bool {
        let mut state = self.state.lock();
        let ConnectionLimiterState { connections, owners, .. } = &mut *state;
        let Some(entry) = connections.get_mut(&number) else { return true };
        if let Some(caller) = caller {
            owners.remove(entry.owner, number);
            entry.owner = ConnectionOwner::Caller(caller);
            owners.add(entry.owner, number);
        }
        let owner = entry.owner;
        state.connections.len() <= self.slots_max() || state.make_room_for(owner)
    }

    /// Returns the current number of connection slots.
    fn slots_max(&self) -> usize {
        self.limits.get().connections_max.min(self.descriptors_max)
    }
}

/// Returns the number of slots for a number of descriptors, and the number of connections that may be closing beyond
/// it.
fn slots_within(descriptors: usize) -> (usize, usize) {
    let closing_max = (descriptors / DESCRIPTORS_PER_CLOSING).clamp(1, CLOSING_MAX);
    ((descriptors / 4 * DESCRIPTOR_QUARTERS).saturating_sub(closing_max).max(1), closing_max)
}

impl ConnectionLimiterState {
    fn insert(&mut self, connection: &DownstreamConnection, source: ConnectionSource) -> u64 {
        let (connection, owner, number) = (connection.clone(), ConnectionOwner::Source(source), self.accepted);
        self.accepted += 1;
        self.connections.insert(number, AcceptedConnection { connection, source, owner });
        self.owners.add(owner, number);
        number
    }

    fn remove(&mut self, number: u64) -> Option<DownstreamConnection> {
        let AcceptedConnection { connection, owner, .. } = self.connections.remove(&number)?;
        self.owners.remove(owner, number);
        Some(connection)
    }

    /// Closes a connection to make room for another one.
    fn close(&mut self, number: u64, why: ConnectionFailure) {
        if let Some(connection) = self.remove(number) {
            why.count();
            connection.advance(ConnectionState::Aborted);
            self.closing += 1;
        }
    }

    /// Tries to make room for a new connection while all slots are taken: closes an idle connection, or lets the new
    /// one authenticate beyond the limit.
    fn make_room(&mut self, slots: usize, extra_max: usize) -> Option<()> {
        let latest = Instant::now().checked_sub(FIRST_REQUEST_WITHIN);
        if latest.is_some() && self.evict_idle(latest, IdleConnections::next).is_some() {
            return Some(());
        }
        let has_room = self.connections.len().checked_sub(slots).is_some_and(|extra| extra < extra_max);
        if has_room { Some(()) } else { self.evict_idle(None, IdleConnections::next) }
    }

    /// Makes room for a connection of an owner beyond the limit. Returns false if that connection must close.
    fn make_room_for(&mut self, owner: ConnectionOwner) -> bool {
        let latest = Instant::now().checked_sub(FIRST_REQUEST_WITHIN);
        if latest.is_some() && self.evict_idle(latest, IdleConnections::next).is_some() {
            return true;
        }
        let target = self.owners.eviction_target(owner);
        let is_idle = |number: &u64| self.inactive_since(*number).is_some();
        let idle = self.owners.of(target).take(SCANNED_PER_OWNER_MAX).find(is_idle);
        let youngest = self.owners.of(target).next_back().filter(|_| target != owner);
        match (idle, youngest) {
            (Some(number), _) => self.close(number, ConnectionFailure::Evicted),
            (None, Some(number)) => self.close(number, ConnectionFailure::OverFairShare),
            (None, None) => {
                ConnectionFailure::ListenerFull.count();
                return false;
            }
        }
        true
    }

    /// Closes an idle connection, if `next` finds one that was idle at `latest`.
    fn evict_idle(
        &mut self,
        latest: Option<Instant>,
        next: impl Fn(&mut IdleConnections, Option<Instant>) -> Option<IdleConnection>,
    ) -> Option<()> {
        self.scan(SCAN_VALID_FOR);
        // Connections that arrived after the last scan may be the only ones left in the list, although others became
        // idle before them. So only connections that were idle at the scan count here.
        let known = self.scanned.min(latest.or(self.scanned));
        let closed = self.next(|idle| idle.next(known)).or_else(|| {
            self.scan(SCAN_EVERY);
            self.next(|idle| next(idle, latest))
        })?;
        self.close(closed, ConnectionFailure::Evicted);
        Some(())
    }

    /// Returns the next idle connection to close.
    fn next(&mut self, next: impl Fn(&mut IdleConnections) -> Option<IdleConnection>) -> Option<u64> {
        while let Some(IdleConnection { number, since, .. }) = next(&mut self.idle) {
            if self.inactive_since(number) == Some(since) {
                return Some(number);
            }
        }
        None
    }

    fn inactive_since(&self, number: u64) -> Option<Instant> {
        self.connections.get(&number)?.connection.inactive_since()
    }

    /// Returns the maximum number of connections while other users need descriptors, at least [`CLOSED_AT_ONCE`].
    fn cap(&self) -> usize {
        self.capped
            .filter(|(_, since)| since.elapsed() < CAP_LASTS)
            .map_or(usize::MAX, |(left, _)| left.max(CLOSED_AT_ONCE))
    }

    fn has_scanned(&self, max_age: Duration) -> bool {
        self.scanned.is_some_and(|scanned| scanned.elapsed() < max_age)
    }

    /// Scans for idle connections, unless the last scan is younger than `every`.
    fn scan(&mut self, every: Duration) {
        if self.has_scanned(every) {
            return;
        }
        self.scanned = Some(Instant::now());
        self.idle = IdleConnections::of(self.connections.iter().filter_map(
            |(number, AcceptedConnection { connection, source, .. })| {
                let since = connection.inactive_since()?;
                Some(IdleConnection { number: *number, source: *source, since })
            },
        ));
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        if state.remove(self.number).is_none() {
            state.closing -= 1;
        }
        drop(state);
        open_connections(-1.0);
        self.limiter.freed.notify_one();
        self.limiter.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
