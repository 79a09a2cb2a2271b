use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::base::Tasks;
use crate::upstream::Behalf;

/// An answer of upstream that several requests share.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is none; the text of a 502 or 503.
pub(super) type Failure = Arc<crate::upstream::Error>;

/// Identical questions, asked once for all who came before the asking.
///
/// A question serves only requests that were received before it was *sent* (reliability.md L5): those that come while
/// it is under way wait for the next one, however similar. So there is at most one under way per key.
#[derive(Debug, Clone, Default)]
pub(super) struct Coalesced {
    waiting: Arc<Mutex<Waiting>>,
}

/// A shared answer, read whole, takes no longer; those who wait are told so.
const ANSWER_MAX: Duration = Duration::from_secs(60);

type Askers = Vec<oneshot::Sender<Result<Answer, Failure>>>;
type Waiting = HashMap<Key, Askers>;

/// Everything about a request that decides its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Nobody gets an answer to another one's question.
    pub(super) behalf: Behalf,
    pub(super) path_and_query: String,
    pub(super) accept: Option<String>,
    pub(super) accept_encoding: Option<String>,
    pub(super) user_agent: Option<String>,
}

impl Coalesced {
    /// The answer to `key`, asked by `ask` for this request and all that wait with it.
    ///
    /// The asking goes on if this caller goes away: others may wait for it.
    pub(super) async fn ask<F, Fut>(&self, key: Key, tasks: &Tasks, ask: F) -> Option<Result<Answer, Failure>>
    where
        F: Fn() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Answer, crate::upstream::Error>> + Send,
    {
        let (tx, rx) = oneshot::channel();
        let first = {
            let mut waiting = self.waiting.lock();
            let first = !waiting.contains_key(&key);
            waiting.entry(key.clone()).or_default().push(tx);
            first
        };
        if first {
            let asking = Asking { waiting: self.waiting.clone(), key };
            tasks.spawn("coalesced", async move {
                while let Some(askers) = take(&asking.waiting, &asking.key) {
                    super::metrics::coalesced(askers.len());
                    let answer = match timeout(ANSWER_MAX, ask()).await {
                        Ok(answer) => answer.map_err(Arc::new),
                        Err(_) => Err(Arc::new(crate::upstream::Error::Timeout(ANSWER_MAX))),
                    };
                    askers.into_iter().for_each(|asker| drop(asker.send(answer.clone())));
                }
            });
        }
        rx.await.ok()
    }
}

/// The task that asks for a key. However it ends, the key does not stay behind: later requests would wait for ever.
struct Asking {
    waiting: Arc<Mutex<Waiting>>,
    key: Key,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.key);
    }
}

/// Those who wait now; when nobody does, the key is forgotten, so that the next request starts over.
fn take(waiting: &Mutex<Waiting>, key: &Key) -> Option<Askers> {
    let mut waiting = waiting.lock();
    let askers = waiting.get_mut(key)?;
    askers.retain(|asker| !asker.is_closed());
    if askers.is_empty() {
        waiting.remove(key);
        return None;
    }
    Some(std::mem::take(askers))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    fn key() -> Key {
        Key {
            behalf: Behalf::Ours,
            path_and_query: "/api/v1/pods".into(),
            accept: None,
            accept_encoding: None,
            user_agent: None,
        }
    }

    #[tokio::test]
    async fn a_question_under_way_does_not_serve_those_who_come_later() {
        let (coalesced, tasks) = (Coalesced::default(), Tasks::new());
        let asked = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let ask = {
            let (asked, gate) = (asked.clone(), gate.clone());
            move || {
                let (number, gate) = (asked.fetch_add(1, Ordering::SeqCst) + 1, gate.clone());
                async move {
                    gate.acquire().await.expect("never closed").forget();
                    let body = Bytes::from(number.to_string());
                    Ok(Answer { status: StatusCode::OK, headers: HeaderMap::new(), body })
                }
            }
        };
        let request = |coalesced: Coalesced, tasks: Tasks, ask| async move {
            let answer = coalesced.ask(key(), &tasks, ask).await.expect("asked").expect("answered");
            String::from_utf8(answer.body.to_vec()).expect("a number")
        };
        let first = tokio::spawn(request(coalesced.clone(), tasks.clone(), ask.clone()));
        while asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let later: Vec<_> =
            (0..5).map(|_| tokio::spawn(request(coalesced.clone(), tasks.clone(), ask.clone()))).collect();
        while coalesced.waiting.lock().get(&key()).map_or(0, Vec::len) < 5 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(first.await.expect("joined"), "1");
        for later in later {
            assert_eq!(later.await.expect("joined"), "2", "all who waited share the second question");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
