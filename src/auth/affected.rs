use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kubeapi::User;

/// The users whose permissions a policy change may affect, and in which namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedUsers {
    Everyone,
    Only(Arc<Subjects>),
}

/// The subjects of bindings, and the scope in which their permissions may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subjects {
    users: HashMap<String, AffectedScope>,
    groups: HashMap<String, AffectedScope>,
}

/// The namespaces in which permissions may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedScope {
    Everywhere,
    /// The change affects the listed namespaces, and nothing outside them.
    Within(BTreeSet<Arc<str>>),
}

/// The most tracked pairs of a subject and a namespace. Above it, everyone counts as affected.
const PAIRS_MAX: usize = 4_096;

impl AffectedUsers {
    pub fn nobody() -> Self {
        Self::Only(Arc::default())
    }

    pub fn is_nobody(&self) -> bool {
        matches!(self, Self::Only(subjects) if subjects.is_empty())
    }

    /// The subjects, or everyone if there are too many to track.
    pub(super) fn of(subjects: Subjects) -> Self {
        if subjects.pairs() > PAIRS_MAX { Self::Everyone } else { Self::Only(Arc::new(subjects)) }
    }

    /// Returns the union of both.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let (Self::Only(subjects), Self::Only(others)) = (self, other) else { return Self::Everyone };
        if others.is_empty() {
            return Self::Only(subjects);
        }
        let mut subjects = Arc::unwrap_or_clone(subjects);
        subjects.add(others);
        Self::of(subjects)
    }

    /// Returns the scope in which the user's permissions may have changed; `None` if nowhere.
    pub fn reach(&self, user: &User) -> Option<AffectedScope> {
        let Self::Only(subjects) = self else { return Some(AffectedScope::Everywhere) };
        let of_groups = user.groups.iter().filter_map(|group| subjects.groups.get(group));
        let mut reaches = subjects.users.get(&user.name).into_iter().chain(of_groups);
        let mut reach = reaches.next()?.clone();
        reaches.for_each(|other| reach.add(other));
        Some(reach)
    }

    /// Whether the user's permissions in `namespace` may have changed. An access without a namespace has an empty one.
    pub fn contains(&self, user: &User, namespace: &str) -> bool {
        self.reach(user).is_some_and(|reach| reach.contains(namespace))
    }
}

impl Subjects {
    /// Adds a user whose permissions may have changed in the scope `reach`.
    pub(super) fn add_user(&mut self, name: String, reach: &AffectedScope) {
        add(&mut self.users, name, reach);
    }

    /// Adds a group whose members' permissions may have changed in the scope `reach`.
    pub(super) fn add_group(&mut self, name: String, reach: &AffectedScope) {
        add(&mut self.groups, name, reach);
    }

    pub(super) fn add(&mut self, others: &Self) {
        others.users.iter().for_each(|(name, reach)| add(&mut self.users, name.clone(), reach));
        others.groups.iter().for_each(|(name, reach)| add(&mut self.groups, name.clone(), reach));
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
        let pairs = |reach: &AffectedScope| match reach {
            AffectedScope::Everywhere => 1,
            AffectedScope::Within(namespaces) => namespaces.len(),
        };
        self.users.values().chain(self.groups.values()).map(pairs).sum()
    }
}

impl AffectedScope {
    /// Returns the scope of an RBAC object: its own namespace, or everywhere if it has none.
    pub(super) fn of(namespace: &str) -> Self {
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
            (reach, Self::Everywhere) => *reach = Self::Everywhere,
            (Self::Within(namespaces), Self::Within(others)) => namespaces.extend(others.iter().cloned()),
        }
    }
}

fn add(subjects: &mut HashMap<String, AffectedScope>, name: String, reach: &AffectedScope) {
    subjects.entry(name).and_modify(|known| known.add(reach)).or_insert_with(|| reach.clone());
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
        let mut subjects = Subjects::default();
        subjects.add_user(name.to_owned(), &AffectedScope::of(namespace));
        AffectedUsers::Only(Arc::new(subjects))
    }

    #[test]
    fn policy_change_affects_only_its_subjects_in_its_namespace() {
        let mut subjects = Subjects::default();
        subjects.add_user("ada".to_owned(), &AffectedScope::of("t1"));
        subjects.add_group("dev".to_owned(), &AffectedScope::of("t2"));
        subjects.add_group("ops".to_owned(), &AffectedScope::of(""));
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
        assert!(AffectedUsers::nobody().is_nobody() && !AffectedUsers::nobody().contains(&user("ada", &[]), ""));
    }

    #[test]
    fn merged_changes_affect_everyone_above_the_pair_limit() {
        let both = of_user("ada", "t1").and(&of_user("ada", "t2"));
        let namespaces = ["t1", "t2"].map(Arc::from).into();
        assert_eq!(both.reach(&user("ada", &[])), Some(AffectedScope::Within(namespaces)));
        assert_eq!(both.and(&of_user("ada", "")).reach(&user("ada", &[])), Some(AffectedScope::Everywhere));
        let many = |count: usize| {
            (0..count)
                .fold(AffectedUsers::nobody(), |all, n| all.and(&of_user(&format!("u{}", n % 8), &format!("t{n}"))))
        };
        assert!(matches!(many(PAIRS_MAX), AffectedUsers::Only(_)));
        assert_eq!(many(PAIRS_MAX + 1), AffectedUsers::Everyone);
        assert_eq!(many(PAIRS_MAX + 1).and(&AffectedUsers::nobody()), AffectedUsers::Everyone);
    }
}
