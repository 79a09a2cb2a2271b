//! What a run came to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::time::Instant;

use super::compare::{Compared, Servers};
use super::probe::{Over, Probe};
use super::shrink::shrink;

pub struct Tally {
    started: Instant,
    requests: u64,
    watches: u64,
    cached: u64,
    writes: u64,
    over: BTreeMap<Over, u64>,
    statuses: BTreeMap<u16, u64>,
    /// Answered alike when asked again.
    again: Vec<Probe>,
    different: Vec<(Probe, Compared)>,
}

impl Default for Tally {
    fn default() -> Self {
        let (over, statuses, again, different) = (BTreeMap::new(), BTreeMap::new(), Vec::new(), Vec::new());
        Self {
            started: Instant::now(),
            requests: 0,
            watches: 0,
            cached: 0,
            writes: 0,
            over,
            statuses,
            again,
            different,
        }
    }
}

impl Tally {
    pub fn count(&mut self, probe: Probe, compared: Compared, tellings: usize) {
        self.requests += 1;
        self.watches += u64::from(compared.watch);
        self.cached += u64::from(compared.cached);
        self.writes += u64::from(probe.writes());
        *self.over.entry(probe.over).or_default() += 1;
        *self.statuses.entry(compared.expected.status).or_default() += 1;
        if compared.differs() {
            self.different.push((probe, compared));
        } else if tellings > 1 {
            self.again.push(probe);
        }
    }

    /// Each difference once, as small as it gets.
    pub async fn differences(self, servers: &Servers, shown_max: usize) -> Vec<String> {
        let different = self.different.len();
        let mut seen = BTreeSet::new();
        let mut reports = Vec::new();
        for (probe, compared) in self.different.into_iter().take(shown_max) {
            let (probe, compared) = Box::pin(shrink(servers, probe, compared)).await;
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
        let Self { started, requests, watches, cached, writes, over, statuses, again, different } = self;
        write!(
            f,
            "{requests} requests in {:.0} s ({over:?}), {watches} watches, {writes} that would write, {cached} \
             answered from the cache; statuses {statuses:?}; {} alike when asked again, {} different",
            started.elapsed().as_secs_f64(),
            again.len(),
            different.len()
        )?;
        again.iter().take(3).try_for_each(|probe| write!(f, "; again: {} {}", probe.method, probe.target()))
    }
}
