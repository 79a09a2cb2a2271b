//! The verdict on a run, and its text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::BufRead;

use super::guarantee::ApiserverGuarantee;
use super::history::RunHistory;
use super::rates::RunCounts;
use super::record::{GroundTruthSource, RunRecord};
use super::refused_requests::RefusedRequests;
use super::server_switch_stats::ServerSwitchStats;
use super::violation::{GuaranteeVerdict, GuaranteeViolation};

/// The minimum activity of a run for a conclusive verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerdictRequirements {
    pub least: RunCounts,
    /// The guarantees that must have been checked at least once.
    pub judged: BTreeSet<ApiserverGuarantee>,
}

/// The outcome of a verification run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// The run passed: no violation was found.
    Passed,
    /// The run failed: a guarantee was violated.
    Violated,
    /// The run is inconclusive: no violation was found, but too little happened.
    Inconclusive,
}

/// The verdict on each guarantee in a run.
#[derive(Clone, Debug)]
pub struct RunVerdict {
    pub run: RunRecord,
    pub counts: RunCounts,
    pub hops: ServerSwitchStats,
    /// The verdicts in the order of [`ApiserverGuarantee::ALL`].
    pub judged: Vec<GuaranteeVerdict>,
    /// Refused requests that no guarantee covers.
    pub refused: Vec<RefusedRequests>,
    /// The requirements of a conclusive run that were not met.
    pub lacks: Vec<String>,
}

impl RunVerdict {
    pub fn of(history: &RunHistory, requirements: &VerdictRequirements) -> Self {
        let counts = RunCounts::of(history);
        let judged = history.judge_all();
        let mut lacks = counts.lacks(&requirements.least);
        let idle = judged.iter().filter(|judged| judged.instances == 0 && judged.broken == 0);
        let idle = idle.filter(|judged| requirements.judged.contains(&judged.promise));
        lacks.extend(idle.map(|judged| format!("no check of {}", judged.promise)));
        let refused = RefusedRequests::of(history);
        Self { run: history.run().clone(), counts, hops: ServerSwitchStats::of(history), judged, refused, lacks }
    }

    pub fn outcome(&self) -> VerifyOutcome {
        match (self.first(), self.lacks.is_empty()) {
            (Some(_), _) => VerifyOutcome::Violated,
            (None, true) => VerifyOutcome::Passed,
            (None, false) => VerifyOutcome::Inconclusive,
        }
    }

    /// The first violation, by the last record that shows it.
    pub fn first(&self) -> Option<&GuaranteeViolation> {
        let all = self.judged.iter().flat_map(|judged| &judged.violations);
        all.min_by_key(|violation| violation.lines.last().copied())
    }

    /// Formats the verdict for a terminal: each guarantee with its number of checks, and the first violation in full.
    /// `records` has the lines that the violation refers to, as [`excerpt`] returns them.
    pub fn text(&self, records: &BTreeMap<u32, String>) -> String {
        let mut text = String::new();
        let source = match self.run.truth {
            GroundTruthSource::Etcd => "etcd",
            GroundTruthSource::Direct => "a watch of the apiserver (weaker: events that it misses are not detected)",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} compared with {source}", self.run.url);
        let counts = self.counts.named().map(|(name, count)| format!("{count} {name}"));
        let _ = writeln!(text, "{}\n{}", counts.join(", "), self.hops.summary(&self.run));
        for judged in &self.judged {
            let _ = writeln!(text, "  {:<14} {}", judged.promise, verdict_text(judged));
        }
        if !self.refused.is_empty() {
            text.push_str("\nNot covered by a guarantee:\n");
        }
        for refused in &self.refused {
            let _ = writeln!(text, "  {refused}");
        }
        if let Some(first) = self.first() {
            let _ = writeln!(text, "\nFirst violation: {}", first.promise);
            let _ = writeln!(text, "  expected: {}\n  got:      {}", first.expected, first.got);
            for line in &first.lines {
                let record = records.get(line).map_or("", |record| record.trim_end());
                let _ = writeln!(text, "  line {line}: {record}");
            }
            if !self.run.command.is_empty() {
                let _ = writeln!(text, "  repeat with: {}", self.run.command);
            }
        }
        for lack in &self.lacks {
            let _ = writeln!(text, "\nInconclusive: {lack}");
        }
        text
    }
}

fn verdict_text(judged: &GuaranteeVerdict) -> String {
    match (judged.instances, judged.broken) {
        (0, 0) => "not checked".to_owned(),
        (instances, 0) => format!("ok in {instances} checks"),
        (instances, broken) => format!("VIOLATED {broken} times in {instances} checks"),
    }
}

impl VerifyOutcome {
    /// Returns the exit code for the verdict.
    pub fn code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Violated => 1,
            Self::Inconclusive => 2,
        }
    }
}

/// Returns the lines with the given numbers.
///
/// # Errors
/// The reader fails.
pub fn excerpt(from: impl BufRead, lines: &[u32]) -> std::io::Result<BTreeMap<u32, String>> {
    let mut found = BTreeMap::new();
    for (number, line) in (1..).zip(from.lines()) {
        let line = line?;
        if lines.contains(&number) {
            found.insert(number, line);
        }
    }
    Ok(found)
}
