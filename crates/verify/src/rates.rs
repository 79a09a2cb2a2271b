//! How much happened in a run, and how much a conclusive run requires.

use super::history::RunHistory;
use super::record::{ReadVerb, RecordedEventType};

/// Counts of what happened, or the minimum of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// The number of successful writes.
    pub writes: u64,
    /// The number of accepted watches of the judged servers.
    pub watches: u64,
    /// The number of watches that resumed another watch or a list.
    pub resumes: u64,
    /// The number of resumed watches that resumed at another server.
    pub hops: u64,
    /// The number of events of objects in these watches.
    pub events: u64,
    pub bookmarks: u64,
    /// The number of successful lists and pages.
    pub lists: u64,
    /// The number of successful GETs.
    pub gets: u64,
    /// The number of times that faults took effect.
    pub faults: u64,
    /// The duration of the run in whole milliseconds.
    pub milliseconds: u64,
}

impl RunCounts {
    pub fn of(history: &RunHistory) -> Self {
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
                    counts.events += op.events.iter().filter(|received| received.is_object()).count() as u64;
                    let bookmarks = op.events.iter().filter(|received| received.kind == RecordedEventType::Bookmark);
                    counts.bookmarks += bookmarks.count() as u64;
                }
            }
        }
        counts
    }

    /// Describes each count that is below the minimum in `least`.
    pub fn lacks(&self, least: &Self) -> Vec<String> {
        let short = |((name, had), (_, needed)): (&(&str, u64), &(&str, u64))| {
            (had < needed).then(|| format!("{had} {name}, at least {needed} required"))
        };
        self.named().iter().zip(&least.named()).filter_map(short).collect()
    }

    /// Returns each count with its name.
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
