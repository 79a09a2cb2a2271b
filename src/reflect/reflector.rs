mod follow;
mod relist;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::cache::{CacheWriter, FeedEndReason, FeedState, ResumeMarker};
use crate::upstream::UpstreamServer;
use crate::wire::BookmarkTemplate;
use base::{Backoff, BackoffBounds, LogRateLimit, random};
use kubeapi::ResourceVersion;
use tokio::sync::watch;

use super::continuity::HistoryContinuity;
use super::failure::{ReflectorStepError, classify};
use super::feed_client::FeedTaskContext;
use super::gap::{FeedAsOfTracker, ObservedResourceVersion, RelistPlanner};
use super::history_check::HistoryChecks;
use super::initial_state::{ContinuingWatch, FeedInitialState, RequestedListVersion};
use super::metrics::{EventAgeSampler, FeedRequestPurpose};
use super::reflector_findings::{HistoryOrigin, ReflectorFinding, StorageRollbackNotifier};
use super::stream::{UpstreamWatchStream, WatchStreamEnd};

/// Keeps one feed in sync with upstream. It is the only writer of the feed's cache.
pub(super) struct Reflector {
    upstream: FeedTaskContext,
    writer: CacheWriter,
    /// Receives findings of the tasks that run beside the stream, such as proofs, backfilled events and contradictions.
    findings: mpsc::Receiver<ReflectorFinding>,
    /// Exchanges rollback notices between the feeds of one upstream.
    rollbacks: Arc<StorageRollbackNotifier>,
    rollback_notices: watch::Receiver<Option<Instant>>,
    backoff: Backoff,
    /// A version, and how often a stream from it was unreadable in a row. This bounds the retries of a broken stream.
    unreadable: (ResourceVersion, u32),
    last_sign: Instant,
    /// Whether the last lost stream had been open for at least [`ACCEPTED_AFTER`].
    was_accepted: bool,
    /// The time at which upstream began to refuse this feed after having served it.
    refused_since: Option<Instant>,
    /// The delays between attempts while upstream refuses the feed.
    refusals: Backoff,
    /// The number of delays in this row of failures that ended early because upstream had responded to another request.
    early_wakeups: u32,
    relists: RelistPlanner,
    /// The earliest time of the next upstream request of a feed that was just relisted.
    rests_until: Option<Instant>,
    complete: FeedAsOfTracker,
    continuity: HistoryContinuity,
    history_checks: HistoryChecks,
    /// How the current history of the feed began.
    origin: HistoryOrigin,
    /// Whether the history is being discarded because upstream has another one.
    is_rolled_back: bool,
    /// Limits the rate at which interruptions are logged.
    interruptions: LogRateLimit,
    /// Whether an interruption was logged as a warning, and its end was not logged.
    is_interrupted: bool,
    event_ages: EventAgeSampler,
}

/// The sync state of the feed. Each state holds only data that is valid in it.
#[allow(clippy::large_enum_variant, reason = "there is one for each feed, and it is never moved about")]
enum ReflectorState {
    /// The feed has no valid state.
    Empty,
    /// The state is complete up to `at`, and no stream is open. A lost connection leads here.
    Listed { at: ResourceVersion },
    /// The state is complete up to `at`, with the stream that continues from there. `resume_marker` is the change that
    /// the stream must send first, if the stream was opened before it.
    Watching { at: ResourceVersion, stream: UpstreamWatchStream, resume_marker: Option<ResumeMarker> },
    /// The state is complete up to `at`, but upstream no longer has the changes after it. A 410 leads here. If `window`
    /// is set, it is the start of upstream's own history, and the state at that version is listed. Otherwise the
    /// current state is.
    Expired { at: ResourceVersion, window: Option<ResourceVersion> },
}

impl ReflectorState {
    /// Returns what the feed does in this state, for logs.
    fn phase(&self) -> &'static str {
        match self {
            Self::Empty => "initial",
            Self::Listed { .. } | Self::Watching { .. } => "watch",
            Self::Expired { .. } => "relist",
        }
    }
}

/// The age of a listed state that begins a history.
#[derive(Debug, Clone, Copy)]
enum HistoryStart {
    /// The state was current when it was requested.
    Current,
    /// The state is at the version of a resuming client. The value is the position of upstream's storage, if known.
    AtClientVersion(Option<ObservedResourceVersion>),
    /// The state is at the start of upstream's own history.
    AtWindow,
}

/// The number of unreadable streams from one version after which the feed is relisted.
const UNREADABLE_MAX: u32 = 3;

/// The maximum duration of a refusal that does not end a feed served before.
const REFUSED_MAX: Duration = Duration::from_secs(20);
/// The delays during a refusal. An apiserver that has just started grants the request within seconds, while the delays
/// of the preceding outage may have grown to half a minute.
const REFUSED_WAITS: BackoffBounds =
    BackoffBounds { first: Duration::from_millis(250), longest: Duration::from_secs(4) };
/// The delay for clients that resume after a restart, before the oldest version among them is used.
const RESUME_GATHER: Duration = Duration::from_millis(300);
/// The timeout for the position of upstream and the layout of its bookmarks, for a feed that begins at a client's
/// version.
const POSITION_MAX: Duration = Duration::from_secs(1);
/// The time after which an open stream counts as accepted.
const ACCEPTED_AFTER: Duration = Duration::from_secs(5);
/// The window over which feeds that lost their streams together spread their resumes.
const RESUME_SPREAD: Duration = Duration::from_millis(300);
/// The minimum waits for retries that a response to another request triggers, after the first one in a row. A needless
/// retry then costs about as much time as the outage has lasted, not the half minute of the feed's own backoff.
const EARLY_RETRY_BACKOFF: BackoffBounds =
    BackoffBounds { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

impl Reflector {
    pub(super) fn new(
        upstream: FeedTaskContext,
        writer: CacheWriter,
        findings: mpsc::Receiver<ReflectorFinding>,
        rollbacks: Arc<StorageRollbackNotifier>,
        waits: BackoffBounds,
    ) -> Self {
        Self {
            upstream,
            writer,
            findings,
            rollback_notices: rollbacks.follow(),
            rollbacks,
            backoff: Backoff::new(waits),
            unreadable: (ResourceVersion::default(), 0),
            last_sign: Instant::now(),
            was_accepted: false,
            refused_since: None,
            refusals: Backoff::new(REFUSED_WAITS),
            early_wakeups: 0,
            relists: RelistPlanner::default(),
            rests_until: None,
            complete: FeedAsOfTracker::default(),
            continuity: HistoryContinuity::default(),
            history_checks: HistoryChecks::default(),
            origin: HistoryOrigin { requested_at: Instant::now(), replaced_history: false },
            is_rolled_back: false,
            interruptions: LogRateLimit::default(),
            is_interrupted: false,
            event_ages: EventAgeSampler::new(),
        }
    }

    /// Runs until the feed ends for a reason that a retry cannot fix. Returns that reason.
    pub(super) async fn run(&mut self) -> FeedEndReason {
        let mut state = ReflectorState::Empty;
        loop {
            let phase = state.phase();
            let (next, failure) = self.step(state).await;
            state = next;
            let Some(failure) = failure else { continue };
            if let ReflectorStepError::FeedTerminated(end) = failure
                && !self.tolerates(end, &state)
            {
                return end;
            }
            let wait = self.pause_after(&failure, &mut state);
            self.log_interruption(&failure, phase, wait);
            self.pause(wait, &failure).await;
        }
    }

    /// Logs a failed list or watch. A clean end is normal for an apiserver and logged as info. Any other end is a
    /// rate-limited warning, because all feeds fail at once when upstream is unreachable.
    fn log_interruption(&mut self, failure: &ReflectorStepError, phase: &str, wait: Duration) {
        let feed = &self.upstream.feed;
        feed.counts.record_failure(failure.summary());
        if let ReflectorStepError::Stream(WatchStreamEnd::Closed) = failure {
            tracing::info!(
                feed = %feed.spec.key, error = %failure, phase, retry_in = ?wait,
                "upstream closed the watch; opening another"
            );
        } else if let Some(failures) = self.interruptions.failed(Instant::now()) {
            let (feed, error) = (&feed.spec.key, failure);
            tracing::warn!(
                %feed, %error, phase, failures, retry_in = ?wait,
                "cannot list or watch upstream; retrying"
            );
            self.is_interrupted = true;
        }
    }

    /// Sets the state of the feed by its open stream, and logs the end of an interruption. "feed synced" is the end of
    /// one without a state.
    fn set_state(&mut self, state: FeedState) {
        let feed = &self.upstream.feed;
        if state == FeedState::Live
            && std::mem::take(&mut self.is_interrupted)
            && let FeedState::Stale { since } = feed.reader.state()
        {
            tracing::info!(feed = %feed.spec.key, stale = ?since.elapsed(), "feed live again");
        }
        self.writer.set_state(state);
    }

    /// Whether the feed waits for a refusal to pass. An apiserver that has just started denies requests until its
    /// caches are filled, and a load balancer may answer for a server that is down. That must not end a feed that was
    /// served before (R-UPSTREAM-5 bounds the wait).
    fn tolerates(&mut self, end: FeedEndReason, state: &ReflectorState) -> bool {
        let may_pass = matches!(end, FeedEndReason::Forbidden | FeedEndReason::Gone | FeedEndReason::NotOffered)
            && !matches!(state, ReflectorState::Empty);
        if self.refused_since.is_none() {
            self.refusals = Backoff::new(REFUSED_WAITS);
        }
        may_pass && self.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX
    }

    /// Marks the feed as ended for its readers.
    pub(super) fn end(&mut self, end: FeedEndReason) {
        self.writer.set_state(FeedState::Ended(end));
    }

    /// Advances to the next state. Returns a failure if one occurred on the way.
    async fn step(&mut self, state: ReflectorState) -> (ReflectorState, Option<ReflectorStepError>) {
        if let ReflectorState::Listed { .. } = state
            && let Some(rested) = self.rests_until.take()
        {
            self.writer.set_state(FeedState::Stale { since: self.last_sign });
            sleep_until(rested).await;
        }
        match state {
            ReflectorState::Empty => match self.initial().await {
                Ok(next) => (next, None),
                Err(failure) => (ReflectorState::Empty, Some(failure)),
            },
            ReflectorState::Listed { at } => match self.resume(at).await {
                Ok((stream, resume_marker)) => {
                    self.complete.opened(false);
                    self.upstream.body_encoders.opened(stream.server());
                    // The stream is open again. On a quiet resource the first item may be a minute away. But a proxy
                    // without a stream sends nothing of what changes.
                    self.set_state(stream.feed_state);
                    (ReflectorState::Watching { at, stream, resume_marker }, None)
                }
                Err((failure, Some(_))) if failure.is_expired() => (self.marker_expired(at), None),
                Err((failure, None)) if failure.is_expired() => self.expired(at, failure),
                Err((failure, _)) => (ReflectorState::Listed { at }, Some(failure)),
            },
            ReflectorState::Watching { at, stream, resume_marker } => {
                let opened = Instant::now();
                let ended = self.watch(at, stream, resume_marker).await;
                self.was_accepted = opened.elapsed() >= ACCEPTED_AFTER;
                ended
            }
            ReflectorState::Expired { at, window } => match self.relist(at, window).await {
                Ok(next) => (next, None),
                // The listed version was compacted in the meantime, so the most recent state is listed.
                Err(failure) if failure.is_expired() && window.is_some() => {
                    (ReflectorState::Expired { at, window: None }, None)
                }
                Err(failure) => (ReflectorState::Expired { at, window }, Some(failure)),
            },
        }
    }

    /// Starts with the state from which the oldest waiting client resumes, if upstream still has it and the changes
    /// after it. After a restart of the proxy, no such client then has to relist. A client with a version that upstream
    /// no longer has must not make the others relist.
    async fn resumed(&mut self) -> Option<ReflectorState> {
        self.upstream.feed.oldest_resume()?;
        // Only the first state may be an old one. A feed that was served must not go back in time (L6), and versions of
        // a history that was given up mean nothing in the next one.
        if self.upstream.feed.reader.progress().rv > ResourceVersion::default() {
            return None;
        }
        sleep(RESUME_GATHER).await;
        let at = self.upstream.feed.oldest_resume()?;
        let lister = self.upstream.lister(FeedRequestPurpose::Initial);
        let (reported, listed) = tokio::join!(self.position(), lister.list_whole(RequestedListVersion::Exact(at)));
        let listed = listed.ok()?;
        let stream = lister.open_watch_if_available(at).await?;
        let (upstream, template) = reported.unzip();
        if let Some(template) = template.flatten() {
            self.writer.set_bookmark(template);
        }
        let (feed, objects, took) =
            (&self.upstream.feed.spec.key, listed.snapshot.len(), listed.requested_at.elapsed());
        tracing::info!(
            %feed, objects, rv = %at, ?took,
            "feed synced at an older resourceVersion so that clients can resume"
        );
        let initial = FeedInitialState { stream: Some(ContinuingWatch { stream, template: None }), ..listed };
        Some(self.begin(HistoryStart::AtClientVersion(upstream), initial))
    }

    /// Requests upstream's position and the layout of its bookmarks. A list at an old version has neither, and
    /// upstream's own bookmark may take a minute.
    async fn position(&self) -> Option<(ObservedResourceVersion, Option<BookmarkTemplate>)> {
        let requested_at = Instant::now();
        self.upstream.count_request(FeedRequestPurpose::Position);
        let reported =
            timeout(POSITION_MAX, self.upstream.lister(FeedRequestPurpose::Position).position(None)).await.ok()?;
        let feed = &self.upstream.feed.spec.key;
        let failed =
            |error: &WatchStreamEnd| tracing::debug!(%feed, %error, "cannot read upstream's current resourceVersion");
        let reported = reported.inspect_err(failed).ok()?;
        Some((ObservedResourceVersion { requested_at, at: reported.at }, reported.template))
    }

    async fn initial(&mut self) -> Result<ReflectorState, ReflectorStepError> {
        if let Some(resumed) = Box::pin(self.resumed()).await {
            return Ok(resumed);
        }
        self.upstream.count_request(FeedRequestPurpose::Initial);
        let served = self.upstream.feed.reader.progress().rv;
        let lister = self.upstream.lister(FeedRequestPurpose::Initial);
        let initial = lister.current().await.map_err(ended)?;
        let initial = lister.not_before(served, initial).await.map_err(ended)?;
        let at = initial.snapshot.rv;
        if at < served {
            self.discard_rolled_back(served, "a list is older than served data");
        }
        let (feed, objects, took) =
            (&self.upstream.feed.spec.key, initial.snapshot.len(), initial.requested_at.elapsed());
        tracing::info!(%feed, objects, rv = %at, ?took, "feed synced");
        Ok(self.begin(HistoryStart::Current, initial))
    }

    /// Begins a history with a listed state.
    fn begin(&mut self, start: HistoryStart, initial: FeedInitialState) -> ReflectorState {
        let FeedInitialState { snapshot, requested_at, stream, servers, .. } = initial;
        let at = snapshot.rv;
        self.upstream.body_encoders.will_list_from(&servers);
        // Proofs of the previous history do not apply to this one. Another one may end until the state is replaced.
        self.upstream.feed.freshness.clear();
        if let HistoryStart::AtClientVersion(position) = start {
            self.upstream.feed.start_from_old_state(requested_at);
            self.complete.start_from_unknown(at, position);
        }
        self.writer.replace(snapshot);
        self.upstream.feed.freshness.clear();
        self.origin = HistoryOrigin { requested_at, replaced_history: std::mem::take(&mut self.is_rolled_back) };
        self.history_checks.cancel_all();
        self.after_list(at, servers, stream, matches!(start, HistoryStart::Current).then_some(requested_at))
    }

    /// Records that the feed has a listed state, which was current at `as_of` if that is given. Returns `Watching` if
    /// a stream came with the list, otherwise `Listed`.
    fn after_list(
        &mut self,
        at: ResourceVersion,
        servers: Vec<UpstreamServer>,
        stream: Option<ContinuingWatch>,
        as_of: Option<Instant>,
    ) -> ReflectorState {
        self.upstream.body_encoders.listed(servers);
        self.continuity = HistoryContinuity::Certain;
        if let Some(requested_at) = as_of {
            self.upstream.feed.freshness.prove(requested_at);
            self.complete.listed(requested_at);
        }
        self.record_progress();
        let (mut next, mut state) = (ReflectorState::Listed { at }, FeedState::Live);
        if let Some(ContinuingWatch { stream, template }) = stream {
            self.complete.opened(template.is_some());
            self.upstream.body_encoders.opened(stream.server());
            if let Some(template) = template {
                self.writer.set_bookmark(template);
            }
            state = stream.feed_state;
            next = ReflectorState::Watching { at, stream, resume_marker: None };
        }
        // Set last, because it admits the requests that wait for the feed.
        self.set_state(state);
        next
    }

    fn record_progress(&mut self) {
        self.last_sign = Instant::now();
        self.refused_since = None;
        self.early_wakeups = 0;
        self.backoff.succeeded(self.last_sign);
    }

    /// Waits. If upstream was unreachable, the wait ends early once upstream responds to another request.
    async fn pause(&mut self, wait: Duration, failure: &ReflectorStepError) {
        let soonest = Instant::now() + least_pause(self.early_wakeups);
        let back = async {
            if !failure.is_connection() {
                std::future::pending::<()>().await;
            }
            self.upstream.client.next_response().await;
            sleep_until(soonest).await;
            // Spreads the resumes of all feeds.
            sleep(RESUME_SPREAD.mul_f64(random::f64())).await;
        };
        tokio::select! {
            biased;
            () = sleep(wait) => {}
            () = back => self.early_wakeups += 1,
        }
    }

    /// Returns the delay after a failure. After repeated unreadable streams it also resets the state, so that the feed
    /// relists.
    fn pause_after(&mut self, failure: &ReflectorStepError, state: &mut ReflectorState) -> Duration {
        self.upstream.count("kube_fanout_upstream_failures_total", "reason", failure.as_str());
        if !failure.is_expired() {
            self.relists.end_row();
        }
        if failure.is_connection() {
            // The server that refused is gone; the next one has to fill its own caches.
            self.refused_since = None;
        }
        // A stream without bookmarks is silent whenever nothing changes.
        let is_silent = matches!(failure, ReflectorStepError::Stream(WatchStreamEnd::IdleTimeout));
        if !is_silent || self.upstream.feed.spec.key.gvr.has_watch_cache() {
            self.continuity.connection_lost();
        }
        if let ReflectorState::Listed { .. } | ReflectorState::Expired { .. } = state {
            self.writer.set_state(FeedState::Stale { since: Instant::now() });
        }
        if let ReflectorState::Listed { at } = state
            && failure.is_unreadable()
        {
            let (rv, times) = &mut self.unreadable;
            *times = if *rv == *at { *times + 1 } else { 1 };
            *rv = *at;
            if *times >= UNREADABLE_MAX {
                let feed = &self.upstream.feed.spec.key;
                tracing::error!(%feed, rv = %at, "cannot decode the upstream watch; relisting");
                *state = ReflectorState::Empty;
            }
        }
        // A stream that had been open for long is resumed at once, because usually only the connection was lost.
        if std::mem::take(&mut self.was_accepted) && failure.is_connection() {
            return RESUME_SPREAD.mul_f64(random::f64());
        }
        if let ReflectorStepError::FeedTerminated(_) = failure {
            return self.refusals.failed(Instant::now());
        }
        self.backoff.refused(Instant::now(), failure.retry_after())
    }
}

/// The minimum wait after `early_wakeups` waits in a row that ended early. It grows, because feeds that fail together
/// would otherwise keep waking each other. The count resets at the first sign of life.
fn least_pause(early_wakeups: u32) -> Duration {
    if early_wakeups == 0 { Duration::ZERO } else { EARLY_RETRY_BACKOFF.after(early_wakeups) }
}

fn ended(end: WatchStreamEnd) -> ReflectorStepError {
    match end {
        WatchStreamEnd::Failed(error) => classify(error),
        end => end.into(),
    }
}
