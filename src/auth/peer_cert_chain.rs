use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::AuthorityRole;
use super::certificate::{Authorities, CertificateHolder, CertificateRejected, Edition};
use super::chain::Chain;
use crate::upstream::CredentialId;

/// A certificate chain that a client has shown, and what was found out about it. It is kept with the connection, so
/// that the chain is verified once and not with every request.
#[derive(Debug)]
pub struct PeerCertChain {
    chain: Chain,
    id: OnceLock<CredentialId>,
    as_client: Mutex<Option<Verdict>>,
    as_proxy: Mutex<Option<Verdict>>,
}

/// The holder of a chain, or that it has none, by some authorities and for a while.
#[derive(Debug, Clone)]
struct Verdict {
    edition: Edition,
    from: SystemTime,
    until: SystemTime,
    holder: Result<CertificateHolder, CertificateRejected>,
}

/// How long a refusal is remembered at most. It ends sooner where a certificate is about to become valid.
const NO_KEPT_MAX: Duration = Duration::from_secs(60);

impl PeerCertChain {
    pub fn new(chain: Chain) -> Self {
        Self { chain, id: OnceLock::new(), as_client: Mutex::new(None), as_proxy: Mutex::new(None) }
    }

    /// The chain's name, which is made once.
    pub(super) fn id(&self, make: impl FnOnce(&Chain) -> CredentialId) -> CredentialId {
        *self.id.get_or_init(|| make(&self.chain))
    }

    /// The holder of the chain by these authorities, at this moment.
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
        if let Some(verdict) = kept.as_ref().filter(|verdict| verdict.stands(authorities, now)) {
            return verdict.holder.clone();
        }
        let holder = authorities.verify(&self.chain, now);
        let until = match &holder {
            Ok(holder) => holder.until,
            Err(why) => {
                tracing::debug!(%why, ?role, "a certificate is not trusted");
                let soon = now + NO_KEPT_MAX;
                authorities.next_start(&self.chain, now).map_or(soon, |start| start.min(soon))
            }
        };
        *kept = Some(Verdict { edition: authorities.edition(), from: now, until, holder: holder.clone() });
        holder
    }
}

impl Verdict {
    /// Whether nothing has happened that could change the verdict: neither other authorities nor the time, also where
    /// the clock was set back.
    fn stands(&self, authorities: &Authorities, now: SystemTime) -> bool {
        self.edition == authorities.edition() && (self.from..self.until).contains(&now)
    }
}

/// Two are equal if their chains are.
impl PartialEq for PeerCertChain {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Eq for PeerCertChain {}

#[cfg(test)]
mod tests;
