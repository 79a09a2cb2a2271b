//! The objects of a filtered watch that are shown by name, in namespaces of which the watch does not show everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::auth::NamespaceAccess;
use kubeapi::ObjectKey;

/// The shown names of each namespace. The client knows an object with such a name, if it exists, as it is at the watch's
/// position.
#[derive(Debug, Default)]
pub(super) struct NamedObjects(BTreeMap<Arc<str>, BTreeSet<Box<str>>>);

/// An object that is to be shown by name, or no longer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NameChange {
    pub(super) key: ObjectKey,
    pub(super) shows: bool,
}

impl NamedObjects {
    pub(super) fn contains(&self, key: &ObjectKey) -> bool {
        self.0.get(key.namespace()).is_some_and(|names| names.contains(key.name()))
    }

    pub(super) fn insert(&mut self, namespace: &str, name: &str) {
        self.0.entry(namespace.into()).or_default().insert(name.into());
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(names) = self.0.get_mut(namespace) {
            names.remove(name);
            if names.is_empty() {
                self.0.remove(namespace);
            }
        }
    }

    /// Forgets the names of a namespace that is shown as a whole.
    pub(super) fn clear(&mut self, namespace: &str) {
        self.0.remove(namespace);
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, NameChange { key, shows }: &NameChange) {
        let change = if *shows { Self::insert } else { Self::remove };
        change(self, key.namespace(), key.name());
    }

    /// Whether the shown names are not those that an access allows. If it allows the whole namespace, they need no change.
    pub(super) fn differs(&self, namespace: &str, access: &NamespaceAccess) -> bool {
        let shown = self.0.get(namespace);
        match access {
            NamespaceAccess::Allowed => false,
            NamespaceAccess::Named(names) => shown != Some(&**names),
            NamespaceAccess::Denied | NamespaceAccess::Unanswered => shown.is_some(),
        }
    }

    /// Returns the changes after which the shown names are those that an access allows, first what is hidden.
    pub(super) fn changes(&self, namespace: &str, access: &NamespaceAccess) -> Vec<NameChange> {
        let none = BTreeSet::new();
        let shown = self.0.get(namespace).unwrap_or(&none);
        let allowed = match access {
            NamespaceAccess::Allowed => return Vec::new(),
            NamespaceAccess::Named(names) => names,
            NamespaceAccess::Denied | NamespaceAccess::Unanswered => &none,
        };
        let change = |name: &str, shows| NameChange { key: ObjectKey::new(namespace, name), shows };
        let hidden = shown.difference(allowed).map(|name| change(name, false));
        hidden.chain(allowed.difference(shown).map(|name| change(name, true))).collect()
    }
}

impl NameChange {
    /// Whether an access to the namespace requires the change.
    pub(super) fn is_required_by(&self, access: &NamespaceAccess) -> bool {
        *access != NamespaceAccess::Allowed && access.allows(self.key.name()) == self.shows
    }
}
