//! Clients that resume from a version older than the history of a feed. They wait while the earlier events are
//! requested from upstream, and its responses are remembered.
//!
//! The oldest version that a client waits for is requested from upstream, one request at a time, and at most
//! `REQUESTS_MAX` times. If five thousand clients reconnect in random order, about nine of them are older than all
//! before them. A refusal is permanent, because upstream's history only gets shorter at its start.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cache::{CacheReader, CollectionView};
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// The clients that resume from before a feed's history. Only the first history of a feed can be extended backwards, so
/// this state is never reset.
#[derive(Debug, Default)]
pub struct ResumeBackfills {
    state: Mutex<ResumeBackfillState>,
    /// Notified when a client starts to wait for a backfill.
    arrived: Notify,
    /// The number of backfill requests that upstream did not answer. It is sent after every response, changed or not.
    failures: watch::Sender<u64>,
}

/// A request to upstream for earlier history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillRequest {
    /// A request for the events after this version.
    Events(ResourceVersion),
    /// A request for the states of objects before their first event. The events after this version are already known.
    Before(ResourceVersion),
}

/// The outcome of a [`BackfillRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillOutcome {
    /// The backfilled events were prepended to the history.
    Prepended,
    /// Upstream no longer has the events after versions below `before`.
    Gone { before: ResourceVersion },
    /// The events after `from` are not available, because they are too many or because upstream no longer has them. The
    /// oldest available version is unknown.
    TooEarly { from: ResourceVersion },
    /// The events do not lead to the listed state, so earlier ones will not either.
    OtherHistory,
    /// The previous states of the objects are known now.
    PreviousFound,
    /// The states of objects before their events up to `upto` cannot be determined.
    PreviousUnknown { upto: ResourceVersion },
    /// The response broke off, so it does not show whether upstream has the history.
    Interrupted,
    /// The backfill request failed or timed out.
    Failed,
}

impl BackfillOutcome {
    /// Returns the outcome, for logs and as a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepended => "extended",
            Self::Gone { .. } => "expired",
            Self::TooEarly { .. } => "beyond_window",
            Self::OtherHistory => "mismatch",
            Self::PreviousFound => "previous_found",
            Self::PreviousUnknown { .. } => "previous_missing",
            Self::Interrupted => "disconnected",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug, Default)]
struct ResumeBackfillState {
    /// The number of waiting clients of each kind, in the order of the versions that they resume from.
    waiting: BTreeMap<ResumingClient, usize>,
    memory: BackfillProgress,
}

/// The facts about upstream's history that its responses show so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BackfillProgress {
    /// The lower bound of versions to resume from: the events after any lower version are not available.
    expired_before: ResourceVersion,
    /// The version up to which the states of objects before their events cannot be determined.
    previous_unknown_until: ResourceVersion,
    requests: u32,
    /// The backfill request that upstream has not answered yet.
    under_way: Option<BackfillRequest>,
    /// Whether upstream has refused without stating where its history begins. The oldest requested version is then as
    /// likely to be refused as any other.
    start_unknown: bool,
    is_over: bool,
    backoff_until: Option<Instant>,
    /// The number of consecutive responses that broke off.
    disconnects: u32,
}

/// A waiting client; dropping it removes it from the ledger.
struct BackfillWaiterGuard<'a> {
    resume_backfills: &'a ResumeBackfills,
    client: ResumingClient,
}

/// The version that a client resumes from, and whether its view also needs the previous state of each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ResumingClient {
    from: ResourceVersion,
    needs_previous: bool,
}

/// The versions from which watches can start in a feed's history.
#[derive(Debug, Clone, Copy)]
struct FeedHistoryBounds {
    /// The version that the first event of the history follows.
    floor: ResourceVersion,
    /// The version after which the previous state of every event's object is known.
    known: ResourceVersion,
}

/// The maximum number of backfill requests per feed.
const REQUESTS_MAX: u32 = 16;
/// The number of consecutive broken responses that counts as no response.
const BROKEN_MAX: u32 = 3;
/// The time for which no client waits after a backfill request without a response.
const REST: Duration = Duration::from_secs(5);

impl ResumeBackfills {
    /// Waits until a watch with this view can start after `from`, or until it is known that it cannot. It may never
    /// complete, so callers need a deadline.
    pub async fn wait(&self, from: ResourceVersion, view: &CollectionView, reader: &CacheReader) {
        let client = ResumingClient { from, needs_previous: !view.depends_only_on_key() };
        let mut failures = self.failures.subscribe();
        let before = *failures.borrow_and_update();
        let Some(_waiting) = self.enter(client) else { return };
        loop {
            let may_come = !reader.reaches(from, view) && reader.can_backfill();
            let is_reported =
                *failures.borrow_and_update() > before || !self.state.lock().memory.may_wait(client, Instant::now());
            if !may_come || is_reported || failures.changed().await.is_err() {
                return;
            }
        }
    }

    fn enter(&self, client: ResumingClient) -> Option<BackfillWaiterGuard<'_>> {
        let mut ledger = self.state.lock();
        if !ledger.memory.may_wait(client, Instant::now()) {
            return None;
        }
        *ledger.waiting.entry(client).or_default() += 1;
        self.arrived.notify_one();
        Some(BackfillWaiterGuard { resume_backfills: self, client })
    }

    /// Completes when a client has started to wait for a backfill since the last call.
    pub async fn requested(&self) {
        self.arrived.notified().await;
    }

    /// Returns the next request for upstream, if a waiting client resumes from before the history of `reader`. It
    /// counts the request.
    pub fn next(&self, reader: &CacheReader) -> Option<BackfillRequest> {
        let bounds = FeedHistoryBounds { floor: reader.floor(), known: reader.oldest_resumable() };
        let mut ledger = self.state.lock();
        let next = ledger.next(bounds, Instant::now())?;
        ledger.memory.ask(next);
        Some(next)
    }

    /// Records a response and wakes the waiting clients.
    pub fn answered(&self, outcome: BackfillOutcome) {
        let has_failed = self.state.lock().memory.note(outcome, Instant::now());
        self.failures.send_modify(|failures| *failures += u64::from(has_failed));
    }
}

impl ResumeBackfillState {
    /// Chooses the oldest version that upstream may still have, because its events serve all later versions too. If the
    /// start of upstream's history is unknown, it chooses the middle one, so that each refusal halves the rest.
    fn next(&self, bounds: FeedHistoryBounds, now: Instant) -> Option<BackfillRequest> {
        let memory = &self.memory;
        // Rejected clients may still be counted here.
        if memory.is_over || memory.is_backing_off(now) || memory.requests >= REQUESTS_MAX {
            return None;
        }
        let within =
            |range: Range<ResourceVersion>| self.waiting.keys().filter(move |client| range.contains(&client.from));
        let mut earlier: Vec<_> = within(memory.expired_before..bounds.floor).map(|client| client.from).collect();
        // Clients of both kinds may resume from one version.
        earlier.dedup();
        let at = if memory.start_unknown { earlier.len() / 2 } else { 0 };
        if let Some(from) = earlier.get(at) {
            return Some(BackfillRequest::Events(*from));
        }
        let unknown = bounds.floor.max(memory.previous_unknown_until)..bounds.known;
        within(unknown).find(|client| client.needs_previous).map(|client| BackfillRequest::Before(client.from))
    }
}

impl BackfillProgress {
    /// Whether a client that resumes from before the history should wait for a backfill.
    fn may_wait(&self, client: ResumingClient, now: Instant) -> bool {
        let may_be_requested =
            self.requests < REQUESTS_MAX || self.under_way.is_some_and(|request| request.serves(client));
        let is_inexplicable = client.needs_previous && client.from < self.previous_unknown_until;
        !self.is_over
            && !self.is_backing_off(now)
            && may_be_requested
            && !is_inexplicable
            && client.from >= self.expired_before
    }

    fn is_backing_off(&self, now: Instant) -> bool {
        self.backoff_until.is_some_and(|until| now < until)
    }

    fn ask(&mut self, request: BackfillRequest) {
        self.requests += 1;
        self.under_way = Some(request);
    }

    /// Records a response. Returns whether waiting is pointless, because upstream does not respond.
    fn note(&mut self, outcome: BackfillOutcome, now: Instant) -> bool {
        self.under_way = None;
        self.disconnects = if outcome == BackfillOutcome::Interrupted { self.disconnects + 1 } else { 0 };
        let has_failed = outcome == BackfillOutcome::Failed || self.disconnects >= BROKEN_MAX;
        if has_failed {
            self.backoff_until = Some(now + REST);
            self.disconnects = 0;
        }
        match outcome {
            BackfillOutcome::Prepended
            | BackfillOutcome::PreviousFound
            | BackfillOutcome::Interrupted
            | BackfillOutcome::Failed => {}
            BackfillOutcome::Gone { before } => self.expired_before = self.expired_before.max(before),
            BackfillOutcome::TooEarly { from } => {
                self.expired_before = self.expired_before.max(ResourceVersion(from.0.saturating_add(1)));
                self.start_unknown = true;
            }
            BackfillOutcome::OtherHistory => self.is_over = true,
            BackfillOutcome::PreviousUnknown { upto } => {
                self.previous_unknown_until = self.previous_unknown_until.max(upto);
            }
        }
        has_failed
    }
}

impl BackfillRequest {
    /// Returns whether the response may fulfil everything that the client waits for.
    fn serves(self, client: ResumingClient) -> bool {
        match self {
            Self::Events(from) => from <= client.from,
            Self::Before(from) => client.needs_previous && from <= client.from,
        }
    }
}

impl Drop for BackfillWaiterGuard<'_> {
    fn drop(&mut self) {
        let mut ledger = self.resume_backfills.state.lock();
        if let Entry::Occupied(mut there) = ledger.waiting.entry(self.client) {
            *there.get_mut() -= 1;
            if *there.get() == 0 {
                there.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;
