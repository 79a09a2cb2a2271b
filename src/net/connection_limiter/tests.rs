//! Tests of which connections are accepted and which are closed for them, on a paused clock.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use super::*;
use crate::net::connection::{RunningRequestGuard, STALLED_AFTER};

const LATE_MAX: u32 = 1;

fn places(connections_max: usize, leaving_max: usize) -> Arc<ConnectionLimiter> {
    let limits = ConnectionLimits { connections_max, ..ConnectionLimits::default() };
    ConnectionLimiter::new(limits.into(), usize::MAX, leaving_max)
}

fn source(host: u8) -> ConnectionSource {
    ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, host))
}

#[tokio::test(start_paused = true)]
async fn oldest_idle_connection_is_evicted_but_no_busy_one() {
    let places = places(3, LEAVING_MAX);
    let (mut here, mut busy) = (Vec::new(), Vec::new());
    for at in 0..3 {
        let connection = DownstreamConnection::default();
        if at == 0 {
            busy.extend(connection.request(LATE_MAX));
        }
        let place = places.enter(&connection, source(1)).await;
        here.push((connection, place));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let new = DownstreamConnection::default();
    let place = places.enter(&new, source(1)).await;
    let cut = |here: &[(DownstreamConnection, ConnectionSlot)]| {
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

/// One place, and one for a connection that has not authenticated.
#[tokio::test(start_paused = true)]
async fn accept_waits_when_all_connections_are_busy() {
    let places = places(1, LEAVING_MAX);
    let (first, stranger, second) =
        (DownstreamConnection::default(), DownstreamConnection::default(), DownstreamConnection::default());
    let request = first.request(LATE_MAX);
    let place = places.enter(&first, source(1)).await;
    let asking = stranger.request(LATE_MAX);
    let extra = places.enter(&stranger, source(1)).now_or_never().expect("it may say who it is");
    let mut entering = std::pin::pin!(places.enter(&second, source(2)));
    assert!(entering.as_mut().now_or_never().is_none());
    // The end of the response sends no notification; the limiter polls for it.
    drop(request);
    let entered = entering.await;
    assert!(first.is(ConnectionState::Cut));
    drop((place, entered));
    let again = second.request(LATE_MAX);
    let place = places.enter(&second, source(2)).await;
    let third = DownstreamConnection::default();
    let mut entering = std::pin::pin!(places.enter(&third, source(3)));
    assert!(entering.as_mut().now_or_never().is_none());
    drop(place);
    entering.await;
    assert!(!second.is(ConnectionState::Cut));
    drop((again, asking, extra));
}

/// A connection with a running request.
struct Busy {
    connection: DownstreamConnection,
    request: RunningRequestGuard,
    _place: ConnectionSlot,
}

impl Busy {
    /// Connects from a host if there is room, and sends a request.
    fn try_come(places: &Arc<ConnectionLimiter>, host: u8) -> Option<Self> {
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(host)).now_or_never()?;
        let request = connection.request(LATE_MAX).expect("it is open");
        Some(Self { connection, request, _place: place })
    }

    fn come(places: &Arc<ConnectionLimiter>, host: u8) -> Self {
        Self::try_come(places, host).expect("there is room")
    }

    fn is_here(&self) -> bool {
        !self.connection.is(ConnectionState::Closing)
    }
}

/// Busy connections of one caller.
fn taken_by(places: &Arc<ConnectionLimiter>, count: usize, caller: u64) -> Vec<Busy> {
    let come = |_| {
        let busy = Busy::come(places, 1);
        assert!(busy.connection.found_known(Some(caller)));
        busy
    };
    (0..count).map(come).collect()
}

const MANY: usize = 2 * PLACES_PER_UNKNOWN;

#[tokio::test(start_paused = true)]
async fn new_caller_evicts_youngest_connection_of_largest_caller() {
    let places = places(MANY, LEAVING_MAX);
    let here = taken_by(&places, MANY, 1);
    let other = Busy::come(&places, 2);
    assert!(here.iter().all(Busy::is_here), "it has not said who it is");
    assert!(other.connection.found_known(Some(2)));
    let gone: Vec<_> = (0..MANY).filter(|at| !here[*at].is_here()).collect();
    assert_eq!(gone, [MANY - 1], "the youngest");
    assert!(other.connection.found_known(Some(2)), "it has its place");
    let again = Busy::come(&places, 3);
    assert!(!again.connection.found_known(Some(1)), "nobody has more than its caller");
    assert!(!again.is_here() && !again.connection.found_known(Some(1)));
    assert_eq!(here.iter().filter(|busy| busy.is_here()).count(), MANY - 1);
    assert!(other.is_here());
}

/// All of them have sent a request a moment ago.
#[tokio::test(start_paused = true)]
async fn idle_connection_of_the_caller_with_most_closes_before_a_busy_one() {
    let places = places(MANY, LEAVING_MAX);
    let mut here = taken_by(&places, MANY, 1);
    let idle: Vec<_> = here.drain(1..3).map(|Busy { connection, _place: place, .. }| (connection, place)).collect();
    let gone = || idle.iter().map(|(connection, _)| connection.is(ConnectionState::Cut)).collect::<Vec<_>>();
    let other = Busy::come(&places, 1);
    assert!(other.connection.found_known(Some(2)));
    assert_eq!(gone(), [true, false], "the oldest");
    let own = Busy::come(&places, 1);
    assert!(own.connection.found_known(Some(1)));
    assert_eq!(gone(), [true, true]);
    let refused = Busy::come(&places, 1);
    assert!(!refused.connection.found_known(Some(1)));
    assert!(here.iter().all(Busy::is_here) && other.is_here() && own.is_here());
}

#[tokio::test(start_paused = true)]
async fn two_reconnecting_callers_settle_at_half_of_the_places() {
    let places = places(MANY, LEAVING_MAX);
    let (mut of, mut closed, mut refused) = ([taken_by(&places, MANY, 0), Vec::new()], 0, 0);
    for round in 0..4 * MANY {
        let caller = (round + 1) % 2;
        let busy = Busy::come(&places, 2);
        if busy.connection.found_known(Some(caller as u64)) {
            of[caller].push(busy);
        } else {
            refused += 1;
        }
        for of in &mut of {
            let before = of.len();
            of.retain(Busy::is_here);
            closed += before - of.len();
        }
        assert_eq!(of[0].len() + of[1].len(), MANY);
    }
    assert_eq!((of[0].len(), of[1].len(), closed, refused), (MANY / 2, MANY / 2, MANY / 2, 4 * MANY - MANY / 2));
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connections_evict_no_busy_connection() {
    let places = places(MANY, LEAVING_MAX);
    let here = taken_by(&places, MANY, 1);
    let mut strangers = Vec::new();
    for round in 0..200_u8 {
        tokio::time::advance(Duration::from_millis(1)).await;
        let stranger = DownstreamConnection::default();
        let place = places.enter(&stranger, source(round)).await;
        strangers.push((stranger, place));
        strangers.retain(|(stranger, _)| !stranger.is(ConnectionState::Cut));
        assert!(strangers.len() <= MANY / PLACES_PER_UNKNOWN);
    }
    assert!(here.iter().all(Busy::is_here));
}

/// A caller has all places and opens a new connection whenever one closes. A connection of another caller from the same
/// source arrives among them.
#[tokio::test(start_paused = true)]
async fn newcomer_of_the_source_of_a_flood_has_time_to_authenticate() {
    const HANDSHAKE: Duration = Duration::from_secs(2);
    const PLACES: usize = 64;
    let places = places(PLACES, LEAVING_MAX);
    let here = taken_by(&places, PLACES, 1);
    let mut shaking = VecDeque::new();
    let newcomer = Busy::come(&places, 1);
    drop(newcomer.request);
    let began = Instant::now();
    for round in 1.. {
        while shaking.len() < PLACES / PLACES_PER_UNKNOWN / 2 {
            let connection = DownstreamConnection::default();
            let place = places.enter(&connection, source(1)).await;
            shaking.push_back((connection, place));
        }
        tokio::time::advance(Duration::from_millis(10)).await;
        if began.elapsed() >= HANDSHAKE {
            break;
        }
        // The newcomer takes its steps among those of the flood.
        newcomer.connection.has_stepped();
        shaking.iter().for_each(|(connection, _)| connection.has_stepped());
        let (known, place) = shaking.pop_front().expect("it is there");
        assert!(!known.found_known(Some(1)), "round {round}: its caller has most");
        drop(place);
    }
    assert!(newcomer.connection.found_known(Some(2)));
    assert!(!newcomer.connection.is(ConnectionState::Closing));
    assert_eq!(here.iter().filter(|busy| busy.is_here()).count(), PLACES - 1);
}

#[tokio::test(start_paused = true)]
async fn connections_are_shared_by_source_without_caller_identity() {
    let places = places(MANY, LEAVING_MAX);
    let here: Vec<_> = (0..MANY).map(|_| Busy::come(&places, 1)).collect();
    assert!(here.iter().all(|busy| busy.connection.found_known(None)));
    let other = Busy::come(&places, 2);
    assert!(other.connection.found_known(None));
    let same = Busy::come(&places, 1);
    assert!(!same.connection.found_known(None));
    assert_eq!(here.iter().filter(|busy| busy.is_here()).count(), MANY - 1);
}

#[tokio::test(start_paused = true)]
async fn stalled_connection_is_evicted_for_new_one() {
    let places = places(MANY, LEAVING_MAX);
    let mut here = taken_by(&places, MANY, 1);
    here.iter_mut().for_each(|busy| busy.request.waits_for_client());
    tokio::time::advance(STALLED_AFTER.saturating_sub(Duration::from_millis(1))).await;
    here[0].request.waits_for_client();
    tokio::time::advance(Duration::from_millis(1)).await;
    let same = Busy::come(&places, 1);
    assert!(same.connection.found_known(Some(1)), "there is room without anybody's share");
    let gone: Vec<_> = (0..MANY).filter(|at| !here[*at].is_here()).collect();
    assert_eq!(gone.len(), 1);
    assert_ne!(gone, [0], "its client has just taken something");
}

/// One source has all places and reconnects in a loop; a connection of another source is accepted and keeps its place.
#[tokio::test(start_paused = true)]
async fn flooding_source_evicts_its_own_connections() {
    const ROUNDS: usize = 100;
    let places = places(20, LEAVING_MAX);
    let mut flood = Vec::new();
    for _ in 0..20 {
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(1)).await;
        flood.push((connection, place));
    }
    let other = DownstreamConnection::default();
    let _place = places.enter(&other, source(2)).await;
    for _ in 0..ROUNDS {
        tokio::time::advance(Duration::from_millis(1)).await;
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(1)).await;
        flood.push((connection, place));
        flood.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
    }
    assert!(!other.is(ConnectionState::Cut));
    assert_eq!(flood.len(), 19 + 20 / PLACES_PER_UNKNOWN);
}

/// The rest is for upstream, for files and for health checks: about fifteen before any client connects.
#[test]
fn places_and_closing_connections_fit_in_descriptor_limit() {
    for (descriptors, expected) in [(0, (1, 1)), (80, (55, 5)), (1_024, (704, 64)), (1 << 20, (786_176, 256))] {
        let (places_max, leaving_max) = within(descriptors);
        assert_eq!((places_max, leaving_max), expected, "{descriptors}");
        assert!(descriptors == 0 || places_max + leaving_max <= descriptors / 4 * 3);
    }
}

/// `make_room` is called in a loop while the closed connections still hold their descriptors.
#[tokio::test(start_paused = true)]
async fn descriptor_exhaustion_evicts_only_a_bounded_batch() {
    let places = places(4 * ROOM, LEAVING_MAX);
    let mut here = Vec::new();
    for _ in 0..4 * ROOM {
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(1)).await;
        here.push((connection, place));
    }
    assert!(!places.close_silent(ROOM, false).await, "they have just come");
    tokio::time::advance(NEWCOMER_ASKS_WITHIN).await;
    for _ in 0..10 {
        assert!(!places.close_silent(ROOM, false).await, "none has gone yet");
    }
    let cut = here.iter().filter(|(connection, _)| connection.is(ConnectionState::Cut)).count();
    assert_eq!(cut, ROOM);
    let mut more = std::pin::pin!(places.close_silent(ROOM, false));
    assert!(more.as_mut().now_or_never().is_none());
    here.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
    assert!(more.await);
}

/// A client reconnects in a loop while upstream has no descriptor.
#[tokio::test(start_paused = true)]
async fn reconnect_loop_does_not_take_reclaimed_descriptors() {
    let places = places(1_000, LEAVING_MAX);
    let mut here = Vec::new();
    let come = async |here: &mut Vec<(DownstreamConnection, ConnectionSlot)>| {
        let connection = DownstreamConnection::default();
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

/// A source that sends requests all the time does not protect the idle connections of another source.
#[tokio::test(start_paused = true)]
async fn descriptor_exhaustion_evicts_long_idle_of_any_source() {
    let places = places(100, LEAVING_MAX);
    let (mut old, mut young) = (Vec::new(), Vec::new());
    for (host, connections) in [(1, &mut old), (2, &mut young)] {
        for _ in 0..10 * usize::from(host) {
            let connection = DownstreamConnection::default();
            let place = places.enter(&connection, source(host)).await;
            connections.push((connection, place));
        }
        tokio::time::advance(NEWCOMER_ASKS_WITHIN / 2).await;
    }
    tokio::time::advance(NEWCOMER_ASKS_WITHIN / 4).await;
    let _ = places.close_silent(ROOM, false).now_or_never();
    let cut =
        |of: &[(DownstreamConnection, ConnectionSlot)]| of.iter().filter(|(it, _)| it.is(ConnectionState::Cut)).count();
    assert_eq!((cut(&old), cut(&young)), (10, 0));
}

/// Some connections arrived while there was room, before any scan.
#[tokio::test(start_paused = true)]
async fn descriptor_exhaustion_evicts_newest_connection_last() {
    const PLACES: usize = 3 * ROOM;
    let places = places(PLACES, LEAVING_MAX);
    let mut here = Vec::new();
    let come = async |here: &mut Vec<(DownstreamConnection, ConnectionSlot)>| {
        tokio::time::advance(Duration::from_millis(1)).await;
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(1)).await;
        here.push((connection, place));
    };
    let go = |here: &mut Vec<(DownstreamConnection, ConnectionSlot)>| {
        here.retain(|(connection, _)| !connection.is(ConnectionState::Cut));
    };
    for _ in 0..PLACES {
        come(&mut here).await;
    }
    tokio::time::advance(NEWCOMER_ASKS_WITHIN).await;
    let _ = places.close_silent(ROOM, false).now_or_never();
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
        let _ = places.close_silent(ROOM, false).now_or_never();
        assert!(!last.is(ConnectionState::Cut));
    }
    go(&mut here);
    assert_eq!(here.len(), PLACES - 2 * ROOM);
}

/// All connections that were idle at the last scan are gone, and others have become idle since.
#[tokio::test(start_paused = true)]
async fn new_connection_is_not_evicted_before_longer_idle_ones() {
    let places = places(3, LEAVING_MAX);
    let come = async || {
        tokio::time::advance(2 * LOOK_EVERY).await;
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(1)).await;
        (connection, place)
    };
    let is_cut = |(connection, _): &(DownstreamConnection, ConnectionSlot)| connection.is(ConnectionState::Cut);
    let (silent, busy) = ([come().await, come().await], come().await);
    let request = busy.0.request(LATE_MAX);
    let first = come().await;
    tokio::time::advance(LOOK_EVERY).await;
    drop(request);
    let [second, third, fourth] = [come().await, come().await, come().await];
    assert!(silent.iter().chain([&first]).all(is_cut) && !is_cut(&busy), "the oldest each time");
    let fifth = come().await;
    assert!(is_cut(&busy) && [second, third, fourth, fifth].iter().all(|newcomer| !is_cut(newcomer)));
}

#[tokio::test(start_paused = true)]
async fn accept_waits_when_evicted_connections_do_not_close() {
    let places = places(1, LEAVING_MAX);
    let mut slow = Vec::new();
    // One has the place, one authenticates beyond the limit, and the others have been closed.
    for _ in 0..LEAVING_MAX + 2 {
        let connection = DownstreamConnection::default();
        let place = places.enter(&connection, source(1)).await;
        slow.push((connection, place));
    }
    let next = DownstreamConnection::default();
    let mut entering = std::pin::pin!(places.enter(&next, source(1)));
    assert!(entering.as_mut().now_or_never().is_none());
    slow.remove(0);
    entering.await;
}
