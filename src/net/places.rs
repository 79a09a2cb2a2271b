use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::Connection;
use super::connection::State;
use super::crowd::{Crowd, Silent, Source};
use super::metrics::Failed;

/// The places of one listener. When all are taken, a connection on which nothing is under way is closed for each that
/// comes; while something is under way on all of them, who comes waits.
#[derive(Debug)]
pub(super) struct Places {
    connections_max: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    at: usize,
    connection: Connection,
}

#[derive(Debug)]
struct Taken {
    here: Slab<(Connection, Source)>,
    /// Closed to make room, and not gone yet.
    leaving: usize,
    /// Who is silent, as of the last look.
    crowd: Crowd<(usize, Connection)>,
    looked: Option<Instant>,
}

/// Of each four descriptors that the process may have, those that are for the connections of one listener. The others
/// are for upstream, for files and for whoever asks how we are.
const DESCRIPTORS_OF_4: usize = 3;
/// Connections that are closed at a time where there are no descriptors.
const ROOM: usize = 16;
/// Connections that are beyond the limit because they were told to go and have not gone yet.
const LEAVING_MAX: usize = 256;
/// Between two looks at all connections of a listener that is full, of which none is known to be silent: a look at
/// 20,000 takes a millisecond or two.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long a look is good for where some are.
const LOOK_GOOD_FOR: Duration = Duration::from_secs(1);

impl Places {
    /// As many as that, but no more than the process has descriptors for.
    pub(super) fn within_descriptors(connections_max: usize) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        let places_max = descriptors.map_or(usize::MAX, |descriptors| descriptors / 4 * DESCRIPTORS_OF_4).max(1);
        if places_max < connections_max {
            tracing::warn!(connections_max, places_max, "the process may have too few descriptors for its connections");
        }
        Self::new(connections_max.min(places_max))
    }

    fn new(connections_max: usize) -> Arc<Self> {
        let taken = Taken { here: Slab::new(), leaving: 0, crowd: Crowd::default(), looked: None };
        Arc::new(Self { connections_max, taken: Mutex::new(taken), freed: Notify::new() })
    }

    /// A place for a connection, as soon as there is one.
    pub(super) async fn enter(self: &Arc<Self>, connection: &Connection, source: Source) -> Place {
        loop {
            if let Some(at) = self.try_enter(connection, source) {
                return Place { places: self.clone(), at, connection: connection.clone() };
            }
            tokio::select! {
                () = self.freed.notified() => {}
                // Nobody says when the last request of a connection is over.
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Closes some that are silent, because the process has no descriptors left, and waits a little until they are
    /// gone. Whether there were some.
    pub(super) async fn make_room(&self) -> bool {
        let closed = {
            let mut taken = self.taken.lock();
            (0..ROOM).take_while(|_| taken.leaving < LEAVING_MAX && taken.displace().is_some()).count()
        };
        closed > 0 && timeout(LOOK_EVERY, self.freed.notified()).await.is_ok()
    }

    fn try_enter(&self, connection: &Connection, source: Source) -> Option<usize> {
        let mut taken = self.taken.lock();
        if taken.leaving >= LEAVING_MAX {
            return None;
        }
        let is_full = taken.here.len() >= self.connections_max;
        if is_full {
            taken.displace()?;
        }
        let at = taken.here.insert((connection.clone(), source));
        if let Some(since) = connection.idle_since().filter(|_| is_full) {
            taken.crowd.add(Silent { connection: (at, connection.clone()), source, since });
        }
        Some(at)
    }
}

impl Taken {
    /// Closes one that is silent, if any is.
    fn displace(&mut self) -> Option<()> {
        self.look(LOOK_GOOD_FOR);
        let gone = self.next().or_else(|| {
            self.look(LOOK_EVERY);
            self.next()
        })?;
        self.here.remove(gone);
        self.leaving += 1;
        Some(())
    }

    /// Tells the next one to go that has been silent ever since the last look.
    fn next(&mut self) -> Option<usize> {
        while let Some(Silent { connection: (at, connection), since, .. }) = self.crowd.next() {
            let is_here = self.here.get(at).is_some_and(|(here, _)| here.is_same_as(&connection));
            if is_here && connection.idle_since() == Some(since) {
                Failed::Displaced.count();
                connection.advance(State::Cut);
                return Some(at);
            }
        }
        None
    }

    /// Looks who is silent, unless that was done lately.
    fn look(&mut self, every: Duration) {
        if self.looked.is_some_and(|looked| looked.elapsed() < every) {
            return;
        }
        self.looked = Some(Instant::now());
        self.crowd = Crowd::of(self.here.iter().filter_map(|(at, (connection, source))| {
            let since = connection.idle_since()?;
            Some(Silent { connection: (at, connection.clone()), source: *source, since })
        }));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if taken.here.get(self.at).is_some_and(|(here, _)| here.is_same_as(&self.connection)) {
            taken.here.remove(self.at);
        } else {
            taken.leaving -= 1;
        }
        drop(taken);
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    const LATE_MAX: u32 = 1;

    fn source(host: u8) -> Source {
        Source::V4(Ipv4Addr::new(10, 0, 0, host))
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_silent_one_makes_room_and_none_that_is_busy() {
        let places = Places::new(3);
        let (mut here, mut busy) = (Vec::new(), Vec::new());
        for at in 0..3 {
            let connection = Connection::default();
            if at == 0 {
                busy.extend(connection.request(LATE_MAX));
            }
            let place = places.enter(&connection, source(1)).await;
            here.push((connection, place));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let new = Connection::default();
        let place = places.enter(&new, source(1)).await;
        let cut = |here: &[(Connection, Place)]| here.iter().map(|(it, _)| it.is(State::Cut)).collect::<Vec<_>>();
        assert_eq!(cut(&here), [false, true, false]);
        let counts = || {
            let taken = places.taken.lock();
            (taken.here.len(), taken.leaving)
        };
        assert_eq!(counts(), (3, 1));
        drop((here, place, busy));
        assert_eq!(counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_are_busy_who_comes_waits_for_a_place() {
        let places = Places::new(1);
        let (first, second) = (Connection::default(), Connection::default());
        let request = first.request(LATE_MAX);
        let place = places.enter(&first, source(1)).await;
        let mut entering = std::pin::pin!(places.enter(&second, source(2)));
        assert!(entering.as_mut().now_or_never().is_none());
        // The answer is whole: nobody says so, and it is noticed.
        drop(request);
        let entered = entering.await;
        assert!(first.is(State::Cut));
        drop((place, entered));
        let again = second.request(LATE_MAX);
        let place = places.enter(&second, source(2)).await;
        let third = Connection::default();
        let mut entering = std::pin::pin!(places.enter(&third, source(3)));
        assert!(entering.as_mut().now_or_never().is_none());
        drop(place);
        entering.await;
        assert!(!second.is(State::Cut));
        drop(again);
    }

    /// One source has all places and comes again and again; another is let in, and keeps its place meanwhile.
    #[tokio::test(start_paused = true)]
    async fn who_floods_displaces_itself() {
        const ROUNDS: usize = 100;
        let places = Places::new(20);
        let mut flood = Vec::new();
        for _ in 0..20 {
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            flood.push((connection, place));
        }
        let other = Connection::default();
        let _place = places.enter(&other, source(2)).await;
        for _ in 0..ROUNDS {
            tokio::time::advance(Duration::from_millis(1)).await;
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            flood.push((connection, place));
            flood.retain(|(connection, _)| !connection.is(State::Cut));
        }
        assert!(!other.is(State::Cut));
        assert_eq!(flood.len(), 19);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_do_not_go_hold_up_the_next() {
        let places = Places::new(1);
        let mut slow = Vec::new();
        for _ in 0..=LEAVING_MAX {
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            slow.push((connection, place));
        }
        let next = Connection::default();
        let mut entering = std::pin::pin!(places.enter(&next, source(1)));
        assert!(entering.as_mut().now_or_never().is_none());
        slow.remove(0);
        entering.await;
    }
}
