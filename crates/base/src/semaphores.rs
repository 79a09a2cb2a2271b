use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::mem::replace;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

/// Grants turns for CPU-bound work: a limited number at a time, and round robin between holders, however many waiters
/// one holder has. Clones share the queue.
#[derive(Debug)]
pub struct RoundRobinSemaphore<K>(Arc<Mutex<RoundRobinState<K>>>);

/// The permission to do CPU-bound work. Dropping it ends the turn, or leaves the queue.
#[derive(Debug)]
#[must_use = "it is over when it is dropped"]
pub struct RoundRobinPermit<K: Clone + Eq + Hash> {
    turns: RoundRobinSemaphore<K>,
    holder: K,
    ticket: i64,
    /// The notice that the turn has come, while the holder waits for it.
    waiting: Option<oneshot::Receiver<()>>,
}

struct RoundRobinState<K> {
    running: usize,
    running_max: usize,
    /// Whether a holder may have only one turn at a time.
    has_one: fn(&K) -> bool,
    waiting: usize,
    last_ticket: i64,
    /// The holders with a turn or a waiter.
    holders: HashMap<K, RoundRobinHolder>,
    /// The holders with waiters, the next one first.
    order: VecDeque<K>,
}

#[derive(Debug, Default)]
struct RoundRobinHolder {
    running: usize,
    /// The waiters of a holder, the next one first.
    waiting: BTreeMap<i64, oneshot::Sender<()>>,
}

/// The end of a holder's own queue at which a waiter is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueInsertSide {
    Back,
    Front,
}

/// Returns the number of concurrent turns that leaves other work a free core: half of the cores, and at least one.
pub fn half_core_count() -> usize {
    available_parallelism().map_or(1, |cores| cores.get() / 2).max(1)
}

impl<K: Clone + Eq + Hash> RoundRobinSemaphore<K> {
    /// Creates a queue. `has_one` selects the holders that may have only one turn at a time; the others may have all of
    /// them.
    pub fn new(at_a_time: usize, has_one: fn(&K) -> bool) -> Self {
        let (holders, order) = (HashMap::new(), VecDeque::new());
        let queue =
            RoundRobinState { running: 0, running_max: at_a_time, has_one, waiting: 0, last_ticket: 0, holders, order };
        Self(Arc::new(Mutex::new(queue)))
    }

    /// Enters the queue, and completes with a turn of the holder.
    pub fn wait(&self, holder: K) -> impl Future<Output = RoundRobinPermit<K>> + use<K> {
        let mut permit = self.enter(holder, QueueInsertSide::Back);
        async move {
            permit.granted().await;
            permit
        }
    }

    /// Returns the number of waiters, in total and of one holder.
    pub fn waiting(&self, holder: &K) -> (usize, usize) {
        let queue = self.0.lock();
        (queue.waiting, queue.holders.get(holder).map_or(0, |state| state.waiting.len()))
    }

    /// Whether the queue has no turns and no waiters, so that no state is kept.
    pub fn is_empty(&self) -> bool {
        let queue = self.0.lock();
        (queue.running, queue.waiting, queue.holders.len(), queue.order.len()) == (0, 0, 0, 0)
    }

    fn enter(&self, holder: K, end: QueueInsertSide) -> RoundRobinPermit<K> {
        let mut queue = self.0.lock();
        let (grants, granted) = oneshot::channel();
        queue.last_ticket += 1;
        queue.waiting += 1;
        let ticket = if end == QueueInsertSide::Back { queue.last_ticket } else { -queue.last_ticket };
        let state = queue.holders.entry(holder.clone()).or_default();
        let is_first = state.waiting.is_empty();
        state.waiting.insert(ticket, grants);
        if is_first {
            queue.order.push_back(holder.clone());
        }
        queue.grant();
        drop(queue);
        RoundRobinPermit { turns: self.clone(), holder, ticket, waiting: Some(granted) }
    }

    fn end(&self, holder: &K) {
        let mut queue = self.0.lock();
        queue.ended(holder);
        queue.grant();
    }
}

impl<K: Clone + Eq + Hash> RoundRobinPermit<K> {
    /// Whether another holder waits that could get this turn.
    pub fn is_contended(&self) -> bool {
        let queue = self.turns.0.lock();
        queue.order.iter().any(|waiting_holder| *waiting_holder != self.holder && queue.can_acquire(waiting_holder))
    }

    /// Passes the turn to other holders, and completes when this holder has one again.
    pub async fn yield_to_others(&mut self) {
        // Queues first and then ends the turn, so that this holder comes after the waiting ones.
        let again = self.turns.enter(self.holder.clone(), QueueInsertSide::Front);
        drop(replace(self, again));
        self.granted().await;
    }

    /// Completes when the turn has come.
    async fn granted(&mut self) {
        if let Some(granted) = &mut self.waiting {
            granted.await.expect("the queue owns the sender, and this permit owns the queue");
            self.waiting = None;
        }
    }
}

impl<K: Clone + Eq + Hash> RoundRobinState<K> {
    fn can_acquire(&self, holder: &K) -> bool {
        !(self.has_one)(holder) || self.holders.get(holder).is_some_and(|state| state.running == 0)
    }

    /// Grants free turns to the next waiters.
    fn grant(&mut self) {
        let mut skipped = 0;
        while self.running < self.running_max && skipped < self.order.len() {
            let Some(holder) = self.order.pop_front() else { return };
            if !self.can_acquire(&holder) {
                self.order.push_back(holder);
                skipped += 1;
                continue;
            }
            let Some(state) = self.holders.get_mut(&holder) else { continue };
            let next = state.waiting.pop_first();
            if !state.waiting.is_empty() {
                self.order.push_back(holder.clone());
            }
            let Some((_, grants)) = next else { continue };
            self.waiting -= 1;
            state.running += 1;
            self.running += 1;
            skipped = 0;
            if grants.send(()).is_err() {
                self.ended(&holder);
            }
        }
    }

    fn ended(&mut self, holder: &K) {
        self.running -= 1;
        let Some(state) = self.holders.get_mut(holder) else { return };
        state.running -= 1;
        if !state.waiting.is_empty() {
            // The holder has had its turn, so it goes to the end.
            self.order.retain(|waiting_holder| waiting_holder != holder);
            self.order.push_back(holder.clone());
        }
        self.remove_if_unused(holder);
    }

    /// Removes a waiter that has not been granted a turn.
    fn leave(&mut self, holder: &K, ticket: i64) {
        let Some(state) = self.holders.get_mut(holder) else { return };
        if state.waiting.remove(&ticket).is_none() {
            return;
        }
        self.waiting -= 1;
        if state.waiting.is_empty() {
            self.order.retain(|waiting_holder| waiting_holder != holder);
        }
        self.remove_if_unused(holder);
    }

    fn remove_if_unused(&mut self, holder: &K) {
        if self.holders.get(holder).is_some_and(|state| state.running == 0 && state.waiting.is_empty()) {
            self.holders.remove(holder);
        }
    }
}

impl<K> Clone for RoundRobinSemaphore<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> fmt::Debug for RoundRobinState<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, waiting, .. } = self;
        f.debug_struct("RoundRobinState").field("running", running).field("waiting", waiting).finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash> Drop for RoundRobinPermit<K> {
    fn drop(&mut self) {
        let is_granted = self.waiting.as_mut().is_none_or(|granted| {
            granted.close();
            granted.try_recv().is_ok()
        });
        if is_granted {
            self.turns.end(&self.holder);
        } else {
            self.turns.0.lock().leave(&self.holder, self.ticket);
        }
    }
}

/// A semaphore for each holder, all with the same number of permits.
///
/// Unused semaphores are removed over time. At most twice as many as are in use are kept, or `KEPT_MAX`.
#[derive(Debug)]
pub struct KeyedSemaphores<K> {
    permits: usize,
    /// The semaphore of each key. One lock suffices, because threads contend for the global semaphore instead. With
    /// one, two and four threads, an admission took 129, 265 and 547 ns with one lock. It took 133, 279 and 829 ns with
    /// a sharded map.
    state: Mutex<SemaphoreMap<K>>,
}

#[derive(Debug)]
struct SemaphoreMap<K> {
    semaphores: HashMap<K, Weak<Semaphore>>,
    /// The number of semaphores that are kept before the unused ones are removed.
    kept_max: usize,
}

/// The number of semaphores that are kept whether or not they are used.
const KEPT_MAX: usize = 1_024;

impl<K: Eq + Hash + Clone> KeyedSemaphores<K> {
    /// Creates semaphores with `permits` permits for each holder.
    pub fn new(permits: usize) -> Self {
        let state = SemaphoreMap { semaphores: HashMap::new(), kept_max: KEPT_MAX };
        Self { permits: permits.min(Semaphore::MAX_PERMITS), state: Mutex::new(state) }
    }

    /// Returns the semaphore of one holder. It stays the same as long as it, or a permit of it, is held.
    pub fn get(&self, holder: &K) -> Arc<Semaphore> {
        let mut state = self.state.lock();
        if let Some(semaphore) = state.semaphores.get(holder).and_then(Weak::upgrade) {
            return semaphore;
        }
        if state.semaphores.len() >= state.kept_max {
            state.semaphores.retain(|_, semaphore| semaphore.strong_count() > 0);
            state.kept_max = (2 * state.semaphores.len()).max(KEPT_MAX);
        }
        let semaphore = Arc::new(Semaphore::new(self.permits));
        state.semaphores.insert(holder.clone(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn turns_are_round_robin_by_holder_and_in_order_within_one() {
        let (turns, log) = (RoundRobinSemaphore::new(1, |_| false), Arc::<Mutex<String>>::default());
        let first = turns.wait('z').await;
        let work = async |holder: char, name: char| {
            let _turn = turns.wait(holder).await;
            log.lock().push(name);
            tokio::task::yield_now().await;
        };
        let all = async {
            tokio::join!(work('a', 'a'), work('a', 'b'), work('a', 'c'), work('x', 'x'), work('y', 'y'));
        };
        let rest = async { drop(first) };
        tokio::join!(all, rest);
        assert_eq!(*log.lock(), "axybc");
        assert!(turns.is_empty());
    }

    #[tokio::test]
    async fn holder_can_use_all_turns_unless_limited_to_one() {
        for (has_one, had) in [((|_| false) as fn(&u8) -> bool, 3), (|holder| *holder == 1, 1)] {
            let turns = RoundRobinSemaphore::new(3, has_one);
            let turns_of_one: Vec<_> = (0..5).filter_map(|_| turns.wait(1).now_or_never()).collect();
            assert_eq!(turns_of_one.len(), had);
            assert_eq!(turns.wait(2).now_or_never().is_some(), had < 3, "a free turn goes to any holder");
            drop(turns_of_one);
            assert!(turns.is_empty());
        }
    }

    #[tokio::test]
    async fn new_holder_waits_for_only_one_turn_of_a_busy_holder() {
        let turns = RoundRobinSemaphore::new(1, |_| false);
        let mut turn = turns.wait(1).await;
        let mut many: VecDeque<_> = (0..100).map(|_| turns.wait(1)).collect();
        let mut other = Box::pin(turns.wait(2));
        assert_eq!((turns.waiting(&1), turns.waiting(&2)), ((101, 100), (101, 1)));
        assert!(turn.is_contended() && (&mut other).now_or_never().is_none());
        drop(turn);
        turn = (&mut other).now_or_never().expect("it is next");
        assert!(turn.is_contended());
        drop(turn);
        drop(many.pop_front().expect("one of them").now_or_never().expect("it is its holder's turn"));
        drop((many, other));
        assert!(turns.is_empty(), "no state is kept for a dropped waiter");
    }

    #[test]
    fn semaphore_persists_while_one_of_its_permits_is_in_use() {
        let semaphores = KeyedSemaphores::<u32>::new(2);
        let first = semaphores.get(&1).try_acquire_owned().expect("a permit");
        assert_eq!((semaphores.get(&1).available_permits(), semaphores.get(&2).available_permits()), (1, 2));
        drop(first);
        assert_eq!(semaphores.get(&1).available_permits(), 2);
    }

    #[test]
    fn unused_semaphores_are_removed() {
        let semaphores = KeyedSemaphores::<usize>::new(1);
        let first_ten: Vec<_> = (0..10).map(|holder| semaphores.get(&holder)).collect();
        (10..10 * KEPT_MAX).for_each(|holder| drop(semaphores.get(&holder)));
        assert!(semaphores.state.lock().semaphores.len() <= KEPT_MAX);
        assert!(
            first_ten.iter().enumerate().all(|(holder, semaphore)| Arc::ptr_eq(semaphore, &semaphores.get(&holder)))
        );
    }
}
