use std::collections::BTreeMap;

/// The user of a request: the result of authentication and the input of authorization.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The group of all authenticated users.
    pub const AUTHENTICATED: &str = "system:authenticated";
    /// The name of the anonymous user.
    pub const ANONYMOUS: &str = "system:anonymous";
    /// The group of the anonymous user.
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";

    /// Adds the group of all authenticated users, unless the user is anonymous.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        let is_told = |group: &String| group == Self::AUTHENTICATED || group == Self::UNAUTHENTICATED;
        if !self.is_anonymous() && !self.groups.iter().any(is_told) {
            self.groups.push(Self::AUTHENTICATED.to_owned());
        }
        self
    }

    /// Whether the user is that of requests without credentials, `system:anonymous`.
    pub fn is_anonymous(&self) -> bool {
        self.name == Self::ANONYMOUS
    }

    /// Whether the user is a node, as in the Node authorizer (`pkg/auth/nodeidentifier`).
    pub fn is_node(&self) -> bool {
        self.name.starts_with("system:node:") && self.groups.iter().any(|group| group == "system:nodes")
    }

    /// Returns the number of bytes of the user's texts.
    pub fn len_bytes(&self) -> usize {
        let extra = self.extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
        self.name.len() + self.uid.len() + self.groups.iter().map(String::len).sum::<usize>() + extra.sum::<usize>()
    }

    /// Whether both have the same name, UID and groups, and therefore the same permissions, whatever their credentials.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let sorted = |user: &Self| {
            let mut groups = user.groups.clone();
            groups.sort();
            groups.dedup();
            groups
        };
        self.name == other.name && self.uid == other.uid && sorted(self) == sorted(other)
    }
}
