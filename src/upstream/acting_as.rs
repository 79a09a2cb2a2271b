use std::fmt;
use std::sync::Arc;

use kubeapi::{FlowDistinguisher, User};

/// Identifies a credential within this process. The credential cannot be derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialId([u8; 32]);

/// The identity with which a request is sent upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ActingAs {
    /// The proxy's own identity: the caller is the same user as the proxy.
    ProxyItself,
    /// The bearer token of the request. The flow distinguisher is the token's user.
    Bearer(CredentialId, FlowDistinguisher),
    /// The request has no identity of the proxy: the user of the request's credential is unknown.
    Anonymous,
    /// A user whose credential cannot be forwarded: the proxy impersonates the user.
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
