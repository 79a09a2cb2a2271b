//! Metrics of several servers of one upstream. With a single server there are none.

use metrics::{counter, describe_counter, describe_gauge, gauge};

/// Describes the metrics of this module.
pub fn describe() {
    describe_gauge!("kube_fanout_upstream_server_current", "1 for the upstream server in use");
    describe_counter!("kube_fanout_upstream_server_switches_total", "switches to another upstream server, by cause");
}

pub(super) fn server_current(server: String, is_current: bool) {
    gauge!("kube_fanout_upstream_server_current", "server" => server).set(if is_current { 1.0 } else { 0.0 });
}

pub(super) fn server_switched(cause: &'static str) {
    counter!("kube_fanout_upstream_server_switches_total", "cause" => cause).increment(1);
}
