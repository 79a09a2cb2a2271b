use std::fmt;
use std::sync::Arc;

use crate::kube::{Payer, User};

/// A credential's name within this process, from which the credential cannot be had back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialId([u8; 32]);

/// With whose rights a request goes upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ActingAs {
    /// With ours: the caller is who we are.
    Ours,
    /// With the bearer token that the request carries, at the cost of its user.
    Bearer(CredentialId, Payer),
    /// With none: whatever the request carries is not known to be anybody's.
    Nobody,
    /// With those of a user whose credential cannot be passed on, by impersonation.
    User(Arc<User>),
}

impl CredentialId {
    pub fn new(tag: [u8; 32]) -> Self {
        Self(tag)
    }

    /// For names that are made of this one.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
