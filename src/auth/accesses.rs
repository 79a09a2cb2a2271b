use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use moka::Expiry;
use tokio::time::Instant;

use super::question::{Dated, Questions, Topic, quota, remembered};
use super::{Affected, Config, Refused};
use crate::kube::{Access, Payer, User};
use crate::upstream::Client;

/// Asks who may do what, and remembers the answer for seconds.
///
/// An answer belongs to one user, with all that upstream knows of it, and to one access, with all that a right may
/// depend on; nothing is shared between two that differ. One question at a time for each; errors are not remembered.
pub(super) struct Accesses {
    client: Client,
    decisions: moka::future::Cache<Question, Decision>,
    questions: Questions,
    /// Of leases, so that no crowd of requests keeps anybody from losing a right.
    questions_of_leases: Questions,
    /// Questions that one user's requests may cost.
    budget: DefaultKeyedRateLimiter<Payer>,
}

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
/// A question's own size, beside its texts.
const QUESTION_BYTES: usize = 512;
/// Questions with more text than this are asked each time (apiserver's webhook authorizer has the same rule).
const QUESTION_TEXT_MAX: usize = 10_000;
/// Users are forgotten by and by: whenever there are so many of them.
const USERS_MAX: usize = 100_000;

impl Accesses {
    pub(super) fn new(client: Client, config: &Config) -> Self {
        let ages = Ages { allowed: config.allowed_ttl, denied: config.denied_ttl };
        let weight = |question: &Question, _: &Decision| {
            let texts = question.access.len_bytes() + question.user.len_bytes();
            u32::try_from(QUESTION_BYTES + texts).unwrap_or(u32::MAX)
        };
        let decisions = moka::future::Cache::builder()
            .max_capacity(DECISIONS_BYTES_MAX)
            .weigher(weight)
            .expire_after(ages)
            .support_invalidation_closures()
            .build();
        Self {
            client,
            decisions,
            questions: Questions::new(Topic::Access),
            questions_of_leases: Questions::new(Topic::Access),
            budget: RateLimiter::keyed(quota(config.accesses_per_user, config.accesses_burst_per_user)),
        }
    }

    /// Whether the user may, and why. `since`: an answer to an older question will not do; leases ask like that, and
    /// cost nobody's budget.
    pub(super) async fn decide(
        &self,
        user: &Arc<User>,
        access: &Arc<Access>,
        since: Option<Instant>,
    ) -> Result<Arc<str>, Refused> {
        let question = Question { user: user.clone(), access: access.clone() };
        let ask = || self.ask(&question, since.is_some());
        if access.len_bytes() > QUESTION_TEXT_MAX {
            return ask().await?.into_result();
        }
        remembered(&self.decisions, &question, since, ask).await?.into_result()
    }

    /// Forgets what may no longer be so.
    pub(super) fn forget(&self, affected: &Affected) {
        let affected = affected.clone();
        if self
            .decisions
            .invalidate_entries_if(move |question, _| affected.contains(&question.user, Some(&question.access)))
            .is_err()
        {
            self.decisions.invalidate_all();
        }
    }

    async fn ask(&self, question: &Question, of_lease: bool) -> Result<Decision, Refused> {
        if !of_lease {
            self.spend(&question.user)?;
        }
        let questions = if of_lease { &self.questions_of_leases } else { &self.questions };
        let reviewing = self.client.review_access(&question.user, &question.access);
        let (asked, verdict) = questions.put(Box::pin(reviewing)).await?;
        questions.came_to(if verdict.allowed { "allowed" } else { "denied" });
        let reason = Arc::from(verdict.reason);
        let allowed = if verdict.allowed { Ok(reason) } else { Err(reason) };
        Ok(Decision { asked, allowed })
    }

    /// Different things cost upstream a question each: so many a second for one user.
    fn spend(&self, user: &User) -> Result<(), Refused> {
        if self.budget.len() > USERS_MAX {
            self.budget.retain_recent();
        }
        self.budget.check_key(&Payer::of(user)).map_err(|_| self.questions.over_budget())
    }
}

impl Decision {
    fn into_result(self) -> Result<Arc<str>, Refused> {
        self.allowed.map_err(Refused::Denied)
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
