//! Metrics of several servers of one upstream. With a single server there are none.

use metrics::{Gauge, counter, describe_counter, describe_gauge, gauge};

use super::ServerUrl;
use super::endpoints::EndpointSwitch;

/// Describes the metrics of this module.
pub fn describe() {
    describe_gauge!("kube_fanout_upstream_server_current", "1 for the upstream server in use");
    describe_counter!("kube_fanout_upstream_server_switches_total", "switches to another upstream server, by cause");
}

/// The metrics of the server in use.
pub(super) struct EndpointMetrics {
    current: Vec<Gauge>,
}

impl EndpointMetrics {
    /// Creates the metrics; the first server is in use.
    pub(super) fn new(servers: &[ServerUrl]) -> Self {
        let gauge = |server: &ServerUrl| gauge!("kube_fanout_upstream_server_current", "server" => server.to_string());
        let metrics = Self { current: servers.iter().map(gauge).collect() };
        metrics.uses(0);
        metrics
    }

    pub(super) fn switched(&self, switch: EndpointSwitch) {
        counter!("kube_fanout_upstream_server_switches_total", "cause" => switch.cause.as_str()).increment(1);
        self.uses(switch.to);
    }

    fn uses(&self, used: usize) {
        for (at, gauge) in self.current.iter().enumerate() {
            gauge.set(if at == used { 1.0 } else { 0.0 });
        }
    }
}
