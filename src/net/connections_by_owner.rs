use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use tokio::time::Instant;

use super::PeerAddress;

/// The source of a connection, of which one sender may have many: an IPv4 address, the /64 of an IPv6 address (the
/// usual assignment to one machine), or the unix sockets of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ConnectionSource {
    V4(Ipv4Addr),
    V6([u8; 8]),
    Unix,
}

/// The party to which a connection is charged: its caller once authenticated, until then its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ConnectionOwner {
    Caller(u64),
    Source(ConnectionSource),
}

/// The connections of a listener by owner, each with its number in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct ConnectionsByOwner {
    connections: HashMap<ConnectionOwner, BTreeSet<u64>>,
}

impl ConnectionsByOwner {
    /// Counts a connection for an owner. Later connections have a higher number.
    pub(super) fn add(&mut self, owner: ConnectionOwner, number: u64) {
        self.connections.entry(owner).or_default().insert(number);
    }

    pub(super) fn remove(&mut self, owner: ConnectionOwner, number: u64) {
        if let Some(connections) = self.connections.get_mut(&owner) {
            connections.remove(&number);
            if connections.is_empty() {
                self.connections.remove(&owner);
            }
        }
    }

    /// Returns the owner that must close a connection so that this owner's newest one can stay: the owner with the
    /// most, or itself.
    pub(super) fn eviction_target(&self, newcomer: ConnectionOwner) -> ConnectionOwner {
        let counts = self.connections.iter().map(|(owner, connections)| (*owner, connections.len()));
        target_among(counts, newcomer).unwrap_or(newcomer)
    }

    /// Returns the numbers of an owner's connections, the oldest first.
    pub(super) fn of(&self, owner: ConnectionOwner) -> impl DoubleEndedIterator<Item = u64> {
        self.connections.get(&owner).into_iter().flatten().copied()
    }
}

/// Returns the owner that loses a connection to `newcomer`: the one with the most, unless the newcomer has as many. The
/// counts include the new connection.
///
/// A fair share is the number of slots divided by the number of owners. If there are more connections than slots, the
/// owner with the most has more than a fair share. So an owner with a fair share or less loses nothing, and an owner
/// with less gets a connection. Two owners do not evict each other in turn: after the first exchange both have as many,
/// and the next connection is refused.
fn target_among(
    counts: impl Iterator<Item = (ConnectionOwner, usize)>,
    newcomer: ConnectionOwner,
) -> Option<ConnectionOwner> {
    let (mut own, mut most) = (0, None);
    for (owner, count) in counts {
        if owner == newcomer {
            own = count;
        } else {
            most = most.max(Some((count, owner)));
        }
    }
    most.filter(|(count, _)| *count > own).map(|(_, owner)| owner)
}

/// A connection without a running request: none has arrived yet, or the last response is complete.
#[derive(Debug)]
pub(super) struct IdleConnection {
    pub(super) number: u64,
    pub(super) source: ConnectionSource,
    pub(super) since: Instant,
}

/// The order in which idle connections are closed: the oldest of the source that has the most.
///
/// So no source keeps more idle connections than the others do, and a source with few connections keeps them.
#[derive(Debug, Default)]
pub(super) struct IdleConnections {
    queues: HashMap<ConnectionSource, VecDeque<IdleConnection>>,
    /// The sources, the one with the most connections last, and among equals the one with the oldest.
    order: BTreeSet<IdleSourceRank>,
}

type IdleSourceRank = (usize, Reverse<Instant>, ConnectionSource);

impl ConnectionSource {
    pub(super) fn of(address: PeerAddress) -> Self {
        let PeerAddress::Tcp(address) = address else { return Self::Unix };
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => Self::V6(ip.octets()[..8].try_into().expect("the first half of 16 bytes")),
        }
    }
}

impl IdleConnections {
    pub(super) fn of(idle: impl Iterator<Item = IdleConnection>) -> Self {
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|idle| idle.since);
        let mut queues = HashMap::<_, VecDeque<_>>::new();
        idle.into_iter().for_each(|idle| queues.entry(idle.source).or_default().push_back(idle));
        let order = queues.iter().filter_map(|(source, queue)| rank(*source, queue)).collect();
        Self { queues, order }
    }

    /// Adds a connection that has been idle for less time than the others.
    pub(super) fn add(&mut self, idle: IdleConnection) {
        self.change(idle.source, |queue| queue.push_back(idle));
    }

    /// Removes and returns the next connection to close; `None` if none is left, or if it became idle after `latest`.
    pub(super) fn next(&mut self, latest: Option<Instant>) -> Option<IdleConnection> {
        let next = self.order.last().filter(|rank| was_idle_by(rank, latest))?.2;
        self.change(next, VecDeque::pop_front)
    }

    /// Like [`next`](Self::next), but skips sources without a connection that was idle by `latest`.
    pub(super) fn next_idle_by(&mut self, latest: Option<Instant>) -> Option<IdleConnection> {
        let next = self.order.iter().rev().find(|rank| was_idle_by(rank, latest))?.2;
        self.change(next, VecDeque::pop_front)
    }

    /// Changes the queue of a source, and with it the rank of the source.
    fn change<T>(&mut self, source: ConnectionSource, change: impl FnOnce(&mut VecDeque<IdleConnection>) -> T) -> T {
        let queue = self.queues.entry(source).or_default();
        if let Some(rank) = rank(source, queue) {
            self.order.remove(&rank);
        }
        let changed = change(queue);
        self.order.extend(rank(source, queue));
        changed
    }
}

fn was_idle_by((_, Reverse(since), _): &IdleSourceRank, latest: Option<Instant>) -> bool {
    latest.is_none_or(|latest| *since <= latest)
}

fn rank(source: ConnectionSource, queue: &VecDeque<IdleConnection>) -> Option<IdleSourceRank> {
    queue.front().map(|oldest| (queue.len(), Reverse(oldest.since), source))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const A: ConnectionOwner = ConnectionOwner::Caller(1);
    const B: ConnectionOwner = ConnectionOwner::Caller(2);
    const C: ConnectionOwner = ConnectionOwner::Caller(3);

    #[test]
    fn owner_with_most_connections_is_evicted_unless_newcomer_ties() {
        for (counts, newcomer, expected) in [
            (vec![(A, 20), (B, 1)], B, Some(A)),
            (vec![(A, 21)], A, None),
            (vec![(A, 20), (B, 1)], A, None),
            (vec![(A, 11), (B, 10)], B, Some(A)),
            (vec![(A, 10), (B, 11)], B, None),
            (vec![(A, 10), (B, 10)], B, None),
            (vec![(A, 5), (B, 7), (C, 1)], C, Some(B)),
            (vec![(A, 5), (B, 7), (C, 1)], A, Some(B)),
            (vec![(A, 5), (B, 7), (C, 1)], B, None),
            (vec![(A, 1), (B, 1), (C, 1)], C, None),
        ] {
            assert_eq!(target_among(counts.iter().copied(), newcomer), expected, "{newcomer:?} of {counts:?}");
        }
    }

    #[test]
    fn connections_of_an_owner_are_in_order_of_arrival() {
        let mut owners = ConnectionsByOwner::default();
        [1, 3, 2].into_iter().for_each(|number| owners.add(A, number));
        owners.add(B, 4);
        assert_eq!((owners.eviction_target(B), owners.eviction_target(A)), (A, A));
        assert_eq!(owners.of(A).collect::<Vec<_>>(), [1, 2, 3]);
        owners.remove(A, 3);
        owners.remove(A, 2);
        assert_eq!((owners.eviction_target(B), owners.of(A).next_back()), (B, Some(1)), "both have one");
        owners.remove(A, 1);
        assert_eq!(owners.of(A).next(), None);
    }

    proptest! {
        /// A full listener with some connections of each owner, and one new connection.
        #[test]
        fn owner_below_fair_share_is_admitted_and_never_evicted(
            counts in proptest::collection::vec(0_usize..50, 1..12),
            newcomer in any::<proptest::sample::Index>(),
        ) {
            let (places, newcomer): (usize, _) = (counts.iter().sum(), newcomer.index(counts.len()));
            let mut counts = counts;
            counts[newcomer] += 1;
            let owner = |at: usize| ConnectionOwner::Caller(at as u64);
            let owners = counts.iter().filter(|count| **count > 0).count();
            let fair = places / owners;
            let counted = counts.iter().enumerate().map(|(at, count)| (owner(at), *count));
            let counted = counted.filter(|(_, count)| *count > 0);
            let giver = target_among(counted, owner(newcomer));
            match giver.map(|giver| (0..counts.len()).find(|at| owner(*at) == giver).expect("it is one of them")) {
                Some(giver) => prop_assert!(counts[giver] > fair && counts[giver] > counts[newcomer]),
                None => prop_assert!(counts[newcomer] > fair),
            }
        }

        /// If owners reconnect in a loop, in any order, closing stops after a while.
        #[test]
        fn reconnecting_owners_converge_without_further_evictions(target in proptest::collection::vec(1_usize..40, 1..8)) {
            const PLACES: usize = 60;
            let mut counts = vec![0; target.len()];
            let mut lost_last = 0;
            for round in 0..2 * PLACES {
                for (at, target) in target.iter().enumerate() {
                    if counts[at] == *target {
                        continue;
                    }
                    counts[at] += 1;
                    if counts.iter().sum::<usize>() <= PLACES {
                        continue;
                    }
                    let owner = |at: usize| ConnectionOwner::Caller(at as u64);
                    let counted = counts.iter().enumerate().map(|(at, count)| (owner(at), *count));
                    match target_among(counted, owner(at)) {
                        Some(giver) => {
                            let giver = (0..counts.len()).find(|at| owner(*at) == giver).expect("it is one of them");
                            counts[giver] -= 1;
                            lost_last = round;
                        }
                        None => counts[at] -= 1,
                    }
                }
            }
            prop_assert!(lost_last < PLACES, "a connection closed in round {lost_last}");
        }
    }

    fn source(text: &str) -> ConnectionSource {
        ConnectionSource::of(PeerAddress::Tcp(format!("{text}:1").parse().expect("an address")))
    }

    #[test]
    fn source_is_ipv4_address_ipv6_prefix_or_unix_socket() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "[::ffff:10.0.0.1]", true),
            ("[2001:db8:0:1::1]", "[2001:db8:0:1:ffff::9]", true),
            ("[2001:db8:0:1::1]", "[2001:db8:0:2::1]", false),
        ] {
            assert_eq!(source(one) == source(other), same, "{one} and {other}");
        }
        let unix = |uid| ConnectionSource::of(PeerAddress::Unix { uid });
        assert_eq!(unix(Some(1)), unix(Some(2)));
    }

    /// The order in which connections are closed, by source and the second since which they are idle.
    fn order(idle: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        let began = Instant::now();
        let connections = (0..).zip(idle).map(|(number, (text, second))| IdleConnection {
            number,
            source: source(text),
            since: began + Duration::from_secs(*second),
        });
        let mut connections = IdleConnections::of(connections);
        let next = || connections.next(None).and_then(|next| idle.get(usize::try_from(next.number).ok()?).copied());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn source_with_most_is_evicted_first_then_oldest() {
        const A: &str = "10.0.0.1";
        const B: &str = "10.0.0.2";
        for (idle, gone) in [
            (vec![], vec![]),
            (vec![(A, 3), (A, 1), (A, 2)], vec![(A, 1), (A, 2), (A, 3)]),
            (vec![(A, 9), (B, 5)], vec![(B, 5), (A, 9)]),
            // The only one of its source is older than the others, and stays longest.
            (vec![(B, 0), (A, 7), (A, 8), (A, 9)], vec![(A, 7), (A, 8), (B, 0), (A, 9)]),
        ] {
            assert_eq!(order(&idle), gone, "{idle:?}");
        }
    }

    proptest! {
        /// A source gives up a place only while no other source has more.
        #[test]
        fn eviction_takes_oldest_of_source_with_most(opened in proptest::collection::vec((0_u8..5, 0_u64..100), 0..200)) {
            let began = Instant::now();
            let idle = opened.iter().map(|(host, second)| IdleConnection {
                number: 0,
                source: ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, *host)),
                since: began + Duration::from_secs(*second),
            });
            let mut left: HashMap<_, Vec<_>> = HashMap::new();
            for (host, second) in &opened {
                left.entry(ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, *host))).or_default().push(*second);
            }
            // Some are added after the first scan.
            let mut idle: Vec<_> = idle.collect();
            idle.sort_by_key(|idle| idle.since);
            let late = idle.split_off(idle.len() / 2);
            let mut idle = IdleConnections::of(idle.into_iter());
            late.into_iter().for_each(|late| idle.add(late));
            for _ in 0..opened.len() {
                let next = idle.next(None).expect("one is left");
                let most = left.values().map(Vec::len).max().expect("one is left");
                let queue = left.get_mut(&next.source).expect("it is one of them");
                prop_assert_eq!(queue.len(), most);
                let second = (next.since - began).as_secs();
                prop_assert_eq!(Some(&second), queue.iter().min());
                let at = queue.iter().position(|at| *at == second).expect("it is there");
                queue.swap_remove(at);
            }
            prop_assert!(idle.next(None).is_none());
        }
    }
}
