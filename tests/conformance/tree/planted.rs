//! Two zones of one apiserver, any number of leaves behind them, and what the apiserver sees of all.

use std::fs;

use futures_util::future::join_all;
use serde_json::json;

use crate::bed::{Authority, Identity, Plan, Plane, Proxy, Target};

/// How many leaves start at a time.
const PLANTED_AT_A_TIME: usize = 16;

pub struct Grove {
    pub zones: Vec<Proxy>,
    pub leaves: Vec<Proxy>,
    authorities: std::path::PathBuf,
    /// Who leaves are: somebody with a certificate, as nodes have it, to whom RBAC gives what it may.
    identity: Identity,
}

/// A request that the apiserver has had of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seen {
    pub verb: String,
    pub uri: String,
}

impl Grove {
    /// Two proxies by one plan, which ask the apiserver about their callers.
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

    /// A plan for a proxy whose upstream are the zones, of which it prefers one.
    pub fn leaf(&self, plane: &Plane, plan: Plan, prefers: usize) -> Plan {
        let [first, second] = [prefers % 2, (prefers + 1) % 2].map(|zone| self.zones[zone].target().url);
        let target = Target { url: first.clone(), ca: Some(self.authorities.clone()), identity: self.identity.clone() };
        let kubeconfig = plane.file("leaf.kubeconfig");
        fs::write(&kubeconfig, target.kubeconfig()).expect("a file");
        plan.upstream(&kubeconfig).config(&format!("upstream: {{servers: [\"{first}\", \"{second}\"]}}\n"))
    }

    /// Plants leaves, each of which prefers another zone than the one before.
    pub async fn plant(&mut self, plane: &Plane, number: usize) {
        let numbers: Vec<_> = (0..number).collect();
        for some in numbers.chunks(PLANTED_AT_A_TIME) {
            let start = some.iter().map(|at| self.leaf(plane, Plan::tls(), *at).start(plane));
            let started = join_all(start).await;
            self.leaves.extend(started);
        }
    }
}

/// What the apiserver was asked by proxies so far, and by whoever they have passed on.
pub fn at_apiserver(plane: &Plane) -> Vec<Seen> {
    let text = |entry: &serde_json::Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let entries = plane.audit();
    let of_proxies = entries
        .iter()
        .filter(|entry| entry["stage"] == "RequestReceived" && text(entry, "userAgent").starts_with("kube-fanout/"));
    of_proxies.map(|entry| Seen { verb: text(entry, "verb"), uri: text(entry, "requestURI") }).collect()
}

/// What a proxy says that it has cost its upstream: `requests_total`, `streams_opened_total` or `body_bytes_total`.
pub async fn cost_of(proxy: &Proxy, what: &str, cause: Option<&str>) -> i64 {
    let labels: Vec<_> = cause.into_iter().map(|cause| ("cause", cause)).collect();
    proxy.metrics().await.sum(&format!("kube_fanout_upstream_{what}"), &labels)
}
