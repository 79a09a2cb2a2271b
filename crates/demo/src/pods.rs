//! Generates the demo's objects: pods of about 2.5 KB, and a few objects of each other resource.

use super::clock;
use super::json::{Json, JsonMembers};
use super::object::{DemoObjectMeta, StoredObject};
use super::objects::{POD_SPEC, POD_STATUS, POD_STATUS_PENDING, fill};
use base::now_ns;
use kubeapi::WRITE_TIME;

pub(crate) const NAMESPACES: [&str; 10] =
    ["default", "auth", "billing", "checkout", "data", "edge", "mail", "media", "search", "shop"];
pub(crate) const NODES: usize = 10;
const PHASES: [&str; 4] = ["Pending", "Running", "Succeeded", "Failed"];
const APPS: [&str; 8] = ["api", "cache", "front", "gateway", "indexer", "ledger", "queue", "worker"];

/// The properties of a pod that a test or the churn sets; the rest of the pod is generated.
#[derive(Clone, Debug)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub phase: &'static str,
    pub restarts: u64,
    pub labels: Vec<(String, String)>,
}

impl Pod {
    pub fn new(namespace: &str, name: &str) -> Self {
        let app = APPS[hash(name) % APPS.len()];
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: format!("node-{}", hash(name) % NODES),
            phase: "Running",
            restarts: 0,
            labels: vec![("app".to_owned(), app.to_owned())],
        }
    }

    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.retain(|(known, _)| known != key);
        self.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets the node that the pod is bound to; empty for a pod that is not scheduled yet.
    #[must_use]
    pub fn node(mut self, node: &str) -> Self {
        node.clone_into(&mut self.node);
        self
    }

    #[must_use]
    pub fn phase(mut self, phase: &'static str) -> Self {
        self.phase = phase;
        self
    }

    #[must_use]
    pub fn restarts(mut self, restarts: u64) -> Self {
        self.restarts = restarts;
        self
    }

    /// Reads a pod back from the output of [`Pod::document`].
    pub(crate) fn of(object: &StoredObject) -> Self {
        let rest = Json::Object(object.rest());
        let phase = rest.at("status.phase").and_then(Json::as_str).unwrap_or_default();
        let container = rest.at("status.containerStatuses").and_then(|statuses| statuses.items().first());
        let labels = object.meta.labels.iter().filter(|(key, _)| *key != "pod-template-hash");
        Self {
            namespace: object.meta.namespace.clone(),
            name: object.meta.name.clone(),
            node: rest.at("spec.nodeName").and_then(Json::as_str).unwrap_or_default().to_owned(),
            phase: PHASES.into_iter().find(|known| *known == phase).unwrap_or("Running"),
            restarts: container.and_then(|status| status.get("restartCount")?.as_u64()).unwrap_or(0),
            labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }

    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Generates the metadata and the other members, written now. If there is an object `before`, they keep its
    /// identity.
    pub(crate) fn document(&self, before: Option<&DemoObjectMeta>) -> (DemoObjectMeta, JsonMembers) {
        let app = self.labels.iter().find(|(key, _)| key == "app").map_or("api", |(_, value)| value.as_str());
        let mut meta = DemoObjectMeta {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            uid: before.map_or_else(super::uid, |before| before.uid.clone()),
            generation: Some(before.and_then(|before| before.generation).unwrap_or(1)),
            created: before.map_or_else(|| clock::rfc3339(clock::unix_seconds()), |before| before.created.clone()),
            labels: self.labels.iter().cloned().collect(),
            ..DemoObjectMeta::default()
        };
        meta.labels.insert("pod-template-hash".to_owned(), format!("{:08x}", hash(app)));
        let annotations = [
            (WRITE_TIME, now_ns().to_string()),
            ("cni.projectcalico.org/podIP", format!("{}/32", self.ip())),
            ("prometheus.io/scrape", "true".to_owned()),
        ];
        meta.annotations = annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        meta.others.set("ownerReferences", owner(app));
        let mut rest = JsonMembers::default();
        rest.set("spec", self.spec(app));
        rest.set("status", self.status(app, &meta.created));
        (meta, rest)
    }

    fn ip(&self) -> String {
        let n = hash(&self.name);
        format!("10.{}.{}.{}", 64 + n % 64, n / 64 % 256, 1 + n / 16_384 % 254)
    }

    /// Returns five characters that differ between pods.
    fn suffix(&self) -> String {
        format!("{:05x}", hash(&self.name) % 0xf_ffff)
    }

    fn spec(&self, app: &str) -> Json {
        let mut spec = fill(POD_SPEC, &[("app", app), ("node", &self.node), ("suffix", &self.suffix())]);
        if let (Json::Object(fields), true) = (&mut spec, self.node.is_empty()) {
            drop(fields.take("nodeName"));
        }
        spec
    }

    fn status(&self, app: &str, created: &str) -> Json {
        let truth = |met: bool| if met { "True" } else { "False" };
        if self.phase == "Pending" {
            return fill(POD_STATUS_PENDING, &[("met", truth(!self.node.is_empty())), ("created", created)]);
        }
        let ended = |code: u8, reason: &str| format!(r#"{{"terminated":{{"exitCode":{code},"reason":"{reason}"}}}}"#);
        let state = match self.phase {
            "Running" => format!(r#"{{"running":{{"startedAt":"{created}"}}}}"#),
            "Failed" => ended(1, "Error"),
            _ => ended(0, "Completed"),
        };
        let running = self.phase == "Running";
        let values = [
            ("app", app),
            ("created", created),
            ("ip", &self.ip()),
            ("met", truth(running)),
            ("phase", self.phase),
            ("ready", if running { "true" } else { "false" }),
            ("restarts", &self.restarts.to_string()),
            ("state", &state),
            ("suffix", &self.suffix()),
        ];
        fill(POD_STATUS, &values)
    }
}

fn owner(app: &str) -> Json {
    let text = r#"[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"$app-$hash","uid":"$uid","controller":true}]"#;
    let hash = format!("{:08x}", hash(app));
    fill(text, &[("app", app), ("hash", &hash), ("uid", &format!("0b6f1a52-7a43-4c51-9f0e-0000{hash}"))])
}

/// Returns the `n`-th pod of the population. Pods are spread over the namespaces and nodes.
pub(crate) fn nth(n: usize, nodes: usize) -> Pod {
    let app = APPS[n / NAMESPACES.len() % APPS.len()];
    let name = format!("{app}-{:08x}-{:05x}", hash(app), n);
    Pod::new(NAMESPACES[n % NAMESPACES.len()], &name).label("app", app).node(&format!("node-{}", n % nodes.max(1)))
}

/// Returns a stable hash that is short when printed: FNV-1a, folded to 32 bits.
fn hash(text: &str) -> usize {
    let folded = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    usize::try_from(folded).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, PODS};
    use super::super::object::StoredObject;
    use super::*;

    #[test]
    fn pod_size_is_about_two_and_a_half_kilobytes() {
        for phase in ["Running", "Failed", "Succeeded"] {
            let (meta, rest) = nth(7, 3).phase(phase).document(None);
            let object = StoredObject::new(&KINDS[PODS], DemoObjectMeta { rv: 123_456, ..meta }, rest);
            assert!((2_300..2_900).contains(&object.body.len()), "{}", object.body.len());
        }
    }
}
