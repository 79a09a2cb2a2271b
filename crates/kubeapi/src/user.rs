use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

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
        let [own, others] = [self, other].map(|user| user.groups.iter().collect::<BTreeSet<_>>());
        self.name == other.name && self.uid == other.uid && own == others
    }
}

/// The client to which the cost of requests is attributed. It is a user by name and UID, with any credential, or the
/// pods of a service account on one node.
///
/// Limits apply per flow distinguisher and not per credential, because one account can obtain any number of tokens, and
/// one token has several spellings.
#[derive(Clone)]
pub struct FlowDistinguisher(Arc<FlowIdentity>);

#[derive(PartialEq, Eq, Hash)]
struct FlowIdentity {
    number: u64,
    name: String,
    uid: String,
    node: Option<String>,
}

/// The extra fields in which the apiserver identifies a token bound to a pod (KEP-4193). A client that may request
/// tokens can obtain some that name any node, but those name no pod.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const SERVICE_ACCOUNTS: &str = "system:serviceaccount:";

impl FlowDistinguisher {
    pub fn from_user(user: &User) -> Self {
        Self(Arc::new(FlowIdentity::from_user(user, None)))
    }

    /// Like [`from_user`](Self::from_user), but distinguishes the pods of a service account by node. The agents of a
    /// daemon set are one user, and must not compete for one share.
    pub fn per_node(user: &User) -> Self {
        let extra = |key: &str| user.extra.get(key).and_then(|values| values.first());
        let node = extra(NODE_NAME).filter(|_| user.name.starts_with(SERVICE_ACCOUNTS) && extra(POD_NAME).is_some());
        Self(Arc::new(FlowIdentity::from_user(user, node.cloned())))
    }

    /// Returns the distinguisher of all callers without a credential, who count as one user.
    pub fn anonymous() -> Self {
        static ANONYMOUS: LazyLock<FlowDistinguisher> =
            LazyLock::new(|| FlowDistinguisher::from_user(&User::anonymous()));
        ANONYMOUS.clone()
    }

    /// Returns a number for the distinguisher that is almost certainly unique in this process.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the user's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl FlowIdentity {
    fn from_user(user: &User, node: Option<String>) -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let (name, uid) = (user.name.clone(), user.uid.clone());
        let number = KEYS.hash_one((&name, &uid, &node));
        Self { number, name, uid, node }
    }
}

impl PartialEq for FlowDistinguisher {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for FlowDistinguisher {}

impl Hash for FlowDistinguisher {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for FlowDistinguisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_distinguisher_depends_only_on_user_name_and_uid() {
        let user = |name: &str, uid: &str, group: &str| User {
            name: name.to_owned(),
            uid: uid.to_owned(),
            groups: vec![group.to_owned()],
            ..User::default()
        };
        let ada = FlowDistinguisher::from_user(&user("ada", "1", "dev"));
        for (other, is_same) in [
            (user("ada", "1", "ops"), true),
            (user("ada", "2", "dev"), false),
            (user("ada1", "", "dev"), false),
            (user("bob", "1", "dev"), false),
        ] {
            assert_eq!(ada == FlowDistinguisher::from_user(&other), is_same, "{other:?}");
        }
    }

    #[test]
    fn only_service_account_pods_are_distinguished_by_node() {
        let user = |name: &str, extra: &[(&str, &str)]| User {
            name: name.to_owned(),
            extra: extra.iter().map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()])).collect(),
            ..User::default()
        };
        let agent = "system:serviceaccount:agents:agent";
        let on = |node: &'static str| user(agent, &[(NODE_NAME, node), (POD_NAME, "agent-x1")]);
        let payer = FlowDistinguisher::per_node(&on("n1"));
        for (other, is_same) in [
            (user(agent, &[(NODE_NAME, "n1"), (POD_NAME, "agent-x2")]), true),
            (on("n2"), false),
            (user(agent, &[]), false),
        ] {
            assert_eq!(payer == FlowDistinguisher::per_node(&other), is_same, "{other:?}");
        }
        for same in [on("n1"), user(agent, &[(NODE_NAME, "n1")]), user("ada", &[(NODE_NAME, "n1"), (POD_NAME, "x")])] {
            let is_alone = same != on("n1");
            assert_eq!(FlowDistinguisher::per_node(&same) == FlowDistinguisher::from_user(&same), is_alone, "{same:?}");
        }
    }
}
