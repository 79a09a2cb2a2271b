use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use slab::Slab;

use super::{CollectionView, FeedEvent};
use base::CoreWaker;
use kubeapi::{LabelConstraint, Selector, ShardKey, ShardSelector};

/// A sequence of events that readers follow: all events of a feed, or those that match its key.
///
/// Lanes hold shared references to the ring's events, so a lane costs one pointer per event. The lane of all events is
/// the ring. A narrow lane holds only the end of its sequence. A reader that is further behind reads the ring until it
/// reaches the beginning of the lane ([`LaneReadResult::Behind`]).
#[derive(Debug)]
pub(super) struct EventLane {
    key: LaneKey,
    events_max: usize,
    log: Mutex<LaneLog>,
}

#[derive(Debug, Default)]
struct LaneLog {
    events: VecDeque<Arc<FeedEvent>>,
    /// The `seq` from which on the lane has all of its events.
    from: u64,
    /// The `seq` after that of the lane's last event that left the ring. A reader before it has lost events.
    lost: u64,
    /// Whether the lane is closed: its feed has started a new history or has ended, so no events follow.
    closed: bool,
    readers: Slab<LaneReader>,
    /// The slots of the parked readers of a lane.
    parked: Vec<usize>,
    /// The view of the most recently added reader. The next reader often has an equal one.
    view: Option<Arc<CollectionView>>,
}

#[derive(Debug, Default)]
struct LaneReader {
    is_proxy: bool,
    /// The reader's core, whose thread wakes it.
    core: Option<Arc<CoreWaker>>,
    parked: Option<ParkedReader>,
}

/// A reader that waits for the next event of a lane.
#[derive(Debug)]
struct ParkedReader {
    waker: Waker,
    /// The index in [`LaneLog::parked`], so that removing one of ten thousand readers does not search the list.
    at: usize,
}

/// The readers to wake once no lock is held, grouped by core.
#[derive(Debug, Default)]
pub(super) struct PendingWakeups {
    /// Readers that belong to no core.
    elsewhere: ReaderWakers,
    cores: Vec<Option<(Arc<CoreWaker>, ReaderWakers)>>,
}

/// Proxies are woken first, because other clients wait for them.
#[derive(Debug, Default)]
struct ReaderWakers {
    proxies: Vec<Waker>,
    others: Vec<Waker>,
}

/// The result of [`EventLane::read`] at a position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LaneReadResult {
    /// At least one event was added to the reader's batch.
    Events {
        /// Whether no more events follow yet, so that the reader's waker is registered.
        caught_up: bool,
    },
    /// There are no events at or after the reader's position yet, and its waker is registered.
    CaughtUp,
    /// The lane begins after the position; the ring has the events in between.
    Behind,
    /// Events at the reader's position have left the ring, or the history has ended.
    Expired,
}

/// The number of events that a reader has not processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingEventCount {
    pub events: usize,
    /// Whether there are others: in the ring before those of the lane, or in a history that the reader's position has
    /// left.
    pub is_lower_bound: bool,
}

impl EventLane {
    /// Creates an empty lane that is complete from `from` on and holds the last `events_max` events of its sequence.
    pub(super) fn new(key: LaneKey, from: u64, events_max: usize) -> Self {
        Self { key, events_max, log: Mutex::new(LaneLog { from, ..LaneLog::default() }) }
    }

    pub(super) fn key(&self) -> &LaneKey {
        &self.key
    }

    /// Adds an event to the lane; pushing the same event again has no effect. Adds parked readers to `wakes`, for the
    /// writer to wake after its critical section.
    pub(super) fn push(&self, event: &Arc<FeedEvent>, wakes: &mut PendingWakeups) {
        let mut log = self.log.lock();
        // A set of values may contain both the value before the change and the one after it.
        if log.events.back().is_some_and(|last| last.seq == event.seq) {
            return;
        }
        if log.events.len() >= self.events_max
            && let Some(oldest) = log.events.pop_front()
        {
            log.from = oldest.seq + 1;
        }
        log.events.push_back(event.clone());
        log.take_parked(wakes);
    }

    /// Prepends events to the lane. They must precede its events without a gap. No reader has a position there, so none
    /// is woken.
    pub(super) fn prepend(&self, events: Vec<Arc<FeedEvent>>) {
        let mut log = self.log.lock();
        log.from = events.first().map_or(log.from, |first| first.seq);
        log.events.reserve(events.len());
        for event in events.into_iter().rev() {
            log.events.push_front(event);
        }
    }

    /// Replaces the lane's event that has the same `seq`, if it is still there. Returns the replaced event.
    pub(super) fn exchange(&self, event: Arc<FeedEvent>) -> Option<Arc<FeedEvent>> {
        let mut log = self.log.lock();
        let at = log.events.binary_search_by_key(&event.seq, |event| event.seq).ok()?;
        Some(std::mem::replace(&mut log.events[at], event))
    }

    /// Wakes every reader that waits for an event, for a bookmark or the end.
    pub(super) fn wake_all(&self, wakes: &mut PendingWakeups) {
        self.log.lock().take_parked(wakes);
    }

    /// Ends the lane: every reader finds its position expired. Returns the events, so that slow readers do not keep
    /// them alive.
    pub(super) fn close(&self, wakes: &mut PendingWakeups) -> VecDeque<Arc<FeedEvent>> {
        let mut log = self.log.lock();
        log.closed = true;
        log.take_parked(wakes);
        std::mem::take(&mut log.events)
    }

    /// Copies up to `events_max` events from position `next` on, and registers `waker` if no more follow.
    ///
    /// Both happen under one lock, so that no event is missed between the read and the registration.
    pub(super) fn read(
        &self,
        next: u64,
        events_max: usize,
        reader: (usize, Option<&Waker>),
        batch: &mut Vec<Arc<FeedEvent>>,
    ) -> LaneReadResult {
        let mut log = self.log.lock();
        if log.closed || next < log.lost {
            return LaneReadResult::Expired;
        }
        if next < log.from {
            return LaneReadResult::Behind;
        }
        let before = batch.len();
        if log.copy(next, events_max, batch) {
            return LaneReadResult::Events { caught_up: false };
        }
        if let (slot, Some(waker)) = reader {
            log.park(slot, waker);
        }
        if batch.len() > before { LaneReadResult::Events { caught_up: true } } else { LaneReadResult::CaughtUp }
    }

    /// Copies events of the ring for a reader of the lane `narrow`, which begins later than `next`. Returns the
    /// position up to which no further events exist, or `None` if the position has expired. The caller must exclude the
    /// writer, or an event could leave the ring between the two locks.
    pub(super) fn read_for(
        &self,
        narrow: &Self,
        next: u64,
        events_max: usize,
        batch: &mut Vec<Arc<FeedEvent>>,
    ) -> Option<u64> {
        let from = {
            let log = narrow.log.lock();
            (!log.closed && next >= log.lost).then_some(log.from)?
        };
        // Events after `next` that have left the ring belonged to other lanes.
        let before = batch.len();
        self.log.lock().copy(next, events_max, batch);
        Some(if batch.len() > before { next } else { from.max(next) })
    }

    /// Removes the lane's event with this `seq`, because it leaves the ring.
    pub(super) fn evict(&self, seq: u64) {
        let mut log = self.log.lock();
        if log.events.front().is_some_and(|event| event.seq == seq) {
            log.events.pop_front();
        }
        log.lost = seq + 1;
    }

    /// Returns the number of events that a reader at position `next` has not processed.
    pub(super) fn waiting(&self, next: u64) -> PendingEventCount {
        let log = self.log.lock();
        let is_lost = log.closed || next < log.lost;
        let processed = if is_lost { 0 } else { log.events.partition_point(|event| event.seq < next) };
        let is_lower_bound = is_lost || next < log.from && !log.events.is_empty();
        PendingEventCount { events: log.events.len() - processed, is_lower_bound }
    }

    /// Adds a reader to the lane. Returns its slot and its view, which equal readers share.
    pub(super) fn add_reader(&self, view: CollectionView) -> (usize, Arc<CollectionView>) {
        let mut log = self.log.lock();
        let known = log.view.take().filter(|known| **known == view);
        let view = known.unwrap_or_else(|| Arc::new(view));
        log.view = Some(view.clone());
        (log.readers.insert(LaneReader { core: CoreWaker::here(), ..LaneReader::default() }), view)
    }

    /// Removes a reader of the lane. Returns whether it was the last one.
    pub(super) fn remove_reader(&self, slot: usize) -> bool {
        let mut log = self.log.lock();
        if let Some(parked) = log.readers.remove(slot).parked {
            log.unpark(parked.at);
        }
        log.readers.is_empty()
    }

    /// Marks the reader in a slot as a proxy: proxies are woken before other readers.
    pub(super) fn note_proxy(&self, slot: usize) {
        if let Some(reader) = self.log.lock().readers.get_mut(slot) {
            reader.is_proxy = true;
        }
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.log.lock().readers.is_empty()
    }

    /// Runs `read` over the events in the lane.
    pub(super) fn with_events<T>(&self, read: impl FnOnce(&VecDeque<Arc<FeedEvent>>) -> T) -> T {
        read(&self.log.lock().events)
    }
}

impl LaneLog {
    /// Copies up to `events_max` events from position `next` on, and returns whether more follow. It checks the end
    /// first, where most readers are.
    fn copy(&self, next: u64, events_max: usize, batch: &mut Vec<Arc<FeedEvent>>) -> bool {
        if self.events.back().is_none_or(|last| last.seq < next) {
            return false;
        }
        let at = match self.events.len().checked_sub(2) {
            // Usually there is one new event.
            Some(last_but_one) if self.events[last_but_one].seq < next => last_but_one + 1,
            _ => self.events.partition_point(|event| event.seq < next),
        };
        batch.extend(self.events.range(at..).take(events_max).cloned());
        self.events.len() - at > events_max
    }

    fn park(&mut self, slot: usize, waker: &Waker) {
        let Some(reader) = self.readers.get_mut(slot) else { return };
        match &mut reader.parked {
            Some(parked) => parked.waker.clone_from(waker),
            None => {
                reader.parked = Some(ParkedReader { waker: waker.clone(), at: self.parked.len() });
                self.parked.push(slot);
            }
        }
    }

    /// Removes an entry of `parked`. The last entry moves into the freed slot.
    fn unpark(&mut self, at: usize) {
        self.parked.swap_remove(at);
        if let Some(moved) = self.parked.get(at).and_then(|slot| self.readers.get_mut(*slot)?.parked.as_mut()) {
            moved.at = at;
        }
    }

    fn take_parked(&mut self, wakes: &mut PendingWakeups) {
        for slot in self.parked.drain(..) {
            let Some(reader) = self.readers.get_mut(slot) else { continue };
            let Some(parked) = reader.parked.take() else { continue };
            let woken = wakes.of_core(reader.core.as_ref());
            if reader.is_proxy { woken.proxies.push(parked.waker) } else { woken.others.push(parked.waker) }
        }
    }
}

impl PendingWakeups {
    fn of_core(&mut self, core: Option<&Arc<CoreWaker>>) -> &mut ReaderWakers {
        let Some(core) = core else { return &mut self.elsewhere };
        let number = core.number();
        if number >= self.cores.len() {
            self.cores.resize_with(number + 1, || None);
        }
        match self.cores[number].get_or_insert_with(|| (core.clone(), ReaderWakers::default())) {
            (known, readers) if Arc::ptr_eq(known, core) => readers,
            // The core belongs to another application in the same process.
            _ => &mut self.elsewhere,
        }
    }

    pub(super) fn wake(self) {
        for (core, readers) in self.cores.into_iter().flatten() {
            core.notify(readers.in_order());
        }
        self.elsewhere.in_order().into_iter().for_each(Waker::wake);
    }
}

impl ReaderWakers {
    fn in_order(self) -> Vec<Waker> {
        let Self { mut proxies, others } = self;
        if proxies.is_empty() {
            return others;
        }
        proxies.extend(others);
        proxies
    }
}

/// Identifies the lane of a reader: one namespace or all, and the narrowest term of its selector.
///
/// The key has both parts, because either may be narrower: a namespace may hold one object or all of them, and so may a
/// label value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaneKey {
    pub(super) namespace: Option<Box<str>>,
    /// The term that the lane covers: every object that the selector matches also matches it. A set of values of one
    /// label is a term for each value, in their order, and a shard one for each node.
    pub(super) terms: Vec<LaneTerm<Box<str>>>,
}

/// What the events of a lane have in common. A lane owns its text, and an event borrows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LaneTerm<T> {
    Whole,
    Name(T),
    /// The value of a field, by the field's index in the resource's table.
    Field(usize, T),
    Label(T, T),
    HasLabel(T),
    /// A node of a binary tree over the hashes of shards: node 1 has all of them, and `2n` and `2n + 1` have the halves
    /// of `n`. The nodes of one depth begin with a power of two.
    Shard(ShardKey, usize),
}

/// The maximum number of terms of a lane, because it is stored under each. A larger set of label values uses the lane
/// of all objects with the label, and a shard of many ranges has larger nodes.
pub(super) const LANE_VALUES_MAX: usize = 16;
/// The depth of the smallest nodes of shards. A range at any place has at most 14 nodes, and an event looks up one node
/// for each depth.
const SHARD_DEPTH: u32 = 8;

/// The fields whose value identifies an object, most precise first. Other fields only classify objects, and one class
/// may contain nearly all of them (`status.phase=Running`).
const IDENTIFYING_FIELDS: [&str; 10] = [
    "involvedObject.uid",
    "regarding.uid",
    "involvedObject.name",
    "regarding.name",
    "spec.podName",
    "status.podIP",
    "spec.clusterIP",
    "spec.nodeName",
    "status.nominatedNodeName",
    "spec.signerName",
];

impl LaneKey {
    /// Returns the narrowest lane that contains every event that the view can match, by a rule that does not depend on
    /// the objects. Negative requirements have no lane, because they match nearly all objects.
    pub(super) fn of(view: &CollectionView) -> Self {
        let selector = view.selector();
        // The first of equal terms wins, so that two spellings of one selector share a lane.
        let terms = match selector.fields.required_name() {
            Some(name) => vec![LaneTerm::Name(name.into())],
            None => match fields(selector)
                .chain(labels(selector))
                .chain(shard(selector))
                .min_by_key(|(selectivity, _)| *selectivity)
            {
                Some((_, terms)) => terms,
                None => vec![LaneTerm::Whole],
            },
        };
        Self { namespace: view.namespace().map(Into::into), terms }
    }

    /// Returns the key of the lane of every event.
    pub(super) fn all() -> Self {
        Self { namespace: None, terms: vec![LaneTerm::Whole] }
    }

    pub(super) fn is_all(&self) -> bool {
        self.namespace.is_none() && self.terms == [LaneTerm::Whole]
    }
}

/// The estimated width of a term, narrow ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneTermSelectivity {
    /// A field that identifies objects, by its index in `IDENTIFYING_FIELDS`.
    Identifying(usize),
    /// A set of label values, ordered by its size.
    LabelIn(usize),
    Shard,
    Field,
    HasLabel,
}

type SelectiveTerms = (LaneTermSelectivity, Vec<LaneTerm<Box<str>>>);

fn fields(selector: &Selector) -> impl Iterator<Item = SelectiveTerms> {
    selector.fields.required_fields().map(|(key, position, value)| {
        // An empty value identifies nothing, because most objects may have none.
        let telling = IDENTIFYING_FIELDS.iter().position(|telling| *telling == key && !value.is_empty());
        let selectivity = telling.map_or(LaneTermSelectivity::Field, LaneTermSelectivity::Identifying);
        (selectivity, vec![LaneTerm::Field(position, value.into())])
    })
}

fn labels(selector: &Selector) -> impl Iterator<Item = SelectiveTerms> {
    selector.labels.constraints().iter().filter_map(|(key, constraint)| match constraint {
        // A contradictory selector matches nothing, and no object has an empty name.
        LabelConstraint::OneOf(values) if values.is_empty() => {
            Some((LaneTermSelectivity::Identifying(0), vec![LaneTerm::Name("".into())]))
        }
        LabelConstraint::OneOf(values) if values.len() <= LANE_VALUES_MAX => {
            let terms = values.iter().map(|value| LaneTerm::Label(key.clone(), value.clone())).collect();
            Some((LaneTermSelectivity::LabelIn(values.len()), terms))
        }
        LabelConstraint::OneOf(_) | LabelConstraint::Other { present: true, .. } => {
            Some((LaneTermSelectivity::HasLabel, vec![LaneTerm::HasLabel(key.clone())]))
        }
        LabelConstraint::Other { .. } | LabelConstraint::Absent => None,
    })
}

fn shard(selector: &Selector) -> Option<SelectiveTerms> {
    let shard = selector.shard.as_ref()?;
    let mut by_depth = (0..=SHARD_DEPTH).rev().map(|depth| shard_nodes(shard, depth));
    // All hashes together are no selection.
    let nodes = by_depth.find(|nodes| nodes.len() <= LANE_VALUES_MAX).filter(|nodes| **nodes != [1])?;
    Some((LaneTermSelectivity::Shard, nodes.into_iter().map(|node| LaneTerm::Shard(shard.key(), node)).collect()))
}

/// Returns the nodes, down to a depth, that have all hashes of a shard: the fewest of each range.
fn shard_nodes(shard: &ShardSelector, depth: u32) -> Vec<usize> {
    let first = 1 << depth;
    let mut nodes = Vec::new();
    for range in shard.ranges() {
        // As in a segment tree: nodes that are not halves of one node are taken at this depth.
        let (mut low, mut high) = (shard_node(range.start, first), shard_node(range.end - 1, first) + 1);
        while low < high {
            if low % 2 == 1 {
                nodes.push(low);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                nodes.push(high);
            }
            (low, high) = (low / 2, high / 2);
        }
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Returns the node that has a hash, at the depth whose nodes begin with `first`.
pub(super) fn shard_node(hash: impl Into<u128>, first: usize) -> usize {
    first + usize::try_from((hash.into() * first as u128) >> 64).expect("less than first, because a hash has 64 bits")
}
