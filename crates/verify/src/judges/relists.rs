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
    if history.asked.is_empty() {
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
        let during = |asked: &&NumberedHistoryRecord<UpstreamRequestRecord>| {
            fault.from_ns <= asked.record.at_ns && asked.record.at_ns < until
        };
        for asked in history.asked.iter().filter(during).filter(|asked| is_relist(&asked.record)) {
            let of_one = lists.entry((asked.record.path.as_str(), asked.record.encoding)).or_default();
            of_one.push(asked.line);
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
fn is_relist(asked: &UpstreamRequestRecord) -> bool {
    let call =
        CallRecord { verb: asked.verb, path: asked.path.clone(), query: asked.query.clone(), ..CallRecord::default() };
    let Some(ask) = ParsedRequest::parse(&call).filter(|_| asked.code == 200) else { return false };
    let is_whole = match asked.verb {
        ReadVerb::List => ask.limit != 1 && ask.first.is_empty(),
        ReadVerb::Watch => ask.explicit,
        ReadVerb::Get => false,
    };
    let is_of_memory = matches!(
        ask.plan,
        ExpectedReadVersion::Read(FreshnessRequirement::Any) | ExpectedReadVersion::State(FreshnessRequirement::Any)
    );
    is_whole && !ask.selection.is_selective() && (is_of_memory || !asked.forwarded)
}
