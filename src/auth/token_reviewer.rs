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

/// Asks upstream whose a token is, and remembers the answer for seconds.
///
/// There is one question at a time for a token, however many wait for it. Errors are not remembered. Tokens themselves
/// are not kept: an answer is found by the token's HMAC.
///
/// Leases ask apart from requests, so they do not wait for a question that waits behind those of others.
pub(super) struct TokenReviewer {
    reviews: Arc<dyn Reviews>,
    clock: WallClock,
    audiences: Arc<[String]>,
    of_requests: Answers,
    of_leases: Answers,
    /// Whose a token was when upstream was last asked. Such tokens have a budget of their own, so that they do not
    /// compete with tokens that are guessed at the same address.
    regulars: moka::sync::Cache<CredentialId, FlowDistinguisher>,
    questions: ReviewQueue,
    sources: DefaultKeyedRateLimiter<IpAddr>,
    budget: DefaultDirectRateLimiter,
    budget_of_regulars: DefaultDirectRateLimiter,
    /// How much of that budget one user's tokens may take: it may have many of them.
    shares_of_regulars: DefaultKeyedRateLimiter<FlowDistinguisher>,
    /// The pace of leases' questions: of all, and of one user's.
    leases_pace: ReviewRateLimit<()>,
    leases_pace_per_user: ReviewRateLimit<FlowDistinguisher>,
}

/// What a question is asked for, and how old the answer may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenPurpose<'a> {
    /// A request from that address, which pays; `None` if the request is our own.
    Request { source: Option<IpAddr> },
    /// A lease of that user. An answer will do only if it was asked for after `since`.
    Lease { since: Instant, payer: &'a FlowDistinguisher },
}

type Answers = moka::future::Cache<CredentialId, Answer>;

/// The bearer of a token, or that it is nobody's.
#[derive(Debug, Clone)]
struct Answer {
    asked: Instant,
    user: Option<Arc<User>>,
    /// When the token ends by its own word.
    until: Option<SystemTime>,
}

/// A token's bearer, and until when.
#[derive(Debug, Clone)]
pub(super) struct Bearer {
    /// When upstream was asked.
    pub(super) asked: Instant,
    pub(super) user: Arc<User>,
    pub(super) until: Option<SystemTime>,
}

/// How long answers are remembered for leases.
struct Ages {
    known: Duration,
    unknown: Duration,
}

/// How many answers are remembered; each is a few bytes.
const ANSWERS_MAX: u64 = 32_768;
/// How long it is remembered that a token was somebody's, if it is not shown any more.
const REGULAR_IDLE_MAX: Duration = Duration::from_secs(3600);
/// How many sources and users are remembered before idle ones are forgotten.
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

    /// The bearer of this token.
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
        // Upstream accepts a token for some time beyond its own word; here it ends with that word.
        if answer.until.is_some_and(|until| until <= self.clock.now()) {
            return Err(NotGranted::Unauthenticated);
        }
        Ok(Bearer { asked: answer.asked, user, until: answer.until })
    }

    /// Whether we may create such reviews.
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
        // Requests may use what a lease has found out, but not in place of something newer.
        let is_older = |known: Answer| known.asked <= answer.asked;
        if asker == ReviewClass::Lease && self.of_requests.get(&id).await.is_some_and(is_older) {
            self.of_requests.insert(id, answer.clone()).await;
        }
        Ok(answer)
    }

    /// Counts a question about an unknown token: so many a second, from one source and from all.
    fn spend(&self, id: CredentialId, source: Option<IpAddr>) -> Result<ReviewClass, NotGranted> {
        if self.sources.len() > SOURCES_MAX {
            self.sources.retain_recent();
        }
        if self.shares_of_regulars.len() > SOURCES_MAX {
            self.shares_of_regulars.retain_recent();
        }
        // If one user's tokens cost more than its share, they are paid for like unknown ones.
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

/// The addresses that pay together: one address, or a network of the size that one customer has.
fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(source) => match source.to_ipv4_mapped() {
            Some(source) => source.into(),
            None => Ipv6Addr::from_bits(source.to_bits() & !u128::from(u64::MAX)).into(),
        },
    }
}
