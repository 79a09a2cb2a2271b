use tokio::time::Instant;

use crate::inspect::metrics::MetricsText;
use crate::inspect::table::{bytes, grouped};

/// A sample of a proxy's counters. They only grow, except when the proxy restarts.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProxyCounters {
    pub(super) at: Instant,
    pub(super) values: [u64; METRICS.len()],
}

/// The rates of a proxy's counters, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProxyRates {
    pub(super) upstream: u64,
    pub(super) delivered: u64,
    pub(super) delivered_bytes: u64,
    pub(super) from_memory: u64,
    pub(super) passed_through: u64,
    pub(super) refused: u64,
}

const METRICS: [&str; 6] = [
    "kube_fanout_upstream_events_total",
    "kube_fanout_watch_events_total",
    "kube_fanout_watch_bytes_total",
    "kube_fanout_served_total",
    "kube_fanout_forwarded_total",
    "kube_fanout_refused_total",
];

impl ProxyCounters {
    pub(super) fn of(metrics: &MetricsText, at: Instant) -> Self {
        Self { at, values: METRICS.map(|name| metrics.sum(name)) }
    }
}

impl ProxyRates {
    /// Returns the rates between two samples; zero if the proxy has restarted.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is shown in whole numbers")]
    pub(super) fn between(earlier: &ProxyCounters, now: &ProxyCounters) -> Self {
        let elapsed = now.at.duration_since(earlier.at).as_secs_f64().max(0.001);
        let rate = |nth: usize| {
            let grown = now.values[nth].saturating_sub(earlier.values[nth]);
            (grown as f64 / elapsed).round().max(0.0) as u64
        };
        let [upstream, delivered, delivered_bytes, from_memory, passed_through, refused] = std::array::from_fn(rate);
        Self { upstream, delivered, delivered_bytes, from_memory, passed_through, refused }
    }
}

impl std::fmt::Display for ProxyRates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "upstream: {} events/s · delivered: {} events/s, {}/s · requests: {}/s from the cache, {}/s forwarded, \
             {}/s refused",
            grouped(self.upstream),
            grouped(self.delivered),
            bytes(self.delivered_bytes),
            grouped(self.from_memory),
            grouped(self.passed_through),
            grouped(self.refused)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_is_the_increase_per_second() {
        let at = Instant::now();
        let earlier = ProxyCounters { at, values: [10, 100, 1_000, 5, 50, 7] };
        let now = ProxyCounters { at: at + Duration::from_secs(2), values: [12, 5_100, 3_000, 5, 40, 8] };
        let rates = ProxyRates::between(&earlier, &now);
        let (passed_through, refused) = (0, 1);
        let expected = ProxyRates {
            upstream: 1,
            delivered: 2_500,
            delivered_bytes: 1_000,
            from_memory: 0,
            passed_through,
            refused,
        };
        assert_eq!(rates, expected, "a counter that is less than before is that of a new process");
        assert!(rates.to_string().contains("delivered: 2,500 events/s, 1000 B/s"), "{rates}");
    }
}
