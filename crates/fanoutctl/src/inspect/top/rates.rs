use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::inspect::metrics::MetricsText;
use crate::inspect::table::{bytes, grouped};

/// A sample of a proxy's counters. They only grow, except when the proxy restarts.
#[derive(Debug, Clone)]
pub(super) struct ProxyCounters {
    pub(super) at: Instant,
    pub(super) values: [u64; METRICS.len()],
    pub(super) ages: LatencyBuckets,
    pub(super) deliveries: LatencyBuckets,
}

/// The cumulative counts of a histogram by upper bound, summed over its series. The last bound is [`Duration::MAX`].
#[derive(Debug, Clone, Default)]
pub(super) struct LatencyBuckets(BTreeMap<Duration, f64>);

/// The rates of a proxy's counters, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProxyRates {
    pub(super) upstream: u64,
    pub(super) delivered: u64,
    pub(super) delivered_bytes: u64,
    pub(super) from_memory: u64,
    pub(super) passed_through: u64,
    pub(super) refused: u64,
    /// The age within which 99 % of the events were received, since their write; [`Duration::MAX`] if it is above all
    /// bounds of the histogram.
    pub(super) age_p99: Option<Duration>,
    /// The time within which 99 % of the events were passed on to a client.
    pub(super) delivery_p99: Option<Duration>,
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
        Self {
            at,
            values: METRICS.map(|name| metrics.sum(name)),
            ages: LatencyBuckets::of(metrics, "kube_fanout_upstream_event_age_seconds"),
            deliveries: LatencyBuckets::of(metrics, "kube_fanout_watch_delivery_seconds"),
        }
    }
}

impl LatencyBuckets {
    /// Reads the histogram `name`.
    fn of(metrics: &MetricsText, name: &str) -> Self {
        let (mut buckets, name) = (BTreeMap::new(), format!("{name}_bucket"));
        for (bound, count) in metrics.by_label(&name, "le") {
            let seconds = bound.parse().unwrap_or(f64::INFINITY);
            *buckets.entry(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)).or_default() += count;
        }
        Self(buckets)
    }

    /// Returns the bound of the bucket with the 99th percentile of the values since `earlier`. `None` if there are none.
    fn p99_since(&self, earlier: &Self) -> Option<Duration> {
        let before = |bound| earlier.0.get(bound).copied().unwrap_or_default();
        let grown: Vec<_> = self.0.iter().map(|(bound, count)| (*bound, count - before(bound))).collect();
        let all = grown.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        grown.into_iter().find(|(_, count)| *count >= all * 0.99).map(|(bound, _)| bound)
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
        let age_p99 = now.ages.p99_since(&earlier.ages);
        let delivery_p99 = now.deliveries.p99_since(&earlier.deliveries);
        Self { upstream, delivered, delivered_bytes, from_memory, passed_through, refused, age_p99, delivery_p99 }
    }

    /// Returns the latencies in words; empty without events.
    pub(super) fn latencies(&self) -> String {
        let within = |what: &str, p99: Option<Duration>| match p99 {
            None => String::new(),
            Some(Duration::MAX) => format!("; {what} p99 above a minute"),
            Some(p99) => format!("; {what} p99 ≤ {p99:?}"),
        };
        within("age on receipt", self.age_p99) + &within("delivery", self.delivery_p99)
    }
}

impl std::fmt::Display for ProxyRates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "upstream: {} events/s · delivered: {} events/s, {}/s · requests: {}/s from the cache, {}/s forwarded, \
             {}/s refused{}",
            grouped(self.upstream),
            grouped(self.delivered),
            bytes(self.delivered_bytes),
            grouped(self.from_memory),
            grouped(self.passed_through),
            grouped(self.refused),
            self.latencies()
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
        let ages = LatencyBuckets([(Duration::from_millis(500), 7.0), (Duration::MAX, 10.0)].into());
        let deliveries = LatencyBuckets::default;
        let earlier =
            ProxyCounters { at, values: [10, 100, 1_000, 5, 50, 7], ages: ages.clone(), deliveries: deliveries() };
        let values = [12, 5_100, 3_000, 5, 40, 8];
        let now = ProxyCounters { at: at + Duration::from_secs(2), values, ages, deliveries: deliveries() };
        let rates = ProxyRates::between(&earlier, &now);
        let (passed_through, refused) = (0, 1);
        let expected = ProxyRates {
            upstream: 1,
            delivered: 2_500,
            delivered_bytes: 1_000,
            from_memory: 0,
            passed_through,
            refused,
            age_p99: None,
            delivery_p99: None,
        };
        assert_eq!(rates, expected, "a counter that is less than before is that of a new process");
        assert!(rates.to_string().contains("delivered: 2,500 events/s, 1000 B/s"), "{rates}");
    }

    #[test]
    fn latencies_are_bounds_of_buckets_since_the_last_sample() {
        let text = |counts: [u32; 3]| {
            let line = |resource: &str, le: &str, count: u32| {
                format!("kube_fanout_watch_delivery_seconds_bucket{{resource=\"{resource}\",le=\"{le}\"}} {count}\n")
            };
            let [fast, slow, all] = counts;
            let page = [
                line("pods.v1", "0.005", fast),
                line("pods.v1", "2.5", slow),
                line("pods.v1", "+Inf", all),
                line("nodes.v1", "0.005", 100),
                line("nodes.v1", "2.5", 100),
                line("nodes.v1", "+Inf", 100),
            ];
            ProxyCounters::of(&MetricsText(page.concat()), Instant::now())
        };
        let earlier = text([500, 600, 700]);
        for (counts, expected) in [
            ([500, 600, 700], ""),
            ([599, 700, 800], "; delivery p99 ≤ 5ms"),
            ([598, 699, 800], "; delivery p99 ≤ 2.5s"),
            ([500, 600, 800], "; delivery p99 above a minute"),
        ] {
            assert_eq!(ProxyRates::between(&earlier, &text(counts)).latencies(), expected, "{counts:?}");
        }
    }
}
