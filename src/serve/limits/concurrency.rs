use std::future::poll_fn;
use std::hash::Hash;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::ReviewRateLimitKey;
use crate::listing::LimitExceeded;
use base::KeyedSemaphores;
use kubeapi::{FlowDistinguisher, UrlQuery};

/// The concurrency limits. Requests beyond a limit are rejected immediately; nothing queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrencyConfig {
    /// The maximum number of watches served from the cache, in total and per user.
    pub watches_max: usize,
    pub watches_per_caller_max: usize,
    /// The maximum size in bytes of the responses in flight. A LIST is charged its length, up to 256 KiB. Large objects
    /// and shared responses from upstream are charged their whole length. One user may have half of it. The value also
    /// bounds the number of waiting requests: one per `WAITING_BYTES`, up to `WAITING_MAX`.
    pub lists_bytes_max: usize,
    /// The maximum number of short forwarded requests, in total and per user.
    pub forwards_max: usize,
    pub forwards_per_caller_max: usize,
    /// The maximum number of forwarded streams and tunnels, in total and per user.
    pub streams_max: usize,
    pub streams_per_caller_max: usize,
    /// The maximum number of reads that are forwarded because their feed is not ready.
    pub unready_forwards_max: usize,
    /// The maximum number of forwarded requests without a credential.
    pub anonymous_forwards_max: usize,
}

impl Default for ConcurrencyConfig {
    fn default() -> Self {
        Self {
            watches_max: 100_000,
            watches_per_caller_max: 10_000,
            lists_bytes_max: 1 << 30,
            forwards_max: 600,
            forwards_per_caller_max: 200,
            streams_max: 2_000,
            streams_per_caller_max: 500,
            unready_forwards_max: 16,
            anonymous_forwards_max: 32,
        }
    }
}

/// The limits on concurrent requests and watches, and their current counts.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimits {
    watches: PermitPool,
    /// The permits for list responses; one permit per KiB.
    lists: PermitPool,
    pub(crate) forwards: PermitPool,
    pub(crate) streams: PermitPool,
    /// Filtered Tables, which read many pages with the proxy's credentials. Each page also takes a permit of `forwards`.
    pub(crate) filtered_tables: PermitPool,
    pub(crate) unready: PermitPool,
    pub(crate) anonymous: PermitPool,
    /// Requests that wait before they get a permit of their own.
    pub(crate) waiting: PermitPool,
    /// Requests whose token is reviewed and was not accepted before, by client address.
    unauthenticated: PermitPool<IpAddr>,
}

/// A pool of permits that limits each user (or client address) to a share, regardless of how many credentials the user
/// has.
///
/// The semaphores only count. The limits can change while permits are held, and held permits stay valid.
#[derive(Debug)]
pub(crate) struct PermitPool<K = FlowDistinguisher> {
    name: &'static str,
    all: Arc<Semaphore>,
    permits_max: AtomicUsize,
    each: KeyedSemaphores<K>,
    each_max: AtomicUsize,
    small_use: usize,
    /// The bytes of a query for which a waiting request takes one more permit.
    query_bytes: usize,
}

/// One or more permits, which are released on drop.
#[derive(Debug)]
pub(crate) struct ConcurrencyPermit {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

/// Permits, or the limit that has none left.
type PermitResult = Result<ConcurrencyPermit, LimitExceeded>;

/// The maximum charge for a LIST in bytes: one chunk that HTTP/2 has taken but not sent, and the next one.
const LIST_BYTES_MAX: usize = 256 << 10;
/// The fraction of permits that is reserved for users that hold only a few: one in `RESERVED_FRACTION`, the last ones.
const RESERVED_FRACTION: usize = 8;
/// The number of permits that counts as small use, in pools where each request takes one.
const SMALL_USE: usize = 4;
/// The maximum number of filtered Tables, in total and per user.
const FILTERED_TABLES_MAX: usize = 8;
const FILTERED_TABLES_PER_CALLER_MAX: usize = 2;
/// The memory that a waiting request is charged, in bytes: about 5 KB, and up to four times its head.
const WAITING_BYTES: usize = 16 << 10;
/// The bytes of a query for which a waiting request takes one more permit. A parsed selector with short terms takes
/// about 64 times its text.
const WAITING_QUERY_BYTES: usize = 256;
/// The same for a request whose caller is unknown. Its selectors are not parsed, and its query takes at most 17 times
/// its text.
const UNAUTHENTICATED_QUERY_BYTES: usize = 1 << 10;
/// The maximum number of waiting requests; one user may have half of them. A read of a future version waits for three
/// seconds and costs its sender only about fifty bytes.
const WAITING_MAX: usize = 8_192;
/// The selector memory that a watch's first permit covers. Each further `WATCH_SELECTOR_BYTES` take another permit.
const WATCH_SELECTOR_BYTES: usize = 2 << 10;

impl ConcurrencyLimits {
    pub(crate) fn new(limits: &ConcurrencyConfig) -> Self {
        let concurrency = Self {
            watches: PermitPool::new("watches", SMALL_USE),
            lists: PermitPool::new("lists", LIST_BYTES_MAX >> 10),
            forwards: PermitPool::new("requests", SMALL_USE),
            streams: PermitPool::new("streams", SMALL_USE),
            filtered_tables: PermitPool::new("filtered Tables", SMALL_USE),
            unready: PermitPool::new("reads of resources that are not synced", SMALL_USE),
            anonymous: PermitPool::new("requests without a credential", SMALL_USE),
            waiting: PermitPool::new("waiting requests", SMALL_USE),
            unauthenticated: PermitPool {
                query_bytes: UNAUTHENTICATED_QUERY_BYTES,
                ..PermitPool::new("unauthenticated requests", SMALL_USE)
            },
        };
        concurrency.filtered_tables.resize(FILTERED_TABLES_MAX, FILTERED_TABLES_PER_CALLER_MAX);
        concurrency.tune(limits);
        concurrency
    }

    /// Applies new limits to later requests. Requests in flight continue even if they exceed the new limits.
    pub(crate) fn tune(&self, limits: &ConcurrencyConfig) {
        let (unready, anonymous) = (limits.unready_forwards_max, limits.anonymous_forwards_max);
        self.watches.resize(limits.watches_max, limits.watches_per_caller_max);
        self.lists.resize(limits.lists_bytes_max >> 10, limits.lists_bytes_max >> 11);
        self.forwards.resize(limits.forwards_max, limits.forwards_per_caller_max);
        self.streams.resize(limits.streams_max, limits.streams_per_caller_max);
        self.unready.resize(unready, unready.div_ceil(2));
        self.anonymous.resize(anonymous, anonymous);
        let waiting = (limits.lists_bytes_max / WAITING_BYTES).clamp(1, WAITING_MAX);
        self.waiting.resize(waiting, waiting.div_ceil(2));
        self.unauthenticated.resize(waiting, waiting.div_ceil(2));
    }

    /// Takes permits for a request that waits for a token review, by the party to which the review is charged. So
    /// requests with guessed tokens take none from callers whose token was accepted before.
    pub(crate) fn waiting_for_review(&self, party: &ReviewRateLimitKey, query: &UrlQuery) -> PermitResult {
        match party {
            ReviewRateLimitKey::User(flow) => self.waiting.acquire_waiting(Some(flow), query),
            ReviewRateLimitKey::Address(address) => self.unauthenticated.acquire_waiting(Some(address), query),
        }
    }

    /// Takes a permit for a watch, and more for a long selector. `flow` is the user that is charged; `None` if all
    /// callers share one identity.
    pub(crate) fn watch(&self, flow: Option<&FlowDistinguisher>, selector_bytes: usize) -> PermitResult {
        self.watches.acquire_many(flow, 1 + selector_bytes / WATCH_SELECTOR_BYTES)
    }

    /// Takes permits for a LIST of `bytes` bytes.
    pub(crate) fn list(&self, flow: Option<&FlowDistinguisher>, bytes: usize) -> PermitResult {
        self.lists.acquire_many(flow, bytes.min(LIST_BYTES_MAX).div_ceil(1 << 10))
    }

    /// Takes permits from the LIST pool for a complete response. It is charged its whole length, because it may be the
    /// last to keep its bytes alive.
    pub(crate) fn buffered(&self, flow: Option<&FlowDistinguisher>, bytes: usize) -> PermitResult {
        self.lists.acquire_many(flow, bytes.div_ceil(1 << 10)).map_err(|_| LimitExceeded("large responses"))
    }
}

impl<K: Eq + Hash + Clone> PermitPool<K> {
    /// Creates a pool without permits. Any user can take up to `small_use` permits while any are left.
    pub(crate) fn new(name: &'static str, small_use: usize) -> Self {
        let all = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let each = KeyedSemaphores::new(Semaphore::MAX_PERMITS);
        Self {
            name,
            all,
            permits_max: AtomicUsize::new(0),
            each,
            each_max: AtomicUsize::new(0),
            small_use,
            query_bytes: WAITING_QUERY_BYTES,
        }
    }

    pub(crate) fn resize(&self, permits: usize, each: usize) {
        self.permits_max.store(permits, Ordering::Relaxed);
        self.each_max.store(each, Ordering::Relaxed);
    }

    pub(crate) fn acquire(&self, flow: Option<&K>) -> PermitResult {
        self.acquire_many(flow, 1)
    }

    /// Awaits what a request needs before it gets a permit of its own: an authorization decision, a feed, a version, a
    /// proof. A request holds permits of this pool while it waits, more with a long query. If the future is ready
    /// immediately, no permit is taken.
    ///
    /// # Errors
    ///
    /// All permits are taken. The future is not awaited then.
    pub(crate) async fn while_waiting<T>(
        &self,
        flow: Option<&K>,
        query: &UrlQuery,
        mut needed: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, LimitExceeded> {
        let first = poll_fn(|cx| Poll::Ready(needed.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = first {
            return Ok(done);
        }
        let _permit = self.acquire_waiting(flow, query)?;
        Ok(needed.await)
    }

    /// Takes a permit for a waiting request, and more for a long query.
    fn acquire_waiting(&self, flow: Option<&K>, query: &UrlQuery) -> PermitResult {
        self.acquire_many(flow, 1 + query.raw().len() / self.query_bytes)
    }

    /// Takes permits of the pool. It takes them before it checks the limits, so that concurrent callers never exceed them.
    pub(crate) fn acquire_many(&self, flow: Option<&K>, permits: usize) -> PermitResult {
        let (permits_max, each_max) = (self.permits_max.load(Ordering::Relaxed), self.each_max.load(Ordering::Relaxed));
        let count = u32::try_from(permits).unwrap_or(u32::MAX);
        let shed = |_| LimitExceeded(self.name);
        let own = match flow {
            Some(flow) => {
                let share = self.each.get(flow);
                let own = share.clone().try_acquire_many_owned(count).map_err(shed)?;
                Some((own, permits_in_use(&share)))
            }
            None => None,
        };
        let all = self.all.clone().try_acquire_many_owned(count).map_err(shed)?;
        let (in_use, all_in_use) = (own.as_ref().map_or(0, |(_, in_use)| *in_use), permits_in_use(&self.all));
        // The reserve keeps permits for others when a handful of users fill their shares.
        let reserve = if in_use > self.small_use { permits_max / RESERVED_FRACTION } else { 0 };
        if in_use > each_max || all_in_use.saturating_add(reserve) > permits_max {
            return Err(LimitExceeded(self.name));
        }
        Ok(ConcurrencyPermit { _all: all, _own: own.map(|(own, _)| own) })
    }
}

/// Returns how many permits of a semaphore that started with [`Semaphore::MAX_PERMITS`] are held.
fn permits_in_use(semaphore: &Semaphore) -> usize {
    Semaphore::MAX_PERMITS - semaphore.available_permits()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;
    use kubeapi::User;

    fn flow(name: &str) -> FlowDistinguisher {
        FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() })
    }

    fn pool(permits: usize, each: usize) -> PermitPool {
        let pool = PermitPool::new("permits", SMALL_USE);
        pool.resize(permits, each);
        pool
    }

    /// Held permits stay valid and count toward the new limits.
    #[test]
    fn limits_can_be_resized_while_permits_are_in_use() {
        let (pool, ada) = (pool(100, 10), flow("ada"));
        let mut in_use: Vec<_> = std::iter::from_fn(|| pool.acquire(Some(&ada)).ok()).collect();
        pool.resize(100, 12);
        in_use.extend(std::iter::from_fn(|| pool.acquire(Some(&ada)).ok()));
        assert_eq!(in_use.len(), 12);
        pool.resize(4, 2);
        assert_eq!(pool.acquire(None).err(), Some(LimitExceeded("permits")));
        in_use.truncate(3);
        assert!(pool.acquire(None).is_ok() && pool.acquire(Some(&ada)).is_err(), "one is left, and not for her");
    }

    /// I2: one user leaves room for the others.
    #[test]
    fn user_is_limited_to_its_share_of_permits() {
        let (ada, bob) = (flow("ada"), flow("bob"));
        let pool = pool(5, 3);
        let adas: Vec<_> = std::iter::from_fn(|| pool.acquire(Some(&ada)).ok()).collect();
        assert_eq!(adas.len(), 3);
        let bobs: Vec<_> = std::iter::from_fn(|| pool.acquire(Some(&bob)).ok()).collect();
        assert_eq!((bobs.len(), pool.acquire(None).err()), (2, Some(LimitExceeded("permits"))));
        drop(adas);
        assert!(pool.acquire(Some(&ada)).is_ok() && pool.acquire(None).is_ok());
    }

    /// Other users find permits even if a handful of users hold as many as they can.
    #[test]
    fn users_at_their_share_leave_reserve_for_others() {
        let pool = pool(600, 200);
        let greedy: Vec<_> = ["a", "b", "c", "d", "e"].map(flow).into();
        let in_use: Vec<_> = greedy.iter().flat_map(|of| std::iter::from_fn(|| pool.acquire(Some(of)).ok())).collect();
        assert!(in_use.len() <= 600 - 600 / RESERVED_FRACTION + greedy.len() * SMALL_USE, "{}", in_use.len());
        let mut others = Vec::new();
        for name in 0..10 {
            let other = flow(&name.to_string());
            others.extend((0..SMALL_USE).map(|_| pool.acquire(Some(&other)).expect("a few permits are left")));
            assert_eq!(pool.acquire(Some(&other)).err(), Some(LimitExceeded("permits")), "and for no more");
        }
        drop(in_use);
        let other = flow("0");
        assert!((0..100).all(|_| pool.acquire(Some(&other)).map(|permit| others.push(permit)).is_ok()));
    }

    /// Ten thousand watches of one caller hold no more memory with long selectors than with none.
    #[test]
    fn watch_is_charged_for_selector_size() {
        let concurrency = ConcurrencyLimits::new(&ConcurrencyConfig {
            watches_max: 100,
            watches_per_caller_max: 50,
            ..ConcurrencyConfig::default()
        });
        let ada = flow("ada");
        let ada = Some(&ada);
        let open = |flow, bytes| std::iter::from_fn(|| concurrency.watch(flow, bytes).ok()).collect::<Vec<_>>();
        let plain = open(ada, WATCH_SELECTOR_BYTES - 1);
        assert_eq!(plain.len(), 50, "an ordinary selector needs no further permit");
        drop(plain);
        let expensive = open(ada, 16 << 10);
        assert_eq!(expensive.len(), 50 / 9);
        assert_eq!(concurrency.watch(ada, 16 << 10).err(), Some(LimitExceeded("watches")));
        assert_eq!(open(None, 0).len(), 100 - 5 * 9, "the others have the rest");
        drop(expensive);
        assert_eq!(open(ada, 0).len(), 50);
    }

    /// A user's waiting requests are limited before they wait; a ready request is never rejected.
    #[test]
    fn waiting_request_takes_permit_and_ready_request_takes_none() {
        let limits = ConcurrencyConfig { lists_bytes_max: 16 * WAITING_BYTES, ..ConcurrencyConfig::default() };
        let (concurrency, ada, bob) = (ConcurrencyLimits::new(&limits), flow("ada"), flow("bob"));
        let concurrency = &concurrency;
        let (short, long) = (&UrlQuery::parse("a=b"), &UrlQuery::parse(&"a".repeat(7 * WAITING_QUERY_BYTES)));
        let wait_with = |flow, query| {
            Box::pin(async move { concurrency.waiting.while_waiting(Some(flow), query, pin!(pending::<()>())).await })
        };
        let wait = |flow| wait_with(flow, short);
        let mut with_long_query = wait_with(&ada, long);
        assert!(with_long_query.as_mut().now_or_never().is_none() && wait(&ada).now_or_never().is_some());
        drop(with_long_query);
        let mut waiting: Vec<_> = (0..8).map(|_| wait(&ada)).collect();
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_none()));
        assert_eq!(
            wait(&ada).now_or_never(),
            Some(Err(LimitExceeded("waiting requests"))),
            "half of them are one user's"
        );
        let there = Box::pin(async { concurrency.waiting.while_waiting(Some(&ada), long, pin!(ready(1))).await });
        assert_eq!(there.now_or_never(), Some(Ok(1)));
        let mut bobs: Vec<_> = (0..SMALL_USE).map(|_| wait(&bob)).collect();
        assert!(bobs.iter_mut().all(|wait| wait.now_or_never().is_none()));
        drop(waiting.pop());
        assert!(wait(&ada).now_or_never().is_none(), "a permit that was released");
    }

    /// Unknown tokens from one address take permits neither from other addresses nor from tokens that are known.
    #[test]
    fn requests_with_unknown_tokens_are_limited_by_address() {
        let concurrency = ConcurrencyLimits::new(&ConcurrencyConfig::default());
        let (short, long) = (&UrlQuery::parse("a=b"), &UrlQuery::parse(&"a".repeat(60 << 10)));
        let address = |last| ReviewRateLimitKey::Address([10, 0, 0, last].into());
        let waiting = |party: &ReviewRateLimitKey, query| concurrency.waiting_for_review(party, query);
        let strangers: Vec<_> = std::iter::from_fn(|| waiting(&address(1), long).ok()).collect();
        assert_eq!(strangers.len(), WAITING_MAX / 2 / 61, "half of them are one address's");
        let others: Vec<_> =
            (2..9).flat_map(|at| std::iter::from_fn(move || waiting(&address(at), long).ok())).collect();
        assert!(waiting(&address(9), long).is_err() && waiting(&address(9), short).is_ok(), "some are left for few");
        let ada = ReviewRateLimitKey::User(flow("ada"));
        assert!(waiting(&ada, long).is_ok());
        drop((strangers, others));
    }

    /// A list of any length is charged only for the bytes in flight.
    #[test]
    fn lists_are_charged_only_for_bytes_in_flight() {
        let concurrency =
            ConcurrencyLimits::new(&ConcurrencyConfig { lists_bytes_max: 2 << 20, ..ConcurrencyConfig::default() });
        let ada = flow("ada");
        let large: Vec<_> = std::iter::from_fn(|| concurrency.list(Some(&ada), usize::MAX).ok()).collect();
        assert_eq!(large.len(), 4, "half of it is one user's share");
        assert_eq!(concurrency.list(Some(&ada), 1).err(), Some(LimitExceeded("lists")));
        let small: Vec<_> = std::iter::from_fn(|| concurrency.list(None, 100).ok()).collect();
        assert_eq!(small.len(), 1 << 10);
        drop(large);
        assert!(concurrency.list(Some(&ada), 1 << 20).is_ok());
        assert!(concurrency.list(Some(&ada), 0).is_ok(), "an empty list holds nothing");
    }

    /// A permit covers all bytes that a complete response keeps alive.
    #[test]
    fn complete_response_is_charged_its_length() {
        let concurrency =
            ConcurrencyLimits::new(&ConcurrencyConfig { lists_bytes_max: 8 << 20, ..ConcurrencyConfig::default() });
        let (ada, bob) = (flow("ada"), flow("bob"));
        let in_use: Vec<_> = std::iter::from_fn(|| concurrency.buffered(Some(&ada), 1 << 20).ok()).collect();
        assert_eq!(in_use.len(), 4, "half of it is one user's share");
        assert_eq!(concurrency.list(Some(&ada), 1).err(), Some(LimitExceeded("lists")), "it is the share of its lists");
        assert!(concurrency.buffered(Some(&bob), 1 << 20).is_ok());
        drop(in_use);
        assert!(concurrency.buffered(Some(&ada), 4 << 20).is_ok());
    }
}
