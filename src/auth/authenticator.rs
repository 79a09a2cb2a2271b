use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::access_reviewer::AccessReviewer;
use super::certificate::{CertificateAuthorities, CertificateIdentity, CertificateRejection};
use super::comparison_queue::ComparisonQueue;
use super::credential::{AuthenticatedIdentity, Credential};
use super::policy_changes::PolicyChanges;
use super::sha256::sha256_of;
use super::token_reviewer::{TokenReviewPurpose, TokenReviewer};
use super::token_verifier::TokenVerifier;
use super::{AuthConfig, CertificateAuthorityRole, GrantError, PeerCertChain};
use crate::net::ListenAddress;
use crate::upstream::{CredentialId, ReviewClient};
use base::{ReadinessTracker, WallClock, WatchedFile};
use kubeapi::{FlowDistinguisher, User};

/// The authorities that are trusted now. Their file may change.
pub type ReloadableAuthorities = WatchedFile<CertificateAuthorities>;

/// The front proxies whose identity headers are trusted. They have a certificate from an authority used for nothing
/// else.
#[derive(Clone)]
pub struct FrontProxyConfig {
    pub authorities: ReloadableAuthorities,
    /// The accepted common names; if empty, any.
    pub names: Vec<String>,
}

/// Determines the identity and the permissions of callers. Results are valid only for a short time and are obtained
/// again.
pub(super) struct Authenticator {
    pub(super) config: Arc<AuthConfig>,
    pub(super) reviews: Arc<dyn ReviewClient>,
    key: ring::hmac::Key,
    pub(super) token_reviewer: TokenReviewer,
    pub(super) access_reviewer: AccessReviewer,
    /// The answers given here that are compared with upstream's.
    pub(super) comparisons: Arc<ComparisonQueue>,
    pub(super) changes: PolicyChanges,
    /// The number of open watches that continue although their permissions cannot be checked.
    pub(super) outages: Mutex<usize>,
    pub(super) clock: WallClock,
    client_authorities: Option<ReloadableAuthorities>,
    front_proxy: Option<FrontProxyConfig>,
}

/// The identity of a caller, as determined from its credential.
#[derive(Debug, Clone)]
pub enum Caller {
    /// The proxy itself: every client that reaches the socket acts as it.
    ProxyItself,
    /// A caller that sent no credential.
    Anonymous,
    Known(Arc<AuthenticatedCaller>),
}

/// A user that upstream has authenticated by its credential.
#[derive(Debug)]
pub struct AuthenticatedCaller {
    pub(super) id: CredentialId,
    pub(super) credential: Credential,
    pub(super) user: Arc<User>,
    pub(super) flow: FlowDistinguisher,
    /// The time at which the credential expires, if known.
    pub(super) expires_at: Option<SystemTime>,
}

/// The callers that a section of the configuration names: those with filtered reads, or with reduced ones.
///
/// It grants nothing: what a filtered read shows needs a permission of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedCallers {
    pub groups: Vec<String>,
    pub users: Vec<String>,
    /// The listeners on which every caller is one of them.
    pub listeners: Vec<ListenAddress>,
}

impl AuthenticatedCaller {
    pub(super) fn new(
        id: CredentialId,
        credential: Credential,
        user: Arc<User>,
        expires_at: Option<SystemTime>,
    ) -> Self {
        let flow = FlowDistinguisher::per_node(&user);
        Self { id, credential, user, flow, expires_at }
    }
}

impl Caller {
    /// Returns the caller's name, for messages.
    pub fn name(&self) -> &str {
        match self {
            Self::ProxyItself => "",
            Self::Anonymous => User::ANONYMOUS,
            Self::Known(known) => &known.user.name,
        }
    }

    pub fn user(&self) -> Option<&User> {
        match self {
            Self::ProxyItself | Self::Anonymous => None,
            Self::Known(known) => Some(&known.user),
        }
    }

    /// Whether the caller is authenticated by a certificate of its own, which a browser sends automatically.
    ///
    /// A front proxy's certificate does not count, because the front proxy must check the browser requests that it
    /// forwards.
    pub fn has_client_certificate(&self) -> bool {
        matches!(self, Self::Known(known) if matches!(known.credential, Credential::Certificate(_)))
    }

    /// Returns the party to which every limit charges this caller; `None` if all callers are the proxy itself. Callers
    /// without a credential count as one user.
    pub fn flow(&self) -> Option<FlowDistinguisher> {
        match self {
            Self::ProxyItself => None,
            Self::Anonymous => Some(FlowDistinguisher::anonymous()),
            Self::Known(known) => Some(known.flow.clone()),
        }
    }
}

impl NamedCallers {
    /// Whether the caller is one of them, or uses one of their listeners. A caller without a credential never is.
    pub fn includes(&self, caller: &Caller, on_their_listener: bool) -> bool {
        caller.user().is_some_and(|_| on_their_listener) || self.names(caller)
    }

    /// Whether the caller or one of its groups is named.
    pub fn names(&self, caller: &Caller) -> bool {
        caller.user().is_some_and(|user| {
            self.users.contains(&user.name) || user.groups.iter().any(|group| self.groups.contains(group))
        })
    }
}

impl Authenticator {
    pub(super) fn new(
        reviews: Arc<dyn ReviewClient>,
        verifier: Option<Arc<TokenVerifier>>,
        config: AuthConfig,
        client_authorities: Option<ReloadableAuthorities>,
        front_proxy: Option<FrontProxyConfig>,
        clock: WallClock,
    ) -> Self {
        let mut secret = [0; 32];
        let random = ring::rand::SystemRandom::new();
        ring::rand::SecureRandom::fill(&random, &mut secret).expect("the system has randomness");
        let comparisons = Arc::new(ComparisonQueue::new(config.compare_one_in));
        Self {
            key: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret),
            token_reviewer: TokenReviewer::new(reviews.clone(), verifier, comparisons.clone(), &config, clock.clone()),
            access_reviewer: AccessReviewer::new(reviews.clone(), comparisons.clone(), &config),
            config: Arc::new(config),
            comparisons,
            changes: PolicyChanges::new(),
            outages: Mutex::default(),
            reviews,
            clock,
            client_authorities,
            front_proxy,
        }
    }

    /// Keeps `ready` from being ready while the proxy may not create reviews. Never returns.
    pub(super) fn track_readiness(&self, ready: &ReadinessTracker) -> BoxFuture<'static, ()> {
        let permissions = [&self.token_reviewer.queue.permission, &self.access_reviewer.queue.permission];
        let guards =
            permissions.map(|permission| permission.clone().track_readiness(self.reviews.clone(), ready.clone()));
        Box::pin(join_all(guards).map(drop))
    }

    /// Returns the identifier of a credential. Without this process's key, the credential cannot be derived from it.
    pub(super) fn id(&self, credential: &Credential) -> CredentialId {
        let of_chain = |chain: &PeerCertChain| chain.id(|certificates| self.keyed_id(&("certificate", certificates)));
        match credential {
            Credential::Anonymous => self.keyed_id(&"anonymous"),
            Credential::Token(token) => self.keyed_id(&("token", token.expose())),
            Credential::Certificate(chain) => of_chain(chain),
            Credential::FrontProxy(chain, user) => self.keyed_id(&("asserted", of_chain(chain).as_bytes(), user)),
        }
    }

    /// Returns the identifier of the parts of a credential. Different parts have different digests.
    fn keyed_id(&self, parts: &impl Hash) -> CredentialId {
        let tag = ring::hmac::sign(&self.key, &sha256_of(parts));
        CredentialId::new(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Returns what verifies tokens without a review, if so configured.
    pub(super) fn verifier(&self) -> Option<&TokenVerifier> {
        self.token_reviewer.verifier.as_deref()
    }

    /// Returns a signal that is cancelled when an object that a token is bound to no longer exists.
    pub(super) fn lost(&self, id: &CredentialId) -> Option<Arc<CancellationToken>> {
        self.verifier()?.lost(id)
    }

    /// Returns how long the objects that a verified token is bound to have not been watched; `None` if they are, or if
    /// there is no such token.
    pub(super) fn identity_stale_for(&self, id: &CredentialId) -> Option<Duration> {
        self.verifier()?.stale_for(id).filter(|stale| !stale.is_zero())
    }

    /// Returns the time until which a chain authenticates a front proxy; `None` if it does not.
    fn front_proxy(&self, chain: &PeerCertChain) -> Option<SystemTime> {
        let proxies = self.front_proxy.as_ref()?;
        let CertificateIdentity { user, expires_at } = chain
            .holder(CertificateAuthorityRole::FrontProxy, &proxies.authorities.current(), self.clock.now())
            .ok()?;
        (proxies.names.is_empty() || proxies.names.contains(&user.name)).then_some(expires_at)
    }

    /// Returns the user of a credential; `None` if the credential names no user.
    ///
    /// # Errors
    /// The credential is not accepted, or that cannot be determined.
    pub(super) async fn identify(
        &self,
        id: CredentialId,
        credential: &Credential,
        purpose: TokenReviewPurpose<'_>,
    ) -> Result<Option<AuthenticatedIdentity>, GrantError> {
        let (user, expires_at) = match credential {
            Credential::Anonymous => (Arc::new(User::anonymous()), None),
            Credential::Token(token) => return self.token_reviewer.identify(id, token, purpose).await.map(Some),
            Credential::Certificate(chain) => {
                let Some(CertificateIdentity { user, expires_at }) = self.holder(chain)? else { return Ok(None) };
                (user, Some(expires_at))
            }
            Credential::FrontProxy(chain, user) => {
                // If the peer is not a trusted front proxy, its certificate is still a credential, and is tried next.
                let Some(expires_at) = self.front_proxy(chain) else { return Ok(None) };
                (user.clone(), Some(expires_at))
            }
        };
        Ok(Some(AuthenticatedIdentity { reviewed: Instant::now(), user, expires_at }))
    }

    /// Returns the holder of a certificate; `None` if the certificate is trusted and names no user.
    fn holder(&self, chain: &PeerCertChain) -> Result<Option<CertificateIdentity>, GrantError> {
        let authorities = self.client_authorities.as_ref().ok_or(GrantError::Unauthenticated)?.current();
        match chain.holder(CertificateAuthorityRole::Client, &authorities, self.clock.now()) {
            Ok(holder) => Ok(Some(holder)),
            Err(CertificateRejection::NoCommonName) => Ok(None),
            Err(_) => Err(GrantError::Unauthenticated),
        }
    }

    /// Returns the authorities that verify a credential's certificates, if it has any.
    pub(super) fn authorities(&self, credential: &Credential) -> Option<ReloadableAuthorities> {
        match credential {
            Credential::Anonymous | Credential::Token(_) => None,
            Credential::Certificate(_) => self.client_authorities.clone(),
            Credential::FrontProxy(..) => self.front_proxy.as_ref().map(|proxies| proxies.authorities.clone()),
        }
    }
}
