use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::review_permission::{ReviewCreationPermission, ReviewResource};
use super::{GrantError, metrics};
use crate::upstream::{ReviewFuture, UpstreamError};
use base::{KeyedSemaphores, LogRateLimit};
use kubeapi::FlowDistinguisher;

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
    Unauthenticated,
    /// A review for a known caller's request whose path is no resource.
    NonResource,
    /// A review that compares an answer given here with upstream's.
    Comparison,
}

/// The purpose of a review, which determines how old its result may be, and is part of the key of a cached result.
///
/// So a review for a lease is not coalesced with one for a request, which may wait in a longer queue, and a result that
/// is too old for requests is not used for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReviewPurpose {
    /// A review for a request, which counts against its user's limit.
    Request,
    /// A review for a request whose path is no resource: discovery, metrics. Discovery above its limit is forwarded, so
    /// it does not use up the limit of other requests.
    NonResource,
    /// A review for a request of a downstream proxy that the cache does not answer.
    Proxy,
    /// A review for a lease of an open watch.
    Lease,
    /// A review for one namespace of a lease.
    Namespace,
}

/// The queue of one kind of review, with limits on rate, concurrency and time. Every review passes it.
pub(super) struct ReviewQueue {
    /// Whether the proxy may create these reviews.
    pub(super) permission: Arc<ReviewCreationPermission>,
    failures: LogRateLimit,
    /// The lanes of pending reviews, in the order of the classes.
    lanes: [ReviewClassLimits; ReviewClass::ALL.len()],
}

/// The rate and concurrency limits of one class of reviews.
struct ReviewClassLimits {
    rate: Arc<ReviewRateLimit>,
    slots: Semaphore,
    /// The limits per key: one key may use half of the slots.
    by_key: KeyedSemaphores<ReviewRateLimitKey>,
}

/// The limits against which a review counts: those of its class, and of its key in that class.
pub(super) type ReviewCharge = (ReviewClass, ReviewRateLimitKey);

/// The party to which a review is charged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReviewRateLimitKey {
    User(FlowDistinguisher),
    /// The address from which an unknown token was sent.
    Address(IpAddr),
}

/// The rate limits of a class of reviews, of each key and of all together. A key's send times follow the order of
/// its reviews.
#[derive(Debug)]
pub(super) struct ReviewRateLimit {
    each: ReviewRate,
    all: ReviewRate,
    /// The maximum time that a review waits for the rate of its key, and for that of all keys.
    each_wait_max: Duration,
    all_wait_max: Duration,
    /// One lock suffices: a look-up takes 0.1 µs and a review 1,000 µs.
    next: Mutex<ReviewRateLimitState>,
}

#[derive(Debug, Default)]
struct ReviewRateLimitState {
    /// The next send time of each key without its burst; `None` stands for all keys together.
    next_by_key: HashMap<Option<ReviewRateLimitKey>, Instant>,
    /// The number of keys at which those without a waiting review are removed.
    len_max: usize,
}

/// A limit on the namespaces that open readable watches depend on, in all and for each user. It keeps their number
/// within what can be reviewed in time after a policy change.
#[derive(Debug)]
pub(super) struct ReviewedNamespaceLimit {
    all: Arc<Semaphore>,
    each: KeyedSemaphores<FlowDistinguisher>,
}

/// The namespaces that one watch depends on: permits of the user's limit, and of that of all users. The permits are
/// returned on drop.
#[derive(Debug)]
pub(super) struct ReviewedNamespacePermits(Mutex<[OwnedSemaphorePermit; 2]>);

/// A long-term rate, and a burst.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReviewRate {
    /// The long-term time between two reviews.
    interval: Duration,
    /// How far ahead of the rate a review may be sent.
    burst: Duration,
}

/// The time at which the rate of a key allows its next review.
#[derive(Debug)]
struct ReviewReservation {
    at: Instant,
    /// The latest time at which the review may be sent.
    deadline: Instant,
}

/// The maximum time that a review for a lease waits.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(10);
/// The maximum number of reviews of one kind per second that compare answers given here with upstream's.
const COMPARISONS_PER_SECOND: u32 = 10;
/// The number of keys that are tracked even if they are idle.
const PRUNE_MIN: usize = 1_024;
/// The maximum time for a review, including the wait for a slot.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The `Retry-After` of a caller that has exceeded a limit, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

impl ReviewClass {
    const ALL: [Self; 6] =
        [Self::Lease, Self::Namespace, Self::Known, Self::Unauthenticated, Self::NonResource, Self::Comparison];

    /// Returns the maximum number of concurrent reviews of this class.
    fn slots(self) -> usize {
        match self {
            Self::Lease | Self::Namespace => 32,
            Self::Known => 64,
            Self::Unauthenticated | Self::NonResource => 16,
            Self::Comparison => 2,
        }
    }
}

impl ReviewQueue {
    pub(super) fn new(review_resource: ReviewResource, rate: impl Fn(ReviewClass) -> Arc<ReviewRateLimit>) -> Self {
        let lanes = ReviewClass::ALL.map(|class| {
            let slots = class.slots();
            ReviewClassLimits {
                rate: rate(class),
                slots: Semaphore::new(slots),
                by_key: KeyedSemaphores::new(slots / 2),
            }
        });
        Self {
            permission: Arc::new(ReviewCreationPermission::new(review_resource)),
            failures: LogRateLimit::default(),
            lanes,
        }
    }

    /// Sends a review under the first of the charges whose key has a send time soon enough. Returns a time before it
    /// was sent, and the response.
    ///
    /// # Errors
    /// No send time is soon enough, or upstream does not respond.
    pub(super) async fn send<T>(
        &self,
        charges: &[ReviewCharge],
        review: ReviewFuture<'_, T>,
    ) -> Result<(Instant, T), GrantError> {
        let reservation = charges.iter().find_map(|(class, key)| {
            let lane = &self.lanes[*class as usize];
            Some((lane, key, lane.rate.reserve(key.clone())?))
        });
        let (lane, key) = match reservation {
            Some((lane, key, reservation)) if lane.rate.wait(&reservation).await => (lane, key),
            // A lease continues for the grace of an outage.
            _ if charges.iter().any(|(class, _)| *class == ReviewClass::Lease) => {
                self.count("timeout");
                let refusal = self.permission.review_resource.refusal;
                return Err(GrantError::Unavailable(format!("{refusal}: too many pending reviews")));
            }
            _ => return Err(self.limit_error()),
        };
        let sending = async {
            let share = lane.by_key.get(key);
            let _own = share.acquire().await;
            let _slot = lane.slots.acquire().await;
            (Instant::now(), review.await)
        };
        let outcome = timeout(RESPONSE_TIMEOUT, sending).await;
        let failure = if outcome.is_ok() { "error" } else { "timeout" };
        let late = |_| (Instant::now(), Err(UpstreamError::Timeout(RESPONSE_TIMEOUT)));
        let (sent, response) = outcome.unwrap_or_else(late);
        self.permission.record(&response);
        let response = response.map_err(|error| {
            self.count(failure);
            self.log_failure(&error);
            self.explain(GrantError::unanswered(&error, self.permission.review_resource))
        })?;
        if let Some(failures) = self.failures.take_suppressed(Instant::now()) {
            tracing::info!(
                resource = self.permission.review_resource.resource,
                failures,
                "review requests to the apiserver succeed again"
            );
        }
        Ok((sent, response))
    }

    /// Adds what is not known to the error of a review, if none has been answered yet.
    fn explain(&self, error: GrantError) -> GrantError {
        match (error, self.permission.unknown()) {
            (GrantError::Unavailable(error), Some(unknown)) => GrantError::Unavailable(format!("{error}; {unknown}")),
            (error, _) => error,
        }
    }

    /// Logs a failed review, or counts it for the next line.
    fn log_failure(&self, error: &UpstreamError) {
        if let Some(failures) = self.failures.failed(Instant::now()) {
            let resource = self.permission.review_resource.resource;
            tracing::warn!(resource, failures, %error, "review request to the apiserver failed; callers without a cached decision are refused with 503");
        }
    }

    /// Counts a review by its result.
    pub(super) fn count(&self, result: &'static str) {
        metrics::reviewed(self.permission.review_resource.label, result);
    }

    /// Returns the error for a caller that has exceeded a limit.
    pub(super) fn limit_error(&self) -> GrantError {
        self.count("over_budget");
        GrantError::TooMany { retry_after_seconds: RETRY_AFTER_SECONDS }
    }
}

impl ReviewRateLimit {
    /// Creates the limits. Reviews above them wait up to `each_wait_max` for the rate of their key, and up to
    /// `all_wait_max` for that of all.
    pub(super) fn new(each: ReviewRate, all: ReviewRate, each_wait_max: Duration, all_wait_max: Duration) -> Self {
        Self { each, all, each_wait_max, all_wait_max, next: Mutex::default() }
    }

    /// Creates the limits on reviews for leases, of one user and of all, per second.
    pub(super) fn for_leases(each: u32, all: u32) -> Self {
        let rate = |per_second| ReviewRate::new(per_second, per_second / 4);
        Self::new(rate(each), rate(all), LEASE_WAIT_MAX, LEASE_WAIT_MAX)
    }

    /// Creates the limits on reviews for comparisons.
    pub(super) fn for_comparisons() -> Self {
        let each = ReviewRate::new(COMPARISONS_PER_SECOND, COMPARISONS_PER_SECOND);
        Self::new(each, each, LEASE_WAIT_MAX, LEASE_WAIT_MAX)
    }

    /// Charges a key for something that is done now. Returns false if its rate, or that of all, does not allow it.
    pub(super) fn take(&self, key: ReviewRateLimitKey) -> bool {
        self.reserve(key).is_some_and(|at| self.next_send_time(None, self.all, at.deadline).is_some())
    }

    /// Reserves the key's next send time; `None` if it comes too late.
    fn reserve(&self, key: ReviewRateLimitKey) -> Option<ReviewReservation> {
        let now = Instant::now();
        let at = self.next_send_time(Some(key), self.each, now + self.each_wait_max)?;
        Some(ReviewReservation { at, deadline: now + self.all_wait_max })
    }

    /// Waits until the review may be sent. Returns false if that would be too late.
    ///
    /// The rate of all is charged at the key's send time, so waiting reviews of one key delay no others.
    async fn wait(&self, reservation: &ReviewReservation) -> bool {
        wait_until(reservation.at).await;
        let Some(at) = self.next_send_time(None, self.all, reservation.deadline) else { return false };
        wait_until(at).await;
        true
    }

    /// Takes a key's next send time by the generic cell rate algorithm, and returns its time; `None` if that is later
    /// than `deadline`.
    fn next_send_time(
        &self,
        key: Option<ReviewRateLimitKey>,
        ReviewRate { interval, burst }: ReviewRate,
        deadline: Instant,
    ) -> Option<Instant> {
        let ReviewRateLimitState { next_by_key, len_max } = &mut *self.next.lock();
        let now = Instant::now();
        let at = next_by_key.get(&key).copied().unwrap_or(now).max(now);
        let send_at = at.checked_sub(burst).unwrap_or(now).max(now);
        if send_at > deadline.max(now) {
            return None;
        }
        if next_by_key.len() >= *len_max {
            next_by_key.retain(|_, next| *next > now);
            *len_max = 2 * next_by_key.len().max(PRUNE_MIN);
        }
        next_by_key.insert(key, at + interval);
        Some(send_at)
    }
}

impl ReviewRate {
    /// Creates a rate of `per_second` reviews in the long term, with bursts of `burst`. Zero counts as one.
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, burst: interval * burst.saturating_sub(1) }
    }
}

impl ReviewedNamespaceLimit {
    pub(super) fn new(all_max: usize, each_max: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all_max.min(Semaphore::MAX_PERMITS))),
            each: KeyedSemaphores::new(each_max),
        }
    }

    /// Creates a caller's share of the quota, without namespaces.
    pub(super) fn permits(&self, flow: &FlowDistinguisher) -> ReviewedNamespacePermits {
        let limits = [self.each.get(flow), self.all.clone()];
        ReviewedNamespacePermits(Mutex::new(
            limits.map(|limit| limit.try_acquire_many_owned(0).expect("nothing is acquired")),
        ))
    }
}

impl ReviewedNamespacePermits {
    /// Changes the share to `count` namespaces in all. If these are too many, it returns false and changes nothing.
    pub(super) fn try_resize(&self, count: usize) -> bool {
        let mut permits = self.0.lock();
        let Ok(more) = u32::try_from(count.saturating_sub(permits[0].num_permits())) else { return false };
        let acquire = |permit: &OwnedSemaphorePermit| permit.semaphore().clone().try_acquire_many_owned(more);
        // One after the other, because a user above its own limit must not take permits of all, not even briefly.
        let Ok(own) = acquire(&permits[0]) else { return false };
        let Ok(all) = acquire(&permits[1]) else { return false };
        permits[0].merge(own);
        permits[1].merge(all);
        true
    }
}

/// Waits until a time, like `sleep_until`, which completes a millisecond later if the time has come.
async fn wait_until(at: Instant) {
    if at > Instant::now() {
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use kubeapi::User;

    const LATE: Duration = Duration::from_secs(60);

    fn key(number: usize) -> ReviewRateLimitKey {
        let [.., a, b] = number.to_be_bytes();
        ReviewRateLimitKey::Address([10, 0, a, b].into())
    }

    fn limit(each: ReviewRate, wait_max: Duration) -> ReviewRateLimit {
        ReviewRateLimit::new(each, ReviewRate::new(1_000, 1), wait_max, wait_max)
    }

    #[tokio::test(start_paused = true)]
    async fn rate_limit_allows_a_burst_then_paces_each_key() {
        let (patient, began) = (limit(ReviewRate::new(10, 3), LATE), Instant::now());
        let send_at = |number| patient.reserve(key(number)).map(|reservation| reservation.at - began);
        let milliseconds = |count| Some(Duration::from_millis(count));
        assert_eq!([send_at(1), send_at(1), send_at(1), send_at(1)], [0, 0, 0, 100].map(milliseconds));
        assert_eq!(send_at(2), milliseconds(0), "others have send times of their own");
        assert_eq!(patient.next_send_time(Some(key(1)), patient.each, began), None, "its send time is later");
        assert_eq!(send_at(1), milliseconds(200), "a refused send time is not used");
        advance(Duration::from_secs(10)).await;
        assert_eq!(
            [send_at(1), send_at(1), send_at(1), send_at(1)],
            [10_000, 10_000, 10_000, 10_100].map(milliseconds)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn idle_keys_are_removed() {
        let limit = limit(ReviewRate::new(1_000, 1), Duration::ZERO);
        for number in 0..10 * PRUNE_MIN {
            assert!(limit.reserve(key(number)).is_some());
            advance(Duration::from_millis(1)).await;
        }
        assert!(limit.next.lock().next_by_key.len() <= 2 * PRUNE_MIN);
    }

    /// The rate of all is charged when a review is sent. So the waiting reviews of one key use none of it.
    #[tokio::test(start_paused = true)]
    async fn waiting_reviews_of_one_key_delay_no_others() {
        let limit = limit(ReviewRate::new(1, 1), Duration::from_secs(10));
        let reservations: Vec<_> = (0..20).map_while(|_| limit.reserve(key(1))).collect();
        assert_eq!(reservations.len(), 11, "later ones come too late");
        let began = Instant::now();
        let other = limit.reserve(key(2)).expect("others have send times of their own");
        assert!(limit.wait(&other).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        for (second, reservation) in (0..).zip(&reservations) {
            assert!(limit.wait(reservation).await);
            assert!(began.elapsed().as_millis().abs_diff(second * 1_000) <= 2, "{second}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn namespace_quota_limits_each_user_and_the_total() {
        let quota = ReviewedNamespaceLimit::new(10, 6);
        let of = |name: &str| {
            quota.permits(&FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() }))
        };
        let (first, second, bob) = (of("ada"), of("ada"), of("bob"));
        assert!(first.try_resize(4) && first.try_resize(4), "what is there is counted once");
        assert!(!second.try_resize(3) && second.try_resize(2), "two watches of one user");
        assert!(!bob.try_resize(5) && bob.try_resize(4), "all together");
        assert!(!first.try_resize(5));
        drop(second);
        assert!(first.try_resize(6) && bob.try_resize(4) && !bob.try_resize(5));
        drop((first, bob));
        assert_eq!(quota.all.available_permits(), 10);
    }
}
