//! Periodically compares the contents of a feed with upstream's storage, at one version (F8).
//!
//! A stream may lose an event and continue, because of a bug here or in an apiserver's cache. Nothing that follows
//! reveals it. So a part of each feed is compared, in rounds that are far apart and at random times. A round runs only
//! if the feed has readers and has changed since all of it was compared. Unless the numbers of objects differ, its cost
//! does not depend on the collection's size:
//!
//! - **Keys and versions** of up to [`KEYS_MAX`] objects, at exactly the version of our state. The next round continues
//!   after them.
//! - **The number of objects**, if that was not all, because a response includes the number of remaining objects
//!   (R-CONTINUE-5). If the numbers differ, the round goes on through all keys. The number is only a hint: alone it
//!   never counts as a difference.
//! - **A few objects in full**, if the server that responds produces the same bytes as the followed one.
//!
//! For a feed with a selector, the apiserver would read the whole collection to find its state at an earlier version.
//! So the current state is requested, which it finds by an index, and is compared with ours before and after it.
//!
//! Because the rest of a transaction may be on its way, a difference is checked twice more, seconds apart, each time
//! with the current cached state. If it persists, the reflector gives the history up: nothing of it is served, its
//! watches end with 410, and the feed relists. If the difference returns after that, the feed is given up at growing
//! intervals only: upstream's watches and lists then disagree with its reads at one version.

mod compare;

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::cache::{FeedSnapshot, FeedState, FeedStateId};
use crate::upstream::{UpstreamError, UpstreamRequestCause};
use crate::wire::{FeedEncoding, ObjectRevision};
use base::{Reloadable, random};
use kubeapi::{ContinueToken, ContinueVersion, ListPageSource, ObjectKey, ResourceVersion};

use super::ReflectConfig;
use super::feed_client::FeedTaskContext;
use super::history_check::RecurrenceBackoff;
use super::initial_state::{ObjectVersionPage, PastObject, exact, not_older_than};
use super::metrics::FeedRequestPurpose;
use super::reflector_findings::{ObjectDivergence, ReflectorFinding};
use compare::{ObjectDiscrepancy, conflicting_keys};

/// Compares one feed with upstream periodically.
pub(super) struct FeedSelfChecker {
    pub(super) upstream: FeedTaskContext,
    /// The configuration, with the mean interval between rounds, which varies by half. Without an interval, there are
    /// no rounds.
    pub(super) config: Reloadable<ReflectConfig>,
}

/// The results of earlier rounds of a self-check.
#[derive(Debug)]
struct SelfCheckState {
    /// The last state that was compared completely.
    proven: FeedStateId,
    sweep: Option<SelfCheckSweep>,
    /// The number of keys in one request.
    keys: usize,
    /// The number of consecutive rounds that upstream did not answer.
    unanswered: u32,
    /// The history and version of a state that upstream no longer has.
    expired_state: Option<(u64, ResourceVersion)>,
    /// Whether upstream's object count was found to be wrong.
    count_unreliable: bool,
    /// Limits how often the feed is given up because it differs from upstream. If it differs again soon, upstream's
    /// watches and lists or the comparison itself are wrong. Clients must not relist repeatedly because of that.
    discard_backoff: RecurrenceBackoff<3_600, 86_400>,
}

/// A walk over all keys, continued round by round.
#[derive(Debug, Clone)]
struct SelfCheckSweep {
    began: FeedStateId,
    /// The last key that was compared. The next round resumes after this key.
    after: Option<ObjectKey>,
}

/// The maximum number of keys that are compared in a round.
const KEYS_MAX: usize = 500;
/// The minimum number of keys in one request, whatever the size of their metadata.
const KEYS_MIN: usize = 8;
/// The maximum size of the response with the keys, in bytes.
const KEYS_BYTES_MAX: usize = 4 << 20;
/// The maximum number of objects that are compared in full in a round, and the maximum size of each.
const OBJECTS_MAX: usize = 3;
const OBJECT_BYTES_MAX: usize = 64 << 10;
/// The maximum number of differences that are checked again.
const SUSPECTS_MAX: usize = 4;
/// The number of times that a difference is checked again, and the base delay between two checks.
const RECHECKS: u32 = 2;
const RECHECK_DELAY: Duration = Duration::from_secs(5);
/// The time in which the feed's stream must reach the version of the state that upstream has listed. It is more than
/// two bookmark intervals of a minute.
const REACHED_MAX: Duration = Duration::from_secs(150);
/// The maximum number of doublings of the interval while upstream does not respond.
const DOUBLINGS_MAX: u32 = 6;

impl FeedSelfChecker {
    /// Compares for as long as the feed lives.
    pub(super) async fn run(&self) -> Infallible {
        if !self.is_cheap() {
            return pending().await;
        }
        let feed = &self.upstream.feed;
        self.upstream.wait_live().await;
        let mut progress = SelfCheckState::since(feed.reader.state_id());
        let (mut config, mut is_first) = (self.config.get(), true);
        loop {
            let due = async {
                let Some(every) = config.self_check else { return pending().await };
                // The first round of a fleet that starts together is spread over the whole interval.
                sleep(if is_first {
                    every.mul_f64(random::f64())
                } else {
                    every.mul_f64(0.5 + random::f64()) * 2_u32.pow(progress.unanswered.min(DOUBLINGS_MAX))
                })
                .await;
                every
            };
            tokio::select! {
                every = due => {
                    is_first = false;
                    let state_id = feed.reader.state_id();
                    let is_due = progress.proven != state_id || progress.sweep.is_some();
                    if is_due && feed.was_read_since(every.mul_f64(1.5)) && feed.reader.state() == FeedState::Live {
                        self.round(state_id, &mut progress).await;
                    }
                }
                () = self.config.replaced(&config) => (config, is_first) = (self.config.get(), true),
            }
        }
    }

    /// Whether the requests are cheap for upstream: without a watch cache, a selector makes it read all of its storage.
    fn is_cheap(&self) -> bool {
        !self.upstream.feed.spec.key.scope.is_selected() || self.upstream.feed.spec.key.gvr.has_watch_cache()
    }

    async fn round(&self, state_id: FeedStateId, progress: &mut SelfCheckState) {
        let state = self.upstream.feed.reader.snapshot();
        if progress.expired_state == Some((state_id.history, state.rv)) {
            return;
        }
        let before = (progress.proven, progress.sweep.clone());
        let outcome = match self.compare(state_id, &state, progress).await {
            Ok(Some(divergence)) => {
                progress.unanswered = 0;
                self.report(divergence, progress).await;
                "different"
            }
            Ok(None) if self.upstream.feed.reader.history() != state_id.history => "skipped",
            Ok(None) => {
                progress.unanswered = 0;
                "same"
            }
            Err(error) => {
                let feed = &self.upstream.feed.spec.key;
                tracing::debug!(%feed, %error, "cannot compare cached objects with upstream; self-check skipped");
                (progress.proven, progress.sweep) = before;
                progress.record_failure(&error, (state_id.history, state.rv));
                "skipped"
            }
        };
        self.upstream.count("kube_fanout_self_checks_total", "outcome", outcome);
    }

    /// Compares a part of the state. Returns an object that is certain to differ.
    async fn compare(
        &self,
        state_id: FeedStateId,
        state: &FeedSnapshot,
        progress: &mut SelfCheckState,
    ) -> Result<Option<ObjectDivergence>, UpstreamError> {
        let mut candidates = if self.upstream.feed.spec.key.scope.is_selected() {
            self.against_current(state_id, state, progress).await?
        } else {
            self.against_page(state_id, state, progress).await?
        };
        candidates.extend(self.against_objects(state).await?);
        for key in candidates.iter().take(SUSPECTS_MAX) {
            if let Some(divergence) = self.recheck(state_id, key).await? {
                return Ok(Some(divergence));
            }
        }
        Ok(None)
    }

    /// Compares the versions of the next keys of the cached state with upstream. Returns the keys that differ.
    async fn against_page(
        &self,
        state_id: FeedStateId,
        state: &FeedSnapshot,
        progress: &mut SelfCheckState,
    ) -> Result<Vec<ObjectKey>, UpstreamError> {
        let goes_on = progress.sweep.clone().filter(|sweep| sweep.began.history == state_id.history);
        let sweep = goes_on.unwrap_or(SelfCheckSweep { began: state_id, after: None });
        let page = self.page(state.rv, sweep.after.as_ref(), progress.keys).await?;
        let candidates = conflicting_keys(state, state, &page, sweep.after.as_ref());
        if !candidates.is_empty() {
            return Ok(candidates);
        }
        let is_all = sweep.after.is_none() && page.is_last;
        // The response to the first page includes the number of objects after it.
        let counted = if sweep.after.is_none() { page.count() } else { None };
        match page.end() {
            Some(last) => progress.sweep = Some(SelfCheckSweep { began: sweep.began, after: Some(last.clone()) }),
            None => (progress.proven, progress.sweep) = (sweep.began, None),
        }
        if is_all || progress.count_unreliable {
            Ok(Vec::new())
        } else {
            self.against_count(state, counted, progress).await
        }
    }

    /// Compares the number of objects. If it differs, returns the keys that differ.
    async fn against_count(
        &self,
        state: &FeedSnapshot,
        counted: Option<usize>,
        progress: &mut SelfCheckState,
    ) -> Result<Vec<ObjectKey>, UpstreamError> {
        let counted = match counted {
            None => self.page(state.rv, None, 1).await?.count(),
            counted => counted,
        };
        if counted.is_none_or(|counted| counted == state.len()) {
            return Ok(Vec::new());
        }
        let (mut after, pages_max) = (None, state.len() / progress.keys + 2);
        // An upstream that ignores `continue` would repeat its first page.
        for _ in 0..pages_max {
            let page = self.page(state.rv, after.as_ref(), progress.keys).await?;
            let candidates = conflicting_keys(state, state, &page, after.as_ref());
            after = page.end().cloned();
            if !candidates.is_empty() {
                return Ok(candidates);
            }
            if after.is_none() {
                break;
            }
        }
        let (feed, cached) = (&self.upstream.feed.spec.key, state.len());
        tracing::debug!(%feed, upstream = counted, cached, "object count differs from upstream, but no object does");
        progress.count_unreliable = true;
        Ok(Vec::new())
    }

    /// Compares all versions of the current state. Returns the keys that differ.
    async fn against_current(
        &self,
        state_id: FeedStateId,
        before: &FeedSnapshot,
        progress: &mut SelfCheckState,
    ) -> Result<Vec<ObjectKey>, UpstreamError> {
        let listed = self.versions(&not_older_than(before.rv)).await?;
        let reader = &self.upstream.feed.reader;
        timeout(REACHED_MAX, reader.reached(listed.at)).await.map_err(|_| UpstreamError::Timeout(REACHED_MAX))?;
        let after = reader.snapshot();
        if reader.history() != state_id.history {
            return Ok(Vec::new());
        }
        let candidates = conflicting_keys(before, &after, &listed, None);
        if candidates.is_empty() {
            progress.proven = state_id;
        }
        Ok(candidates)
    }

    /// Compares a few random objects in full. Returns the keys of those that differ.
    async fn against_objects(&self, state: &FeedSnapshot) -> Result<Vec<ObjectKey>, UpstreamError> {
        let mut candidates = Vec::new();
        if !self.has_comparable_bodies() || state.is_empty() {
            return Ok(candidates);
        }
        let first = random::usize(..state.len());
        for number in 0..OBJECTS_MAX.min(state.len()) {
            let Some(cached) = state.iter().nth((first + number) % state.len()) else { break };
            if cached.body().len() > OBJECT_BYTES_MAX {
                continue;
            }
            let then = self.object(&cached.key, state.rv).await?;
            if ObjectDiscrepancy::between(Some(cached), then.object.as_ref(), self.has_same_bytes(&then)).is_some() {
                candidates.push(cached.key.clone());
            }
        }
        Ok(candidates)
    }

    /// Whether bodies can be compared at all. Cells of a Table depend on when they were printed, and a conversion
    /// webhook may change its output for a custom resource at any time.
    fn has_comparable_bodies(&self) -> bool {
        let feed = &self.upstream.feed;
        feed.spec.key.encoding != FeedEncoding::Table && feed.spec.edition.is_none()
    }

    fn has_same_bytes(&self, then: &PastObject) -> bool {
        let is_present = self.upstream.feed.body_release.is_current();
        self.has_comparable_bodies() && is_present && self.upstream.body_encoders.writes_like_cache(&then.server)
    }

    /// Checks a differing object again. Returns the difference if it persists.
    async fn recheck(&self, state_id: FeedStateId, key: &ObjectKey) -> Result<Option<ObjectDivergence>, UpstreamError> {
        let reader = &self.upstream.feed.reader;
        let mut last: Option<(ObjectDivergence, Option<ObjectRevision>)> = None;
        for _ in 0..RECHECKS {
            sleep(self.recheck_delay().mul_f64(1.0 + random::f64())).await;
            let state = reader.snapshot();
            let then = self.object(key, state.rv).await?;
            if reader.history() != state_id.history || reader.state() != FeedState::Live {
                return Ok(None);
            }
            let (cached, alike) = (state.get(key), self.has_same_bytes(&then));
            let Some(difference) = ObjectDiscrepancy::between(cached, then.object.as_ref(), alike) else {
                return Ok(None);
            };
            // A server whose encoding of an object varies proves nothing about ours.
            let wavers = |(_, before): &(ObjectDivergence, Option<ObjectRevision>)| {
                before.as_ref().map(ObjectRevision::body) != then.object.as_ref().map(ObjectRevision::body)
            };
            if difference == ObjectDiscrepancy::Bytes && last.as_ref().is_some_and(wavers) {
                return Ok(None);
            }
            let divergence = ObjectDivergence {
                history: state_id.history,
                key: key.clone(),
                at: state.rv,
                cached: cached.map(|object| object.rv),
                upstream: then.object.as_ref().map(|object| object.rv),
                difference: difference.as_str(),
            };
            last = Some((divergence, then.object));
        }
        Ok(last.map(|(divergence, _)| divergence))
    }

    /// Returns the base delay between two checks of a difference: long compared with a transaction, and short compared
    /// with a round.
    fn recheck_delay(&self) -> Duration {
        self.config.get().self_check.map_or(RECHECK_DELAY, |every| RECHECK_DELAY.min(every / 10))
    }

    /// Makes the reflector discard the cached state, unless it did so recently and the difference returned.
    async fn report(&self, divergence: ObjectDivergence, progress: &mut SelfCheckState) {
        if progress.discard_backoff.earliest() > Some(Instant::now()) {
            let ObjectDivergence { key, difference, .. } = &divergence;
            tracing::warn!(
                feed = %self.upstream.feed.spec.key, object = %key, difference,
                "object still differs from upstream after a relist: the apiserver's lists and watches contradict its \
                 own storage"
            );
            return;
        }
        progress.discard_backoff.record(Instant::now());
        let _ = self.upstream.findings.send(ReflectorFinding::Divergence(divergence)).await;
    }

    /// Requests a page of versions of the keys after `after`, at version `rv`.
    async fn page(
        &self,
        rv: ResourceVersion,
        after: Option<&ObjectKey>,
        limit: usize,
    ) -> Result<ObjectVersionPage, UpstreamError> {
        let (feed, gvr) = (&self.upstream.feed, &self.upstream.feed.spec.key.gvr);
        let query = match after {
            None => format!("limit={limit}&{}", exact(rv)),
            Some(last) => {
                let in_namespace = feed.spec.key.scope.namespace().is_some();
                let token = ContinueToken::after(ContinueVersion::Version(rv), last, in_namespace);
                let pages = ListPageSource::of_release(feed.renderings.release(), gvr.has_watch_cache());
                format!("limit={limit}&continue={}", token.encode(pages))
            }
        };
        let page = self.versions(&query).await?;
        if page.at == rv { Ok(page) } else { Err(other_version(rv)) }
    }

    async fn versions(&self, query: &str) -> Result<ObjectVersionPage, UpstreamError> {
        self.upstream.count_request(FeedRequestPurpose::SelfCheck);
        self.upstream.versions(UpstreamRequestCause::SelfCheck, query, KEYS_BYTES_MAX).await
    }

    async fn object(&self, key: &ObjectKey, rv: ResourceVersion) -> Result<PastObject, UpstreamError> {
        self.upstream.count_request(FeedRequestPurpose::SelfCheck);
        let then = self.upstream.lister(FeedRequestPurpose::SelfCheck).object_then(key, rv).await?;
        if then.at == rv { Ok(then) } else { Err(other_version(rv)) }
    }
}

/// Returns the error for an upstream that cannot respond at one version.
fn other_version(rv: ResourceVersion) -> UpstreamError {
    UpstreamError::OtherDocument(format!("a list at resourceVersion {rv}"))
}

impl SelfCheckState {
    /// Returns the initial results, for a state that was just listed.
    fn since(proven: FeedStateId) -> Self {
        Self {
            proven,
            sweep: None,
            keys: KEYS_MAX,
            unanswered: 0,
            expired_state: None,
            count_unreliable: false,
            discard_backoff: RecurrenceBackoff::default(),
        }
    }

    /// Records the reason that nothing was compared, so that refused requests are not repeated.
    fn record_failure(&mut self, error: &UpstreamError, state: (u64, ResourceVersion)) {
        match error {
            UpstreamError::TooLarge(_) if self.keys > KEYS_MIN => self.keys = (self.keys / 2).max(KEYS_MIN),
            error if error.is_expired() => self.expired_state = Some(state),
            _ => self.unanswered += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubeapi::Status;

    fn refused(code: i32) -> UpstreamError {
        UpstreamError::Refused(Box::new(Status { code, ..Status::default() }))
    }

    #[test]
    fn failed_self_check_backs_off_and_oversized_pages_shrink() {
        let state_id = FeedStateId::default();
        let mut progress = SelfCheckState::since(state_id);
        for (error, expected) in [
            (refused(403), (1, KEYS_MAX, None)),
            (refused(504), (2, KEYS_MAX, None)),
            (UpstreamError::Timeout(REACHED_MAX), (3, KEYS_MAX, None)),
            (other_version(ResourceVersion(7)), (4, KEYS_MAX, None)),
            (UpstreamError::TooLarge(KEYS_BYTES_MAX), (4, KEYS_MAX / 2, None)),
            (refused(410), (4, KEYS_MAX / 2, Some((1, ResourceVersion(9))))),
        ] {
            progress.record_failure(&error, (1, ResourceVersion(9)));
            assert_eq!((progress.unanswered, progress.keys, progress.expired_state), expected, "{error}");
        }
        for _ in 0..10 {
            progress.record_failure(&UpstreamError::TooLarge(KEYS_BYTES_MAX), (1, ResourceVersion(9)));
        }
        assert_eq!(progress.keys, KEYS_MIN);
        assert!(progress.unanswered > 4, "what does not fit in the smallest parts is rare as well");
    }
}
