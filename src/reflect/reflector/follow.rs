//! Opens and follows a stream, and acts on the findings of the tasks that run beside it.

use std::time::Duration;

use tokio::time::Instant;

use super::{LIVED, Reflector, State};
use crate::cache::{FeedEnd, FeedState, ResumeMarker};
use crate::reflect::continuity::{Continuity, ResumeEvidence, testimony, testimony_of_changes};
use crate::reflect::failure::{StepFailure, over};
use crate::reflect::history_check::{HistoryCheckOutcome, HistoryCheckReason};
use crate::reflect::reflector_findings::{
    BackfillFinding, Divergence, PreviousObjects, Proof, ReflectorFinding, Renewal,
};
use crate::reflect::session::{self, BrokenStream, StreamStep};
use crate::reflect::stream::{StreamEnd, WatchStream};
use crate::reflect::transactions::{Received, Transactions};
use crate::upstream::{Cause, Error};
use crate::wire::{WatchItem, WireError};
use kubeapi::ResourceVersion;

/// The time within which a stream that ends cleanly and without an item counts as refused.
const SHORT: Duration = Duration::from_secs(1);
/// The time in which a reopened stream should repeat the feed's newest change. After that, upstream's position is
/// requested.
const TOLD_AGAIN_MAX: Duration = Duration::from_secs(1);
const TOLD_AGAIN_SPREAD: Duration = Duration::from_secs(2);
/// The window over which feeds spread their position requests if no change can be repeated. A whole fleet may have lost
/// its streams together.
const REOPENED_SPREAD: Duration = Duration::from_secs(10);
/// The window over which feeds with a sign of another history spread their checks.
const DOUBT_SPREAD: Duration = Duration::from_secs(1);
const NOTICE_SPREAD: Duration = Duration::from_secs(3);
/// The delay after a history check without a response.
const AGAIN: Duration = Duration::from_secs(10);

impl Reflector {
    /// Opens a stream that continues from `at`. With a resume marker, the stream starts right before that change, which
    /// the feed already has.
    pub(super) async fn resume(
        &self,
        at: ResourceVersion,
    ) -> Result<(WatchStream, Option<ResumeMarker>), (StepFailure, Option<ResumeMarker>)> {
        let spec = &self.deps.upstream.feed.spec;
        let resume_marker = self.continuity.resume_marker(&self.deps.upstream.feed.reader);
        let from = resume_marker.as_ref().map_or(at, ResumeMarker::before);
        let path = spec.key.url(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={from}"));
        match self.deps.upstream.watch(Cause::Watch, &path).await {
            Ok(stream) => Ok((stream, resume_marker)),
            Err(error) => Err((over(error), resume_marker)),
        }
    }

    /// Records that upstream no longer has the change that the stream should repeat. It may still have the changes
    /// after the feed's version.
    pub(super) fn untold(&mut self, at: ResourceVersion) -> State {
        self.continuity = Continuity::Unknown;
        State::Listed { at }
    }

    /// Follows the stream until it ends. Returns the state to continue from.
    pub(super) async fn watch(
        &mut self,
        mut at: ResourceVersion,
        mut stream: WatchStream,
        mut resume_marker: Option<ResumeMarker>,
    ) -> (State, Option<StepFailure>) {
        let _open = self.deps.upstream.metrics.watch_open();
        let opened = Instant::now();
        self.ask_whether_it_goes_on(resume_marker.is_some());
        let mut transactions = Transactions::of(&self.deps.upstream.feed.spec.key.gvr);
        loop {
            let item = tokio::select! {
                biased;
                item = transactions.next(&mut stream, &self.deps.upstream.reader) => item,
                Some(word) = self.words.recv() => {
                    match self.heard(word, at).await {
                        Ok(reached) => at = at.max(reached),
                        Err(next) => return next,
                    }
                    continue;
                }
                outcome = self.history_checks.next(&self.deps.upstream) => {
                    if let (HistoryCheckOutcome::Reached, Some(_)) = (&outcome, &resume_marker) {
                        self.history_checks.ask(HistoryCheckReason::Unconfirmed, Duration::ZERO, REOPENED_SPREAD);
                    } else if let Some(anew) = self.found(at, outcome) {
                        return (anew, None);
                    }
                    continue;
                }
                Ok(()) = self.notices.changed() => {
                    let found = *self.notices.borrow_and_update();
                    if found.is_some_and(|found| self.begun.is_concerned(found)) {
                        self.history_checks.ask(HistoryCheckReason::Notice, Duration::ZERO, NOTICE_SPREAD);
                    }
                    continue;
                }
            };
            if let (Some(resume_marker), Ok(item)) = (resume_marker.take(), &item)
                && let Some(next) = self.examine(&resume_marker, item, at)
            {
                return (next, None);
            }
            match self.take_in(item, at, opened) {
                Ok(reached) => at = at.max(reached),
                Err(next) => return next,
            }
        }
    }

    /// Schedules a check that the reopened stream continues the feed's history, unless its first event proves it.
    fn ask_whether_it_goes_on(&mut self, has_witness: bool) {
        if has_witness {
            self.history_checks.ask(HistoryCheckReason::Reopened, TOLD_AGAIN_MAX, TOLD_AGAIN_SPREAD);
        } else if !self.continuity.is_sure() {
            self.history_checks.ask(HistoryCheckReason::Reopened, Duration::ZERO, REOPENED_SPREAD);
        }
    }

    /// Examines the first item of a stream that should begin with the feed's newest change. Returns the next state if
    /// the stream must be abandoned.
    fn examine(&mut self, resume_marker: &ResumeMarker, first: &Received, at: ResourceVersion) -> Option<State> {
        let evidence = match first {
            Received::Item(item) => testimony(resume_marker, item),
            Received::Transaction(changes) => testimony_of_changes(resume_marker, changes),
        };
        match evidence {
            ResumeEvidence::Continues => {
                self.is_sure();
                self.signed_of_life();
                None
            }
            ResumeEvidence::Contradicts => {
                self.give_up(at, "a watch omits the newest event");
                Some(State::Empty)
            }
            ResumeEvidence::Expired => Some(self.untold(at)),
            ResumeEvidence::Refuses => None,
        }
    }

    /// Applies an item of the stream. Returns the version that it leads to, or the state after the end of the stream.
    pub(super) fn take_in(
        &mut self,
        item: Result<Received, StreamEnd>,
        at: ResourceVersion,
        opened: Instant,
    ) -> Result<ResourceVersion, (State, Option<StepFailure>)> {
        let listed = |failure: StepFailure| (State::Listed { at }, Some(failure));
        let is_bookmark = matches!(item, Ok(Received::Item(WatchItem::Bookmark { .. })));
        let metrics = &self.deps.upstream.metrics;
        let step = match item {
            Ok(Received::Item(item)) => session::apply(item, &mut self.writer, metrics),
            Ok(Received::Transaction(changes)) => session::apply_together(changes, &mut self.writer, metrics),
            Err(StreamEnd::Clean) => {
                self.relists.end_row();
                return Err((State::Listed { at }, self.clean_end(at, opened)));
            }
            Err(StreamEnd::Failed(error @ Error::Wire(WireError::OtherColumns))) => return Err(listed(over(error))),
            Err(ended) => return Err(listed(ended.into())),
        };
        // The check detects the feed's own growth before the next event. If other feeds grow, the supervisor is
        // notified that this one exceeds its memory while it waits.
        if self.writer.is_outgrown() {
            return Err(listed(StepFailure::Over(FeedEnd::OverBudget)));
        }
        match step {
            Ok(StreamStep::At(rv)) => {
                self.complete.came(is_bookmark, at, rv, Instant::now());
                self.relists.end_row();
                self.signed_of_life();
                self.writer.set_state(FeedState::Live);
                Ok(rv)
            }
            Ok(StreamStep::Skipped) => Ok(at),
            Ok(StreamStep::Refused(status)) => {
                let error = Error::Refused(status);
                // The apiserver reports at once that a version is too old, so a later 410 begins a new row.
                if opened.elapsed() >= LIVED {
                    self.relists.end_row();
                }
                Err(if error.is_expired() { self.expired(at, error) } else { listed(error.into()) })
            }
            // The item contradicts the history, so the cached objects may be wrong and none are kept.
            Err(BrokenStream::OutOfOrder(error)) => {
                let feed = &self.deps.upstream.feed.spec.key;
                tracing::error!(%feed, %error, "upstream sent events out of order; relisting");
                self.writer.set_state(FeedState::Syncing);
                Err((State::Empty, Some(BrokenStream::OutOfOrder(error).into())))
            }
            Err(broken) => Err(listed(broken.into())),
        }
    }

    /// Processes a finding of the tasks beside the stream. Returns the version that the feed reaches by it, or the
    /// state after the end of the stream.
    pub(super) async fn heard(
        &mut self,
        word: ReflectorFinding,
        at: ResourceVersion,
    ) -> Result<ResourceVersion, (State, Option<StepFailure>)> {
        match word {
            ReflectorFinding::Proof(proof) => {
                self.adopt(proof).map_err(|broken| (State::Listed { at }, Some(broken.into())))
            }
            ReflectorFinding::Divergence(found) if self.is_held_so(&found) => {
                self.quarantine(&found);
                Err((State::Empty, None))
            }
            // The finding is outdated: another history has begun, or the object has changed since.
            ReflectorFinding::Divergence(_) => Ok(ResourceVersion::default()),
            ReflectorFinding::Renewal(Renewal { objects, count, done }) => {
                if self.deps.written.is_at(count) {
                    self.writer.renew(objects).await;
                    let _ = done.send(());
                }
                Ok(ResourceVersion::default())
            }
            ReflectorFinding::Backfill(BackfillFinding { past, done }) => {
                // The receiver may be gone.
                let _ = done.send(self.writer.begin_earlier(past));
                Ok(ResourceVersion::default())
            }
            ReflectorFinding::PreviousObjects(PreviousObjects { known, before, done }) => {
                self.writer.explain(known, before);
                let _ = done.send(());
                Ok(ResourceVersion::default())
            }
            ReflectorFinding::HistoryMismatch { history } => {
                if history == self.deps.upstream.feed.reader.history() {
                    self.history_checks.ask(HistoryCheckReason::Suspected, Duration::ZERO, DOUBT_SPREAD);
                }
                Ok(ResourceVersion::default())
            }
        }
    }

    /// Whether the feed still has the object in the version that was found to differ.
    fn is_held_so(&self, found: &Divergence) -> bool {
        let reader = &self.deps.upstream.feed.reader;
        let ours = || reader.applied().and_then(|state| state.get(&found.key).map(|object| object.rv));
        found.history == reader.history() && ours() == found.ours
    }

    /// Acts on the outcome of a history check. Returns the new state if upstream has another history.
    fn found(&mut self, at: ResourceVersion, outcome: HistoryCheckOutcome) -> Option<State> {
        match outcome {
            HistoryCheckOutcome::Reached | HistoryCheckOutcome::Continues => {
                self.is_sure();
                None
            }
            HistoryCheckOutcome::Other(listed) => {
                self.give_up(at, "the current state cannot follow from earlier events");
                Some(self.starts_with(listed.initial, listed.asked))
            }
            // The storage went back, and whether this feed is affected cannot be determined.
            HistoryCheckOutcome::Unproven(HistoryCheckReason::Notice, listed) => {
                self.give_up(at, "storage was restored, and the effect on this resource is unknown");
                Some(self.starts_with(listed.initial, listed.asked))
            }
            HistoryCheckOutcome::Unproven(
                HistoryCheckReason::Suspected | HistoryCheckReason::Reopened | HistoryCheckReason::Unconfirmed,
                _,
            ) => None,
            HistoryCheckOutcome::Failed(why) => {
                self.history_checks.ask(why, AGAIN, AGAIN);
                None
            }
        }
    }

    /// Records that upstream continues the feed's history.
    fn is_sure(&mut self) {
        self.continuity = Continuity::Certain;
        self.history_checks.withdraw();
    }

    /// Decides whether a clean end is a failure. Usually a stream that ended cleanly is resumed at once. But if it
    /// ended right after it began, without an item, upstream is refusing the watch (R-UPSTREAM-4, R-CLIENT-4).
    fn clean_end(&self, at: ResourceVersion, opened: Instant) -> Option<StepFailure> {
        tracing::debug!(feed = %self.deps.upstream.feed.spec.key, rv = %at, "upstream ended the watch");
        // Upstream ends the watches of a definition that was just replaced, because their events followed the old one.
        if self.deps.upstream.feed.is_settling() {
            return Some(StepFailure::Over(FeedEnd::Outdated));
        }
        let in_vain = self.last_sign < opened && opened.elapsed() < SHORT;
        in_vain.then(|| StreamEnd::Clean.into())
    }

    /// Applies the changes that a proof has read beside the feed's stream. The stream's copies will be duplicates.
    fn adopt(&mut self, proof: Proof) -> Result<ResourceVersion, BrokenStream> {
        if proof.history != self.deps.upstream.feed.reader.history() {
            return Ok(ResourceVersion::default());
        }
        self.writer.apply_all(proof.changes)?;
        let announced = proof.announced || self.deps.upstream.feed.is_followed_by_proxies();
        self.writer.advance(proof.until, announced);
        Ok(proof.until)
    }
}
