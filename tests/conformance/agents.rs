//! Agents of nodes: each has a service account, a pod on a node, a token that is bound to that pod, and one thing that
//! it reads.

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::bed::rbac::{allow_token_keys, binding, collection, may, subject};
use crate::bed::{Account, Http, Identity, Plan, Plane, RequestSpec};

/// The agents of a node.
pub const PER_NODE: usize = 5;
/// The group of client certificates that may read what the agents read.
pub const HOLDERS: &str = "holders";
/// All requests come from one address here, and from as many as there are nodes in a cluster.
const ONE_SOURCE: &str = "reviewsPerSecondPerSource: 100000, reviewsBurstPerSource: 100000, reviewsPerSecond: 100000";
/// The resources that agents read, one each.
const RESOURCES: [(&str, &str); PER_NODE] =
    [("", "pods"), ("", "services"), ("", "configmaps"), ("", "nodes"), ("discovery.k8s.io", "endpointslices")];

/// An agent that has not connected yet.
pub struct Agent {
    pub identity: Identity,
    pub name: String,
    number: usize,
    account: Account,
    /// The `spec` of its `TokenRequest`s.
    pod: Value,
}

/// Who identifies callers and decides what they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The apiserver.
    Ask,
    /// The proxy.
    Local,
}

impl Mode {
    /// A proxy in this mode, with more keys of `delegated`.
    pub fn plan(self, bed: &Plane, more: &str) -> Plan {
        let mode = match self {
            Self::Ask => "identify: ask, decide: ask",
            Self::Local => "identify: local, decide: rbac",
        };
        Plan::delegated(bed).config(&format!("delegated: {{{mode}, {ONE_SOURCE}{more}}}"))
    }
}

impl Agent {
    /// Creates agents in a namespace, and waits until the apiserver knows their permissions.
    pub async fn create(bed: &Plane, namespace: &str, count: usize) -> Vec<Self> {
        let direct = bed.direct();
        allow_token_keys(&direct).await;
        for (group, resource) in RESOURCES {
            let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}]);
            let role = json!({"metadata": {"name": format!("agent-{resource}")}, "rules": rules});
            direct.create(&collection(None, "roles"), role).await;
            let holders = subject("Group", HOLDERS);
            let bound =
                binding(&format!("{HOLDERS}-{resource}"), "ClusterRole", &format!("agent-{resource}"), &holders);
            direct.create(&collection(None, "rolebindings"), bound).await;
        }
        let settings = json!({"metadata": {"name": "settings"}, "data": {"a": "b"}});
        direct.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), settings).await;
        let slice = json!({"metadata": {"name": "settings"}, "addressType": "IPv4", "endpoints": []});
        direct.create(&format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"), slice).await;
        for node in 0..count.div_ceil(PER_NODE) {
            direct.create("/api/v1/nodes", json!({"metadata": {"name": node_name(node)}})).await;
        }
        let agents = (0..count).map(|number| Self::create_one(&direct, namespace, number));
        let agents: Vec<_> = stream::iter(agents).buffered(16).collect().await;
        // Those that were created last.
        for agent in &agents[count.saturating_sub(PER_NODE)..] {
            let (group, resource) = RESOURCES[agent.number % PER_NODE];
            let access = json!({"verb": "watch", "group": group, "resource": resource, "namespace": agent.bound_in()});
            may(&direct, json!({"user": agent.identity.name, "resourceAttributes": access})).await;
        }
        agents
    }

    async fn create_one(direct: &Http, namespace: &str, number: usize) -> Self {
        let name = format!("agent-{number}");
        let account = Account::create(direct, namespace, &name).await;
        let containers = json!([{"name": "agent", "image": "none"}]);
        let spec =
            json!({"serviceAccountName": name, "nodeName": node_name(number / PER_NODE), "containers": containers});
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        let pod = direct.create(&format!("/api/v1/namespaces/{namespace}/pods"), pod).await;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]});
        let pod = json!({"boundObjectRef": pod, "expirationSeconds": 7200});
        let identity = account.token_for(direct, &pod).await;
        let agent = Self { identity, name, number, account, pod };
        let of_account = json!({"kind": "ServiceAccount", "namespace": namespace, "name": agent.name});
        let role = format!("agent-{}", RESOURCES[number % PER_NODE].1);
        let bound = binding(&agent.name, "ClusterRole", &role, &of_account);
        direct.create(&collection(agent.bound_in(), "rolebindings"), bound).await;
        agent
    }

    /// Another token of its account.
    pub async fn another_token(&self, direct: &Http) -> Identity {
        self.account.token_for(direct, &self.pod).await
    }

    /// The namespace of its binding, if it has one.
    fn bound_in(&self) -> Option<&str> {
        (RESOURCES[self.number % PER_NODE].1 == "configmaps").then_some(self.account.namespace.as_str())
    }

    /// Deletes its binding.
    pub async fn revoke(&self, direct: &Http) {
        direct.delete(&format!("{}/{}", collection(self.bound_in(), "rolebindings"), self.name)).await;
    }

    /// The collection that it reads, and the part of a query that selects its own objects.
    fn collection(&self) -> (String, String) {
        let (path, node) = (|path: &str| path.to_owned(), node_name(self.number / PER_NODE));
        match self.number % PER_NODE {
            0 => (path("/api/v1/pods"), format!("&fieldSelector=spec.nodeName%3D{node}")),
            1 => (path("/api/v1/services"), String::new()),
            2 => (format!("/api/v1/namespaces/{}/configmaps", self.account.namespace), String::new()),
            3 => (path("/api/v1/nodes"), format!("&fieldSelector=metadata.name%3D{node}")),
            _ => (path("/apis/discovery.k8s.io/v1/endpointslices"), String::new()),
        }
    }

    /// A LIST from the cache.
    pub fn list(&self) -> String {
        let (path, selector) = self.collection();
        format!("{path}?resourceVersion=0{selector}")
    }

    /// A GET from the cache.
    pub fn get(&self) -> String {
        let (path, namespace) = (self.collection().0, &self.account.namespace);
        let object = match self.number % PER_NODE {
            0 => format!("/api/v1/namespaces/{namespace}/pods/{}", self.name),
            1 => "/api/v1/namespaces/default/services/kubernetes".to_owned(),
            2 => format!("{path}/settings"),
            3 => format!("{path}/{}", node_name(self.number / PER_NODE)),
            _ => format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/settings"),
        };
        format!("{object}?resourceVersion=0")
    }

    /// A watch that begins with what is cached.
    pub fn watch(&self) -> RequestSpec {
        RequestSpec::get(&format!("{}&watch=1&allowWatchBookmarks=true", self.list()))
    }
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}
