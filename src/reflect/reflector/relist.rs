//! Relists to close a gap, and gives up a history that upstream does not have.

use tokio::time::Instant;

use super::{Reflector, ReflectorState, ended};
use crate::cache::{FeedSnapshot, FeedState};
use crate::reflect::continuity::{HistoryComparison, HistoryContinuity, compare, places};
use crate::reflect::failure::{ReflectorStepError, over};
use crate::reflect::gap::RelistPlan;
use crate::reflect::gap_recovery::{self, GapRecoveryResult, PastObjectReader};
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
        error: UpstreamError,
    ) -> (ReflectorState, Option<ReflectorStepError>) {
        let window = match &error {
            UpstreamError::Refused(status) => {
                gap_recovery::window_start(&status.message).filter(|window| *window >= at)
            }
            _ => None,
        };
        // If the gap cannot be mended, the current state is as good as an older one.
        let window = window.filter(|_| self.may_be_mended());
        match self.relists.next(window, Instant::now()) {
            RelistPlan::AtOnce(window) => (ReflectorState::Expired { at, window }, None),
            RelistPlan::NotBefore(rested) => {
                self.rests_until = Some(rested);
                (ReflectorState::Listed { at }, None)
            }
            RelistPlan::CurrentAfterBackoff => (ReflectorState::Expired { at, window: None }, Some(error.into())),
        }
    }

    /// Whether a gap is young enough to be mended. A gap of unknown age may hide any number of changes.
    fn may_be_mended(&self) -> bool {
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
        let requested_at = Instant::now();
        let is_small = self.upstream.feed.reader.stats().object_bytes <= WHOLE_LIST_BYTES_MAX;
        let lister = self.upstream.lister(FeedRequestPurpose::Relist);
        let initial = match window.map(RequestedListVersion::Exact) {
            Some(exact) if is_small => lister.list_whole(exact).await.map_err(over)?,
            Some(exact) => lister.list(exact).await.map_err(over)?,
            None => lister.current_and_watch().await.map_err(ended)?,
        };
        let recovered = self.recover(at, &initial.snapshot, window.is_some()).await?;
        if matches!(recovered, GapRecoveryResult::OtherHistory) {
            self.relists.listed(Instant::now());
            self.give_up(at, "a list cannot follow from earlier events");
            return Ok(self.start_with(initial, requested_at));
        }
        let FeedInitialState { snapshot, stream, servers, .. } = initial;
        let until = snapshot.rv;
        self.upstream.written.will_list_from(&servers);
        let mended = self.mend(recovered, until)?;
        self.upstream.gap(if mended { "mended" } else { "new_history" });
        let (feed, took) = (&self.upstream.feed.spec.key, requested_at.elapsed());
        tracing::info!(%feed, from_rv = %at, rv = %until, history_kept = mended, ?took, "feed relisted");
        if mended {
            // The restarted server may run another release.
            let otherwise = self.upstream.feed.reader.snapshot().written_otherwise(&snapshot).await;
            self.writer.renew(otherwise).await;
        } else {
            self.upstream.feed.freshness.forget();
            self.writer.replace(snapshot);
            self.begin_history(requested_at, false);
        }
        self.upstream.written.listed(servers);
        self.continuity = HistoryContinuity::Certain;
        if window.is_none() {
            self.upstream.feed.freshness.prove(requested_at);
            self.complete.listed(requested_at);
        }
        self.note_progress();
        self.relists.listed(Instant::now());
        self.writer.set_state(FeedState::Live);
        Ok(self.after_list(until, stream))
    }

    /// Recovers the changes up to `list`, if they can be proven.
    async fn recover(
        &self,
        at: ResourceVersion,
        list: &FeedSnapshot,
        exact: bool,
    ) -> Result<GapRecoveryResult, ReflectorStepError> {
        let known = self.upstream.feed.reader.snapshot();
        if list.rv < at || compare(places(&known), known.rv, places(list), list.rv) == HistoryComparison::Other {
            return Ok(GapRecoveryResult::OtherHistory);
        }
        let differences = gap_recovery::differences(&known, list);
        // If the list has our own version, nothing can have changed, whatever the age of the gap.
        let may_be_mended = list.rv == at || self.may_be_mended();
        if !may_be_mended || (!exact && !differences.is_empty()) {
            return Ok(GapRecoveryResult::Unknown);
        }
        differences.iter().for_each(|_| self.upstream.count_request(FeedRequestPurpose::Past));
        let historian = PastObjectReader { lister: self.upstream.lister(FeedRequestPurpose::Past), from: known.rv };
        match historian.recover(&differences, list.rv).await {
            Ok(recovered) => Ok(recovered),
            // Upstream is unreachable or overloaded. The recovery is retried as long as the gap is young enough.
            Err(error) if error.may_pass() => Err(error.into()),
            // The history was compacted or cannot be read in this way, so the changes cannot be proven.
            Err(error) => {
                let feed = &self.upstream.feed.spec.key;
                tracing::info!(%feed, %error, "cannot recover the missed events; starting a new history");
                Ok(GapRecoveryResult::Unknown)
            }
        }
    }

    /// Applies the recovered changes up to `until`, and has readers send a bookmark, because upstream's next one may be
    /// a minute away. Returns whether the gap is mended.
    fn mend(&mut self, recovered: GapRecoveryResult, until: ResourceVersion) -> Result<bool, ReflectorStepError> {
        let GapRecoveryResult::Changes(changes) = recovered else { return Ok(false) };
        self.writer.apply(changes)?;
        self.writer.advance(until, true);
        Ok(true)
    }

    /// Discards the feed's history because upstream's storage went back: the cached changes have not happened. After
    /// this, no cached data is served. The watches end when the restored state replaces it (F3).
    pub(super) fn give_up(&mut self, at: ResourceVersion, evidence: &'static str) {
        if std::mem::replace(&mut self.rewinding, true) {
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
        feed.freshness.forget();
        feed.forget_served_before();
        self.rewinds.announce(Instant::now());
    }

    /// Discards the cached state because it differs from upstream's. After this, no cached data is served. The watches
    /// end when upstream's state replaces it (F8).
    pub(super) fn quarantine(&mut self, found: &ObjectDivergence) {
        let ObjectDivergence { key, at, ours, theirs, difference, .. } = found;
        let version = |rv: Option<ResourceVersion>| rv.map_or_else(|| "none".to_owned(), |rv| rv.to_string());
        let feed = &self.upstream.feed;
        tracing::error!(
            feed = %feed.spec.key, object = %key, cached_rv = version(*ours), upstream_rv = version(*theirs), rv = %at,
            difference,
            "cached object differs from upstream: an event was lost in the proxy or the apiserver; relisting; watches \
             end with 410"
        );
        self.upstream.gap("different");
        self.writer.set_state(FeedState::Syncing);
        feed.freshness.forget();
    }
}
