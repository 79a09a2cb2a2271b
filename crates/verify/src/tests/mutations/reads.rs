//! Errors in lists, GETs and bytes, and in the server's requests to its upstream.

use super::super::super::guarantee::ApiserverGuarantee;
use super::super::super::record::{HistoryRecord, ReadVerb, RecordedEncoding, RecordedEventType, RecordedStatus};
use super::super::model::content;
use super::super::spoiling::{Answered, Spoiling};
use super::Mutation;

pub(super) const MUTATIONS: [Mutation; 23] = [
    ("a list has an object of another version", ApiserverGuarantee::ListSnapshot, torn),
    ("a list lacks an object", ApiserverGuarantee::ListSnapshot, lacking),
    ("a list has an object twice", ApiserverGuarantee::ListSnapshot, twice),
    ("a list is in another order", ApiserverGuarantee::ListSnapshot, disordered),
    ("a list shows another content", ApiserverGuarantee::ListSnapshot, other_content),
    ("a page says that more remains than does", ApiserverGuarantee::ListSnapshot, remaining),
    ("a page begins too late", ApiserverGuarantee::ListSnapshot, skipped),
    ("a GET of what never was", ApiserverGuarantee::ListSnapshot, never),
    ("a list of another version than requested", ApiserverGuarantee::Exact, not_exact),
    ("a page of another version", ApiserverGuarantee::Exact, other_page),
    ("a list that is older than requested", ApiserverGuarantee::NotOlderThan, older),
    ("an object that is older than requested", ApiserverGuarantee::NotOlderThan, older_object),
    ("a list without an acknowledged write", ApiserverGuarantee::Consistent, stale),
    ("an object without an acknowledged write", ApiserverGuarantee::Consistent, stale_object),
    ("initial events without an acknowledged write", ApiserverGuarantee::Consistent, stale_state),
    ("a list that is older than the one before", ApiserverGuarantee::Monotone, back),
    ("an object that is older than the list before", ApiserverGuarantee::Monotone, object_back),
    ("a 410 for a version that is there", ApiserverGuarantee::Expired, refused),
    ("a version that is known is of the future", ApiserverGuarantee::Future, too_large),
    ("an object has other bytes", ApiserverGuarantee::TypedBytes, other_bytes),
    ("an answer in another encoding", ApiserverGuarantee::TypedBytes, other_encoding),
    ("a second list after an incident", ApiserverGuarantee::OneRelist, second_list),
    ("a client that has a state lists again", ApiserverGuarantee::BeginsOnce, begin_again),
];

fn nonempty(it: &Spoiling<'_>, least: usize) -> Vec<Answered> {
    it.lists().into_iter().filter(|list| it.answer(list.at).items.len() >= least).collect()
}

fn torn(it: &mut Spoiling<'_>) -> Option<()> {
    let list = it.pick(nonempty(it, 1))?;
    it.answer_mut(list.at).items[0].version -= 1;
    Some(())
}

fn lacking(it: &mut Spoiling<'_>) -> Option<()> {
    let list = it.pick(nonempty(it, 1))?;
    it.answer_mut(list.at).items.pop();
    Some(())
}

fn twice(it: &mut Spoiling<'_>) -> Option<()> {
    let list = it.pick(nonempty(it, 1))?;
    let items = &mut it.answer_mut(list.at).items;
    items.insert(0, items[0].clone());
    Some(())
}

fn disordered(it: &mut Spoiling<'_>) -> Option<()> {
    let list = it.pick(nonempty(it, 2))?;
    it.answer_mut(list.at).items.swap(0, 1);
    Some(())
}

fn other_content(it: &mut Spoiling<'_>) -> Option<()> {
    let list = it.pick(nonempty(it, 1))?;
    it.answer_mut(list.at).items[0].digest = Some(content("other", 1));
    Some(())
}

fn remaining(it: &mut Spoiling<'_>) -> Option<()> {
    let pages = it.reads(ReadVerb::List).into_iter().filter(|page| it.answer(page.at).remaining.is_some());
    let page = it.pick(pages.collect())?;
    *it.answer_mut(page.at).remaining.as_mut()? += 1;
    Some(())
}

fn pages(it: &Spoiling<'_>) -> Vec<Answered> {
    it.reads(ReadVerb::List).into_iter().filter(|page| page.query.contains("continue")).collect()
}

fn skipped(it: &mut Spoiling<'_>) -> Option<()> {
    let pages = pages(it).into_iter().filter(|page| !it.answer(page.at).items.is_empty());
    let page = it.pick(pages.collect())?;
    let answer = it.answer_mut(page.at);
    answer.items.remove(0);
    Some(())
}

fn never(it: &mut Spoiling<'_>) -> Option<()> {
    // A version within the truth at which that object was not changed.
    let last = it.model.past.last()?.version;
    let free = |get: &Answered| {
        let item = &it.answer(get.at).items[0];
        let version = item.version.max(10) + 1;
        let changed = it.model.past.iter().any(|past| past.key == item.key && past.version == version);
        version <= last && !changed
    };
    let get = it.pick(it.reads(ReadVerb::Get).into_iter().filter(free).collect())?;
    let item = &mut it.answer_mut(get.at).items[0];
    item.version = item.version.max(10) + 1;
    Some(())
}

fn not_exact(it: &mut Spoiling<'_>) -> Option<()> {
    let exact = it.lists().into_iter().filter(|list| list.query.contains("Exact"));
    let list = it.pick(exact.collect())?;
    let version = list.number("resourceVersion")? + 1;
    it.show_state(&list, version);
    Some(())
}

fn other_page(it: &mut Spoiling<'_>) -> Option<()> {
    let page = it.pick(pages(it))?;
    *it.answer_mut(page.at).version.as_mut()? += 1;
    Some(())
}

fn older(it: &mut Spoiling<'_>) -> Option<()> {
    let fresh_lists = it.lists().into_iter().filter(|list| list.query.contains("NotOlderThan"));
    let list = it.pick(fresh_lists.collect())?;
    let version = list.number("resourceVersion")? - 1;
    it.show_state(&list, version);
    Some(())
}

/// Returns the versions at which the object of a GET was changed before the call.
fn changes_of(it: &Spoiling<'_>, get: &Answered) -> Vec<u64> {
    let path: Vec<_> = get.path.split('/').collect();
    let key = format!("{}/{}", path[4], path[6]);
    let is_of = |version: &u64| it.model.past.iter().any(|past| past.version == *version && past.key == key);
    it.changed_before(get.call).into_iter().filter(is_of).collect()
}

fn older_object(it: &mut Spoiling<'_>) -> Option<()> {
    let mut places = Vec::new();
    for get in it.reads(ReadVerb::Get) {
        let Some(requested) = get.number("resourceVersion").filter(|version| *version > 0) else { continue };
        // A missing object may be deleted for good, but an existing one is certainly older.
        let change = changes_of(it, &get).into_iter().filter(|version| *version <= requested).max();
        let there = |version: &u64| {
            let key = it.answer(get.at).items[0].key.clone();
            it.model.state(version - 1).contains_key(key.as_str())
        };
        places.extend(change.filter(there).map(|version| (get.clone(), version - 1)));
    }
    let (get, version) = it.pick(places)?;
    it.show_object(&get, version);
    Some(())
}

/// Returns reads of a kind, each with the versions right before changes that were made before the call.
fn before_changes(it: &Spoiling<'_>, reads: Vec<Answered>) -> Vec<(Answered, u64)> {
    let versions = |read: Answered| {
        let changes = it.changed_before(read.call);
        changes.into_iter().map(move |version| (read.clone(), version - 1)).collect::<Vec<_>>()
    };
    reads.into_iter().flat_map(versions).collect()
}

fn stale(it: &mut Spoiling<'_>) -> Option<()> {
    let lists = it.lists().into_iter().filter(Answered::is_consistent).collect();
    let (list, version) = it.pick(before_changes(it, lists))?;
    it.show_state(&list, version);
    Some(())
}

fn stale_object(it: &mut Spoiling<'_>) -> Option<()> {
    let gets = it.reads(ReadVerb::Get).into_iter().filter(Answered::is_consistent);
    let stale = gets.filter_map(|get| {
        let last = changes_of(it, &get).into_iter().max()?;
        let key = it.answer(get.at).items[0].key.clone();
        it.model.state(last - 1).contains_key(key.as_str()).then_some((get, last - 1))
    });
    let (get, version) = it.pick(stale.collect())?;
    it.show_object(&get, version);
    Some(())
}

fn stale_state(it: &mut Spoiling<'_>) -> Option<()> {
    let mut places = Vec::new();
    for stream in it.streams().into_iter().filter(|stream| !stream.query.contains("resourceVersion=")) {
        let end = stream.initial.last().copied();
        let changes = it.changed_before(stream.call);
        places.extend(end.into_iter().flat_map(|end| changes.iter().map(move |version| (end, version - 1))));
    }
    let (end, version) = it.pick(places)?;
    it.event_mut(end).version = version;
    Some(())
}

/// Returns cached reads, each with the version of an earlier cached list.
fn after_lists(it: &Spoiling<'_>, reads: Vec<Answered>) -> Vec<(Answered, u64)> {
    let is_any = |read: &Answered| read.number("resourceVersion") == Some(0);
    let lists: Vec<_> = it.lists().into_iter().filter(is_any).collect();
    let mut places = Vec::new();
    for read in reads.into_iter().filter(is_any) {
        let before = lists.iter().map(|list| it.answer(list.at)).filter(|answer| answer.at_ns < read.call_ns);
        places.extend(before.filter_map(|answer| Some((read.clone(), answer.version?))));
    }
    places
}

fn back(it: &mut Spoiling<'_>) -> Option<()> {
    let (list, version) = it.pick(after_lists(it, it.lists()))?;
    it.show_state(&list, version - 1);
    Some(())
}

fn object_back(it: &mut Spoiling<'_>) -> Option<()> {
    let changed = |(get, version): (Answered, u64)| {
        let last = changes_of(it, &get).into_iter().filter(|change| *change <= version).max()?;
        let key = it.answer(get.at).items[0].key.clone();
        it.model.state(last - 1).contains_key(key.as_str()).then_some((get, last - 1))
    };
    let gets = after_lists(it, it.reads(ReadVerb::Get)).into_iter().filter_map(changed);
    let (get, version) = it.pick(gets.collect())?;
    it.show_object(&get, version);
    Some(())
}

fn refused(it: &mut Spoiling<'_>) -> Option<()> {
    let there = |list: &Answered| {
        let exact = list.number("resourceVersion").filter(|_| list.query.contains("Exact"));
        exact.is_some_and(|version| version >= it.compacted_before(list.at))
    };
    let list = it.pick(it.reads(ReadVerb::List).into_iter().filter(there).collect())?;
    let answer = it.answer_mut(list.at);
    (answer.code, answer.version) = (410, None);
    answer.items.clear();
    Some(())
}

fn too_large(it: &mut Spoiling<'_>) -> Option<()> {
    // The version was written, and its writer had received it.
    let known = |list: &Answered| {
        let requested = list.number("resourceVersion").filter(|version| *version > 0);
        let newest = it.changed_before(list.call).into_iter().max().unwrap_or(10);
        requested.is_some_and(|requested| requested <= newest)
    };
    let lists = it.reads(ReadVerb::List).into_iter().filter(known);
    let lists = if it.has_faults() { Vec::new() } else { lists.collect() };
    let list = it.pick(lists)?;
    let answer = it.answer_mut(list.at);
    let cause = "ResourceVersionTooLarge".to_owned();
    (answer.code, answer.version, answer.status) =
        (504, None, RecordedStatus { code: 504, cause, ..Default::default() });
    answer.items.clear();
    Some(())
}

fn other_bytes(it: &mut Spoiling<'_>) -> Option<()> {
    let objects = it.objects();
    let gone = |at: usize| it.event(at).kind == RecordedEventType::Deleted;
    let spelled = |at: usize| (it.event(at).key.clone(), it.event(at).version, gone(at));
    let shared = objects.iter().filter(|(stream, at)| {
        objects.iter().any(|(other, there)| other.op != stream.op && spelled(*there) == spelled(*at))
    });
    let at = it.pick(shared.map(|(_, at)| *at).collect())?;
    it.event_mut(at).bytes = Some(content("other", 1));
    Some(())
}

fn other_encoding(it: &mut Spoiling<'_>) -> Option<()> {
    let list = it.pick(it.lists())?;
    it.answer_mut(list.at).encoding = Some(RecordedEncoding::Protobuf);
    Some(())
}

fn second_list(it: &mut Spoiling<'_>) -> Option<()> {
    let requests =
        (0..it.records.len()).filter(|at| matches!(it.records[*at], HistoryRecord::UpstreamRequest(_))).collect();
    let at = it.pick(requests)?;
    it.records.insert(at, it.records[at].clone());
    Some(())
}

fn begin_again(it: &mut Spoiling<'_>) -> Option<()> {
    let client = |at: usize, it: &Spoiling<'_>| match &it.records[at] {
        HistoryRecord::Call(call) => (call.client, call.resumes),
        _ => panic!("no call at {at}"),
    };
    let lists = it.lists();
    let first = it.pick(lists.iter().filter(|list| !it.answer(list.at).more).cloned().collect())?;
    let later = lists.into_iter().filter(|list| list.call > first.at && client(list.call, it).1.is_none());
    let later = it.pick(later.collect())?;
    let (again, _) = client(first.call, it);
    // A refused client may have to relist.
    let its_op = |record: &HistoryRecord| match record {
        HistoryRecord::Call(call) if call.client == again => Some(call.op),
        _ => None,
    };
    let ops: Vec<_> = it.records.iter().filter_map(its_op).collect();
    let is_refusal = |record: &HistoryRecord| match record {
        HistoryRecord::Event(received) => received.kind == RecordedEventType::Error && ops.contains(&received.op),
        _ => false,
    };
    if it.records.iter().any(is_refusal) {
        return None;
    }
    let HistoryRecord::Call(call) = &mut it.records[later.call] else { panic!("no call") };
    call.client = again;
    Some(())
}
