//! Metrics of files that are reloaded when they change.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

/// Describes the metrics of this module.
pub fn describe() {
    describe_counter!("kube_fanout_reloads_total", "reloads of changed files, by outcome");
    describe_gauge!("kube_fanout_reload_failing", "1 while changed files cannot be used");
}

/// Returns the metrics of one [`WatchedFile`](super::WatchedFile): reloads that replaced the value, those that failed,
/// and whether the files cannot be used.
pub(super) fn reload_metrics(what: &'static str) -> (Counter, Counter, Gauge) {
    let reloads = |outcome| counter!("kube_fanout_reloads_total", "what" => what, "outcome" => outcome);
    let failing = gauge!("kube_fanout_reload_failing", "what" => what);
    failing.set(0.0);
    (reloads("replaced"), reloads("failed"), failing)
}
