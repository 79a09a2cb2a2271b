//! Results of a run that are not violations, because docs/DIFFERENCES.md documents them.

use verify::{ApiserverGuarantee, GroundTruthRecord, GuaranteeViolation, HistoryRecord, RecordedEventType, RunVerdict};

/// Kinds of faults after which upstream has another window.
const FORGET: [&str; 3] = ["Restart", "ForgetWindow", "Compact"];

/// The promises that were broken, except for documented differences.
pub fn broken(verdict: &RunVerdict, lines: &[u8]) -> Vec<ApiserverGuarantee> {
    let broken: Vec<_> = verdict.judged.iter().filter(|judged| judged.broken > 0).collect();
    if broken.is_empty() {
        return Vec::new();
    }
    let records = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let records: Vec<HistoryRecord> = records.map(|line| serde_json::from_slice(line).expect("a record")).collect();
    let is_excused = |violation: &GuaranteeViolation| {
        matches!(violation.promise, ApiserverGuarantee::Reliable | ApiserverGuarantee::Resumable)
            && came_and_went(violation, &records)
    };
    let kept = |violations: &[GuaranteeViolation], broken: u64| {
        violations.len() as u64 == broken && violations.iter().all(is_excused)
    };
    broken.iter().filter(|judged| !kept(&judged.violations, judged.broken)).map(|judged| judged.promise).collect()
}

/// Whether the missing events are of an object that was created and deleted before upstream's window restarted. A
/// mended gap does not contain these.
fn came_and_went(violation: &GuaranteeViolation, records: &[HistoryRecord]) -> bool {
    let mut cited = violation.lines.iter().filter_map(|line| records.get(*line as usize - 1));
    let missed = cited.find_map(truth);
    let forgot = records.iter().filter_map(|record| match record {
        HistoryRecord::Fault(fault) if FORGET.iter().any(|kind| fault.name.starts_with(kind)) => Some(fault.from_ns),
        _ => None,
    });
    let forgot: Vec<_> = forgot.collect();
    let windows = records.iter().filter_map(|record| match record {
        HistoryRecord::Window(window) if forgot.contains(&window.at_ns) => Some(window.version),
        _ => None,
    });
    let (Some(missed), Some(window)) = (missed, windows.max()) else { return false };
    let mut later = records.iter().filter_map(truth).filter(|change| change.key == missed.key);
    later.any(|change| {
        change.kind == RecordedEventType::Deleted && missed.version <= change.version && change.version <= window
    })
}

fn truth(record: &HistoryRecord) -> Option<&GroundTruthRecord> {
    if let HistoryRecord::Truth(change) = record { Some(change) } else { None }
}
