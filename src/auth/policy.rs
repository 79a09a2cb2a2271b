//! RBAC objects, as far as needed to determine whose rights a change may affect.

use std::collections::HashMap;

use serde::Deserialize;

use super::{AffectedScope, AffectedUsers, Subjects};

/// The kinds of RBAC objects that affect permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// The known RoleBindings and ClusterRoleBindings.
#[derive(Debug, Default)]
pub struct Policy {
    bindings: HashMap<(PolicyKind, String), Binding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Binding {
    role: (PolicyKind, String),
    subjects: Subjects,
}

/// An event of a watch of RBAC objects.
#[derive(Debug, Deserialize)]
pub struct PolicyChange {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Debug, Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default, rename = "roleRef")]
    role: Reference,
    #[serde(default)]
    subjects: Vec<Subject>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
struct Reference {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct Subject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

impl PolicyKind {
    pub const ALL: [Self; 4] = [Self::Role, Self::ClusterRole, Self::RoleBinding, Self::ClusterRoleBinding];

    /// Returns the plural resource name in `rbac.authorization.k8s.io`.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }
}

impl Policy {
    /// Applies a change, and returns the users whose permissions it may affect; `None` if it affects no user.
    pub fn apply(&mut self, kind: PolicyKind, change: PolicyChange) -> Option<AffectedUsers> {
        let PolicyChange { kind: event, object } = change;
        let key = (kind, format!("{}/{}", object.metadata.namespace, object.metadata.name));
        let mut subjects = Subjects::default();
        match kind {
            PolicyKind::Role | PolicyKind::ClusterRole => {
                let bound = self.bindings.values().filter(|binding| binding.role == key);
                bound.for_each(|binding| subjects.add(&binding.subjects));
            }
            PolicyKind::RoleBinding | PolicyKind::ClusterRoleBinding => {
                let before = self.bindings.remove(&key);
                before.iter().for_each(|binding| subjects.add(&binding.subjects));
                if event != "DELETED" {
                    let after = Binding::of(&object);
                    subjects.add(&after.subjects);
                    self.bindings.insert(key, after);
                }
            }
        }
        if subjects.is_empty() { None } else { Some(AffectedUsers::of(subjects)) }
    }

    /// Removes all bindings of a kind, because changes may have been missed.
    pub fn forget(&mut self, kind: PolicyKind) {
        self.bindings.retain(|(of, _), _| *of != kind);
    }
}

impl Binding {
    fn of(object: &Object) -> Self {
        let role = match object.role.kind.as_str() {
            "ClusterRole" => (PolicyKind::ClusterRole, format!("/{}", object.role.name)),
            _ => (PolicyKind::Role, format!("{}/{}", object.metadata.namespace, object.role.name)),
        };
        // A binding in a namespace grants nothing outside it, whatever its role is.
        let (mut subjects, reach) = (Subjects::default(), AffectedScope::of(&object.metadata.namespace));
        for Subject { kind, name, namespace } in &object.subjects {
            match kind.as_str() {
                "Group" => subjects.add_group(name.clone(), &reach),
                "ServiceAccount" => {
                    let namespace = if namespace.is_empty() { &object.metadata.namespace } else { namespace };
                    subjects.add_user(format!("system:serviceaccount:{namespace}:{name}"), &reach);
                }
                _ => subjects.add_user(name.clone(), &reach),
            }
        }
        Self { role, subjects }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::PolicyKind::{ClusterRole, Role, RoleBinding};
    use super::*;

    fn change(event: &str, object: &Value) -> PolicyChange {
        serde_json::from_value(json!({"type": event, "object": object})).expect("a change")
    }

    fn named(affected: Option<AffectedUsers>) -> Vec<String> {
        let Some(AffectedUsers::Only(subjects)) = affected else { return Vec::new() };
        let groups = subjects.groups().map(|group| format!("group {group}"));
        let mut names: Vec<_> = subjects.users().map(str::to_owned).chain(groups).collect();
        names.sort();
        names
    }

    #[test]
    fn binding_change_affects_old_and_new_subjects() {
        let mut policy = Policy::default();
        let binding = |name: &str, role: &str, subjects: Value| {
            let role = json!({"kind": role, "name": "r"});
            json!({"metadata": {"name": name, "namespace": "t1"}, "roleRef": role, "subjects": subjects})
        };
        let role = || json!({"metadata": {"name": "r", "namespace": "t1"}});
        let cluster_role = || json!({"metadata": {"name": "r"}});
        let ada = json!([{"kind": "User", "name": "ada"}]);
        let others = json!([{"kind": "Group", "name": "dev"}, {"kind": "ServiceAccount", "name": "sa"},
            {"kind": "ServiceAccount", "name": "sa", "namespace": "t2"}]);
        let all = ["group dev", "system:serviceaccount:t1:sa", "system:serviceaccount:t2:sa"];

        assert_eq!(named(policy.apply(Role, change("ADDED", &role()))), [""; 0], "bound to nobody");
        let first = change("ADDED", &binding("a", "Role", ada));
        assert_eq!(named(policy.apply(RoleBinding, first)), ["ada"]);
        assert_eq!(named(policy.apply(Role, change("MODIFIED", &role()))), ["ada"]);
        assert_eq!(named(policy.apply(ClusterRole, change("MODIFIED", &cluster_role()))), [""; 0], "of the same name");
        let second = change("MODIFIED", &binding("a", "ClusterRole", others));
        assert_eq!(named(policy.apply(RoleBinding, second)), ["ada", all[0], all[1], all[2]]);
        assert_eq!(named(policy.apply(Role, change("DELETED", &role()))), [""; 0]);
        assert_eq!(named(policy.apply(ClusterRole, change("DELETED", &cluster_role()))), all);
        let last = change("DELETED", &binding("a", "ClusterRole", json!([])));
        assert_eq!(named(policy.apply(RoleBinding, last)), all);
        assert_eq!(named(policy.apply(ClusterRole, change("ADDED", &cluster_role()))), [""; 0]);
    }
}
