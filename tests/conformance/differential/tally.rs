//! The counts of a run, and the differences that it found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::time::Instant;

use super::compare::{Compared, Servers};
use super::probe::{Over, Probe};
use super::shrink::shrink;
use super::verdict::Counts;

/// The number of responses above which some must be compressed.
const FEW: u64 = 20;

pub struct Tally {
    started: Instant,
    pub counts: Counts,
    writes: u64,
    over: BTreeMap<Over, u64>,
    statuses: BTreeMap<u16, u64>,
    /// The responses of the apiserver to requests that name gzip, by kind: how many are compressed, of how many.
    named_gzip: BTreeMap<&'static str, [u64; 2]>,
    /// The number of cached responses that were compared with the apiserver's without managedFields.
    reduced: u64,
    different: Vec<(Probe, Compared)>,
}

impl Default for Tally {
    fn default() -> Self {
        let (over, statuses, named_gzip) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (started, counts) = (Instant::now(), Counts::default());
        Self { started, counts, writes: 0, over, statuses, named_gzip, reduced: 0, different: Vec::new() }
    }
}

impl Tally {
    pub fn count(&mut self, probe: Probe, compared: Compared) {
        self.counts.count(&compared, compared.verdict);
        self.writes += u64::from(probe.writes());
        *self.over.entry(probe.over).or_default() += 1;
        *self.statuses.entry(compared.expected.status).or_default() += 1;
        if probe.headers.iter().any(|(name, value)| *name == "accept-encoding" && value.contains("gzip")) {
            let kind = match (compared.expected.status, compared.watch) {
                (200, true) if probe.target().contains("sendInitialEvents=") => "watch-list",
                (200, true) => "watch",
                (200, false) => "read",
                _ => "error",
            };
            let encoding = ("content-encoding".to_owned(), "gzip".to_owned());
            let [compressed, all] = self.named_gzip.entry(kind).or_default();
            *compressed += u64::from(compared.expected.headers.contains(&encoding));
            *all += 1;
        }
        let is_reduced = compared.cached && compared.expected.status == 200 && probe.is_reduced();
        self.reduced += u64::from(is_reduced);
        if compared.differs() {
            self.different.push((probe, compared));
        }
    }

    /// Reports kinds of responses of which none was compressed or without managedFields, so that nothing was compared.
    pub fn uncompared(&self) -> Vec<String> {
        let none = self.named_gzip.iter().filter(|(kind, [compressed, all])| {
            matches!(**kind, "read" | "watch-list") && *compressed == 0 && *all > FEW
        });
        let none = none.map(|(kind, [_, all])| format!("none of {all} responses of the kind {kind} is compressed"));
        let is_none = self.reduced == 0 && self.counts.requests > 50 * FEW;
        none.chain(is_none.then(|| "no cached response is without managedFields".to_owned())).collect()
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
        let Self { started, counts, writes, over, statuses, named_gzip, reduced, different } = self;
        write!(
            f,
            "{counts} in {:.0} s ({over:?}), {writes} that would write; statuses {statuses:?}; compressed {named_gzip:?}; {reduced} without managedFields; {} different",
            started.elapsed().as_secs_f64(),
            different.len()
        )
    }
}
