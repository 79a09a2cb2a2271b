use super::Caller;
use crate::net::ListenAddress;

/// The callers that a section of the configuration names: those with filtered reads, or with reduced ones.
///
/// It grants nothing: what a filtered read shows needs a permission of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedCallers {
    pub groups: Vec<String>,
    pub users: Vec<String>,
    /// The listeners on which every caller is one of them.
    pub listeners: Vec<ListenAddress>,
}

impl NamedCallers {
    /// Whether the caller is one of them, or uses one of their listeners. A caller without a credential never is.
    pub fn includes(&self, caller: &Caller, on_their_listener: bool) -> bool {
        caller.user().is_some_and(|_| on_their_listener) || self.names(caller)
    }

    /// Whether the caller or one of its groups is named.
    pub fn names(&self, caller: &Caller) -> bool {
        caller.user().is_some_and(|user| {
            self.users.contains(&user.name) || user.groups.iter().any(|group| self.groups.contains(group))
        })
    }
}
