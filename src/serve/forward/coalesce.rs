use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use dashmap::{DashMap, Entry};
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::serve::limits::ConcurrencyPermit;
use crate::upstream::{RequestIdentity, UpstreamClient, UpstreamError, UpstreamResponseBody};
use base::BackgroundTasks;

/// A response from upstream that several requests share.
#[derive(Debug, Clone)]
pub(crate) struct CoalescedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The permit for the response's bytes, charged to the user. Requests that share the bytes share the permit. `None`
    /// if they are of several users, which are each charged on receipt.
    pub(crate) permit: Option<Arc<ConcurrencyPermit>>,
}

/// The reason that there is no response to share.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CoalesceError {
    /// The response is too large to be read whole, or its user has no memory budget left.
    #[error("the response is too large to be shared by coalesced requests")]
    TooLarge,
    #[error(transparent)]
    Failed(#[from] UpstreamError),
}

impl CoalescedResponse {
    /// Reads a response of at most `bytes_max` bytes.
    pub(crate) async fn read(
        client: &UpstreamClient,
        response: Response<UpstreamResponseBody>,
        bytes_max: usize,
    ) -> Result<Self, CoalesceError> {
        let (status, headers) = (response.status(), response.headers().clone());
        match client.read_at_most(response, bytes_max).await {
            Ok(body) => Ok(Self { status, headers, body, permit: None }),
            Err(UpstreamError::TooLarge(_)) => Err(CoalesceError::TooLarge),
            Err(error) => Err(error.into()),
        }
    }
}

/// Coalesces identical concurrent requests to upstream.
///
/// A request to upstream serves only client requests that were received before it was *sent* (L5). Requests that arrive
/// while one is in flight wait for the next one, even if they are identical. So at most one request is in flight for
/// each key.
#[derive(Clone, Default)]
pub(crate) struct RequestCoalescer {
    waiting: Arc<CoalescedWaiterMap>,
}

/// The maximum time for which a request waits for a shared response, including its body, and for which one is read.
const RESPONSE_MAX: Duration = Duration::from_secs(60);

/// The result that all coalesced requests receive.
type CoalescedResponseResult = Result<CoalescedResponse, Arc<CoalesceError>>;
/// The waiting requests of a key, in order of arrival. What they would send is theirs, with its permits.
type CoalescedWaiters = Vec<(oneshot::Sender<CoalescedResponseResult>, Weak<SendRequest>)>;
/// The waiting requests by key. The map is sharded: for an unshared request, one, two and four threads take 462, 916
/// and 1,796 ns. A single lock takes 624, 1,279 and 2,496 ns.
type CoalescedWaiterMap = DashMap<CoalesceKey, CoalescedWaiters>;

/// All properties of a request that determine its response.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CoalesceKey {
    /// The identity that sends the request, so that callers never receive each other's responses.
    pub(crate) identity: RequestIdentity,
    pub(crate) path_and_query: String,
    pub(crate) accept: Option<String>,
    pub(crate) accept_encoding: Option<String>,
    pub(crate) user_agent: Option<String>,
}

/// Sends the request to upstream, once per call.
type SendRequest =
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<CoalescedResponse, CoalesceError>> + Send>> + Send + Sync;

impl RequestCoalescer {
    /// Returns the response for `key`. `send` sends the request to upstream, for this caller or for all that wait with
    /// it. Of several waiting callers, the last one sends.
    ///
    /// The first request for a key is sent on its caller's task. Most requests are joined by no other, and a separate
    /// task costs more than the request. When it ends or its caller is cancelled, a new request is sent for the callers
    /// that wait. `None` means that the proxy is shutting down.
    pub(crate) async fn send(
        &self,
        key: CoalesceKey,
        tasks: &BackgroundTasks,
        send: Arc<SendRequest>,
    ) -> Option<CoalescedResponseResult> {
        let receiver = match self.waiting.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(CoalescedWaiters::new());
                None
            }
            Entry::Occupied(mut in_flight) => {
                let (tx, rx) = oneshot::channel();
                in_flight.get_mut().push((tx, Arc::downgrade(&send)));
                Some(rx)
            }
        };
        if let Some(receiver) = receiver {
            return match timeout(RESPONSE_MAX, receiver).await {
                Ok(response) => response.ok(),
                Err(_) => Some(Err(timed_out())),
            };
        }
        let _in_flight = InFlightRequest { waiting: self.waiting.clone(), key, tasks: tasks.clone() };
        Some(send_shared(&*send, 1).await)
    }
}

/// A request that is in flight. When it is dropped for any reason, a new request is sent for the callers that arrived
/// since. If there are none, the key is removed, because later requests would otherwise wait forever.
#[derive(Clone)]
struct InFlightRequest {
    waiting: Arc<CoalescedWaiterMap>,
    key: CoalesceKey,
    tasks: BackgroundTasks,
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let (waiters, send) = loop {
            let waiters = take_waiters(&self.waiting, &self.key);
            if waiters.is_empty() {
                return;
            }
            // If there is none, all have been cancelled since they were taken.
            if let Some(send) = waiters.iter().rev().find_map(|(_, send)| send.upgrade()) {
                break (waiters, send);
            }
        };
        // The other callers' permits are released with what they would have sent.
        let waiters: Vec<_> = waiters.into_iter().map(|(waiter, _)| waiter).collect();
        let next = self.clone();
        self.tasks.spawn("coalesced", async move {
            let _in_flight = next;
            let response = send_shared(&*send, waiters.len()).await;
            waiters.into_iter().for_each(|waiter| drop(waiter.send(response.clone())));
        });
    }
}

/// Sends one upstream request on behalf of `waiters` callers.
async fn send_shared(request: &SendRequest, waiters: usize) -> CoalescedResponseResult {
    crate::serve::activity::metrics::coalesced(waiters);
    match timeout(RESPONSE_MAX, request()).await {
        Ok(response) => response.map_err(Arc::new),
        Err(_) => Err(timed_out()),
    }
}

fn timed_out() -> Arc<CoalesceError> {
    Arc::new(UpstreamError::Timeout(RESPONSE_MAX).into())
}

/// Removes and returns the callers that wait for the key. If there are none, the key is removed, so that the next
/// request starts over.
fn take_waiters(waiting: &CoalescedWaiterMap, key: &CoalesceKey) -> CoalescedWaiters {
    let mut open = CoalescedWaiters::new();
    waiting.remove_if_mut(key, |_, waiters| {
        waiters.retain(|(waiter, _)| !waiter.is_closed());
        open = std::mem::take(waiters);
        open.is_empty()
    });
    open
}

impl fmt::Debug for RequestCoalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestCoalescer").field("keys", &self.waiting.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::{Instant, sleep};

    use super::*;

    fn key() -> CoalesceKey {
        CoalesceKey {
            identity: RequestIdentity::ProxyItself,
            path_and_query: "/api/v1/pods".into(),
            accept: None,
            accept_encoding: None,
            user_agent: None,
        }
    }

    /// An upstream that answers each request with its number, once the semaphore lets it through.
    #[derive(Clone)]
    struct TestUpstream {
        coalesced: RequestCoalescer,
        tasks: BackgroundTasks,
        requests: Arc<AtomicUsize>,
        semaphore: Arc<Semaphore>,
    }

    impl TestUpstream {
        fn new() -> Self {
            let (coalesced, tasks) = (RequestCoalescer::default(), BackgroundTasks::new());
            Self { coalesced, tasks, requests: Arc::default(), semaphore: Arc::new(Semaphore::new(0)) }
        }

        fn request(&self) -> JoinHandle<Option<String>> {
            let upstream = self.clone();
            let Self { requests, semaphore, .. } = self.clone();
            let send = move || -> Pin<Box<dyn Future<Output = _> + Send>> {
                let (number, semaphore) = (requests.fetch_add(1, Ordering::SeqCst) + 1, semaphore.clone());
                Box::pin(async move {
                    semaphore.acquire().await.expect("never closed").forget();
                    let body = Bytes::from(number.to_string());
                    Ok(CoalescedResponse { status: StatusCode::OK, headers: HeaderMap::new(), body, permit: None })
                })
            };
            tokio::spawn(async move {
                let response =
                    upstream.coalesced.send(key(), &upstream.tasks, Arc::new(send)).await?.expect("answered");
                Some(String::from_utf8(response.body.to_vec()).expect("a number"))
            })
        }

        /// Returns the first request, which is in flight, and `later` waiting ones.
        async fn one_and(&self, later: usize) -> (JoinHandle<Option<String>>, Vec<JoinHandle<Option<String>>>) {
            let first = self.request();
            self.wait_until(|upstream| upstream.requests.load(Ordering::SeqCst) == 1).await;
            let waiting: Vec<_> = (0..later).map(|_| self.request()).collect();
            self.wait_until(|upstream| {
                upstream.coalesced.waiting.get(&key()).is_some_and(|waiters| waiters.len() == later)
            })
            .await;
            (first, waiting)
        }

        async fn wait_until(&self, done: impl Fn(&Self) -> bool) {
            while !done(self) {
                tokio::task::yield_now().await;
            }
        }

        async fn wait_empty(&self) {
            self.wait_until(|upstream| upstream.coalesced.waiting.is_empty()).await;
        }
    }

    async fn responses(requests: Vec<JoinHandle<Option<String>>>) -> Vec<Option<String>> {
        let mut responses = Vec::new();
        for request in requests {
            responses.push(request.await.expect("joined"));
        }
        responses
    }

    #[tokio::test]
    async fn review_in_flight_is_not_shared_with_later_requests() {
        let upstream = TestUpstream::new();
        let (first, later) = upstream.one_and(5).await;
        upstream.semaphore.add_permits(2);
        assert_eq!(responses(vec![first]).await, [Some("1".to_owned())]);
        assert_eq!(
            responses(later).await,
            vec![Some("2".to_owned()); 5],
            "all waiting requests share the second response"
        );
        assert_eq!(upstream.requests.load(Ordering::SeqCst), 2);
        upstream.wait_empty().await;
    }

    #[tokio::test]
    async fn waiters_get_new_review_when_first_caller_disconnects() {
        let upstream = TestUpstream::new();
        let (first, later) = upstream.one_and(3).await;
        first.abort();
        upstream.semaphore.add_permits(1);
        assert_eq!(responses(later).await, vec![Some("2".to_owned()); 3]);
        upstream.wait_empty().await;
    }

    #[tokio::test]
    async fn waiters_fail_when_tasks_are_stopped() {
        let upstream = TestUpstream::new();
        let (first, later) = upstream.one_and(2).await;
        upstream.tasks.join().await;
        first.abort();
        assert_eq!(responses(later).await, [None, None]);
        upstream.wait_empty().await;
    }

    fn answering(name: &'static str) -> Arc<SendRequest> {
        Arc::new(move || {
            Box::pin(async move {
                yield_now().await;
                let body = Bytes::from_static(name.as_bytes());
                Ok(CoalescedResponse { status: StatusCode::OK, headers: HeaderMap::new(), body, permit: None })
            })
        })
    }

    /// The request has the headers of the caller that arrived last, because the others may be gone by then.
    #[tokio::test]
    async fn last_waiting_caller_sends_next_request() {
        let (coalesced, tasks) = (RequestCoalescer::default(), BackgroundTasks::new());
        let send = async |name| {
            let response = coalesced.send(key(), &tasks, answering(name)).await?;
            Some(response.expect("answered").body)
        };
        let (first, second, third) = tokio::join!(send("first"), send("second"), send("third"));
        assert_eq!([first, second, third].map(Option::unwrap_or_default), ["first", "third", "third"]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_caller_waits_for_at_most_one_timeout() {
        let (coalesced, tasks) = (RequestCoalescer::default(), BackgroundTasks::new());
        let send = async |delay: Duration| {
            sleep(delay).await;
            let arrived = Instant::now();
            let never: Arc<SendRequest> = Arc::new(|| Box::pin(std::future::pending()));
            let response = coalesced.send(key(), &tasks, never).await.expect("not stopped");
            assert!(matches!(&*response.expect_err("a timeout"), CoalesceError::Failed(UpstreamError::Timeout(_))));
            arrived.elapsed()
        };
        let (first, second) = tokio::join!(send(Duration::ZERO), send(RESPONSE_MAX / 2));
        for took in [first, second] {
            assert_eq!(took.as_secs(), RESPONSE_MAX.as_secs());
        }
    }

    /// A client that gives up and asks again does not use up its permits.
    #[tokio::test]
    async fn cancelled_caller_keeps_nothing_while_another_request_is_in_flight() {
        let upstream = TestUpstream::new();
        let (_first, _) = upstream.one_and(0).await;
        let permit = Arc::new(());
        let waiting: Vec<_> = (0..300)
            .map(|_| {
                let (TestUpstream { coalesced, tasks, .. }, permit) = (upstream.clone(), permit.clone());
                let send: Arc<SendRequest> = Arc::new(move || {
                    let held = permit.clone();
                    Box::pin(async move {
                        std::future::pending::<()>().await;
                        drop(held);
                        Err(CoalesceError::TooLarge)
                    })
                });
                tokio::spawn(async move { coalesced.send(key(), &tasks, send).await.is_some() })
            })
            .collect();
        upstream.wait_until(|it| it.coalesced.waiting.get(&key()).is_some_and(|waiters| waiters.len() == 300)).await;
        for caller in waiting {
            caller.abort();
            assert!(caller.await.is_err());
        }
        assert_eq!(Arc::strong_count(&permit), 1);
    }

    #[tokio::test]
    async fn single_review_leaves_no_coalescing_state() {
        let upstream = TestUpstream::new();
        let (alone, _) = upstream.one_and(0).await;
        upstream.semaphore.add_permits(1);
        assert_eq!(responses(vec![alone]).await, [Some("1".to_owned())]);
        upstream.wait_empty().await;
        upstream.tasks.join().await;
        assert_eq!(upstream.requests.load(Ordering::SeqCst), 1);
    }
}
