use std::collections::BTreeMap;

use serde::Serialize;

/// The user of a request: the result of authentication and the input of authorization. It serializes as in audit
/// events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub struct User {
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The group of all authenticated users.
    pub const AUTHENTICATED: &str = "system:authenticated";
    /// The name of the anonymous user.
    pub const ANONYMOUS: &str = "system:anonymous";
    /// The group of the anonymous user.
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";

    /// Returns the user that upstream assigns to callers without a credential.
    pub fn anonymous() -> Self {
        let groups = vec![Self::UNAUTHENTICATED.to_owned()];
        Self { name: Self::ANONYMOUS.to_owned(), groups, ..Self::default() }
    }

    /// Adds the group of all authenticated users, unless the user is anonymous.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        let has_group = |group: &String| group == Self::AUTHENTICATED || group == Self::UNAUTHENTICATED;
        if !self.is_anonymous() && !self.groups.iter().any(has_group) {
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
