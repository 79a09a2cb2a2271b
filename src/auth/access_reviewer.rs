use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use moka::Expiry;
use moka::future::Cache;
use tokio::time::{Instant, sleep_until};

use super::question::{ANSWER_MAX, Dated, QuestionClass, Questions, Topic, quota, remembered};
use super::question_pace::QuestionPace;
use super::reviews::Reviews;
use super::{Affected, AuthConfig, NotGranted};
use crate::kube::{Access, Payer, User};

/// Asks who may do what, and remembers the answer for seconds.
///
/// An answer belongs to one user, with all that upstream knows of it, and to one access, with all that a right may
/// depend on; nothing is shared between two that differ. One question at a time for each; errors are not remembered.
///
/// Nobody waits for a question that waits in a longer queue: leases do not wait for those of requests, nor for those
/// about the namespaces of readable watches.
pub(super) struct AccessReviewer {
    reviews: Arc<dyn Reviews>,
    questions: Questions,
    /// By what they were asked for: requests, leases, namespaces of leases.
    of_requests: Decisions,
    of_leases: Decisions,
    of_sights: Decisions,
    /// Questions that one user's requests may cost, and those of all.
    budget: DefaultKeyedRateLimiter<Payer>,
    requests_pace: QuestionPace<()>,
    /// Questions of leases: of all, and of one user's.
    leases_pace: QuestionPace<()>,
    leases_pace_per_user: QuestionPace<Payer>,
    /// Questions about namespaces, of all readable watches and of one user's.
    sights_pace: QuestionPace<()>,
    sights_pace_per_user: QuestionPace<Payer>,
}

/// What it is asked for, and how old the answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessPurpose {
    /// A request: paid by its user, and answered with what is remembered.
    Request,
    /// A lease: an answer to a question from before that moment will not do.
    Lease { since: Instant },
    /// One of the namespaces of a lease, likewise.
    Sight { since: Instant },
}

type Decisions = Cache<Question, Decision>;

/// Who wants what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    user: Arc<User>,
    access: Arc<Access>,
}

#[derive(Debug, Clone)]
struct Decision {
    asked: Instant,
    /// In the authorizer's words; `Err`: denied.
    allowed: Result<Arc<str>, Arc<str>>,
}

/// How long decisions are good for.
struct Ages {
    allowed: Duration,
    denied: Duration,
}

/// Bytes that remembered questions may take.
const DECISIONS_BYTES_MAX: u64 = 64 << 20;
/// The same of leases, and of their namespaces: they share answers for as long as they ask at about the same time.
const DECISIONS_OF_LEASES_BYTES_MAX: u64 = 16 << 20;
/// A question's own size, beside its texts.
const QUESTION_BYTES: usize = 512;
/// Questions with more text than this are asked each time (apiserver's webhook authorizer has the same rule).
const QUESTION_TEXT_MAX: usize = 10_000;
/// How long a request waits when all of them ask for too much.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// Users are forgotten by and by: whenever there are so many of them.
const USERS_MAX: usize = 100_000;

impl AccessReviewer {
    pub(super) fn new(reviews: Arc<dyn Reviews>, config: &AuthConfig) -> Self {
        Self {
            reviews,
            questions: Questions::new(Topic::Access),
            of_requests: decisions(config, DECISIONS_BYTES_MAX),
            of_leases: decisions(config, DECISIONS_OF_LEASES_BYTES_MAX),
            of_sights: decisions(config, DECISIONS_OF_LEASES_BYTES_MAX),
            budget: RateLimiter::keyed(quota(config.accesses_per_user, config.accesses_burst_per_user)),
            requests_pace: QuestionPace::new(config.accesses, config.accesses),
            leases_pace: QuestionPace::new(config.lease_reviews, config.lease_reviews / 4),
            leases_pace_per_user: QuestionPace::new(config.lease_reviews / 2, config.lease_reviews / 8),
            sights_pace: QuestionPace::new(config.namespaces, config.namespaces / 4),
            sights_pace_per_user: QuestionPace::new(config.namespaces_per_user, config.namespaces_per_user / 4),
        }
    }

    /// Whether the user may, and why.
    pub(super) async fn decide(
        &self,
        user: &Arc<User>,
        access: &Arc<Access>,
        asks: AccessPurpose,
    ) -> Result<Arc<str>, NotGranted> {
        let question = Question { user: user.clone(), access: access.clone() };
        let ask = || self.ask(&question, asks);
        if access.len_bytes() > QUESTION_TEXT_MAX {
            return ask().await?.into_result();
        }
        let decision = match asks {
            AccessPurpose::Request => remembered(&self.of_requests, &question, None, ask).await,
            AccessPurpose::Lease { since } => remembered(&self.of_leases, &question, Some(since), ask).await,
            AccessPurpose::Sight { since } => remembered(&self.of_sights, &question, Some(since), ask).await,
        };
        decision?.into_result()
    }

    /// There is more to ask about than is asked.
    pub(super) fn over_budget(&self) -> NotGranted {
        self.questions.over_budget()
    }

    /// Forgets what may no longer be so.
    pub(super) fn forget(&self, affected: &Affected) {
        let affected = affected.clone();
        if self
            .of_requests
            .invalidate_entries_if(move |question, _| affected.contains(&question.user, &question.access))
            .is_err()
        {
            self.of_requests.invalidate_all();
        }
    }

    async fn ask(&self, question: &Question, asks: AccessPurpose) -> Result<Decision, NotGranted> {
        let payer = Payer::of(&question.user);
        let asker = self.turn(&question.user, &payer, asks).await?;
        let reviewing = self.reviews.access(&question.user, &question.access);
        let (asked, verdict) = self.questions.put(asker, Some(&payer), reviewing).await?;
        self.questions.came_to(if verdict.allowed { "allowed" } else { "denied" });
        let reason = Arc::from(verdict.reason);
        let allowed = if verdict.allowed { Ok(reason) } else { Err(reason) };
        let decision = Decision { asked, allowed };
        // What a lease has found out, requests need not find out later; but what they have learned since counts.
        let is_older = |known: Decision| known.asked <= decision.asked;
        if asks != AccessPurpose::Request && self.of_requests.get(question).await.is_some_and(is_older) {
            self.of_requests.insert(question.clone(), decision.clone()).await;
        }
        Ok(decision)
    }

    /// Waits until the question may be put, or says that it may not.
    async fn turn(&self, user: &User, payer: &Payer, asks: AccessPurpose) -> Result<QuestionClass, NotGranted> {
        let by = Instant::now() + ANSWER_MAX;
        match asks {
            AccessPurpose::Request => {
                self.spend(payer)?;
                let turn = self.requests_pace.turn(&(), Instant::now() + REQUEST_WAIT_MAX);
                sleep_until(turn.ok_or_else(|| self.questions.over_budget())?).await;
                Ok(if user.is_anonymous() { QuestionClass::Guess } else { QuestionClass::Known })
            }
            AccessPurpose::Lease { .. } => {
                let late = || self.questions.late();
                sleep_until(self.leases_pace_per_user.turn(payer, by).ok_or_else(late)?).await;
                sleep_until(self.leases_pace.turn(&(), by).ok_or_else(late)?).await;
                Ok(QuestionClass::Lease)
            }
            AccessPurpose::Sight { .. } => {
                let over_budget = || self.questions.over_budget();
                sleep_until(self.sights_pace_per_user.turn(payer, by).ok_or_else(over_budget)?).await;
                sleep_until(self.sights_pace.turn(&(), by).ok_or_else(over_budget)?).await;
                Ok(QuestionClass::Sight)
            }
        }
    }

    /// Different things cost upstream a question each: so many a second for one user.
    fn spend(&self, payer: &Payer) -> Result<(), NotGranted> {
        if self.budget.len() > USERS_MAX {
            self.budget.retain_recent();
        }
        self.budget.check_key(payer).map_err(|_| self.questions.over_budget())
    }
}

fn decisions(config: &AuthConfig, bytes_max: u64) -> Decisions {
    let weight = |question: &Question, _: &Decision| {
        let texts = question.access.len_bytes() + question.user.len_bytes();
        u32::try_from(QUESTION_BYTES + texts).unwrap_or(u32::MAX)
    };
    Cache::builder()
        .max_capacity(bytes_max)
        .weigher(weight)
        .expire_after(Ages { allowed: config.allowed_ttl, denied: config.denied_ttl })
        .support_invalidation_closures()
        .build()
}

impl Decision {
    fn into_result(self) -> Result<Arc<str>, NotGranted> {
        self.allowed.map_err(NotGranted::Denied)
    }
}

impl Dated for Decision {
    fn asked(&self) -> Instant {
        self.asked
    }
}

impl Expiry<Question, Decision> for Ages {
    #[allow(clippy::disallowed_types, reason = "the trait's own")]
    fn expire_after_create(&self, _: &Question, decision: &Decision, _: std::time::Instant) -> Option<Duration> {
        Some(if decision.allowed.is_ok() { self.allowed } else { self.denied })
    }
}
