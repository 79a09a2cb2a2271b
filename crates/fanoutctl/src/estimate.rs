//! Estimates from an apiserver's audit log which requests proxies would have served from memory.
//!
//! The log is read once, line by line, in bounded memory. The tally keeps one row per user agent and resource, and the
//! audit ID and start of each open watch. It keeps no time, query or user of any other request.

mod audit_event;
mod tally;

use std::collections::BTreeSet;
use std::io::{BufRead, Read as _};

use kube_fanout::preflight::ReviewRates;
use serde::Serialize;

use audit_event::AuditLogEvent;
pub use tally::AgentLoadRow;
use tally::AuditLogTally;

/// The proxies whose effect on the apiserver's load is estimated.
#[derive(Debug, Clone)]
pub struct EstimateOptions {
    /// The number of proxies. Each has its own upstream streams.
    pub proxies: u64,
    /// Sensitive kinds that the proxies would also cache, such as `secrets`.
    pub sensitive: BTreeSet<String>,
}

/// The estimate for a log.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadEstimate {
    /// The number of seconds from the first record to the last.
    pub seconds: f64,
    /// The number of all requests, except those that an apiserver sends to itself.
    pub requests: u64,
    /// The number of requests of an apiserver to itself (`system:apiserver`), which no proxy serves. No other number
    /// includes them.
    pub of_apiserver: u64,
    /// The number of requests that the proxies would have served from their caches.
    pub from_memory: u64,
    /// The number of watches among all requests, and the average number of open watches.
    pub watches: u64,
    pub watches_open: f64,
    /// The maximum number of requests that the proxies would have sent instead. They prove that a feed is current, once
    /// a second for all waiting clients.
    pub proxy_requests: u64,
    /// The number of upstream streams that the proxies would have had open.
    pub streams: u64,
    pub requests_per_second_before: f64,
    pub requests_per_second_after: f64,
    /// The maximum number of reviews per second of a proxy with `auth: delegated` that asks for everything, and of one
    /// that verifies tokens and decides by RBAC itself.
    pub reviews_asked: ReviewRates,
    pub reviews_compared: ReviewRates,
    /// The number of lines that are not a record of a response, and of those that cannot be parsed.
    pub other_lines: u64,
    pub unreadable_lines: u64,
    /// The rows, with the most requests served from memory first.
    pub rows: Vec<AgentLoadRow>,
    /// The sum of all rows of the estimate.
    pub total: AgentLoadRow,
}

/// The maximum length of a line. A record at the `Metadata` level has a few KiB, so a longer line is not one.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Reads a log with one record per line.
///
/// # Errors
/// If the log cannot be read.
pub fn estimate(mut log: impl BufRead, order: &EstimateOptions) -> std::io::Result<LoadEstimate> {
    let mut tally = AuditLogTally::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if log.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(tally.estimate(order));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice::<AuditLogEvent<'_>>(&line) {
            Ok(event) => tally.add(&event, &order.sensitive),
            Err(_) => tally.unreadable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u32, stage: &str, verb: &str, uri: &str, agent: &str) -> String {
        let resource = uri.split('?').next().and_then(|path| path.split('/').nth(3)).unwrap_or_default();
        let at = format!("2026-11-25T10:00:{second:02}.000000Z");
        format!(
            r#"{{"kind":"Event","auditID":"x","stage":"{stage}","requestURI":"{uri}","verb":"{verb}",
               "user":{{"username":"u"}},
               "userAgent":"{agent}","objectRef":{{"resource":"{resource}","apiVersion":"v1"}},
               "responseStatus":{{"code":200}},"requestReceivedTimestamp":"{at}","stageTimestamp":"{at}"}}"#
        )
        .replace('\n', "")
    }

    fn read(lines: &[String]) -> LoadEstimate {
        let order = EstimateOptions { proxies: 2, sensitive: BTreeSet::new() };
        estimate(lines.join("\n").as_bytes(), &order).expect("bytes can be read")
    }

    #[test]
    fn only_cacheable_requests_count_as_served_from_cache() {
        let done = |second, verb: &str, uri: &str| record(second, "ResponseComplete", verb, uri, "informer/v1 (linux)");
        let log = [
            done(0, "list", "/api/v1/pods?limit=500&resourceVersion=0"),
            record(1, "ResponseStarted", "watch", "/api/v1/pods?watch=1&resourceVersion=7", "informer/v1 (linux)"),
            done(1, "watch", "/api/v1/pods?watch=1&resourceVersion=7"),
            // One upstream request in this second proves that both responses are current.
            done(2, "list", "/api/v1/pods"),
            done(2, "list", "/api/v1/pods"),
            done(3, "list", "/api/v1/pods?resourceVersion=7&resourceVersionMatch=Exact"),
            done(3, "get", "/api/v1/pods/a?resourceVersion=0"),
            done(4, "get", "/api/v1/pods/a"),
            done(4, "list", "/api/v1/secrets?resourceVersion=0"),
            done(5, "update", "/api/v1/pods/a"),
            record(10, "ResponseComplete", "list", "/api/v1/pods?limit=500", "kubectl/v1.37"),
            record(10, "RequestReceived", "list", "/api/v1/pods", "kubectl/v1.37"),
            "half of a li".to_owned(),
        ];
        let found = read(&log);
        assert_eq!((found.requests, found.from_memory, found.watches), (10, 5, 1), "{found:?}");
        assert_eq!((found.proxy_requests, found.streams), (2, 2), "one for each proxy");
        // Five requests in ten seconds. The watch ended at once.
        let ReviewRates { tokens, accesses } = found.reviews_asked;
        assert!((tokens - 0.5).abs() < 1e-9 && (accesses - 0.5).abs() < 1e-9, "{found:?}");
        assert!((found.reviews_compared.tokens - tokens / 1_000.0).abs() < 1e-9, "{found:?}");
        assert_eq!((found.other_lines, found.unreadable_lines), (1, 1));
        assert!((found.seconds - 10.0).abs() < 1e-6 && (found.requests_per_second_before - 1.0).abs() < 1e-6);
        assert!((found.requests_per_second_after - 0.7).abs() < 1e-6, "{found:?}");
        let first = &found.rows[0];
        assert_eq!((first.agent.as_str(), first.resource.as_str()), ("informer/v1", "pods"));
        assert_eq!((first.lists, first.watches, first.gets, first.rest), (3, 1, 1, 3));
    }

    /// If 60 watches last as long as a log of 60 s, 60 are open on average, although all requests arrive at its start.
    #[test]
    fn average_of_open_watches_covers_the_whole_log() {
        let watch = |id: usize, stage: &str, received: u32, reached: u32| {
            let at = |second: u32| format!("2026-11-25T10:{:02}:{:02}.000000Z", second / 60, second % 60);
            record(0, stage, "watch", "/api/v1/pods?watch=1&resourceVersion=7", "informer/v1")
                .replace("\"x\"", &format!("\"{id}\""))
                .replace(
                    r#""requestReceivedTimestamp":"2026-11-25T10:00:00.000000Z""#,
                    &format!(r#""requestReceivedTimestamp":"{}""#, at(received)),
                )
                .replace(
                    r#""stageTimestamp":"2026-11-25T10:00:00.000000Z""#,
                    &format!(r#""stageTimestamp":"{}""#, at(reached)),
                )
        };
        let near = |found: &LoadEstimate, seconds: f64, open: f64| {
            assert!((found.seconds - seconds).abs() < 1e-6 && (found.watches_open - open).abs() < 1e-6, "{found:?}");
        };
        let begun: Vec<_> = (0..60).map(|id| watch(id, "ResponseStarted", 60, 60)).collect();
        let ended: Vec<_> = (0..60).map(|id| watch(id, "ResponseComplete", 60, 120)).collect();
        near(&read(&[begun.clone(), ended].concat()), 60.0, 60.0);
        // Watches without an end record are open until the end of the log.
        let later = [watch(99, "ResponseComplete", 119, 120)];
        near(&read(&[&begun[..], &later].concat()), 60.0, 60.0 + 1.0 / 60.0);
        // Watches that began long before the log count from its start.
        let old: Vec<_> = (0..60).map(|id| watch(id, "ResponseComplete", 0, 100 + u32::from(id >= 30) * 60)).collect();
        near(&read(&old), 60.0, 30.0);
    }

    #[test]
    fn apiserver_loopback_requests_are_excluded() {
        let own = record(0, "ResponseComplete", "list", "/api/v1/pods", "kube-apiserver/v1.37")
            .replace(r#""username":"u""#, r#""username":"system:apiserver""#);
        let found = read(&[own, record(1, "ResponseComplete", "list", "/api/v1/pods", "a")]);
        assert_eq!((found.requests, found.of_apiserver, found.rows.len()), (1, 1, 1), "{found:?}");
        assert_eq!((found.total.agent.as_str(), found.total.lists), ("TOTAL", 1));
    }

    #[test]
    fn sensitive_kind_counts_as_cached_only_if_listed() {
        let log = record(0, "ResponseComplete", "list", "/api/v1/secrets?resourceVersion=0", "a");
        let sensitive = ["secrets".to_owned()].into();
        let found = estimate(log.as_bytes(), &EstimateOptions { proxies: 1, sensitive }).expect("bytes");
        assert_eq!((found.from_memory, read(&[log]).from_memory), (1, 0));
    }

    #[test]
    fn row_count_is_limited_with_many_agents() {
        let log: Vec<_> = (0..3 * tally::ROWS_MAX)
            .map(|n| record(0, "ResponseComplete", "list", "/api/v1/pods?resourceVersion=0", &format!("agent-{n}")))
            .collect();
        let found = read(&log);
        assert_eq!(found.from_memory, log.len() as u64);
        assert_eq!(found.rows.len(), tally::ROWS_MAX + 1, "and one for all others");
    }
}
