//! Proves that a feed is current, for readers that may not be given an older state (ARCHITECTURE.md,
//! "Mechanisms").
//!
//! One question upstream serves every reader that came before it was sent:
//!
//! 1. **Position.** A streamed list of what cannot exist is answered by one bookmark: X, a version that no
//!    completed write is newer than. It costs upstream no objects.
//! 2. Our own stream reaches X by itself within milliseconds if the resource is busy. If it is not, perhaps nothing has
//!    happened to it at all, which has to be proven:
//! 3. **Equality**, when the collection is small or was not listed for a while: its versions, listed once, equal those
//!    of the cache.
//! 4. **Catching up**, when it is large: a watch from our own version yields what we lack, or a bookmark that says that
//!    there is nothing. It starts where we are, so it is the same history whichever server answers. Events have no
//!    bookmarks (R-EVENT-4): they are proven by equality alone.
//!
//! One question and one proof are under way at a time. Positions are kept until they are proven, not only the last one:
//! under steady demand the cache reaches the older ones while the last runs ahead with the cluster's revision. "Not
//! older than N", when N was seen elsewhere and our stream is behind, is another matter (`chase`).
//!
//! Where the stream did not tell the last time and the collection is tiny, its versions are the first question: the
//! answer is a position and its proof, and costs upstream no more than what was asked for.
//!
//! No other stream's bookmark is ever proof, for it may be another server's. Nothing is asked when nobody waits.

mod chase;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::cache::{FeedState, Snapshot};
use crate::upstream::{BODY_BYTES_MAX, Cause, Error};
use base::{mutant, random};
use kubeapi::{ObjectKey, ResourceVersion};

use super::catch_up::CatchUp;
use super::continuity::{Finding, Reach, compare, places};
use super::gap::Position;
use super::initial_state::{FeedClient, not_older_than};
use super::metrics::SideRequest;
use super::positions::Positions;
use super::reflector_findings::{Proof, ReflectorFinding};
use super::stream::Ended;
use super::versions::VersionPage;

/// Proves one feed current, for readers that demand it.
pub(super) struct Prover {
    upstream: FeedClient,
    words: mpsc::Sender<ReflectorFinding>,
    last_equality: Mutex<Option<Instant>>,
    /// Whether our own stream did not reach the last position by itself.
    is_quiet: AtomicBool,
    /// Whether upstream is a proxy, by the last answer that tells. It comes further only when it is asked to.
    behind_a_proxy: AtomicBool,
    unanswered: Failures,
    unproven: Failures,
    /// Upstream was asked to come to a version in vain.
    unreached: Failures,
    /// A watch from our version did not move the feed on.
    behind: Failures,
}

/// How long our own stream is given to reach the position before a proof is asked for.
const STREAM_HEAD_START: Duration = Duration::from_millis(20);
/// Collections up to this size are proven by equality whenever needed: that costs upstream less than a page of a LIST.
const EQUALITY_OBJECTS_MAX: usize = 500;
/// Collections up to this size are asked for with the question itself.
const AT_ONCE_OBJECTS_MAX: usize = 50;
/// Larger collections are proven by equality too, if the last time was long enough ago: a catch-up takes a second or
/// two, which a rare question should not.
const EQUALITY_OBJECTS_RARE_MAX: usize = 20_000;
/// How long ago that must be, for each object. Listing metadata costs upstream some 13 µs an object (R-DERIVE-4), so
/// this takes little more than one percent of one of its cores.
const EQUALITY_REST_PER_OBJECT: Duration = Duration::from_millis(1);
const CATCH_UP_SECONDS: u64 = 3;
/// A question that is not answered within this time is asked again.
const QUESTION_MAX: Duration = Duration::from_secs(5);
/// A proof that takes longer helps nobody.
const PROOF_MAX: Duration = Duration::from_secs(10);
/// The wait after a question failed; longer after each that fails in a row.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Counts failures in a row. Many readers may ask for a proof, and many proxies may ask a server that is overwhelmed.
#[derive(Debug, Default)]
struct Failures(AtomicU32);

impl Failures {
    fn succeeded(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Waits, twice as long as the last time, with jitter.
    async fn rest(&self) {
        let doublings = self.0.fetch_add(1, Ordering::Relaxed).min(8);
        let wait = RETRY.saturating_mul(1 << doublings).min(RETRY_MAX);
        tokio::time::sleep(wait.mul_f64(0.5 + random::f64())).await;
    }
}

/// What a question came to.
enum Answer {
    Position(Position),
    /// The feed holds everything that was complete at this instant.
    Proven(Instant),
}

/// The versions that upstream has, and whether they cannot have come of what the cache had.
struct Listed {
    at: ResourceVersion,
    versions: BTreeMap<ObjectKey, ResourceVersion>,
    is_other: bool,
    is_from_memory: bool,
}

type Running<'a, T> = OptionFuture<Pin<Box<dyn Future<Output = T> + Send + 'a>>>;

impl Prover {
    pub(super) fn new(upstream: FeedClient, words: mpsc::Sender<ReflectorFinding>) -> Self {
        Self {
            upstream,
            words,
            last_equality: Mutex::new(None),
            is_quiet: AtomicBool::new(false),
            behind_a_proxy: AtomicBool::new(false),
            unanswered: Failures::default(),
            unproven: Failures::default(),
            unreached: Failures::default(),
            behind: Failures::default(),
        }
    }

    /// Proves, and goes after versions, for as long as anybody wants it.
    pub(super) async fn run(&self) -> Infallible {
        tokio::join!(self.prove_for_all(), self.chase()).0
    }

    /// Proves for as long as anybody wants it: one question and one proof at a time, side by side.
    async fn prove_for_all(&self) -> Infallible {
        let mut wanted = self.upstream.feed.freshness.wanted();
        let mut progress = self.upstream.feed.reader.follow_progress();
        let mut positions = Positions::default();
        let mut question: Running<'_, Option<Answer>> = None.into();
        let mut proof: Running<'_, Option<Instant>> = None.into();
        let (mut asks, mut proves) = (false, false);
        let mut history = self.upstream.feed.reader.history();
        loop {
            // An answer that was asked of another history says nothing of this one.
            if std::mem::replace(&mut history, self.upstream.feed.reader.history()) != history {
                positions = Positions::default();
                (question, proof) = (None.into(), None.into());
                (asks, proves) = (false, false);
            }
            if let Some(asked) = positions.settle(
                self.upstream.feed.reader.progress().rv,
                self.upstream.feed.freshness.is_awaited(),
                Instant::now(),
            ) {
                self.is_quiet.store(false, Ordering::Relaxed);
                self.upstream.feed.freshness.prove(asked);
            }
            let last = positions.last();
            if !asks && self.unasked(*wanted.borrow_and_update(), last) && !positions.is_full() {
                question = Some(self.question().boxed()).into();
                asks = true;
            }
            if let (Some(position), false) = (positions.last(), proves) {
                proof = Some(self.prove(position).boxed()).into();
                proves = true;
            }
            tokio::select! {
                biased;
                Some(answer) = &mut question, if asks => {
                    asks = false;
                    match answer.filter(|_| self.upstream.feed.reader.history() == history) {
                        Some(Answer::Position(position)) => positions.extend(Some(position)),
                        Some(Answer::Proven(asked)) => {
                            self.upstream.feed.freshness.prove(asked);
                            positions.proven(asked);
                        }
                        None => {}
                    }
                }
                Some(proven) = &mut proof, if proves => {
                    proves = false;
                    if let Some(asked) = proven
                        && self.upstream.feed.reader.history() == history
                    {
                        self.upstream.feed.freshness.prove(asked);
                        positions.proven(asked);
                    }
                }
                () = progress.changed(), if positions.last().is_some() => {}
                _ = wanted.changed() => {}
                () = self.became_live(), if !self.live() => {}
            }
        }
    }

    /// Whether somebody waits who is covered neither by a proof nor by the last question.
    fn unasked(&self, wanted: Option<Instant>, last: Option<Position>) -> bool {
        wanted.is_some_and(|wanted| {
            self.upstream.feed.freshness.is_awaited()
                && !self.upstream.feed.freshness.covers(wanted)
                && last.is_none_or(|position| position.asked < wanted)
        })
    }

    fn live(&self) -> bool {
        self.upstream.feed.reader.state() == FeedState::Live
    }

    async fn became_live(&self) {
        let mut state = self.upstream.feed.reader.watch_state();
        if state.wait_for(|state| *state == FeedState::Live).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn question(&self) -> Option<Answer> {
        let reader = &self.upstream.feed.reader;
        let is_tiny = reader.stats().objects <= AT_ONCE_OBJECTS_MAX;
        if is_tiny && self.is_quiet.load(Ordering::Relaxed) && self.live() && reader.settled_if_silent().await {
            return self.at_once().await;
        }
        self.position().await.map(Answer::Position)
    }

    /// Lists the versions of a tiny collection as they are now. If the cache has the same, that is all.
    async fn at_once(&self) -> Option<Answer> {
        let (asked, shown) = (Instant::now(), self.upstream.feed.reader.shown_at());
        let listing = async { self.listed("").await.map_err(Ended::from) };
        let listed = self.answer(shown, listing, |listed| listed.at).await?;
        if listed.is_other {
            self.doubt();
            self.unproven.rest().await;
            return None;
        }
        // Otherwise what happened to it is on its way.
        let position = Position { asked, at: listed.at };
        Some(if self.is_held(&listed) { Answer::Proven(asked) } else { Answer::Position(position) })
    }

    /// Asks for the version that upstream's storage has reached.
    async fn position(&self) -> Option<Position> {
        let (asked, shown) = (Instant::now(), self.upstream.feed.reader.shown_at());
        self.upstream.metrics.asked(SideRequest::Position);
        let lister = self.upstream.lister(SideRequest::Position);
        let at = self.answer(shown, lister.position_beside(shown), |at| *at).await?;
        let asked = if mutant(16) { Instant::now() } else { asked };
        Some(Position { asked, at })
    }

    /// The result of a proof at a version. It is not older than the version `shown` before, unless an apiserver lags or
    /// the storage was restored. Such a result proves nothing, and the confirmed version is dropped.
    async fn answer<T>(
        &self,
        shown: ResourceVersion,
        question: impl Future<Output = Result<T, Ended>>,
        version: impl Fn(&T) -> ResourceVersion,
    ) -> Option<T> {
        let feed = &self.upstream.feed.spec.key;
        match timeout(QUESTION_MAX, question).await.map(|answered| answered.map(|answer| (version(&answer), answer))) {
            Ok(Ok((at, answer))) if at >= shown => {
                self.unanswered.succeeded();
                return Some(answer);
            }
            Ok(Ok((at, _))) => {
                tracing::debug!(%feed, %at, %shown, "upstream is behind our cache");
                self.upstream.feed.reader.unconfirm();
                self.doubt();
            }
            Ok(Err(error)) => tracing::debug!(%feed, %error, "a question could not be asked"),
            Err(_) => tracing::debug!(%feed, "a question was not answered"),
        }
        self.unanswered.rest().await;
        None
    }

    /// Lists upstream's versions, and holds them against what the cache had right before.
    async fn listed(&self, query: &str) -> Result<Listed, Error> {
        self.upstream.metrics.asked(SideRequest::Equality);
        let before = self.upstream.feed.reader.snapshot();
        let reach = Reach::of(&self.upstream.feed.reader, before.rv);
        let page = self.upstream.versions(Cause::Proof, query, BODY_BYTES_MAX).await?;
        let VersionPage { at, versions, is_from_memory, .. } = page;
        let listed = versions.iter().map(|(key, rv)| (key, *rv));
        let is_other = compare(places(&before), reach, listed, at) == Finding::Other;
        Ok(Listed { at, versions, is_other, is_from_memory })
    }

    /// Proves that the cache is current as of the position's question. Returns the instant of that question.
    async fn prove(&self, position: Position) -> Option<Instant> {
        if timeout(STREAM_HEAD_START, self.upstream.feed.reader.reached(position.at)).await.is_ok() {
            self.is_quiet.store(false, Ordering::Relaxed);
            return Some(position.asked);
        }
        self.is_quiet.store(true, Ordering::Relaxed);
        timeout(PROOF_MAX, self.prove_by_asking(position)).await.unwrap_or_default()
    }

    async fn prove_by_asking(&self, position: Position) -> Option<Instant> {
        let reader = &self.upstream.feed.reader;
        let says_how_far = self.watches_say_how_far();
        if !says_how_far {
            reader.closed().await;
        }
        // While more of the newest version may come, what is held is no version's state. The stream after it tells
        // then.
        let proven = if reader.is_whole() && self.affords_equality() {
            self.by_equality(position).await
        } else if self.live() && says_how_far {
            self.by_catching_up(false).await.map(|()| None)
        } else {
            // The result of a catch-up is only of use to a reflector that is watching.
            tokio::time::sleep(RETRY).await;
            Ok(None)
        };
        match proven {
            Ok(proven) => {
                self.unproven.succeeded();
                proven
            }
            Err(error) => {
                tracing::debug!(feed = %self.upstream.feed.spec.key, %error, "proof failed");
                self.unproven.rest().await;
                None
            }
        }
    }

    /// Whether upstream's watches send bookmarks. If they do not, catching up proves nothing (R-EVENT-4).
    fn watches_say_how_far(&self) -> bool {
        self.upstream.feed.spec.key.gvr.has_watch_cache() || self.is_behind_a_proxy()
    }

    fn affords_equality(&self) -> bool {
        let objects = self.upstream.feed.reader.stats().objects;
        let rest = EQUALITY_REST_PER_OBJECT.saturating_mul(u32::try_from(objects).unwrap_or(u32::MAX));
        let mut last = self.last_equality.lock();
        // Where only the list tells, it costs upstream less than the lists that would pass through.
        let only_way = !self.watches_say_how_far();
        let rested = only_way || last.is_none_or(|last| last.elapsed() >= rest);
        let affords = objects <= EQUALITY_OBJECTS_MAX || (objects <= EQUALITY_OBJECTS_RARE_MAX && rested);
        if affords {
            *last = Some(Instant::now());
        }
        affords
    }

    /// Lists the versions of a small collection. The cache is proven when it has the same, now or soon.
    ///
    /// A state that is not older than the position has all that was complete when that was asked. Upstream answers it
    /// from its own cache, and a proxy without a proof of its own.
    async fn by_equality(&self, position: Position) -> Result<Option<Instant>, Ended> {
        let listed = self.listed(&not_older_than(position.at)).await?;
        if listed.is_other {
            self.doubt();
            self.unproven.rest().await;
            return Ok(None);
        }
        let mut progress = self.upstream.feed.reader.follow_progress();
        let equal = async {
            loop {
                if self.is_held(&listed) {
                    return true;
                }
                let snapshot = self.upstream.feed.reader.snapshot();
                if snapshot.rv >= listed.at {
                    let reach = Reach::of(&self.upstream.feed.reader, snapshot.rv);
                    return !outlived(&snapshot, reach, &listed.versions, listed.at);
                }
                progress.changed().await;
            }
        };
        match timeout(Duration::from_secs(CATCH_UP_SECONDS), equal).await {
            Ok(true) => Ok(Some(position.asked)),
            Ok(false) => {
                self.doubt();
                self.unproven.rest().await;
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// Whether the feed holds exactly the listed objects. If so, readers get the state at the version of the list,
    /// although the stream may not reach it for a minute (R-VERSION-1). A list of another proxy confirms nothing,
    /// because its version is that of its feed, which our stream delivers at once.
    fn is_held(&self, listed: &Listed) -> bool {
        let reader = &self.upstream.feed.reader;
        let mark = reader.state_mark();
        same(&reader.snapshot(), &listed.versions) && (listed.is_from_memory || reader.confirm(mark, listed.at))
    }

    /// Proves by one list of versions, if the collection is small, that the feed holds upstream's state at this version
    /// or later. Returns whether it does.
    async fn is_at(&self, rv: ResourceVersion) -> Result<bool, Ended> {
        if !self.upstream.feed.reader.is_whole() || self.is_behind_a_proxy() || !self.affords_equality() {
            return Ok(false);
        }
        let listed = self.listed(&not_older_than(rv)).await?;
        if listed.is_other {
            self.doubt();
        }
        Ok(!listed.is_other && self.is_held(&listed) && self.upstream.feed.reader.shown_at() >= rv)
    }

    /// Tells the reflector that an answer of upstream contradicts what the feed holds. The reflector decides; the
    /// prover rests.
    fn doubt(&self) {
        // If one waits to be heard already, that will do.
        let _ = self.words.try_send(ReflectorFinding::Doubt { history: self.upstream.feed.reader.history() });
    }

    /// Watches from our own version until upstream says how far it goes. The events are handed to the reflector, which
    /// tells its readers how far that is if it is `announced`.
    async fn by_catching_up(&self, announced: bool) -> Result<(), Ended> {
        self.upstream.metrics.asked(SideRequest::CatchUp);
        let reader = &self.upstream.feed.reader;
        let (history, at) = (reader.history(), reader.progress().rv);
        // More may have happened at the version of the newest event, which our own stream does not tell: a watch from
        // there would leave it out. What is told again is recognised.
        if reader.is_at_event(at) {
            match self.catch_up(history, ResourceVersion(at.0.saturating_sub(1)), announced).await {
                // What comes behind our version may still be known.
                Err(Ended::Failed(error)) if error.is_expired() => {}
                caught_up => return caught_up,
            }
        }
        self.catch_up(history, at, announced).await
    }

    async fn catch_up(&self, history: u64, from: ResourceVersion, announced: bool) -> Result<(), Ended> {
        let spec = &self.upstream.feed.spec;
        let path = spec.key.url(&format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={CATCH_UP_SECONDS}&resourceVersion={from}"
        ));
        let mut stream = self.upstream.watch(Cause::Proof, &path).await?;
        self.behind_a_proxy.store(stream.is_from_memory(), Ordering::Relaxed);
        let mut told = CatchUp::default();
        let until = told.read(&mut stream, &self.upstream.reader).await?;
        // If the reflector is not watching now, it has no use for the proof.
        if self
            .words
            .try_send(ReflectorFinding::Proof(Proof { history, changes: told.changes, until, announced }))
            .is_ok()
        {
            // The reflector gets a moment to apply it, or the same would be asked again.
            let _ = timeout(STREAM_HEAD_START, self.upstream.feed.reader.reached(until)).await;
        }
        Ok(())
    }
}

fn same(snapshot: &Snapshot, listed: &BTreeMap<ObjectKey, ResourceVersion>) -> bool {
    snapshot.len() == listed.len() && snapshot.iter().all(|object| listed.get(&object.key) == Some(&object.rv))
}

/// Whether the feed, which has reached a listed version, still holds an object that the list did not have.
fn outlived(now: &Snapshot, reach: Reach, listed: &BTreeMap<ObjectKey, ResourceVersion>, at: ResourceVersion) -> bool {
    reach.is_whole_at(at) && places(now).any(|(key, rv)| rv <= at && listed.get(key) != Some(&rv))
}
