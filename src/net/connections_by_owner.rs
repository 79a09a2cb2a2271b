use std::collections::{BTreeSet, HashMap};

use super::idle_connections::ConnectionSource;

/// The party to which a connection is charged: its caller once authenticated, until then its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ConnectionOwner {
    Caller(u64),
    Source(ConnectionSource),
}

/// The connections of a listener by owner, each with its order of arrival.
#[derive(Debug, Default)]
pub(super) struct ConnectionsByOwner {
    connections: HashMap<ConnectionOwner, BTreeSet<(u64, usize)>>,
}

impl ConnectionsByOwner {
    /// Counts a connection for an owner. Later connections have a higher `order`.
    pub(super) fn add(&mut self, owner: ConnectionOwner, order: u64, at: usize) {
        self.connections.entry(owner).or_default().insert((order, at));
    }

    pub(super) fn remove(&mut self, owner: ConnectionOwner, order: u64, at: usize) {
        if let Some(connections) = self.connections.get_mut(&owner) {
            connections.remove(&(order, at));
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

    /// Returns the slots of an owner's connections, the oldest first.
    pub(super) fn of(&self, owner: ConnectionOwner) -> impl DoubleEndedIterator<Item = usize> {
        self.connections.get(&owner).into_iter().flatten().map(|(_, at)| *at)
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

#[cfg(test)]
mod tests {
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
        for (order, at) in [(1, 7), (2, 3), (3, 5)] {
            owners.add(A, order, at);
        }
        owners.add(B, 4, 1);
        assert_eq!((owners.eviction_target(B), owners.eviction_target(A)), (A, A));
        assert_eq!(owners.of(A).collect::<Vec<_>>(), [7, 3, 5]);
        owners.remove(A, 3, 5);
        owners.remove(A, 2, 3);
        assert_eq!((owners.eviction_target(B), owners.of(A).next_back()), (B, Some(7)), "both have one");
        owners.remove(A, 1, 7);
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
}
