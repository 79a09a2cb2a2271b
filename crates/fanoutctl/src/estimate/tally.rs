use std::collections::{BTreeSet, HashMap, HashSet};

use kube_fanout::auth::AuthConfig;
use kube_fanout::preflight::ReviewedLoad;
use serde::Serialize;

use super::audit_event::{AuditLogEvent, AuditStage, RequestClass};
use super::{EstimateOptions, LoadEstimate};

/// The tally of the requests of one program for one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentLoadRow {
    pub agent: String,
    pub resource: String,
    /// The number of LISTs, watches and GETs that would be served from the cache.
    pub lists: u64,
    pub watches: u64,
    pub gets: u64,
    /// The number of requests that would still go to upstream.
    pub rest: u64,
}

/// The tally of the records read so far.
#[derive(Debug, Default)]
pub(super) struct AuditLogTally {
    rows: HashMap<(String, String), AgentRequestCounts>,
    /// The resources that clients list or watch. The value is the last second in which a request required a proof that
    /// the cache is current.
    resources: HashMap<String, Option<i64>>,
    proxy_requests: u64,
    first: Option<f64>,
    last: f64,
    watch_seconds: f64,
    /// The starts of watches whose end was not read yet, by audit ID.
    open: HashMap<String, f64>,
    /// The starts and ends of completed watches that `watch_seconds` does not include yet.
    closed: Vec<(f64, f64)>,
    /// The number of requests of an apiserver to itself.
    of_apiserver: u64,
    other: u64,
    unreadable: u64,
}

#[derive(Debug, Default)]
struct AgentRequestCounts {
    lists: u64,
    gets: u64,
    rest: u64,
    /// The number of watches with a record at their start. A watch has a record at its start, at its end, or both,
    /// depending on the audit policy.
    watches_begun: u64,
    watches_ended: u64,
}

/// The maximum number of rows of the estimate. Further ones are added to a single row.
pub(super) const ROWS_MAX: usize = 2_000;
const RESOURCES_MAX: usize = 10_000;
const OPEN_WATCHES_MAX: usize = 200_000;
const CLOSED_WATCHES_MAX: usize = 10_000;
const OTHERS: &str = "(others)";
const SENSITIVE: [&str; 1] = ["secrets"];

impl AuditLogTally {
    pub(super) fn unreadable(&mut self) {
        self.unreadable += 1;
    }

    pub(super) fn add(&mut self, event: &AuditLogEvent<'_>, sensitive: &BTreeSet<String>) {
        let Some(stage) = event.stage().filter(|stage| *stage == AuditStage::Complete || event.is_watch()) else {
            self.other += 1;
            return;
        };
        if event.is_of_apiserver() {
            self.of_apiserver += u64::from(stage == AuditStage::Complete);
            return;
        }
        if let Some((received, reached)) = event.times() {
            // A watch that ends in the log may have begun long before it, so its start does not extend the log.
            let reached = reached.max(received);
            let logged = if event.is_watch() { reached } else { received };
            self.first = Some(self.first.map_or(logged, |first| first.min(logged)));
            self.last = self.last.max(reached);
            if event.is_watch() {
                self.watch(event, stage, (received, reached));
            }
        }
        let is_held = |resource: &str| !SENSITIVE.contains(&resource) || sensitive.contains(resource);
        let (fate, resource) = (event.fate(is_held), event.resource());
        let begins = !event.is_watch() || stage == AuditStage::Started;
        if matches!(fate, RequestClass::List | RequestClass::Watch) && begins {
            self.read(&resource, event);
        }
        let counts = self.counts(event.agent(), resource);
        match (fate, stage) {
            (RequestClass::List, _) => counts.lists += 1,
            (RequestClass::Get, _) => counts.gets += 1,
            (RequestClass::Watch, AuditStage::Started) => counts.watches_begun += 1,
            (RequestClass::Watch, AuditStage::Complete) => counts.watches_ended += 1,
            // A watch that fails or is forwarded counts once, at its end.
            (RequestClass::Rest, AuditStage::Complete) => counts.rest += 1,
            (RequestClass::Rest, AuditStage::Started) => {}
        }
    }

    /// Records how long a watch was open. A watch without an end in the log counts as open until the end of the log.
    fn watch(&mut self, event: &AuditLogEvent<'_>, stage: AuditStage, (received, reached): (f64, f64)) {
        match stage {
            AuditStage::Started if self.open.len() < OPEN_WATCHES_MAX => {
                self.open.insert(event.audit_id().to_owned(), received);
            }
            AuditStage::Started => {}
            AuditStage::Complete => {
                self.open.remove(event.audit_id());
                self.closed.push((received, reached));
                if self.closed.len() >= CLOSED_WATCHES_MAX {
                    self.fold_closed();
                }
            }
        }
    }

    /// Adds the durations of ended watches to `watch_seconds`. Time before the first record is excluded, because the
    /// log has no other requests of that time.
    fn fold_closed(&mut self) {
        let first = self.first.unwrap_or_default();
        self.watch_seconds += self.closed.drain(..).map(|(from, to)| to - from.max(first)).sum::<f64>();
    }

    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
    fn second(time: f64) -> i64 {
        time.floor() as i64
    }

    /// Records a read, which requires a feed of the resource. If the read needs a proof, it counts as one request to
    /// upstream, which all reads within the same second share.
    fn read(&mut self, resource: &str, event: &AuditLogEvent<'_>) {
        if self.resources.len() >= RESOURCES_MAX && !self.resources.contains_key(resource) {
            return;
        }
        let last = self.resources.entry(resource.to_owned()).or_default();
        let Some((received, _)) = event.times().filter(|_| event.needs_proof()) else { return };
        let second = Self::second(received);
        if last.replace(second) != Some(second) {
            self.proxy_requests += 1;
        }
    }

    fn counts(&mut self, agent: &str, resource: String) -> &mut AgentRequestCounts {
        let key = (agent.to_owned(), resource);
        let key = if self.rows.len() < ROWS_MAX || self.rows.contains_key(&key) {
            key
        } else {
            (OTHERS.to_owned(), OTHERS.to_owned())
        };
        self.rows.entry(key).or_default()
    }

    pub(super) fn estimate(mut self, order: &EstimateOptions) -> LoadEstimate {
        self.fold_closed();
        let (first, last) = (self.first.unwrap_or(self.last), self.last);
        let open = self.open.values().map(|began| last - began.max(first)).sum::<f64>();
        let watch_seconds = self.watch_seconds + open;
        let row = |((agent, resource), counts): ((String, String), AgentRequestCounts)| AgentLoadRow {
            agent,
            resource,
            lists: counts.lists,
            watches: counts.watches_begun.max(counts.watches_ended),
            gets: counts.gets,
            rest: counts.rest,
        };
        let mut rows: Vec<_> = self.rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            b.answered_from_memory().cmp(&a.answered_from_memory()).then_with(|| a.key().cmp(&b.key()))
        });
        let sum = |of: fn(&AgentLoadRow) -> u64| rows.iter().map(of).sum::<u64>();
        let (from_memory, rest) = (sum(AgentLoadRow::answered_from_memory), sum(|row| row.rest));
        let seconds = last - first;
        // If all records have the same time, there is no rate.
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let proxy_requests = self.proxy_requests * order.proxies;
        let cached: HashSet<_> = self.resources.keys().collect();
        let watches_open = if seconds > 0.0 { watch_seconds / seconds } else { 0.0 };
        // In the worst case, each watch has a token of its own, and no review is shared.
        let load = ReviewedLoad { tokens: watches_open, watches: watches_open, requests: per_second(from_memory) };
        let settings = AuthConfig::default().review_settings();
        LoadEstimate {
            seconds,
            requests: from_memory + rest,
            from_memory,
            watches: sum(|row| row.watches),
            watches_open,
            total: total(&rows),
            of_apiserver: self.of_apiserver,
            proxy_requests,
            streams: cached.len() as u64 * order.proxies,
            requests_per_second_before: per_second(from_memory + rest),
            requests_per_second_after: per_second(rest + proxy_requests),
            reviews_asked: load.asked(&settings),
            reviews_compared: load.compared(&settings),
            other_lines: self.other,
            unreadable_lines: self.unreadable,
            rows,
        }
    }
}

/// Returns the sum of all rows.
fn total(rows: &[AgentLoadRow]) -> AgentLoadRow {
    let none = AgentLoadRow { agent: "TOTAL".to_owned(), ..AgentLoadRow::default() };
    rows.iter().fold(none, |sum, row| AgentLoadRow {
        lists: sum.lists + row.lists,
        watches: sum.watches + row.watches,
        gets: sum.gets + row.gets,
        rest: sum.rest + row.rest,
        ..sum
    })
}

impl AgentLoadRow {
    /// Returns the number of requests that would be served from the cache.
    pub fn answered_from_memory(&self) -> u64 {
        self.lists + self.watches + self.gets
    }

    fn key(&self) -> (&str, &str) {
        (&self.agent, &self.resource)
    }
}
