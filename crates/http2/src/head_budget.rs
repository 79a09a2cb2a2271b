//! The memory of heads of all connections of a listener: heads of HTTP/2 requests without a response, heads of
//! responses that wait until the client reads, and unfinished heads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{MemoryAccount, MemoryCharge};

/// The bytes of heads that are in memory on one listener. A head counts as HTTP/2 counts it: the bytes of its
/// names and values, and 32 for each field (RFC 9113 §6.5.2). Values that several heads share count for each of them.
#[derive(Debug, Default)]
pub struct RequestHeadBudget {
    charged: Arc<MemoryAccount>,
    /// The bytes of unfinished heads beyond the guaranteed size of each connection.
    unfinished: AtomicUsize,
}

/// One connection's part of the budget for request heads.
#[derive(Debug)]
pub struct ConnectionHeadBudget {
    all: Arc<RequestHeadBudget>,
    charged: Arc<MemoryAccount>,
    unfinished: AtomicUsize,
}

/// The bytes of all heads of a listener. A request takes up to four times its head: it is read, decoded, and written to
/// upstream.
pub(super) const HEADS_BYTES_MAX: usize = 32 << 20;
/// The bytes of all heads of a connection: 250 requests with 2 KiB each.
const CONNECTION_HEADS_BYTES_MAX: usize = 512 << 10;
/// The fraction of the remaining budget that a connection may use, as a divisor. This keeps room for new connections,
/// however many connections use their maximum.
const PARTS_OF_FREE: usize = 64;
/// The guaranteed size: a head of up to this size is always accepted if its connection has no other, finished or not.
const ONLY_HEAD_BYTES_MAX: usize = 16 << 10;
/// The maximum number of bytes of all unfinished heads of a listener, beyond the guaranteed size of each.
const UNFINISHED_BYTES_MAX: usize = 16 << 20;

impl RequestHeadBudget {
    /// Creates the part of a new connection.
    pub fn connection(self: &Arc<Self>) -> Arc<ConnectionHeadBudget> {
        Arc::new(ConnectionHeadBudget {
            all: self.clone(),
            charged: MemoryAccount::child_of(&self.charged),
            unfinished: AtomicUsize::new(0),
        })
    }
}

impl ConnectionHeadBudget {
    /// Charges a head of `bytes` bytes until the charge is dropped; `None` if it does not fit.
    pub fn charge(&self, bytes: usize) -> Option<MemoryCharge> {
        let charged = self.charged.bytes();
        let free = HEADS_BYTES_MAX.saturating_sub(self.all.charged.bytes());
        let max = if charged == 0 {
            free.max(ONLY_HEAD_BYTES_MAX)
        } else {
            CONNECTION_HEADS_BYTES_MAX.min(free / PARTS_OF_FREE)
        };
        (charged + bytes <= max).then(|| self.charged.charge(bytes))
    }

    /// Replaces a request's head with its response's; `None` if that is larger and does not fit.
    pub(super) fn replace(&self, mut head: MemoryCharge, bytes: usize) -> Option<MemoryCharge> {
        if bytes > head.bytes() {
            drop(head);
            return self.charge(bytes);
        }
        head.set(bytes);
        Some(head)
    }

    /// Records how many bytes of an unfinished head the connection holds; 0 when the head is finished.
    ///
    /// Returns whether they fit; if not, the connection must end. Heads up to the guaranteed size touch no shared
    /// counter.
    pub fn hold_unfinished(&self, bytes: usize) -> bool {
        let excess = bytes.saturating_sub(ONLY_HEAD_BYTES_MAX);
        if excess == self.unfinished.load(Ordering::Relaxed) {
            return true;
        }
        let before = self.unfinished.swap(excess, Ordering::Relaxed);
        self.all.unfinished.fetch_sub(before, Ordering::Relaxed);
        let others = self.all.unfinished.fetch_add(excess, Ordering::Relaxed);
        let fits = excess < before || others + excess <= UNFINISHED_BYTES_MAX;
        if !fits {
            self.hold_unfinished(0);
        }
        fits
    }
}

impl Drop for ConnectionHeadBudget {
    fn drop(&mut self) {
        self.all.unfinished.fetch_sub(*self.unfinished.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 64 << 10;

    /// Charges heads of that size until one does not fit.
    fn fill(heads: &Arc<ConnectionHeadBudget>, bytes: usize) -> Vec<MemoryCharge> {
        std::iter::from_fn(|| heads.charge(bytes)).collect()
    }

    #[test]
    fn connection_head_budget_is_released_with_each_response() {
        let budget = Arc::<RequestHeadBudget>::default();
        let heads = budget.connection();
        let mut charges = fill(&heads, LARGE);
        // Its own heads reduce the free budget, which makes its maximum a little smaller.
        let room = CONNECTION_HEADS_BYTES_MAX - charges.len() * LARGE;
        assert!(room <= LARGE, "{room}");
        charges.pop();
        assert!(heads.charge(LARGE).is_some());
        drop(charges);
        assert_eq!((heads.charged.bytes(), budget.charged.bytes()), (0, 0));
    }

    #[test]
    fn new_connection_gets_head_budget_while_others_are_at_maximum() {
        let budget = Arc::<RequestHeadBudget>::default();
        let others: Vec<_> = (0..150).map(|_| budget.connection()).collect();
        let charges_of_others: Vec<_> = others.iter().map(|heads| fill(heads, 2_000)).collect();
        let total = budget.charged.bytes();
        assert!(total <= HEADS_BYTES_MAX, "{total}");
        let newcomer = budget.connection();
        let usual = fill(&newcomer, 2_000);
        assert!(usual.len() > 10, "{}", usual.len());
        assert!(charges_of_others.iter().all(|charges| !charges.is_empty()));
    }

    #[test]
    fn unfinished_heads_share_maximum_and_small_ones_always_fit() {
        let budget = Arc::<RequestHeadBudget>::default();
        let all = || budget.unfinished.load(Ordering::Relaxed);
        let connections: Vec<_> = (0..1_000).map(|_| budget.connection()).collect();
        let (large, small): (Vec<_>, Vec<_>) = connections.iter().partition(|heads| heads.hold_unfinished(2 * LARGE));
        assert_eq!(large.len(), UNFINISHED_BYTES_MAX / (2 * LARGE - ONLY_HEAD_BYTES_MAX));
        assert!(small.iter().all(|heads| heads.hold_unfinished(ONLY_HEAD_BYTES_MAX)));
        assert!(all() <= UNFINISHED_BYTES_MAX && !small[0].hold_unfinished(2 * LARGE));
        assert!(small[0].hold_unfinished(0) && large[0].hold_unfinished(0));
        assert!(small[1].hold_unfinished(2 * LARGE), "a head is finished");
        drop(connections);
        assert_eq!(all(), 0);
    }

    #[test]
    fn response_replaces_request_head_charge_if_budget_allows() {
        let budget = Arc::<RequestHeadBudget>::default();
        let all = || budget.charged.bytes();
        let heads = budget.connection();
        let [small, large] = [(); 2].map(|()| heads.charge(2_000).expect("the budget is empty"));
        let large = heads.replace(large, 3_000).expect("there is room");
        assert_eq!(all(), 5_000);
        let _full = budget.connection().charge(HEADS_BYTES_MAX - 5_000).expect("it fits");
        let small = heads.replace(small, 500).expect("a smaller one always fits");
        assert_eq!(all(), HEADS_BYTES_MAX - 1_500);
        assert!(heads.replace(small, 501).is_none() && all() == HEADS_BYTES_MAX - 2_000);
        let only = heads.replace(large, ONLY_HEAD_BYTES_MAX).expect("it is the connection's only head");
        assert!(heads.replace(only, ONLY_HEAD_BYTES_MAX + 1).is_none());
        assert_eq!((heads.charged.bytes(), all()), (0, HEADS_BYTES_MAX - 5_000));
    }

    #[test]
    fn exhausted_budget_admits_one_small_head_per_connection() {
        let budget = Arc::<RequestHeadBudget>::default();
        let full = budget.connection().charge(HEADS_BYTES_MAX).expect("the budget is empty");
        let heads = budget.connection();
        assert!(heads.charge(ONLY_HEAD_BYTES_MAX + 1).is_none());
        let only = heads.charge(ONLY_HEAD_BYTES_MAX);
        assert!(only.is_some() && heads.charge(1).is_none());
        drop(full);
        assert!(heads.charge(LARGE).is_some());
    }
}
