use std::collections::HashSet;
use std::sync::Arc;

use crate::kube::{Access, Target, User};

/// Whose rights may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Affected {
    Everyone,
    Only(Arc<Subjects>),
}

/// The subjects of bindings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subjects {
    pub users: HashSet<String>,
    pub groups: HashSet<String>,
    /// Of their rights only those within this namespace.
    pub namespace: Option<String>,
}

impl Affected {
    /// Whether the user's right to `access` may have changed; to anything at all, if that is not named.
    pub fn contains(&self, user: &User, access: Option<&Access>) -> bool {
        let Self::Only(subjects) = self else { return true };
        let namespace = access.map(|access| match &access.target {
            Target::Resource(target) => target.namespace.as_str(),
            Target::Path(_) => "",
        });
        let within = match (&subjects.namespace, namespace) {
            (Some(changed), Some(wanted)) => changed == wanted,
            _ => true,
        };
        let named =
            subjects.users.contains(&user.name) || user.groups.iter().any(|group| subjects.groups.contains(group));
        within && named
    }
}
