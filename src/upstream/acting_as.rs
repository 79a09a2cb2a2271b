use std::fmt;
use std::sync::Arc;

use kubeapi::{FlowDistinguisher, User};

/// Identifies a credential within this process. The credential cannot be computed from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialId([u8; 32]);

/// Says with whose rights a request goes upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ActingAs {
    /// With our rights: the caller is the user that we are ourselves.
    Ours,
    /// With the bearer token that the request carries; its user is the payer.
    Bearer(CredentialId, FlowDistinguisher),
    /// With no rights of ours: no user is known for what the request carries.
    Nobody,
    /// With the rights of a user whose credential cannot be passed on: we impersonate the user.
    User(Arc<User>),
}

impl CredentialId {
    pub fn new(tag: [u8; 32]) -> Self {
        Self(tag)
    }

    /// The bytes of the identifier, from which other identifiers are derived.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
