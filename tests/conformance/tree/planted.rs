//! Two zone proxies of one apiserver, any number of leaf proxies below them, and the load of all on the apiserver.

use std::fs;

use futures_util::future::join_all;
use serde_json::json;

use crate::bed::{Authority, Identity, Plan, Plane, Proxy, Target};

/// The number of leaves that start concurrently.
const PLANTED_AT_A_TIME: usize = 16;

pub struct Grove {
    pub zones: Vec<Proxy>,
    pub leaves: Vec<Proxy>,
    authorities: std::path::PathBuf,
    /// The identity of the leaves, which has a certificate like a node, and its permissions from RBAC.
    identity: Identity,
}

/// A proxy's request that reached the apiserver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seen {
    pub verb: String,
    pub uri: String,
}

impl Grove {
    /// Starts two proxies with the same plan, which delegate authentication and authorization to the apiserver.
    pub async fn zones(plane: &Plane, plan: &Plan) -> Self {
        let zones = join_all((0..2).map(|_| plan.clone().start(plane))).await;
        let certificates = zones.iter().map(|zone| fs::read_to_string(zone.target().ca.expect("TLS")).expect("a file"));
        let (bundle, authorities) = (certificates.collect::<String>(), plane.file("zones.pem"));
        fs::write(&authorities, bundle).expect("a file");
        let binding = json!({
            "metadata": {"name": "leaves"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": "leaf"}],
        });
        plane.direct().create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
        Self { zones, leaves: Vec::new(), authorities, identity: Authority::of(plane).issue("leaf", &[]) }
    }

    /// A plan for a proxy with both zones as upstream, one of which it prefers.
    pub fn leaf(&self, plane: &Plane, plan: Plan, prefers: usize) -> Plan {
        let [first, second] = [prefers % 2, (prefers + 1) % 2].map(|zone| self.zones[zone].target().url);
        let target = Target { url: first.clone(), ca: Some(self.authorities.clone()), identity: self.identity.clone() };
        let kubeconfig = plane.file("leaf.kubeconfig");
        fs::write(&kubeconfig, target.kubeconfig()).expect("a file");
        plan.upstream(&kubeconfig).config(&format!("upstream: {{servers: [\"{first}\", \"{second}\"]}}\n"))
    }

    /// Starts leaves that alternately prefer the one and the other zone.
    pub async fn plant(&mut self, plane: &Plane, number: usize) {
        let numbers: Vec<_> = (0..number).collect();
        for some in numbers.chunks(PLANTED_AT_A_TIME) {
            let start = some.iter().map(|at| self.leaf(plane, Plan::tls(), *at).start(plane));
            let started = join_all(start).await;
            self.leaves.extend(started);
        }
    }
}

/// The requests of proxies, and forwarded ones of their callers, that have reached the apiserver so far.
pub fn at_apiserver(plane: &Plane) -> Vec<Seen> {
    let text = |entry: &serde_json::Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let entries = plane.audit();
    let of_proxies = entries
        .iter()
        .filter(|entry| entry["stage"] == "RequestReceived" && text(entry, "userAgent").starts_with("kube-fanout/"));
    of_proxies.map(|entry| Seen { verb: text(entry, "verb"), uri: text(entry, "requestURI") }).collect()
}

/// The proxy's own metric of its upstream costs: `requests_total`, `streams_opened_total` or `body_bytes_total`.
pub async fn cost_of(proxy: &Proxy, what: &str, cause: Option<&str>) -> i64 {
    let labels: Vec<_> = cause.into_iter().map(|cause| ("cause", cause)).collect();
    proxy.metrics().await.sum(&format!("kube_fanout_upstream_{what}"), &labels)
}
