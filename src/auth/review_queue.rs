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

/// The class of a review. Each class has slots of its own and does not wait for the others. So a revoked right ends in
/// time, however many requests, guessed tokens or namespaces of readable watches there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReviewClass {
    /// The decision that an open watch depends on.
    Lease,
    /// The namespaces that a readable watch depends on, of which there may be thousands.
    Namespace,
    /// A request of a known caller.
    Known,
    /// A request without a credential, or with a token that was not accepted recently.
    Guess,
}

/// The queue of reviews of one topic, with limits on concurrency and time.
pub(super) struct ReviewQueue {
    topic: ReviewTopic,
    right: Arc<ReviewRight>,
    failures: LogLimit,
    leases: Semaphore,
    namespaces: Semaphore,
    known: Semaphore,
    guesses: Semaphore,
    /// The most slots of a class for one user.
    shares: [Shares<FlowDistinguisher>; 3],
}

/// A cached answer of upstream.
pub(super) trait Dated {
    /// A time before the review was sent.
    fn asked(&self) -> Instant;
}

/// The most concurrent reviews for leases. One user may have half of these slots.
const LEASES_MAX: usize = 32;
/// The same for namespaces.
const NAMESPACE_QUESTIONS_MAX: usize = 32;
/// The same for requests.
const KNOWN_MAX: usize = 64;
/// The same for guesses, without a limit per user.
const GUESSES_MAX: usize = 16;
/// The most time for a review, including the wait for its turn.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The `Retry-After` of a caller that has exceeded a limit, in seconds.
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

    /// Sends a review when its turn comes. Returns the answer, and a time before anything was sent.
    ///
    /// `payer` is the user whose share it uses, if known.
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
            self.log_failure(&format_args!("no response within {ANSWER_MAX:?}"));
            NotGranted::Unavailable(format!("{}: the apiserver did not respond in time", self.topic.refusal()))
        })?;
        self.right.note(&answer);
        let answer = answer.map_err(|error| {
            self.came_to("error");
            self.log_failure(&error);
            NotGranted::unanswered(&error, self.topic)
        })?;
        if let Some(failed) = self.failures.unlogged(Instant::now()) {
            tracing::warn!(resource = self.topic.resource(), failed, "reviews succeed again");
        }
        Ok((asked, answer))
    }

    /// Logs a failed review, or counts it for the next line.
    fn log_failure(&self, error: &dyn fmt::Display) {
        if let Some(failed) = self.failures.failed(Instant::now()) {
            tracing::warn!(resource = self.topic.resource(), failed, %error, "review failed");
        }
    }

    /// Whether the proxy may create reviews of this topic.
    pub(super) fn right(&self) -> &Arc<ReviewRight> {
        &self.right
    }

    /// Counts a review by its result.
    pub(super) fn came_to(&self, result: &'static str) {
        metrics::reviewed(self.topic.as_str(), result);
    }

    /// The error for a review that is not sent because its turn comes too late.
    pub(super) fn late(&self) -> NotGranted {
        self.came_to("timeout");
        NotGranted::Unavailable(format!("{}: too many pending reviews", self.topic.refusal()))
    }

    /// The error for a review that is not sent because its caller has exceeded a limit.
    pub(super) fn over_budget(&self) -> NotGranted {
        self.came_to("over_budget");
        NotGranted::TooMany { retry_after_seconds: RETRY_AFTER_SECONDS }
    }
}

/// Returns the cached answer, or the one that `ask` returns.
///
/// Concurrent calls for a key are coalesced, and errors are not cached. An answer is accepted only if its review was
/// sent after `since`.
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
        // A question is large and rarely asked, so it is boxed when it is: no request has room for it beside its own,
        // not even one that waits for another's question.
        let asking = async { Box::pin(ask()).await };
        let answer = Box::pin(answers.try_get_with_by_ref(key, asking)).await;
        let answer = answer.map_err(|refused: Arc<NotGranted>| NotGranted::clone(&refused))?;
        // Otherwise, a concurrent review had been sent before `since`.
        if will_do(&answer) {
            return Ok(answer);
        }
    }
}

/// A quota with a long-term rate per second and a burst. Zero counts as one.
pub(super) fn quota(per_second: u32, burst: u32) -> Quota {
    let rate = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(rate(per_second)).allow_burst(rate(burst))
}
