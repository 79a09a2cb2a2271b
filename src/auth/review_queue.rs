use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::Quota;
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::review_rights::ReviewRight;
use super::review_topic::ReviewTopic;
use super::reviews::ReviewFuture;
use super::{NotGranted, metrics};
use base::{LogLimit, Shares};
use kubeapi::FlowDistinguisher;

/// What a question is asked for. Each class has places of its own and waits for none of the others. So a right that was
/// taken away ends in time, however many requests, guessed tokens or namespaces of readable watches there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReviewClass {
    /// The decision that an open watch depends on.
    Lease,
    /// The namespaces that a readable watch depends on, of which there may be thousands.
    Namespace,
    /// A request of a known caller.
    Known,
    /// A request without a credential, or with a token that was nobody's lately.
    Guess,
}

/// The way to upstream for questions of one topic: so many at a time, each for so long at most.
pub(super) struct ReviewQueue {
    topic: ReviewTopic,
    right: Arc<ReviewRight>,
    failures: LogLimit,
    leases: Semaphore,
    namespaces: Semaphore,
    known: Semaphore,
    guesses: Semaphore,
    /// How many places of a class one user may have.
    shares: [Shares<FlowDistinguisher>; 3],
}

/// An answer of upstream that is remembered.
pub(super) trait Dated {
    /// A moment before the question was sent.
    fn asked(&self) -> Instant;
}

/// How many questions of leases wait for upstream at a time; one user has half of these places.
const LEASES_MAX: usize = 32;
/// The same for questions about namespaces.
const NAMESPACE_QUESTIONS_MAX: usize = 32;
/// The same for requests.
const KNOWN_MAX: usize = 64;
/// The same for guesses, of which no user has a share.
const GUESSES_MAX: usize = 16;
/// How long a question may take, with the time that it waits for its turn.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// When a caller may try again that has asked for too much.
const RETRY_AFTER_SECONDS: u32 = 1;

impl ReviewQueue {
    pub(super) fn new(topic: ReviewTopic) -> Self {
        Self {
            topic,
            right: Arc::new(ReviewRight::new()),
            failures: LogLimit::default(),
            leases: Semaphore::new(LEASES_MAX),
            namespaces: Semaphore::new(NAMESPACE_QUESTIONS_MAX),
            known: Semaphore::new(KNOWN_MAX),
            guesses: Semaphore::new(GUESSES_MAX),
            shares: [LEASES_MAX, NAMESPACE_QUESTIONS_MAX, KNOWN_MAX].map(|places| Shares::new(places / 2)),
        }
    }

    /// Puts a question when its turn comes. Returns the answer, and a moment before anything was sent. `payer` is the
    /// user whose share it takes, if one is known.
    pub(super) async fn put<T>(
        &self,
        asker: ReviewClass,
        payer: Option<&FlowDistinguisher>,
        question: ReviewFuture<T>,
    ) -> Result<(Instant, T), NotGranted> {
        let (places, share) = match asker {
            ReviewClass::Lease => (&self.leases, Some(&self.shares[0])),
            ReviewClass::Namespace => (&self.namespaces, Some(&self.shares[1])),
            ReviewClass::Known => (&self.known, Some(&self.shares[2])),
            ReviewClass::Guess => (&self.guesses, None),
        };
        let share = share.zip(payer).map(|(shares, payer)| shares.of(payer));
        let asking = async {
            let _own = match &share {
                Some(share) => Some(share.acquire().await),
                None => None,
            };
            let _place = places.acquire().await;
            let asked = Instant::now();
            (asked, question.await)
        };
        let (asked, answer) = timeout(ANSWER_MAX, asking).await.map_err(|_| {
            self.came_to("timeout");
            self.log_failure(&format_args!("no answer within {ANSWER_MAX:?}"));
            NotGranted::Unavailable(format!("{}: no answer in time", self.topic.refusal()))
        })?;
        self.right.note(&answer);
        let answer = answer.map_err(|error| {
            self.came_to("error");
            self.log_failure(&error);
            NotGranted::unanswered(&error, self.topic)
        })?;
        if let Some(failed) = self.failures.unlogged(Instant::now()) {
            tracing::warn!(resource = self.topic.resource(), failed, "more reviews had failed; they succeed again");
        }
        Ok((asked, answer))
    }

    /// Logs a failed review, or counts it for the next line.
    fn log_failure(&self, error: &dyn fmt::Display) {
        if let Some(failed) = self.failures.failed(Instant::now()) {
            tracing::warn!(resource = self.topic.resource(), failed, %error, "review failed");
        }
    }

    /// Whether upstream lets us create reviews of this topic.
    pub(super) fn right(&self) -> &Arc<ReviewRight> {
        &self.right
    }

    /// Counts a question by its result.
    pub(super) fn came_to(&self, result: &'static str) {
        metrics::reviewed(self.topic.as_str(), result);
    }

    /// The error for a question that is not put because its turn comes too late.
    pub(super) fn late(&self) -> NotGranted {
        self.came_to("timeout");
        NotGranted::Unavailable(format!("{}: too many reviews are waiting", self.topic.refusal()))
    }

    /// The error for a question that is not put because its caller has caused too many.
    pub(super) fn over_budget(&self) -> NotGranted {
        self.came_to("over_budget");
        NotGranted::TooMany { retry_after_seconds: RETRY_AFTER_SECONDS }
    }
}

/// The remembered answer, or the one that `ask` gives. There is one question at a time for a key, however many wait for
/// it; errors are not remembered. An answer will do only if it was asked for after `since`.
pub(super) async fn remembered<K, V, F>(
    answers: &Cache<K, V>,
    key: &K,
    since: Option<Instant>,
    ask: impl Fn() -> F,
) -> Result<V, NotGranted>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Dated + Clone + Send + Sync + 'static,
    F: Future<Output = Result<V, NotGranted>>,
{
    let will_do = |answer: &V| since.is_none_or(|since| answer.asked() >= since);
    loop {
        match answers.get(key).await {
            Some(answer) if will_do(&answer) => return Ok(answer),
            Some(_) => answers.invalidate(key).await,
            None => {}
        }
        // A question is large and rarely asked, so it is boxed: no request has room for it beside its own.
        let answer = Box::pin(answers.try_get_with_by_ref(key, ask())).await;
        let answer = answer.map_err(|refused: Arc<NotGranted>| NotGranted::clone(&refused))?;
        // Otherwise somebody's question was under way that had begun too early.
        if will_do(&answer) {
            return Ok(answer);
        }
    }
}

/// A quota of so many a second in the long run, and so many at once; zero counts as one.
pub(super) fn quota(per_second: u32, burst: u32) -> Quota {
    let rate = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(rate(per_second)).allow_burst(rate(burst))
}
