//! What was hit, by kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::framing::{Direction, Wire};
use super::plan::Kind;

/// Faults that took effect: bytes that had been sent were on their way when each was done.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    hits: BTreeMap<(Kind, Wire, Direction), u64>,
    /// Their offsets in the units that they met.
    offsets: BTreeSet<usize>,
}

impl Tally {
    pub fn hit(&mut self, kind: Kind, wire: Wire, direction: Direction, offset: usize) {
        *self.hits.entry((kind, wire, direction)).or_default() += 1;
        self.offsets.insert(offset);
    }

    pub fn of(&self, kind: Kind) -> u64 {
        self.hits.iter().filter(|((hit, ..), _)| *hit == kind).map(|(_, count)| count).sum()
    }

    pub fn all(&self) -> u64 {
        self.hits.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
        for ((kind, wire, direction), count) in &self.hits {
            let arrow = if *direction == Direction::Up { "▲" } else { "▼" };
            kinds.entry(*kind).or_default().push(format!("{wire:?}{arrow} {count}"));
        }
        let kinds: Vec<_> =
            kinds.iter().map(|(kind, by)| format!("{} {kind:?} ({})", self.of(*kind), by.join(", "))).collect();
        write!(f, "{} hits at {} offsets: {}", self.all(), self.offsets.len(), kinds.join("; "))
    }
}
