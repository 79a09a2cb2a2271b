use std::sync::Arc;
use std::time::SystemTime;

use super::accesses::Accesses;
use super::certificate::{Authorities, Holder, Untrusted};
use super::credential::{Chain, Credential};
use super::reviews::Reviews;
use super::tokens::{self, Tokens};
use super::{Config, Refused, now};
use crate::base::Reloaded;
use crate::kube::User;
use crate::upstream::CredentialId;

/// Certificates that are accepted, as of now: their file may change.
pub type Trusted = Reloaded<Authorities>;

/// Proxies whose word about a caller is taken: those with a certificate of an authority that is there for nothing else.
#[derive(Clone)]
pub struct FrontProxy {
    pub authorities: Trusted,
    /// Common names; empty: any.
    pub names: Vec<String>,
}

/// Knows who somebody is, and what they may: both as of an instant, to be asked again.
pub(super) struct Judge {
    key: ring::hmac::Key,
    tokens: Tokens,
    pub(super) accesses: Accesses,
    client_authorities: Option<Trusted>,
    front_proxy: Option<FrontProxy>,
    /// Verified chains, by themselves and by the edition of the authorities.
    holders: moka::sync::Cache<(CredentialId, u64), Holder>,
}

/// Somebody, until then.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) user: Arc<User>,
    pub(super) until: Option<SystemTime>,
}

/// Verified chains that are remembered.
const HOLDERS_MAX: u64 = 50_000;

impl Judge {
    pub(super) fn new(
        reviews: Arc<dyn Reviews>,
        config: &Config,
        client_authorities: Option<Trusted>,
        front_proxy: Option<FrontProxy>,
    ) -> Self {
        let mut secret = [0; 32];
        let random = ring::rand::SystemRandom::new();
        ring::rand::SecureRandom::fill(&random, &mut secret).expect("the system has randomness");
        Self {
            key: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret),
            tokens: Tokens::new(reviews.clone(), config),
            accesses: Accesses::new(reviews, config),
            client_authorities,
            front_proxy,
            holders: moka::sync::Cache::new(HOLDERS_MAX),
        }
    }

    /// The name of a credential: nobody without our key can tell which one it is.
    pub(super) fn id(&self, credential: &Credential) -> CredentialId {
        let mut hmac = ring::hmac::Context::with_key(&self.key);
        // Lengths first: no two credentials may read alike.
        let mut add = |part: &[u8]| {
            hmac.update(&(part.len() as u64).to_be_bytes());
            hmac.update(part);
        };
        match credential {
            Credential::Nobody => add(b"nobody"),
            Credential::Token(token) => {
                add(b"token");
                add(token.reveal().as_bytes());
            }
            Credential::Certificate(chain) => {
                add(b"certificate");
                chain.iter().for_each(|certificate| add(certificate));
            }
            Credential::Asserted(chain, user) => {
                add(b"asserted");
                chain.iter().for_each(|certificate| add(certificate));
                add(user.name.as_bytes());
                add(user.uid.as_bytes());
                add(format!("{:?}{:?}", user.groups, user.extra).as_bytes());
            }
        }
        let tag = hmac.sign();
        CredentialId::new(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Whether this chain is one of a proxy whose word we take.
    fn is_front_proxy(&self, chain: &Chain) -> bool {
        let Some(front) = &self.front_proxy else { return false };
        let authorities = front.authorities.current();
        match authorities.verify(chain, now()) {
            Ok(Holder { user, .. }) => front.names.is_empty() || front.names.contains(&user.name),
            Err(_) => false,
        }
    }

    /// Who somebody is; `None` if the credential says nothing of that.
    pub(super) async fn identify(
        &self,
        id: CredentialId,
        credential: &Credential,
        asks: tokens::Asks<'_>,
    ) -> Result<Option<Identity>, Refused> {
        let identity = match credential {
            Credential::Nobody => Identity { user: Arc::new(anonymous()), until: None },
            Credential::Token(token) => {
                let bearer = self.tokens.bearer(id, token, asks).await?;
                Identity { user: bearer.user, until: bearer.until }
            }
            Credential::Certificate(chain) => {
                let Some(holder) = self.holder(id, chain)? else { return Ok(None) };
                Identity { user: holder.user, until: Some(holder.until) }
            }
            Credential::Asserted(chain, user) if self.is_front_proxy(chain) => {
                Identity { user: user.clone(), until: None }
            }
            // Not a proxy's word; its certificate is a credential all the same, and comes next.
            Credential::Asserted(..) => return Ok(None),
        };
        Ok(Some(identity))
    }

    /// `None`: it is trusted, and names nobody.
    fn holder(&self, id: CredentialId, chain: &Chain) -> Result<Option<Holder>, Refused> {
        let authorities = self.client_authorities.as_ref().ok_or(Refused::Unauthenticated)?.current();
        let at = now();
        let known = self.holders.get(&(id, authorities.edition())).filter(|holder| at <= holder.until);
        if known.is_some() {
            return Ok(known);
        }
        match authorities.verify(chain, at) {
            Ok(holder) => {
                self.holders.insert((id, authorities.edition()), holder.clone());
                Ok(Some(holder))
            }
            Err(Untrusted::Nameless) => Ok(None),
            Err(why) => {
                tracing::debug!(%why, "a client certificate is not trusted");
                Err(Refused::Unauthenticated)
            }
        }
    }

    /// What a credential's certificates are verified by, if it has some.
    pub(super) fn authorities(&self, credential: &Credential) -> Option<Trusted> {
        match credential {
            Credential::Nobody | Credential::Token(_) => None,
            Credential::Certificate(_) => self.client_authorities.clone(),
            Credential::Asserted(..) => self.front_proxy.as_ref().map(|front| front.authorities.clone()),
        }
    }
}

/// The user that upstream takes those for who show nothing.
pub(super) fn anonymous() -> User {
    let groups = vec![User::UNAUTHENTICATED.to_owned()];
    User { name: User::ANONYMOUS.to_owned(), groups, ..User::default() }
}
