//! The faults that took effect, by kind and place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::framing::{Cargo, Direction};
use super::plan::{Kind, Place};

/// Faults that took effect on bytes in flight.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    hits: BTreeMap<(Kind, Place), u64>,
    /// The offsets in the affected units.
    offsets: BTreeSet<usize>,
    /// The number of faults that occurred during or shortly after another one, on either side of the proxy.
    together: u64,
}

impl Tally {
    pub fn hit(&mut self, kind: Kind, place: Place, offset: usize, is_together: bool) {
        *self.hits.entry((kind, place)).or_default() += 1;
        self.offsets.insert(offset);
        self.together += u64::from(is_together);
    }

    pub fn of(&self, kind: Kind) -> u64 {
        self.hits.iter().filter(|((hit, _), _)| *hit == kind).map(|(_, count)| count).sum()
    }

    pub fn at(&self, kind: Kind, place: Place) -> u64 {
        self.hits.get(&(kind, place)).copied().unwrap_or(0)
    }

    pub fn all(&self) -> u64 {
        self.hits.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
        for ((kind, place), count) in &self.hits {
            let arrow = if place.direction == Direction::Up { "▲" } else { "▼" };
            let cargo = if place.cargo == Cargo::Other { String::new() } else { format!(" {:?}", place.cargo) };
            kinds.entry(*kind).or_default().push(format!("{:?}{arrow}{cargo} {count}", place.wire));
        }
        let kinds: Vec<_> =
            kinds.iter().map(|(kind, by)| format!("{} {kind:?} ({})", self.of(*kind), by.join(", "))).collect();
        let (all, offsets) = (self.all(), self.offsets.len());
        write!(f, "{all} hits, {} of them together, at {offsets} offsets: {}", self.together, kinds.join("; "))
    }
}
