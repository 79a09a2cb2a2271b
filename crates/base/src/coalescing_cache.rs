use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;
use moka::future::Cache;
use tokio::task::yield_now;

/// A cache of upstream's responses. At most one request per key is in flight, regardless of how many callers wait for
/// it. They all receive its error, which is not cached.
pub struct CoalescingCache<K, V>(Cache<K, V>);

/// The TTL of an entry, by its key and its value.
struct EntryTtl<F>(F);

/// The number of entries that a task examines before other tasks run.
pub const YIELD_EVERY: usize = 1_024;

impl<K, V> CoalescingCache<K, V>
where
    K: Hash + Eq + Send + Sync + Clone + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates a cache of at most `weight_max`, as `weigh` weighs the values. `ttl` returns how long an entry stays;
    /// `None` if it does not expire.
    pub fn new(
        weight_max: u64,
        weigh: impl Fn(&V) -> usize + Send + Sync + 'static,
        ttl: impl Fn(&K, &V) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        let weigh = move |_: &K, value: &V| u32::try_from(weigh(value)).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(weight_max).weigher(weigh).expire_after(EntryTtl(ttl)).build())
    }

    pub async fn get(&self, key: &K) -> Option<V> {
        self.0.get(key).await
    }

    /// Returns the cached value, or else the one that `fetch` returns, if `is_accepted` accepts it. `fetch` receives
    /// the cached value that was not accepted. A value of a request that is sent from now on must be accepted.
    ///
    /// # Errors
    /// The error of the fetch that this caller has waited for.
    pub async fn get_or_fetch<E, F>(
        &self,
        key: &K,
        is_accepted: impl Fn(&V) -> bool,
        fetch: impl Fn(Option<V>) -> F,
    ) -> Result<V, Arc<E>>
    where
        E: Send + Sync + 'static,
        F: Future<Output = Result<V, E>>,
    {
        loop {
            let last = match self.0.get(key).await {
                Some(cached) if is_accepted(&cached) => return Ok(cached),
                last => last,
            };
            if last.is_some() {
                self.0.invalidate(key).await;
            }
            // The future of a fetch is large and rarely needed. It is boxed, so that requests have no room for it.
            let fetching = async { Box::pin(fetch(last)).await };
            let value = Box::pin(self.0.try_get_with_by_ref(key, fetching)).await?;
            // Otherwise, a concurrent request had been sent too early.
            if is_accepted(&value) {
                return Ok(value);
            }
        }
    }

    /// Stores a value, unless one is cached that it does not replace.
    pub async fn put(&self, key: &K, value: V, is_replaced: impl Fn(&V) -> bool) {
        if self.0.get(key).await.as_ref().is_none_or(is_replaced) {
            self.0.insert(key.clone(), value).await;
        }
    }

    pub fn clear(&self) {
        self.0.invalidate_all();
    }

    /// Removes the values for which `is_outdated` returns true.
    ///
    /// Entries are removed one by one. moka's `invalidate_entries_if` left some of thousands in place, and they were
    /// used until they expired.
    pub async fn remove_if(&self, is_outdated: impl Fn(&V) -> bool) {
        for (count, (key, value)) in self.0.iter().enumerate() {
            if count % YIELD_EVERY == YIELD_EVERY - 1 {
                yield_now().await;
            }
            if is_outdated(&value) {
                self.0.invalidate(key.as_ref()).await;
            }
        }
    }
}

impl<K, V> fmt::Debug for CoalescingCache<K, V> {
    /// Formats the type without keys and values, because they may contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalescingCache").finish_non_exhaustive()
    }
}

#[allow(clippy::disallowed_types, reason = "the trait's own")]
impl<K, V, F: Fn(&K, &V) -> Option<Duration>> Expiry<K, V> for EntryTtl<F> {
    fn expire_after_create(&self, key: &K, value: &V, _: std::time::Instant) -> Option<Duration> {
        (self.0)(key, value)
    }

    /// Returns the TTL of a replaced entry: that of the new value, because the old one may have been an allow decision.
    fn expire_after_update(&self, key: &K, value: &V, _: std::time::Instant, _: Option<Duration>) -> Option<Duration> {
        (self.0)(key, value)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    type Numbers = CoalescingCache<&'static str, (Instant, usize)>;

    #[tokio::test]
    async fn callers_that_arrive_during_a_fetch_share_the_next_one() {
        let (cache, fetches) = (Numbers::new(1 << 20, |_| 100, |_, _| None), AtomicUsize::new(0));
        let fetch = |last: Option<(Instant, usize)>| {
            let (requested_at, number) = (Instant::now(), fetches.fetch_add(1, Ordering::SeqCst));
            let last = last.map(|(_, number)| number);
            assert_eq!(last, number.checked_sub(1), "it receives the last response");
            async move {
                yield_now().await;
                Ok::<_, ()>((requested_at, number))
            }
        };
        let get = async |received, is_current: bool| {
            let is_accepted = |(requested_at, _): &(Instant, usize)| *requested_at >= received || is_current;
            cache.get_or_fetch(&"a", is_accepted, fetch).await.map(|(_, number)| number)
        };
        let before = Instant::now();
        assert_eq!(get(before, false).await, Ok(0));
        assert_eq!(get(before, false).await, Ok(0), "it was requested since");
        assert_eq!(get(Instant::now(), true).await, Ok(0), "it is current");
        let later = Instant::now();
        let all = join_all((0..50).map(|_| get(later, false))).await;
        assert!(all.iter().all(|got| *got == Ok(1)), "{all:?}");
    }

    #[tokio::test]
    async fn callers_that_wait_for_a_failed_fetch_receive_its_error() {
        let (cache, fetches) = (Numbers::new(1 << 20, |_| 100, |_, _| None), AtomicUsize::new(0));
        let fetch = |_| {
            let number = fetches.fetch_add(1, Ordering::SeqCst);
            async move {
                yield_now().await;
                Err::<(Instant, usize), _>(number)
            }
        };
        let all = join_all((0..50).map(|_| cache.get_or_fetch(&"a", |_| true, fetch))).await;
        assert!(all.iter().all(|got| *got == Err(Arc::new(0))), "{all:?}");
        assert_eq!(cache.get_or_fetch(&"a", |_| true, fetch).await, Err(Arc::new(1)), "it is not cached");
    }
}
