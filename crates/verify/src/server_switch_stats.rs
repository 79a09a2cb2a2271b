//! Watches that clients resumed at another server, and their outcome.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::history::RunHistory;
use super::record::{ReadVerb, RequestServerRole, RunRecord};

/// The switches of clients between servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSwitchStats {
    /// The number of times that a watch resumed at the second server from the first server's version.
    pub between: BTreeMap<(RequestServerRole, RequestServerRole), u64>,
    /// The number of times that each server ended a watch with a 410.
    pub expired: BTreeMap<RequestServerRole, u64>,
    /// The number of clients that received a state, or resumed from one.
    pub clients: u64,
}

impl ServerSwitchStats {
    pub fn of(history: &RunHistory) -> Self {
        let (mut hops, mut clients) = (Self::default(), HashSet::new());
        for op in history.operations.iter().filter(|op| op.server.is_judged() && op.verb == ReadVerb::Watch) {
            let refusals = op.errors.iter().filter(|status| status.code == 410).count() as u64;
            if refusals > 0 {
                *hops.expired.entry(op.server).or_default() += refusals;
            }
            if op.answered(200).is_none() {
                continue;
            }
            clients.insert(op.client);
            let before = history.before(op).filter(|before| before.server != op.server);
            if let Some(before) = before {
                *hops.between.entry((before.server, op.server)).or_default() += 1;
            }
        }
        hops.clients = clients.len() as u64;
        hops
    }

    /// Formats one line for each pair of servers; empty for a run with one server.
    pub(super) fn summary<'a>(&'a self, run: &'a RunRecord) -> impl fmt::Display + 'a {
        ServerSwitchStatsText { hops: self, run }
    }
}

struct ServerSwitchStatsText<'a> {
    hops: &'a ServerSwitchStats,
    run: &'a RunRecord,
}

impl fmt::Display for ServerSwitchStatsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |server: RequestServerRole| match server {
            RequestServerRole::Subject => self.run.url.as_str(),
            RequestServerRole::Also(number) => self.run.also.get(usize::from(number)).map_or("?", String::as_str),
            RequestServerRole::Direct => "the apiserver",
        };
        for ((from, to), times) in &self.hops.between {
            writeln!(f, "  {times} watches moved to {} from {}", name(*to), name(*from))?;
        }
        for (server, times) in &self.hops.expired {
            writeln!(f, "  {times} watches received 410 from {}", name(*server))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_resumed_at_another_server_counts_as_hop() {
        let text = r#"
{"run":{"url":"https://leaf","also":["https://zone"]}}
{"call":{"op":1,"client":7,"at_ns":1,"verb":"list","path":"/api/v1/pods"}}
{"return":{"op":1,"at_ns":2,"code":200,"version":10}}
{"call":{"op":2,"client":7,"at_ns":3,"verb":"watch","path":"/api/v1/pods","resumes":1,"server":{"also":0}}}
{"return":{"op":2,"at_ns":4,"code":200}}
{"event":{"op":2,"at_ns":5,"type":"ERROR","status":{"code":410}}}
{"end":{"op":2,"at_ns":6,"how":"clean"}}
{"call":{"op":3,"client":7,"at_ns":7,"verb":"watch","path":"/api/v1/pods","resumes":2,"server":{"also":0}}}
{"return":{"op":3,"at_ns":8,"code":200}}
{"call":{"op":4,"client":7,"at_ns":9,"verb":"watch","path":"/api/v1/pods","resumes":3}}
{"return":{"op":4,"at_ns":9,"code":0}}
"#;
        let history = RunHistory::read(text.as_bytes()).unwrap();
        let hops = ServerSwitchStats::of(&history);
        let (leaf, zone) = (RequestServerRole::Subject, RequestServerRole::Also(0));
        assert_eq!(hops.between, BTreeMap::from([((leaf, zone), 1)]), "the last server accepted no client");
        assert_eq!((hops.expired.clone(), hops.clients), (BTreeMap::from([(zone, 1)]), 1));
        let text = hops.summary(history.run()).to_string();
        assert!(text.contains("1 watches moved to https://zone from https://leaf"), "{text}");
        assert!(text.contains("1 watches received 410 from https://zone"), "{text}");
    }
}
