//! Verifies service account tokens here: by the cluster's published keys, and by the objects that they are bound to.
//!
//! The result is the user that a `TokenReview` would return, or `None`. `None` means that the token is not proven to be
//! valid, and must be reviewed. So every condition here is at least as strict as the apiserver's
//! (`pkg/serviceaccount/jwt.go`, `claims.go`).

mod bound_objects;
mod claims;
mod follower;
mod keys;
#[cfg(test)]
pub(super) mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::bound_objects::{BoundKind, BoundObject, BoundObjects, parse_uid};
use self::claims::{ParsedToken, TokenClaims};
use self::follower::BoundObjectFollower;
use self::keys::{PublishedKeys, SigningKey, TokenKeys};
use super::comparison_queue::ComparedObject;
use super::credential::{AuthenticatedIdentity, BearerToken, TOKEN_BYTES_MAX};
use super::review_permission::ReviewResource;
use super::review_queue::{ReviewRate, ReviewRateLimit, ReviewRateLimitKey};
use super::{AuthConfig, GrantError, metrics};
use crate::upstream::{CredentialId, TokenReviewResult, UpstreamClient};
use base::{BackgroundTasks, WallClock};
use kubeapi::{EscapedFieldTerm, Gvr, NAME_KEY};

/// Verifies tokens.
pub(super) struct TokenVerifier {
    client: UpstreamClient,
    /// The only node whose pods are followed, if any.
    node: Option<Arc<str>>,
    clock: WallClock,
    tasks: BackgroundTasks,
    /// How long what was read last is used while upstream cannot be reached.
    grace: Duration,
    keys: Arc<TokenKeys>,
    objects: Arc<BoundObjects>,
    audiences: AcceptedAudiences,
    /// The tokens whose signature was verified. Tokens are not stored.
    verified: moka::sync::Cache<CredentialId, Arc<VerifiedToken>>,
    /// The tokens that upstream did not accept. They are reviewed.
    rejected: moka::sync::Cache<CredentialId, ()>,
    signature_checks: ReviewRateLimit,
    /// Whether upstream has contradicted this verifier, which has then stopped.
    is_stopped: AtomicBool,
}

/// A token with a valid signature.
struct VerifiedToken {
    key: Arc<SigningKey>,
    claims: TokenClaims,
    /// Cancelled when an object that the token is bound to no longer exists.
    lost: Arc<CancellationToken>,
}

/// The audiences that a token may have.
struct AcceptedAudiences {
    configured: Vec<String>,
    /// Upstream's own audiences, which it does not publish, from reviews of accepted tokens.
    learned: Mutex<Vec<LearnedAudience>>,
}

struct LearnedAudience {
    name: String,
    learned: Instant,
    /// When the next token with this audience is reviewed, to confirm it.
    confirm_at: Instant,
}

/// The reason that a token is not proven to be valid, as a metric label.
type Unproven = &'static str;

/// An object that the token is bound to was seen to be deleted. UIDs are unique, so the token is invalid for ever.
const DELETED: Unproven = "deleted";
/// The maximum number of verified tokens, and how long they are kept without use.
const VERIFIED_MAX: u64 = 32_768;
const VERIFIED_IDLE_MAX: Duration = Duration::from_secs(3600);
/// How long a kind of objects is followed at least after its last use.
const FOLLOW_IDLE_MIN: Duration = Duration::from_secs(600);
/// The maximum number of rejected tokens, and how long they are reviewed.
const REJECTED_MAX: u64 = 32_768;
const REJECTED_TTL: Duration = Duration::from_secs(600);
/// The maximum number of signature checks per second for the tokens of requests. One takes about 30 µs.
const SIGNATURE_CHECKS_PER_SECOND: u32 = 2_000;
/// The maximum number of audiences of upstream.
const AUDIENCES_MAX: usize = 16;
/// How long an audience is accepted without confirmation by a review.
const AUDIENCE_TTL: Duration = Duration::from_secs(3600);
/// The maximum time for a read of the keys. Without them, a rejection is not confirmed.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two attempts to confirm an audience.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(60);

impl TokenVerifier {
    /// Creates a verifier. On a node it watches only that node's pods.
    pub(super) fn new(
        client: UpstreamClient,
        config: &AuthConfig,
        node: Option<&Arc<str>>,
        clock: WallClock,
        tasks: BackgroundTasks,
    ) -> Arc<Self> {
        let each = ReviewRate::new(config.reviews_per_source, config.reviews_burst_per_source);
        let all = ReviewRate::new(SIGNATURE_CHECKS_PER_SECOND, SIGNATURE_CHECKS_PER_SECOND);
        Arc::new(Self {
            client,
            node: node.cloned(),
            clock,
            tasks,
            grace: config.outage_grace,
            keys: Arc::new(TokenKeys::new()),
            objects: Arc::default(),
            audiences: AcceptedAudiences { configured: config.audiences.clone(), learned: Mutex::default() },
            verified: moka::sync::Cache::builder()
                .max_capacity(VERIFIED_MAX)
                .eviction_policy(EvictionPolicy::lru())
                .time_to_idle(VERIFIED_IDLE_MAX)
                .build(),
            rejected: moka::sync::Cache::builder().max_capacity(REJECTED_MAX).time_to_live(REJECTED_TTL).build(),
            signature_checks: ReviewRateLimit::new(each, all, Duration::ZERO, Duration::ZERO),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Starts the tasks that follow bound objects. They send nothing before the first service account token.
    pub(super) fn start(&self, config: &AuthConfig) {
        let idle_max = idle_max(config);
        for kind in BoundKind::ALL {
            let Self { client, objects, keys, node, .. } = self;
            let (client, objects, keys, node) = (client.clone(), objects.clone(), keys.clone(), node.clone());
            let follower = BoundObjectFollower { client, objects, keys, kind, node, idle_max };
            self.tasks.spawn_critical("bound objects", follower.run());
        }
    }

    /// Returns the user of a token that is proven to be valid; `None` if upstream must review it. The signature check of
    /// an unknown token is charged to `source`. Without a source the token is that of an open watch, for which only what
    /// is received at once counts.
    ///
    /// # Errors
    /// An object that the token is bound to has been deleted. Upstream may accept the token for seconds more.
    pub(super) fn identify(
        &self,
        id: CredentialId,
        token: &BearerToken,
        source: Option<IpAddr>,
    ) -> Result<Option<AuthenticatedIdentity>, GrantError> {
        let stale_max = if source.is_some() { self.grace } else { Duration::ZERO };
        let proven = self.verify(&id, token, source).and_then(|verified| {
            self.check_bound(&verified, stale_max)?;
            self.check_audiences(&verified)?;
            Ok(verified)
        });
        metrics::token_verified(proven.as_ref().err().unwrap_or(&"valid"));
        let verified = match proven {
            Ok(verified) => verified,
            Err(DELETED) => return Err(GrantError::Unauthenticated),
            Err(_) => return Ok(None),
        };
        if verified.lost.is_cancelled() {
            // The object is back: upstream's storage was restored. The next check gives the token a new signal.
            self.verified.invalidate(&id);
        }
        let (user, expires_at) = (verified.claims.user.clone(), Some(verified.claims.expires_at));
        Ok(Some(AuthenticatedIdentity { reviewed: Instant::now(), user, expires_at }))
    }

    /// Returns a signal that is cancelled when an object that a verified token is bound to no longer exists.
    pub(super) fn lost(&self, id: &CredentialId) -> Option<Arc<CancellationToken>> {
        Some(self.verified.get(id)?.lost.clone())
    }

    /// Returns how long what proves a token has been stale: the objects that it is bound to. `None` if the token is not
    /// proven to be valid.
    pub(super) fn stale_for(&self, id: &CredentialId) -> Option<Duration> {
        let verified = self.verified.get(id)?;
        let stale_for = |object| self.objects.stale_for(object);
        verified.claims.bound.iter().map(stale_for).try_fold(Duration::ZERO, |longest, stale| Some(longest.max(stale?)))
    }

    /// Compares the result of a review with what is proven here, and learns upstream's audiences from it. Returns false
    /// if upstream contradicts a token that is proven to be valid.
    pub(super) fn compare(&self, id: CredentialId, token: &BearerToken, review: &TokenReviewResult) -> bool {
        let verified = self.verify(&id, token, None);
        let Some(user) = &review.user else {
            let Ok(verified) = verified else { return true };
            let is_valid = self.check_bound(&verified, self.grace).is_ok() && self.check_audiences(&verified).is_ok();
            self.rejected.insert(id, ());
            if is_valid {
                // It may be upstream's audiences that have changed.
                self.audiences.learned.lock().clear();
                tracing::warn!(
                    "upstream rejected a token that was proven to be valid; its audiences are learned again"
                );
            }
            return !is_valid;
        };
        self.rejected.invalidate(&id);
        let Ok(verified) = verified else { return true };
        if *verified.claims.user != user.clone().authenticated() {
            self.stop(&verified.claims.user.name, &format!("the token is that of another user: {}", user.name));
            return false;
        }
        self.audiences.learn(review.audiences.iter().filter(|audience| verified.claims.audiences.contains(audience)));
        true
    }

    /// Reads the keys again, because a key may have been withdrawn. Returns `None` if they cannot be read within
    /// [`KEYS_TIMEOUT`].
    pub(super) async fn read_keys_again(&self) -> Option<()> {
        let begun = self.keys.expire();
        let read = self.keys.read_after(begun, || self.read_keys_if_due(false));
        timeout(KEYS_TIMEOUT, read).await.ok()
    }

    /// Whether a token is valid by what is received at once.
    pub(super) fn proves_now(&self, id: &CredentialId, token: &BearerToken) -> bool {
        let Ok(verified) = self.verify_here(id, token, None) else { return false };
        self.check_bound(&verified, Duration::ZERO).is_ok() && self.check_audiences(&verified).is_ok()
    }

    /// Returns the objects that a verified token is bound to. They must exist upstream with the same UID.
    pub(super) fn bound_objects(&self, id: &CredentialId) -> Vec<ComparedObject> {
        let verified = self.verified.get(id);
        verified.iter().flat_map(|verified| &verified.claims.bound).map(|object| self.compared(object)).collect()
    }

    /// Stops the verification of tokens, because upstream does not accept one as that of this user.
    pub(super) fn stop(&self, user: &str, upstream_reason: &str) {
        metrics::local_decisions_disagreed(ReviewResource::TOKEN.label, true);
        if !self.is_stopped.swap(true, Ordering::Relaxed) {
            tracing::error!(
                user,
                local_reason = "a published key signed the token, and the objects that it is bound to exist",
                upstream_reason,
                "the apiserver rejects a token that is valid here; asking it for every token until a restart or reload"
            );
        }
    }

    /// Verifies tokens again after [`stop`](Self::stop).
    pub(super) fn resume(&self) {
        metrics::local_decisions_disagreed(ReviewResource::TOKEN.label, false);
        self.is_stopped.store(false, Ordering::Relaxed);
    }

    /// Verifies everything but audiences and bound objects.
    fn verify(
        &self,
        id: &CredentialId,
        token: &BearerToken,
        source: Option<IpAddr>,
    ) -> Result<Arc<VerifiedToken>, Unproven> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err("stopped");
        }
        if self.rejected.contains_key(id) {
            return Err("rejected");
        }
        self.verify_here(id, token, source)
    }

    /// Does the same for a token that upstream may have rejected.
    fn verify_here(
        &self,
        id: &CredentialId,
        token: &BearerToken,
        source: Option<IpAddr>,
    ) -> Result<Arc<VerifiedToken>, Unproven> {
        let known = self.verified.get(id);
        // Other tokens must not make the proxy read the keys.
        let parsed = if known.is_some() { None } else { Some(parse(token)?) };
        let keys = self.keys.published(self.grace);
        let is_unknown = keys.as_ref().zip(parsed.as_ref()).is_some_and(|(keys, parsed)| {
            parsed.claims.issuer == keys.issuer && keys.find(&parsed.header.kid).is_none()
        });
        self.read_keys_if_due(is_unknown);
        let keys = keys.ok_or("keys_unknown")?;
        let verified = match (known, parsed) {
            (Some(known), _) if keys.has(&known.key) && keys.issuer == known.claims.issuer => known,
            (Some(_), _) => {
                self.verified.invalidate(id);
                return Err("unknown_key");
            }
            (None, parsed) => self.check_signature(id, &keys, parsed.ok_or("other_form")?, source)?,
        };
        let now = self.clock.now();
        if now < verified.claims.not_before || now >= verified.claims.expires_at {
            return Err("time");
        }
        Ok(verified)
    }

    fn check_signature(
        &self,
        id: &CredentialId,
        keys: &PublishedKeys,
        parsed: ParsedToken<'_>,
        source: Option<IpAddr>,
    ) -> Result<Arc<VerifiedToken>, Unproven> {
        let ParsedToken { header, claims, signed, signature } = parsed;
        if claims.issuer != keys.issuer {
            return Err("other_issuer");
        }
        let key = keys.find(&header.kid).ok_or("unknown_key")?;
        if source.is_some_and(|source| !self.signature_checks.take(ReviewRateLimitKey::Address(source))) {
            return Err("over_budget");
        }
        if !key.verifies(&header.alg, signed, &signature) {
            return Err("signature");
        }
        let verified = Arc::new(VerifiedToken { key: key.clone(), claims, lost: Arc::default() });
        // The signal exists before the objects are looked up, so no deletion falls between the two.
        self.objects.signal_loss(&verified.claims.bound, &verified.lost);
        self.verified.insert(*id, verified.clone());
        Ok(verified)
    }

    /// Checks that the objects exist, or did at most `stale_max` ago.
    fn check_bound(&self, verified: &VerifiedToken, stale_max: Duration) -> Result<(), Unproven> {
        let exists = |object| self.objects.stale_for(object).is_some_and(|stale| stale <= stale_max);
        // All are looked up, so that all kinds are followed.
        let missing: Vec<_> = verified.claims.bound.iter().filter(|object| !exists(object)).collect();
        let is_gone = |object: &&BoundObject| verified.lost.is_cancelled() && self.objects.is_gone(object);
        match missing.iter().any(is_gone) {
            true => Err(DELETED),
            false if missing.is_empty() => Ok(()),
            false => Err("bound_object"),
        }
    }

    fn check_audiences(&self, verified: &VerifiedToken) -> Result<(), Unproven> {
        let is_accepted = self.audiences.accept(&verified.claims.audiences);
        is_accepted.then_some(()).ok_or("audience")
    }

    fn read_keys_if_due(&self, is_unknown: bool) {
        if self.keys.begin_read(is_unknown) {
            let (keys, client) = (self.keys.clone(), self.client.clone());
            self.tasks.spawn("token keys", async move { keys.read(&client).await });
        }
    }

    fn compared(&self, object: &BoundObject) -> ComparedObject {
        let (namespace, name) = object.key.split_once('/').unwrap_or_default();
        let path = Gvr::new("", "v1", object.kind.resource()).path_in(namespace);
        // On a node, the proxy may list that node's pods only.
        let node = self.node.as_ref().filter(|_| object.kind == BoundKind::Pod);
        let node = node.map(|node| format!("%2Cspec.nodeName%3D{node}")).unwrap_or_default();
        let uid = object.uid;
        ComparedObject {
            list: format!("{path}?fieldSelector={}{node}", EscapedFieldTerm::is(NAME_KEY, name)),
            is_same: Box::new(move |listed| !listed.is_deleting && parse_uid(&listed.uid) == Some(uid)),
        }
    }
}

impl AcceptedAudiences {
    /// Whether a token with these audiences is meant for this proxy or for upstream.
    fn accept(&self, audiences: &[String]) -> bool {
        if !self.configured.is_empty() {
            return audiences.iter().any(|audience| self.configured.contains(audience));
        }
        let (now, mut learned) = (Instant::now(), self.learned.lock());
        learned.retain(|audience| now < audience.learned + 2 * AUDIENCE_TTL);
        let Some(found) = learned.iter_mut().find(|learned| audiences.contains(&learned.name)) else { return false };
        if now < found.confirm_at {
            return true;
        }
        // One token is reviewed. Until that has confirmed the audience, others are still accepted.
        found.confirm_at = now + CONFIRM_INTERVAL;
        false
    }

    /// Records audiences that upstream accepts.
    fn learn<'a>(&self, audiences: impl Iterator<Item = &'a String>) {
        let (now, mut learned) = (Instant::now(), self.learned.lock());
        for name in audiences {
            learned.retain(|audience| audience.name != *name);
            if learned.len() < AUDIENCES_MAX {
                let name = name.clone();
                learned.push(LearnedAudience { name, learned: now, confirm_at: now + AUDIENCE_TTL });
            }
        }
    }
}

/// Returns how long a kind of objects is followed after its last use. It is longer than the time between two reviews of
/// the token of an open watch, which are uses.
fn idle_max(config: &AuthConfig) -> Duration {
    FOLLOW_IDLE_MIN.max(2 * config.recheck.max(config.recheck_tokens))
}

fn parse(token: &BearerToken) -> Result<ParsedToken<'_>, Unproven> {
    let token = token.expose();
    (token.len() <= TOKEN_BYTES_MAX).then(|| ParsedToken::parse(token)).flatten().ok_or("other_form")
}
