//! The metrics of the process as a whole: configuration reloads and panics.

use metrics::{Gauge, counter, describe_counter, describe_gauge, gauge};

/// Sets the number of changed keys that require a restart.
pub(super) fn restart_keys(keys: usize) {
    gauge!("kube_fanout_config_restart_required_keys").set(keys as f64);
}

/// Counts a configuration reload by outcome.
pub(super) fn reloaded(outcome: &'static str) {
    counter!("kube_fanout_config_reloads_total", "outcome" => outcome).increment(1);
}

/// Returns the gauge that is 1 while a preloaded resource has no feed.
pub(super) fn preload_failing(resource: &str) -> Gauge {
    // A new gauge is 0. It stays at 1 while a feed that failed is retried.
    gauge!("kube_fanout_preload_failing", "resource" => resource.to_owned())
}

/// Logs and counts panics. The runtime catches them, and the panicked task ends.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        counter!("kube_fanout_panics_total").increment(1);
        let payload = panic.payload();
        let reason = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let thread = std::thread::current();
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        // Empty unless `RUST_BACKTRACE` asks for one.
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(
            reason = reason, location = at, thread = thread.name(), %backtrace,
            "task panicked (a bug: please report it)"
        );
    }));
}

/// Registers the descriptions of this module's metrics; docs/METRICS.md lists all metrics.
pub(super) fn describe() {
    describe_gauge!(
        "kube_fanout_config_restart_required_keys",
        "configuration keys that changed and require a restart"
    );
    describe_gauge!("kube_fanout_preload_failing", "1 while a preloaded resource cannot be cached");
    describe_counter!("kube_fanout_panics_total", "tasks that panicked");
    // Registered at the start, because Prometheus sees no increase in a counter that first appears with the value 1.
    counter!("kube_fanout_panics_total").absolute(0);
    describe_counter!("kube_fanout_config_reloads_total", "changes of the configuration file, by outcome");
}
