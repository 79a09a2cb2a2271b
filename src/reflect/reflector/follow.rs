//! Opens and follows a stream, and acts on what is found out beside it.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::silence::StreamSilence;
use super::{LIVED, Reflector, State};
use crate::cache::{CacheReader, FeedEnd, FeedState, ResumeMarker};
use crate::reflect::continuity::{Continuity, ResumeEvidence, testimony};
use crate::reflect::failure::{StepFailure, over};
use crate::reflect::history_check::{HistoryCheckOutcome, HistoryCheckReason};
use crate::reflect::reflector_findings::{Divergence, Found, PreviousObjects, Proof, ReflectorFinding, Renewal};
use crate::reflect::session::{self, BrokenStream, StreamStep};
use crate::reflect::stream::{Ended, WatchStream};
use crate::upstream::{Cause, Error};
use crate::wire::{WatchItem, WireError};
use base::mutant;
use kubeapi::ResourceVersion;

/// A clean end that comes sooner, without an item, was no watch in earnest.
const SHORT: Duration = Duration::from_secs(1);
/// The change that a stream is to tell first comes within this time. If not, upstream is asked how far it is.
const TOLD_AGAIN_MAX: Duration = Duration::from_secs(1);
const TOLD_AGAIN_SPREAD: Duration = Duration::from_secs(2);
/// Feeds whose stream can tell no change again ask within this time: a whole fleet may have lost its streams together.
const REOPENED_SPREAD: Duration = Duration::from_secs(10);
/// Feeds with a sign that something is wrong ask within this time.
const DOUBT_SPREAD: Duration = Duration::from_secs(1);
const NOTICE_SPREAD: Duration = Duration::from_secs(3);
/// The wait after a question that upstream did not answer.
const AGAIN: Duration = Duration::from_secs(10);

impl Reflector {
    /// Opens a stream that goes on from `at`. With a witness it starts before that, with a change that is known
    /// already.
    pub(super) async fn resume(
        &self,
        at: ResourceVersion,
    ) -> Result<(WatchStream, Option<ResumeMarker>), (StepFailure, Option<ResumeMarker>)> {
        let spec = &self.means.upstream.feed.spec;
        let witness = self.continuity.witness(&self.means.upstream.feed.reader);
        let from = match &witness {
            Some(witness) => witness.before(),
            // The stream may have broken between two events of one version. Those that came are recognised when they
            // come again.
            None if self.means.upstream.feed.reader.is_open(at) => self.means.upstream.feed.reader.progress().rv,
            None => at,
        };
        let path = spec.key.url(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={from}"));
        match self.means.upstream.watch(Cause::Watch, &path).await {
            Ok(stream) => Ok((stream, witness)),
            Err(error) => Err((over(error), witness)),
        }
    }

    /// Notes that upstream has forgotten the change that it was to tell again. It may still have what follows our own
    /// version.
    pub(super) fn untold(&mut self, at: ResourceVersion) -> State {
        self.continuity = Continuity::Untold;
        State::Listed { at }
    }

    /// Follows the stream until it ends, and says from where to go on.
    pub(super) async fn watch(
        &mut self,
        mut at: ResourceVersion,
        mut stream: WatchStream,
        mut witness: Option<ResumeMarker>,
    ) -> (State, Option<StepFailure>) {
        let _open = self.means.upstream.metrics.watch_open();
        let opened = Instant::now();
        self.ask_whether_it_goes_on(witness.is_some());
        // Silence only means something once the stream has spoken.
        let mut silence: Option<StreamSilence> = None;
        loop {
            let item = tokio::select! {
                biased;
                item = stream.next(&self.means.upstream.reader) => item,
                () = sleep_until(silence.map_or(opened, |silence| silence.ends())), if silence.is_some() => {
                    silence = silence.and_then(|silence| silence.rest(Instant::now()));
                    if silence.is_none() {
                        self.writer.settle();
                    }
                    continue;
                }
                () = self.writer.whole_is_awaited(), if silence.is_some() => {
                    silence = silence.map(|silence| silence.awaited(Instant::now()));
                    continue;
                }
                Some(word) = self.words.recv() => {
                    match self.heard(word, at).await {
                        Ok(reached) => at = at.max(reached),
                        Err(next) => return next,
                    }
                    continue;
                }
                outcome = self.inquiries.next(&self.means.upstream) => {
                    if let (HistoryCheckOutcome::Reached, Some(_)) = (&outcome, &witness) {
                        self.inquiries.ask(HistoryCheckReason::Untold, Duration::ZERO, REOPENED_SPREAD);
                    } else if let Some(anew) = self.found(at, outcome) {
                        return (anew, None);
                    }
                    continue;
                }
                Ok(()) = self.notices.changed() => {
                    let found = *self.notices.borrow_and_update();
                    if found.is_some_and(|found| self.begun.is_concerned(found)) {
                        self.inquiries.ask(HistoryCheckReason::Notice, Duration::ZERO, NOTICE_SPREAD);
                    }
                    continue;
                }
            };
            if let (Some(witness), Ok(item)) = (witness.take(), &item)
                && let Some(next) = self.examine(&witness, item, at)
            {
                return (next, None);
            }
            if mutant(14) {
                wait_for_readers(&self.means.upstream.feed.reader).await;
            }
            if item.is_err() {
                self.settle_at_the_end(silence);
            }
            match self.take_in(item, at, opened) {
                Ok(reached) => at = at.max(reached),
                Err(next) => return next,
            }
            silence = self.settles_by_silence();
            if silence.is_some() {}
        }
    }

    /// Has upstream asked whether the stream goes on with the history that we hold, unless it tells that itself.
    fn ask_whether_it_goes_on(&mut self, has_witness: bool) {
        if has_witness {
            self.inquiries.ask(HistoryCheckReason::Reopened, TOLD_AGAIN_MAX, TOLD_AGAIN_SPREAD);
        } else if !self.continuity.is_sure() {
            self.inquiries.ask(HistoryCheckReason::Reopened, Duration::ZERO, REOPENED_SPREAD);
        }
    }

    /// The silence, from now on, that tells of the newest version that it is whole.
    fn settles_by_silence(&self) -> Option<StreamSilence> {
        let silence = StreamSilence::from(Instant::now(), self.writer.settles_after()?);
        Some(if self.writer.is_whole_awaited() { silence } else { silence.unawaited() })
    }

    /// Notes that the stream has ended. A version behind which it was silent for long enough is whole, though nobody
    /// waited for it: who asks while upstream is away is shown what watches were told. A stream that broke is resumed
    /// before that version all the same.
    fn settle_at_the_end(&mut self, silence: Option<StreamSilence>) {
        if silence.is_some_and(|silence| silence.has_lasted(Instant::now())) {
            self.writer.settle();
        }
    }

    /// What follows from the first item of a stream that was to begin with our newest change, if anything does.
    fn examine(&mut self, witness: &ResumeMarker, first: &WatchItem, at: ResourceVersion) -> Option<State> {
        match testimony(witness, first) {
            ResumeEvidence::Continues => {
                self.is_sure();
                self.signed_of_life();
                None
            }
            ResumeEvidence::Contradicts => {
                self.give_up(at, "a stream leaves out the newest change");
                Some(State::Empty)
            }
            ResumeEvidence::Expired => Some(self.untold(at)),
            ResumeEvidence::Refuses => None,
        }
    }

    /// Takes in an item of the stream. It leads to a version, or to the end of the stream.
    pub(super) fn take_in(
        &mut self,
        item: Result<WatchItem, Ended>,
        at: ResourceVersion,
        opened: Instant,
    ) -> Result<ResourceVersion, (State, Option<StepFailure>)> {
        let listed = |failure: StepFailure| (State::Listed { at }, Some(failure));
        let is_bookmark = matches!(item, Ok(WatchItem::Bookmark { .. }));
        let step = match item {
            Ok(item) => session::apply(item, &mut self.writer, &self.means.upstream.metrics),
            Err(Ended::Clean) => {
                self.relists.end_row();
                return Err((State::Listed { at }, self.clean_end(at, opened)));
            }
            Err(Ended::Failed(error @ Error::Wire(WireError::OtherColumns))) => return Err(listed(over(error))),
            Err(ended) => return Err(listed(ended.into())),
        };
        // Its own growth shows before the next event is applied. If others grow, it is found to have outgrown the
        // memory while it waits, and whoever runs this is told.
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
                // The apiserver says at once that a version is too old.
                if opened.elapsed() >= LIVED {
                    self.relists.end_row();
                }
                Err(if error.is_expired() { self.expired(at, error) } else { listed(error.into()) })
            }
            // The item contradicts the history: what we hold may be wrong, so nothing of it is kept.
            Err(BrokenStream::OutOfOrder(error)) => {
                let feed = &self.means.upstream.feed.spec.key;
                tracing::error!(%feed, %error, "upstream contradicts itself; listing anew");
                self.writer.set_state(FeedState::Syncing);
                Err((State::Empty, Some(BrokenStream::OutOfOrder(error).into())))
            }
            Err(broken) => Err(listed(broken.into())),
        }
    }

    /// Takes in a finding of those beside the stream. It leads to a version, or to the end of the stream.
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
            // It is over: another history has begun, or the object has changed since.
            ReflectorFinding::Divergence(_) => Ok(ResourceVersion::default()),
            ReflectorFinding::Renewal(Renewal { objects, count, done }) => {
                if self.means.written.is_at(count) {
                    self.writer.renew(objects).await;
                    let _ = done.send(());
                }
                Ok(ResourceVersion::default())
            }
            ReflectorFinding::Prehistory(Found { past, done }) => {
                // Whoever has asked may have gone.
                let _ = done.send(self.writer.begin_earlier(past));
                Ok(ResourceVersion::default())
            }
            ReflectorFinding::PreviousObjects(PreviousObjects { known, before, done }) => {
                self.writer.explain(known, before);
                let _ = done.send(());
                Ok(ResourceVersion::default())
            }
            ReflectorFinding::Doubt { history } => {
                if history == self.means.upstream.feed.reader.history() {
                    self.inquiries.ask(HistoryCheckReason::Doubt, Duration::ZERO, DOUBT_SPREAD);
                }
                Ok(ResourceVersion::default())
            }
        }
    }

    /// Whether the object is still held as it was when it was found to differ.
    fn is_held_so(&self, found: &Divergence) -> bool {
        let reader = &self.means.upstream.feed.reader;
        let ours = || reader.applied().and_then(|state| state.get(&found.key).map(|object| object.rv));
        found.history == reader.history() && ours() == found.ours
    }

    /// What follows from an inquiry: a new history, if upstream's is another one.
    fn found(&mut self, at: ResourceVersion, outcome: HistoryCheckOutcome) -> Option<State> {
        match outcome {
            HistoryCheckOutcome::Reached | HistoryCheckOutcome::Continues => {
                self.is_sure();
                None
            }
            HistoryCheckOutcome::Other(listed) => {
                self.give_up(at, "its current state cannot have come of what was told before");
                Some(self.starts_with(listed.initial, listed.asked))
            }
            // The storage went back, and nobody can tell whether this feed is concerned.
            HistoryCheckOutcome::Unproven(HistoryCheckReason::Notice, listed) => {
                self.give_up(at, "the storage went back, and what happened to this resource cannot be told");
                Some(self.starts_with(listed.initial, listed.asked))
            }
            HistoryCheckOutcome::Unproven(
                HistoryCheckReason::Doubt | HistoryCheckReason::Reopened | HistoryCheckReason::Untold,
                _,
            ) => None,
            HistoryCheckOutcome::Failed(why) => {
                self.inquiries.ask(why, AGAIN, AGAIN);
                None
            }
        }
    }

    /// Notes that upstream goes on with the history that we hold.
    fn is_sure(&mut self) {
        self.continuity = Continuity::Sure;
        self.inquiries.withdraw();
    }

    /// Says whether a clean end is a failure. As a rule a stream that ended cleanly is resumed at once. But if it was
    /// over as soon as it had begun and had brought nothing, upstream is turning us away (R-UPSTREAM-4, R-CLIENT-4).
    fn clean_end(&self, at: ResourceVersion, opened: Instant) -> Option<StepFailure> {
        tracing::debug!(feed = %self.means.upstream.feed.spec.key, rv = %at, "upstream ended the watch");
        // Upstream ends the watches of a definition that it has just replaced: what it told us was by the old one.
        if self.means.upstream.feed.is_settling() {
            return Some(StepFailure::Over(FeedEnd::Outdated));
        }
        let in_vain = self.last_sign < opened && opened.elapsed() < SHORT;
        in_vain.then(|| Ended::Clean.into())
    }

    /// Takes in what a proof has read beside our own stream. The stream's copies will be duplicates.
    fn adopt(&mut self, proof: Proof) -> Result<ResourceVersion, BrokenStream> {
        if proof.history != self.means.upstream.feed.reader.history() {
            return Ok(ResourceVersion::default());
        }
        for change in proof.changes {
            self.writer.take(change)?;
        }
        let announced = proof.announced || self.means.upstream.feed.is_followed_by_proxies();
        self.writer.advance(proof.until, announced);
        Ok(proof.until)
    }
}

/// Waits until everybody has read everything, for a tenth of a second at most: a mutant alone does so.
async fn wait_for_readers(reader: &CacheReader) {
    for _ in 0..100 {
        if !reader.is_somebody_behind() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
}
