use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::AuthorityRole;
use super::certificate::{Authorities, AuthoritySetId, CertificateHolder, CertificateRejected, Chain};
use crate::upstream::CredentialId;

/// A certificate chain that a client has sent, and the result of its verification. It is stored with the connection, so
/// that the chain is verified once and not with every request.
#[derive(Debug)]
pub struct PeerCertChain {
    chain: Chain,
    id: OnceLock<CredentialId>,
    as_client: Mutex<Option<Verdict>>,
    as_proxy: Mutex<Option<Verdict>>,
}

/// The result of a chain's verification, valid for one set of authorities and a period.
#[derive(Debug, Clone)]
struct Verdict {
    edition: AuthoritySetId,
    from: SystemTime,
    until: SystemTime,
    holder: Result<CertificateHolder, CertificateRejected>,
}

/// The longest time that the refusal of a chain is cached. It ends earlier when a certificate becomes valid.
const NO_KEPT_MAX: Duration = Duration::from_secs(60);

impl PeerCertChain {
    pub fn new(chain: Chain) -> Self {
        Self { chain, id: OnceLock::new(), as_client: Mutex::new(None), as_proxy: Mutex::new(None) }
    }

    /// Returns the chain's identifier, which is computed once.
    pub(super) fn id(&self, make: impl FnOnce(&Chain) -> CredentialId) -> CredentialId {
        *self.id.get_or_init(|| make(&self.chain))
    }

    /// Returns the holder of the chain, by the given authorities and time.
    ///
    /// # Errors
    /// The chain is not trusted now.
    pub(super) fn holder(
        &self,
        role: AuthorityRole,
        authorities: &Authorities,
        now: SystemTime,
    ) -> Result<CertificateHolder, CertificateRejected> {
        let mut kept = match role {
            AuthorityRole::Client => self.as_client.lock(),
            AuthorityRole::FrontProxy => self.as_proxy.lock(),
        };
        if let Some(verdict) = kept.as_ref().filter(|verdict| verdict.ttls(authorities, now)) {
            return verdict.holder.clone();
        }
        let holder = authorities.verify(&self.chain, now);
        let until = match &holder {
            Ok(holder) => holder.until,
            Err(why) => {
                tracing::debug!(error = %why, role = role.as_str(), "client certificate not accepted in this role");
                let soon = now + NO_KEPT_MAX;
                authorities.next_start(&self.chain, now).map_or(soon, |start| start.min(soon))
            }
        };
        *kept = Some(Verdict { edition: authorities.edition(), from: now, until, holder: holder.clone() });
        holder
    }
}

impl Verdict {
    /// Whether the verdict still holds: the authorities are the same, and the time is within its period. This also
    /// detects a clock that was set back.
    fn ttls(&self, authorities: &Authorities, now: SystemTime) -> bool {
        self.edition == authorities.edition() && (self.from..self.until).contains(&now)
    }
}

/// Compares the certificate chains only.
impl PartialEq for PeerCertChain {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Eq for PeerCertChain {}

#[cfg(test)]
mod tests;
