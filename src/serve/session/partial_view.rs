//! The view of a watch that shows only some namespaces of a collection, and more or fewer as rights change.
//!
//! **Invariant.** Between two frames, the client knows each namespace that it is shown as it is at the watch's place.
//! So a namespace comes or goes at one place: the watch is read up to a mark, which is a state and the place behind it.
//! There the objects of a namespace that comes are told as ADDED, and those of one that goes as DELETED.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::portion::Portion;
use crate::auth::{Readable, Verdict, VerdictChanges};
use crate::cache::{CacheReader, Cursor, Event, FilteredEvent, Mark, OpenedWatch, Pin as Pinned, Pull, Snapshot, View};
use crate::listing::cost;
use crate::wire::{Object, Refused};
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The namespaces that a watch shows, and those that come or go.
pub(super) struct PartialView {
    readable: Readable,
    places: BTreeMap<Arc<str>, Place>,
    turn: Option<Turn>,
    /// Whether verdicts have changed since namespaces were last looked at.
    stale: bool,
    changed: Pin<Box<dyn Future<Output = VerdictChanges> + Send>>,
}

/// Where a namespace stands with the client. A namespace without a place has not come up: it had nothing to tell.
#[derive(Debug)]
enum Place {
    Shown,
    Hidden,
    Leaving(Leaving),
}

/// A namespace that is not shown any more, of which the client still knows objects.
#[derive(Debug, Default)]
struct Leaving {
    /// Objects that have changed since: the client was told that they are gone, or never knew them.
    touched: HashSet<ObjectKey>,
    /// If it was still being told: the client knows only keys before this one.
    before: Option<String>,
}

/// A place at which namespaces come and go.
struct Turn {
    mark: Mark,
    pin: Option<Pinned>,
    coming: VecDeque<Arc<str>>,
    going: Option<VecDeque<Arc<str>>>,
    /// The first key of the next object to be told, in the first namespace that comes or goes.
    next: String,
    /// Set if the mark is the state that the watch begins with.
    begins: Option<Begins>,
    /// Frames were put that are older than the mark, or that no other watch is told.
    told_older: bool,
}

/// How a watch begins.
#[derive(Debug, Clone, Copy)]
struct Begins {
    end_bookmark: bool,
}

/// What happens to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Told,
    /// Its namespace is shown from here on.
    Enters,
    Hidden,
    /// Its namespace is hidden from here on, and the client must forget what it knows of it.
    Leaves,
    /// The client must forget what it knows of the object.
    TakenBack,
    /// Nobody knows yet; it is asked.
    Undecided,
}

/// Where a turn leaves the watch.
pub(super) struct TurnEnd {
    /// Version of the mark.
    pub(super) at: ResourceVersion,
    /// Whether frames of the turn were older than the mark, so that the client must be told where the watch is.
    pub(super) told_older: bool,
}

impl PartialView {
    /// Makes the view of a watch. Its first turn tells the state that it begins with, which `pin` keeps. `namespaces`
    /// are those with something that the watch would see.
    pub(super) fn new(
        readable: Readable,
        opened: &OpenedWatch,
        namespaces: Vec<Arc<str>>,
        end_bookmark: bool,
        pin: Option<Pinned>,
    ) -> Self {
        let mut coming = VecDeque::new();
        let mut places = BTreeMap::new();
        for namespace in namespaces {
            match readable.verdict(&namespace) {
                Some(Verdict::Allowed) if opened.snapshot.is_some() => {
                    coming.push_back(namespace.clone());
                    places.insert(namespace, Place::Hidden)
                }
                Some(Verdict::Allowed) => places.insert(namespace, Place::Shown),
                Some(Verdict::Denied | Verdict::Unclear) => places.insert(namespace, Place::Hidden),
                // It came up after the watch's place.
                None => None,
            };
        }
        let turn = opened.snapshot.clone().map(|snapshot| Turn {
            mark: opened.cursor.mark_here(snapshot),
            pin,
            coming,
            going: None,
            next: String::new(),
            begins: Some(Begins { end_bookmark }),
            told_older: false,
        });
        let changed = Box::pin(readable.verdicts().changed());
        Self { readable, places, turn, stale: true, changed }
    }

    /// Notices verdicts that have changed. Whoever polls is woken by later changes.
    pub(super) fn notice(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(verdicts) = self.changed.as_mut().poll(cx) {
            self.changed = Box::pin(verdicts.changed());
            self.stale = true;
        }
    }

    /// Whether namespaces come or go: then the watch must be read up to a mark, where they are told.
    pub(super) fn turns(&mut self, cursor: &Cursor, pin: impl FnOnce(&Snapshot) -> Pinned) -> bool {
        if !std::mem::take(&mut self.stale) {
            return self.turn.is_some();
        }
        let mut goes = false;
        let mut coming = VecDeque::new();
        for (namespace, place) in &mut self.places {
            let allowed = self.readable.verdict(namespace) == Some(Verdict::Allowed);
            match place {
                Place::Shown if !allowed => {
                    *place = Place::Leaving(Leaving::default());
                    goes = true;
                }
                Place::Hidden if allowed => coming.push_back(namespace.clone()),
                Place::Leaving(_) => goes = true,
                Place::Shown | Place::Hidden => {}
            }
        }
        if self.turn.is_none() && (goes || !coming.is_empty()) {
            let mark = cursor.mark();
            let pin = Some(pin(&mark.snapshot));
            self.turn =
                Some(Turn { mark, pin, coming, going: None, next: String::new(), begins: None, told_older: false });
        }
        self.turn.is_some()
    }

    /// Notes that the watch waits for a verdict, so that its client is not blamed for not reading.
    pub(super) fn wait(&self) {
        self.turn.iter().flat_map(|turn| &turn.pin).for_each(Pinned::rests);
    }

    /// Whether nothing comes or goes, as far as is known.
    pub(super) fn is_settled(&self) -> bool {
        self.turn.is_none() && !self.stale
    }

    /// Reads on, up to the mark of a turn if there is one.
    pub(super) fn pull(
        &mut self,
        cursor: &mut Cursor,
        places_left: (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
    ) -> Pull {
        let Self { readable, places, turn, stale, .. } = self;
        let until = turn.as_ref().map(|turn| &turn.mark);
        cursor.pull_sifted(until, places_left, waker.filter(|_| until.is_none()), batch, |event, seen| {
            sift(places, readable, event, seen, stale)
        })
    }

    /// Tells what comes and goes at the mark, which the watch has been read up to.
    pub(super) fn tell(
        &mut self,
        cursor: &Cursor,
        reader: &CacheReader,
        (room, looks): (usize, &mut usize),
        batch: &mut Vec<Bytes>,
    ) -> Result<Portion<TurnEnd>, Refused> {
        let Self { readable, places, turn, stale, .. } = self;
        let Some(turn) = turn else { return Ok(Portion::More) };
        turn.pin.iter().for_each(Pinned::told);
        let mut page = Page { cursor, reader, room, looks, batch };
        if turn.come(readable, places, &mut page)? == Portion::More {
            return Ok(Portion::More);
        }
        let at = turn.mark.snapshot.rv;
        if let Some(Begins { end_bookmark: true }) = turn.begins {
            page.batch.push(reader.bookmark(at, true, cursor.renderer())?);
            turn.begins = Some(Begins { end_bookmark: false });
        }
        if turn.go(places, &mut page)? == Portion::More {
            return Ok(Portion::More);
        }
        let end = TurnEnd { at, told_older: turn.told_older };
        self.turn = None;
        // What changed meanwhile gets a turn of its own.
        *stale = true;
        Ok(Portion::Last(end))
    }
}

/// The batch that a turn's frames go to.
struct Page<'a> {
    cursor: &'a Cursor,
    reader: &'a CacheReader,
    room: usize,
    looks: &'a mut usize,
    batch: &'a mut Vec<Bytes>,
}

impl Page<'_> {
    /// Puts the objects of a namespace that the watch would see, as frames. If there is no more room, or no more may be
    /// looked at, it returns the key to go on from.
    fn put(
        &mut self,
        snapshot: &Snapshot,
        namespace: &str,
        start: &str,
        frame: impl Fn(&Self, &Arc<Object>) -> Result<Option<Bytes>, Refused>,
    ) -> Result<Option<String>, Refused> {
        let view = View::new(Some(namespace), self.cursor.view().selector().clone());
        let (mut bytes, is_dear) = (self.batch.iter().map(Bytes::len).sum::<usize>(), view.is_dear());
        for object in snapshot.looked_at(&view, true, Some(start).filter(|start| !start.is_empty())) {
            if *self.looks == 0 || (!self.batch.is_empty() && bytes >= self.room) {
                return Ok(Some(object.key.as_str().to_owned()));
            }
            let matches = view.matches(object);
            if is_dear || !matches {
                *self.looks = self.looks.saturating_sub(view.cost_of(object));
            }
            if !matches {
                continue;
            }
            if let Some(frame) = frame(self, object)? {
                if !self.cursor.renderer().is_verbatim() {
                    *self.looks = self.looks.saturating_sub(cost::DERIVED);
                }
                bytes += frame.len();
                self.batch.push(frame);
            }
        }
        Ok(None)
    }
}

impl Turn {
    /// Tells what comes.
    fn come(
        &mut self,
        readable: &Readable,
        places: &mut BTreeMap<Arc<str>, Place>,
        page: &mut Page<'_>,
    ) -> Result<Portion, Refused> {
        while let Some(namespace) = self.coming.front().cloned() {
            let started = std::mem::take(&mut self.next);
            if readable.verdict(&namespace) != Some(Verdict::Allowed) {
                let place = match started.as_str() {
                    "" => Place::Hidden,
                    _ => Place::Leaving(Leaving { before: Some(started), ..Leaving::default() }),
                };
                places.insert(namespace, place);
                self.coming.pop_front();
                continue;
            }
            let before = page.batch.len();
            let added = |page: &Page<'_>, object: &Arc<Object>| {
                let renderer = page.cursor.renderer();
                Ok(Some(renderer.envelope().frame(EventType::Added, &page.reader.body(object, renderer)?)))
            };
            let more = page.put(&self.mark.snapshot, &namespace, &started, added)?;
            self.told_older |= self.begins.is_none() && page.batch.len() > before;
            if let Some(next) = more {
                self.next = next;
                return Ok(Portion::More);
            }
            places.insert(namespace, Place::Shown);
            self.coming.pop_front();
        }
        Ok(Portion::Last(()))
    }

    /// Takes back what goes.
    fn go(&mut self, places: &mut BTreeMap<Arc<str>, Place>, page: &mut Page<'_>) -> Result<Portion, Refused> {
        let leaving = |places: &BTreeMap<Arc<str>, Place>| {
            let leaving = places.iter().filter(|(_, place)| matches!(place, Place::Leaving(_)));
            leaving.map(|(namespace, _)| namespace.clone()).collect()
        };
        let going = self.going.get_or_insert_with(|| leaving(places));
        let at = self.mark.snapshot.rv;
        while let Some(namespace) = going.front().cloned() {
            let Some(Place::Leaving(left)) = places.get(&namespace) else {
                going.pop_front();
                continue;
            };
            self.told_older = true;
            let gone = |page: &Page<'_>, object: &Arc<Object>| {
                let known = left.knows(&object.key).then(|| object.restamped(at));
                known.map(|body| page.cursor.renderer().frame(EventType::Deleted, &body)).transpose()
            };
            let more = page.put(&self.mark.snapshot, &namespace, &std::mem::take(&mut self.next), gone)?;
            if let Some(next) = more {
                self.next = next;
                return Ok(Portion::More);
            }
            places.insert(namespace, Place::Hidden);
            going.pop_front();
        }
        Ok(Portion::Last(()))
    }
}

impl Leaving {
    /// Whether the client knows the object as it is at the mark.
    fn knows(&self, key: &ObjectKey) -> bool {
        !self.touched.contains(key) && self.before.as_deref().is_none_or(|before| key.as_str() < before)
    }
}

fn sift(
    places: &mut BTreeMap<Arc<str>, Place>,
    readable: &Readable,
    event: &Event,
    seen: EventType,
    stale: &mut bool,
) -> FilteredEvent {
    let (key, namespace) = (&event.object.key, event.object.key.namespace());
    match fate(places.get(namespace), readable.verdict(namespace)) {
        Fate::Told => FilteredEvent::Tell,
        Fate::Enters => {
            places.insert(namespace.into(), Place::Shown);
            FilteredEvent::Tell
        }
        Fate::Hidden => {
            if !places.contains_key(namespace) {
                places.insert(namespace.into(), Place::Hidden);
            }
            FilteredEvent::Skip
        }
        Fate::Leaves => {
            *stale = true;
            let touched = HashSet::from([key.clone()]);
            places.insert(namespace.into(), Place::Leaving(Leaving { touched, before: None }));
            taken_back(seen)
        }
        Fate::TakenBack => match places.get_mut(namespace) {
            Some(Place::Leaving(left)) => {
                if left.touched.insert(key.clone()) {
                    taken_back(seen)
                } else {
                    FilteredEvent::Skip
                }
            }
            _ => FilteredEvent::Skip,
        },
        Fate::Undecided => {
            readable.ask(namespace);
            FilteredEvent::Undecided
        }
    }
}

/// What a client is told of an object's first change after its right has ended: that the object is gone, if the client
/// knew it.
fn taken_back(seen: EventType) -> FilteredEvent {
    if seen == EventType::Added { FilteredEvent::Skip } else { FilteredEvent::TellGone }
}

fn fate(place: Option<&Place>, verdict: Option<Verdict>) -> Fate {
    match (place, verdict) {
        (None, None) => Fate::Undecided,
        (None, Some(Verdict::Allowed)) => Fate::Enters,
        (Some(Place::Shown), Some(Verdict::Allowed)) => Fate::Told,
        (Some(Place::Shown), _) => Fate::Leaves,
        (Some(Place::Leaving(_)), _) => Fate::TakenBack,
        (None | Some(Place::Hidden), _) => Fate::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_an_event() {
        const ALLOWED: Option<Verdict> = Some(Verdict::Allowed);
        const DENIED: Option<Verdict> = Some(Verdict::Denied);
        const UNCLEAR: Option<Verdict> = Some(Verdict::Unclear);
        let leaving = Place::Leaving(Leaving::default());
        for (place, verdict, expected) in [
            (None, None, Fate::Undecided),
            (None, ALLOWED, Fate::Enters),
            (None, DENIED, Fate::Hidden),
            (None, UNCLEAR, Fate::Hidden),
            (Some(&Place::Shown), ALLOWED, Fate::Told),
            (Some(&Place::Shown), DENIED, Fate::Leaves),
            (Some(&Place::Shown), UNCLEAR, Fate::Leaves),
            (Some(&Place::Shown), None, Fate::Leaves),
            // What it has missed is told at a mark, and not in pieces.
            (Some(&Place::Hidden), ALLOWED, Fate::Hidden),
            (Some(&Place::Hidden), DENIED, Fate::Hidden),
            // It has to be gone before it can come again.
            (Some(&leaving), ALLOWED, Fate::TakenBack),
            (Some(&leaving), DENIED, Fate::TakenBack),
        ] {
            assert_eq!(fate(place, verdict), expected, "{place:?} {verdict:?}");
        }
    }
}
