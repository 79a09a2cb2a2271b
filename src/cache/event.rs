use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::time::Instant;

use super::CollectionView;
use crate::wire::{self, ObjectRenderer, ObjectRevision, Representation, TranscodeError};
use base::MemoryAccount;
use kubeapi::{EventType, ResourceVersion};

/// One change of one object, as received from upstream, with the previous state that selectors need.
#[derive(Debug)]
pub struct FeedEvent {
    /// The feed's own dense index: one more than that of the previous event.
    pub seq: u64,
    /// Upstream's version of the change. Several events may share a version: a lease revocation deletes many objects at
    /// once (R-VERSION-2).
    pub rv: ResourceVersion,
    /// The event type for an unfiltered watch: `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    /// The object after the change; for `Deleted` its last content, at the deletion's version.
    pub object: Arc<ObjectRevision>,
    /// The object before the change, if it existed. Also `None` for a `Modified` event whose previous state is unknown,
    /// which can be backfilled events.
    pub previous: Option<Arc<ObjectRevision>>,
    pub(super) at: Instant,
    /// The frame for `event_type`. `object.body()` is a slice of the same allocation, so the bytes exist once.
    frame: Bytes,
    derived_frames: DerivedFrameLink,
}

/// A frame other than the one received: for watches whose selector the object entered or left, or in a derived
/// representation. It is encoded at first use, shared by all readers, and dropped with the event. It is empty if
/// readers of the representation see no difference, and are sent no event.
///
/// Alternates form a list, because an event has one or two of many possible ones. The list only grows, so readers never
/// block.
#[derive(Debug)]
struct DerivedFrame {
    kind: DerivedFrameKind,
    /// The server release for which the frame was written.
    release: u32,
    frame: Bytes,
    /// The counter of the bytes of all derived frames of the feed, which count towards the ring's limit.
    total_bytes: Arc<AtomicUsize>,
    next: DerivedFrameLink,
}

/// The representation, the event type, and whether the frame is the difference to the previous object, for downstream
/// proxies.
type DerivedFrameKind = (Representation, EventType, bool);

type DerivedFrameLink = OnceLock<Box<DerivedFrame>>;

/// The memory accounts for the frames that were derived from one feed's events and are kept with them.
#[derive(Debug)]
pub(super) struct DerivedFrameAccounts {
    /// The bytes of the derived frames, which count towards the ring's limit.
    pub(super) bytes: Arc<AtomicUsize>,
    /// The account that is charged until the last sender has released a frame.
    pub(super) account: Arc<MemoryAccount>,
}

/// The cost of making a difference besides one for each byte, in text comparisons: ten microseconds.
const DELTA_COST: usize = 1_000;
/// The length of a frame above which it is sent whole, because its difference is made at once: some milliseconds.
const DELTA_FRAME_BYTES_MAX: usize = 256 << 10;

impl FeedEvent {
    pub(super) fn new(
        seq: u64,
        event_type: EventType,
        object: Arc<ObjectRevision>,
        previous: Option<Arc<ObjectRevision>>,
        frame: Bytes,
        at: Instant,
    ) -> Self {
        let rv = object.rv;
        Self { seq, rv, event_type, object, previous, at, frame, derived_frames: OnceLock::new() }
    }

    /// Returns the same event with the previous state of its object.
    pub(super) fn with_previous(&self, previous: Arc<ObjectRevision>) -> Self {
        let Self { seq, event_type, object, frame, at, .. } = self;
        Self::new(*seq, *event_type, object.clone(), Some(previous), frame.clone(), *at)
    }

    /// Returns the event type that a watch with the view receives for the change, or `None` if it receives none.
    pub fn event_type_for(&self, view: &CollectionView) -> Option<EventType> {
        if view.is_everything() {
            return Some(self.event_type);
        }
        let before = match (&self.previous, self.event_type) {
            (Some(previous), _) => view.matches(previous),
            (None, EventType::Added) => false,
            // The previous state is unknown. For a deletion the last content is the best approximation. A modification
            // is only sent to views that select by key.
            (None, _) => view.matches(&self.object),
        };
        let now = self.event_type != EventType::Deleted && view.matches(&self.object);
        watch_event_type(before, now)
    }

    /// Returns the approximate cost of deciding whether a watch with the view receives the event.
    pub(super) fn cost_for(&self, view: &CollectionView) -> usize {
        view.cost_of(&self.object) + self.previous.as_ref().map_or(0, |previous| view.cost_of(previous))
    }

    /// Returns the frame of this event for a watch that receives it as `event_type`; `None` if its representation shows
    /// no change but the version. `made` counts frames kept for other readers.
    pub(super) fn frame_as(
        &self,
        event_type: EventType,
        renderer: &ObjectRenderer,
        made: &DerivedFrameAccounts,
    ) -> Result<Option<Bytes>, TranscodeError> {
        if event_type == self.event_type && renderer.is_verbatim() {
            return Ok(Some(self.frame.clone()));
        }
        self.derived_frame((event_type, false), renderer, made, || match (event_type, &self.previous) {
            // The object left the selector: the frame has its previous content, at this change's version (R-EVENT-2).
            (EventType::Deleted, Some(previous)) if self.event_type != EventType::Deleted => {
                renderer.frame(event_type, &previous.with_resource_version(self.rv))
            }
            // A reader that receives the event as MODIFIED has been sent the previous state.
            (EventType::Modified, Some(previous)) => {
                renderer.modified_frame(previous, &self.object).map(Option::unwrap_or_default)
            }
            _ => renderer.frame(event_type, self.object.body()),
        })
    }

    /// Returns the frame of this event for a downstream proxy that has the previous object, as the difference to it. If
    /// no previous state is known, or the frame is large, that is the frame itself. The cost of making the difference is
    /// subtracted from `budget`.
    pub(super) fn delta_as(
        &self,
        event_type: EventType,
        renderer: &ObjectRenderer,
        made: &DerivedFrameAccounts,
        budget: &mut usize,
    ) -> Result<Option<Bytes>, TranscodeError> {
        let Some(frame) = self.frame_as(event_type, renderer, made)? else { return Ok(None) };
        // An object that enters the selector is new to the proxy.
        let previous = self.previous.as_ref().filter(|_| event_type != EventType::Added);
        if frame.len() > DELTA_FRAME_BYTES_MAX || previous.is_none() && event_type != EventType::Added {
            return Ok(Some(frame));
        }
        self.derived_frame((event_type, true), renderer, made, || {
            *budget = budget.saturating_sub(DELTA_COST + frame.len());
            let base = previous.map(|previous| Ok((previous.rv, renderer.frame(event_type, previous.body())?)));
            let base = base.transpose()?;
            let delta = wire::delta(event_type, base.as_ref().map(|(rv, base)| (*rv, base.as_ref())), &frame);
            Ok(if delta.len() < frame.len() { delta } else { frame })
        })
    }

    /// Returns a derived frame, written with `make` if it is not kept; `None` if it is empty.
    fn derived_frame(
        &self,
        (event_type, is_delta): (EventType, bool),
        renderer: &ObjectRenderer,
        made: &DerivedFrameAccounts,
        make: impl FnOnce() -> Result<Bytes, TranscodeError>,
    ) -> Result<Option<Bytes>, TranscodeError> {
        let some = |frame: Bytes| Some(frame).filter(|frame| !frame.is_empty());
        let kind = (renderer.representation(), event_type, is_delta);
        let known = self.derived_frames().find(|known| known.kind == kind);
        if let Some(known) = known.filter(|known| known.release == renderer.release()) {
            return Ok(some(known.frame.clone()));
        }
        // If two readers race, a frame is encoded twice. This avoids waiting under a lock.
        let frame = make()?;
        // Frames of one release only are kept, so that their number is bounded.
        if known.is_some() {
            return Ok(some(frame));
        }
        let frame = made.account.charge_bytes(frame);
        made.bytes.fetch_add(frame.len(), Ordering::Relaxed);
        let (release, total_bytes, next) = (renderer.release(), made.bytes.clone(), OnceLock::new());
        self.keep(DerivedFrame { kind, release, frame: frame.clone(), total_bytes, next });
        Ok(some(frame))
    }

    fn keep(&self, derived: DerivedFrame) {
        let kind = derived.kind;
        let (mut derived, mut next) = (Box::new(derived), &self.derived_frames);
        while let Err(rejected) = next.set(derived) {
            let Some(other) = next.get().filter(|other| other.kind != kind) else { return };
            (derived, next) = (rejected, &other.next);
        }
    }

    fn derived_frames(&self) -> impl Iterator<Item = &DerivedFrame> {
        std::iter::successors(self.derived_frames.get(), |derived| derived.next.get()).map(|derived| &**derived)
    }

    /// Returns a DELETED frame for a reader that has lost access to the object. It has the content from before the
    /// event, at the version of the event, so the reader sees nothing newer. `None` if no previous state is known.
    pub(super) fn deleted_frame(&self, renderer: &ObjectRenderer) -> Result<Option<Bytes>, TranscodeError> {
        let frame = |previous: &Arc<ObjectRevision>| {
            renderer.frame(EventType::Deleted, &previous.with_resource_version(self.rv))
        };
        self.previous.as_ref().map(frame).transpose()
    }

    /// Returns the bytes of the frames derived from this event.
    pub(super) fn derived_frame_bytes(&self) -> usize {
        self.derived_frames().map(|derived| derived.frame.len()).sum()
    }

    /// The memory of an event in bytes besides its object and its frame: the struct itself, its reference counts, and
    /// its slots in the ring and in lanes.
    pub(crate) const OVERHEAD_BYTES: usize = size_of::<Self>() + 16 + 16 + 3 * size_of::<usize>() * 2;

    /// Returns the bytes charged to the ring for this event: its frame, the fields read from its object, and its
    /// previous object. The previous object has left the store.
    pub(super) fn charge(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |previous| previous.size());
        self.frame.len() + self.object.size() - self.object.body().len() + previous + size_of::<Self>()
    }
}

impl Drop for DerivedFrame {
    fn drop(&mut self) {
        self.total_bytes.fetch_sub(self.frame.len(), Ordering::Relaxed);
    }
}

/// Returns the event type for a watch, given whether its selector matched before and matches now (R-EVENT-2).
pub fn watch_event_type(matched_before: bool, matches_now: bool) -> Option<EventType> {
    match (matched_before, matches_now) {
        (false, true) => Some(EventType::Added),
        (true, true) => Some(EventType::Modified),
        (true, false) => Some(EventType::Deleted),
        (false, false) => None,
    }
}
