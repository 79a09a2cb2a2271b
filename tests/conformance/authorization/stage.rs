//! The objects that a round needs, and the wait until both servers have them.

use std::ops::Deref;

use serde_json::{Value, json};

use super::cast::node;
use super::policy::Policy;
use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{Http, Pair, Plane, version_of};
use crate::differential::world::{NAMESPACES, World};

/// Nodes with one pod each, and the objects that the pods mount.
pub struct Stage {
    pub nodes: Vec<String>,
    /// Names of secrets, configmaps, pods and service accounts. Some belong to the first node's pod, some to the
    /// second's, and some to no pod.
    pub mounted: Vec<String>,
}

impl Stage {
    pub async fn set<P: Deref<Target = Plane>>(
        pair: &Pair<P>,
        world: &World,
        policy: &Policy<'_>,
        round: &str,
    ) -> Self {
        let direct = &pair.direct;
        let nodes: Vec<_> = (0..2).map(|at| node(round, at)).collect();
        let mut mounted = vec!["missing".to_owned()];
        let core = format!("/api/v1/namespaces/{}", NAMESPACES[0]);
        for at in 0..3 {
            let name = format!("{round}-mounted-{at}");
            for kind in ["secrets", "configmaps", "serviceaccounts"] {
                direct.create(&format!("{core}/{kind}"), json!({"metadata": {"name": name}})).await;
            }
            if let Some(node) = nodes.get(at) {
                direct.create("/api/v1/nodes", json!({"metadata": {"name": node}})).await;
                direct.create(&format!("{core}/pods"), pod(&name, node)).await;
            }
            mounted.push(name);
        }
        for (path, object) in &policy.objects {
            direct.create(path, object.clone()).await;
        }
        let version = last(direct, round).await;
        // Resources without writes are included. A request may move the apiserver's cache of such a resource to the
        // newest version, and a read of any version then returns another one than before.
        world.settle(pair, version).await;
        // The node authorizer has its own graph of the objects of each node.
        for (at, node) in nodes.iter().enumerate() {
            let name = &mounted[at + 1];
            let secret = json!({"verb": "get", "resource": "secrets", "namespace": NAMESPACES[0], "name": name});
            let (user, groups) = (format!("system:node:{node}"), ["system:nodes"]);
            may(direct, json!({"user": user, "groups": groups, "resourceAttributes": secret})).await;
        }
        Self { nodes, mounted }
    }
}

fn pod(name: &str, node: &str) -> Value {
    let volumes = json!([
        {"name": "s", "secret": {"secretName": name}},
        {"name": "c", "configMap": {"name": name}},
    ]);
    let containers = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {"nodeName": node, "serviceAccountName": name, "containers": containers, "volumes": volumes}})
}

/// Creates the last object of each kind of rule, by which the authorizer shows that it has all others. Returns the
/// version after that.
pub async fn last(direct: &Http, round: &str) -> u64 {
    let name = format!("{round}-last");
    let mut version = 0;
    for (namespace, kind) in [(Some(NAMESPACES[0]), "Role"), (None, "ClusterRole")] {
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        direct.create(&collection(namespace, "roles"), json!({"metadata": {"name": name}, "rules": rules})).await;
        let user_name = format!("{name}-{kind}");
        let bound = binding(&name, kind, &name, &subject("User", &user_name));
        version = version_of(&direct.create(&collection(namespace, "rolebindings"), bound).await);
        let pods = json!({"verb": "get", "resource": "pods", "namespace": namespace});
        may(direct, json!({"user": user_name, "resourceAttributes": pods})).await;
    }
    version
}
