use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::review_rate_limit::{Payer, ReviewRateLimit, ReviewTurn};
use super::review_rights::ReviewRight;
use super::reviews::{ReviewFuture, ReviewTopic};
use super::{NotGranted, metrics};
use base::{KeyedSemaphores, LogLimit};

/// The class of a review. Each class has its own slots and does not wait for the others. So a revoked permission ends
/// in time, however many requests, guessed tokens or namespaces of readable watches there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReviewClass {
    /// A review of the decision that an open watch depends on.
    Lease,
    /// A review of the namespaces that a readable watch depends on, of which there may be thousands.
    Namespace,
    /// A review for a request of a known caller.
    Known,
    /// A review for a request without a credential, or with a token that was not accepted recently.
    Guess,
    /// A review for a known caller's request whose path is no resource.
    NonResource,
}

/// The queue of reviews of one topic, with limits on rate, concurrency and time. Every review passes it.
pub(super) struct ReviewQueue {
    topic: ReviewTopic,
    right: Arc<ReviewRight>,
    failures: LogLimit,
    /// The lanes of pending reviews, in the order of the classes.
    lanes: [Lane; 5],
}

/// The rate and concurrency limits of one class of reviews.
struct Lane {
    rate: Arc<ReviewRateLimit>,
    slots: Semaphore,
    /// The limits per payer: one payer may use half of the slots.
    shares: KeyedSemaphores<Payer>,
}

/// The maximum time for a review, including the wait for a slot.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The `Retry-After` of a caller that has exceeded a limit, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

impl ReviewClass {
    const ALL: [Self; 5] = [Self::Lease, Self::Namespace, Self::Known, Self::Guess, Self::NonResource];

    /// Returns the maximum number of concurrent reviews of this class.
    fn slots(self) -> usize {
        match self {
            Self::Lease | Self::Namespace => 32,
            Self::Known => 64,
            Self::Guess | Self::NonResource => 16,
        }
    }
}

impl ReviewQueue {
    pub(super) fn new(topic: ReviewTopic, rate: impl Fn(ReviewClass) -> Arc<ReviewRateLimit>) -> Self {
        let lanes = ReviewClass::ALL.map(|class| {
            let slots = class.slots();
            Lane { rate: rate(class), slots: Semaphore::new(slots), shares: KeyedSemaphores::new(slots / 2) }
        });
        Self { topic, right: Arc::new(ReviewRight::new()), failures: LogLimit::default(), lanes }
    }

    /// Reserves the payer's next turn in a class; `None` if it comes too late.
    pub(super) fn turn(&self, class: ReviewClass, payer: Payer) -> Option<ReviewTurn> {
        self.lanes[class as usize].rate.turn(payer)
    }

    /// Sends a review in its turn. Returns the answer, and a time before anything was sent.
    ///
    /// # Errors
    /// There is no turn in time, or upstream does not answer.
    pub(super) async fn send<T>(
        &self,
        class: ReviewClass,
        turn: Option<ReviewTurn>,
        review: ReviewFuture<T>,
    ) -> Result<(Instant, T), NotGranted> {
        let lane = &self.lanes[class as usize];
        let turn = match turn {
            Some(turn) if lane.rate.wait(&turn).await => turn,
            _ => return Err(self.over_limit(class)),
        };
        let asking = async {
            let share = lane.shares.of(&turn.payer);
            let _own = share.acquire().await;
            let _slot = lane.slots.acquire().await;
            let asked = Instant::now();
            (asked, review.await)
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
            tracing::warn!(resource = self.topic.resource(), failed, "review requests to the apiserver succeed again");
        }
        Ok((asked, answer))
    }

    /// Logs a failed review, or counts it for the next line.
    fn log_failure(&self, error: &dyn fmt::Display) {
        if let Some(failed) = self.failures.failed(Instant::now()) {
            tracing::warn!(resource = self.topic.resource(), failed, %error, "review request to the apiserver failed");
        }
    }

    /// Returns the record of whether the proxy may create reviews of this topic.
    pub(super) fn right(&self) -> &Arc<ReviewRight> {
        &self.right
    }

    /// Counts a review by its result.
    pub(super) fn came_to(&self, result: &'static str) {
        metrics::reviewed(self.topic.as_str(), result);
    }

    /// Returns the error for a review that is not sent because its turn comes too late.
    fn over_limit(&self, class: ReviewClass) -> NotGranted {
        // A lease continues for the grace of an outage.
        if class != ReviewClass::Lease {
            return self.over_budget();
        }
        self.came_to("timeout");
        NotGranted::Unavailable(format!("{}: too many pending reviews", self.topic.refusal()))
    }

    /// Returns the error for a caller that has exceeded a limit.
    pub(super) fn over_budget(&self) -> NotGranted {
        self.came_to("over_budget");
        NotGranted::TooMany { retry_after_seconds: RETRY_AFTER_SECONDS }
    }
}
