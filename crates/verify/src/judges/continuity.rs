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
    let mut states: HashMap<OperationId, ClientObjectVersions> = HashMap::new();
    for op in history.watches(ApiserverGuarantee::Continuity) {
        let Some((truth, view)) = history.view(op) else { continue };
        let Some(base) = base(history, op, &mut states, &mut resumed) else { continue };
        let after = watch(history, op, truth, view, base, &mut judged);
        if let Some(after) = after.filter(|_| resumed.contains_key(&op.op)) {
            states.insert(op.op, after);
        }
    }
    judged
}

/// Returns the client's state at the beginning of the watch.
fn base(
    history: &RunHistory,
    op: &RecordedOperation,
    states: &mut HashMap<OperationId, ClientObjectVersions>,
    resumed: &mut HashMap<OperationId, usize>,
) -> Option<ClientObjectVersions> {
    if op.state.is_some() {
        return Some(ClientObjectVersions::of(op.initial().iter(), op.state?));
    }
    let (start, before) = (op.start()?, history.before(op)?);
    if before.verb == ReadVerb::List {
        return listed(history, before).filter(|state| state.moment == start && before.view == op.view);
    }
    // The last watch that resumes from another one takes its state.
    let left = resumed.get_mut(&before.op)?;
    *left = left.saturating_sub(1);
    let state = if *left == 0 { states.remove(&before.op) } else { states.get(&before.op).cloned() };
    state.filter(|state| (state.event..=state.moment).contains(&start) && before.view == op.view)
}

/// Returns the state from the pages of a list that ends with this operation. All pages must have the same version.
fn listed(history: &RunHistory, last: &RecordedOperation) -> Option<ClientObjectVersions> {
    let answer = last.answered(200).filter(|answer| !answer.more)?;
    let mut pages = vec![answer];
    let mut page = last;
    while !page.request.as_ref()?.first.is_empty() {
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
    mut state: ClientObjectVersions,
    judged: &mut GuaranteeVerdict,
) -> Option<ClientObjectVersions> {
    for received in op.live() {
        match received.kind {
            RecordedEventType::Added | RecordedEventType::Modified => state.put(received),
            RecordedEventType::Deleted => state.drop(received),
            RecordedEventType::Bookmark => {
                state.moment = received.version;
                judge(history, op, truth, view, &state, received.line, judged)?;
            }
            RecordedEventType::Error => break,
        }
    }
    // If a stream breaks amid changes of one version, a client that resumes at that version loses the remaining ones.
    let last = state.moment;
    let of_last = view.index_behind(last) - view.index_behind(last.saturating_sub(1));
    if of_last > 1 && state.sum != view.sum_at(last) {
        return None;
    }
    judge(history, op, truth, view, &state, op.over.map_or(0, |over| over.line), judged)?;
    Some(state)
}

fn judge(
    history: &RunHistory,
    op: &RecordedOperation,
    truth: &ResourceGroundTruth,
    view: &SelectionView,
    state: &ClientObjectVersions,
    line: u32,
    judged: &mut GuaranteeVerdict,
) -> Option<()> {
    let moment = state.moment;
    if !truth.knows(moment) {
        return Some(());
    }
    judged.instances += 1;
    if state.sum == view.sum_at(moment) {
        return Some(());
    }
    let mut replay = view.replay(truth);
    let objects = state.objects.iter().map(|(key, version)| (*key, *version));
    let found = difference(history, truth, replay.at(moment).iter(), objects);
    let (expected, got, change) = found.unwrap_or_default();
    judged.violation(op, &[change, line], || {
        (format!("a client that holds the state at {moment}, with {expected}"), format!("one {got}"))
    });
    None
}

impl ClientObjectVersions {
    fn of<'a>(received: impl Iterator<Item = &'a ReceivedItem>, version: u64) -> Self {
        let mut state = Self::default();
        received.for_each(|received| state.put(received));
        (state.event, state.moment) = (version, version);
        state
    }

    fn put(&mut self, received: &ReceivedItem) {
        self.drop(received);
        self.sum.add(received.key, received.version);
        self.objects.insert(received.key, received.version);
    }

    fn drop(&mut self, received: &ReceivedItem) {
        if let Some(version) = self.objects.remove(&received.key) {
            self.sum.take(received.key, version);
        }
        (self.event, self.moment) = (received.version, received.version);
    }
}
