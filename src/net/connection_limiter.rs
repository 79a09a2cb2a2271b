use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{ConnectionState, PlaceGuard};
use super::idle_connections::{ConnectionSource, IdleConnection, IdleConnections};
use super::metrics::ConnectionFailure;
use super::owners::{Owner, Owners};
use super::{Connection, ConnectionLimits};
use base::{Reloadable, descriptor_wanted, want_descriptor};

/// The places of one listener. When all are taken, a connection on which nothing is under way is closed for each that
/// comes. The oldest goes, so a newcomer has as much time to ask as it takes until others have come for all that were
/// silent before it. Where that is too short, none of them gets to ask, and places that become free stay theirs until
/// it is long enough.
///
/// If none is silent, a few connections beyond the limit are accepted so that they can authenticate. When the caller of
/// one is known, one connection closes: the youngest of the owner with the most, or the new one itself if its owner has
/// no fewer (`Owners`). A new connection closes at most one other, and none before its caller is known. Further
/// connections wait until those few have authenticated.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    limits: Reloadable<ConnectionLimits>,
    /// How many the process has descriptors for.
    affordable_max: usize,
    leaving_max: usize,
    taken: Mutex<Taken>,
    /// Told to one of those who wait for a place.
    freed: Notify,
    /// Told to all who wait for a descriptor.
    gone: Notify,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    places: Arc<ConnectionLimiter>,
    at: usize,
    connection: Connection,
}

#[derive(Debug)]
struct Taken {
    here: Slab<Entry>,
    owners: Owners,
    /// How many connections have arrived.
    came: u64,
    /// How many were closed to make room, and are not gone yet.
    leaving: usize,
    /// The silent connections, as of the last look.
    crowd: SilentHere,
    looked: Option<Instant>,
    /// How many there were when others last got descriptors of them, and when that was.
    left: Option<(usize, Instant)>,
    warned: Option<Instant>,
}

/// An accepted connection.
#[derive(Debug)]
struct Entry {
    connection: Connection,
    source: ConnectionSource,
    owner: Owner,
    order: u64,
}

/// A connection's handle to its own place.
#[derive(Debug)]
struct LimiterSlot {
    places: Weak<ConnectionLimiter>,
    at: usize,
}

type SilentHere = IdleConnections<(usize, Connection)>;

/// How many out of four descriptors of the process are for connections of one listener. The others are for upstream,
/// for files and for health checks.
const DESCRIPTORS_OF_4: usize = 3;
/// How many connections are closed at a time when there are no descriptors left: for those who connect here, and for
/// others. Those ask again if it was not enough.
const ROOM: usize = 16;
const ROOM_FOR_OTHERS: usize = 4;
const NEWCOMER_ASKS_WITHIN: Duration = Duration::from_millis(500);
/// How long newcomers do not take what others were given. Whoever needs more asks again.
const LEFT_FOR: Duration = Duration::from_secs(2);
/// How many connections there may be beyond the limit because they were told to go and have not gone yet. One in so
/// many of the descriptors is for them.
const LEAVING_MAX: usize = 256;
const DESCRIPTORS_PER_LEAVING: usize = 16;
/// How many connections may be accepted beyond the limit so that they can authenticate: one for this many places, and
/// no more than may be closing at a time.
const PLACES_PER_UNKNOWN: usize = 16;
const WARN_EVERY: Duration = Duration::from_secs(1);
/// The time between two looks at all connections of a full listener while none is known to be silent: a look at 20,000
/// takes a millisecond or two.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long a look is good for where some are silent.
const LOOK_GOOD_FOR: Duration = Duration::from_secs(1);

impl ConnectionLimiter {
    /// Makes as many places as that, but no more than the process has descriptors for.
    pub(super) fn within_descriptors(limits: Reloadable<ConnectionLimits>) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        let (places_max, leaving_max) = within(descriptors.unwrap_or(usize::MAX));
        let connections_max = limits.get().connections_max;
        if places_max < connections_max {
            tracing::warn!(connections_max, places_max, "the process may have too few descriptors for its connections");
        }
        Self::new(limits, places_max, leaving_max)
    }

    fn new(limits: Reloadable<ConnectionLimits>, affordable_max: usize, leaving_max: usize) -> Arc<Self> {
        let (here, crowd) = (Slab::new(), IdleConnections::default());
        let owners = Owners::default();
        let taken = Taken { here, owners, came: 0, leaving: 0, crowd, looked: None, left: None, warned: None };
        let (freed, gone) = (Notify::new(), Notify::new());
        Arc::new(Self { limits, affordable_max, leaving_max, taken: Mutex::new(taken), freed, gone })
    }

    /// Takes a place for a connection, as soon as there is one.
    pub(super) async fn enter(self: &Arc<Self>, connection: &Connection, source: ConnectionSource) -> ConnectionPlace {
        loop {
            if let Some(at) = self.try_enter(connection, source) {
                return ConnectionPlace { places: self.clone(), at, connection: connection.clone() };
            }
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                // Nothing notifies when the last request of a connection is over, so this looks again.
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Takes a place for a connection that came before the listener ended, if there is one now. Nobody comes after it,
    /// so it may have what others were left.
    pub(super) fn enter_last(
        self: &Arc<Self>,
        connection: &Connection,
        source: ConnectionSource,
    ) -> Option<ConnectionPlace> {
        self.taken.lock().left = None;
        self.enter(connection, source).now_or_never()
    }

    /// Closes some silent connections because the process has no descriptors left, and waits a little until one is
    /// gone. Returns whether one is. Connections that are about to go anyway are waited for first. So however often
    /// this is called meanwhile, a new connection that has not been looked at is not closed.
    async fn make_room(&self) -> bool {
        self.close_silent(ROOM, false).await
    }

    /// Makes room for a connection that could not be accepted. Returns true if none here is silent: then others have
    /// been asked to give one up.
    pub(super) async fn make_room_or_ask(&self, error: &io::Error) -> bool {
        let asks = !self.make_room().await;
        if asks {
            if self.taken.lock().warns() {
                tracing::warn!(%error, "cannot accept");
            }
            want_descriptor().await;
        }
        asks
    }

    /// Makes room whenever somebody else in the process has no descriptor: upstream, or a listener of another kind. For
    /// a while no more connections are let in than have stayed, or whoever connects most often would have it instead.
    pub(super) async fn make_room_for_others(&self) -> Infallible {
        loop {
            descriptor_wanted().await;
            self.close_silent(ROOM_FOR_OTHERS, true).await;
        }
    }

    async fn close_silent(&self, room: usize, is_for_others: bool) -> bool {
        let gone = self.gone.notified();
        // Who has just come has a moment to ask. Without a descriptor accepting fails also while nobody waits for it.
        let latest = Instant::now().checked_sub(NEWCOMER_ASKS_WITHIN);
        let leaving = {
            let mut taken = self.taken.lock();
            while taken.leaving < room.min(self.leaving_max) && taken.displace(latest, Passing::Over).is_some() {}
            if is_for_others {
                taken.left = Some((taken.here.len().min(taken.left_max()), Instant::now()));
            }
            taken.leaving
        };
        leaving > 0 && timeout(LOOK_EVERY, gone).await.is_ok()
    }

    fn try_enter(self: &Arc<Self>, connection: &Connection, source: ConnectionSource) -> Option<usize> {
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
        // As long as a look is good, new connections are added to it, or the newest would go first.
        if let Some(since) = connection.idle_since().filter(|_| is_full || taken.has_looked(LOOK_GOOD_FOR)) {
            taken.crowd.add(IdleConnection { connection: (at, connection.clone()), source, since });
        }
        drop(taken);
        connection.put_place(Box::new(LimiterSlot { places: Arc::downgrade(self), at }));
        Some(at)
    }

    /// The current number of places.
    fn places_max(&self) -> usize {
        self.limits.get().connections_max.min(self.affordable_max)
    }
}

impl PlaceGuard for LimiterSlot {
    fn settle(&self, connection: &Connection, caller: Option<u64>) -> bool {
        let Some(places) = self.places.upgrade() else { return true };
        let mut taken = places.taken.lock();
        let Some(owner) = taken.found_known(self.at, connection, caller) else { return true };
        taken.here.len() <= places.places_max() || taken.give_way_to(owner)
    }
}

/// How many connections there may be with so many descriptors, and how many beyond that which have not gone yet.
fn within(descriptors: usize) -> (usize, usize) {
    let leaving_max = (descriptors / DESCRIPTORS_PER_LEAVING).clamp(1, LEAVING_MAX);
    ((descriptors / 4 * DESCRIPTORS_OF_4).saturating_sub(leaving_max).max(1), leaving_max)
}

/// What to do if the source with the most silent connections has none that was silent by a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passing {
    /// Close one of another source.
    Over,
    /// Close none.
    No,
}

impl Taken {
    fn enter(&mut self, connection: &Connection, source: ConnectionSource) -> usize {
        let (connection, owner, order) = (connection.clone(), Owner::Source(source), self.came);
        self.came += 1;
        let at = self.here.insert(Entry { connection, source, owner, order });
        self.owners.add(owner, order, at);
        at
    }

    fn leave(&mut self, at: usize) {
        let Entry { owner, order, .. } = self.here.remove(at);
        self.owners.remove(owner, order, at);
    }

    /// Closes a connection to make room.
    fn close(&mut self, at: usize, why: ConnectionFailure) {
        why.count();
        self.here[at].connection.advance(ConnectionState::Cut);
        self.leave(at);
        self.leaving += 1;
    }

    /// Makes room for a new connection when all places are taken, if it can. If few are silent, most of these have just
    /// been accepted, and get time to authenticate.
    fn make_way(&mut self, places: usize, unknown_max: usize) -> Option<()> {
        let asked = Instant::now().checked_sub(NEWCOMER_ASKS_WITHIN);
        if asked.is_some() && self.displace(asked, Passing::No).is_some() {
            return Some(());
        }
        let has_room = self.here.len().checked_sub(places).is_some_and(|extra| extra < unknown_max);
        if has_room && self.crowd.len() < unknown_max {
            return Some(());
        }
        // Some of the silent ones may have sent a request since.
        self.displace(None, Passing::No).or_else(|| has_room.then_some(()))
    }

    /// Counts a connection for its caller. Returns its owner; `None` if it is closing.
    fn found_known(&mut self, at: usize, connection: &Connection, caller: Option<u64>) -> Option<Owner> {
        let entry = self.here.get_mut(at).filter(|entry| entry.connection.is_same_as(connection))?;
        if let Some(caller) = caller {
            self.owners.remove(entry.owner, entry.order, at);
            entry.owner = Owner::Caller(caller);
            self.owners.add(entry.owner, entry.order, at);
        }
        Some(entry.owner)
    }

    /// Makes room for a connection of this owner beyond the limit. Returns false if that connection has to close.
    fn give_way_to(&mut self, owner: Owner) -> bool {
        let asked = Instant::now().checked_sub(NEWCOMER_ASKS_WITHIN);
        if asked.is_some() && self.displace(asked, Passing::No).is_some() {
            return true;
        }
        match self.owners.making_room_for(owner) {
            Some(at) => self.close(at, ConnectionFailure::OverShare),
            None => {
                ConnectionFailure::NoShare.count();
                return false;
            }
        }
        true
    }

    /// Closes a silent connection, if there is one: one that was silent at that moment, if it matters.
    fn displace(&mut self, latest: Option<Instant>, passing: Passing) -> Option<()> {
        self.look(LOOK_GOOD_FOR);
        // Who has come since that look may be all that is known of any more, while others have fallen silent before.
        let known = self.looked.min(latest.or(self.looked));
        let gone = self.next(|crowd| crowd.next(known)).or_else(|| {
            self.look(LOOK_EVERY);
            self.next(|crowd| match latest {
                Some(latest) if passing == Passing::Over => crowd.next_by(latest),
                latest => crowd.next(latest),
            })
        })?;
        self.close(gone, ConnectionFailure::Displaced);
        Some(())
    }

    /// The next silent connection to close.
    fn next(&mut self, next: impl Fn(&mut SilentHere) -> Option<IdleConnection<(usize, Connection)>>) -> Option<usize> {
        while let Some(IdleConnection { connection: (at, connection), since, .. }) = next(&mut self.crowd) {
            let is_here = self.here.get(at).is_some_and(|entry| entry.connection.is_same_as(&connection));
            if is_here && connection.silent_since() == Some(since) {
                return Some(at);
            }
        }
        None
    }

    /// How many there may be while others need descriptors. A few are never too many.
    fn left_max(&self) -> usize {
        self.left.filter(|(_, since)| since.elapsed() < LEFT_FOR).map_or(usize::MAX, |(left, _)| left.max(ROOM))
    }

    /// Whether it is time to say again that nobody can be accepted.
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

    /// Looks for silent connections, unless that was done lately.
    fn look(&mut self, every: Duration) {
        if self.has_looked(every) {
            return;
        }
        self.looked = Some(Instant::now());
        self.crowd = IdleConnections::of(self.here.iter().filter_map(|(at, Entry { connection, source, .. })| {
            let since = connection.silent_since()?;
            Some(IdleConnection { connection: (at, connection.clone()), source: *source, since })
        }));
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if taken.here.get(self.at).is_some_and(|entry| entry.connection.is_same_as(&self.connection)) {
            taken.leave(self.at);
        } else {
            taken.leaving -= 1;
        }
        drop(taken);
        self.places.freed.notify_one();
        self.places.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
