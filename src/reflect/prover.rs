//! Proves that a feed is current, for readers that require the most recent state (ARCHITECTURE.md, "Mechanisms").
//!
//! One upstream request serves every reader that arrived before it was sent:
//!
//! 1. **Position.** Upstream responds to a streamed list of a nonexistent object with one bookmark: X, a version that
//!    no completed write exceeds. It costs upstream no objects.
//! 2. If the resource is busy, our own stream reaches X within milliseconds. If it is quiet, nothing may have changed
//!    at all, which has to be proven:
//! 3. **Equality**, if the collection is small or was not listed recently: its versions, listed once, equal those of
//!    the cache.
//! 4. **Catching up**, if the collection is large: a watch from our own version yields the missing changes, or a
//!    bookmark if there are none. It starts at our version, so it has the same history whichever server responds.
//!    Events have no bookmarks (R-EVENT-4): only equality proves them.
//!
//! At most one position request and one proof run at a time. All positions are kept until they are proven, not only the
//! last one. Requests for "not older than N", where N was seen elsewhere and is ahead of our stream,
//! are handled in `reach_versions`.
//!
//! If the collection is tiny, its versions are requested first; also if it is small, unless the stream reached the last
//! position in time. The response is a position, and for a quiet resource the proof as well: one request, where a
//! position would take two and the stream's head start.
//!
//! A bookmark of another stream is never a proof, because it may come from another server. Nothing is requested while
//! no reader waits.

mod reach_version;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::cache::FeedState;
use crate::upstream::{BODY_BYTES_MAX, UpstreamError, UpstreamRequestCause};
use base::{BackoffBounds, random};
use kubeapi::ResourceVersion;

use super::continuity::{HistoryComparison, compare, differences, object_versions};
use super::feed_client::FeedTaskContext;
use super::gap::ObservedResourceVersion;
use super::initial_state::{ObjectVersionPage, not_older_than};
use super::metrics::FeedRequestPurpose;
use super::reflector_findings::ReflectorFinding;
use super::stream::WatchStreamEnd;
use super::unproven_versions::UnprovenVersions;

/// Proves one feed current, for readers that require it.
pub(super) struct FreshnessProver {
    upstream: FeedTaskContext,
    last_equality: Mutex<Option<Instant>>,
    /// Whether the feed's stream reached the last position in time, as that of a busy resource does.
    is_busy: AtomicBool,
    unanswered: ConsecutiveFailureCount,
    unproven: ConsecutiveFailureCount,
    /// The failed requests to reach a version.
    unreached: ConsecutiveFailureCount,
    /// The failures of catch-up watches that did not advance the feed.
    failures: ConsecutiveFailureCount,
}

/// The time that the feed's stream has to reach a position before a proof is requested.
pub(super) const STREAM_HEAD_START: Duration = Duration::from_millis(20);
/// The maximum size of collections that are proven by equality whenever needed: it costs upstream less than a page of a
/// LIST.
const EQUALITY_OBJECTS_MAX: usize = 500;
/// The maximum size of collections whose versions are always requested instead of a position: it costs upstream little
/// more.
const AT_ONCE_OBJECTS_MAX: usize = 50;
/// The maximum size of larger collections that are proven by equality if the last time was long enough ago. This avoids
/// the second or two of a catch-up for a rare request.
const EQUALITY_OBJECTS_RARE_MAX: usize = 20_000;
/// The minimum time since the last equality proof, per object. Listing metadata costs upstream some 13 µs an object
/// (R-DERIVE-4), so this takes little more than one percent of one of its cores.
const COMPARISON_INTERVAL_PER_OBJECT: Duration = Duration::from_millis(1);
const CATCH_UP_SECONDS: u64 = 3;
/// The timeout of one request, after which it is retried.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a proof. A later proof is of no use to the waiting readers.
const PROOF_MAX: Duration = Duration::from_secs(10);
/// The delays after failed requests.
const RETRY: BackoffBounds = BackoffBounds { first: Duration::from_millis(200), longest: Duration::from_secs(5) };

/// Counts failures in a row, for the backoff. Many readers may need a proof, and many proxies may send requests to an
/// overloaded server.
#[derive(Debug, Default)]
struct ConsecutiveFailureCount(AtomicU32);

impl ConsecutiveFailureCount {
    fn succeeded(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Waits with jitter, twice as long as the last time.
    async fn backoff(&self) {
        let wait = RETRY.doubled(self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1));
        tokio::time::sleep(wait.mul_f64(0.5 + random::f64())).await;
    }
}

/// The result of a request that should prove that the cache is current.
enum FreshnessProofResult {
    Position(ObservedResourceVersion),
    /// The feed contains everything that was complete at this instant.
    Proven(Instant),
}

/// Completes when a request has finished, which is then dropped. Without a request it never completes.
async fn finished<T>(request: &mut Option<BoxFuture<'_, T>>) -> T {
    let Some(running) = request else { return std::future::pending().await };
    let response = running.await;
    *request = None;
    response
}

impl FreshnessProver {
    pub(super) fn new(upstream: FeedTaskContext) -> Self {
        Self {
            upstream,
            last_equality: Mutex::new(None),
            is_busy: AtomicBool::new(false),
            unanswered: ConsecutiveFailureCount::default(),
            unproven: ConsecutiveFailureCount::default(),
            unreached: ConsecutiveFailureCount::default(),
            failures: ConsecutiveFailureCount::default(),
        }
    }

    /// Proves the feed current and reaches requested versions, for as long as readers require it.
    pub(super) async fn run(&self) -> Infallible {
        tokio::join!(self.run_proofs(), self.reach_versions()).0
    }

    /// Proves the feed current for as long as readers require it, with at most one request and one proof at a time.
    async fn run_proofs(&self) -> Infallible {
        let mut awaited = self.upstream.feed.freshness.subscribe();
        let mut progress = self.upstream.feed.reader.follow_progress();
        let mut positions = UnprovenVersions::default();
        let mut request: Option<BoxFuture<'_, Option<FreshnessProofResult>>> = None;
        let mut proof: Option<BoxFuture<'_, Option<Instant>>> = None;
        let mut history = self.upstream.feed.reader.history();
        loop {
            // A response to a request about another history says nothing about this one.
            if std::mem::replace(&mut history, self.upstream.feed.reader.history()) != history {
                (positions, request, proof) = (UnprovenVersions::default(), None, None);
            }
            if let Some(requested_at) = positions.settle(
                self.upstream.feed.reader.progress().rv,
                self.upstream.feed.freshness.is_awaited(),
                Instant::now(),
            ) {
                self.is_busy.store(true, Ordering::Relaxed);
                self.upstream.feed.freshness.prove(requested_at);
            }
            let last = positions.last();
            if request.is_none() && self.needs_request(*awaited.borrow_and_update(), last) && !positions.is_full() {
                request = Some(self.request().boxed());
            }
            if let (Some(position), None) = (last, &proof) {
                proof = Some(self.prove(position).boxed());
            }
            let result = tokio::select! {
                biased;
                response = finished(&mut request) => response,
                proven = finished(&mut proof) => proven.map(FreshnessProofResult::Proven),
                () = progress.changed(), if last.is_some() => None,
                _ = awaited.changed() => None,
                () = self.upstream.wait_live(), if !self.is_live() => None,
            };
            match result.filter(|_| self.upstream.feed.reader.history() == history) {
                Some(FreshnessProofResult::Position(position)) => positions.extend(position),
                Some(FreshnessProofResult::Proven(requested_at)) => {
                    self.upstream.feed.freshness.prove(requested_at);
                    positions.proven(requested_at);
                }
                None => {}
            }
        }
    }

    /// Whether a reader waits that neither a proof nor the last request covers.
    fn needs_request(&self, awaited: Option<Instant>, last: Option<ObservedResourceVersion>) -> bool {
        awaited.is_some_and(|awaited| {
            self.upstream.feed.freshness.is_awaited()
                && !self.upstream.feed.freshness.covers(awaited)
                && last.is_none_or(|position| position.requested_at < awaited)
        })
    }

    fn is_live(&self) -> bool {
        self.upstream.feed.reader.state() == FeedState::Live
    }

    async fn request(&self) -> Option<FreshnessProofResult> {
        let reader = &self.upstream.feed.reader;
        let objects_max = if self.is_busy.load(Ordering::Relaxed) { AT_ONCE_OBJECTS_MAX } else { EQUALITY_OBJECTS_MAX };
        // A proxy's list shows the version of its feed, which may be below ours until it is asked to reach that.
        if reader.stats().objects <= objects_max && !self.is_behind_a_proxy() && self.is_live() {
            return self.at_once().await;
        }
        // Requests the version that upstream's storage has reached.
        let (requested_at, served) = (Instant::now(), reader.served_version());
        self.upstream.count_request(FeedRequestPurpose::Position);
        let lister = self.upstream.lister(FeedRequestPurpose::Position);
        let at = self.run_request(served, lister.storage_position(served), |at| *at).await?;
        Some(FreshnessProofResult::Position(ObservedResourceVersion { requested_at, at }))
    }

    /// Lists the current versions of a small collection. If the cache has the same versions, it is current.
    async fn at_once(&self) -> Option<FreshnessProofResult> {
        let (requested_at, served) = (Instant::now(), self.upstream.feed.reader.served_version());
        let listing = async { self.listed("").await.map_err(WatchStreamEnd::from) };
        let (listed, is_other) = self.run_request(served, listing, |(listed, _)| listed.at).await?;
        if is_other {
            self.unproven.backoff().await;
            return None;
        }
        // Otherwise the changes are still on their way.
        let position = ObservedResourceVersion { requested_at, at: listed.at };
        Some(if self.equals_cache(&listed) {
            FreshnessProofResult::Proven(requested_at)
        } else {
            FreshnessProofResult::Position(position)
        })
    }

    /// Runs a request and returns its result if the version is not below `served`, the version served before. A lower
    /// version means that an apiserver lags or the storage was restored. Then the result proves nothing, and the
    /// confirmed version is dropped.
    async fn run_request<T>(
        &self,
        served: ResourceVersion,
        request: impl Future<Output = Result<T, WatchStreamEnd>>,
        version: impl Fn(&T) -> ResourceVersion,
    ) -> Option<T> {
        let feed = &self.upstream.feed.spec.key;
        match timeout(REQUEST_TIMEOUT, request)
            .await
            .map(|answered| answered.map(|response| (version(&response), response)))
        {
            Ok(Ok((at, response))) if at >= served => {
                self.unanswered.succeeded();
                return Some(response);
            }
            Ok(Ok((at, _))) => {
                tracing::debug!(
                    %feed, upstream_rv = %at, rv = %served,
                    "upstream is behind the cache: restored storage, or a lagging server"
                );
                self.upstream.feed.reader.unconfirm();
                self.report_mismatch();
            }
            Ok(Err(error)) => tracing::debug!(%feed, %error, "cannot read upstream's current resourceVersion"),
            Err(_) => tracing::debug!(%feed, "reading upstream's current resourceVersion timed out"),
        }
        self.unanswered.backoff().await;
        None
    }

    /// Lists upstream's versions. Returns whether they cannot follow from the state that the cache had right before,
    /// and reports it.
    async fn listed(&self, query: &str) -> Result<(ObjectVersionPage, bool), UpstreamError> {
        self.upstream.count_request(FeedRequestPurpose::Equality);
        let before = self.upstream.feed.reader.snapshot();
        let page = self.upstream.versions(UpstreamRequestCause::Proof, query, BODY_BYTES_MAX).await?;
        let is_other = compare(&before, page.objects(), page.at) == HistoryComparison::Other;
        if is_other {
            self.report_mismatch();
        }
        Ok((page, is_other))
    }

    /// Proves that the cache is current as of the position's request. Returns the instant of that request.
    async fn prove(&self, position: ObservedResourceVersion) -> Option<Instant> {
        let reader = &self.upstream.feed.reader;
        if timeout(STREAM_HEAD_START, reader.reached(position.at)).await.is_ok() {
            self.is_busy.store(true, Ordering::Relaxed);
            return Some(position.requested_at);
        }
        self.is_busy.store(false, Ordering::Relaxed);
        timeout(PROOF_MAX, self.prove_by_requests(position)).await.unwrap_or_default()
    }

    async fn prove_by_requests(&self, position: ObservedResourceVersion) -> Option<Instant> {
        let proven = if self.can_compare_versions() {
            self.prove_by_comparison(position).await
        } else if self.is_live() && self.watches_have_bookmarks() {
            self.prove_by_catching_up(false).await.map(|()| None)
        } else {
            // Only a reflector that is watching can use the result of a catch-up.
            tokio::time::sleep(RETRY.first).await;
            Ok(None)
        };
        match proven {
            Ok(proven) => {
                self.unproven.succeeded();
                proven
            }
            Err(error) => {
                tracing::debug!(
                    feed = %self.upstream.feed.spec.key, %error,
                    "cannot prove that the cache is current; readers wait for a retry"
                );
                self.unproven.backoff().await;
                None
            }
        }
    }

    /// Whether upstream's watches send bookmarks. Without bookmarks, catching up proves nothing (R-EVENT-4).
    fn watches_have_bookmarks(&self) -> bool {
        self.upstream.feed.spec.key.gvr.has_watch_cache() || self.is_behind_a_proxy()
    }

    fn can_compare_versions(&self) -> bool {
        let objects = self.upstream.feed.reader.stats().objects;
        let interval = COMPARISON_INTERVAL_PER_OBJECT.saturating_mul(u32::try_from(objects).unwrap_or(u32::MAX));
        let mut last = self.last_equality.lock();
        // If only a list can prove it, the proof costs upstream less than the lists that would pass through.
        let only_way = !self.watches_have_bookmarks();
        let rested = only_way || last.is_none_or(|last| last.elapsed() >= interval);
        let affords = objects <= EQUALITY_OBJECTS_MAX || (objects <= EQUALITY_OBJECTS_RARE_MAX && rested);
        if affords {
            *last = Some(Instant::now());
        }
        affords
    }

    /// Lists the versions of a small collection. The cache is proven when it has the same versions, now or soon.
    ///
    /// A state at the position or later has everything that was complete at the position's request. Upstream serves it
    /// from its own cache, and a proxy serves it without a proof of its own.
    async fn prove_by_comparison(&self, position: ObservedResourceVersion) -> Result<Option<Instant>, WatchStreamEnd> {
        let (listed, is_other) = self.listed(&not_older_than(position.at)).await?;
        if is_other {
            self.unproven.backoff().await;
            return Ok(None);
        }
        let mut progress = self.upstream.feed.reader.follow_progress();
        let equal = async {
            loop {
                if self.equals_cache(&listed) {
                    return true;
                }
                let snapshot = self.upstream.feed.reader.snapshot();
                if snapshot.rv >= listed.at {
                    return !differences(object_versions(&snapshot), snapshot.rv, listed.objects(), listed.at)
                        .any(|(_, contradicts)| contradicts);
                }
                progress.changed().await;
            }
        };
        match timeout(Duration::from_secs(CATCH_UP_SECONDS), equal).await {
            Ok(true) => Ok(Some(position.requested_at)),
            Ok(false) => {
                self.report_mismatch();
                self.unproven.backoff().await;
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// Whether the feed has exactly the listed objects. If so, readers get the state at the version of the list,
    /// although the stream may not reach it for a minute (R-VERSION-1). A list from another proxy confirms nothing,
    /// because its version is that of its feed, which the stream delivers at once.
    fn equals_cache(&self, listed: &ObjectVersionPage) -> bool {
        let reader = &self.upstream.feed.reader;
        let state_id = reader.state_id();
        object_versions(&reader.snapshot()).eq(listed.objects())
            && (listed.is_from_memory || reader.confirm(state_id, listed.at))
    }

    /// Returns whether one list of versions proves that the feed holds upstream's state at `rv` or later. It is tried
    /// only for small collections.
    async fn is_at(&self, rv: ResourceVersion) -> Result<bool, WatchStreamEnd> {
        if self.is_behind_a_proxy() || !self.can_compare_versions() {
            return Ok(false);
        }
        let (listed, is_other) = self.listed(&not_older_than(rv)).await?;
        Ok(!is_other && self.equals_cache(&listed) && self.upstream.feed.reader.served_version() >= rv)
    }

    /// Reports to the reflector that an upstream response contradicts the cached state. The reflector decides; the
    /// prover backs off.
    fn report_mismatch(&self) {
        self.upstream.report_mismatch(self.upstream.feed.reader.history());
    }

    /// Watches from the feed's version until upstream shows up to which version the changes are complete. The reflector
    /// applies the changes and, if `announced`, sends its readers the new version.
    async fn prove_by_catching_up(&self, announced: bool) -> Result<(), WatchStreamEnd> {
        self.upstream.count_request(FeedRequestPurpose::CatchUp);
        let reader = &self.upstream.feed.reader;
        let (history, at) = (reader.history(), reader.progress().rv);
        let path = self.upstream.feed.spec.key.url(&format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={CATCH_UP_SECONDS}&resourceVersion={at}"
        ));
        let mut stream = self.upstream.open(UpstreamRequestCause::Proof, &path, None).await?;
        let (changes, until) = stream.until_bookmark(&self.upstream.reader).await?;
        // If the channel is full, the reflector is not watching and cannot use the proof.
        let proof = ReflectorFinding::Proof { history, changes, until, announced };
        if self.upstream.findings.try_send(proof).is_ok() {
            // Gives the reflector time to apply the proof; otherwise the same would be requested again.
            let _ = timeout(STREAM_HEAD_START, self.upstream.feed.reader.reached(until)).await;
        }
        Ok(())
    }
}
