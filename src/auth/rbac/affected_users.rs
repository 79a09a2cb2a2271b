//! The users whose permissions a change of RBAC may affect.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kubeapi::User;

/// The users whose permissions a policy change may affect, and in which namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedUsers {
    Everyone,
    /// The subjects in their scopes, and everyone within these namespaces.
    Only(SubjectMap<AffectedNamespaces>, BTreeSet<Arc<str>>),
}

/// A subject of bindings. A service account is the user as which it authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::auth) enum PolicySubject {
    User(String),
    Group(String),
}

/// A value for each subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectMap<T> {
    pub(super) users: HashMap<String, T>,
    pub(super) groups: HashMap<String, T>,
}

/// The namespaces in which permissions may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedNamespaces {
    Everywhere,
    /// The change affects the listed namespaces, and nothing outside them.
    Within(BTreeSet<Arc<str>>),
}

/// The most tracked pairs of a subject and a namespace. Above it, everyone counts as affected in the namespace with the
/// most subjects.
const PAIRS_MAX: usize = 4_096;
/// The most bindings and subjects that are visited for one change. Above it, everyone counts as affected in the scope of
/// the changed object.
const VISITS_MAX: usize = 2 * PAIRS_MAX;

impl AffectedUsers {
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Only(subjects, namespaces) if subjects.is_empty() && namespaces.is_empty())
    }

    /// Returns the subjects of bindings, each in the scope of its binding, for a change of an object in the scope
    /// `changed`. If a binding has too many subjects, or unknown ones, everyone in its scope is affected.
    pub(in crate::auth) fn by_bindings<S>(
        changed: &AffectedNamespaces,
        bindings: impl IntoIterator<Item = (AffectedNamespaces, Option<S>)>,
    ) -> Self
    where
        S: ExactSizeIterator<Item = PolicySubject>,
    {
        let (mut affected, mut visits_left) = (Self::default(), VISITS_MAX);
        for (scope, subjects) in bindings {
            let Self::Only(known, _) = &mut affected else { break };
            let Some(left) = visits_left.checked_sub(1) else {
                affected.add_everyone(changed);
                break;
            };
            visits_left = left;
            match subjects.filter(|subjects| subjects.len() <= left) {
                Some(subjects) => {
                    visits_left -= subjects.len();
                    subjects.for_each(|subject| known.add(subject, &scope));
                }
                None => affected.add_everyone(&scope),
            }
        }
        affected.limit();
        affected
    }

    /// Adds the users whom another change may affect.
    pub fn add(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Only(subjects, namespaces), Self::Only(others, other_namespaces)) => {
                others.iter().for_each(|(subject, scope)| subjects.add(subject, scope));
                namespaces.extend(other_namespaces.iter().cloned());
                self.limit();
            }
            _ => *self = Self::Everyone,
        }
    }

    fn add_everyone(&mut self, scope: &AffectedNamespaces) {
        match (&mut *self, scope) {
            (Self::Only(_, namespaces), AffectedNamespaces::Within(others)) => {
                namespaces.extend(others.iter().cloned());
            }
            _ => *self = Self::Everyone,
        }
    }

    /// Affects everyone in the namespaces with the most subjects until at most [`PAIRS_MAX`] pairs are tracked, or
    /// everywhere if there are too many namespaces. So a namespace with many subjects does not widen other scopes.
    fn limit(&mut self) {
        let Self::Only(subjects, everyone) = self else { return };
        let scopes = || subjects.users.values().chain(subjects.groups.values());
        let pairs: usize = everyone.len() + scopes().map(AffectedNamespaces::len).sum::<usize>();
        let Some(mut excess) = pairs.checked_sub(PAIRS_MAX).filter(|excess| *excess > 0) else { return };
        let mut counts = BTreeMap::<Arc<str>, usize>::new();
        for namespace in scopes().filter_map(AffectedNamespaces::within).flatten() {
            *counts.entry(namespace.clone()).or_default() += 1;
        }
        let mut largest: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 1).collect();
        largest.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (namespace, count) in largest {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(count - 1);
            everyone.insert(namespace);
        }
        if excess > 0 {
            *self = Self::Everyone;
            return;
        }
        for subjects in [&mut subjects.users, &mut subjects.groups] {
            subjects.retain(|_, scope| scope.keep(|namespace| !everyone.contains(namespace)));
        }
    }

    /// Returns the scope in which the user's permissions may have changed; `None` if nowhere.
    pub fn namespaces_of(&self, user: &User) -> Option<AffectedNamespaces> {
        let Self::Only(subjects, everyone) = self else { return Some(AffectedNamespaces::Everywhere) };
        let mut namespaces = AffectedNamespaces::Within(everyone.clone());
        subjects.applying_to(user).for_each(|other| namespaces.add(other));
        Some(namespaces).filter(|namespaces| namespaces.len() > 0)
    }

    /// Whether the user's permissions in `namespace` may have changed. An access without a namespace has an empty one.
    pub fn contains(&self, user: &User, namespace: &str) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(subjects, everyone) => {
                everyone.contains(namespace) || subjects.applying_to(user).any(|scope| scope.contains(namespace))
            }
        }
    }
}

impl Default for AffectedUsers {
    /// No user.
    fn default() -> Self {
        Self::Only(SubjectMap::default(), BTreeSet::new())
    }
}

impl<T> SubjectMap<T> {
    pub(super) fn entry(&mut self, subject: PolicySubject) -> Entry<'_, String, T> {
        match subject {
            PolicySubject::User(name) => self.users.entry(name),
            PolicySubject::Group(name) => self.groups.entry(name),
        }
    }

    /// Returns the values of the subjects that a user is.
    pub(super) fn applying_to(&self, user: &User) -> impl Iterator<Item = &T> {
        let of_groups = user.groups.iter().filter_map(|group| self.groups.get(group));
        self.users.get(&user.name).into_iter().chain(of_groups)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PolicySubject, &T)> {
        let users = self.users.iter().map(|(name, value)| (PolicySubject::User(name.clone()), value));
        users.chain(self.groups.iter().map(|(name, value)| (PolicySubject::Group(name.clone()), value)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// Returns the names of all subjects.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.users.keys().chain(self.groups.keys()).map(String::as_str)
    }
}

impl<T> Default for SubjectMap<T> {
    fn default() -> Self {
        Self { users: HashMap::new(), groups: HashMap::new() }
    }
}

impl SubjectMap<AffectedNamespaces> {
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

    /// Returns the namespaces; `None` if the scope is everywhere.
    fn within(&self) -> Option<&BTreeSet<Arc<str>>> {
        if let Self::Within(namespaces) = self { Some(namespaces) } else { None }
    }

    fn len(&self) -> usize {
        self.within().map_or(1, BTreeSet::len)
    }

    /// Removes other namespaces than these. Returns whether any scope is left.
    fn keep(&mut self, keeps: impl Fn(&Arc<str>) -> bool) -> bool {
        if let Self::Within(namespaces) = self {
            namespaces.retain(keeps);
        }
        self.len() > 0
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
    use std::cell::Cell;

    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        }
    }

    fn subject(name: &str) -> PolicySubject {
        PolicySubject::User(name.to_owned())
    }

    fn of_user(name: &str, namespace: &str) -> AffectedUsers {
        let scope = AffectedNamespaces::new(namespace);
        AffectedUsers::by_bindings(&scope.clone(), [(scope, Some([subject(name)].into_iter()))])
    }

    fn union(mut affected: AffectedUsers, other: &AffectedUsers) -> AffectedUsers {
        affected.add(other);
        affected
    }

    #[test]
    fn policy_change_affects_only_its_subjects_in_its_namespace() {
        let mut subjects = SubjectMap::default();
        subjects.add(PolicySubject::User("ada".to_owned()), &AffectedNamespaces::new("t1"));
        subjects.add(PolicySubject::Group("dev".to_owned()), &AffectedNamespaces::new("t2"));
        subjects.add(PolicySubject::Group("ops".to_owned()), &AffectedNamespaces::new(""));
        let affected = AffectedUsers::Only(subjects, ["t3".into()].into());
        for (user, namespaces) in [
            (user("ada", &[]), vec!["t1", "t3"]),
            (user("ada", &["dev", "other"]), vec!["t1", "t2", "t3"]),
            (user("bob", &["dev"]), vec!["t2", "t3"]),
            (user("bob", &["dev", "ops"]), vec!["", "t1", "t10", "t2", "t3"]),
            (user("bob", &[]), vec!["t3"]),
        ] {
            let touched = ["", "t1", "t10", "t2", "t3"].into_iter().filter(|at| affected.contains(&user, at));
            assert_eq!(touched.collect::<Vec<_>>(), namespaces, "{user:?}");
            let scope = affected.namespaces_of(&user).expect("at least t3");
            assert!(["", "t1", "t10", "t2", "t3"].into_iter().all(|at| scope.contains(at) == namespaces.contains(&at)));
        }
        assert!(AffectedUsers::Everyone.contains(&user("ada", &[]), "t1"));
        assert!(AffectedUsers::default().is_none() && !AffectedUsers::default().contains(&user("ada", &[]), ""));
        assert_eq!(AffectedUsers::default().namespaces_of(&user("ada", &[])), None);
    }

    #[test]
    fn merged_changes_affect_everyone_in_largest_namespaces_above_the_pair_limit() {
        let both = union(of_user("ada", "t1"), &of_user("ada", "t2"));
        let namespaces = ["t1", "t2"].map(Arc::from).into();
        assert_eq!(both.namespaces_of(&user("ada", &[])), Some(AffectedNamespaces::Within(namespaces)));
        assert_eq!(
            union(both, &of_user("ada", "")).namespaces_of(&user("ada", &[])),
            Some(AffectedNamespaces::Everywhere)
        );
        // Two namespaces have one subject each, and t1 has all others.
        let many = |count: usize| {
            let scope = AffectedNamespaces::new("t1");
            let subjects: Vec<_> = (2..count).map(|n| subject(&format!("u{n}"))).collect();
            let most = AffectedUsers::by_bindings(&scope, [(scope.clone(), Some(subjects.into_iter()))]);
            [of_user("ada", "t2"), of_user("bob", "t3")].iter().fold(most, union)
        };
        let affected = |affected: &AffectedUsers, name: &str| {
            ["t1", "t2", "t3", "t4", ""].map(|at| affected.contains(&user(name, &[]), at))
        };
        for (count, in_t1) in [(PAIRS_MAX, false), (PAIRS_MAX + 1, true)] {
            let merged = many(count);
            assert_eq!(affected(&merged, "u2"), [true, false, false, false, false], "{count}");
            assert_eq!(affected(&merged, "ada"), [in_t1, true, false, false, false], "{count}");
            assert_eq!(affected(&merged, "bob"), [in_t1, false, true, false, false], "{count}");
        }
        let spread = |count: usize| {
            let each = |n: usize| of_user(&format!("u{}", n % 8), &format!("t{n}"));
            (0..count).fold(AffectedUsers::default(), |all, n| union(all, &each(n)))
        };
        assert!(matches!(spread(PAIRS_MAX), AffectedUsers::Only(..)));
        assert_eq!(spread(PAIRS_MAX + 1), AffectedUsers::Everyone, "too many namespaces");
        assert_eq!(union(spread(PAIRS_MAX + 1), &AffectedUsers::default()), AffectedUsers::Everyone);
    }

    /// Bindings of a role: how many there are, with how many subjects each, and in how many namespaces.
    #[test]
    fn visited_bindings_and_subjects_of_one_change_are_limited() {
        for (count, subjects, namespaces, role, expected) in [
            (1, 100_000, 1, "t0", "within"),
            (100_000, 1, 1, "t0", "within"),
            (3, 100_000, 3, "", "within"),
            (PAIRS_MAX, 1, 100, "", "only"),
            (100_000, 1, 100, "", "everyone"),
            (100_000, 0, 100, "", "everyone"),
            (2, 100_000, 0, "", "everyone"),
        ] {
            let visits = Cell::new(0);
            let visit = || visits.set(visits.get() + 1);
            let bindings = (0..count).map(|binding| {
                visit();
                let namespace = if namespaces == 0 { String::new() } else { format!("t{}", binding % namespaces) };
                let subjects = (0..subjects).map(move |of: usize| {
                    visit();
                    subject(&format!("u{binding}-{of}"))
                });
                (AffectedNamespaces::new(&namespace), Some(subjects))
            });
            let affected = AffectedUsers::by_bindings(&AffectedNamespaces::new(role), bindings);
            let kind = match &affected {
                AffectedUsers::Everyone => "everyone",
                AffectedUsers::Only(_, everyone) if everyone.is_empty() => "only",
                AffectedUsers::Only(..) => "within",
            };
            assert_eq!(kind, expected, "{count} bindings of {subjects} subjects");
            assert!(visits.get() <= VISITS_MAX + 1, "{count} bindings of {subjects} subjects: {} visits", visits.get());
            assert_eq!(affected.contains(&user("eve", &[]), "t0"), kind != "only");
            assert_eq!(affected.contains(&user("eve", &[]), "elsewhere"), kind == "everyone");
        }
    }
}
