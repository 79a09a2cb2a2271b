use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::base::{Backoff, Waits};
use crate::cache::{CacheWriter, Change, End, Feed, Snapshot, State as FeedState};
use crate::kube::ResourceVersion;
use crate::upstream::{Client, Error};
use crate::wire::{BookmarkTemplate, ObjectReader, WatchItem, WireError};

use super::failure::{Failure, over};
use super::gap::{Completeness, Position, Relist, Relists};
use super::initial::{At, Follow, Initial, Lister};
use super::mend::{self, Historian};
use super::metrics::{Asked, FeedMetrics};
use super::session::{self, Broken, Step};
use super::stream::{Ended, WatchStream};

/// Keeps one feed in step with upstream; the only writer of its cache.
pub(super) struct Reflector {
    means: Means,
    writer: CacheWriter,
    /// History that a proof read beside our own stream.
    proofs: mpsc::Receiver<Proof>,
    backoff: Backoff,
    /// Failures to read what comes after one version: a poisoned stream must not be retried for ever.
    unreadable: (ResourceVersion, u32),
    last_sign: Instant,
    /// The stream that was lost last had been open for a while.
    had_lived: bool,
    /// Since when upstream has refused a feed that it had served.
    refused_since: Option<Instant>,
    /// A pause of this row of failures was cut short because upstream answered somebody.
    woken_early: bool,
    relists: Relists,
    complete: Completeness,
}

/// What a reflector works with.
pub(super) struct Means {
    pub(super) client: Client,
    pub(super) feed: Arc<Feed>,
    pub(super) reader: Arc<ObjectReader>,
    pub(super) metrics: FeedMetrics,
    /// Whether upstream is known not to stream lists; shared by all feeds of one upstream.
    pub(super) lists_only: Arc<AtomicBool>,
    pub(super) waits: Waits,
}

/// Changes after our version, in order and without a gap, up to `until`.
#[derive(Debug)]
pub(super) struct Proof {
    /// The history of the feed that they belong to.
    pub(super) history: u64,
    pub(super) changes: Vec<Change>,
    pub(super) until: ResourceVersion,
}

/// Where the feed stands. A state holds what is valid only in it.
enum State {
    /// Nothing is known.
    Empty,
    /// Complete up to `at`; no stream is open. A lost socket lands here.
    Listed { at: ResourceVersion },
    /// Complete up to `at`, and the stream that goes on from there.
    Watching { at: ResourceVersion, stream: WatchStream },
    /// Complete up to `at`, but upstream no longer has what follows. A 410 lands here. `window`: where upstream's own
    /// history begins, if that state is to be listed rather than the current one.
    Expired { at: ResourceVersion, window: Option<ResourceVersion> },
}

/// Streams that could not be read from one version before the feed is listed anew.
const UNREADABLE_MAX: u32 = 3;

/// How long a refusal of a feed that had been served is taken for a passing one.
const REFUSED_MAX: Duration = Duration::from_secs(20);
/// A feed that holds up to so much is listed again in one request; the answer is read whole.
const WHOLE_LIST_BYTES_MAX: usize = 256 << 20;
/// How long clients that come back after a restart are gathered before the oldest one decides.
const RESUME_GATHER: Duration = Duration::from_millis(300);
/// How long a feed that begins where a client was waits to hear how far upstream is, and how its bookmarks look.
const POSITION_MAX: Duration = Duration::from_secs(1);
/// A stream that was open for so long had been accepted in earnest.
const LIVED: Duration = Duration::from_secs(5);
/// A stream that is over sooner, and without a word, was not meant to be one.
const SHORT: Duration = Duration::from_secs(1);
/// Feeds that lost their streams together resume within this time of each other.
const RESUME_SPREAD: Duration = Duration::from_millis(300);

impl Reflector {
    pub(super) fn new(means: Means, writer: CacheWriter, proofs: mpsc::Receiver<Proof>) -> Self {
        Self {
            backoff: Backoff::new(means.waits),
            means,
            writer,
            proofs,
            unreadable: (ResourceVersion::default(), 0),
            last_sign: Instant::now(),
            had_lived: false,
            refused_since: None,
            woken_early: false,
            relists: Relists::default(),
            complete: Completeness::default(),
        }
    }

    /// Runs until the feed is over for a reason that waiting does not cure.
    pub(super) async fn run(&mut self) -> End {
        let mut state = State::Empty;
        loop {
            let (next, failure) = self.step(state).await;
            state = next;
            let Some(failure) = failure else { continue };
            if let Failure::Over(end) = failure
                && !self.bears(end, &state)
            {
                return end;
            }
            let wait = self.pause_after(&failure, &mut state);
            tracing::info!(feed = %self.means.feed.spec.key, %failure, ?wait, "upstream stream interrupted");
            self.pause(wait, &failure).await;
        }
    }

    /// Whether a refusal is waited out: an apiserver that has just started denies what its caches do not know yet, and
    /// that must not end a feed that was allowed a minute ago (reliability.md U7 bounds it).
    fn bears(&mut self, end: End, state: &State) -> bool {
        let may_pass = matches!(end, End::Forbidden | End::Gone) && !matches!(state, State::Empty);
        may_pass && self.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX
    }

    /// Marks the feed as over for its readers.
    pub(super) fn end(&mut self, end: End) {
        self.writer.set_state(FeedState::Ended(end));
    }

    /// The next state, and what went wrong on the way if something did.
    async fn step(&mut self, state: State) -> (State, Option<Failure>) {
        match state {
            State::Empty => match self.initial().await {
                Ok(next) => (next, None),
                Err(failure) => (State::Empty, Some(failure)),
            },
            State::Listed { at } => match self.resume(at).await {
                Ok(stream) => {
                    self.complete.opened(false);
                    // Upstream's stream is open again; on a quiet resource its first word may be a minute away.
                    self.writer.set_state(FeedState::Live);
                    (State::Watching { at, stream }, None)
                }
                Err(Failure::Upstream(error)) if error.is_expired() => self.expired(at, error),
                Err(failure) => (State::Listed { at }, Some(failure)),
            },
            State::Watching { at, stream } => {
                let opened = Instant::now();
                let ended = self.watch(at, stream).await;
                self.had_lived = opened.elapsed() >= LIVED;
                ended
            }
            State::Expired { at, window } => match self.relist(at, window).await {
                Ok(next) => (next, None),
                // Compacted in the meantime: the most recent state will do.
                Err(Failure::Upstream(error)) if error.is_expired() && window.is_some() => {
                    (State::Expired { at, window: None }, None)
                }
                Err(failure) => (State::Expired { at, window }, Some(failure)),
            },
        }
    }

    /// The state that the oldest of the waiting clients wants to go on from, if upstream still has it: a restart of the
    /// proxy then costs none of them a list.
    async fn resumed(&mut self) -> Option<State> {
        self.means.feed.oldest_resume()?;
        tokio::time::sleep(RESUME_GATHER).await;
        // Only a first state may be an old one: what has been served is not to be seen older again (reliability.md L6).
        let served = self.means.feed.reader.progress().rv;
        let at = self.means.feed.oldest_resume().filter(|at| *at >= served)?;
        let lister = self.lister();
        let (told, listed) = tokio::join!(self.position(), lister.list_whole(At::Exact(at)));
        let snapshot = listed.ok()?.snapshot;
        let (upstream, template) = told.unzip();
        if let Some(template) = template.flatten() {
            self.writer.set_bookmark(template);
        }
        let (feed, objects) = (&self.means.feed.spec.key, snapshot.len());
        tracing::info!(%feed, objects, rv = %at, "feed listed as its clients had last seen it");
        self.writer.replace(snapshot);
        self.means.feed.currency.forget();
        self.complete.begins_at(at, upstream);
        self.signed_of_life();
        self.writer.set_state(FeedState::Live);
        Some(State::Listed { at })
    }

    /// How far upstream has come, and how bookmarks look, which such a list does not tell: upstream's own would come
    /// within a minute.
    async fn position(&self) -> Option<(Position, Option<BookmarkTemplate>)> {
        let asked = Instant::now();
        self.means.metrics.asked(Asked::Position);
        let told = timeout(POSITION_MAX, self.lister().position_and_bookmark()).await.ok()?;
        let failed = |error: &Ended| tracing::debug!(feed = %self.means.feed.spec.key, %error, "no position was told");
        let (at, template) = told.inspect_err(failed).ok()?;
        Some((Position { asked, at }, template))
    }

    async fn initial(&mut self) -> Result<State, Failure> {
        if let Some(resumed) = self.resumed().await {
            return Ok(resumed);
        }
        let asked = Instant::now();
        self.means.metrics.asked(Asked::Initial);
        let Initial { snapshot, stream } = self.lister().current(&self.means.lists_only).await.map_err(ended)?;
        let at = snapshot.rv;
        let (feed, objects, took) = (&self.means.feed.spec.key, snapshot.len(), asked.elapsed());
        tracing::info!(%feed, objects, rv = %at, ?took, "feed listed");
        self.writer.replace(snapshot);
        self.means.feed.currency.forget();
        self.means.feed.currency.prove(asked);
        self.complete.listed(asked);
        self.signed_of_life();
        let next = self.behind(at, stream);
        // Last: requests that wait for the feed are let in by it.
        self.writer.set_state(FeedState::Live);
        Ok(next)
    }

    /// Where a list leads: to the watch that came with it, if one did.
    fn behind(&mut self, at: ResourceVersion, stream: Option<Follow>) -> State {
        let Some(Follow { stream, template }) = stream else { return State::Listed { at } };
        self.complete.opened(template.is_some());
        if let Some(template) = template {
            self.writer.set_bookmark(template);
        }
        State::Watching { at, stream }
    }

    fn lister(&self) -> Lister<'_> {
        Lister {
            client: &self.means.client,
            spec: &self.means.feed.spec,
            reader: &self.means.reader,
            cache: &self.means.feed.reader,
        }
    }

    async fn resume(&self, at: ResourceVersion) -> Result<WatchStream, Failure> {
        let spec = &self.means.feed.spec;
        // Events go by lease, many at one version: the stream may have broken among them. What came is known again.
        let among_siblings = &*spec.key.gvr.resource == "events" && self.means.feed.reader.is_at_event(at);
        let at = if among_siblings { ResourceVersion(at.0.saturating_sub(1)) } else { at };
        let path = spec.key.url(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={at}"));
        WatchStream::open(&self.means.client, &path, spec.key.form).await.map_err(over)
    }

    /// Follows the stream until it ends, and says from where to go on.
    async fn watch(&mut self, mut at: ResourceVersion, mut stream: WatchStream) -> (State, Option<Failure>) {
        let _open = self.means.metrics.watch_open();
        let (feed, opened) = (self.means.feed.clone(), Instant::now());
        loop {
            let item = tokio::select! {
                item = stream.next(&self.means.reader) => item,
                Some(proof) = self.proofs.recv() => {
                    match self.adopt(proof) {
                        Ok(reached) => at = at.max(reached),
                        Err(broken) => return (State::Listed { at }, Some(broken.into())),
                    }
                    continue;
                }
            };
            let is_bookmark = matches!(item, Ok(WatchItem::Bookmark { .. }));
            let step = match item {
                Ok(item) => session::apply(item, &mut self.writer, &self.means.metrics),
                Err(Ended::Clean) => return (State::Listed { at }, self.clean_end(at, opened)),
                Err(Ended::Failed(error @ Error::Wire(WireError::OtherColumns))) => {
                    return (State::Listed { at }, Some(over(error)));
                }
                Err(ended) => return (State::Listed { at }, Some(ended.into())),
            };
            // By its own growth, which shows before the next event is applied. By that of others a feed is found to have
            // outgrown the memory while it waits: whoever runs this hears of it.
            if self.writer.is_outgrown() {
                return (State::Listed { at }, Some(Failure::Over(End::OverBudget)));
            }
            match step {
                Ok(Step::At(rv)) => {
                    self.complete.came(is_bookmark, at, rv, Instant::now());
                    at = at.max(rv);
                    self.relists.goes_on();
                    self.signed_of_life();
                    self.writer.set_state(FeedState::Live);
                }
                Ok(Step::Skipped) => {}
                Ok(Step::Refused(status)) => {
                    let error = Error::Refused(status);
                    if error.is_expired() {
                        return self.expired(at, error);
                    }
                    return (State::Listed { at }, Some(error.into()));
                }
                // It contradicts the history: what we hold may be wrong, so nothing of it is kept.
                Err(Broken::OutOfOrder(error)) => {
                    tracing::error!(feed = %feed.spec.key, %error, "upstream contradicts itself; listing anew");
                    self.writer.set_state(FeedState::Syncing);
                    return (State::Empty, Some(Broken::OutOfOrder(error).into()));
                }
                Err(broken) => return (State::Listed { at }, Some(broken.into())),
            }
        }
    }

    /// A stream that ended cleanly is resumed at once, unless it was over as soon as it had begun and had brought
    /// nothing: then upstream is turning us away (reliability.md U5; client-go calls it a very short watch).
    fn clean_end(&self, at: ResourceVersion, opened: Instant) -> Option<Failure> {
        tracing::debug!(feed = %self.means.feed.spec.key, rv = %at, "upstream ended the watch");
        // Upstream ends the watches of a definition that it has just heard of: what it told us was by the old one.
        if self.means.feed.is_settling() {
            return Some(Failure::Over(End::Outdated));
        }
        let in_vain = self.last_sign < opened && opened.elapsed() < SHORT;
        in_vain.then(|| Ended::Clean.into())
    }

    /// Takes in what a proof has read beside our own stream; that stream's copies will be duplicates.
    fn adopt(&mut self, proof: Proof) -> Result<ResourceVersion, Broken> {
        if proof.history != self.means.feed.reader.history() {
            return Ok(ResourceVersion::default());
        }
        for change in proof.changes {
            self.writer.apply(change)?;
        }
        self.writer.advance(proof.until, false);
        Ok(proof.until)
    }

    /// Upstream says 410: what to list, and whether to pause before that.
    fn expired(&self, at: ResourceVersion, error: Error) -> (State, Option<Failure>) {
        let window = match &error {
            Error::Refused(status) => mend::window_start(&status.message).filter(|window| *window >= at),
            _ => None,
        };
        // What cannot be mended needs no state that is older than the current one.
        let window = window.filter(|_| self.may_be_mended());
        let Relist { window, pauses } = self.relists.next(window, Instant::now());
        (State::Expired { at, window }, pauses.then(|| error.into()))
    }

    /// Whether a gap is young enough. One of which nobody knows how old it is may hide anything.
    fn may_be_mended(&self) -> bool {
        let proven = self.means.feed.currency.proven();
        self.complete.age(proven, Instant::now()).is_some_and(|age| age <= mend::OUTAGE_MAX)
    }

    /// Upstream has forgotten what follows `at`: one list, and the gap mended if it can be proven.
    async fn relist(&mut self, at: ResourceVersion, window: Option<ResourceVersion>) -> Result<State, Failure> {
        self.writer.set_state(FeedState::Stale { since: self.last_sign });
        self.means.metrics.asked(Asked::Relist);
        let asked = Instant::now();
        let is_small = self.means.feed.reader.stats().object_bytes <= WHOLE_LIST_BYTES_MAX;
        let Initial { snapshot, stream } = match window.map(At::Exact) {
            Some(exact) if is_small => self.lister().list_whole(exact).await.map_err(over)?,
            Some(exact) => self.lister().list(exact).await.map_err(over)?,
            None => self.lister().current_and_watch(&self.means.lists_only).await.map_err(ended)?,
        };
        if snapshot.rv < at {
            // The store went back in time: nothing that we hold may be served any more (reliability.md F3).
            tracing::error!(feed = %self.means.feed.spec.key, %at, now = %snapshot.rv, "upstream went back in time");
        }
        let until = snapshot.rv;
        let mended = until >= at && self.mend(at, &snapshot, window.is_some()).await?;
        self.means.metrics.gap(mended);
        let (feed, took) = (&self.means.feed.spec.key, asked.elapsed());
        tracing::info!(%feed, from = %at, %until, mended, ?took, "feed listed again");
        if !mended {
            self.means.feed.currency.forget();
            self.writer.replace(snapshot);
        }
        if window.is_none() && until >= at {
            self.means.feed.currency.prove(asked);
            self.complete.listed(asked);
        }
        self.signed_of_life();
        self.relists.listed(Instant::now());
        self.writer.set_state(FeedState::Live);
        Ok(self.behind(until, stream))
    }

    /// Applies what happened up to `list`, if that can be proven.
    async fn mend(&mut self, at: ResourceVersion, list: &Snapshot, exact: bool) -> Result<bool, Failure> {
        let differences = mend::differences(&self.means.feed.reader.snapshot(), list);
        // Between a version and itself nothing can have happened, however long ago.
        let may_be_mended = list.rv == at || self.may_be_mended();
        if !may_be_mended || (!exact && !differences.is_empty()) {
            return Ok(false);
        }
        self.metrics_past(differences.len());
        let historian = Historian { lister: self.lister() };
        let changes = match historian.recover(&differences, list.rv).await {
            Ok(Some(changes)) => changes,
            Ok(None) => return Ok(false),
            // Upstream is away: tried again when it is back.
            Err(error @ (Error::Unreachable(_) | Error::Broken(_) | Error::Timeout(_))) => return Err(error.into()),
            // Compacted, or not to be read in this way: nobody can tell any more.
            Err(error) => {
                tracing::info!(feed = %self.means.feed.spec.key, %error, "the gap cannot be read back");
                return Ok(false);
            }
        };
        for change in changes {
            self.writer.apply(change).map_err(Broken::OutOfOrder)?;
        }
        self.writer.advance(list.rv, false);
        Ok(true)
    }

    fn metrics_past(&self, objects: usize) {
        (0..objects).for_each(|_| self.means.metrics.asked(Asked::Past));
    }

    fn signed_of_life(&mut self) {
        self.last_sign = Instant::now();
        self.refused_since = None;
        self.woken_early = false;
        self.backoff.succeeded(self.last_sign);
    }

    /// Waits; if upstream could not be reached, only until it answers somebody else, and a moment more.
    async fn pause(&mut self, wait: Duration, failure: &Failure) {
        let back = async {
            if !failure.is_connection() || self.woken_early {
                std::future::pending::<()>().await;
            }
            self.means.client.answers().await;
            // Not all feeds in the same instant.
            tokio::time::sleep(RESUME_SPREAD.mul_f64(fastrand::f64())).await;
        };
        // Once in a row of failures, or feeds that fail together would keep waking each other.
        self.woken_early = tokio::select! {
            () = tokio::time::sleep(wait) => self.woken_early,
            () = back => true,
        };
    }

    /// How long to wait after a failure; may send a stream that cannot be read back to the start.
    fn pause_after(&mut self, failure: &Failure, state: &mut State) -> Duration {
        self.means.metrics.failed(failure.word());
        if let State::Listed { .. } | State::Expired { .. } = state {
            self.writer.set_state(FeedState::Stale { since: Instant::now() });
        }
        if let State::Listed { at } = state
            && failure.is_unreadable()
        {
            let (rv, times) = &mut self.unreadable;
            *times = if *rv == *at { *times + 1 } else { 1 };
            *rv = *at;
            if *times >= UNREADABLE_MAX {
                tracing::error!(feed = %self.means.feed.spec.key, %at, "unreadable stream; listing anew");
                *state = State::Empty;
            }
        }
        // A stream that had lived is resumed at once: most often only the connection is gone.
        if std::mem::take(&mut self.had_lived) && failure.is_connection() {
            return RESUME_SPREAD.mul_f64(fastrand::f64());
        }
        let wait = self.backoff.failed(Instant::now());
        failure.retry_after().map_or(wait, |seconds| Duration::from_secs(seconds.clamp(1, 30)))
    }
}

fn ended(end: Ended) -> Failure {
    match end {
        Ended::Failed(error) => over(error),
        end => end.into(),
    }
}
