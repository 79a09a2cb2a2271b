//! Errors in watches.

use super::super::super::guarantee::ApiserverGuarantee;
use super::super::super::record::{EventRecord, HistoryRecord, RecordedEventType, RecordedStatus, WatchEnding};
use super::super::model::content;
use super::super::spoiling::{Spoiling, Stream};
use super::Mutation;

pub(super) const MUTATIONS: [Mutation; 30] = [
    ("an event is lost", ApiserverGuarantee::Reliable, lose),
    ("a deletion is lost", ApiserverGuarantee::Reliable, lose_deletion),
    ("one of two of a version is lost", ApiserverGuarantee::Reliable, lose_sibling),
    ("a stream falls silent", ApiserverGuarantee::Reliable, fall_silent),
    ("a stream ends within an event, as if it were whole", ApiserverGuarantee::Reliable, tear),
    ("an event of nothing", ApiserverGuarantee::Reliable, invent),
    ("an event is repeated", ApiserverGuarantee::Unique, repeat),
    ("events are repeated after a resume", ApiserverGuarantee::Unique, replay),
    ("two events change places", ApiserverGuarantee::Ordered, swap),
    ("the first event after a resume is lost", ApiserverGuarantee::Resumable, lose_first),
    ("a resume begins too early", ApiserverGuarantee::Resumable, replay),
    ("ADDED for MODIFIED", ApiserverGuarantee::Typed, mistype),
    ("what leaves a selection is MODIFIED", ApiserverGuarantee::Typed, leave_as_modified),
    ("a deletion shows another content", ApiserverGuarantee::Typed, deletion_of_other),
    ("an event shows another content", ApiserverGuarantee::Typed, other_content),
    ("an event of another selection", ApiserverGuarantee::Filtered, foreign),
    ("a bookmark runs ahead of an event", ApiserverGuarantee::Bookmarkable, early_bookmark),
    ("a bookmark that was not requested", ApiserverGuarantee::Bookmarkable, unrequested_bookmark),
    ("a bookmark goes back", ApiserverGuarantee::Bookmarkable, falling_bookmark),
    ("the initial events end before the last of them", ApiserverGuarantee::InitialEvents, early_end),
    ("a deletion among initial events", ApiserverGuarantee::InitialEvents, initial_deletion),
    ("an initial event of another version", ApiserverGuarantee::InitialEvents, initial_other),
    ("an initial event is lost", ApiserverGuarantee::InitialEvents, initial_lost),
    ("a 410 for history that is there", ApiserverGuarantee::Expired, expire),
    ("an event after an error", ApiserverGuarantee::Expired, behind_error),
    ("an old event on a watch from a future version", ApiserverGuarantee::Future, old_for_future),
    ("a client with a state misses a change between two versions", ApiserverGuarantee::Continuity, lose_initial_object),
    ("a watch ends without a word", ApiserverGuarantee::Timed, end_early),
    ("a watch lasts for hours", ApiserverGuarantee::Timed, go_on),
    ("a watch says nothing for minutes", ApiserverGuarantee::Steady, say_nothing),
];

fn lose(it: &mut Spoiling<'_>) -> Option<()> {
    let (_, at) = it.pick(it.passed())?;
    it.records.remove(at);
    Some(())
}

fn lose_deletion(it: &mut Spoiling<'_>) -> Option<()> {
    let deletions = it.passed().into_iter().filter(|(_, at)| it.event(*at).kind == RecordedEventType::Deleted);
    let (_, at) = it.pick(deletions.collect())?;
    it.records.remove(at);
    Some(())
}

fn lose_sibling(it: &mut Spoiling<'_>) -> Option<()> {
    let has_sibling = |(stream, at): &(Stream, usize)| {
        let version = it.event(*at).version;
        stream.live.iter().filter(|other| it.is_object(**other) && it.event(**other).version == version).count() > 1
    };
    let (_, at) = it.pick(it.passed().into_iter().filter(has_sibling).collect())?;
    it.records.remove(at);
    Some(())
}

fn fall_silent(it: &mut Spoiling<'_>) -> Option<()> {
    let left = |op| {
        let mut records = it.records.iter();
        records.any(|record| matches!(record, HistoryRecord::End(end) if end.op == op && end.how == WatchEnding::Left))
    };
    let objects = it.objects().into_iter().filter(|(stream, _)| left(stream.op));
    let objects = if it.has_faults() { Vec::new() } else { objects.collect() };
    let (stream, from) = it.pick(objects)?;
    stream.live.iter().rev().filter(|at| **at >= from).for_each(|at| drop(it.records.remove(*at)));
    Some(())
}

fn tear(it: &mut Spoiling<'_>) -> Option<()> {
    let at = it.pick(ends(it))?;
    let HistoryRecord::End(end) = &mut it.records[at] else { return None };
    end.how = WatchEnding::Torn;
    Some(())
}

fn invent(it: &mut Spoiling<'_>) -> Option<()> {
    // A version within the truth at which that object was not changed.
    let last = it.model.past.last()?.version;
    let free = |(_, at): &(Stream, usize)| {
        let event = it.event(*at);
        let mut past = it.model.past.iter();
        event.version < last && !past.any(|past| past.key == event.key && past.version == event.version + 1)
    };
    let (_, at) = it.pick(it.objects().into_iter().filter(free).collect())?;
    let event = it.event(at).clone();
    it.records.insert(at + 1, HistoryRecord::Event(EventRecord { version: event.version + 1, ..event }));
    Some(())
}

fn repeat(it: &mut Spoiling<'_>) -> Option<()> {
    let (_, at) = it.pick(it.objects())?;
    it.records.insert(at + 1, it.records[at].clone());
    Some(())
}

/// Repeats the last event of a stream at the beginning of the stream that resumes it.
fn replay(it: &mut Spoiling<'_>) -> Option<()> {
    let streams = it.streams();
    let last = |stream: &Stream| {
        let before = streams.iter().find(|before| Some(before.op) == stream.resumes)?;
        let last = *before.live.iter().rfind(|at| it.is_object(**at))?;
        // Changes before the beginning of the truth are unknown.
        let first = *stream.live.first()?;
        (stream.start >= 10 && it.is_object(first)).then_some((first, last))
    };
    let (first, last) = it.pick(streams.iter().filter_map(last).collect())?;
    let (again, op) = (it.event(last).clone(), it.event(first).op);
    it.records.insert(first, HistoryRecord::Event(EventRecord { op, at_ns: it.event(first).at_ns, ..again }));
    Some(())
}

fn swap(it: &mut Spoiling<'_>) -> Option<()> {
    let pairs = it.streams().into_iter().flat_map(|stream| {
        let pairs = stream.live.windows(2).map(|pair| [pair[0], pair[1]]);
        pairs.collect::<Vec<_>>()
    });
    let pairs = pairs.filter(|[one, next]| it.is_object(*one) && it.is_object(*next));
    let pairs = pairs.filter(|[one, next]| it.event(*one).version < it.event(*next).version).collect();
    let [one, next] = it.pick(pairs)?;
    it.records.swap(one, next);
    Some(())
}

fn lose_first(it: &mut Spoiling<'_>) -> Option<()> {
    let first = |stream: &Stream| {
        let first = *stream.live.first()?;
        let next = stream.live[1..].iter().find(|at| it.is_object(**at))?;
        let is_first = it.is_object(first) && it.event(first).version < it.event(*next).version;
        (stream.initial.is_empty() && stream.start >= 10 && is_first).then_some(first)
    };
    let at = it.pick(it.streams().iter().filter_map(first).collect())?;
    it.records.remove(at);
    Some(())
}

fn mistype(it: &mut Spoiling<'_>) -> Option<()> {
    let living = it.objects().into_iter().filter(|(_, at)| it.event(*at).kind != RecordedEventType::Deleted);
    let (_, at) = it.pick(living.collect())?;
    let event = it.event_mut(at);
    event.kind =
        if event.kind == RecordedEventType::Added { RecordedEventType::Modified } else { RecordedEventType::Added };
    Some(())
}

fn leave_as_modified(it: &mut Spoiling<'_>) -> Option<()> {
    let is_there = |event: &EventRecord| it.model.state(event.version).contains_key(event.key.as_str());
    let left = |(_, at): &(Stream, usize)| it.event(*at).kind == RecordedEventType::Deleted && is_there(it.event(*at));
    let (_, at) = it.pick(it.objects().into_iter().filter(left).collect())?;
    let event = it.event_mut(at);
    (event.kind, event.digest) = (RecordedEventType::Modified, Some(content(&event.key, event.version)));
    Some(())
}

fn deletion_of_other(it: &mut Spoiling<'_>) -> Option<()> {
    let deletions = it.objects().into_iter().filter(|(_, at)| it.event(*at).kind == RecordedEventType::Deleted);
    let (_, at) = it.pick(deletions.collect())?;
    let event = it.event_mut(at);
    event.digest = Some(content(&event.key, event.version));
    Some(())
}

fn other_content(it: &mut Spoiling<'_>) -> Option<()> {
    let initial = it.streams().into_iter().flat_map(|stream| stream.initial).filter(|at| it.is_object(*at));
    let mut places: Vec<_> = it.objects().into_iter().map(|(_, at)| at).collect();
    places.extend(initial);
    let at = it.pick(places)?;
    it.event_mut(at).digest = Some(content("other", 1));
    Some(())
}

fn foreign(it: &mut Spoiling<'_>) -> Option<()> {
    let mut places = Vec::new();
    for stream in it.streams() {
        let foreign = it.model.past.iter().filter(|past| past.version > stream.start.max(10));
        for past in foreign.filter(|past| it.model.seen(**past, stream.of).is_none()) {
            let behind = stream.live.iter().find(|at| it.event(**at).version > past.version);
            places.extend(behind.map(|at| (*at, stream.op, *past)));
        }
    }
    let (at, op, past) = it.pick(places)?;
    let (key, version, at_ns) = (past.key.to_owned(), past.version, it.event(at).at_ns);
    let kind = RecordedEventType::Modified;
    it.records
        .insert(at, HistoryRecord::Event(EventRecord { op, at_ns, kind, key, version, ..EventRecord::default() }));
    Some(())
}

/// Inserts a bookmark into a stream, before a record.
fn bookmark(it: &mut Spoiling<'_>, at: usize, version: u64) {
    let (op, at_ns, kind) = (it.event(at).op, it.event(at).at_ns, RecordedEventType::Bookmark);
    it.records.insert(at, HistoryRecord::Event(EventRecord { op, at_ns, kind, version, ..EventRecord::default() }));
}

fn early_bookmark(it: &mut Spoiling<'_>) -> Option<()> {
    let bookmarked = it.objects().into_iter().filter(|(stream, _)| stream.requested_bookmarks());
    let (_, at) = it.pick(bookmarked.collect())?;
    bookmark(it, at, it.event(at).version);
    Some(())
}

fn unrequested_bookmark(it: &mut Spoiling<'_>) -> Option<()> {
    let unasked = it.objects().into_iter().filter(|(stream, _)| !stream.requested_bookmarks());
    let (_, at) = it.pick(unasked.collect())?;
    bookmark(it, at, it.event(at).version - 1);
    Some(())
}

fn falling_bookmark(it: &mut Spoiling<'_>) -> Option<()> {
    let streams = it.streams().into_iter().filter(Stream::requested_bookmarks);
    let bookmarks = streams.flat_map(|stream| {
        let bookmarks = stream.live.into_iter().filter(|at| it.event(*at).kind == RecordedEventType::Bookmark);
        bookmarks.map(|at| (at, stream.start)).collect::<Vec<_>>()
    });
    let (at, start) = it.pick(bookmarks.collect())?;
    it.event_mut(at).version = start - 1;
    Some(())
}

/// Returns the positions of the last initial event and of its end, for streams with initial events.
fn states(it: &Spoiling<'_>) -> Vec<(usize, usize)> {
    let streams = it.streams();
    let two =
        streams.iter().filter_map(|stream| stream.initial.len().checked_sub(2).map(|last| &stream.initial[last..]));
    two.map(|pair| (pair[0], pair[1])).collect()
}

fn early_end(it: &mut Spoiling<'_>) -> Option<()> {
    let (last, end) = it.pick(states(it))?;
    it.records.swap(last, end);
    Some(())
}

fn initial_deletion(it: &mut Spoiling<'_>) -> Option<()> {
    let (last, _) = it.pick(states(it))?;
    it.event_mut(last).kind = RecordedEventType::Deleted;
    Some(())
}

fn initial_other(it: &mut Spoiling<'_>) -> Option<()> {
    let (last, _) = it.pick(states(it))?;
    it.event_mut(last).version -= 1;
    Some(())
}

fn initial_lost(it: &mut Spoiling<'_>) -> Option<()> {
    let (last, _) = it.pick(states(it))?;
    it.records.remove(last);
    Some(())
}

/// Returns the ends of watches.
fn ends(it: &Spoiling<'_>) -> Vec<usize> {
    let ops: Vec<_> = it.streams().iter().map(|stream| stream.op).collect();
    let is_end = |record: &HistoryRecord| matches!(record, HistoryRecord::End(end) if ops.contains(&end.op));
    (0..it.records.len()).filter(|at| is_end(&it.records[*at])).collect()
}

/// Returns the ends of watches in a run without faults.
fn undisturbed_ends(it: &Spoiling<'_>) -> Vec<usize> {
    if it.has_faults() { Vec::new() } else { ends(it) }
}

fn end_early(it: &mut Spoiling<'_>) -> Option<()> {
    let failed = it.records.iter().filter_map(|record| match record {
        HistoryRecord::Event(event) if event.kind == RecordedEventType::Error => Some(event.op),
        _ => None,
    });
    let failed: Vec<_> = failed.collect();
    let without_error = |at: &usize| {
        let HistoryRecord::End(end) = &it.records[*at] else { return false };
        !failed.contains(&end.op)
    };
    let at = it.pick(undisturbed_ends(it).into_iter().filter(without_error).collect())?;
    let HistoryRecord::End(end) = &mut it.records[at] else { return None };
    end.how = WatchEnding::Clean;
    Some(())
}

fn say_nothing(it: &mut Spoiling<'_>) -> Option<()> {
    let with_bookmarks: Vec<_> =
        it.streams().into_iter().filter(Stream::requested_bookmarks).map(|stream| stream.op).collect();
    let takes_them =
        |at: &usize| matches!(&it.records[*at], HistoryRecord::End(end) if with_bookmarks.contains(&end.op));
    let at = it.pick(undisturbed_ends(it).into_iter().filter(takes_them).collect())?;
    end_later(it, at, 200)
}

fn go_on(it: &mut Spoiling<'_>) -> Option<()> {
    let at = it.pick(undisturbed_ends(it))?;
    end_later(it, at, 4_000)
}

/// Delays an end by this many seconds.
fn end_later(it: &mut Spoiling<'_>, at: usize, seconds: u64) -> Option<()> {
    let HistoryRecord::End(end) = &mut it.records[at] else { return None };
    end.at_ns += seconds * 1_000_000_000;
    Some(())
}

fn expire(it: &mut Spoiling<'_>) -> Option<()> {
    // A watch at this position does not need anything that was compacted.
    let place = |stream: &Stream| {
        let at = *stream.live.last()?;
        let position = stream.live.iter().rev().skip(1).map(|at| it.event(*at).version).max();
        let position = position.unwrap_or(0).max(stream.start);
        (position + 1 >= it.compacted_before(it.records.len())).then_some(at)
    };
    let at = it.pick(it.streams().iter().filter_map(place).collect())?;
    let (op, at_ns, kind) = (it.event(at).op, it.event(at).at_ns, RecordedEventType::Error);
    let status = RecordedStatus { code: 410, ..RecordedStatus::default() };
    it.records[at] = HistoryRecord::Event(EventRecord { op, at_ns, kind, status, ..EventRecord::default() });
    Some(())
}

fn behind_error(it: &mut Spoiling<'_>) -> Option<()> {
    let errors = it.streams().into_iter().flat_map(|stream| stream.live);
    let errors = errors.filter(|at| it.event(*at).kind == RecordedEventType::Error).collect();
    let at = it.pick(errors)?;
    let (op, at_ns, key) = (it.event(at).op, it.event(at).at_ns, "a/x".to_owned());
    it.records
        .insert(at + 1, HistoryRecord::Event(EventRecord { op, at_ns, key, version: 99, ..EventRecord::default() }));
    Some(())
}

fn old_for_future(it: &mut Spoiling<'_>) -> Option<()> {
    let waits = |stream: &Stream| stream.initial.is_empty() && stream.start > it.newest_before(stream.call);
    let waiting = it.streams().into_iter().filter(waits);
    let first = waiting.filter_map(|stream| Some((*stream.live.first()?, stream.start))).collect();
    let (at, version) = it.pick(first)?;
    let (op, at_ns, key) = (it.event(at).op, it.event(at).at_ns, "a/x".to_owned());
    it.records.insert(at, HistoryRecord::Event(EventRecord { op, at_ns, key, version, ..EventRecord::default() }));
    Some(())
}

fn lose_initial_object(it: &mut Spoiling<'_>) -> Option<()> {
    let is_held = |(stream, at): &(Stream, usize)| {
        let event = it.event(*at);
        let later = |other: &&usize| **other > *at;
        let mut of_key = stream.live.iter().filter(later).filter(|other| it.event(**other).key == event.key);
        let mut bookmarks = stream.live.iter().filter(later).filter(|other| !it.is_object(**other));
        !stream.initial.is_empty() && of_key.next().is_none() && bookmarks.next().is_some()
    };
    let (_, at) = it.pick(it.objects().into_iter().filter(is_held).collect())?;
    it.records.remove(at);
    Some(())
}
