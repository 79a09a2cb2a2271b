//! Totals of many runs, and whether they are sufficient evidence.

use std::collections::BTreeMap;
use std::fmt;

use crate::faults::KINDS;
use crate::run::Ran;

/// Totals of the judged promises and faults.
#[derive(Default)]
pub struct Tally {
    pub seeds: u64,
    writes: u64,
    reads: u64,
    events: u64,
    virtual_seconds: u64,
    /// Number of judgements of a promise.
    judged: u64,
    /// The seed with the fewest judgements, and their number.
    least: Option<(u64, u64)>,
    /// Number of faults of each kind.
    faults: BTreeMap<&'static str, u64>,
}

/// Number of seeds that is expected to include every kind of fault.
pub const TELLING_SEEDS: u64 = 100;
/// A seed with fewer judgements is insufficient.
const JUDGED_MIN: u64 = 10;

impl Tally {
    /// Adds a run. Returns whether it has enough judgements.
    pub fn add(&mut self, seed: u64, ran: &Ran) -> bool {
        let counts = ran.verdict.counts;
        self.seeds += 1;
        self.writes += counts.writes;
        self.reads += counts.lists + counts.gets + counts.watches;
        self.events += counts.events;
        self.virtual_seconds += counts.milliseconds / 1000;
        let judged: u64 = ran.verdict.judged.iter().map(|judged| judged.instances).sum();
        self.judged += judged;
        if self.least.is_none_or(|(_, least)| judged < least) {
            self.least = Some((seed, judged));
        }
        for kind in &ran.faults {
            *self.faults.entry(kind).or_default() += 1;
        }
        judged >= JUDGED_MIN
    }

    /// Describes everything that is insufficient.
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if let Some((seed, judged)) = self.least.filter(|(_, judged)| *judged < JUDGED_MIN) {
            lacks.push(format!("seed {seed} has judged promises {judged} times, {JUDGED_MIN} are the least"));
        }
        if self.seeds >= TELLING_SEEDS {
            let unbroken = KINDS.iter().filter(|kind| !self.faults.contains_key(*kind));
            lacks.extend(unbroken.map(|kind| format!("{kind} never happened")));
        }
        lacks
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, writes, reads, events, virtual_seconds, judged, .. } = self;
        writeln!(
            f,
            "{seeds} seeds, {virtual_seconds} s of virtual time: {writes} writes, {reads} reads, {events} events"
        )?;
        let (least_seed, least) = self.least.unwrap_or_default();
        writeln!(f, "promises judged {judged} times, at least {least} times in a seed ({least_seed})")?;
        let faults: Vec<_> = self.faults.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        write!(f, "broken: {}", faults.join(", "))
    }
}
