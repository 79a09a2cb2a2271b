//! The counts of a run of sequences.

use std::collections::BTreeMap;
use std::fmt;

use super::drawn::{Begins, Outage, Victim};
use crate::bed::Metrics;
use crate::follower::Follower;

const QUESTIONS: &str = "kube_fanout_feed_requests_total";
const GAPS: &str = "kube_fanout_history_gaps_total";
/// What the proxy asks to have a state again.
const LISTS: [&str; 3] = ["relist", "initial", "backfill"];

#[derive(Debug, Clone, Default)]
pub struct Tally {
    outages: BTreeMap<String, u32>,
    /// Outages that started during the recovery from the previous one.
    overlaps: BTreeMap<String, u32>,
    pub kills_of_proxy: u32,
    /// The proxy's counters, of earlier processes and of the current one.
    earlier: BTreeMap<String, i64>,
    this: BTreeMap<String, i64>,
    pub changes: usize,
    clients: u32,
    resumed: u32,
    expired: u32,
}

impl Tally {
    pub fn outage(&mut self, outage: &Outage) {
        *self.outages.entry(format!("{:?}", outage.victim)).or_default() += 1;
        self.kills_of_proxy += u32::from(matches!(outage.victim, Victim::Proxy | Victim::Both));
    }

    /// Counts an outage that starts during a recovery.
    pub fn overlap(&mut self, next: Begins) {
        *self.overlaps.entry(format!("{next:?}")).or_default() += 1;
    }

    pub fn overlapping(&self) -> u32 {
        self.overlaps.values().sum()
    }

    pub fn client(&mut self, client: &Follower) {
        self.clients += 1;
        self.resumed += client.resumed;
        self.expired += client.expired;
    }

    /// Records the proxy's current counters. Panics if it reported a different upstream history, which never occurs
    /// here.
    pub fn note(&mut self, metrics: &Metrics) {
        for outcome in ["mended", "new_history", "rewound", "different"] {
            self.this.insert(outcome.to_owned(), metrics.sum(GAPS, &[("outcome", outcome)]));
        }
        for purpose in LISTS.into_iter().chain(["past_object"]) {
            self.this.insert(purpose.to_owned(), metrics.sum(QUESTIONS, &[("purpose", purpose)]));
        }
        assert_eq!(self.this["rewound"] + self.this["different"], 0, "upstream's history continued");
    }

    /// Records that the proxy process has ended.
    pub fn over(&mut self) {
        for (what, count) in std::mem::take(&mut self.this) {
            *self.earlier.entry(what).or_default() += count;
        }
    }

    /// The counters of the current process at the last scrape.
    pub fn of_this_life(&self) -> Self {
        Self { this: self.this.clone(), ..Self::default() }
    }

    fn requests(&self, purposes: &[&str]) -> i64 {
        purposes.iter().filter_map(|purpose| self.this.get(*purpose)).sum()
    }

    pub fn lists(&self) -> i64 {
        self.requests(&LISTS)
    }

    pub fn past(&self) -> i64 {
        self.requests(&["past_object"])
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counted = self.earlier.clone();
        for (what, count) in &self.this {
            *counted.entry(what.clone()).or_default() += count;
        }
        let Self { outages, overlaps, changes, clients, resumed, expired, .. } = self;
        write!(
            f,
            "outages {outages:?}, amid the recovery from another one {overlaps:?}; {changes} changes; {clients} \
             watches, {resumed} resumes, {expired} times 410 where the apiserver had forgotten as well; the proxies \
             counted {counted:?}"
        )
    }
}
