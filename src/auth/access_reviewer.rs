use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use moka::Expiry;
use moka::future::Cache;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::changes::LOOKED_AT;
use super::policy_watch_state::PolicyWatchState;
use super::review_queue::{ANSWER_MAX, Dated, ReviewClass, ReviewQueue, quota, remembered};
use super::review_rate_limit::ReviewRateLimit;
use super::review_rights::ReviewRight;
use super::review_topic::ReviewTopic;
use super::reviews::Reviews;
use super::{Affected, AuthConfig, NotGranted};
use crate::upstream::{AccessVerdict, Cause};
use kubeapi::{Access, FlowDistinguisher, User};

/// Creates access reviews upstream, and caches the decisions for seconds.
///
/// A decision belongs to one user, with everything that upstream knows of it, and to one access, with everything that a
/// right may depend on. Two that differ never share one. Identical concurrent reviews are coalesced, and errors are not
/// cached.
///
/// Requests, leases and namespaces have caches and queues of their own. So leases wait neither for reviews of requests
/// nor for those of namespaces of readable watches.
pub(super) struct AccessReviewer {
    reviews: Arc<dyn Reviews>,
    questions: ReviewQueue,
    /// Decisions by purpose: requests, leases, namespaces of leases.
    of_requests: Decisions,
    of_long_requests: Decisions,
    of_leases: Decisions,
    of_namespaces: Decisions,
    /// Decisions on whether a downstream proxy may send requests that the cache does not answer.
    of_proxies: Decisions,
    config: AuthConfig,
    /// The limits on reviews for requests: of one user, and of all.
    budget: DefaultKeyedRateLimiter<FlowDistinguisher>,
    requests_pace: ReviewRateLimit<()>,
    /// The limits on reviews for leases: of all, and of one user.
    leases_pace: ReviewRateLimit<()>,
    leases_pace_per_user: ReviewRateLimit<FlowDistinguisher>,
    /// The limits on namespace reviews for readable watches: of all, and of one user.
    namespaces_pace: ReviewRateLimit<()>,
    namespaces_pace_per_user: ReviewRateLimit<FlowDistinguisher>,
}

/// The purpose of an access review, which determines how old the decision may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessPurpose {
    /// A request. It counts against its user's limit, and a cached decision is accepted.
    Request,
    /// A lease. Accepts only a decision whose review was sent after `since`.
    Lease { since: Instant },
    /// A namespace of a lease. Accepts only a decision whose review was sent after `since`.
    Namespace { since: Instant },
}

type Decisions = Cache<AccessQuery, Decision>;

/// The key of a decision: a user and an access.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AccessQuery {
    user: Arc<User>,
    access: Arc<Access>,
}

#[derive(Debug, Clone)]
struct Decision {
    asked: Instant,
    /// The decision with the authorizer's reason; `Err` means denied.
    allowed: Result<Arc<str>, Arc<str>>,
}

/// An allow decision.
#[derive(Debug)]
pub(super) struct Allowed {
    /// When the review was sent.
    pub(super) asked: Instant,
    /// The authorizer's reason.
    pub(super) reason: Arc<str>,
}

/// Cache TTLs of decisions.
#[derive(Clone, Copy)]
struct Ages {
    allowed: Duration,
    denied: Duration,
}

/// The most bytes of cached decisions for requests.
const DECISIONS_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of cached decisions for leases, and likewise for their namespaces and for proxies. Leases share a
/// decision as long as it is cached.
const DECISIONS_OF_LEASES_BYTES_MAX: u64 = 16 << 20;
/// The size of an entry without its texts.
const QUESTION_BYTES: usize = 512;
/// The longest text of a normal entry. A longer one evicts no others: those of requests have a cache of their own, and
/// those of leases are not cached, as in the apiserver's webhook authorizer.
///
/// A review of 16 KiB costs upstream about five milliseconds.
const QUESTION_TEXT_MAX: usize = 10_000;
/// The most bytes of cached decisions with long texts for requests.
const LONG_DECISIONS_BYTES_MAX: u64 = 16 << 20;
/// How long a request waits if all requests together exceed their limit.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// The number of tracked users above which idle ones are dropped.
const USERS_MAX: usize = 100_000;

impl AccessReviewer {
    pub(super) fn new(reviews: Arc<dyn Reviews>, config: &AuthConfig) -> Self {
        let ages = Ages { allowed: config.allowed_ttl, denied: config.denied_ttl };
        // For leases and proxies, each look-up sets how old a decision may be.
        let longest = Ages { allowed: config.recheck.max(config.recheck_rbac).max(config.recheck_nodes), ..ages };
        Self {
            reviews,
            questions: ReviewQueue::new(ReviewTopic::Access),
            of_requests: decisions(ages, DECISIONS_BYTES_MAX),
            of_long_requests: decisions(ages, LONG_DECISIONS_BYTES_MAX),
            of_leases: decisions(longest, DECISIONS_OF_LEASES_BYTES_MAX),
            of_namespaces: decisions(ages, DECISIONS_OF_LEASES_BYTES_MAX),
            of_proxies: decisions(longest, DECISIONS_OF_LEASES_BYTES_MAX),
            config: config.clone(),
            budget: RateLimiter::keyed(quota(config.accesses_per_user, config.accesses_burst_per_user)),
            requests_pace: ReviewRateLimit::new(config.accesses, config.accesses),
            leases_pace: ReviewRateLimit::new(config.lease_reviews, config.lease_reviews / 4),
            leases_pace_per_user: ReviewRateLimit::new(config.lease_reviews / 2, config.lease_reviews / 8),
            namespaces_pace: ReviewRateLimit::new(config.namespaces, config.namespaces / 4),
            namespaces_pace_per_user: ReviewRateLimit::new(config.namespaces_per_user, config.namespaces_per_user / 4),
        }
    }

    /// Returns the allow decision for this user and access.
    ///
    /// # Errors
    /// The access is denied, or no decision could be obtained.
    pub(super) async fn decide(
        &self,
        user: &Arc<User>,
        access: &Arc<Access>,
        asks: AccessPurpose,
    ) -> Result<Allowed, NotGranted> {
        let question = AccessQuery { user: user.clone(), access: access.clone() };
        let ask = || self.ask(&question, asks);
        let decision = match asks {
            AccessPurpose::Request => remembered(self.of_requests(access), &question, None, ask).await,
            _ if is_long(access) => ask().await,
            AccessPurpose::Lease { since } => remembered(&self.of_leases, &question, Some(since), ask).await,
            AccessPurpose::Namespace { since } => remembered(&self.of_namespaces, &question, Some(since), ask).await,
        };
        decision?.allowed()
    }

    /// Checks whether a downstream proxy may send this request.
    ///
    /// It sends requests for its clients repeatedly, and no cached content depends on them. So a decision is valid
    /// until a lease would be checked again.
    pub(super) async fn lets_proxy(
        &self,
        user: &Arc<User>,
        access: &Arc<Access>,
        policy_watch: &PolicyWatchState,
    ) -> Result<(), NotGranted> {
        let question = AccessQuery { user: user.clone(), access: access.clone() };
        let is_upheld =
            |known: &Decision| known.is_by_policy() && policy_watch.upholds(known.asked, self.config.recheck_rbac);
        let since = match self.of_proxies.get(&question).await.filter(is_upheld) {
            Some(_) => None,
            None => Instant::now().checked_sub(self.config.recheck_of(user)),
        };
        let ask = || self.ask(&question, AccessPurpose::Request);
        remembered(&self.of_proxies, &question, since, ask).await?.allowed().map(drop)
    }

    /// The cached decision on an access, if its review was sent after `since`.
    pub(super) async fn recalls(
        &self,
        user: &User,
        access: &Access,
        since: Instant,
    ) -> Option<(Instant, AccessVerdict)> {
        let question = AccessQuery { user: Arc::new(user.clone()), access: Arc::new(access.clone()) };
        let known = self.of_requests(access).get(&question).await.filter(|known| known.asked >= since)?;
        let (allowed, reason) = match &known.allowed {
            Ok(reason) => (true, reason),
            Err(reason) => (false, reason),
        };
        Some((known.asked, AccessVerdict { allowed, reason: reason.to_string() }))
    }

    /// Caches a decision that upstream returned for a downstream proxy's review, because that proxy may open a watch
    /// with the same right.
    ///
    /// If the review was for an open watch, the decision may be too old for requests. A user with long texts is not
    /// cached: a proxy can send any text, and long ones would evict many other decisions.
    pub(super) async fn learns(
        &self,
        (user, access): (User, Access),
        cause: Cause,
        asked: Instant,
        verdict: AccessVerdict,
    ) {
        if user.len_bytes() > QUESTION_TEXT_MAX {
            return;
        }
        let question = AccessQuery { user: Arc::new(user), access: Arc::new(access) };
        let decision = Decision::of(asked, verdict);
        let of_requests = (cause == Cause::AccessReview).then(|| self.of_requests(&question.access));
        let of_leases = (!is_long(&question.access)).then_some(&self.of_leases);
        for memory in of_requests.into_iter().chain(of_leases) {
            if memory.get(&question).await.is_none_or(|known| known.asked <= asked) {
                memory.insert(question.clone(), decision.clone()).await;
            }
        }
    }

    /// Whether the proxy may create access reviews.
    pub(super) fn right(&self) -> &Arc<ReviewRight> {
        self.questions.right()
    }

    /// The error for a review that exceeds a limit.
    pub(super) fn over_budget(&self) -> NotGranted {
        self.questions.over_budget()
    }

    /// Drops the decisions that a policy change may have made wrong.
    ///
    /// Entries are removed one by one. moka's `invalidate_entries_if` left some of thousands in place, and they were
    /// used until they expired.
    pub(super) async fn forget(&self, affected: &Affected) {
        for decisions in [&self.of_requests, &self.of_long_requests, &self.of_proxies] {
            if matches!(affected, Affected::Everyone) {
                decisions.invalidate_all();
                continue;
            }
            for (count, (question, _)) in decisions.iter().enumerate() {
                if count % LOOKED_AT == LOOKED_AT - 1 {
                    yield_now().await;
                }
                if affected.contains(&question.user, &question.access) {
                    decisions.invalidate(question.as_ref()).await;
                }
            }
        }
    }

    async fn ask(&self, question: &AccessQuery, asks: AccessPurpose) -> Result<Decision, NotGranted> {
        let payer = FlowDistinguisher::of(&question.user);
        let asker = self.turn(&question.user, &payer, asks).await?;
        let cause = if asks == AccessPurpose::Request { Cause::AccessReview } else { Cause::LeaseReview };
        let reviewing = self.reviews.access(cause, &question.user, &question.access);
        let (asked, verdict) = self.questions.put(asker, Some(&payer), reviewing).await?;
        self.questions.came_to(if verdict.allowed { "allowed" } else { "denied" });
        let decision = Decision::of(asked, verdict);
        // A denial found for a lease also applies to requests, unless a newer decision is known. An allow decision does
        // not, because a zone proxy may return one that is too old for requests.
        let of_requests = self.of_requests(&question.access);
        let is_older = |known: Decision| known.asked <= decision.asked;
        let is_of_lease = asks != AccessPurpose::Request;
        if is_of_lease && decision.allowed.is_err() && of_requests.get(question).await.is_some_and(is_older) {
            of_requests.insert(question.clone(), decision.clone()).await;
        }
        Ok(decision)
    }

    fn of_requests(&self, access: &Access) -> &Decisions {
        if is_long(access) { &self.of_long_requests } else { &self.of_requests }
    }

    /// Waits until the review may be sent, or returns the error that it may not.
    async fn turn(
        &self,
        user: &User,
        payer: &FlowDistinguisher,
        asks: AccessPurpose,
    ) -> Result<ReviewClass, NotGranted> {
        let by = Instant::now() + ANSWER_MAX;
        match asks {
            AccessPurpose::Request => {
                self.spend(payer)?;
                let turn = self.requests_pace.turn(&(), Instant::now() + REQUEST_WAIT_MAX);
                sleep_until(turn.ok_or_else(|| self.questions.over_budget())?).await;
                Ok(if user.is_anonymous() { ReviewClass::Guess } else { ReviewClass::Known })
            }
            AccessPurpose::Lease { .. } => {
                let late = || self.questions.late();
                sleep_until(self.leases_pace_per_user.turn(payer, by).ok_or_else(late)?).await;
                sleep_until(self.leases_pace.turn(&(), by).ok_or_else(late)?).await;
                Ok(ReviewClass::Lease)
            }
            AccessPurpose::Namespace { .. } => {
                let over_budget = || self.questions.over_budget();
                sleep_until(self.namespaces_pace_per_user.turn(payer, by).ok_or_else(over_budget)?).await;
                sleep_until(self.namespaces_pace.turn(&(), by).ok_or_else(over_budget)?).await;
                Ok(ReviewClass::Namespace)
            }
        }
    }

    /// Charges a review to a user.
    fn spend(&self, payer: &FlowDistinguisher) -> Result<(), NotGranted> {
        if self.budget.len() > USERS_MAX {
            self.budget.retain_recent();
        }
        self.budget.check_key(payer).map_err(|_| self.questions.over_budget())
    }
}

impl Decision {
    fn of(asked: Instant, verdict: AccessVerdict) -> Self {
        let reason = Arc::from(verdict.reason);
        Self { asked, allowed: if verdict.allowed { Ok(reason) } else { Err(reason) } }
    }

    fn is_by_policy(&self) -> bool {
        self.allowed.as_ref().is_ok_and(|reason| AccessVerdict::is_by_rbac(reason))
    }

    fn allowed(self) -> Result<Allowed, NotGranted> {
        Ok(Allowed { asked: self.asked, reason: self.allowed.map_err(NotGranted::Denied)? })
    }
}

impl Allowed {
    /// Whether upstream's reason says that RBAC allows the access. No other authorizer's reason does.
    pub(super) fn is_by_policy(&self) -> bool {
        AccessVerdict::is_by_rbac(&self.reason)
    }
}

fn is_long(access: &Access) -> bool {
    access.len_bytes() > QUESTION_TEXT_MAX
}

fn decisions(ages: Ages, bytes_max: u64) -> Decisions {
    let weight = |question: &AccessQuery, _: &Decision| {
        let texts = question.access.len_bytes() + question.user.len_bytes();
        u32::try_from(QUESTION_BYTES + texts).unwrap_or(u32::MAX)
    };
    Cache::builder().max_capacity(bytes_max).weigher(weight).expire_after(ages).build()
}

impl Dated for Decision {
    fn asked(&self) -> Instant {
        self.asked
    }
}

impl Ages {
    /// How long this decision is cached.
    fn of(&self, decision: &Decision) -> Duration {
        match &decision.allowed {
            Ok(_) => self.allowed,
            Err(reason) if AccessVerdict::denies_for_now(reason) => Duration::ZERO,
            Err(_) => self.denied,
        }
    }
}

#[allow(clippy::disallowed_types, reason = "the trait's own")]
impl Expiry<AccessQuery, Decision> for Ages {
    fn expire_after_create(&self, _: &AccessQuery, decision: &Decision, _: std::time::Instant) -> Option<Duration> {
        Some(self.of(decision))
    }

    /// A replaced entry gets the new decision's TTL, because the old one may have been an allow decision.
    fn expire_after_update(
        &self,
        _: &AccessQuery,
        decision: &Decision,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(self.of(decision))
    }
}
