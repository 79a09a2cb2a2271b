//! The metrics of the process as a whole: its configuration that is read again, and its panics.

use metrics::{counter, describe_counter, describe_gauge, gauge};

/// Says how many keys have changed and take a restart.
pub(super) fn restart_keys(keys: usize) {
    gauge!("kube_fanout_config_reload_restart_keys").set(keys as f64);
}

/// Counts a change of the configuration by what became of it.
pub(super) fn reloaded(outcome: &'static str) {
    counter!("kube_fanout_config_reload_total", "outcome" => outcome).increment(1);
}

/// Writes panics into the log, and counts them. The runtime catches them, and what a task was for ends with it.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        counter!("kube_fanout_panics_total").increment(1);
        let payload = panic.payload();
        let said = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let thread = std::thread::current();
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        // Empty unless `RUST_BACKTRACE` asks for one.
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(said, at, thread = thread.name(), %backtrace, "a task panicked: this is a mistake of ours");
    }));
}

/// Describes the metrics of this module; docs/METRICS.md has all of them.
pub(super) fn describe() {
    describe_gauge!("kube_fanout_config_reload_restart_keys", "keys of the configuration that take a restart");
    describe_counter!("kube_fanout_panics_total", "tasks that panicked");
    // From the start: a counter that begins at 1 is no increase.
    counter!("kube_fanout_panics_total").absolute(0);
    describe_counter!("kube_fanout_config_reload_total", "changes of the configuration, by what became of them");
}
