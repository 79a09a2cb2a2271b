use std::collections::BTreeMap;
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
use base::mutant;
use kubeapi::{Access, AccessTarget, FlowDistinguisher, User};

/// Asks upstream who may do what, and remembers the answer for seconds.
///
/// An answer belongs to one user, with everything that upstream knows of it, and to one access, with everything that a
/// right may depend on; no two that differ share one. There is one question at a time for each, and errors are not
/// remembered.
///
/// Nobody waits for a question that waits in a longer queue: leases wait neither for questions of requests, nor for
/// those about the namespaces of readable watches.
pub(super) struct AccessReviewer {
    reviews: Arc<dyn Reviews>,
    questions: ReviewQueue,
    /// Decisions by what they were asked for: requests, leases, namespaces of leases.
    of_requests: Decisions,
    of_long_requests: Decisions,
    of_leases: Decisions,
    of_namespaces: Decisions,
    /// Decisions by which proxies behind us are answered for what is not in the cache.
    of_proxies: Decisions,
    config: AuthConfig,
    /// How many questions one user's requests may cost, and how many those of all.
    budget: DefaultKeyedRateLimiter<FlowDistinguisher>,
    requests_pace: ReviewRateLimit<()>,
    /// The pace of leases' questions: of all, and of one user's.
    leases_pace: ReviewRateLimit<()>,
    leases_pace_per_user: ReviewRateLimit<FlowDistinguisher>,
    /// The pace of questions about namespaces of readable watches: of all, and of one user's.
    namespaces_pace: ReviewRateLimit<()>,
    namespaces_pace_per_user: ReviewRateLimit<FlowDistinguisher>,
}

/// What a question is asked for, and how old the answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessPurpose {
    /// A request. Its user pays, and a remembered answer will do.
    Request,
    /// A lease. An answer will do only if it was asked for after `since`.
    Lease { since: Instant },
    /// One of the namespaces of a lease. An answer will do only if it was asked for after `since`.
    Namespace { since: Instant },
}

type Decisions = Cache<AccessQuery, Decision>;

/// A question: which user wants which access.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AccessQuery {
    user: Arc<User>,
    access: Arc<Access>,
}

#[derive(Debug, Clone)]
struct Decision {
    asked: Instant,
    /// The decision, with the authorizer's words; `Err` means denied.
    allowed: Result<Arc<str>, Arc<str>>,
}

/// That upstream has allowed something.
#[derive(Debug)]
pub(super) struct Allowed {
    /// When it was asked.
    pub(super) asked: Instant,
    /// Why, in the authorizer's words.
    pub(super) reason: Arc<str>,
}

/// How long decisions are remembered.
#[derive(Clone, Copy)]
struct Ages {
    allowed: Duration,
    denied: Duration,
}

/// How many bytes remembered questions may take.
const DECISIONS_BYTES_MAX: u64 = 64 << 20;
/// How many bytes remembered questions of leases may take, and as many those of their namespaces and those of proxies.
/// Leases share answers as long as these are remembered.
const DECISIONS_OF_LEASES_BYTES_MAX: u64 = 16 << 20;
/// The size of a question without its texts.
const QUESTION_BYTES: usize = 512;
/// A question with more text pushes out none of the others: those of requests have a memory of their own, and those of
/// leases are asked each time, as the apiserver's webhook authorizer does with all of them. A review of 16 KiB costs
/// upstream some five milliseconds.
const QUESTION_TEXT_MAX: usize = 10_000;
/// How many bytes such questions of requests may take.
const LONG_DECISIONS_BYTES_MAX: u64 = 16 << 20;
/// How long a request waits when all requests together ask for too much.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// How many users are remembered before idle ones are forgotten.
const USERS_MAX: usize = 100_000;

impl AccessReviewer {
    pub(super) fn new(reviews: Arc<dyn Reviews>, config: &AuthConfig) -> Self {
        let ages = Ages { allowed: config.allowed_ttl, denied: config.denied_ttl };
        // How old an answer may be for a lease or a proxy is said by whoever asks.
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

    /// Whether the user may, and why.
    pub(super) async fn decide(
        &self,
        user: &Arc<User>,
        access: &Arc<Access>,
        asks: AccessPurpose,
    ) -> Result<Allowed, NotGranted> {
        let question = AccessQuery { user: user.clone(), access: access.clone() };
        let ask = || self.ask(&question, asks);
        let key = if mutant(20) { &question.in_part() } else { &question };
        let decision = match asks {
            AccessPurpose::Request => remembered(self.of_requests(access), key, None, ask).await,
            _ if is_long(access) => ask().await,
            AccessPurpose::Lease { since } => remembered(&self.of_leases, key, Some(since), ask).await,
            AccessPurpose::Namespace { since } => remembered(&self.of_namespaces, key, Some(since), ask).await,
        };
        decision?.vouched()
    }

    /// Whether the user of a proxy behind us may ask for this. It asks for its clients, again and again, and nothing of
    /// the cache stands on it: so an answer serves until a lease would be asked about again.
    pub(super) async fn lets_proxy(
        &self,
        user: &Arc<User>,
        access: &Arc<Access>,
        hearing: &PolicyWatchState,
    ) -> Result<(), NotGranted> {
        let question = AccessQuery { user: user.clone(), access: access.clone() };
        let is_upheld =
            |known: &Decision| known.is_by_policy() && hearing.upholds(known.asked, self.config.recheck_rbac);
        let since = match self.of_proxies.get(&question).await.filter(is_upheld) {
            Some(_) => None,
            None => Instant::now().checked_sub(self.config.recheck_of(user)),
        };
        let ask = || self.ask(&question, AccessPurpose::Request);
        remembered(&self.of_proxies, &question, since, ask).await?.vouched().map(drop)
    }

    /// What upstream has said lately of this, if it was asked after `since`.
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

    /// Takes in what upstream said when somebody else asked: a proxy, whose own watch may stand on the same right. If
    /// that asked for an open watch, the answer may be older than requests go by. A long name is not learned: who asks
    /// for others may write what they like, and it would push out what is known of many.
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

    /// Whether we may create such reviews.
    pub(super) fn right(&self) -> &Arc<ReviewRight> {
        self.questions.right()
    }

    /// The error for a question that is not put because there are too many.
    pub(super) fn over_budget(&self) -> NotGranted {
        self.questions.over_budget()
    }

    /// Forgets the answers that a change may have made wrong.
    ///
    /// They are removed one by one. moka's `invalidate_entries_if` left some of thousands in place, and they were used
    /// again until their time was over.
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
        // Requests hear of a no that a lease has found out, but not in place of something newer. A zone may tell a
        // lease a yes that is older than requests go by.
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

    /// Waits until the question may be put, or says that it may not.
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

    /// Counts a question of one user, which may ask so many in a second.
    fn spend(&self, payer: &FlowDistinguisher) -> Result<(), NotGranted> {
        if self.budget.len() > USERS_MAX {
            self.budget.retain_recent();
        }
        self.budget.check_key(payer).map_err(|_| self.questions.over_budget())
    }
}

impl AccessQuery {
    /// What is left of it without UID, extra and selectors, which is not enough to remember an answer by.
    fn in_part(&self) -> Self {
        let (mut user, mut access) = (User::clone(&self.user), Access::clone(&self.access));
        (user.uid, user.extra) = (String::new(), BTreeMap::new());
        if let AccessTarget::Resource(target) = &mut access.target {
            (target.label_selector, target.field_selector) = (String::new(), String::new());
        }
        Self { user: Arc::new(user), access: Arc::new(access) }
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

    fn vouched(self) -> Result<Allowed, NotGranted> {
        Ok(Allowed { asked: self.asked, reason: self.allowed.map_err(NotGranted::Denied)? })
    }
}

impl Allowed {
    /// Whether upstream said that RBAC gives the right. It says so of no other authorizer's.
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
    /// How long this decision is remembered.
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

    /// Not for as long as what it takes the place of, which may have been a yes.
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
