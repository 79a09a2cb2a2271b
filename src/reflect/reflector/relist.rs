//! Relists to close a gap, and gives up a history that upstream does not have.

use tokio::time::Instant;

use super::{HistoryStart, Reflector, ReflectorState, ended};
use crate::cache::{FeedSnapshot, FeedState, ObjectChange};
use crate::reflect::continuity::{HistoryComparison, compare, object_versions};
use crate::reflect::failure::{ReflectorStepError, classify};
use crate::reflect::gap::RelistPlan;
use crate::reflect::gap_recovery::{self, GapRecoveryError, PastObjectReader};
use crate::reflect::initial_state::{FeedInitialState, RequestedListVersion};
use crate::reflect::metrics::FeedRequestPurpose;
use crate::reflect::reflector_findings::ObjectDivergence;
use crate::upstream::UpstreamError;
use kubeapi::ResourceVersion;

/// The maximum size of a feed, in bytes, that is relisted in one request whose response is read as a whole.
const WHOLE_LIST_BYTES_MAX: usize = 256 << 20;

impl Reflector {
    /// Returns the next state after a 410, and the failure if a backoff must come first.
    pub(super) fn expired(
        &mut self,
        at: ResourceVersion,
        failure: ReflectorStepError,
    ) -> (ReflectorState, Option<ReflectorStepError>) {
        let window = match failure.error() {
            Some(UpstreamError::Refused(status)) => {
                gap_recovery::window_start(&status.message).filter(|window| *window >= at)
            }
            _ => None,
        };
        // If the gap cannot be mended, the current state is as good as an older one. For a field selector it is better:
        // upstream has an index of the current state only, and would read the whole collection at a past version.
        let is_selected = self.upstream.feed.spec.key.scope.is_selected();
        let window = window.filter(|_| self.is_recoverable() && !is_selected);
        match self.relists.next(window, Instant::now()) {
            RelistPlan::AtOnce(window) => (ReflectorState::Expired { at, window }, None),
            RelistPlan::NotBefore(rested) => {
                self.rests_until = Some(rested);
                (ReflectorState::Listed { at }, None)
            }
            RelistPlan::CurrentAfterBackoff => (ReflectorState::Expired { at, window: None }, Some(failure)),
        }
    }

    /// Whether a gap is young enough to be mended. A gap of unknown age may hide any number of changes.
    fn is_recoverable(&self) -> bool {
        let proven = self.upstream.feed.freshness.proven();
        self.complete.age(proven, Instant::now()).is_some_and(|age| age <= gap_recovery::OUTAGE_MAX)
    }

    /// Closes the gap after `at`, which upstream no longer has, with one list. The history continues if the changes can
    /// be proven.
    pub(super) async fn relist(
        &mut self,
        at: ResourceVersion,
        window: Option<ResourceVersion>,
    ) -> Result<ReflectorState, ReflectorStepError> {
        self.writer.set_state(FeedState::Stale { since: self.last_sign });
        self.upstream.count_request(FeedRequestPurpose::Relist);
        let is_small = self.upstream.feed.reader.stats().object_bytes <= WHOLE_LIST_BYTES_MAX;
        let lister = self.upstream.lister(FeedRequestPurpose::Relist);
        let initial = match window.map(RequestedListVersion::Exact) {
            Some(exact) if is_small => lister.list_whole(exact).await.map_err(classify)?,
            Some(exact) => lister.list(exact).await.map_err(classify)?,
            None => {
                let listed = lister.current_and_watch().await.map_err(ended)?;
                lister.not_before(at, listed).await.map_err(ended)?
            }
        };
        let recovered = match self.recover(at, &initial.snapshot, window.is_some()).await {
            Ok(changes) => Some(changes),
            Err(GapRecoveryError::Unknown) => None,
            Err(GapRecoveryError::OtherHistory) => {
                self.relists.listed(Instant::now());
                self.discard_rolled_back(at, "a list cannot follow from earlier events");
                return Ok(self.begin(HistoryStart::Current, initial));
            }
            Err(GapRecoveryError::Upstream(error)) => return Err(error.into()),
        };
        let until = initial.snapshot.rv;
        self.upstream.body_encoders.will_list_from(&initial.servers);
        let mended = recovered.is_some();
        if let Some(changes) = recovered {
            self.writer.apply(changes)?;
            // Has readers send a bookmark, because upstream's next one may be a minute away.
            self.writer.advance(until, true);
        }
        self.upstream.gap(if mended { "mended" } else { "new_history" });
        let (feed, took) = (&self.upstream.feed.spec.key, initial.requested_at.elapsed());
        tracing::info!(%feed, from_rv = %at, rv = %until, history_kept = mended, ?took, "feed relisted");
        self.relists.listed(Instant::now());
        if !mended {
            let start = if window.is_none() { HistoryStart::Current } else { HistoryStart::AtWindow };
            return Ok(self.begin(start, initial));
        }
        let FeedInitialState { snapshot, requested_at, stream, servers, .. } = initial;
        // The restarted server may run another release.
        let otherwise = self.upstream.feed.reader.snapshot().with_different_bytes(&snapshot).await;
        self.writer.renew(otherwise).await;
        Ok(self.after_list(until, servers, stream, window.is_none().then_some(requested_at)))
    }

    /// Recovers the changes up to `list`, if they can be proven.
    async fn recover(
        &self,
        at: ResourceVersion,
        list: &FeedSnapshot,
        exact: bool,
    ) -> Result<Vec<ObjectChange>, GapRecoveryError> {
        let known = self.upstream.feed.reader.snapshot();
        if list.rv < at || compare(&known, object_versions(list), list.rv) == HistoryComparison::Other {
            return Err(GapRecoveryError::OtherHistory);
        }
        let differences = gap_recovery::differences(&known, list);
        // If the list has our own version, nothing can have changed, whatever the age of the gap.
        let is_recoverable = list.rv == at || self.is_recoverable();
        let is_readable = exact || self.upstream.feed.spec.key.scope.is_selected();
        if !is_recoverable || (!is_readable && !differences.is_empty()) {
            return Err(GapRecoveryError::Unknown);
        }
        differences.iter().for_each(|_| self.upstream.count_request(FeedRequestPurpose::PastObject));
        let historian =
            PastObjectReader { lister: self.upstream.lister(FeedRequestPurpose::PastObject), from: known.rv };
        match historian.recover(&differences, list.rv).await {
            // The history was compacted or cannot be read in this way, so the changes cannot be proven. If upstream is
            // only unreachable or overloaded, the recovery is retried as long as the gap is young enough.
            Err(GapRecoveryError::Upstream(error)) if !error.is_transient() => {
                let feed = &self.upstream.feed.spec.key;
                tracing::info!(%feed, %error, "cannot recover the missed events; starting a new history");
                Err(GapRecoveryError::Unknown)
            }
            recovered => recovered,
        }
    }

    /// Discards the feed's history because upstream's storage went back: the cached changes have not happened. After
    /// this, no cached data is served. The watches end when the restored state replaces it (F3).
    pub(super) fn discard_rolled_back(&mut self, at: ResourceVersion, evidence: &'static str) {
        if std::mem::replace(&mut self.is_rolled_back, true) {
            return;
        }
        let feed = &self.upstream.feed;
        tracing::error!(
            feed = %feed.spec.key, rv = %at, evidence,
            "upstream's storage was rolled back (restored from a backup?); watches end with 410; restart clients that \
             use the apiserver directly"
        );
        self.upstream.gap("rewound");
        self.writer.set_state(FeedState::Syncing);
        feed.freshness.clear();
        feed.forget_served_before();
        self.rollbacks.notify(Instant::now());
    }

    /// Discards the cached state because it differs from upstream's. After this, no cached data is served. The watches
    /// end when upstream's state replaces it (F8).
    pub(super) fn discard_diverged(&mut self, found: &ObjectDivergence) {
        let ObjectDivergence { key, at, cached, upstream, difference, .. } = found;
        let version = |rv: Option<ResourceVersion>| rv.map_or_else(|| "none".to_owned(), |rv| rv.to_string());
        let feed = &self.upstream.feed;
        tracing::error!(
            feed = %feed.spec.key, object = %key, cached_rv = version(*cached), upstream_rv = version(*upstream), rv = %at,
            difference,
            "cached object differs from upstream: an event was lost in the proxy or the apiserver; relisting; watches \
             end with 410"
        );
        self.upstream.gap("different");
        self.writer.set_state(FeedState::Syncing);
        feed.freshness.clear();
    }
}
