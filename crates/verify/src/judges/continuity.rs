//! Continuity: a client that lists, watches and resumes holds the correct state at every known moment.

use std::collections::HashMap;

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::interner::ObjectKeyId;
use super::super::operation::{ReceivedItem, RecordedOperation};
use super::super::record::{OperationId, ReadVerb, RecordedEventType};
use super::super::truth::ResourceGroundTruth;
use super::super::view::{ObjectStateFingerprint, SelectionView};
use super::super::violation::GuaranteeVerdict;
use super::difference::difference;

/// The state of a client: the version of each object.
#[derive(Clone, Debug, Default)]
struct ClientObjectVersions {
    objects: HashMap<ObjectKeyId, u64>,
    sum: ObjectStateFingerprint,
    /// The version of the last event or list.
    event: u64,
    /// The last known moment: of an event, a bookmark or the list.
    moment: u64,
}

/// Judges that a list and the watches after it have no gap and no overlap. The client's state must be correct at every
/// bookmark and at the end of each watch.
pub(super) fn continuity(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Continuity);
    let mut resumed: HashMap<OperationId, usize> = HashMap::new();
    for before in history.operations.iter().filter_map(|op| op.resumes) {
        *resumed.entry(before).or_default() += 1;
    }
    let mut held: HashMap<OperationId, ClientObjectVersions> = HashMap::new();
    for op in history.watches(ApiserverGuarantee::Continuity) {
        let Some((truth, view)) = history.view(op) else { continue };
        let Some(base) = base(history, op, &mut held, &mut resumed) else { continue };
        let after = watch(history, op, truth, view, base, &mut judged);
        if let Some(after) = after.filter(|_| resumed.contains_key(&op.op)) {
            held.insert(op.op, after);
        }
    }
    judged
}

/// Returns the client's state at the beginning of the watch.
fn base(
    history: &RunHistory,
    op: &RecordedOperation,
    held: &mut HashMap<OperationId, ClientObjectVersions>,
    resumed: &mut HashMap<OperationId, usize>,
) -> Option<ClientObjectVersions> {
    if op.state.is_some() {
        return Some(ClientObjectVersions::of(op.initial().iter(), op.state?));
    }
    let (start, before) = (op.start()?, history.before(op)?);
    if before.verb == ReadVerb::List {
        return listed(history, before).filter(|held| held.moment == start && before.view == op.view);
    }
    // The last watch that resumes from another one takes its state.
    let left = resumed.get_mut(&before.op)?;
    *left = left.saturating_sub(1);
    let held = if *left == 0 { held.remove(&before.op) } else { held.get(&before.op).cloned() };
    held.filter(|held| (held.event..=held.moment).contains(&start) && before.view == op.view)
}

/// Returns the state from the pages of a list that ends with this operation. All pages must have the same version.
fn listed(history: &RunHistory, last: &RecordedOperation) -> Option<ClientObjectVersions> {
    let answer = last.answered(200).filter(|answer| !answer.more)?;
    let mut pages = vec![answer];
    let mut page = last;
    while !page.ask.as_ref()?.first.is_empty() {
        let before = history.before(page).filter(|before| before.view == last.view && before.op < page.op)?;
        pages.push(before.answered(200).filter(|before| before.version == answer.version)?);
        page = before;
    }
    Some(ClientObjectVersions::of(pages.iter().flat_map(|page| &page.items), answer.version?))
}

/// Applies the events of a watch; stops once the client's state is wrong.
fn watch(
    history: &RunHistory,
    op: &RecordedOperation,
    truth: &ResourceGroundTruth,
    view: &SelectionView,
    mut held: ClientObjectVersions,
    judged: &mut GuaranteeVerdict,
) -> Option<ClientObjectVersions> {
    for reported in op.live() {
        match reported.kind {
            RecordedEventType::Added | RecordedEventType::Modified => held.put(reported),
            RecordedEventType::Deleted => held.drop(reported),
            RecordedEventType::Bookmark => {
                held.moment = reported.version;
                judge(history, op, truth, view, &held, reported.line, judged)?;
            }
            RecordedEventType::Error => break,
        }
    }
    // If a stream breaks amid changes of one version, a client that resumes at that version loses the remaining ones.
    let last = held.moment;
    let of_last = view.index_behind(last) - view.index_behind(last.saturating_sub(1));
    if of_last > 1 && held.sum != view.sum_at(last) {
        return None;
    }
    judge(history, op, truth, view, &held, op.over.map_or(0, |over| over.line), judged)?;
    Some(held)
}

fn judge(
    history: &RunHistory,
    op: &RecordedOperation,
    truth: &ResourceGroundTruth,
    view: &SelectionView,
    held: &ClientObjectVersions,
    line: u32,
    judged: &mut GuaranteeVerdict,
) -> Option<()> {
    let moment = held.moment;
    if !truth.knows(moment) {
        return Some(());
    }
    judged.instances += 1;
    if held.sum == view.sum_at(moment) {
        return Some(());
    }
    let mut replay = view.replay(truth);
    let objects = held.objects.iter().map(|(key, version)| (*key, *version));
    let found = difference(history, truth, replay.at(moment).iter(), objects);
    let (expected, got, change) = found.unwrap_or_default();
    judged.violation(op, &[change, line], || {
        (format!("a client that holds the state at {moment}, with {expected}"), format!("one {got}"))
    });
    None
}

impl ClientObjectVersions {
    fn of<'a>(reported: impl Iterator<Item = &'a ReceivedItem>, version: u64) -> Self {
        let mut held = Self::default();
        reported.for_each(|reported| held.put(reported));
        (held.event, held.moment) = (version, version);
        held
    }

    fn put(&mut self, reported: &ReceivedItem) {
        self.drop(reported);
        self.sum.add(reported.key, reported.version);
        self.objects.insert(reported.key, reported.version);
    }

    fn drop(&mut self, reported: &ReceivedItem) {
        if let Some(version) = self.objects.remove(&reported.key) {
            self.sum.take(reported.key, version);
        }
        (self.event, self.moment) = (reported.version, reported.version);
    }
}
