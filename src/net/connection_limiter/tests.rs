//! Tests of which connections are accepted and which are closed for them, on a paused clock.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use super::*;
use crate::net::connection::{RunningRequestGuard, STALLED_AFTER};

const LATE_MAX: u32 = 1;

fn limiter(connections_max: usize, closing_max: usize) -> Arc<ConnectionLimiter> {
    let limits = ConnectionLimits { connections_max, ..ConnectionLimits::default() };
    ConnectionLimiter::new(limits.into(), usize::MAX, closing_max)
}

fn source(host: u8) -> ConnectionSource {
    ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, host))
}

#[tokio::test(start_paused = true)]
async fn oldest_idle_connection_is_evicted_but_no_busy_one() {
    let limiter = limiter(3, CLOSING_MAX);
    let (mut connections, mut busy) = (Vec::new(), Vec::new());
    for at in 0..3 {
        let connection = DownstreamConnection::default();
        if at == 0 {
            busy.extend(connection.request(LATE_MAX));
        }
        let slot = limiter.acquire(&connection, source(1)).await;
        connections.push((connection, slot));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let new = DownstreamConnection::default();
    let slot = limiter.acquire(&new, source(1)).await;
    let cut = |connections: &[(DownstreamConnection, ConnectionSlot)]| {
        connections.iter().map(|(it, _)| it.is(ConnectionState::Aborted)).collect::<Vec<_>>()
    };
    assert_eq!(cut(&connections), [false, true, false]);
    let counts = || {
        let state = limiter.state.lock();
        (state.connections.len(), state.closing)
    };
    assert_eq!(counts(), (3, 1));
    drop((connections, slot, busy));
    assert_eq!(counts(), (0, 0));
}

/// One slot, and one for a connection that has not authenticated.
#[tokio::test(start_paused = true)]
async fn accept_waits_when_all_connections_are_busy() {
    let limiter = limiter(1, CLOSING_MAX);
    let (first, unauthenticated, second) =
        (DownstreamConnection::default(), DownstreamConnection::default(), DownstreamConnection::default());
    let request = first.request(LATE_MAX);
    let slot = limiter.acquire(&first, source(1)).await;
    let requesting = unauthenticated.request(LATE_MAX);
    let extra = limiter.acquire(&unauthenticated, source(1)).now_or_never().expect("it may authenticate");
    let mut entering = std::pin::pin!(limiter.acquire(&second, source(2)));
    assert!(entering.as_mut().now_or_never().is_none());
    // The end of the response sends no notification; the limiter polls for it.
    drop(request);
    let entered = entering.await;
    assert!(first.is(ConnectionState::Aborted));
    drop((slot, entered));
    let again = second.request(LATE_MAX);
    let slot = limiter.acquire(&second, source(2)).await;
    let third = DownstreamConnection::default();
    let mut entering = std::pin::pin!(limiter.acquire(&third, source(3)));
    assert!(entering.as_mut().now_or_never().is_none());
    drop(slot);
    entering.await;
    assert!(!second.is(ConnectionState::Aborted));
    drop((again, requesting, extra));
}

/// A connection with a running request.
struct Busy {
    connection: DownstreamConnection,
    request: RunningRequestGuard,
    _slot: ConnectionSlot,
}

impl Busy {
    /// Connects from a host if there is room, and sends a request.
    fn try_connect(limiter: &Arc<ConnectionLimiter>, host: u8) -> Option<Self> {
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(host)).now_or_never()?;
        let request = connection.request(LATE_MAX).expect("it is open");
        Some(Self { connection, request, _slot: slot })
    }

    fn connect(limiter: &Arc<ConnectionLimiter>, host: u8) -> Self {
        Self::try_connect(limiter, host).expect("there is room")
    }

    fn is_open(&self) -> bool {
        !self.connection.is(ConnectionState::Closing)
    }
}

/// Busy connections of one caller.
fn connections_of(limiter: &Arc<ConnectionLimiter>, count: usize, caller: u64) -> Vec<Busy> {
    let connect = |_| {
        let busy = Busy::connect(limiter, 1);
        assert!(busy.connection.authenticated(Some(caller)));
        busy
    };
    (0..count).map(connect).collect()
}

const MANY: usize = 2 * SLOTS_PER_EXTRA;

#[tokio::test(start_paused = true)]
async fn new_caller_evicts_youngest_connection_of_largest_caller() {
    let limiter = limiter(MANY, CLOSING_MAX);
    let connections = connections_of(&limiter, MANY, 1);
    let other = Busy::connect(&limiter, 2);
    assert!(connections.iter().all(Busy::is_open), "it is not authenticated yet");
    assert!(other.connection.authenticated(Some(2)));
    let closed: Vec<_> = (0..MANY).filter(|at| !connections[*at].is_open()).collect();
    assert_eq!(closed, [MANY - 1], "the youngest");
    assert!(other.connection.authenticated(Some(2)), "it has its slot");
    let again = Busy::connect(&limiter, 3);
    assert!(!again.connection.authenticated(Some(1)), "no caller has more than its own");
    assert!(!again.is_open() && !again.connection.authenticated(Some(1)));
    assert_eq!(connections.iter().filter(|busy| busy.is_open()).count(), MANY - 1);
    assert!(other.is_open());
}

/// All of them have sent a request a moment ago.
#[tokio::test(start_paused = true)]
async fn idle_connection_of_the_caller_with_most_closes_before_a_busy_one() {
    let limiter = limiter(MANY, CLOSING_MAX);
    let mut connections = connections_of(&limiter, MANY, 1);
    let idle: Vec<_> = connections.drain(1..3).map(|Busy { connection, _slot: slot, .. }| (connection, slot)).collect();
    let closed = || idle.iter().map(|(connection, _)| connection.is(ConnectionState::Aborted)).collect::<Vec<_>>();
    let other = Busy::connect(&limiter, 1);
    assert!(other.connection.authenticated(Some(2)));
    assert_eq!(closed(), [true, false], "the oldest");
    let own = Busy::connect(&limiter, 1);
    assert!(own.connection.authenticated(Some(1)));
    assert_eq!(closed(), [true, true]);
    let refused = Busy::connect(&limiter, 1);
    assert!(!refused.connection.authenticated(Some(1)));
    assert!(connections.iter().all(Busy::is_open) && other.is_open() && own.is_open());
}

#[tokio::test(start_paused = true)]
async fn two_reconnecting_callers_settle_at_half_of_the_places() {
    let limiter = limiter(MANY, CLOSING_MAX);
    let (mut of, mut closed, mut refused) = ([connections_of(&limiter, MANY, 0), Vec::new()], 0, 0);
    for round in 0..4 * MANY {
        let caller = (round + 1) % 2;
        let busy = Busy::connect(&limiter, 2);
        if busy.connection.authenticated(Some(caller as u64)) {
            of[caller].push(busy);
        } else {
            refused += 1;
        }
        for of in &mut of {
            let before = of.len();
            of.retain(Busy::is_open);
            closed += before - of.len();
        }
        assert_eq!(of[0].len() + of[1].len(), MANY);
    }
    assert_eq!((of[0].len(), of[1].len(), closed, refused), (MANY / 2, MANY / 2, MANY / 2, 4 * MANY - MANY / 2));
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connections_evict_no_busy_connection() {
    let limiter = limiter(MANY, CLOSING_MAX);
    let connections = connections_of(&limiter, MANY, 1);
    let mut strangers = Vec::new();
    for round in 0..200_u8 {
        tokio::time::advance(Duration::from_millis(1)).await;
        let unauthenticated = DownstreamConnection::default();
        let slot = limiter.acquire(&unauthenticated, source(round)).await;
        strangers.push((unauthenticated, slot));
        strangers.retain(|(unauthenticated, _)| !unauthenticated.is(ConnectionState::Aborted));
        assert!(strangers.len() <= MANY / SLOTS_PER_EXTRA);
    }
    assert!(connections.iter().all(Busy::is_open));
}

/// A caller has all places and opens a new connection whenever one closes. A connection of another caller from the same
/// source arrives among them.
#[tokio::test(start_paused = true)]
async fn newcomer_of_the_source_of_a_flood_has_time_to_authenticate() {
    const HANDSHAKE: Duration = Duration::from_secs(2);
    const PLACES: usize = 64;
    let limiter = limiter(PLACES, CLOSING_MAX);
    let connections = connections_of(&limiter, PLACES, 1);
    let mut shaking = VecDeque::new();
    let newcomer = Busy::connect(&limiter, 1);
    drop(newcomer.request);
    let began = Instant::now();
    for round in 1.. {
        while shaking.len() < PLACES / SLOTS_PER_EXTRA / 2 {
            let connection = DownstreamConnection::default();
            let slot = limiter.acquire(&connection, source(1)).await;
            shaking.push_back((connection, slot));
        }
        tokio::time::advance(Duration::from_millis(10)).await;
        if began.elapsed() >= HANDSHAKE {
            break;
        }
        // The newcomer takes its steps among those of the flood.
        newcomer.connection.handshake_advanced();
        shaking.iter().for_each(|(connection, _)| connection.handshake_advanced());
        let (known, slot) = shaking.pop_front().expect("it is there");
        assert!(!known.authenticated(Some(1)), "round {round}: its caller has most");
        drop(slot);
    }
    assert!(newcomer.connection.authenticated(Some(2)));
    assert!(!newcomer.connection.is(ConnectionState::Closing));
    assert_eq!(connections.iter().filter(|busy| busy.is_open()).count(), PLACES - 1);
}

#[tokio::test(start_paused = true)]
async fn connections_are_shared_by_source_without_caller_identity() {
    let limiter = limiter(MANY, CLOSING_MAX);
    let connections: Vec<_> = (0..MANY).map(|_| Busy::connect(&limiter, 1)).collect();
    assert!(connections.iter().all(|busy| busy.connection.authenticated(None)));
    let other = Busy::connect(&limiter, 2);
    assert!(other.connection.authenticated(None));
    let same = Busy::connect(&limiter, 1);
    assert!(!same.connection.authenticated(None));
    assert_eq!(connections.iter().filter(|busy| busy.is_open()).count(), MANY - 1);
}

#[tokio::test(start_paused = true)]
async fn stalled_connection_is_evicted_for_new_one() {
    let limiter = limiter(MANY, CLOSING_MAX);
    let mut connections = connections_of(&limiter, MANY, 1);
    connections.iter_mut().for_each(|busy| busy.request.mark_stalled());
    tokio::time::advance(STALLED_AFTER.saturating_sub(Duration::from_millis(1))).await;
    connections[0].request.mark_stalled();
    tokio::time::advance(Duration::from_millis(1)).await;
    let same = Busy::connect(&limiter, 1);
    assert!(same.connection.authenticated(Some(1)), "there is room without anybody's share");
    let closed: Vec<_> = (0..MANY).filter(|at| !connections[*at].is_open()).collect();
    assert_eq!(closed.len(), 1);
    assert_ne!(closed, [0], "its client has just taken something");
}

/// One source has all places and reconnects in a loop; a connection of another source is accepted and keeps its place.
#[tokio::test(start_paused = true)]
async fn flooding_source_evicts_its_own_connections() {
    const ROUNDS: usize = 100;
    let limiter = limiter(20, CLOSING_MAX);
    let mut flood = Vec::new();
    for _ in 0..20 {
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        flood.push((connection, slot));
    }
    let other = DownstreamConnection::default();
    let _slot = limiter.acquire(&other, source(2)).await;
    for _ in 0..ROUNDS {
        tokio::time::advance(Duration::from_millis(1)).await;
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        flood.push((connection, slot));
        flood.retain(|(connection, _)| !connection.is(ConnectionState::Aborted));
    }
    assert!(!other.is(ConnectionState::Aborted));
    assert_eq!(flood.len(), 19 + 20 / SLOTS_PER_EXTRA);
}

/// The rest is for upstream, for files and for health checks: about fifteen before any client connects.
#[test]
fn places_and_closing_connections_fit_in_descriptor_limit() {
    for (descriptors, expected) in [(0, (1, 1)), (80, (55, 5)), (1_024, (704, 64)), (1 << 20, (786_176, 256))] {
        let (slots_max, closing_max) = slots_within(descriptors);
        assert_eq!((slots_max, closing_max), expected, "{descriptors}");
        assert!(descriptors == 0 || slots_max + closing_max <= descriptors / 4 * 3);
    }
}

/// `close_idle` is called in a loop while the closed connections still hold their descriptors.
#[tokio::test(start_paused = true)]
async fn descriptor_exhaustion_evicts_only_a_bounded_batch() {
    let limiter = limiter(4 * CLOSED_AT_ONCE, CLOSING_MAX);
    let mut connections = Vec::new();
    for _ in 0..4 * CLOSED_AT_ONCE {
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        connections.push((connection, slot));
    }
    assert!(!limiter.close_idle(CLOSED_AT_ONCE, false).await, "they have just come");
    tokio::time::advance(FIRST_REQUEST_WITHIN).await;
    for _ in 0..10 {
        assert!(!limiter.close_idle(CLOSED_AT_ONCE, false).await, "none has gone yet");
    }
    let cut = connections.iter().filter(|(connection, _)| connection.is(ConnectionState::Aborted)).count();
    assert_eq!(cut, CLOSED_AT_ONCE);
    let mut more = std::pin::pin!(limiter.close_idle(CLOSED_AT_ONCE, false));
    assert!(more.as_mut().now_or_never().is_none());
    connections.retain(|(connection, _)| !connection.is(ConnectionState::Aborted));
    assert!(more.await);
}

/// A client reconnects in a loop while upstream has no descriptor.
#[tokio::test(start_paused = true)]
async fn reconnect_loop_does_not_take_reclaimed_descriptors() {
    let limiter = limiter(1_000, CLOSING_MAX);
    let mut connections = Vec::new();
    let connect = async |connections: &mut Vec<(DownstreamConnection, ConnectionSlot)>| {
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        connections.push((connection, slot));
        connections.retain(|(connection, _)| !connection.is(ConnectionState::Aborted));
    };
    for _ in 0..100 {
        connect(&mut connections).await;
    }
    let _ = limiter.close_idle(CLOSED_FOR_OTHERS, true).now_or_never();
    assert!(connections.iter().all(|(it, _)| !it.is(ConnectionState::Aborted)), "they have just come");
    tokio::time::advance(FIRST_REQUEST_WITHIN).await;
    let _ = limiter.close_idle(CLOSED_FOR_OTHERS, true).now_or_never();
    for _ in 0..50 {
        connect(&mut connections).await;
    }
    assert_eq!(connections.len(), 100 - CLOSED_FOR_OTHERS);
    tokio::time::advance(CAP_LASTS).await;
    for _ in 0..50 {
        connect(&mut connections).await;
    }
    assert_eq!(connections.len(), 150 - CLOSED_FOR_OTHERS, "no other user needs descriptors");
}

/// A source that sends requests all the time does not protect the idle connections of another source.
#[tokio::test(start_paused = true)]
async fn descriptor_exhaustion_evicts_long_idle_of_any_source() {
    let limiter = limiter(100, CLOSING_MAX);
    let (mut old, mut young) = (Vec::new(), Vec::new());
    for (host, connections) in [(1, &mut old), (2, &mut young)] {
        for _ in 0..10 * usize::from(host) {
            let connection = DownstreamConnection::default();
            let slot = limiter.acquire(&connection, source(host)).await;
            connections.push((connection, slot));
        }
        tokio::time::advance(FIRST_REQUEST_WITHIN / 2).await;
    }
    tokio::time::advance(FIRST_REQUEST_WITHIN / 4).await;
    let _ = limiter.close_idle(CLOSED_AT_ONCE, false).now_or_never();
    let cut = |of: &[(DownstreamConnection, ConnectionSlot)]| {
        of.iter().filter(|(it, _)| it.is(ConnectionState::Aborted)).count()
    };
    assert_eq!((cut(&old), cut(&young)), (10, 0));
}

/// Some connections arrived while there was room, before any scan.
#[tokio::test(start_paused = true)]
async fn descriptor_exhaustion_evicts_newest_connection_last() {
    const PLACES: usize = 3 * CLOSED_AT_ONCE;
    let limiter = limiter(PLACES, CLOSING_MAX);
    let mut connections = Vec::new();
    let connect = async |connections: &mut Vec<(DownstreamConnection, ConnectionSlot)>| {
        tokio::time::advance(Duration::from_millis(1)).await;
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        connections.push((connection, slot));
    };
    let go = |connections: &mut Vec<(DownstreamConnection, ConnectionSlot)>| {
        connections.retain(|(connection, _)| !connection.is(ConnectionState::Aborted));
    };
    for _ in 0..PLACES {
        connect(&mut connections).await;
    }
    tokio::time::advance(FIRST_REQUEST_WITHIN).await;
    let _ = limiter.close_idle(CLOSED_AT_ONCE, false).now_or_never();
    go(&mut connections);
    while connections.len() < PLACES {
        connect(&mut connections).await;
    }
    connect(&mut connections).await;
    let (last, _) = connections.last().expect("it came");
    let last = last.clone();
    tokio::time::advance(FIRST_REQUEST_WITHIN).await;
    for _ in 0..2 {
        go(&mut connections);
        let _ = limiter.close_idle(CLOSED_AT_ONCE, false).now_or_never();
        assert!(!last.is(ConnectionState::Aborted));
    }
    go(&mut connections);
    assert_eq!(connections.len(), PLACES - 2 * CLOSED_AT_ONCE);
}

/// All connections that were idle at the last scan are gone, and others have become idle since.
#[tokio::test(start_paused = true)]
async fn new_connection_is_not_evicted_before_longer_idle_ones() {
    let limiter = limiter(3, CLOSING_MAX);
    let connect = async || {
        tokio::time::advance(2 * SCAN_EVERY).await;
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        (connection, slot)
    };
    let is_cut = |(connection, _): &(DownstreamConnection, ConnectionSlot)| connection.is(ConnectionState::Aborted);
    let (silent, busy) = ([connect().await, connect().await], connect().await);
    let request = busy.0.request(LATE_MAX);
    let first = connect().await;
    tokio::time::advance(SCAN_EVERY).await;
    drop(request);
    let [second, third, fourth] = [connect().await, connect().await, connect().await];
    assert!(silent.iter().chain([&first]).all(is_cut) && !is_cut(&busy), "the oldest each time");
    let fifth = connect().await;
    assert!(is_cut(&busy) && [second, third, fourth, fifth].iter().all(|newcomer| !is_cut(newcomer)));
}

#[tokio::test(start_paused = true)]
async fn accept_waits_when_evicted_connections_do_not_close() {
    let limiter = limiter(1, CLOSING_MAX);
    let mut slow = Vec::new();
    // One has the place, one authenticates beyond the limit, and the others have been closed.
    for _ in 0..CLOSING_MAX + 2 {
        let connection = DownstreamConnection::default();
        let slot = limiter.acquire(&connection, source(1)).await;
        slow.push((connection, slot));
    }
    let next = DownstreamConnection::default();
    let mut entering = std::pin::pin!(limiter.acquire(&next, source(1)));
    assert!(entering.as_mut().now_or_never().is_none());
    slow.remove(0);
    entering.await;
}
