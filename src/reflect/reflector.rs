mod follow;
mod relist;
mod silence;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::cache::{CacheWriter, FeedEnd, FeedState, ResumeMarker};
use crate::wire::BookmarkTemplate;
use base::{Backoff, LogLimit, Waits, random};
use kubeapi::ResourceVersion;
use tokio::sync::watch;

use super::body_writers::BodyWriters;
use super::continuity::Continuity;
use super::failure::{FailureKind, StepFailure, over};
use super::gap::{Completeness, Position, Relists};
use super::history_check::HistoryChecks;
use super::initial_state::{At, FeedClient, Follow, InitialState, Lister};
use super::metrics::SideRequest;
use super::reflector_findings::{HistoryBegin, ReflectorFinding, RewindNotices};
use super::stream::{Ended, WatchStream};

/// Keeps one feed in step with upstream. It is the only writer of its cache.
pub(super) struct Reflector {
    means: ReflectorDeps,
    writer: CacheWriter,
    /// Findings of those beside the stream: history that a proof has read, and doubts about ours.
    words: mpsc::Receiver<ReflectorFinding>,
    /// Notices of other feeds of the same upstream.
    notices: watch::Receiver<Option<Instant>>,
    backoff: Backoff,
    /// A version, and how many times what follows it could not be read: a poisoned stream must not be retried for ever.
    unreadable: (ResourceVersion, u32),
    last_sign: Instant,
    /// Whether the stream that was lost last had been open for a while.
    had_lived: bool,
    /// Since when upstream has refused a feed that it had served.
    refused_since: Option<Instant>,
    /// The pauses of that refusal.
    refusals: Backoff,
    /// How many pauses in this row of failures were cut short because upstream had answered somebody else.
    woken_early: u32,
    relists: Relists,
    /// A feed that was listed again a moment ago asks upstream for more at this time.
    rests_until: Option<Instant>,
    complete: Completeness,
    continuity: Continuity,
    inquiries: HistoryChecks,
    /// How the history began that the feed holds.
    begun: HistoryBegin,
    /// Whether the history is given up because upstream's is another one.
    rewinding: bool,
    /// Limits the log of failures.
    interruptions: LogLimit,
}

/// The parts that a reflector works with.
pub(super) struct ReflectorDeps {
    pub(super) upstream: FeedClient,
    pub(super) written: Arc<BodyWriters>,
    /// Feeds of one upstream tell each other here that upstream's storage went back.
    pub(super) rewinds: Arc<RewindNotices>,
    pub(super) waits: Waits,
}

/// Where the feed stands. A state holds what is valid only in it.
#[allow(clippy::large_enum_variant, reason = "there is one for each feed, and it is never moved about")]
enum State {
    /// Nothing is known.
    Empty,
    /// Complete up to `at`; no stream is open. A lost connection leads here.
    Listed { at: ResourceVersion },
    /// Complete up to `at`, and the stream that goes on from there. `witness` is the change that the stream is to tell
    /// first, if it was opened from in front of it.
    Watching { at: ResourceVersion, stream: WatchStream, witness: Option<ResumeMarker> },
    /// Complete up to `at`, but upstream no longer has what follows. A 410 leads here. `window` is where upstream's own
    /// history begins, if that state is to be listed rather than the current one.
    Expired { at: ResourceVersion, window: Option<ResourceVersion> },
}

/// How many streams from one version may be unreadable before the feed is listed anew.
const UNREADABLE_MAX: u32 = 3;

/// How long a feed that had been served waits for a refusal to pass.
const REFUSED_MAX: Duration = Duration::from_secs(20);
/// The pauses meanwhile. An apiserver that has just started grants the request within seconds, and the pauses of the
/// outage before it may have grown to half a minute.
const REFUSED_WAITS: Waits = Waits { first: Duration::from_millis(250), longest: Duration::from_secs(4) };
/// How long clients that come back after a restart are gathered before the oldest one decides.
const RESUME_GATHER: Duration = Duration::from_millis(300);
/// How long a feed that begins at a client's version waits to learn how far upstream is, and how its bookmarks look.
const POSITION_MAX: Duration = Duration::from_secs(1);
/// A stream that was open for so long had been accepted in earnest.
const LIVED: Duration = Duration::from_secs(5);
/// Feeds that lost their streams together resume within this time of each other.
const RESUME_SPREAD: Duration = Duration::from_millis(300);
/// What a pause that is cut short lasts at least, behind the first in a row: whoever is woken in vain loses about as
/// long again as the connections were broken, not the half a minute that attempts of its own have come to.
const WOKEN_WAITS: Waits = Waits { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

impl Reflector {
    pub(super) fn new(means: ReflectorDeps, writer: CacheWriter, words: mpsc::Receiver<ReflectorFinding>) -> Self {
        Self {
            backoff: Backoff::new(means.waits),
            notices: means.rewinds.follow(),
            means,
            writer,
            words,
            unreadable: (ResourceVersion::default(), 0),
            last_sign: Instant::now(),
            had_lived: false,
            refused_since: None,
            refusals: Backoff::new(REFUSED_WAITS),
            woken_early: 0,
            relists: Relists::default(),
            rests_until: None,
            complete: Completeness::default(),
            continuity: Continuity::default(),
            inquiries: HistoryChecks::default(),
            begun: HistoryBegin { asked: Instant::now(), rewound: false },
            rewinding: false,
            interruptions: LogLimit::default(),
        }
    }

    /// Runs until the feed is over for a reason that waiting does not cure.
    pub(super) async fn run(&mut self) -> FeedEnd {
        let mut state = State::Empty;
        loop {
            let (next, failure) = self.step(state).await;
            state = next;
            let Some(failure) = failure else { continue };
            if let StepFailure::Over(end) = failure
                && !self.bears(end, &state)
            {
                return end;
            }
            let wait = self.pause_after(&failure, &mut state);
            self.log_interruption(&failure, wait);
            self.pause(wait, &failure).await;
        }
    }

    /// Logs a failure. An apiserver ends each watch now and then; any other end is a warning, which is limited, because
    /// all feeds fail at once when upstream is gone.
    fn log_interruption(&self, failure: &StepFailure, wait: Duration) {
        let feed = &self.means.upstream.feed;
        feed.counts.note_trouble(failure.in_brief());
        if let StepFailure::Stream(Ended::Clean) = failure {
            tracing::info!(feed = %feed.spec.key, %failure, ?wait, "upstream stream interrupted");
        } else if let Some(failures) = self.interruptions.failed(Instant::now()) {
            tracing::warn!(feed = %feed.spec.key, %failure, failures, ?wait, "upstream stream interrupted");
        }
    }

    /// Whether a refusal is waited out. An apiserver that has just started denies what its caches do not know yet, and
    /// that must not end a feed that was allowed a minute ago (R-UPSTREAM-5 bounds it).
    fn bears(&mut self, end: FeedEnd, state: &State) -> bool {
        let may_pass = matches!(end, FeedEnd::Forbidden | FeedEnd::Gone) && !matches!(state, State::Empty);
        if self.refused_since.is_none() {
            self.refusals = Backoff::new(REFUSED_WAITS);
        }
        may_pass && self.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX
    }

    /// Marks the feed as over for its readers.
    pub(super) fn end(&mut self, end: FeedEnd) {
        self.writer.set_state(FeedState::Ended(end));
    }

    /// Takes a step to the next state. Also returns what went wrong on the way.
    async fn step(&mut self, state: State) -> (State, Option<StepFailure>) {
        if let State::Listed { .. } = state
            && let Some(rested) = self.rests_until.take()
        {
            self.writer.set_state(FeedState::Stale { since: self.last_sign });
            sleep_until(rested).await;
        }
        match state {
            State::Empty => match self.initial().await {
                Ok(next) => (next, None),
                Err(failure) => (State::Empty, Some(failure)),
            },
            State::Listed { at } => match self.resume(at).await {
                Ok((stream, witness)) => {
                    self.complete.opened(false);
                    self.means.written.opened(stream.server());
                    // Upstream's stream is open again. On a quiet resource the first item may be a minute away.
                    self.writer.set_state(FeedState::Live);
                    (State::Watching { at, stream, witness }, None)
                }
                Err((StepFailure::Upstream(error), Some(_))) if error.is_expired() => (self.untold(at), None),
                Err((StepFailure::Upstream(error), None)) if error.is_expired() => self.expired(at, error),
                Err((failure, _)) => (State::Listed { at }, Some(failure)),
            },
            State::Watching { at, stream, witness } => {
                let opened = Instant::now();
                let ended = self.watch(at, stream, witness).await;
                self.had_lived = opened.elapsed() >= LIVED;
                ended
            }
            State::Expired { at, window } => match self.relist(at, window).await {
                Ok(next) => (next, None),
                // The state was compacted in the meantime, so the most recent one will do.
                Err(StepFailure::Upstream(error)) if error.is_expired() && window.is_some() => {
                    (State::Expired { at, window: None }, None)
                }
                Err(failure) => (State::Expired { at, window }, Some(failure)),
            },
        }
    }

    /// Starts with the state behind which the oldest of the waiting clients wants to go on, if upstream still has it
    /// and what follows it: then a restart of the proxy costs none of them a list. One who comes from long ago must not
    /// make the others list.
    async fn resumed(&mut self) -> Option<State> {
        self.means.upstream.feed.oldest_resume()?;
        // Only a first state may be an old one. A feed that has been served must not be seen older again (L6), and
        // versions of a history that was given up mean nothing in the next.
        if self.means.upstream.feed.reader.progress().rv > ResourceVersion::default() {
            return None;
        }
        sleep(RESUME_GATHER).await;
        let at = self.means.upstream.feed.oldest_resume()?;
        let (asked, lister) = (Instant::now(), self.lister(SideRequest::Initial));
        let (told, listed) = tokio::join!(self.position(), lister.list_whole(At::Exact(at)));
        let InitialState { snapshot, servers, .. } = listed.ok()?;
        let stream = lister.not_forgotten(at).await?;
        let (upstream, template) = told.unzip();
        if let Some(template) = template.flatten() {
            self.writer.set_bookmark(template);
        }
        let (feed, objects) = (&self.means.upstream.feed.spec.key, snapshot.len());
        tracing::info!(%feed, objects, rv = %at, "feed listed as its clients had last seen it");
        self.means.written.takes_in(&servers);
        self.writer.replace(snapshot);
        self.means.written.listed(servers);
        self.means.upstream.feed.freshness.forget();
        self.means.upstream.feed.begins_behind(asked);
        self.complete.begins_at(at, upstream);
        self.begins(asked, false);
        self.signed_of_life();
        self.writer.set_state(FeedState::Live);
        Some(self.behind(at, Some(Follow { stream, template: None })))
    }

    /// How far upstream has come, and the layout of its bookmarks. Such a list does not tell either, and upstream's own
    /// bookmark would come within a minute.
    async fn position(&self) -> Option<(Position, Option<BookmarkTemplate>)> {
        let asked = Instant::now();
        self.means.upstream.metrics.asked(SideRequest::Position);
        let told = timeout(POSITION_MAX, self.lister(SideRequest::Position).position(None)).await.ok()?;
        let failed =
            |error: &Ended| tracing::debug!(feed = %self.means.upstream.feed.spec.key, %error, "no position was told");
        let told = told.inspect_err(failed).ok()?;
        Some((Position { asked, at: told.at }, told.template))
    }

    async fn initial(&mut self) -> Result<State, StepFailure> {
        if let Some(resumed) = Box::pin(self.resumed()).await {
            return Ok(resumed);
        }
        let asked = Instant::now();
        self.means.upstream.metrics.asked(SideRequest::Initial);
        let initial =
            self.lister(SideRequest::Initial).current(&self.means.upstream.lists_only).await.map_err(ended)?;
        let (served, at) = (self.means.upstream.feed.reader.progress().rv, initial.snapshot.rv);
        if at < served {
            self.give_up(served, "a list is older than what was served");
        }
        let (feed, objects, took) = (&self.means.upstream.feed.spec.key, initial.snapshot.len(), asked.elapsed());
        tracing::info!(%feed, objects, rv = %at, ?took, "feed listed");
        Ok(self.starts_with(initial, asked))
    }

    /// Begins a history with the current state.
    fn starts_with(&mut self, initial: InitialState, asked: Instant) -> State {
        let InitialState { snapshot, stream, servers, .. } = initial;
        let at = snapshot.rv;
        self.means.written.takes_in(&servers);
        self.writer.replace(snapshot);
        self.means.written.listed(servers);
        self.means.upstream.feed.freshness.forget();
        self.means.upstream.feed.freshness.prove(asked);
        self.complete.listed(asked);
        self.begins(asked, self.rewinding);
        self.signed_of_life();
        let next = self.behind(at, stream);
        // Set last: it lets in the requests that wait for the feed.
        self.writer.set_state(FeedState::Live);
        next
    }

    /// Forgets what concerns the history before.
    fn begins(&mut self, asked: Instant, rewound: bool) {
        self.begun = HistoryBegin { asked, rewound };
        self.continuity = Continuity::Sure;
        self.inquiries.forget();
        self.rewinding = false;
    }

    /// The state behind a list: watching, if a stream came with the list.
    fn behind(&mut self, at: ResourceVersion, stream: Option<Follow>) -> State {
        let Some(Follow { stream, template }) = stream else { return State::Listed { at } };
        self.complete.opened(template.is_some());
        self.means.written.opened(stream.server());
        if let Some(template) = template {
            self.writer.set_bookmark(template);
        }
        State::Watching { at, stream, witness: None }
    }

    fn lister(&self, why: SideRequest) -> Lister<'_> {
        self.means.upstream.lister(why)
    }

    fn signed_of_life(&mut self) {
        self.last_sign = Instant::now();
        self.refused_since = None;
        self.woken_early = 0;
        self.backoff.succeeded(self.last_sign);
    }

    /// Waits. If upstream could not be reached, the wait ends sooner when it has answered somebody else meanwhile.
    async fn pause(&mut self, wait: Duration, failure: &StepFailure) {
        let soonest = Instant::now() + least_pause(self.woken_early);
        let back = async {
            if !failure.kind().is_connection() {
                std::future::pending::<()>().await;
            }
            self.means.upstream.client.answers().await;
            sleep_until(soonest).await;
            // Feeds do not all go on in the same instant.
            sleep(RESUME_SPREAD.mul_f64(random::f64())).await;
        };
        tokio::select! {
            biased;
            () = sleep(wait) => {}
            () = back => self.woken_early += 1,
        }
    }

    /// How long to wait after a failure. It may lead a stream that cannot be read back to the start.
    fn pause_after(&mut self, failure: &StepFailure, state: &mut State) -> Duration {
        let kind = failure.kind();
        self.means.upstream.metrics.failed(kind.as_str());
        if !failure.is_expired() {
            self.relists.end_row();
        }
        if kind.is_connection() {
            // The server that refused is gone; the next one has caches of its own to fill.
            self.refused_since = None;
        }
        // A stream without bookmarks is silent whenever nothing happens.
        if kind != FailureKind::Silent || self.means.upstream.feed.spec.key.gvr.has_watch_cache() {
            self.continuity.lost();
        }
        if let State::Listed { .. } | State::Expired { .. } = state {
            self.writer.set_state(FeedState::Stale { since: Instant::now() });
        }
        if let State::Listed { at } = state
            && kind == FailureKind::Unreadable
        {
            let (rv, times) = &mut self.unreadable;
            *times = if *rv == *at { *times + 1 } else { 1 };
            *rv = *at;
            if *times >= UNREADABLE_MAX {
                tracing::error!(feed = %self.means.upstream.feed.spec.key, %at, "unreadable stream; listing anew");
                *state = State::Empty;
            }
        }
        // A stream that had lived is resumed at once: mostly only the connection is gone.
        if std::mem::take(&mut self.had_lived) && kind.is_connection() {
            return RESUME_SPREAD.mul_f64(random::f64());
        }
        if kind == FailureKind::Over {
            return self.refusals.failed(Instant::now());
        }
        let wait = self.backoff.failed(Instant::now());
        failure.retry_after().map_or(wait, |seconds| Duration::from_secs(seconds.clamp(1, 30)))
    }
}

/// How long a pause lasts at least that follows so many in a row that were cut short. It grows, or feeds that fail
/// together would keep waking each other; it is forgotten at the first sign of life, as the row is.
fn least_pause(woken_early: u32) -> Duration {
    if woken_early == 0 { Duration::ZERO } else { WOKEN_WAITS.after(woken_early) }
}

fn ended(end: Ended) -> StepFailure {
    match end {
        Ended::Failed(error) => over(error),
        end => end.into(),
    }
}
