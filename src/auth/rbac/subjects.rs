//! Subjects of bindings, as the users and groups that they name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kubeapi::User;

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
