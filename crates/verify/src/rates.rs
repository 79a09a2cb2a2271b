//! How much happened in a run, and how little is too little to say anything.

use super::history::History;
use super::record::{EventKind, ReadVerb};

/// How much happened, or must at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes that succeeded.
    pub writes: u64,
    /// Watches of the judged servers that were accepted.
    pub watches: u64,
    /// How many of those went on from another or from a list.
    pub resumes: u64,
    /// How many of those came from another server.
    pub hops: u64,
    /// Events of objects that they delivered.
    pub events: u64,
    pub bookmarks: u64,
    /// Lists and pages that were answered.
    pub lists: u64,
    /// GETs that were answered.
    pub gets: u64,
    /// How often faults took effect.
    pub faults: u64,
    /// Whole milliseconds that the run lasted.
    pub milliseconds: u64,
}

impl Counts {
    pub fn of(history: &History) -> Self {
        let succeeded = |code: u16| (200..300).contains(&code);
        let mut counts = Self {
            writes: history.written.iter().filter(|line| succeeded(line.record.code)).count() as u64,
            faults: history.faults.iter().map(|line| line.record.hits).sum(),
            milliseconds: history.end_ns / 1_000_000,
            ..Self::default()
        };
        for op in history.operations.iter().filter(|op| op.server.is_judged() && op.answered(200).is_some()) {
            match op.verb {
                ReadVerb::Get => counts.gets += 1,
                ReadVerb::List => counts.lists += 1,
                ReadVerb::Watch => {
                    counts.watches += 1;
                    counts.resumes += u64::from(op.resumes.is_some());
                    counts.hops += u64::from(history.before(op).is_some_and(|before| before.server != op.server));
                    counts.events += op.events.iter().filter(|told| told.is_object()).count() as u64;
                    let bookmarks = op.events.iter().filter(|told| told.kind == EventKind::Bookmark);
                    counts.bookmarks += bookmarks.count() as u64;
                }
            }
        }
        counts
    }

    /// What there was too little of, in words. `least` says how much there must be.
    pub fn lacks(&self, least: &Self) -> Vec<String> {
        let short = |((name, had), (_, needed)): (&(&str, u64), &(&str, u64))| {
            (had < needed).then(|| format!("{had} {name}, {needed} are needed"))
        };
        self.named().iter().zip(&least.named()).filter_map(short).collect()
    }

    /// Each with its name.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("writes", self.writes),
            ("watches", self.watches),
            ("resumes", self.resumes),
            ("hops", self.hops),
            ("events", self.events),
            ("bookmarks", self.bookmarks),
            ("lists", self.lists),
            ("GETs", self.gets),
            ("faults", self.faults),
            ("milliseconds", self.milliseconds),
        ]
    }
}
