//! RBAC: its objects, whose permissions a change of them may affect, and what they allow.
//!
//! [`RbacPolicy`] evaluates roles and bindings as the apiserver's RBAC authorizer does
//! (`plugin/pkg/auth/authorizer/rbac/rbac.go`, `pkg/registry/rbac/validation/rule.go`). It knows no other authorizer:
//!
//! - Members of `system:masters` may do anything in every kube-apiserver, before RBAC and every other authorizer. No code
//!   here says so, because the default binding of `cluster-admin` does. If that binding is deleted, upstream is asked.
//! - The Node authorizer never denies, so it does not change what RBAC allows. What only it allows is asked upstream.
//! - A webhook before RBAC may deny what RBAC allows. Only the operator knows whether there is one.

mod affected_users;
mod policy;
mod rule;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Deserializer};

#[cfg(test)]
pub(super) use affected_users::PolicySubject;
pub use affected_users::{AffectedNamespaces, AffectedUsers, SubjectMap};
pub use policy::{ObjectNames, RbacGrant, RbacObjectKey, RbacPolicy};
use rule::PolicyRules;

/// The kinds of RBAC objects that affect permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RbacKind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// An event of a watch of RBAC objects.
#[derive(Debug, Deserialize)]
pub struct RbacEvent {
    #[serde(rename = "type")]
    kind: String,
    object: RbacObject,
}

impl RbacEvent {
    /// Returns the event that creates an object; `None` if its JSON is not that of an RBAC object.
    pub fn added(object: &str) -> Option<Self> {
        Some(Self { kind: "ADDED".to_owned(), object: serde_json::from_str(object).ok()? })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RbacObject {
    metadata: RbacObjectMeta,
    rules: PolicyRules,
    #[serde(rename = "roleRef")]
    role: RbacRoleRef,
    #[serde(deserialize_with = "null_as_default")]
    subjects: Vec<RbacSubject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RbacObjectMeta {
    name: String,
    namespace: String,
    #[serde(rename = "resourceVersion")]
    version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RbacRoleRef {
    kind: String,
    name: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct RbacSubject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

impl RbacKind {
    pub const ALL: [Self; 4] = [Self::Role, Self::ClusterRole, Self::RoleBinding, Self::ClusterRoleBinding];

    /// Returns the plural resource name in `rbac.authorization.k8s.io`.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
            Self::RoleBinding => "RoleBinding",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
        }
    }

    fn is_namespaced(self) -> bool {
        matches!(self, Self::Role | Self::RoleBinding)
    }

    fn is_binding(self) -> bool {
        matches!(self, Self::RoleBinding | Self::ClusterRoleBinding)
    }
}

/// Reads an absent list, which the apiserver may write as `null`.
fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(input: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(input).map(Option::unwrap_or_default)
}
