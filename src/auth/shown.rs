use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::certificate::{Authorities, Edition, Holder, Untrusted};
use super::credential::Chain;
use crate::upstream::CredentialId;

/// A certificate chain that a client has shown, and what was found out about it: kept with the connection, so that it is
/// looked at once, and not with every request.
#[derive(Debug)]
pub struct Shown {
    chain: Chain,
    id: OnceLock<CredentialId>,
    as_client: Mutex<Option<Verdict>>,
    as_proxy: Mutex<Option<Verdict>>,
}

/// Whose authorities a chain is verified by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    FrontProxy,
}

/// Whose a chain is, or that it is nobody's, by some authorities and for a while.
#[derive(Debug, Clone)]
struct Verdict {
    edition: Edition,
    from: SystemTime,
    until: SystemTime,
    holder: Result<Holder, Untrusted>,
}

/// How long a no is good, at most: it ends sooner where a certificate is about to become valid.
const NO_KEPT_MAX: Duration = Duration::from_secs(60);

impl Shown {
    pub fn new(chain: Chain) -> Self {
        Self { chain, id: OnceLock::new(), as_client: Mutex::new(None), as_proxy: Mutex::new(None) }
    }

    /// The chain's name, which is made once.
    pub(super) fn id(&self, make: impl FnOnce(&Chain) -> CredentialId) -> CredentialId {
        *self.id.get_or_init(|| make(&self.chain))
    }

    /// Whose chain it is by these authorities, now.
    pub(super) fn holder(&self, role: Role, authorities: &Authorities, now: SystemTime) -> Result<Holder, Untrusted> {
        let mut kept = match role {
            Role::Client => self.as_client.lock(),
            Role::FrontProxy => self.as_proxy.lock(),
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
    /// Whether nothing has happened that could change it: neither other authorities nor the time, also where the clock
    /// was set back.
    fn stands(&self, authorities: &Authorities, now: SystemTime) -> bool {
        self.edition == authorities.edition() && (self.from..self.until).contains(&now)
    }
}

/// Two are the same if their chains are.
impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Eq for Shown {}

/// What two sets of authorities know of each other: an authority in both would make every client a front proxy.
#[derive(Debug, Clone, Default)]
pub struct Separation(Arc<Mutex<Sides>>);

#[derive(Debug, Default)]
struct Sides {
    clients: Vec<Vec<u8>>,
    proxies: Vec<Vec<u8>>,
}

/// An authority of clients would be one of front proxies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an authority of clients would be one of front proxies too")]
pub struct Mixed;

impl Separation {
    /// From now on these are the authorities of that role, unless one of them has the other role too.
    ///
    /// # Errors
    /// It has; what was before stays.
    pub fn admit(&self, role: Role, authorities: &Authorities) -> Result<(), Mixed> {
        let mut sides = self.0.lock();
        let Sides { clients, proxies } = &mut *sides;
        let (own, others) = match role {
            Role::Client => (clients, proxies),
            Role::FrontProxy => (proxies, clients),
        };
        let keys: Vec<_> = authorities.keys().map(<[u8]>::to_vec).collect();
        if keys.iter().any(|key| others.contains(key)) {
            return Err(Mixed);
        }
        *own = keys;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
