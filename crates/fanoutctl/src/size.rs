//! Calculates how many proxies a cluster needs, what each costs, and what they spare the apiserver.
//!
//! The costs per unit were measured on two cores of a virtual machine (`make size-check`). They are linear, because
//! deliveries, connections and objects do not interact below saturation.

use serde::Serialize;

/// The load of a cluster's agents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterLoad {
    pub nodes: u64,
    /// The number of agents per node, each with a connection.
    pub agents: u64,
    /// The number of watches of each agent that select a whole collection.
    pub whole: u64,
    /// The number of watches of each agent that select the objects of its node.
    pub own: u64,
    /// The number of watched objects in the cluster.
    pub objects: u64,
    /// Their mean size in JSON, in bytes.
    pub object_bytes: u64,
    /// The number of changes of each whole collection per second.
    pub changes: f64,
    /// The number of watched collections.
    pub resources: u64,
    /// The age up to which events are kept: `window.age`, in seconds.
    pub window_seconds: f64,
}

/// A form of deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyForm {
    /// All agents at the apiserver.
    Direct,
    /// Replicas behind a Service.
    Central,
    /// A proxy on each node.
    Node,
    /// Proxies on the nodes, whose upstreams are zones.
    Tree,
}

/// What a form costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FormSize {
    pub form: ProxyForm,
    /// The number of proxies that serve agents, and of zones above them.
    pub proxies: u64,
    pub zones: u64,
    /// The CPU of each proxy that serves agents, in cores.
    pub cores: f64,
    /// Its memory, in bytes.
    pub memory_bytes: f64,
    /// The bytes that it sends to agents per second.
    pub sent_bytes_per_second: f64,
    /// The same of each zone; zero without zones.
    pub zone_cores: f64,
    pub zone_memory_bytes: f64,
    /// The bytes that a zone sends to its leaves per second.
    pub zone_sent_bytes_per_second: f64,
    /// The number of watches at the apiserver, and the CPU that their events cost it, in cores.
    pub apiserver_watches: u64,
    pub apiserver_cores: f64,
    /// The cores of the apiserver's watches and of all proxies.
    pub cores_in_all: f64,
}

/// The CPU to pass an event on to a connection of its own, in microseconds. Saturated proxies batch events and need 2 to
/// 4, and so do watches that share connections.
const DELIVERY_MICROS: f64 = 11.7;
/// The CPU to receive an event that arrives alone and to encode it for all watches, in microseconds. Most of it is the
/// end of an idle core's sleep, so it falls with the rate of events, to that of a busy core.
const RECEIPT_MICROS: f64 = 548.0;
const RECEIPT_MICROS_FALL: f64 = 1.53;
const RECEIPT_MICROS_MIN: f64 = 60.0;
/// The CPU of the apiserver to send an event to a watch, in microseconds.
const APISERVER_DELIVERY_MICROS: f64 = 43.0;
/// The memory of a process without objects and connections, in bytes.
const PROCESS_BYTES: f64 = 31.6e6;
/// The memory of a connection with one watch, and of each further watch, in bytes.
const CONNECTION_BYTES: f64 = 20.0 * 1024.0;
const WATCH_BYTES: f64 = 2.0 * 1024.0;
/// The memory of a revision of an object, as a multiple of its JSON: protobuf, and the JSON derived from it. Agents that
/// read protobuf need half.
const REVISION_SHARE: f64 = 2.02;
const REVISION_BYTES: f64 = 64.0;
/// The limits of the history of a resource: `window.events` and `window.mebibytes`.
const WINDOW_EVENTS_MAX: f64 = 102_400.0;
const WINDOW_BYTES_MAX: f64 = 256.0 * 1024.0 * 1024.0;
/// The bytes of a delivered event besides its object.
const FRAME_BYTES: f64 = 65.0;
/// The share of an event's bytes that a zone sends to a leaf.
const DELTA_SHARE: f64 = 0.06;
/// The cores and connections that a central proxy or zone is planned to use, of two cores and 20,000 connections.
const PLANNED_CORES: f64 = 1.4;
const PLANNED_CONNECTIONS: f64 = 15_000.0;
/// The number of nodes below a zone.
const ZONE_NODES: u64 = 500;

impl ClusterLoad {
    /// Returns the costs of all forms. `replicas` is the number of central proxies, if it is not to be calculated.
    pub fn sizes(&self, replicas: Option<u64>) -> [FormSize; 4] {
        let agents = (self.nodes * self.agents) as f64;
        let direct = self.deliveries(agents);
        let of_direct = FormSize {
            form: ProxyForm::Direct,
            proxies: 0,
            zones: 0,
            cores: 0.0,
            memory_bytes: 0.0,
            sent_bytes_per_second: direct * self.event_bytes(),
            zone_cores: 0.0,
            zone_memory_bytes: 0.0,
            zone_sent_bytes_per_second: 0.0,
            apiserver_watches: self.nodes * self.agents * (self.whole + self.own),
            apiserver_cores: direct * APISERVER_DELIVERY_MICROS / 1e6,
            cores_in_all: direct * APISERVER_DELIVERY_MICROS / 1e6,
        };
        let needed = || at_least_two(self.cores(agents) / PLANNED_CORES, agents / PLANNED_CONNECTIONS);
        let replicas = replicas.unwrap_or_else(needed);
        let zones = self.nodes.div_ceil(ZONE_NODES).max(2);
        [
            of_direct,
            self.form(ProxyForm::Central, replicas, 0),
            self.form(ProxyForm::Node, self.nodes, 0),
            self.form(ProxyForm::Tree, self.nodes, zones),
        ]
    }

    fn form(&self, form: ProxyForm, proxies: u64, zones: u64) -> FormSize {
        let agents = (self.nodes * self.agents) as f64 / proxies as f64;
        let leaves = if zones > 0 { proxies as f64 / zones as f64 } else { 0.0 };
        // A leaf is an agent of its zone, with a watch of each whole collection.
        let leaf = Self { nodes: 1, agents: 1, whole: self.resources, own: 0, ..*self };
        let (zone_cores, zone_memory_bytes) =
            if zones > 0 { (leaf.cores(leaves), leaf.memory_bytes(leaves)) } else { (0.0, 0.0) };
        let tops = if zones > 0 { zones } else { proxies };
        let apiserver_watches = tops * self.resources;
        let apiserver_cores = apiserver_watches as f64 * self.changes * APISERVER_DELIVERY_MICROS / 1e6;
        let cores = self.cores(agents);
        FormSize {
            form,
            proxies,
            zones,
            cores,
            memory_bytes: self.memory_bytes(agents),
            sent_bytes_per_second: self.deliveries(agents) * self.event_bytes(),
            zone_cores,
            zone_memory_bytes,
            zone_sent_bytes_per_second: leaf.deliveries(leaves) * self.event_bytes() * DELTA_SHARE,
            apiserver_watches,
            apiserver_cores,
            cores_in_all: apiserver_cores + proxies as f64 * cores + zones as f64 * zone_cores,
        }
    }

    /// The events that so many agents receive per second.
    fn deliveries(&self, agents: f64) -> f64 {
        agents * self.changes * (self.whole as f64 + self.own as f64 / self.nodes as f64)
    }

    fn event_bytes(&self) -> f64 {
        self.object_bytes as f64 + FRAME_BYTES
    }

    /// The cores of a proxy with so many agents.
    fn cores(&self, agents: f64) -> f64 {
        let received = self.resources as f64 * self.changes;
        let receipt = (RECEIPT_MICROS - RECEIPT_MICROS_FALL * received).max(RECEIPT_MICROS_MIN);
        (self.deliveries(agents) * DELIVERY_MICROS + received * receipt) / 1e6
    }

    /// The memory of a proxy with so many agents.
    fn memory_bytes(&self, agents: f64) -> f64 {
        let revision = self.object_bytes as f64 * REVISION_SHARE + REVISION_BYTES;
        let events = (self.changes * self.window_seconds).min(WINDOW_EVENTS_MAX).min(WINDOW_BYTES_MAX / revision);
        let revisions = self.objects as f64 + events * self.resources as f64;
        let further = agents * (self.whole + self.own).saturating_sub(1) as f64;
        PROCESS_BYTES + revisions * revision + agents * CONNECTION_BYTES + further * WATCH_BYTES
    }
}

fn at_least_two(one: f64, other: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of replicas")]
    let count = one.max(other).ceil() as u64;
    count.max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: ClusterLoad = ClusterLoad {
        nodes: 5_000,
        agents: 3,
        whole: 2,
        own: 1,
        objects: 160_000,
        object_bytes: 4_000,
        changes: 100.0,
        resources: 3,
        window_seconds: 900.0,
    };

    #[test]
    fn forms_share_the_load_of_all_agents() {
        let [direct, central, node, tree] = LOAD.sizes(None);
        assert_eq!(direct.apiserver_watches, 45_000);
        assert_eq!((node.proxies, node.apiserver_watches), (5_000, 15_000));
        assert_eq!((tree.proxies, tree.zones, tree.apiserver_watches), (5_000, 10, 30));
        assert_eq!(central.apiserver_watches, 3 * central.proxies);
        // 15,000 agents with two watches of 100 changes a second, and one of the 0.02 of their node.
        let deliveries = 3_000_300.0;
        assert!((direct.sent_bytes_per_second / 4_065.0 - deliveries).abs() < 1.0, "{direct:?}");
        for form in [central, node, tree] {
            let sent = form.sent_bytes_per_second * form.proxies as f64 / 4_065.0;
            assert!((sent - deliveries).abs() < 1.0, "{form:?}");
            assert!(form.apiserver_cores < direct.apiserver_cores, "{form:?}");
        }
        assert!(tree.cores.to_bits() == node.cores.to_bits(), "a leaf serves the same agents");
    }

    #[test]
    fn replicas_follow_connections_and_cores() {
        let central = |nodes: u64, changes: f64| ClusterLoad { nodes, changes, ..LOAD }.sizes(None)[1].proxies;
        assert_eq!(central(10, 0.1), 2, "one may fail");
        assert_eq!(central(15_000, 0.0), 3, "45,000 connections");
        assert_eq!(central(1_000, 100.0), 6, "600,000 deliveries a second");
    }

    #[test]
    fn history_is_limited_by_age_count_and_bytes() {
        let quiet =
            ClusterLoad { changes: 0.0, agents: 1, whole: 1, own: 0, nodes: 1, resources: 1, objects: 0, ..LOAD };
        let history = |load: ClusterLoad| load.sizes(None)[2].memory_bytes - quiet.sizes(None)[2].memory_bytes;
        let revision = |bytes: f64| bytes * REVISION_SHARE + REVISION_BYTES;
        for (changes, object_bytes, expected) in [
            (1.0, 4_000, 900.0 * revision(4_000.0)),
            (1_000.0, 100, WINDOW_EVENTS_MAX * revision(100.0)),
            (1_000.0, 4_000, WINDOW_BYTES_MAX),
        ] {
            let found = history(ClusterLoad { object_bytes, changes, ..quiet });
            assert!((found - expected).abs() < 1.0, "{changes} {object_bytes}: {found} is not {expected}");
        }
    }
}
