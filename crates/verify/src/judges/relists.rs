//! `OneRelist`: after an incident the server lists each resource once, independent of the number of its clients.

use std::collections::HashMap;

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::{NumberedHistoryRecord, RunHistory};
use super::super::parsed_request::{ExpectedReadVersion, FreshnessRequirement, ParsedRequest};
use super::super::record::{CallRecord, ReadVerb, RecordedEncoding, UpstreamRequestRecord};
use super::super::violation::GuaranteeVerdict;

/// Judges that from each fault to the next, a collection is listed at most as often as the fault took effect. One list
/// is always allowed.
pub(super) fn one_relist(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::OneRelist);
    // Without a record of the server's upstream requests, an excess list would not be noticed. Then nothing is judged.
    if history.upstream_requests.is_empty() {
        return judged;
    }
    let mut faults: Vec<_> = history.faults.iter().map(|line| &line.record).collect();
    faults.sort_by_key(|fault| fault.from_ns);
    for (at, fault) in faults.iter().enumerate() {
        let until = faults.get(at + 1).map_or(u64::MAX, |next| next.from_ns);
        if fault.waives.contains(&ApiserverGuarantee::OneRelist) {
            continue;
        }
        judged.instances += 1;
        let mut lists: HashMap<(&str, RecordedEncoding), Vec<u32>> = HashMap::new();
        let during = |request: &&NumberedHistoryRecord<UpstreamRequestRecord>| {
            fault.from_ns <= request.record.at_ns && request.record.at_ns < until
        };
        for request in history.upstream_requests.iter().filter(during).filter(|request| is_relist(&request.record)) {
            let of_one = lists.entry((request.record.path.as_str(), request.record.encoding)).or_default();
            of_one.push(request.line);
        }
        let allowed = usize::try_from(fault.hits).unwrap_or(usize::MAX).max(1);
        let mut lists: Vec<_> = lists.into_iter().filter(|(_, lines)| lines.len() > allowed).collect();
        lists.sort_unstable();
        for ((path, _), lines) in lists {
            let expected =
                format!("at most {allowed} lists of {path} after {} at {} ms", fault.name, fault.from_ns / 1_000_000);
            judged.violation_of_none(lines.clone(), expected, format!("{} lists", lines.len()));
        }
    }
    judged
}

/// Whether a request reads a whole state: a list without a continue token, or a watch with initial events. Requests for
/// one object, or with a selector, only find the store's version. Among forwarded requests, only those for any version
/// count: informers begin with them, and the server's cache must answer them.
fn is_relist(request: &UpstreamRequestRecord) -> bool {
    let call = CallRecord {
        verb: request.verb,
        path: request.path.clone(),
        query: request.query.clone(),
        ..CallRecord::default()
    };
    let Some(parsed) = ParsedRequest::parse(&call).filter(|_| request.code == 200) else { return false };
    let is_whole = match request.verb {
        ReadVerb::List => parsed.limit != 1 && parsed.first.is_empty(),
        ReadVerb::Watch => parsed.explicit,
        ReadVerb::Get => false,
    };
    let is_of_memory = matches!(
        parsed.plan,
        ExpectedReadVersion::Read(FreshnessRequirement::Any) | ExpectedReadVersion::State(FreshnessRequirement::Any)
    );
    is_whole && !parsed.selection.is_selective() && (is_of_memory || !request.forwarded)
}
