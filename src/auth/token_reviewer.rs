use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, RateLimiter};
use moka::Expiry;
use tokio::time::{Instant, sleep_until};

use super::credential::{TOKEN_BYTES_MAX, Token};
use super::review_queue::{ANSWER_MAX, Dated, ReviewClass, ReviewQueue, quota, remembered};
use super::review_rate_limit::ReviewRateLimit;
use super::review_rights::ReviewRight;
use super::review_topic::ReviewTopic;
use super::reviews::Reviews;
use super::{AuthConfig, NotGranted};
use crate::upstream::CredentialId;
use base::WallClock;
use kubeapi::{FlowDistinguisher, User};

/// Creates token reviews upstream, and caches the results for seconds.
///
/// Concurrent reviews of one token are coalesced. Errors are not cached. Tokens are not stored: the token's HMAC is the
/// key.
///
/// Leases have a cache and a queue of their own, so they do not wait for reviews of requests.
pub(super) struct TokenReviewer {
    reviews: Arc<dyn Reviews>,
    clock: WallClock,
    audiences: Arc<[String]>,
    of_requests: Answers,
    of_leases: Answers,
    /// The users of tokens that upstream accepted at their last review. Such tokens have a budget of their own, so that
    /// they do not compete with guessed tokens from the same address.
    regulars: moka::sync::Cache<CredentialId, FlowDistinguisher>,
    questions: ReviewQueue,
    sources: DefaultKeyedRateLimiter<IpAddr>,
    budget: DefaultDirectRateLimiter,
    budget_of_regulars: DefaultDirectRateLimiter,
    /// The most of that budget for one user's tokens, of which it may have many.
    shares_of_regulars: DefaultKeyedRateLimiter<FlowDistinguisher>,
    /// The limits on reviews for leases: of all, and of one user.
    leases_pace: ReviewRateLimit<()>,
    leases_pace_per_user: ReviewRateLimit<FlowDistinguisher>,
}

/// The purpose of a token review, which determines how old the result may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenPurpose<'a> {
    /// A request from that address, whose limit it counts against; `None` if the request is the proxy's own.
    Request { source: Option<IpAddr> },
    /// A lease of that user. Accepts only a result whose review was sent after `since`.
    Lease { since: Instant, payer: &'a FlowDistinguisher },
}

type Answers = moka::future::Cache<CredentialId, Answer>;

/// The result of a token review; no user if the token was not accepted.
#[derive(Debug, Clone)]
struct Answer {
    asked: Instant,
    user: Option<Arc<User>>,
    /// The expiry in the token's own claims.
    until: Option<SystemTime>,
}

/// A token's user, and the token's expiry.
#[derive(Debug, Clone)]
pub(super) struct Bearer {
    /// When the review was sent.
    pub(super) asked: Instant,
    pub(super) user: Arc<User>,
    pub(super) until: Option<SystemTime>,
}

/// Cache TTLs of results for leases.
struct Ages {
    known: Duration,
    unknown: Duration,
}

/// The most cached results; each takes a few bytes.
const ANSWERS_MAX: u64 = 32_768;
/// How long an accepted token stays known after its last use.
const REGULAR_IDLE_MAX: Duration = Duration::from_secs(3600);
/// The number of tracked sources and users above which idle ones are dropped.
const SOURCES_MAX: usize = 100_000;

impl TokenReviewer {
    pub(super) fn new(reviews: Arc<dyn Reviews>, config: &AuthConfig, clock: WallClock) -> Self {
        let longest = config.recheck.max(config.recheck_nodes).max(config.recheck_tokens);
        let ages = Ages { known: longest, unknown: config.token_ttl };
        let per_source = quota(config.reviews_per_source, config.reviews_burst_per_source);
        let in_all = quota(config.reviews, config.reviews);
        let share = config.reviews.div_ceil(2);
        let share = quota(share, share);
        let regulars = moka::sync::Cache::builder().max_capacity(ANSWERS_MAX).time_to_idle(REGULAR_IDLE_MAX).build();
        Self {
            reviews,
            clock,
            audiences: config.audiences.clone().into(),
            of_requests: Answers::builder().max_capacity(ANSWERS_MAX).time_to_live(config.token_ttl).build(),
            of_leases: Answers::builder().max_capacity(ANSWERS_MAX).expire_after(ages).build(),
            regulars,
            questions: ReviewQueue::new(ReviewTopic::Token),
            sources: RateLimiter::keyed(per_source),
            budget: RateLimiter::direct(in_all),
            budget_of_regulars: RateLimiter::direct(in_all),
            shares_of_regulars: RateLimiter::keyed(share),
            leases_pace: ReviewRateLimit::new(config.lease_reviews, config.lease_reviews / 4),
            leases_pace_per_user: ReviewRateLimit::new(config.lease_reviews / 2, config.lease_reviews / 8),
        }
    }

    /// The user of this token.
    ///
    /// # Errors
    /// The token is not accepted or has expired, or no result could be obtained.
    pub(super) async fn bearer(
        &self,
        id: CredentialId,
        token: &Token,
        asks: TokenPurpose<'_>,
    ) -> Result<Bearer, NotGranted> {
        if token.reveal().len() > TOKEN_BYTES_MAX {
            return Err(NotGranted::Unauthenticated);
        }
        let ask = || self.ask(id, token, asks);
        let answer = match asks {
            TokenPurpose::Request { .. } => remembered(&self.of_requests, &id, None, ask).await?,
            TokenPurpose::Lease { since, .. } => remembered(&self.of_leases, &id, Some(since), ask).await?,
        };
        let user = answer.user.ok_or(NotGranted::Unauthenticated)?;
        // Upstream accepts a token for some time after its own expiry; the proxy does not.
        if answer.until.is_some_and(|until| until <= self.clock.now()) {
            return Err(NotGranted::Unauthenticated);
        }
        Ok(Bearer { asked: answer.asked, user, until: answer.until })
    }

    /// Whether the proxy may create token reviews.
    pub(super) fn right(&self) -> &Arc<ReviewRight> {
        self.questions.right()
    }

    async fn ask(&self, id: CredentialId, token: &Token, asks: TokenPurpose<'_>) -> Result<Answer, NotGranted> {
        let (asker, payer) = match asks {
            TokenPurpose::Request { source } => (self.spend(id, source)?, None),
            TokenPurpose::Lease { payer, .. } => {
                let (late, by) = (|| self.questions.late(), Instant::now() + ANSWER_MAX);
                sleep_until(self.leases_pace_per_user.turn(payer, by).ok_or_else(late)?).await;
                sleep_until(self.leases_pace.turn(&(), by).ok_or_else(late)?).await;
                (ReviewClass::Lease, Some(payer))
            }
        };
        let reviewing = self.reviews.token(token, &self.audiences);
        let (asked, verdict) = self.questions.put(asker, payer, reviewing).await?;
        let meant = self.audiences.is_empty() || verdict.audiences.iter().any(|of| self.audiences.contains(of));
        let user = verdict.user.filter(|_| meant);
        match &user {
            Some(user) => self.regulars.insert(id, FlowDistinguisher::of(user)),
            None => self.regulars.invalidate(&id),
        }
        self.questions.came_to(if user.is_some() { "authenticated" } else { "unauthenticated" });
        let until = token.expires().filter(|_| user.is_some());
        let until = until.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        let answer = Answer { asked, user: user.map(|user| Arc::new(user.authenticated())), until };
        // Requests may use the result of a lease's review, unless a newer one is cached.
        let is_older = |known: Answer| known.asked <= answer.asked;
        if asker == ReviewClass::Lease && self.of_requests.get(&id).await.is_some_and(is_older) {
            self.of_requests.insert(id, answer.clone()).await;
        }
        Ok(answer)
    }

    /// Charges a token review to its budget: per source and in all for unknown tokens, per user for known ones.
    fn spend(&self, id: CredentialId, source: Option<IpAddr>) -> Result<ReviewClass, NotGranted> {
        if self.sources.len() > SOURCES_MAX {
            self.sources.retain_recent();
        }
        if self.shares_of_regulars.len() > SOURCES_MAX {
            self.shares_of_regulars.retain_recent();
        }
        // If one user's tokens exceed its share, they count as unknown ones.
        let payer = self.regulars.get(&id).filter(|payer| self.shares_of_regulars.check_key(payer).is_ok());
        let (asker, pays) = if payer.is_some() {
            (ReviewClass::Known, self.budget_of_regulars.check().is_ok())
        } else {
            let pays = |source| self.sources.check_key(&network(source)).is_ok() && self.budget.check().is_ok();
            (ReviewClass::Guess, source.is_none_or(pays))
        };
        if pays { Ok(asker) } else { Err(self.questions.over_budget()) }
    }
}

impl Expiry<CredentialId, Answer> for Ages {
    #[allow(clippy::disallowed_types, reason = "the trait's own")]
    fn expire_after_create(&self, _: &CredentialId, answer: &Answer, _: std::time::Instant) -> Option<Duration> {
        Some(if answer.user.is_some() { self.known } else { self.unknown })
    }
}

impl Dated for Answer {
    fn asked(&self) -> Instant {
        self.asked
    }
}

/// The address that a limit counts by: an IPv4 address, or the /64 network of an IPv6 address.
fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(source) => match source.to_ipv4_mapped() {
            Some(source) => source.into(),
            None => Ipv6Addr::from_bits(source.to_bits() & !u128::from(u64::MAX)).into(),
        },
    }
}
