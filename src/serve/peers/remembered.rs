//! A cache of upstream responses that are the same for all callers.

use std::fmt;
use std::hash::Hash;

use moka::Entry;
use moka::future::Cache;
use moka::ops::compute::{CompResult, Op};
use tokio::time::Instant;

/// A response from upstream, with a time before its request was sent.
pub(crate) trait AskedAt {
    fn asked(&self) -> Instant;
    /// Returns the memory that the response takes.
    fn len_bytes(&self) -> usize;
}

/// Responses by request. At most one request per key is in flight, regardless of how many callers wait for it.
///
/// If upstream does not respond, the waiting callers send their requests one after the other, each within its own
/// timeout.
pub(crate) struct Remembered<K, V> {
    answers: Cache<K, V>,
}

impl<K, V> fmt::Debug for Remembered<K, V> {
    /// Omits requests and responses, because they may contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembered").finish_non_exhaustive()
    }
}

impl<K, V> Remembered<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: AskedAt + Clone + Send + Sync + 'static,
{
    pub(crate) fn new(bytes_max: u64) -> Self {
        let weigh = |_: &K, answer: &V| u32::try_from(answer.len_bytes()).unwrap_or(u32::MAX);
        Self { answers: Cache::builder().max_capacity(bytes_max).weigher(weigh).build() }
    }

    /// Returns the response for a caller whose request arrived at `received`. A cached response is used if it was
    /// requested since, or if `will_do` accepts it. Otherwise `ask` requests a new one; it receives the last response,
    /// which may spare a full request. Errors are not cached.
    pub(crate) async fn get<E, F>(
        &self,
        key: &K,
        received: Instant,
        will_do: impl Fn(&V) -> bool,
        ask: impl FnOnce(Option<V>) -> F,
    ) -> Result<V, E>
    where
        E: Send + Sync + 'static,
        F: Future<Output = Result<V, E>>,
    {
        // A response that was requested before the caller's request arrived may predate that request.
        let fits = |answer: &V| answer.asked() >= received || will_do(answer);
        if let Some(answer) = self.answers.get(key).await.filter(|answer| fits(answer)) {
            return Ok(answer);
        }
        let asking = self.answers.entry_by_ref(key).and_try_compute_with(|held| async {
            match held.map(Entry::into_value) {
                Some(answer) if fits(&answer) => Ok(Op::Nop),
                last => ask(last).await.map(Op::Put),
            }
        });
        match Box::pin(asking).await? {
            CompResult::Inserted(entry) | CompResult::ReplacedWith(entry) | CompResult::Unchanged(entry) => {
                Ok(entry.into_value())
            }
            CompResult::StillNone(_) | CompResult::Removed(_) => unreachable!("an answer is put, or stays"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::task::yield_now;

    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Answer {
        asked: Instant,
        number: usize,
    }

    impl AskedAt for Answer {
        fn asked(&self) -> Instant {
            self.asked
        }

        fn len_bytes(&self) -> usize {
            100
        }
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_request_started_after_arrival() {
        let (remembered, questions) = (Remembered::<&str, Answer>::new(1 << 20), AtomicUsize::new(0));
        let ask = |last: Option<Answer>| {
            let (asked, number) = (Instant::now(), questions.fetch_add(1, Ordering::SeqCst));
            assert_eq!(last.map(|last| last.number + 1), number.checked_sub(1).map(|_| number), "it has the last one");
            async move {
                yield_now().await;
                Ok::<_, ()>(Answer { asked, number })
            }
        };
        let get = |received, will_do: bool| remembered.get(&"a", received, move |_: &Answer| will_do, ask);
        let before = Instant::now();
        let first = get(before, false).await.expect("an answer");
        assert_eq!(first.number, 0);
        assert_eq!(get(before, false).await, Ok(first.clone()), "it was asked for since");
        assert_eq!(get(Instant::now(), true).await, Ok(first), "it will do");
        let later = Instant::now();
        let all = join_all((0..50).map(|_| get(later, false))).await;
        assert!(all.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.number == 1)), "{all:?}");
    }
}
