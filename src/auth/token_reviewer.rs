use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::comparison_queue::{ComparedAnswer, ComparisonQueue};
use super::credential::{AuthenticatedIdentity, BearerToken, TOKEN_BYTES_MAX};
use super::review_permission::ReviewResource;
use super::review_queue::{
    ReviewCharge, ReviewClass, ReviewPurpose, ReviewQueue, ReviewRate, ReviewRateLimit, ReviewRateLimitKey,
};
use super::token_verifier::TokenVerifier;
use super::{AuthConfig, GrantError, WaitingPermitFn};
use crate::upstream::{CredentialId, ReviewClient, TokenReviewResult, UpstreamRequestCause};
use base::{CoalescingCache, WallClock};
use kubeapi::{FlowDistinguisher, User};

/// Creates token reviews upstream, and caches the results for seconds.
///
/// Tokens are not stored: the token's HMAC is the key.
pub(super) struct TokenReviewer {
    reviews: Arc<dyn ReviewClient>,
    clock: WallClock,
    audiences: Arc<[String]>,
    results: CoalescingCache<(ReviewPurpose, CredentialId), CachedTokenReview>,
    /// The users of tokens that upstream accepted at their last review. Such tokens have a rate limit of their own, so
    /// that they do not compete with guessed tokens from the same address.
    known_tokens: moka::sync::Cache<CredentialId, FlowDistinguisher>,
    pub(super) queue: ReviewQueue,
    /// Verifies the tokens of service accounts without a review, if so configured.
    pub(super) verifier: Option<Arc<TokenVerifier>>,
    comparisons: Arc<ComparisonQueue>,
}

/// The purpose of a token review, which determines how old the result may be.
#[derive(Clone, Copy)]
pub(super) enum TokenReviewPurpose<'a> {
    /// A review for a request from an address, whose limit it counts against. `permits` limits the waiting requests.
    Request { source: IpAddr, permits: &'a WaitingPermitFn<'a> },
    /// A review for a user's lease. Only a result whose review was sent after `since` is accepted.
    Lease { since: Instant, flow: &'a FlowDistinguisher },
}

/// The result of a token review that was sent after this time; no identity if the token was not accepted.
#[derive(Debug, Clone)]
struct CachedTokenReview {
    sent: Instant,
    identity: Option<AuthenticatedIdentity>,
}

/// The maximum number of cached results; each takes a few bytes.
const RESULTS_MAX: u64 = 65_536;
/// The maximum number of tokens that are known, and how long an accepted token stays known after its last use.
const KNOWN_TOKENS_MAX: u64 = 32_768;
const KNOWN_TOKEN_IDLE_MAX: Duration = Duration::from_secs(3600);

impl TokenReviewer {
    pub(super) fn new(
        reviews: Arc<dyn ReviewClient>,
        verifier: Option<Arc<TokenVerifier>>,
        comparisons: Arc<ComparisonQueue>,
        config: &AuthConfig,
        clock: WallClock,
    ) -> Self {
        let (token_ttl, longest) =
            (config.token_ttl, config.recheck.max(config.recheck_nodes).max(config.recheck_tokens));
        // For leases, each look-up sets how old a result may be.
        let ttl = move |(purpose, _): &_, result: &CachedTokenReview| match (purpose, &result.identity) {
            (ReviewPurpose::Lease, Some(_)) => Some(longest),
            _ => Some(token_ttl),
        };
        Self {
            reviews,
            clock,
            audiences: config.audiences.clone().into(),
            results: CoalescingCache::new(RESULTS_MAX, |_| 1, ttl),
            known_tokens: moka::sync::Cache::builder()
                .max_capacity(KNOWN_TOKENS_MAX)
                .time_to_idle(KNOWN_TOKEN_IDLE_MAX)
                .build(),
            queue: queue(config),
            verifier,
            comparisons,
        }
    }

    /// Returns the user of a token.
    ///
    /// # Errors
    /// The token is not accepted or has expired, or no result could be obtained.
    pub(super) async fn identify(
        &self,
        id: CredentialId,
        token: &BearerToken,
        purpose: TokenReviewPurpose<'_>,
    ) -> Result<AuthenticatedIdentity, GrantError> {
        if token.expose().len() > TOKEN_BYTES_MAX {
            return Err(GrantError::Unauthenticated);
        }
        let (cached_for, since, source) = match purpose {
            TokenReviewPurpose::Request { source, .. } => (ReviewPurpose::Request, None, Some(network(source))),
            TokenReviewPurpose::Lease { since, .. } => (ReviewPurpose::Lease, Some(since), None),
        };
        if let Some(verifier) = &self.verifier
            && let Some(identity) = verifier.identify(id, token, source)?
        {
            self.reviews.answered_here(UpstreamRequestCause::TokenReview);
            self.comparisons.sample(|| {
                let is_fresh = verifier.stale_for(&id).is_some_and(|stale| stale.is_zero());
                is_fresh.then(|| ComparedAnswer::Token { id, token: token.clone(), user: identity.user.clone() })
            });
            return Ok(identity);
        }
        let charges = || self.charges(&id, purpose);
        let review = |_| async {
            let charges = charges();
            let review = self.reviews.review_token(UpstreamRequestCause::TokenReview, token.expose(), &self.audiences);
            let (sent, result) = self.queue.send(&charges, review).await?;
            if let Some(verifier) = &self.verifier {
                verifier.compare(id, token, &result);
            }
            let result = self.accept(id, token, sent, result);
            // Requests may use the result of a lease's review.
            if cached_for == ReviewPurpose::Lease {
                let is_older = |cached: &CachedTokenReview| cached.sent <= sent;
                self.results.put(&(ReviewPurpose::Request, id), result.clone(), is_older).await;
            }
            Ok(result)
        };
        let is_accepted = |cached: &CachedTokenReview| since.is_none_or(|since| cached.sent >= since);
        let key = (cached_for, id);
        let result = match self.results.get(&key).await.filter(is_accepted) {
            Some(cached) => cached,
            None => {
                // Taken before the review, because a refused request must not use up the rate of reviews.
                let _permit = match (purpose, charges().first()) {
                    (TokenReviewPurpose::Request { permits, .. }, Some((_, party))) => Some(permits(party)?),
                    _ => None,
                };
                self.results.get_or_fetch(&key, is_accepted, review).await.map_err(Arc::unwrap_or_clone)?
            }
        };
        // Upstream accepts a token for some time after its own expiry; the proxy does not.
        let is_current = |expires_at: SystemTime| expires_at > self.clock.now();
        let identity = result.identity.filter(|identity| identity.expires_at.is_none_or(is_current));
        identity.ok_or(GrantError::Unauthenticated)
    }

    /// Reviews a token that was verified here. Returns why upstream does not accept it as that of `user`; `None` if it
    /// does.
    ///
    /// # Errors
    /// Upstream does not answer.
    pub(super) async fn compare(
        &self,
        id: CredentialId,
        token: &BearerToken,
        user: &Arc<User>,
    ) -> Result<Option<String>, GrantError> {
        let key = ReviewRateLimitKey::User(FlowDistinguisher::from_user(user));
        let review = self.reviews.review_token(UpstreamRequestCause::DecisionCheck, token.expose(), &self.audiences);
        let (sent, result) = self.queue.send(&[(ReviewClass::Comparison, key)], review).await?;
        if let Some(verifier) = &self.verifier {
            verifier.compare(id, token, &result);
        }
        let error = result.error.clone();
        Ok(match self.accept(id, token, sent, result).identity {
            Some(same) if same.user == *user => None,
            Some(other) => Some(format!("the token is that of another user: {}", other.user.name)),
            // The error may quote the token.
            None if token.is_quoted_in(&error) => Some("invalid bearer token".to_owned()),
            None => Some(error),
        })
    }

    /// Returns the limits against which a review counts, in order of preference.
    fn charges(&self, id: &CredentialId, purpose: TokenReviewPurpose<'_>) -> Vec<ReviewCharge> {
        match purpose {
            TokenReviewPurpose::Lease { flow, .. } => {
                vec![(ReviewClass::Lease, ReviewRateLimitKey::User(flow.clone()))]
            }
            TokenReviewPurpose::Request { source, .. } => {
                let known = self.known_tokens.get(id).map(|user| (ReviewClass::Known, ReviewRateLimitKey::User(user)));
                // If one user's tokens exceed its share, they count as unknown ones.
                let unknown = (ReviewClass::Unauthenticated, ReviewRateLimitKey::Address(network(source)));
                known.into_iter().chain([unknown]).collect()
            }
        }
    }

    /// Interprets the result of a review that was sent at `sent`, and counts it.
    fn accept(
        &self,
        id: CredentialId,
        token: &BearerToken,
        sent: Instant,
        TokenReviewResult { user, audiences, .. }: TokenReviewResult,
    ) -> CachedTokenReview {
        let is_audience_accepted = self.audiences.is_empty() || audiences.iter().any(|of| self.audiences.contains(of));
        let user = user.filter(|_| is_audience_accepted);
        match &user {
            Some(user) => self.known_tokens.insert(id, FlowDistinguisher::from_user(user)),
            None => self.known_tokens.invalidate(&id),
        }
        self.queue.count(if user.is_some() { "authenticated" } else { "unauthenticated" });
        let identity = user.map(|user| {
            // The expiry time in the token's own claims.
            let expiry = token.expiry_seconds().map(Duration::from_secs);
            let expires_at = expiry.and_then(|since| UNIX_EPOCH.checked_add(since));
            AuthenticatedIdentity { reviewed: sent, user: Arc::new(user.authenticated()), expires_at }
        });
        CachedTokenReview { sent, identity }
    }
}

fn queue(config: &AuthConfig) -> ReviewQueue {
    let &AuthConfig { reviews, reviews_per_source, reviews_burst_per_source, .. } = config;
    let share = reviews.div_ceil(2);
    let limit = |each| ReviewRateLimit::new(each, ReviewRate::new(reviews, reviews), Duration::ZERO, Duration::ZERO);
    ReviewQueue::new(ReviewResource::TOKEN, |class| {
        Arc::new(match class {
            // Tokens are not reviewed in the last two.
            ReviewClass::Lease | ReviewClass::Namespace | ReviewClass::NonResource => {
                ReviewRateLimit::for_leases(config.lease_reviews / 2, config.lease_reviews)
            }
            ReviewClass::Comparison => ReviewRateLimit::for_comparisons(),
            // A user may have many tokens.
            ReviewClass::Known => limit(ReviewRate::new(share, share)),
            ReviewClass::Unauthenticated => limit(ReviewRate::new(reviews_per_source, reviews_burst_per_source)),
        })
    })
}

/// Returns the address that a limit counts by: an IPv4 address, or the /64 network of an IPv6 address.
fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(source) => match source.to_ipv4_mapped() {
            Some(source) => source.into(),
            None => Ipv6Addr::from_bits(source.to_bits() & !u128::from(u64::MAX)).into(),
        },
    }
}
