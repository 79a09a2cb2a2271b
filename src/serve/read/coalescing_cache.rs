//! A cache of upstream responses that are the same for all callers.

use std::fmt;
use std::hash::Hash;

use moka::Entry;
use moka::future::Cache;
use moka::ops::compute::{CompResult, Op};
use tokio::time::Instant;

use crate::serve::activity::metrics::SharedResponseOrigin;

/// A response from upstream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TimedResponse<V> {
    /// A time before its request was sent.
    pub(crate) requested_at: Instant,
    pub(crate) value: V,
}

/// Responses by request. At most one request per key is in flight, regardless of how many callers wait for it.
///
/// If upstream does not respond, the waiting callers send their requests one after the other, each within its own
/// timeout.
pub(crate) struct CoalescingCache<K, V> {
    responses: Cache<K, TimedResponse<V>>,
}

impl<K, V> fmt::Debug for CoalescingCache<K, V> {
    /// Formats the type without requests and responses, because they may contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalescingCache").finish_non_exhaustive()
    }
}

impl<K, V> CoalescingCache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty cache of at most `bytes_max`. `len_bytes` returns the memory of an entry.
    pub(crate) fn new(bytes_max: u64, len_bytes: fn(&V) -> usize) -> Self {
        let weigh =
            move |_: &K, fetched: &TimedResponse<V>| u32::try_from(len_bytes(&fetched.value)).unwrap_or(u32::MAX);
        Self { responses: Cache::builder().max_capacity(bytes_max).weigher(weigh).build() }
    }

    /// Returns the response for a caller whose request arrived at `received`. A cached response is used if it was
    /// requested since, or if `is_current` accepts it. Otherwise `fetch` requests a new one; it receives the last
    /// response, which may spare a full request. Errors are not cached.
    pub(crate) async fn get<E, F>(
        &self,
        key: &K,
        received: Instant,
        is_current: impl Fn(&TimedResponse<V>) -> bool,
        fetch: impl FnOnce(Option<V>) -> F,
    ) -> Result<(V, SharedResponseOrigin), E>
    where
        E: Send + Sync + 'static,
        F: Future<Output = Result<TimedResponse<V>, E>>,
    {
        let called = Instant::now();
        // A response that was requested before the caller's request arrived may predate that request.
        let fits = |fetched: &TimedResponse<V>| fetched.requested_at >= received || is_current(fetched);
        if let Some(fetched) = self.responses.get(key).await.filter(|fetched| fits(fetched)) {
            return Ok((fetched.value, SharedResponseOrigin::Memory));
        }
        let fetching = self.responses.entry_by_ref(key).and_try_compute_with(|cached| async {
            match cached.map(Entry::into_value) {
                Some(fetched) if fits(&fetched) => Ok(Op::Nop),
                last => fetch(last.map(|last| last.value)).await.map(Op::Put),
            }
        });
        let (CompResult::Inserted(entry) | CompResult::ReplacedWith(entry) | CompResult::Unchanged(entry)) =
            Box::pin(fetching).await?
        else {
            unreachable!("a response is put, or stays")
        };
        let fetched = entry.into_value();
        let source =
            if fetched.requested_at >= called { SharedResponseOrigin::Upstream } else { SharedResponseOrigin::Memory };
        Ok((fetched.value, source))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn callers_that_arrive_during_a_fetch_share_the_next_one() {
        let (cache, fetches) = (CoalescingCache::<&str, usize>::new(1 << 20, |_| 100), AtomicUsize::new(0));
        let fetch = |last: Option<usize>| {
            let (requested_at, number) = (Instant::now(), fetches.fetch_add(1, Ordering::SeqCst));
            assert_eq!(last, number.checked_sub(1), "it receives the last response");
            async move {
                yield_now().await;
                Ok::<_, ()>(TimedResponse { requested_at, value: number })
            }
        };
        let get = |received, is_current: bool| cache.get(&"a", received, move |_| is_current, fetch);
        let before = Instant::now();
        assert_eq!(get(before, false).await, Ok((0, SharedResponseOrigin::Upstream)));
        assert_eq!(get(before, false).await, Ok((0, SharedResponseOrigin::Memory)), "it was requested since");
        assert_eq!(get(Instant::now(), true).await, Ok((0, SharedResponseOrigin::Memory)), "it is current");
        let later = Instant::now();
        let all = join_all((0..50).map(|_| get(later, false))).await;
        assert!(all.iter().all(|got| got.is_ok_and(|(number, _)| number == 1)), "{all:?}");
    }
}
