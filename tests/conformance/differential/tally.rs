//! The counts of a run, and the differences that it found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::time::Instant;

use super::compare::{Compared, Servers};
use super::probe::{Over, Probe};
use super::shrink::shrink;
use super::verdict::Counts;

pub struct Tally {
    started: Instant,
    pub counts: Counts,
    writes: u64,
    over: BTreeMap<Over, u64>,
    statuses: BTreeMap<u16, u64>,
    different: Vec<(Probe, Compared)>,
}

impl Default for Tally {
    fn default() -> Self {
        let (over, statuses, different) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { started: Instant::now(), counts: Counts::default(), writes: 0, over, statuses, different }
    }
}

impl Tally {
    pub fn count(&mut self, probe: Probe, compared: Compared) {
        self.counts.count(&compared, compared.verdict);
        self.writes += u64::from(probe.writes());
        *self.over.entry(probe.over).or_default() += 1;
        *self.statuses.entry(compared.expected.status).or_default() += 1;
        if compared.differs() {
            self.different.push((probe, compared));
        }
    }

    /// Each distinct difference once, shrunk.
    pub async fn differences(self, servers: &Servers, settled: u64, shown_max: usize) -> Vec<String> {
        let different = self.different.len();
        let mut seen = BTreeSet::new();
        let mut reports = Vec::new();
        for (probe, compared) in self.different.into_iter().take(shown_max) {
            let (probe, compared) = Box::pin(shrink(servers, probe, compared, settled)).await;
            if seen.insert(format!("{probe:?}")) {
                let [direct, through] = [&servers.direct, &servers.through].map(|server| probe.curl(&server.target));
                reports.push(format!("{direct}\n{through}{}", compared.explain()));
            }
        }
        if different > shown_max {
            reports.push(format!("and {} more that are not shown", different - shown_max));
        }
        reports
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { started, counts, writes, over, statuses, different } = self;
        write!(
            f,
            "{counts} in {:.0} s ({over:?}), {writes} that would write; statuses {statuses:?}; {} different",
            started.elapsed().as_secs_f64(),
            different.len()
        )
    }
}
