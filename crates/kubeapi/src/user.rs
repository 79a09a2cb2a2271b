use std::collections::BTreeMap;

/// The user that a request is from: what authentication yields and authorization judges.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The group of everyone who has been authenticated.
    pub const AUTHENTICATED: &str = "system:authenticated";
    /// The name of nobody in particular.
    pub const ANONYMOUS: &str = "system:anonymous";
    /// The group of everyone who has not.
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";

    /// With the group that every authenticated user is in, unless it is nobody in particular.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        let is_told = |group: &String| group == Self::AUTHENTICATED || group == Self::UNAUTHENTICATED;
        if !self.is_anonymous() && !self.groups.iter().any(is_told) {
            self.groups.push(Self::AUTHENTICATED.to_owned());
        }
        self
    }

    /// Whether this is whom upstream takes those for who show nothing.
    pub fn is_anonymous(&self) -> bool {
        self.name == Self::ANONYMOUS
    }

    /// Whether it is a node, as the Node authorizer knows them (`pkg/auth/nodeidentifier`).
    pub fn is_node(&self) -> bool {
        self.name.starts_with("system:node:") && self.groups.iter().any(|group| group == "system:nodes")
    }

    /// Bytes of its texts.
    pub fn len_bytes(&self) -> usize {
        let extra = self.extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
        self.name.len() + self.uid.len() + self.groups.iter().map(String::len).sum::<usize>() + extra.sum::<usize>()
    }

    /// Whether both have the same rights: the same name in the same groups, whatever credential has shown it.
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
