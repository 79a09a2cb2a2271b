use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
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

/// A connection without a running request: none has arrived yet, or the last response is complete.
#[derive(Debug)]
pub(super) struct IdleConnection<C> {
    pub(super) connection: C,
    pub(super) source: ConnectionSource,
    pub(super) since: Instant,
}

/// The order in which idle connections are closed: the oldest of the source that has the most.
///
/// So no source keeps more idle connections than the others do, and a source with few connections keeps them.
#[derive(Debug)]
pub(super) struct IdleConnections<C> {
    queues: HashMap<ConnectionSource, VecDeque<IdleConnection<C>>>,
    /// The sources, the one with the most connections first, and among equals the one with the oldest. An entry that no
    /// longer fits its queue has a newer entry beside it.
    order: BinaryHeap<IdleSourceRank>,
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

impl<C> IdleConnections<C> {
    pub(super) fn of(idle: impl Iterator<Item = IdleConnection<C>>) -> Self {
        let mut queues = HashMap::<_, Vec<_>>::new();
        idle.for_each(|idle| queues.entry(idle.source).or_default().push(idle));
        let queues: HashMap<_, VecDeque<_>> = queues
            .into_iter()
            .map(|(source, mut queue)| {
                queue.sort_by_key(|idle| idle.since);
                (source, queue.into())
            })
            .collect();
        let order = queues.iter().filter_map(|(source, queue)| rank(*source, queue)).collect();
        Self { queues, order }
    }

    /// Adds a connection that has been idle for less time than the others.
    pub(super) fn add(&mut self, idle: IdleConnection<C>) {
        let source = idle.source;
        let queue = self.queues.entry(source).or_default();
        queue.push_back(idle);
        self.order.extend(rank(source, queue));
    }

    /// Removes and returns the next connection to close; `None` if none is left, or if it became idle after `latest`.
    pub(super) fn next(&mut self, latest: Option<Instant>) -> Option<IdleConnection<C>> {
        let next_victim = self.next_victim()?;
        let is_later = latest.is_some_and(|latest| rank_since(&next_victim) > latest);
        if is_later { None } else { self.take(&next_victim) }
    }

    /// Like [`next`](Self::next), but skips sources without a connection that was idle by `latest`.
    pub(super) fn next_idle_by(&mut self, latest: Option<Instant>) -> Option<IdleConnection<C>> {
        let Some(latest) = latest else { return self.next(None) };
        let mut later = Vec::new();
        let next = loop {
            match self.next_victim() {
                Some(next_victim) if rank_since(&next_victim) > latest => later.extend(self.order.pop()),
                Some(next_victim) => break self.take(&next_victim),
                None => break None,
            }
        };
        self.order.extend(later);
        next
    }

    /// Returns the source whose connection is closed next. Drops outdated entries.
    fn next_victim(&mut self) -> Option<IdleSourceRank> {
        loop {
            let next_victim = *self.order.peek()?;
            let queue = self.queues.get(&next_victim.2)?;
            if rank(next_victim.2, queue) == Some(next_victim) {
                return Some(next_victim);
            }
            self.order.pop();
        }
    }

    fn take(&mut self, next_victim: &IdleSourceRank) -> Option<IdleConnection<C>> {
        self.order.pop();
        let queue = self.queues.get_mut(&next_victim.2)?;
        let first = queue.pop_front();
        self.order.extend(rank(next_victim.2, queue));
        first
    }
}

fn rank_since(rank: &IdleSourceRank) -> Instant {
    rank.1.0
}

impl<C> Default for IdleConnections<C> {
    fn default() -> Self {
        Self { queues: HashMap::new(), order: BinaryHeap::new() }
    }
}

fn rank<C>(source: ConnectionSource, queue: &VecDeque<IdleConnection<C>>) -> Option<IdleSourceRank> {
    queue.front().map(|oldest| (queue.len(), Reverse(oldest.since), source))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

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
        let idle = idle.iter().map(|(text, second)| IdleConnection {
            connection: (*text, *second),
            source: source(text),
            since: began + Duration::from_secs(*second),
        });
        let mut idle = IdleConnections::of(idle);
        std::iter::from_fn(|| idle.next(None)).map(|idle| idle.connection).collect()
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
                connection: (),
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
