//! The beginning of a feed's history, and the check that earlier events lead to it. Earlier events are read from
//! upstream for clients that resume from there. They are used only if they provably lead to the list.
//!
//! A list contains the state at its version, without the events that led to it. Upstream's own history contains those
//! events until it is compacted. They are put in front of the ring if they join its history without a gap and without a
//! contradiction:
//!
//! 1. The events are all events after one version, in order, up to the beginning of the history.
//! 2. Each event follows from the previous event of the same object: no object is added twice or changed after
//!    deletion.
//! 3. The last event of each object leaves it in its state at the beginning of the history.
//! 4. Each object that exists at that point with a version above the start version has an event.
//!
//! The state of an object before its first event is unknown, unless that event adds or deletes it. So a watch may start
//! before such a `Modified` event only if its view selects by key
//! ([`CollectionView::depends_only_on_key`](super::CollectionView::depends_only_on_key)).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::lane::{EventLane, LaneReadResult};
use super::shared::SharedFeedCache;
use super::{BackfilledEvents, CacheReader, EventRingHeadroom, FeedEvent, FeedSnapshot, MemoryKind, ObjectChange};
use crate::wire::ObjectRevision;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The beginning of a feed's history. Backfilled events must lead to it.
#[derive(Debug)]
pub struct HistoryStart {
    /// The version that the first event follows.
    pub at: ResourceVersion,
    pub headroom: EventRingHeadroom,
    /// The `seq` of the first event of the history.
    first: u64,
    /// The time at which the first event was received.
    since: Instant,
    /// The state of the feed when this value was created.
    state: FeedSnapshot,
    /// The objects that have changed since the beginning, with their state at the beginning.
    changed: HashMap<ObjectKey, ObjectStateAtStart>,
    shared: Arc<SharedFeedCache>,
}

/// A difference between backfilled events and the feed's history in one object, which shows that they are not from the
/// same history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("events of {key} up to resourceVersion {rv} do not lead to the cached object")]
pub struct BackfillMismatch {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
}

/// The state of an object at the beginning of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectStateAtStart {
    Absent,
    At(ResourceVersion),
    /// The object existed at an unknown version.
    Present,
}

/// The number of events that are read under one lock.
const AT_A_TIME: usize = 1_024;

impl CacheReader {
    /// Returns whether earlier events could be put in front of the feed's history.
    pub fn can_backfill(&self) -> bool {
        self.shared.timeline.read().can_backfill()
    }

    /// Returns the events whose objects' previous state is unknown, oldest first.
    pub fn events_without_previous(&self) -> Vec<Arc<FeedEvent>> {
        let (all, seqs) = {
            let timeline = self.shared.timeline.read();
            let seqs = timeline.ring.first_seq()..timeline.ring.seq_after(timeline.base);
            (timeline.ring.all.clone(), seqs)
        };
        let mut found = Vec::new();
        // Events that have left the ring during the read need no previous state.
        let _ = read_all(&all, seqs, |event| {
            if event.event_type == EventType::Modified && event.previous.is_none() {
                found.push(event.clone());
            }
        });
        found
    }

    /// Returns the beginning of the feed's history, or `None` if no events can be put in front of it.
    pub fn history_start(&self) -> Option<HistoryStart> {
        let (mut start, all, seqs, base) = {
            let timeline = self.shared.timeline.read();
            if !timeline.can_backfill() {
                return None;
            }
            let (first, end) = (timeline.ring.first_seq(), timeline.ring.next_seq);
            let start = HistoryStart {
                at: timeline.ring.floor,
                headroom: timeline.ring.headroom(&self.shared.config.get(), self.shared.derived_frame_bytes()),
                first,
                since: Instant::now(),
                state: timeline.snapshot(),
                changed: HashMap::new(),
                shared: self.shared.clone(),
            };
            (start, timeline.ring.all.clone(), first..end, timeline.base)
        };
        read_all(&all, seqs, |event| {
            start.since = start.since.min(event.at);
            start.changed.entry(event.object.key.clone()).or_insert_with(|| ObjectStateAtStart::before(event, base));
        })?;
        Some(start)
    }
}

/// Reads the events in a range of numbers in batches, so that the writer is not blocked. Returns `None` if the oldest
/// have left the ring during the read, or if the feed has ended.
fn read_all(lane: &EventLane, seqs: Range<u64>, mut each: impl FnMut(&Arc<FeedEvent>)) -> Option<()> {
    let (mut next, mut events) = (seqs.start, Vec::new());
    while next < seqs.end {
        events.clear();
        let LaneReadResult::Events { .. } = lane.read(next, AT_A_TIME, (usize::MAX, None), &mut events) else {
            return None;
        };
        events.iter().filter(|event| event.seq < seqs.end).for_each(&mut each);
        next = events.last()?.seq + 1;
    }
    Some(())
}

impl HistoryStart {
    /// Builds backfilled events from the changes after `from`.
    ///
    /// # Errors
    /// The changes are out of order, do not lead to this beginning, or a change between them is missing.
    pub fn joined_by(
        &self,
        from: ResourceVersion,
        changes: Vec<ObjectChange>,
    ) -> Result<BackfilledEvents, BackfillMismatch> {
        let first = self.first - changes.len() as u64;
        let mut last = HashMap::<ObjectKey, (ResourceVersion, Option<Arc<ObjectRevision>>)>::new();
        let (mut at, mut known) = (from, from);
        let mut events = Vec::with_capacity(changes.len());
        for (seq, ObjectChange { event_type, object, frame }) in (first..).zip(changes) {
            let (key, rv, object) = (object.key.clone(), object.rv, Arc::new(object));
            let is_next = rv > from && at <= rv && rv <= self.at;
            let previous = match (last.get(&key), event_type) {
                _ if !is_next => return Err(BackfillMismatch { key, rv }),
                (Some((then, _)), _) if *then >= rv => return Err(BackfillMismatch { key, rv }),
                (Some((_, Some(before))), EventType::Modified | EventType::Deleted) => Some(before.clone()),
                (Some((_, None)) | None, EventType::Added) => None,
                // A DELETED event carries the object's last content.
                (None, EventType::Deleted) => Some(object.clone()),
                (None, EventType::Modified) => {
                    known = rv;
                    None
                }
                _ => return Err(BackfillMismatch { key, rv }),
            };
            let account = self.shared.share.accounts.of(MemoryKind::Objects);
            let frame =
                frame.unwrap_or_else(|| account.charge_bytes(self.shared.envelope.frame(event_type, object.body())));
            let left = (event_type != EventType::Deleted).then(|| object.clone());
            last.insert(key, (rv, left));
            events.push(Arc::new(FeedEvent::new(seq, event_type, object, previous, frame, self.since)));
            at = rv;
        }
        self.verify(from, &last)?;
        Ok(BackfilledEvents { from, until: self.at, known, events })
    }

    /// Checks that the last event of each object leaves its state at the beginning, and that every object changed after
    /// `from` has an event.
    fn verify(
        &self,
        from: ResourceVersion,
        last: &HashMap<ObjectKey, (ResourceVersion, Option<Arc<ObjectRevision>>)>,
    ) -> Result<(), BackfillMismatch> {
        for (key, (rv, left)) in last {
            let agrees = match self.then(key) {
                ObjectStateAtStart::Absent => left.is_none(),
                ObjectStateAtStart::At(then) => left.is_some() && then == *rv,
                ObjectStateAtStart::Present => left.is_some(),
            };
            if !agrees {
                return Err(BackfillMismatch { key: key.clone(), rv: *rv });
            }
        }
        let unchanged = self.state.iter().filter(|object| !self.changed.contains_key(&object.key));
        let unchanged = unchanged.map(|object| (&object.key, ObjectStateAtStart::At(object.rv)));
        for (key, then) in unchanged.chain(self.changed.iter().map(|(key, then)| (key, *then))) {
            if let ObjectStateAtStart::At(rv) = then
                && rv > from
                && !last.contains_key(key)
            {
                return Err(BackfillMismatch { key: key.clone(), rv });
            }
        }
        Ok(())
    }

    fn then(&self, key: &ObjectKey) -> ObjectStateAtStart {
        let unchanged =
            || self.state.get(key).map_or(ObjectStateAtStart::Absent, |object| ObjectStateAtStart::At(object.rv));
        self.changed.get(key).copied().unwrap_or_else(unchanged)
    }
}

impl ObjectStateAtStart {
    /// Returns the state of the event's object before the event, in a history whose list was at `base`.
    fn before(event: &FeedEvent, base: ResourceVersion) -> Self {
        match (&event.previous, event.event_type) {
            (_, EventType::Added) => Self::Absent,
            // The event is itself backfilled, so the previous state may be unknown.
            _ if event.rv <= base => Self::Present,
            (Some(previous), _) => Self::At(previous.rv),
            (None, _) => Self::Absent,
        }
    }
}
