//! Opens and follows a stream, and acts on the findings of the tasks that run beside it.

use std::iter::once;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::{ACCEPTED_AFTER, HistoryStart, Reflector, ReflectorState};
use crate::cache::{FeedEndReason, FeedState, ObjectChange, ResumeMarker};
use crate::feeds::FeedTrafficCounts;
use crate::reflect::continuity::{HistoryContinuity, is_repeated};
use crate::reflect::failure::{ReflectorStepError, classify};
use crate::reflect::history_check::{HistoryCheckOutcome, HistoryCheckReason};
use crate::reflect::reflector_findings::{ObjectDivergence, ReflectorFinding};
use crate::reflect::stream::{StreamItem, UpstreamWatchStream, WatchStreamEnd};
use crate::reflect::transaction_buffer::TransactionBuffer;
use crate::upstream::{UpstreamError, UpstreamRequestCause};
use crate::wire::{BookmarkTemplate, WireError};
use kubeapi::ResourceVersion;

/// The time within which a stream that ends cleanly and without an item counts as refused.
const SHORT: Duration = Duration::from_secs(1);
/// The time in which a new stream must follow one that ended cleanly, before the feed is stale.
const RESUME_MAX: Duration = Duration::from_secs(1);
/// The time in which a reopened stream should repeat the feed's newest change. After that, upstream's position is
/// requested.
const REPEATED_MAX: Duration = Duration::from_secs(1);
const REPEATED_SPREAD: Duration = Duration::from_secs(2);
/// The window over which feeds spread their position requests if no change can be repeated. A whole fleet may have lost
/// its streams together.
const REOPENED_SPREAD: Duration = Duration::from_secs(10);
/// The window over which feeds with a sign of another history spread their checks.
const MISMATCH_SPREAD: Duration = Duration::from_secs(1);
const NOTICE_SPREAD: Duration = Duration::from_secs(3);
/// The delay after a history check without a response.
const AGAIN: Duration = Duration::from_secs(10);

impl Reflector {
    /// Opens a stream that continues from `at`. With a resume marker, the stream starts right before that change, which
    /// the feed already has.
    pub(super) async fn resume(
        &mut self,
        at: ResourceVersion,
    ) -> Result<(UpstreamWatchStream, Option<ResumeMarker>), (ReflectorStepError, Option<ResumeMarker>)> {
        let spec = &self.upstream.feed.spec;
        let resume_marker = self.continuity.resume_marker(&self.upstream.feed.reader);
        let from = resume_marker.as_ref().map_or(at, ResumeMarker::before);
        let path = spec.key.url(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={from}"));
        let mut opening = pin!(self.upstream.open(UpstreamRequestCause::Watch, &path, Some(at)));
        let opened = match timeout(RESUME_MAX, &mut opening).await {
            Ok(opened) => opened,
            Err(_) => {
                self.writer.set_state(FeedState::Stale { since: Instant::now() });
                opening.await
            }
        };
        match opened {
            Ok(stream) => Ok((stream, resume_marker)),
            Err(error) => Err((classify(error), resume_marker)),
        }
    }

    /// Records that upstream no longer has the change that the stream should repeat. It may still have the changes
    /// after the feed's version.
    pub(super) fn marker_expired(&mut self, at: ResourceVersion) -> ReflectorState {
        self.continuity = HistoryContinuity::Unknown;
        ReflectorState::Listed { at }
    }

    /// Follows the stream until it ends. Returns the state to continue from.
    pub(super) async fn watch(
        &mut self,
        mut at: ResourceVersion,
        mut stream: UpstreamWatchStream,
        mut resume_marker: Option<ResumeMarker>,
    ) -> (ReflectorState, Option<ReflectorStepError>) {
        let _open = self.upstream.watch_open();
        stream.index_deltas().await;
        let opened = Instant::now();
        // Checks that the reopened stream continues our history, unless its first event proves it.
        if resume_marker.is_some() {
            self.history_checks.schedule(HistoryCheckReason::Reopened, REPEATED_MAX, REPEATED_SPREAD);
        } else if self.continuity != HistoryContinuity::Certain {
            self.history_checks.schedule(HistoryCheckReason::Reopened, Duration::ZERO, REOPENED_SPREAD);
        }
        let mut transactions = TransactionBuffer::for_resource(&self.upstream.feed.spec.key.gvr);
        loop {
            let item = async {
                match &mut transactions {
                    Some(transactions) => transactions.next(&mut stream, &self.upstream.reader).await,
                    None => stream.next(&self.upstream.reader).await,
                }
            };
            let item = tokio::select! {
                biased;
                item = item => item,
                Some(finding) = self.findings.recv() => {
                    match self.process_finding(finding, at).await {
                        Ok(reached) => at = at.max(reached),
                        Err(next) => return next,
                    }
                    continue;
                }
                outcome = self.history_checks.next(&self.upstream) => {
                    if let (HistoryCheckOutcome::Reached, Some(_)) = (&outcome, &resume_marker) {
                        self.history_checks.schedule(HistoryCheckReason::Unconfirmed, Duration::ZERO, REOPENED_SPREAD);
                    } else if let Some(next) = self.process_check_outcome(at, outcome) {
                        return (next, None);
                    }
                    continue;
                }
                Ok(()) = self.rollback_notices.changed() => {
                    let found = *self.rollback_notices.borrow_and_update();
                    if found.is_some_and(|found| self.origin.is_affected(found)) {
                        self.history_checks.schedule(HistoryCheckReason::StorageRolledBack, Duration::ZERO, NOTICE_SPREAD);
                    }
                    continue;
                }
            };
            if let Some(resume_marker) = resume_marker.take()
                && let Some(next) = self.examine(&resume_marker, &item, at)
            {
                return (next, None);
            }
            match self.process_item(item, at, opened) {
                Ok(reached) => at = at.max(reached),
                Err(next) => return next,
            }
        }
    }

    /// Examines the first item of a stream that should begin with the feed's newest change. Returns the next state if
    /// the stream must be abandoned.
    pub(super) fn examine(
        &mut self,
        resume_marker: &ResumeMarker,
        first: &Result<StreamItem, WatchStreamEnd>,
        at: ResourceVersion,
    ) -> Option<ReflectorState> {
        match first {
            Ok(item) if is_repeated(resume_marker, item) => {
                self.confirm_history();
                self.record_progress();
                None
            }
            Ok(_) => {
                self.discard_rolled_back(at, "a watch omits the newest event");
                Some(ReflectorState::Empty)
            }
            Err(WatchStreamEnd::Failed(error)) if error.code() == Some(410) => Some(self.marker_expired(at)),
            // The stream has ended for another reason, which says nothing about upstream's history.
            Err(_) => None,
        }
    }

    /// Applies an item of the stream. Returns the version that it leads to, or the state after the end of the stream.
    pub(super) fn process_item(
        &mut self,
        item: Result<StreamItem, WatchStreamEnd>,
        at: ResourceVersion,
        opened: Instant,
    ) -> Result<ResourceVersion, (ReflectorState, Option<ReflectorStepError>)> {
        let listed = |failure: ReflectorStepError| (ReflectorState::Listed { at }, Some(failure));
        let counts = &self.upstream.feed.counts;
        let is_bookmark = matches!(item, Ok(StreamItem::Bookmark { .. }));
        let applied = match item {
            Ok(StreamItem::Change { change, more }) => {
                let (rv, received) = (change.object.rv, 1 + more.len());
                if rv > at {
                    self.event_ages.received(&self.upstream.feed.spec.key, &change);
                }
                let bytes = |change: &ObjectChange| change.frame.as_ref().map_or(0, Bytes::len);
                FeedTrafficCounts::add(&counts.events, received as u64);
                FeedTrafficCounts::add(&counts.bytes, once(&change).chain(&more).map(bytes).sum::<usize>() as u64);
                self.writer.apply(once(change).chain(more)).map(|fresh| {
                    FeedTrafficCounts::add(&counts.duplicates, (received - fresh) as u64);
                    (fresh > 0).then_some(rv)
                })
            }
            Ok(StreamItem::Bookmark { object, rv, .. }) => {
                FeedTrafficCounts::add(&counts.bookmarks, 1);
                if let Ok(template) = BookmarkTemplate::from_object(self.writer.envelope(), &object) {
                    self.writer.set_bookmark(template);
                }
                self.writer.advance(rv, true);
                Ok(Some(rv))
            }
            Err(WatchStreamEnd::Closed) => {
                self.relists.end_row();
                return Err((ReflectorState::Listed { at }, self.clean_end(at, opened)));
            }
            Err(WatchStreamEnd::Failed(error @ UpstreamError::Wire(WireError::OtherColumns))) => {
                return Err(listed(classify(error)));
            }
            // An ERROR event.
            Err(WatchStreamEnd::Failed(error @ UpstreamError::Refused(_))) => {
                // The apiserver reports at once that a version is too old, so a later 410 begins a new row.
                if opened.elapsed() >= ACCEPTED_AFTER {
                    self.relists.end_row();
                }
                return Err(if error.is_expired() { self.expired(at, error.into()) } else { listed(error.into()) });
            }
            Err(ended) => return Err(listed(ended.into())),
        };
        // The check detects the feed's own growth before the next event. If other feeds grow, the supervisor is
        // notified that this one exceeds its memory while it waits.
        if self.writer.is_over_budget() {
            return Err(listed(ReflectorStepError::FeedTerminated(FeedEndReason::OverBudget)));
        }
        match applied {
            Ok(Some(rv)) => {
                self.complete.advanced(is_bookmark, at, rv, Instant::now());
                self.relists.end_row();
                self.record_progress();
                self.set_state(FeedState::Live);
                Ok(rv)
            }
            // The feed had it already.
            Ok(None) => Ok(at),
            // The item contradicts the history, so the cached objects may be wrong and none are kept.
            Err(out_of_order) => {
                let feed = &self.upstream.feed.spec.key;
                tracing::error!(%feed, error = %out_of_order, "upstream sent events out of order; relisting");
                self.writer.set_state(FeedState::Syncing);
                Err((ReflectorState::Empty, Some(out_of_order.into())))
            }
        }
    }

    /// Processes a finding of the tasks beside the stream. Returns the version that the feed reaches by it, or the
    /// state after the end of the stream.
    pub(super) async fn process_finding(
        &mut self,
        finding: ReflectorFinding,
        at: ResourceVersion,
    ) -> Result<ResourceVersion, (ReflectorState, Option<ReflectorStepError>)> {
        let feed = &self.upstream.feed;
        match finding {
            ReflectorFinding::Proof { history, changes, until, announced } if history == feed.reader.history() => {
                // The stream's copies of the changes will be duplicates.
                self.writer.apply(changes).map_err(|error| (ReflectorState::Listed { at }, Some(error.into())))?;
                self.writer.advance(until, announced || feed.is_followed_by_proxies());
                return Ok(until);
            }
            ReflectorFinding::Divergence(found) if self.has_version(&found) => {
                self.discard_diverged(&found);
                return Err((ReflectorState::Empty, None));
            }
            // The finding is outdated: another history has begun, or the object has changed since.
            ReflectorFinding::Proof { .. } | ReflectorFinding::Divergence(_) => {}
            ReflectorFinding::Renewal { objects, count, done } => {
                if self.upstream.body_encoders.is_at(count) {
                    self.writer.renew(objects).await;
                    let _ = done.send(());
                }
            }
            ReflectorFinding::Backfill { past, done } => {
                // The receiver may be gone.
                let _ = done.send(self.writer.prepend(past));
            }
            ReflectorFinding::PreviousObjects { known, before, done } => {
                self.writer.set_previous_states(known, before);
                let _ = done.send(());
            }
            ReflectorFinding::HistoryMismatch { history } => {
                if history == feed.reader.history() {
                    self.history_checks.schedule(HistoryCheckReason::Suspected, Duration::ZERO, MISMATCH_SPREAD);
                }
            }
        }
        Ok(at)
    }

    /// Whether the feed still has the object in the version that was found to differ.
    fn has_version(&self, found: &ObjectDivergence) -> bool {
        let reader = &self.upstream.feed.reader;
        let cached = || reader.applied().and_then(|state| state.get(&found.key).map(|object| object.rv));
        found.history == reader.history() && cached() == found.cached
    }

    /// Acts on the outcome of a history check. Returns the new state if upstream has another history.
    fn process_check_outcome(&mut self, at: ResourceVersion, outcome: HistoryCheckOutcome) -> Option<ReflectorState> {
        match outcome {
            HistoryCheckOutcome::Reached | HistoryCheckOutcome::Continues => {
                self.confirm_history();
                None
            }
            HistoryCheckOutcome::Other(evidence, listed) => {
                self.discard_rolled_back(at, evidence);
                Some(self.begin(HistoryStart::Current, *listed))
            }
            HistoryCheckOutcome::Unproven(_) => None,
            HistoryCheckOutcome::Failed(reason) => {
                self.history_checks.schedule(reason, AGAIN, AGAIN);
                None
            }
        }
    }

    /// Records that upstream continues the feed's history.
    fn confirm_history(&mut self) {
        self.continuity = HistoryContinuity::Certain;
        self.history_checks.cancel_reopened();
    }

    /// Decides whether a clean end is a failure. Usually a stream that ended cleanly is resumed at once. But if it
    /// ended right after it began, without an item, upstream is refusing the watch (R-UPSTREAM-4, R-CLIENT-4).
    fn clean_end(&self, at: ResourceVersion, opened: Instant) -> Option<ReflectorStepError> {
        tracing::debug!(feed = %self.upstream.feed.spec.key, rv = %at, "upstream ended the watch");
        // Upstream ends the watches of a definition that was just replaced, because their events followed the old one.
        if self.upstream.feed.is_replacement_recent() {
            return Some(ReflectorStepError::FeedTerminated(FeedEndReason::Outdated));
        }
        let in_vain = self.last_sign < opened && opened.elapsed() < SHORT;
        in_vain.then(|| WatchStreamEnd::Closed.into())
    }
}
