//! The users whose permissions a change of RBAC may affect.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::subjects::{BySubject, PolicySubject};
use kubeapi::User;

/// The users whose permissions a policy change may affect, and in which namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedUsers {
    Everyone,
    Only(BySubject<AffectedNamespaces>),
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
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Only(subjects) if subjects.is_empty())
    }

    /// The subjects, or everyone if there are too many to track.
    pub(in crate::auth) fn from_subjects(subjects: BySubject<AffectedNamespaces>) -> Self {
        let pairs = |namespaces: &AffectedNamespaces| match namespaces {
            AffectedNamespaces::Everywhere => 1,
            AffectedNamespaces::Within(namespaces) => namespaces.len(),
        };
        let pairs: usize = subjects.users.values().chain(subjects.groups.values()).map(pairs).sum();
        if pairs > PAIRS_MAX { Self::Everyone } else { Self::Only(subjects) }
    }

    /// Adds the users whom another change may affect.
    pub fn add(&mut self, other: &Self) {
        *self = match (std::mem::replace(self, Self::Everyone), other) {
            (Self::Only(mut subjects), Self::Only(others)) => {
                others.iter().for_each(|(subject, namespaces)| subjects.add(subject, namespaces));
                Self::from_subjects(subjects)
            }
            _ => Self::Everyone,
        };
    }

    /// Returns the scope in which the user's permissions may have changed; `None` if nowhere.
    pub fn namespaces_of(&self, user: &User) -> Option<AffectedNamespaces> {
        let Self::Only(subjects) = self else { return Some(AffectedNamespaces::Everywhere) };
        let mut scopes = subjects.applying_to(user);
        let mut namespaces = scopes.next()?.clone();
        scopes.for_each(|other| namespaces.add(other));
        Some(namespaces)
    }

    /// Whether the user's permissions in `namespace` may have changed. An access without a namespace has an empty one.
    pub fn contains(&self, user: &User, namespace: &str) -> bool {
        self.namespaces_of(user).is_some_and(|namespaces| namespaces.contains(namespace))
    }
}

impl Default for AffectedUsers {
    /// No user.
    fn default() -> Self {
        Self::Only(BySubject::default())
    }
}

impl BySubject<AffectedNamespaces> {
    /// Adds a subject whose permissions may have changed in the scope `namespaces`.
    pub(in crate::auth) fn add(&mut self, subject: PolicySubject, namespaces: &AffectedNamespaces) {
        self.entry(subject).and_modify(|known| known.add(namespaces)).or_insert_with(|| namespaces.clone());
    }
}

impl AffectedNamespaces {
    /// Returns the scope of an RBAC object: its own namespace, or everywhere if it has none.
    pub(in crate::auth) fn new(namespace: &str) -> Self {
        if namespace.is_empty() { Self::Everywhere } else { Self::Within([Arc::from(namespace)].into()) }
    }

    /// Whether permissions in `namespace` may have changed. An access without a namespace covers all of them, and no
    /// binding inside a namespace can grant it.
    pub(in crate::auth) fn contains(&self, namespace: &str) -> bool {
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
        let mut subjects = BySubject::default();
        subjects.add(PolicySubject::User(name.to_owned()), &AffectedNamespaces::new(namespace));
        AffectedUsers::Only(subjects)
    }

    fn union(mut affected: AffectedUsers, other: &AffectedUsers) -> AffectedUsers {
        affected.add(other);
        affected
    }

    #[test]
    fn policy_change_affects_only_its_subjects_in_its_namespace() {
        let mut subjects = BySubject::default();
        subjects.add(PolicySubject::User("ada".to_owned()), &AffectedNamespaces::new("t1"));
        subjects.add(PolicySubject::Group("dev".to_owned()), &AffectedNamespaces::new("t2"));
        subjects.add(PolicySubject::Group("ops".to_owned()), &AffectedNamespaces::new(""));
        let affected = AffectedUsers::Only(subjects);
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
        assert!(AffectedUsers::default().is_none() && !AffectedUsers::default().contains(&user("ada", &[]), ""));
    }

    #[test]
    fn merged_changes_affect_everyone_above_the_pair_limit() {
        let both = union(of_user("ada", "t1"), &of_user("ada", "t2"));
        let namespaces = ["t1", "t2"].map(Arc::from).into();
        assert_eq!(both.namespaces_of(&user("ada", &[])), Some(AffectedNamespaces::Within(namespaces)));
        assert_eq!(
            union(both, &of_user("ada", "")).namespaces_of(&user("ada", &[])),
            Some(AffectedNamespaces::Everywhere)
        );
        let many = |count: usize| {
            let each = |n: usize| of_user(&format!("u{}", n % 8), &format!("t{n}"));
            (0..count).fold(AffectedUsers::default(), |all, n| union(all, &each(n)))
        };
        assert!(matches!(many(PAIRS_MAX), AffectedUsers::Only(_)));
        assert_eq!(many(PAIRS_MAX + 1), AffectedUsers::Everyone);
        assert_eq!(union(many(PAIRS_MAX + 1), &AffectedUsers::default()), AffectedUsers::Everyone);
    }
}
