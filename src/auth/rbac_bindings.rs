//! RBAC objects, as far as needed to determine whose permissions a change may affect.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;

use kubeapi::User;

/// The kinds of RBAC objects that affect permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RbacKind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// The known bindings of RBAC roles.
#[derive(Debug, Default)]
pub struct RbacBindings {
    bindings: HashMap<(RbacKind, String), RbacBinding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RbacBinding {
    role: (RbacKind, String),
    subjects: BindingSubjects,
}

/// An event of a watch of RBAC objects.
#[derive(Debug, Deserialize)]
pub struct RbacEvent {
    #[serde(rename = "type")]
    kind: String,
    object: RbacObject,
}

#[derive(Debug, Deserialize)]
struct RbacObject {
    #[serde(default)]
    metadata: RbacObjectMeta,
    #[serde(default, rename = "roleRef")]
    role: RbacRoleRef,
    #[serde(default)]
    subjects: Vec<RbacSubject>,
}

#[derive(Debug, Default, Deserialize)]
struct RbacObjectMeta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
struct RbacRoleRef {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct RbacSubject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

/// The users whose permissions a policy change may affect, and in which namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedUsers {
    Everyone,
    Only(Arc<BindingSubjects>),
}

/// The subjects of bindings, and the scope in which their permissions may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindingSubjects {
    users: HashMap<String, AffectedNamespaces>,
    groups: HashMap<String, AffectedNamespaces>,
}

/// The namespaces in which permissions may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedNamespaces {
    Everywhere,
    /// The change affects the listed namespaces, and nothing outside them.
    Within(BTreeSet<Arc<str>>),
}

/// The most tracked pairs of a subject and a namespace. Above it, everyone counts as affected.
const PAIRS_MAX: usize = 4_096;

impl RbacKind {
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

impl RbacBindings {
    /// Applies a change, and returns the users whose permissions it may affect; `None` if it affects no user.
    pub fn apply(&mut self, kind: RbacKind, change: RbacEvent) -> Option<AffectedUsers> {
        let RbacEvent { kind: event, object } = change;
        let key = (kind, format!("{}/{}", object.metadata.namespace, object.metadata.name));
        let mut subjects = BindingSubjects::default();
        match kind {
            RbacKind::Role | RbacKind::ClusterRole => {
                let bound = self.bindings.values().filter(|binding| binding.role == key);
                bound.for_each(|binding| subjects.add(&binding.subjects));
            }
            RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => {
                let before = self.bindings.remove(&key);
                before.iter().for_each(|binding| subjects.add(&binding.subjects));
                if event != "DELETED" {
                    let after = RbacBinding::from_object(&object);
                    subjects.add(&after.subjects);
                    self.bindings.insert(key, after);
                }
            }
        }
        if subjects.is_empty() { None } else { Some(AffectedUsers::from_subjects(subjects)) }
    }

    /// Removes all bindings of a kind, because changes may have been missed.
    pub fn clear_kind(&mut self, kind: RbacKind) {
        self.bindings.retain(|(of, _), _| *of != kind);
    }
}

impl RbacBinding {
    fn from_object(object: &RbacObject) -> Self {
        let role = match object.role.kind.as_str() {
            "ClusterRole" => (RbacKind::ClusterRole, format!("/{}", object.role.name)),
            _ => (RbacKind::Role, format!("{}/{}", object.metadata.namespace, object.role.name)),
        };
        // A binding in a namespace grants nothing outside it, whatever its role is.
        let (mut subjects, namespaces) =
            (BindingSubjects::default(), AffectedNamespaces::new(&object.metadata.namespace));
        for RbacSubject { kind, name, namespace } in &object.subjects {
            match kind.as_str() {
                "Group" => subjects.add_group(name.clone(), &namespaces),
                "ServiceAccount" => {
                    let namespace = if namespace.is_empty() { &object.metadata.namespace } else { namespace };
                    subjects.add_user(format!("system:serviceaccount:{namespace}:{name}"), &namespaces);
                }
                _ => subjects.add_user(name.clone(), &namespaces),
            }
        }
        Self { role, subjects }
    }
}

impl AffectedUsers {
    pub fn none() -> Self {
        Self::Only(Arc::default())
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::Only(subjects) if subjects.is_empty())
    }

    /// The subjects, or everyone if there are too many to track.
    pub(super) fn from_subjects(subjects: BindingSubjects) -> Self {
        if subjects.pairs() > PAIRS_MAX { Self::Everyone } else { Self::Only(Arc::new(subjects)) }
    }

    /// The union of both.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let (Self::Only(subjects), Self::Only(others)) = (self, other) else { return Self::Everyone };
        if others.is_empty() {
            return Self::Only(subjects);
        }
        let mut subjects = Arc::unwrap_or_clone(subjects);
        subjects.add(others);
        Self::from_subjects(subjects)
    }

    /// Returns the scope in which the user's permissions may have changed; `None` if nowhere.
    pub fn namespaces_of(&self, user: &User) -> Option<AffectedNamespaces> {
        let Self::Only(subjects) = self else { return Some(AffectedNamespaces::Everywhere) };
        let of_groups = user.groups.iter().filter_map(|group| subjects.groups.get(group));
        let mut scopes = subjects.users.get(&user.name).into_iter().chain(of_groups);
        let mut namespaces = scopes.next()?.clone();
        scopes.for_each(|other| namespaces.add(other));
        Some(namespaces)
    }

    /// Whether the user's permissions in `namespace` may have changed. An access without a namespace has an empty one.
    pub fn contains(&self, user: &User, namespace: &str) -> bool {
        self.namespaces_of(user).is_some_and(|namespaces| namespaces.contains(namespace))
    }
}

impl BindingSubjects {
    /// Adds a user whose permissions may have changed in the scope `namespaces`.
    pub(super) fn add_user(&mut self, name: String, namespaces: &AffectedNamespaces) {
        add(&mut self.users, name, namespaces);
    }

    /// Adds a group whose members' permissions may have changed in the scope `namespaces`.
    pub(super) fn add_group(&mut self, name: String, namespaces: &AffectedNamespaces) {
        add(&mut self.groups, name, namespaces);
    }

    pub(super) fn add(&mut self, others: &Self) {
        others.users.iter().for_each(|(name, namespaces)| add(&mut self.users, name.clone(), namespaces));
        others.groups.iter().for_each(|(name, namespaces)| add(&mut self.groups, name.clone(), namespaces));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.users.keys().map(String::as_str)
    }

    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    fn pairs(&self) -> usize {
        let pairs = |namespaces: &AffectedNamespaces| match namespaces {
            AffectedNamespaces::Everywhere => 1,
            AffectedNamespaces::Within(namespaces) => namespaces.len(),
        };
        self.users.values().chain(self.groups.values()).map(pairs).sum()
    }
}

impl AffectedNamespaces {
    /// Returns the scope of an RBAC object: its own namespace, or everywhere if it has none.
    pub(super) fn new(namespace: &str) -> Self {
        if namespace.is_empty() { Self::Everywhere } else { Self::Within([Arc::from(namespace)].into()) }
    }

    /// Whether permissions in `namespace` may have changed. An access without a namespace covers all of them, and no
    /// binding inside a namespace can grant it.
    fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Within(namespaces) => namespaces.contains(namespace),
        }
    }

    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Everywhere, _) => {}
            (namespaces, Self::Everywhere) => *namespaces = Self::Everywhere,
            (Self::Within(namespaces), Self::Within(others)) => namespaces.extend(others.iter().cloned()),
        }
    }
}

fn add(subjects: &mut HashMap<String, AffectedNamespaces>, name: String, namespaces: &AffectedNamespaces) {
    subjects.entry(name).and_modify(|known| known.add(namespaces)).or_insert_with(|| namespaces.clone());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::RbacKind::{ClusterRole, Role, RoleBinding};
    use super::*;

    fn change(event: &str, object: &Value) -> RbacEvent {
        serde_json::from_value(json!({"type": event, "object": object})).expect("a change")
    }

    fn named(affected: Option<AffectedUsers>) -> Vec<String> {
        let Some(AffectedUsers::Only(subjects)) = affected else { return Vec::new() };
        let groups = subjects.groups.keys().map(|group| format!("group {group}"));
        let mut names: Vec<_> = subjects.users.keys().cloned().chain(groups).collect();
        names.sort();
        names
    }

    #[test]
    fn binding_change_affects_old_and_new_subjects() {
        let mut policy = RbacBindings::default();
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

        assert_eq!(named(policy.apply(Role, change("ADDED", &role()))), [""; 0], "bound to no user");
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

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        }
    }

    fn of_user(name: &str, namespace: &str) -> AffectedUsers {
        let mut subjects = BindingSubjects::default();
        subjects.add_user(name.to_owned(), &AffectedNamespaces::new(namespace));
        AffectedUsers::Only(Arc::new(subjects))
    }

    #[test]
    fn policy_change_affects_only_its_subjects_in_its_namespace() {
        let mut subjects = BindingSubjects::default();
        subjects.add_user("ada".to_owned(), &AffectedNamespaces::new("t1"));
        subjects.add_group("dev".to_owned(), &AffectedNamespaces::new("t2"));
        subjects.add_group("ops".to_owned(), &AffectedNamespaces::new(""));
        let affected = AffectedUsers::Only(Arc::new(subjects));
        for (user, namespaces) in [
            (user("ada", &[]), vec!["t1"]),
            (user("ada", &["dev", "other"]), vec!["t1", "t2"]),
            (user("bob", &["dev"]), vec!["t2"]),
            (user("bob", &["dev", "ops"]), vec!["", "t1", "t10", "t2"]),
            (user("bob", &[]), vec![]),
        ] {
            let touched = ["", "t1", "t10", "t2"].into_iter().filter(|at| affected.contains(&user, at));
            assert_eq!(touched.collect::<Vec<_>>(), namespaces, "{user:?}");
        }
        assert!(AffectedUsers::Everyone.contains(&user("ada", &[]), "t1"));
        assert!(AffectedUsers::none().is_none() && !AffectedUsers::none().contains(&user("ada", &[]), ""));
    }

    #[test]
    fn merged_changes_affect_everyone_above_the_pair_limit() {
        let both = of_user("ada", "t1").and(&of_user("ada", "t2"));
        let namespaces = ["t1", "t2"].map(Arc::from).into();
        assert_eq!(both.namespaces_of(&user("ada", &[])), Some(AffectedNamespaces::Within(namespaces)));
        assert_eq!(
            both.and(&of_user("ada", "")).namespaces_of(&user("ada", &[])),
            Some(AffectedNamespaces::Everywhere)
        );
        let many = |count: usize| {
            (0..count).fold(AffectedUsers::none(), |all, n| all.and(&of_user(&format!("u{}", n % 8), &format!("t{n}"))))
        };
        assert!(matches!(many(PAIRS_MAX), AffectedUsers::Only(_)));
        assert_eq!(many(PAIRS_MAX + 1), AffectedUsers::Everyone);
        assert_eq!(many(PAIRS_MAX + 1).and(&AffectedUsers::none()), AffectedUsers::Everyone);
    }
}
