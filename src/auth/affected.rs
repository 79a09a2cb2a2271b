use std::collections::HashSet;
use std::sync::Arc;

use crate::kube::User;

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
}

impl Affected {
    pub fn contains(&self, user: &User) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(subjects) => {
                subjects.users.contains(&user.name) || user.groups.iter().any(|group| subjects.groups.contains(group))
            }
        }
    }
}
