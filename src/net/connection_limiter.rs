use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::connection::ConnectionState;
use super::connections_by_owner::{ConnectionOwner, ConnectionsByOwner};
use super::idle_connections::{ConnectionSource, IdleConnection, IdleConnections};
use super::metrics::{ConnectionFailure, open_connections};
use super::{ConnectionLimits, DownstreamConnection};
use base::{Reloadable, descriptor_wanted, want_descriptor};

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
    /// The number of connections for which the process has descriptors.
    affordable_max: usize,
    leaving_max: usize,
    taken: Mutex<ConnectionLimiterState>,
    /// Notifies one task that waits for a free connection slot.
    freed: Notify,
    /// Notifies all tasks that wait for a file descriptor.
    gone: Notify,
}

/// A connection's slot in the limit, which is freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    places: Arc<ConnectionLimiter>,
    at: usize,
    connection: DownstreamConnection,
}

#[derive(Debug)]
struct ConnectionLimiterState {
    here: Slab<AcceptedConnection>,
    owners: ConnectionsByOwner,
    /// The number of connections that were accepted so far.
    came: u64,
    /// The number of connections that were closed to make room and still hold a descriptor.
    leaving: usize,
    /// The idle connections as of the last scan.
    idle: IdleConnectionSlots,
    looked: Option<Instant>,
    /// The number of connections that remained when descriptors were last freed for other users, and the time of that.
    left: Option<(usize, Instant)>,
    warned: Option<Instant>,
}

/// A connection that was accepted, with its owner and its state.
#[derive(Debug)]
struct AcceptedConnection {
    connection: DownstreamConnection,
    source: ConnectionSource,
    owner: ConnectionOwner,
    order: u64,
}

type IdleConnectionSlots = IdleConnections<(usize, DownstreamConnection)>;

/// The share of the process's descriptors, in quarters, for the connections of one listener. The rest is for upstream,
/// files and health checks.
const DESCRIPTORS_OF_4: usize = 3;
/// The number of connections closed at a time for this listener when the process has no descriptors left.
const ROOM: usize = 16;
/// The number of connections closed at a time for other users of descriptors, which request more if needed.
const ROOM_FOR_OTHERS: usize = 4;
const NEWCOMER_ASKS_WITHIN: Duration = Duration::from_millis(500);
/// How long new connections do not use the descriptors that were freed for other users. A user that needs more requests
/// them again.
const LEFT_FOR: Duration = Duration::from_secs(2);
/// The maximum number of connections beyond the limit that were closed and still hold a descriptor. One in
/// `DESCRIPTORS_PER_LEAVING` descriptors is reserved for them.
const LEAVING_MAX: usize = 256;
const DESCRIPTORS_PER_LEAVING: usize = 16;
/// The number of slots for each connection that may be accepted beyond the limit so that it can authenticate. At least
/// one may be, and no more than may be closing at a time.
const PLACES_PER_UNKNOWN: usize = 4;
/// The number of an owner's connections that are checked for idleness, the oldest first.
const LOOKED_AT_MAX: usize = 64;
const WARN_EVERY: Duration = Duration::from_secs(1);
/// The time between two scans of a full listener while no connection is known to be idle. A scan of 20,000 connections
/// takes a millisecond or two.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long the result of a scan for idle connections stays valid.
const LOOK_GOOD_FOR: Duration = Duration::from_secs(1);

impl ConnectionLimiter {
    /// Creates as many connection slots as the limit allows, but no more than the process has descriptors for.
    pub(super) fn within_descriptors(limits: Reloadable<ConnectionLimits>) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        let (places_max, leaving_max) = within(descriptors.unwrap_or(usize::MAX));
        let connections_max = limits.get().connections_max;
        if places_max < connections_max {
            let limit = descriptors.unwrap_or(usize::MAX);
            tracing::warn!(
                "file descriptor limit {limit} allows only {places_max} connections \
                 (limits.connections={connections_max})"
            );
        }
        Self::new(limits, places_max, leaving_max)
    }

    fn new(limits: Reloadable<ConnectionLimits>, affordable_max: usize, leaving_max: usize) -> Arc<Self> {
        let (here, idle) = (Slab::new(), IdleConnections::default());
        let owners = ConnectionsByOwner::default();
        let taken =
            ConnectionLimiterState { here, owners, came: 0, leaving: 0, idle, looked: None, left: None, warned: None };
        let (freed, gone) = (Notify::new(), Notify::new());
        Arc::new(Self { limits, affordable_max, leaving_max, taken: Mutex::new(taken), freed, gone })
    }

    /// Takes a slot for a connection, and waits until one is free.
    pub(super) async fn enter(
        self: &Arc<Self>,
        connection: &DownstreamConnection,
        source: ConnectionSource,
    ) -> ConnectionSlot {
        loop {
            if let Some(at) = self.try_enter(connection, source) {
                open_connections(1.0);
                return ConnectionSlot { places: self.clone(), at, connection: connection.clone() };
            }
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                // The end of a connection's last request sends no notification, so this polls.
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Takes a slot for a connection that was queued when the listener ended; `None` if all are taken. No connection
    /// follows it, so it may use the descriptors that were freed for others.
    pub(super) fn enter_last(
        self: &Arc<Self>,
        connection: &DownstreamConnection,
        source: ConnectionSource,
    ) -> Option<ConnectionSlot> {
        self.taken.lock().left = None;
        self.enter(connection, source).now_or_never()
    }

    /// Makes room for a connection that could not be accepted. If no connection here is idle, requests that the other
    /// users of descriptors close one, and returns true.
    pub(super) async fn make_room_or_ask(&self, error: &io::Error) -> bool {
        let asks = !self.close_silent(ROOM, false).await;
        if asks {
            if self.taken.lock().warns() {
                tracing::warn!(%error, "cannot accept a connection and none is idle; freeing file descriptors");
            }
            want_descriptor().await;
        }
        asks
    }

    /// Makes room whenever another user of descriptors has none: upstream, or a listener of another kind.
    ///
    /// For a while, the listener then accepts no more connections than remained. Otherwise, clients that connect often
    /// would take the freed descriptors.
    pub(super) async fn make_room_for_others(&self) -> Infallible {
        loop {
            descriptor_wanted().await;
            self.close_silent(ROOM_FOR_OTHERS, true).await;
        }
    }

    /// Closes some idle connections because the process has no descriptors left, and waits briefly until one has
    /// closed. Returns whether one has.
    ///
    /// Connections that are already closing count first. So frequent calls do not close new connections.
    async fn close_silent(&self, room: usize, is_for_others: bool) -> bool {
        let gone = self.gone.notified();
        // A new connection gets a moment to send a request. If the process has no descriptors, `accept` fails even
        // while no client waits, so this may run for no client at all.
        let latest = Instant::now().checked_sub(NEWCOMER_ASKS_WITHIN);
        let leaving = {
            let mut taken = self.taken.lock();
            while taken.leaving < room.min(self.leaving_max)
                && taken.displace(latest, IdleConnectionSlots::next_by).is_some()
            {}
            if is_for_others {
                taken.left = Some((taken.here.len().min(taken.left_max()), Instant::now()));
            }
            taken.leaving
        };
        leaving > 0 && timeout(LOOK_EVERY, gone).await.is_ok()
    }

    fn try_enter(self: &Arc<Self>, connection: &DownstreamConnection, source: ConnectionSource) -> Option<usize> {
        let mut taken = self.taken.lock();
        if taken.leaving >= self.leaving_max {
            return None;
        }
        let places = self.places_max();
        let is_full = taken.here.len() >= places.min(taken.left_max());
        if is_full {
            let unknown_max = self.leaving_max.min((places / PLACES_PER_UNKNOWN).max(1));
            taken.make_way(places, unknown_max)?;
        }
        let at = taken.enter(connection, source);
        // New connections are added to a scan that is still valid. Otherwise, newer connections would be closed before
        // them.
        if let Some(since) = connection.idle_since().filter(|_| is_full || taken.has_looked(LOOK_GOOD_FOR)) {
            taken.idle.add(IdleConnection { connection: (at, connection.clone()), source, since });
        }
        drop(taken);
        let places = Arc::downgrade(self);
        connection.on_known(move |connection, caller| {
            places.upgrade().is_none_or(|places| places.settle(at, connection, caller))
        });
        Some(at)
    }

    /// Counts the connection in that place for its caller, unless it is closing. Returns whether it may stay.
    fn settle(&self, at: usize, connection: &DownstreamConnection, caller: Option<u64>) -> bool {
        let mut taken = self.taken.lock();
        let ConnectionLimiterState { here, owners, .. } = &mut *taken;
        let Some(entry) = here.get_mut(at).filter(|entry| entry.connection.is_same_as(connection)) else { return true };
        if let Some(caller) = caller {
            owners.remove(entry.owner, entry.order, at);
            entry.owner = ConnectionOwner::Caller(caller);
            owners.add(entry.owner, entry.order, at);
        }
        let owner = entry.owner;
        taken.here.len() <= self.places_max() || taken.give_way_to(owner)
    }

    /// Returns the current number of connection slots.
    fn places_max(&self) -> usize {
        self.limits.get().connections_max.min(self.affordable_max)
    }
}

/// Returns the number of slots for a number of descriptors, and the number of connections that may be closing beyond
/// it.
fn within(descriptors: usize) -> (usize, usize) {
    let leaving_max = (descriptors / DESCRIPTORS_PER_LEAVING).clamp(1, LEAVING_MAX);
    ((descriptors / 4 * DESCRIPTORS_OF_4).saturating_sub(leaving_max).max(1), leaving_max)
}

impl ConnectionLimiterState {
    fn enter(&mut self, connection: &DownstreamConnection, source: ConnectionSource) -> usize {
        let (connection, owner, order) = (connection.clone(), ConnectionOwner::Source(source), self.came);
        self.came += 1;
        let at = self.here.insert(AcceptedConnection { connection, source, owner, order });
        self.owners.add(owner, order, at);
        at
    }

    fn leave(&mut self, at: usize) {
        let AcceptedConnection { owner, order, .. } = self.here.remove(at);
        self.owners.remove(owner, order, at);
    }

    /// Closes a connection to make room for another one.
    fn close(&mut self, at: usize, why: ConnectionFailure) {
        why.count();
        self.here[at].connection.advance(ConnectionState::Cut);
        self.leave(at);
        self.leaving += 1;
    }

    /// Tries to make room for a new connection while all slots are taken: closes an idle connection, or lets the new
    /// one authenticate beyond the limit.
    fn make_way(&mut self, places: usize, unknown_max: usize) -> Option<()> {
        let asked = Instant::now().checked_sub(NEWCOMER_ASKS_WITHIN);
        if asked.is_some() && self.displace(asked, IdleConnectionSlots::next).is_some() {
            return Some(());
        }
        let has_room = self.here.len().checked_sub(places).is_some_and(|extra| extra < unknown_max);
        if has_room { Some(()) } else { self.displace(None, IdleConnectionSlots::next) }
    }

    /// Makes room for a connection of an owner beyond the limit. Returns false if that connection must close.
    fn give_way_to(&mut self, owner: ConnectionOwner) -> bool {
        let asked = Instant::now().checked_sub(NEWCOMER_ASKS_WITHIN);
        if asked.is_some() && self.displace(asked, IdleConnectionSlots::next).is_some() {
            return true;
        }
        let giver = self.owners.giver_for(owner);
        let is_idle = |at: &usize| self.here[*at].connection.silent_since().is_some();
        let idle = self.owners.of(giver).take(LOOKED_AT_MAX).find(is_idle);
        let youngest = self.owners.of(giver).next_back().filter(|_| giver != owner);
        match (idle, youngest) {
            (Some(at), _) => self.close(at, ConnectionFailure::Displaced),
            (None, Some(at)) => self.close(at, ConnectionFailure::OverShare),
            (None, None) => {
                ConnectionFailure::NoShare.count();
                return false;
            }
        }
        true
    }

    /// Closes an idle connection, if `next` finds one that was idle at `latest`.
    fn displace(
        &mut self,
        latest: Option<Instant>,
        next: impl Fn(&mut IdleConnectionSlots, Option<Instant>) -> Option<IdleConnection<(usize, DownstreamConnection)>>,
    ) -> Option<()> {
        self.look(LOOK_GOOD_FOR);
        // Connections that arrived after the last scan may be the only ones left in the list, although others became
        // idle before them. So only connections that were idle at the scan count here.
        let known = self.looked.min(latest.or(self.looked));
        let gone = self.next(|idle| idle.next(known)).or_else(|| {
            self.look(LOOK_EVERY);
            self.next(|idle| next(idle, latest))
        })?;
        self.close(gone, ConnectionFailure::Displaced);
        Some(())
    }

    /// Returns the next idle connection to close.
    fn next(
        &mut self,
        next: impl Fn(&mut IdleConnectionSlots) -> Option<IdleConnection<(usize, DownstreamConnection)>>,
    ) -> Option<usize> {
        while let Some(IdleConnection { connection: (at, connection), since, .. }) = next(&mut self.idle) {
            let is_here = self.here.get(at).is_some_and(|entry| entry.connection.is_same_as(&connection));
            if is_here && connection.silent_since() == Some(since) {
                return Some(at);
            }
        }
        None
    }

    /// Returns the maximum number of connections while other users need descriptors. It is never below [`ROOM`].
    fn left_max(&self) -> usize {
        self.left.filter(|(_, since)| since.elapsed() < LEFT_FOR).map_or(usize::MAX, |(left, _)| left.max(ROOM))
    }

    /// Whether to log again that no connection can be accepted; true at most once per interval.
    fn warns(&mut self) -> bool {
        let warns = self.warned.is_none_or(|last| last.elapsed() >= WARN_EVERY);
        if warns {
            self.warned = Some(Instant::now());
        }
        warns
    }

    fn has_looked(&self, lately: Duration) -> bool {
        self.looked.is_some_and(|looked| looked.elapsed() < lately)
    }

    /// Scans for idle connections, unless the last scan is younger than `every`.
    fn look(&mut self, every: Duration) {
        if self.has_looked(every) {
            return;
        }
        self.looked = Some(Instant::now());
        self.idle =
            IdleConnections::of(self.here.iter().filter_map(|(at, AcceptedConnection { connection, source, .. })| {
                let since = connection.silent_since()?;
                Some(IdleConnection { connection: (at, connection.clone()), source: *source, since })
            }));
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if taken.here.get(self.at).is_some_and(|entry| entry.connection.is_same_as(&self.connection)) {
            taken.leave(self.at);
        } else {
            taken.leaving -= 1;
        }
        drop(taken);
        open_connections(-1.0);
        self.places.freed.notify_one();
        self.places.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
