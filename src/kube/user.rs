use std::collections::BTreeMap;

/// Who a request is from: what authentication yields and authorization judges.
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
    /// The group of everyone who has not.
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";

    /// With the group that every authenticated user is in.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == Self::AUTHENTICATED) {
            self.groups.push(Self::AUTHENTICATED.to_owned());
        }
        self
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
