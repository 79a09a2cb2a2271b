//! Consistent and Monotone: a response contains everything known before the request.

use std::collections::HashMap;

use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::parsed_request::{ExpectedReadVersion, FreshnessRequirement};
use super::super::record::{ReadVerb, RecordedEncoding, RequestServerRole};
use super::super::timeline::VersionTimeline;
use super::super::violation::GuaranteeVerdict;
use super::versions::{ResponseVersion, response_version};

/// Judges that a response to a request without a version contains everything that any participant knew before the
/// request.
pub(super) fn consistent(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Consistent);
    for op in history.judged(ApiserverGuarantee::Consistent) {
        let plan = op.request.as_ref().map(|request| request.plan);
        let Some(
            ExpectedReadVersion::Read(FreshnessRequirement::Consistent)
            | ExpectedReadVersion::State(FreshnessRequirement::Consistent)
            | ExpectedReadVersion::Next(FreshnessRequirement::Consistent),
        ) = plan
        else {
            continue;
        };
        let Some(truth) = history.truth(op) else { continue };
        let known = history.witnessed(op, op.at_ns).min(truth.to);
        if matches!(plan, Some(ExpectedReadVersion::Next(_))) {
            next(history, op, known, &mut judged);
            continue;
        }
        let Some(response) = response_version(history, op) else { continue };
        judged.instances += 1;
        let expected = || format!("all changes up to {known}, which was known before");
        match response {
            // A list may have an older version if it contains all current objects: nothing has changed since, or every
            // change was undone.
            ResponseVersion::State { version, line } => {
                let newer = truth.difference(version, known);
                if let Some(change) = newer {
                    judged.violation(op, &[change.line, line], || {
                        (
                            format!("{}, with {}", expected(), event_text::change(history, change)),
                            format!("the state at {version}"),
                        )
                    });
                }
            }
            ResponseVersion::Object { .. } => response.judge(history, op, known, &mut judged, expected),
        }
    }
    judged
}

/// Checks that a watch that begins with the next event begins after everything known.
fn next(history: &RunHistory, op: &RecordedOperation, known: u64, judged: &mut GuaranteeVerdict) {
    let Some(received) = op.events.iter().find(|received| received.is_object()) else { return };
    judged.instances += 1;
    if received.version <= known {
        judged.violation(op, &[received.line], || {
            (format!("events after {known}, which was known before"), event_text::received(history, received))
        });
    }
}

/// Judges that a response from a cache is not older than an earlier one. A server that marks responses from its cache
/// forwards the other requests to its upstream, so those are not compared.
pub(super) fn monotone(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Monotone);
    let waived = waived(history);
    let seen = seen(history, &waived);
    for op in history.judged(ApiserverGuarantee::Monotone).filter(|op| history.may_be_from_memory(op)) {
        let Some(request) = &op.request else { continue };
        let (ExpectedReadVersion::Read(FreshnessRequirement::Any)
        | ExpectedReadVersion::State(FreshnessRequirement::Any)) = request.plan
        else {
            continue;
        };
        let Some(response) = response_version(history, op) else { continue };
        judged.instances += 1;
        let timeline = seen.get(&(op.server, request.collection.as_str(), op.encoding, period(&waived, op.at_ns)));
        let known = timeline.map_or(0, |seen| seen.before(op.at_ns));
        response
            .judge(history, op, known, &mut judged, || format!("a response at {known} or later, like an earlier one"));
    }
    judged
}

/// The key of one cache: a server, a collection, an encoding, and a period between two moments.
type FreshnessCacheKey<'a> = (RequestServerRole, &'a str, RecordedEncoding, usize);

/// Collects the version that each judged server had returned from its cache by each moment. Each collection and
/// encoding has its own cache. The collection starts again whenever a fault permits the server to go back.
fn seen<'a>(history: &'a RunHistory, waived: &[u64]) -> HashMap<FreshnessCacheKey<'a>, VersionTimeline> {
    let mut points: HashMap<_, Vec<_>> = HashMap::new();
    let shows_memory = |op: &&RecordedOperation| op.server.is_judged() && history.may_be_from_memory(op);
    for op in history.operations.iter().filter(shows_memory) {
        let Some(request) = &op.request else { continue };
        let mut add = |at_ns, version| {
            let key = (op.server, request.collection.as_str(), op.encoding, period(waived, at_ns));
            points.entry(key).or_default().push((at_ns, version));
        };
        for received in op.events.iter().filter(|received| received.is_bookmark()) {
            add(received.at_ns, received.version);
        }
        // With a limit, the response may come from the store.
        let is_memory = match request.plan {
            ExpectedReadVersion::Read(FreshnessRequirement::Any) => true,
            ExpectedReadVersion::Read(FreshnessRequirement::NotOlderThan(_)) => request.limit == 0,
            _ => false,
        };
        let answer = op.answered(200).filter(|_| is_memory && op.verb == ReadVerb::List);
        if let Some((at_ns, version)) = answer.and_then(|answer| Some((answer.at_ns, answer.version?))) {
            add(at_ns, version);
        }
    }
    points.into_iter().map(|(key, points)| (key, VersionTimeline::new(points))).collect()
}

/// Returns the start of each fault that permits a server to go back, in order.
fn waived(history: &RunHistory) -> Vec<u64> {
    let faults = history.faults.iter().map(|line| &line.record);
    let waives = faults.filter(|fault| fault.waives.contains(&ApiserverGuarantee::Monotone));
    let mut began: Vec<_> = waives.map(|fault| fault.from_ns).collect();
    began.sort_unstable();
    began
}

/// Returns how many of the faults had begun by a moment.
fn period(began: &[u64], at_ns: u64) -> usize {
    began.partition_point(|began| *began <= at_ns)
}
