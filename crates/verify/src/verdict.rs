//! The verdict on a run, and its text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::BufRead;

use super::history::History;
use super::hops::Hops;
use super::promise::Promise;
use super::rates::Counts;
use super::record::{RunRecord, TruthSource};
use super::refused_requests::RefusedRequests;
use super::violation::{Judged, Violation};

/// The minimum for a conclusive run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    pub least: Counts,
    /// Promises of which at least one instance must have been judged.
    pub judged: BTreeSet<Promise>,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every promise was kept wherever it was judged.
    Kept,
    /// At least one promise was broken.
    Broken,
    /// Nothing was broken, but too little happened for a conclusion.
    Void,
}

/// The verdict on each promise of a run.
#[derive(Clone, Debug)]
pub struct RunVerdict {
    pub run: RunRecord,
    pub counts: Counts,
    pub hops: Hops,
    /// In the order of [`Promise::ALL`].
    pub judged: Vec<Judged>,
    /// Refusals that no promise covers.
    pub refused: Vec<RefusedRequests>,
    /// The counts that are below the minimum.
    pub lacks: Vec<String>,
}

impl RunVerdict {
    pub fn of(history: &History, requirements: &Requirements) -> Self {
        let counts = Counts::of(history);
        let judged = history.judge_all();
        let mut lacks = counts.lacks(&requirements.least);
        let idle = judged.iter().filter(|judged| judged.instances == 0 && judged.broken == 0);
        let idle = idle.filter(|judged| requirements.judged.contains(&judged.promise));
        lacks.extend(idle.map(|judged| format!("nothing to judge {} by", judged.promise)));
        let refused = RefusedRequests::of(history);
        Self { run: history.run().clone(), counts, hops: Hops::of(history), judged, refused, lacks }
    }

    pub fn outcome(&self) -> Outcome {
        match (self.first(), self.lacks.is_empty()) {
            (Some(_), _) => Outcome::Broken,
            (None, true) => Outcome::Kept,
            (None, false) => Outcome::Void,
        }
    }

    /// Returns the violation that appears first, by the last record that shows it.
    pub fn first(&self) -> Option<&Violation> {
        let all = self.judged.iter().flat_map(|judged| &judged.violations);
        all.min_by_key(|violation| violation.lines.last().copied())
    }

    /// Formats the verdict for a terminal: how often each promise was judged, and the first violation in full.
    /// `records` are the texts of the lines in the violation, from [`excerpt`].
    pub fn text(&self, records: &BTreeMap<u32, String>) -> String {
        let mut text = String::new();
        let source = match self.run.truth {
            TruthSource::Etcd => "etcd",
            TruthSource::Direct => "a watch at the apiserver, which is weaker: what it misses nobody misses",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} judged by the truth from {source}", self.run.url);
        let counts = self.counts.named().map(|(name, count)| format!("{count} {name}"));
        let _ = writeln!(text, "{}\n{}", counts.join(", "), self.hops.words(&self.run));
        for judged in &self.judged {
            let _ = writeln!(text, "  {:<14} {}", judged.promise, words(judged));
        }
        if !self.refused.is_empty() {
            text.push_str("\nNo promise is about these:\n");
        }
        for refused in &self.refused {
            let _ = writeln!(text, "  {refused}");
        }
        if let Some(first) = self.first() {
            let _ = writeln!(text, "\nThe first violation: {}", first.promise);
            let _ = writeln!(text, "  expected: {}\n  got:      {}", first.expected, first.got);
            for line in &first.lines {
                let record = records.get(line).map_or("", |record| record.trim_end());
                let _ = writeln!(text, "  line {line}: {record}");
            }
            if !self.run.command.is_empty() {
                let _ = writeln!(text, "  again: {}", self.run.command);
            }
        }
        for lack in &self.lacks {
            let _ = writeln!(text, "\nThe run is void: {lack}");
        }
        text
    }
}

fn words(judged: &Judged) -> String {
    match (judged.instances, judged.broken) {
        (0, 0) => "not judged".to_owned(),
        (instances, 0) => format!("ok in {instances}"),
        (instances, broken) => format!("BROKEN {broken} times in {instances}"),
    }
}

impl Outcome {
    /// Returns the exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Kept => 0,
            Self::Broken => 1,
            Self::Void => 2,
        }
    }
}

/// Returns the lines with these numbers.
///
/// # Errors
/// Errors of the reader.
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
