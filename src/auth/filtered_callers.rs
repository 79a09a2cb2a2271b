use super::Caller;

/// The callers whose lists and watches across namespaces are filtered if upstream denies them as a whole.
///
/// It grants nothing: what a filtered read shows needs a permission of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilteredCallers {
    pub groups: Vec<String>,
    pub users: Vec<String>,
}

impl FilteredCallers {
    /// Whether the caller is one of them. A caller without a credential never is.
    pub fn includes(&self, caller: &Caller) -> bool {
        caller.user().is_some_and(|user| {
            self.users.contains(&user.name) || user.groups.iter().any(|group| self.groups.contains(group))
        })
    }
}
