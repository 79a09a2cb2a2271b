use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::connection::ConnectionState;
use super::crowd::{ConnectionSource, Crowd, Silent};
use super::metrics::ConnectionFailure;
use super::{Connection, ConnectionLimits};
use crate::base::{Tunable, descriptor_wanted, want_descriptor};

/// The places of one listener. When all are taken, a connection on which nothing is under way is closed for each that
/// comes; while something is under way on all of them, who comes waits. The oldest goes, so a newcomer has as much time
/// to ask as it takes until others have come for all that were silent before it. Where that is too short, none of them
/// gets to ask, and places that become free stay theirs until it is long enough.
#[derive(Debug)]
pub(super) struct Places {
    limits: Tunable<ConnectionLimits>,
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
    places: Arc<Places>,
    at: usize,
    connection: Connection,
}

#[derive(Debug)]
struct Taken {
    here: Slab<(Connection, ConnectionSource)>,
    /// How many were closed to make room, and are not gone yet.
    leaving: usize,
    /// The silent connections, as of the last look.
    crowd: Crowd<(usize, Connection)>,
    looked: Option<Instant>,
    /// How many there were when others last got descriptors of them, and when that was.
    left: Option<(usize, Instant)>,
}

/// How many out of four descriptors of the process are for connections of one listener. The others are for upstream,
/// for files and for health checks.
const DESCRIPTORS_OF_4: usize = 3;
/// How many connections are closed at a time when there are no descriptors left: for those who connect here, and for
/// others. Those ask again if it was not enough.
const ROOM: usize = 16;
const ROOM_FOR_OTHERS: usize = 4;
const NEWCOMER_ASKS_WITHIN: Duration = Duration::from_millis(500);
/// How long newcomers do not take what others were given: upstream tries for a second.
const LEFT_FOR: Duration = Duration::from_secs(10);
/// How many connections there may be beyond the limit because they were told to go and have not gone yet. One in so
/// many of the descriptors is for them.
const LEAVING_MAX: usize = 256;
const DESCRIPTORS_PER_LEAVING: usize = 16;
/// The time between two looks at all connections of a full listener while none is known to be silent: a look at 20,000
/// takes a millisecond or two.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long a look is good for where some are silent.
const LOOK_GOOD_FOR: Duration = Duration::from_secs(1);

impl Places {
    /// Makes as many places as that, but no more than the process has descriptors for.
    pub(super) fn within_descriptors(limits: Tunable<ConnectionLimits>) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        let (places_max, leaving_max) = within(descriptors.unwrap_or(usize::MAX));
        let connections_max = limits.get().connections_max;
        if places_max < connections_max {
            tracing::warn!(connections_max, places_max, "the process may have too few descriptors for its connections");
        }
        Self::new(limits, places_max, leaving_max)
    }

    fn new(limits: Tunable<ConnectionLimits>, affordable_max: usize, leaving_max: usize) -> Arc<Self> {
        let taken = Taken { here: Slab::new(), leaving: 0, crowd: Crowd::default(), looked: None, left: None };
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

    /// Closes some silent connections because the process has no descriptors left, and waits a little until one is
    /// gone. Returns whether one is. Connections that are about to go anyway are waited for first. So however often
    /// this is called meanwhile, a new connection that has not been looked at is not closed.
    async fn make_room(&self) -> bool {
        self.close_silent(ROOM, false).await
    }

    /// The same for a connection that was not accepted. Where none here is silent, others are asked to give one up.
    pub(super) async fn make_room_or_ask(&self, error: &io::Error) {
        if !self.make_room().await {
            tracing::warn!(%error, "cannot accept");
            want_descriptor().await;
        }
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
            while taken.leaving < room.min(self.leaving_max) && taken.displace(latest).is_some() {}
            if is_for_others {
                taken.left = Some((taken.here.len(), Instant::now()));
            }
            taken.leaving
        };
        leaving > 0 && timeout(LOOK_EVERY, gone).await.is_ok()
    }

    fn try_enter(&self, connection: &Connection, source: ConnectionSource) -> Option<usize> {
        let mut taken = self.taken.lock();
        if taken.leaving >= self.leaving_max {
            return None;
        }
        let places = self.limits.get().connections_max.min(self.affordable_max).min(taken.left_max());
        let is_full = taken.here.len() >= places;
        if is_full {
            taken.displace(None)?;
        }
        let at = taken.here.insert((connection.clone(), source));
        // As long as a look is good, new connections are added to it, or the newest would go first.
        if let Some(since) = connection.idle_since().filter(|_| is_full || taken.has_looked(LOOK_GOOD_FOR)) {
            taken.crowd.add(Silent { connection: (at, connection.clone()), source, since });
        }
        Some(at)
    }
}

/// How many connections there may be with so many descriptors, and how many beyond that which have not gone yet.
fn within(descriptors: usize) -> (usize, usize) {
    let leaving_max = (descriptors / DESCRIPTORS_PER_LEAVING).clamp(1, LEAVING_MAX);
    ((descriptors / 4 * DESCRIPTORS_OF_4).saturating_sub(leaving_max).max(1), leaving_max)
}

impl Taken {
    /// Closes a silent connection, if there is one: one that was silent at that moment, if it matters.
    fn displace(&mut self, latest: Option<Instant>) -> Option<()> {
        self.look(LOOK_GOOD_FOR);
        // Who has come since that look may be all that is known of any more, while others have fallen silent before.
        let gone = self.next(self.looked.min(latest.or(self.looked))).or_else(|| {
            self.look(LOOK_EVERY);
            self.next(latest)
        })?;
        self.here.remove(gone);
        self.leaving += 1;
        Some(())
    }

    /// Tells the next one to go of those who are known to be silent, and were `latest` at that moment.
    fn next(&mut self, latest: Option<Instant>) -> Option<usize> {
        while let Some(Silent { connection: (at, connection), since, .. }) = self.crowd.next(latest) {
            let is_here = self.here.get(at).is_some_and(|(here, _)| here.is_same_as(&connection));
            if is_here && connection.idle_since() == Some(since) {
                ConnectionFailure::Displaced.count();
                connection.advance(ConnectionState::Cut);
                return Some(at);
            }
        }
        None
    }

    /// How many there may be while others need descriptors. A few are never too many.
    fn left_max(&self) -> usize {
        self.left.filter(|(_, since)| since.elapsed() < LEFT_FOR).map_or(usize::MAX, |(left, _)| left.max(ROOM))
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
        self.crowd = Crowd::of(self.here.iter().filter_map(|(at, (connection, source))| {
            let since = connection.idle_since()?;
            Some(Silent { connection: (at, connection.clone()), source: *source, since })
        }));
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if taken.here.get(self.at).is_some_and(|(here, _)| here.is_same_as(&self.connection)) {
            taken.here.remove(self.at);
        } else {
            taken.leaving -= 1;
        }
        drop(taken);
        self.places.freed.notify_one();
        self.places.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    const LATE_MAX: u32 = 1;

    fn places(connections_max: usize, leaving_max: usize) -> Arc<Places> {
        let limits = ConnectionLimits { connections_max, ..ConnectionLimits::default() };
        Places::new(limits.into(), usize::MAX, leaving_max)
    }

    fn source(host: u8) -> ConnectionSource {
        ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, host))
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_silent_one_makes_room_and_none_that_is_busy() {
        let places = places(3, LEAVING_MAX);
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
        let cut = |here: &[(Connection, ConnectionPlace)]| {
            here.iter().map(|(it, _)| it.is(ConnectionState::Cut)).collect::<Vec<_>>()
        };
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
        let places = places(1, LEAVING_MAX);
        let (first, second) = (Connection::default(), Connection::default());
        let request = first.request(LATE_MAX);
        let place = places.enter(&first, source(1)).await;
        let mut entering = std::pin::pin!(places.enter(&second, source(2)));
        assert!(entering.as_mut().now_or_never().is_none());
        // The answer is whole: nobody says so, and it is noticed.
        drop(request);
        let entered = entering.await;
        assert!(first.is(ConnectionState::Cut));
        drop((place, entered));
        let again = second.request(LATE_MAX);
        let place = places.enter(&second, source(2)).await;
        let third = Connection::default();
        let mut entering = std::pin::pin!(places.enter(&third, source(3)));
        assert!(entering.as_mut().now_or_never().is_none());
        drop(place);
        entering.await;
        assert!(!second.is(ConnectionState::Cut));
        drop(again);
    }

    /// One source has all places and comes again and again; another is let in, and keeps its place meanwhile.
    #[tokio::test(start_paused = true)]
    async fn who_floods_displaces_itself() {
        const ROUNDS: usize = 100;
        let places = places(20, LEAVING_MAX);
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
            flood.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
        }
        assert!(!other.is(ConnectionState::Cut));
        assert_eq!(flood.len(), 19);
    }

    /// What is left is for upstream, for files and for whoever asks how we are: some fifteen before anybody comes.
    #[test]
    fn those_that_have_not_gone_yet_take_nobody_elses_descriptors() {
        for (descriptors, expected) in [(0, (1, 1)), (80, (55, 5)), (1_024, (704, 64)), (1 << 20, (786_176, 256))] {
            let (places_max, leaving_max) = within(descriptors);
            assert_eq!((places_max, leaving_max), expected, "{descriptors}");
            assert!(descriptors == 0 || places_max + leaving_max <= descriptors / 4 * 3);
        }
    }

    /// It is asked again and again while those that were closed are on their way.
    #[tokio::test(start_paused = true)]
    async fn where_there_are_no_descriptors_no_more_go_than_it_takes() {
        let places = places(4 * ROOM, LEAVING_MAX);
        let mut here = Vec::new();
        for _ in 0..4 * ROOM {
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            here.push((connection, place));
        }
        assert!(!places.make_room().await, "they have just come");
        tokio::time::advance(NEWCOMER_ASKS_WITHIN).await;
        for _ in 0..10 {
            assert!(!places.make_room().await, "none has gone yet");
        }
        let cut = here.iter().filter(|(connection, _)| connection.is(ConnectionState::Cut)).count();
        assert_eq!(cut, ROOM);
        let mut more = std::pin::pin!(places.make_room());
        assert!(more.as_mut().now_or_never().is_none());
        here.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
        assert!(more.await);
    }

    /// Somebody connects again and again while upstream has no descriptor.
    #[tokio::test(start_paused = true)]
    async fn what_others_were_given_is_not_taken_by_who_comes_next() {
        let places = places(1_000, LEAVING_MAX);
        let mut here = Vec::new();
        let come = async |here: &mut Vec<(Connection, ConnectionPlace)>| {
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            here.push((connection, place));
            here.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
        };
        for _ in 0..100 {
            come(&mut here).await;
        }
        let _ = places.close_silent(ROOM_FOR_OTHERS, true).now_or_never();
        assert!(here.iter().all(|(it, _)| !it.is(ConnectionState::Cut)), "they have just come");
        tokio::time::advance(NEWCOMER_ASKS_WITHIN).await;
        let _ = places.close_silent(ROOM_FOR_OTHERS, true).now_or_never();
        for _ in 0..50 {
            come(&mut here).await;
        }
        assert_eq!(here.len(), 100 - ROOM_FOR_OTHERS);
        tokio::time::advance(LEFT_FOR).await;
        for _ in 0..50 {
            come(&mut here).await;
        }
        assert_eq!(here.len(), 150 - ROOM_FOR_OTHERS, "nobody needs any more");
    }

    /// Some came while there was room, and were not looked for.
    #[tokio::test(start_paused = true)]
    async fn who_has_just_come_is_the_last_to_go() {
        const PLACES: usize = 3 * ROOM;
        let places = places(PLACES, LEAVING_MAX);
        let mut here = Vec::new();
        let come = async |here: &mut Vec<(Connection, ConnectionPlace)>| {
            tokio::time::advance(Duration::from_millis(1)).await;
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            here.push((connection, place));
        };
        let go = |here: &mut Vec<(Connection, ConnectionPlace)>| {
            here.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
        };
        for _ in 0..PLACES {
            come(&mut here).await;
        }
        tokio::time::advance(NEWCOMER_ASKS_WITHIN).await;
        let _ = places.make_room().now_or_never();
        go(&mut here);
        while here.len() < PLACES {
            come(&mut here).await;
        }
        come(&mut here).await;
        let (last, _) = here.last().expect("it came");
        let last = last.clone();
        tokio::time::advance(NEWCOMER_ASKS_WITHIN).await;
        for _ in 0..2 {
            go(&mut here);
            let _ = places.make_room().now_or_never();
            assert!(!last.is(ConnectionState::Cut));
        }
        go(&mut here);
        assert_eq!(here.len(), PLACES - 2 * ROOM);
    }

    /// All who were silent at the last look have gone, and others have had their answers since.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_does_not_go_before_who_has_been_silent_for_longer() {
        let places = places(3, LEAVING_MAX);
        let come = async || {
            tokio::time::advance(2 * LOOK_EVERY).await;
            let connection = Connection::default();
            let place = places.enter(&connection, source(1)).await;
            (connection, place)
        };
        let is_cut = |(connection, _): &(Connection, ConnectionPlace)| connection.is(ConnectionState::Cut);
        let (silent, busy) = ([come().await, come().await], come().await);
        let request = busy.0.request(LATE_MAX);
        let first = come().await;
        tokio::time::advance(LOOK_EVERY).await;
        drop(request);
        let [second, third] = [come().await, come().await];
        assert!(silent.iter().chain([&first]).all(is_cut) && !is_cut(&busy), "the oldest each time");
        let fourth = come().await;
        assert!(is_cut(&busy) && [second, third, fourth].iter().all(|newcomer| !is_cut(newcomer)));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_do_not_go_hold_up_the_next() {
        let places = places(1, LEAVING_MAX);
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
