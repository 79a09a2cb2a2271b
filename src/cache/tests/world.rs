//! The real cache and the model side by side: both take every step, and all results are compared.

use std::collections::VecDeque;
use std::sync::Arc;

use super::fixture::{Pod, Seen, WakeCounter, change, pods, ring, rv, seen, snapshot};
use super::model::{Fact, Model, State, Verdict, visible};
use super::want::{Lane, Want};
use crate::cache::{
    CacheReader, CacheWriter, FeedCursor, FeedEvent, FeedSnapshot, OpenedWatch, PullResult, WatchStartPosition,
};
use kubeapi::EventType::{self, Added, Deleted, Modified};

pub(super) struct World {
    pub(super) model: Model,
    writer: CacheWriter,
    pub(super) reader: CacheReader,
    pub(super) followers: Vec<Option<Follower>>,
    /// Number of upstream bookmarks.
    bookmarks: u32,
    /// Content is never repeated, so that stale content is detected.
    notes: u32,
    /// Whether sizes are compared after every step.
    weigh: bool,
}

/// One reader, and its expected position.
pub(super) struct Follower {
    want: Want,
    cursor: FeedCursor,
    epoch: u32,
    /// Events up to this version are skipped.
    after: u64,
    /// Index of the first change that it has not processed.
    at: usize,
    /// Its state, if it began with one: initial events and every delivered event applied.
    known: Option<State>,
    wakes: Arc<WakeCounter>,
    woken: usize,
    parked: bool,
    /// It stopped before the end of its batch, so it may or may not be woken.
    perhaps: bool,
    expired: bool,
}

impl World {
    /// Creates a cache with a ring of `events` events, listed empty at version `base`.
    pub(super) fn new(events: usize, base: u64) -> Self {
        let (writer, reader) = pods(ring(events));
        let mut world = Self {
            model: Model::new(events),
            writer,
            reader,
            followers: Vec::new(),
            bookmarks: 0,
            notes: 0,
            weigh: true,
        };
        world.replace(base, State::new());
        world
    }

    /// The same without size checks, for tests that create a million worlds.
    pub(super) fn light(events: usize, base: u64) -> Self {
        Self { weigh: false, ..Self::new(events, base) }
    }

    /// Returns `pod` with new content.
    pub(super) fn noted(&mut self, pod: Pod) -> Pod {
        self.notes += 1;
        Pod { note: self.notes, ..pod }
    }

    pub(super) fn put(&mut self, pod: Pod, rv: u64) {
        let pod = self.noted(pod);
        let event_type = if self.model.now.contains_key(&pod.key()) { Modified } else { Added };
        self.apply(event_type, pod, rv);
    }

    /// Deletes the object upstream; an unknown object has the content that the event carries.
    pub(super) fn delete(&mut self, pod: Pod, rv: u64) {
        let last = self.model.now.get(&pod.key()).map_or(pod, |(pod, _)| *pod);
        self.apply(Deleted, last, rv);
    }

    /// Applies an upstream change, valid or not, and compares the result with the model's.
    pub(super) fn apply(&mut self, event_type: EventType, pod: Pod, rv: u64) {
        let verdict = self.model.judge(&pod, rv);
        let answer = self.writer.apply([change(event_type, &pod, rv)]);
        let answer = match answer {
            Ok(1) => Verdict::Fresh,
            Ok(_) => Verdict::Duplicate,
            Err(error) => {
                assert_eq!((error.rv.0, error.progress.0), (rv, self.model.progress));
                Verdict::OutOfOrder
            }
        };
        assert_eq!(answer, verdict, "{event_type} {pod:?} at {rv}; the model is {:?}", self.model);
        if verdict == Verdict::Fresh {
            let fact = self.model.apply(event_type, pod, rv);
            self.ring_bells(|follower| fact.concerns(follower.want.lane()));
        }
        self.check();
    }

    pub(super) fn advance(&mut self, to: u64, announce: bool) {
        self.writer.advance(rv(to), announce);
        self.model.progress = self.model.progress.max(to);
        if announce {
            self.bookmarks += 1;
            self.ring_bells(|_| true);
        }
        self.check();
    }

    pub(super) fn replace(&mut self, to: u64, list: State) {
        let listed: Vec<_> = list.values().copied().collect();
        self.writer.replace(snapshot(to, &listed));
        self.model.replace(to, list);
        self.ring_bells(|_| true);
        self.check();
    }

    fn ring_bells(&mut self, concerned: impl Fn(&Follower) -> bool) {
        for follower in self.followers.iter_mut().flatten() {
            if !concerned(follower) {
                continue;
            }
            let perhaps = std::mem::take(&mut follower.perhaps) && follower.wakes.woken() > follower.woken;
            if std::mem::take(&mut follower.parked) || perhaps {
                follower.woken += 1;
            }
        }
    }

    /// Opens a watch after `after`; it must fail exactly if the version is too old.
    pub(super) fn open_after(&mut self, want: Want, after: u64) -> Option<usize> {
        let floor = self.model.floor();
        match self.reader.open(WatchStartPosition::After(rv(after)), want.view()) {
            Err(too_old) => {
                assert!(after < floor, "{after} is in the ring, which starts at {floor}");
                assert_eq!((too_old.requested.0, too_old.floor.0), (after, floor));
                None
            }
            Ok(opened) => {
                assert!(after >= floor, "{after} is not in the ring, which starts at {floor}");
                assert!(opened.snapshot.is_none());
                Some(self.follow(want, opened, after, None))
            }
        }
    }

    /// Opens a watch with the current state.
    pub(super) fn open_current(&mut self, want: Want) -> usize {
        let opened =
            self.reader.open(WatchStartPosition::Current, want.view()).expect("the current state is never too old");
        let snapshot = opened.snapshot.as_ref().expect("a state was asked for");
        assert_eq!(snapshot.rv.0, self.model.progress);
        assert_shows(snapshot, &self.model.now);
        assert_selects(snapshot, &self.model.now, want);
        let known = self.model.now.iter().filter(|(_, (pod, _))| want.matches(pod));
        let known = known.map(|(key, revision)| (key.clone(), *revision)).collect();
        // After everything in the state, which does not include siblings of its last event.
        self.follow(want, opened, 0, Some(known))
    }

    /// Opens a watch at the end of the history.
    pub(super) fn open_at_end(&mut self, want: Want) -> usize {
        let opened = self.reader.open_at_end(want.view());
        assert!(opened.snapshot.is_none());
        assert_eq!(opened.cursor.start().0, self.model.progress);
        let place = self.follow(want, opened, 0, None);
        self.followers[place].as_mut().expect("just opened").at = self.model.facts.len();
        place
    }

    fn follow(&mut self, want: Want, opened: OpenedWatch, after: u64, known: Option<State>) -> usize {
        let epoch = self.model.epoch;
        let at = if known.is_some() {
            self.model.facts.len()
        } else {
            self.model.facts.iter().position(|fact| fact.rv > after).unwrap_or(self.model.facts.len())
        };
        let follower = Follower {
            want,
            cursor: opened.cursor,
            epoch,
            after,
            at,
            known,
            wakes: Arc::default(),
            woken: 0,
            parked: false,
            perhaps: false,
            expired: false,
        };
        self.followers.push(Some(follower));
        self.check();
        self.followers.len() - 1
    }

    pub(super) fn drop_follower(&mut self, index: usize) {
        self.followers[index] = None;
        self.check();
    }

    /// Pulls once. The result must be the model's, or an expiry that the model confirms.
    pub(super) fn pull(&mut self, index: usize, room: usize) {
        let Some(follower) = self.followers.get_mut(index).and_then(Option::as_mut) else { return };
        let mut frames = Vec::new();
        let waker = follower.wakes.waker();
        let pull = follower.cursor.pull(room, Some(&waker), &mut frames);
        let got: Vec<Seen> = frames.iter().map(seen).collect();
        (follower.parked, follower.perhaps) = (false, false);
        if follower.is_lost(&self.model) {
            assert_eq!(pull, PullResult::Expired { oldest: rv(self.model.floor()) }, "got {got:?}");
            assert!(got.is_empty(), "events after a gap: {got:?}");
            follower.expired = true;
            // It may still be parked from an earlier pull, and is then woken once more.
            follower.perhaps = true;
            return;
        }
        let due = self.model.reported(follower.want, follower.after, follower.at);
        if due.is_empty() {
            let PullResult::CaughtUp { progress } = pull else {
                panic!("{pull:?}, but there is nothing to tell: {got:?}")
            };
            assert!(got.is_empty(), "received {got:?} for no event");
            assert_eq!((progress.rv.0, progress.bookmarks), (self.model.progress, self.bookmarks));
            follower.at = self.model.facts.len();
            follower.parked = true;
            follower.check_known(&self.model);
            return;
        }
        let fitting = fitting(&due, room);
        let expected: Vec<Seen> = due.iter().take(fitting).map(|(_, seen)| *seen).collect();
        assert_eq!(got, expected, "{:?} of {:?}", follower.want, self.model);
        let full = frames.iter().map(bytes::Bytes::len).sum::<usize>() >= room;
        follower.at = if full { due[fitting - 1].0 + 1 } else { self.model.facts.len() };
        follower.take_in(&got);
        let PullResult::Frames { last, caught_up, .. } = pull else { panic!("{pull:?} with {got:?}") };
        assert_eq!(Some(last.0), got.last().map(|seen| seen.rv));
        // A narrow lane may begin after the reader's position: events from the ring do not show that they are all.
        assert!(!full || caught_up.is_none() || fitting == due.len(), "{caught_up:?}, and more is due: {due:?}");
        assert!(full || caught_up.is_some() || follower.want.lane() != Lane::ALL, "nothing more is due");
        (follower.parked, follower.perhaps) = (caught_up.is_some(), caught_up.is_none());
        if let Some(progress) = caught_up {
            assert_eq!((progress.rv.0, progress.bookmarks), (self.model.progress, self.bookmarks));
            follower.at = self.model.facts.len();
            follower.check_known(&self.model);
        }
    }

    /// Reads to the end for every reader.
    pub(super) fn finish(&mut self) {
        for index in 0..self.followers.len() {
            for _ in 0..=self.model.facts.len() {
                let at_end = |follower: &Follower| follower.expired || follower.parked;
                if self.followers[index].as_ref().is_none_or(at_end) {
                    break;
                }
                self.pull(index, 1);
            }
            let done = |follower: &Follower| follower.expired || follower.parked;
            assert!(self.followers[index].as_ref().is_none_or(done), "a reader does not come to an end");
        }
    }

    /// Checks that a snapshot of a version is S(rv) or absent.
    pub(super) fn read_at(&self, at: u64) {
        let last_event = self.model.facts.last().map_or(self.model.base_rv, |fact| fact.rv);
        let found = self.reader.snapshot_at(rv(at));
        assert_eq!(found.is_some(), last_event <= at && at <= self.model.progress, "at {at}");
        if let Some(snapshot) = found {
            assert_eq!(snapshot.rv.0, at);
            assert_shows(&snapshot, &self.model.state_at(at));
        }
    }

    /// Checks the invariants: wake-ups, lanes, sizes.
    fn check(&self) {
        for follower in self.followers.iter().flatten() {
            assert_eq!(follower.wakes.woken(), follower.woken, "wake-ups of {:?}", follower.want);
        }
        if self.weigh {
            self.check_sizes();
        }
    }

    fn check_sizes(&self) {
        let stats = self.reader.stats();
        let held = &self.model.facts[self.model.evicted()..];
        assert_eq!((stats.objects, stats.events), (self.model.now.len(), held.len()));
        assert_eq!((stats.floor.0, stats.progress.0), (self.model.floor(), self.model.progress));
        assert_eq!(stats.object_bytes, self.model.now.values().map(|(pod, rv)| pod.body(*rv).len()).sum::<usize>());
        let charged = |events: &VecDeque<Arc<FeedEvent>>| events.iter().map(|event| event.charge()).sum::<usize>();
        assert_eq!(stats.event_bytes, self.reader.shared.timeline.read().ring.all.with_events(charged));
        assert!(stats.event_bytes >= held.iter().map(frame_len).sum::<usize>());
        assert_eq!(stats.lanes, self.lanes_in_use());
        let now = self.reader.snapshot();
        assert_eq!((now.rv.0, now.len()), (self.model.progress, self.model.now.len()));
    }

    /// Returns the number of narrow lanes of this history that have readers.
    fn lanes_in_use(&self) -> usize {
        let mut lanes: Vec<Lane> = Vec::new();
        for follower in self.followers.iter().flatten().filter(|follower| follower.epoch == self.model.epoch) {
            let lane = follower.want.lane();
            if lane != Lane::ALL && !lanes.contains(&lane) {
                lanes.push(lane);
            }
        }
        lanes.len()
    }
}

impl Follower {
    /// Returns whether an event at its position has been evicted, or the history has ended. Only then may it expire.
    fn is_lost(&self, model: &Model) -> bool {
        let evicted = model.facts.get(self.at..model.evicted()).unwrap_or_default();
        self.expired || self.epoch != model.epoch || evicted.iter().any(|fact| fact.concerns(self.want.lane()))
    }

    /// Returns whether it has received everything.
    pub(super) fn has_all(&self) -> bool {
        self.parked && !self.expired
    }

    /// Applies the events as a client would. Their types must fit its state.
    fn take_in(&mut self, events: &[Seen]) {
        let Some(known) = &mut self.known else { return };
        for Seen { event_type, rv, pod } in events {
            let had = known.contains_key(&pod.key());
            match event_type {
                Deleted => drop(known.remove(&pod.key())),
                _ => drop(known.insert(pod.key(), (*pod, *rv))),
            }
            // A deletion of an object that was unknown to the cache may be delivered.
            assert!(had == (*event_type != Added) || *event_type == Deleted, "{event_type} of {pod:?}, had: {had}");
        }
    }

    /// Checks that a reader that has received everything has the complete state.
    fn check_known(&self, model: &Model) {
        let Some(known) = &self.known else { return };
        assert_eq!(visible(known, self.want), visible(&model.now, self.want), "{:?}", self.want);
        assert_eq!(known.len(), visible(known, self.want).len(), "objects outside of the view");
    }
}

/// Returns how many events go into a batch: until the room is used up, and at least one.
fn fitting(due: &[(usize, Seen)], room: usize) -> usize {
    let mut bytes = 0;
    for (n, (_, seen)) in due.iter().enumerate() {
        bytes += seen.pod.frame(seen.event_type, seen.rv).len();
        if bytes >= room {
            return n + 1;
        }
    }
    due.len()
}

/// Returns the minimum charge of an event: its frame for an unfiltered watch.
fn frame_len(fact: &Fact) -> usize {
    let seen = fact.reported_to(Want::Everything).expect("everybody who sees everything sees it");
    seen.pod.frame(seen.event_type, seen.rv).len()
}

fn assert_shows(snapshot: &FeedSnapshot, state: &State) {
    let shown: Vec<_> = snapshot.iter().map(|object| (object.key.to_string(), object.rv.0, object.body())).collect();
    let expected: Vec<_> = state.iter().map(|(key, (pod, rv))| (key.clone(), *rv, pod.body(*rv))).collect();
    assert_eq!(shown.len(), expected.len());
    for ((key, rv, body), expected) in shown.into_iter().zip(expected) {
        assert_eq!((key, rv, &**body), (expected.0, expected.1, expected.2.as_bytes()));
    }
}

fn assert_selects(snapshot: &FeedSnapshot, state: &State, want: Want) {
    let view = want.view();
    let selected: Vec<_> =
        snapshot.select(&view, true, None).map(|object| (object.key.to_string(), object.rv.0)).collect();
    assert_eq!(selected, visible(state, want), "{want:?}");
}
