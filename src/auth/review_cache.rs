//! The cache of review results, as in the apiserver's webhook authorizer and token cache: each entry has a TTL that
//! follows from its purpose and its result.
//!
//! A key includes the purpose of the review. So a review for a lease is not coalesced with one for a request, which may
//! wait in a longer queue, and a result that is too old for requests is not used for them.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;
use moka::future::Cache;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::GrantError;
use super::policy_changes::YIELD_EVERY;

/// The purpose of a review, which determines how old its result may be.
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

/// A cache of review results. Identical concurrent reviews are coalesced, and errors are not cached.
pub(super) struct ReviewCache<K, V>(Cache<(ReviewPurpose, K), V>);

/// A review result that can be cached.
pub(super) trait ReviewResult {
    /// Returns a time before the review was sent.
    fn sent(&self) -> Instant;
}

/// The TTL of an entry, by its purpose and its result.
struct ReviewTtl<F>(F);

impl<K, V> ReviewCache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: ReviewResult + Clone + Send + Sync + 'static,
{
    /// Creates a cache of at most `weight_max`, as `weigh` weighs the results.
    pub(super) fn new(
        weight_max: u64,
        weigh: impl Fn(&V) -> usize + Send + Sync + 'static,
        ttl: impl Fn(ReviewPurpose, &V) -> Duration + Send + Sync + 'static,
    ) -> Self {
        let weigh = move |_: &(ReviewPurpose, K), result: &V| u32::try_from(weigh(result)).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(weight_max).weigher(weigh).expire_after(ReviewTtl(ttl)).build())
    }

    pub(super) async fn get(&self, purpose: ReviewPurpose, key: &K) -> Option<V> {
        self.0.get(&(purpose, key.clone())).await
    }

    /// Returns the cached result, or the one that `review` returns. With `since`, a result is accepted only if its
    /// review was sent after that time.
    pub(super) async fn get_or_review<F>(
        &self,
        purpose: ReviewPurpose,
        key: &K,
        since: Option<Instant>,
        review: impl Fn() -> F,
    ) -> Result<V, GrantError>
    where
        F: Future<Output = Result<V, GrantError>>,
    {
        let key = (purpose, key.clone());
        let is_accepted = |result: &V| since.is_none_or(|since| result.sent() >= since);
        loop {
            match self.0.get(&key).await {
                Some(result) if is_accepted(&result) => return Ok(result),
                Some(_) => self.0.invalidate(&key).await,
                None => {}
            }
            // A review's future is large and rarely needed. It is boxed, so that requests have no room for it.
            let reviewing = async { Box::pin(review()).await };
            let result = Box::pin(self.0.try_get_with_by_ref(&key, reviewing)).await;
            let result = result.map_err(|error: Arc<GrantError>| GrantError::clone(&error))?;
            // Otherwise, a concurrent review had been sent before `since`.
            if is_accepted(&result) {
                return Ok(result);
            }
        }
    }

    /// Stores the result of a review, unless a newer one is cached.
    pub(super) async fn put(&self, purpose: ReviewPurpose, key: &K, result: V) {
        let key = (purpose, key.clone());
        if self.0.get(&key).await.is_none_or(|cached| cached.sent() <= result.sent()) {
            self.0.insert(key, result).await;
        }
    }

    pub(super) fn clear(&self) {
        self.0.invalidate_all();
    }

    /// Removes the cached results for which `is_outdated` returns true.
    ///
    /// Entries are removed one by one. moka's `invalidate_entries_if` left some of thousands in place, and they were
    /// used until they expired.
    pub(super) async fn remove_if(&self, is_outdated: impl Fn(&V) -> bool) {
        for (count, (key, result)) in self.0.iter().enumerate() {
            if count % YIELD_EVERY == YIELD_EVERY - 1 {
                yield_now().await;
            }
            if is_outdated(&result) {
                self.0.invalidate(key.as_ref()).await;
            }
        }
    }
}

#[allow(clippy::disallowed_types, reason = "the trait's own")]
impl<K, V, F: Fn(ReviewPurpose, &V) -> Duration> Expiry<(ReviewPurpose, K), V> for ReviewTtl<F> {
    fn expire_after_create(&self, key: &(ReviewPurpose, K), result: &V, _: std::time::Instant) -> Option<Duration> {
        Some((self.0)(key.0, result))
    }

    /// Returns the TTL of a replaced entry: that of the new result, because the old one may have been an allow
    /// decision.
    fn expire_after_update(
        &self,
        key: &(ReviewPurpose, K),
        result: &V,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some((self.0)(key.0, result))
    }
}
