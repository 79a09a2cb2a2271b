//! The objects of a filtered watch that are shown by name, in namespaces of which the watch does not show everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::auth::NamespaceAccess;
use kubeapi::ObjectKey;

/// The shown names of each namespace. The client knows an object with such a name, if it exists, as it is at the watch's
/// position.
#[derive(Debug, Default)]
pub(super) struct NamedObjects(BTreeMap<Arc<str>, BTreeSet<Box<str>>>);

/// A name that is to be shown, or no longer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameChange {
    Show(Box<str>),
    Hide(Box<str>),
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

    /// Returns the first difference between the shown names and those that an access allows. If it allows the whole
    /// namespace, there is none.
    pub(super) fn next_change(&self, namespace: &str, access: &NamespaceAccess) -> Option<NameChange> {
        let none = BTreeSet::new();
        let shown = self.0.get(namespace).unwrap_or(&none);
        let allowed = match access {
            NamespaceAccess::Allowed => return None,
            NamespaceAccess::Named(names) => names,
            NamespaceAccess::Denied | NamespaceAccess::Unanswered => &none,
        };
        let hidden = shown.difference(allowed).next().cloned().map(NameChange::Hide);
        hidden.or_else(|| allowed.difference(shown).next().cloned().map(NameChange::Show))
    }
}
