//! Metrics of files that are reloaded when they change.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

/// Describes the metrics of this module.
pub fn describe() {
    describe_counter!("kube_fanout_reloads_total", "reloads of changed files, by outcome");
    describe_gauge!("kube_fanout_reload_failing", "1 while changed files cannot be used");
}

/// The metrics of one [`WatchedFile`](super::WatchedFile).
pub(super) struct FileReloadMetrics {
    replaced: Counter,
    failed: Counter,
    failing: Gauge,
}

impl FileReloadMetrics {
    pub(super) fn new(what: &'static str) -> Self {
        let reloads = |outcome| counter!("kube_fanout_reloads_total", "what" => what, "outcome" => outcome);
        let failing = gauge!("kube_fanout_reload_failing", "what" => what);
        failing.set(0.0);
        Self { replaced: reloads("replaced"), failed: reloads("failed"), failing }
    }

    /// Counts a reload that replaced the value.
    pub(super) fn replaced(&self) {
        self.replaced.increment(1);
        self.failing.set(0.0);
    }

    /// Records that the files are unchanged since the value was read.
    pub(super) fn unchanged(&self) {
        self.failing.set(0.0);
    }

    /// Records that the files cannot be used.
    pub(super) fn failed(&self) {
        self.failed.increment(1);
        self.failing.set(1.0);
    }
}
