//! The users whose permissions a change of RBAC may affect.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kubeapi::User;

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

impl AffectedUsers {
    pub fn none() -> Self {
        Self::Only(Arc::default())
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::Only(subjects) if subjects.is_empty())
    }

    /// The subjects, or everyone if there are too many to track.
    pub(in crate::auth) fn from_subjects(subjects: BindingSubjects) -> Self {
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
    pub(in crate::auth) fn add_user(&mut self, name: String, namespaces: &AffectedNamespaces) {
        add(&mut self.users, name, namespaces);
    }

    /// Adds a group whose members' permissions may have changed in the scope `namespaces`.
    pub(in crate::auth) fn add_group(&mut self, name: String, namespaces: &AffectedNamespaces) {
        add(&mut self.groups, name, namespaces);
    }

    pub(in crate::auth) fn add(&mut self, others: &Self) {
        others.users.iter().for_each(|(name, namespaces)| add(&mut self.users, name.clone(), namespaces));
        others.groups.iter().for_each(|(name, namespaces)| add(&mut self.groups, name.clone(), namespaces));
    }

    pub(in crate::auth) fn is_empty(&self) -> bool {
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
    pub(in crate::auth) fn new(namespace: &str) -> Self {
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
    use super::*;

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
