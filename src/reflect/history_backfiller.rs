use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::gap_recovery;
use super::initial_state::FeedClient;
use super::metrics::SideRequest;
use super::reflector_findings::{BackfillFinding, PreviousObjects, ReflectorFinding};
use super::stream::StreamEnd;
use crate::cache::{BackfilledEvents, Change, FeedState, HistoryStart, MissingPrevious};
use crate::feeds::{BackfillOutcome, BackfillRequest};
use crate::upstream::{Cause, Error};
use crate::wire::WatchItem;
use base::Backoff;
use kubeapi::ResourceVersion;

/// Reads events from before a feed's first list, for clients that resume from there: after a restart of the proxy, or
/// when they come from another server.
///
/// One upstream watch from the oldest requested version yields these events, as long as upstream still has them. It is
/// read until an event or a bookmark shows that nothing before the list is missing. The events are used only if they
/// lead to exactly the listed state ([`HistoryStart::joined_by`]).
pub(super) struct HistoryBackfiller {
    pub(super) upstream: FeedClient,
    pub(super) words: mpsc::Sender<ReflectorFinding>,
}

/// The delay between the first resuming client and the upstream request, so that clients that arrive together share one
/// request.
const GATHER: Duration = Duration::from_millis(200);
/// The duration of the upstream watch. Upstream sends a bookmark two seconds before the end.
const WATCH_SECONDS: u64 = 3;
/// A watch that ends sooner was closed by a server that shuts down.
const WATCH_LASTS: Duration = Duration::from_millis(WATCH_SECONDS * 1_000 - 500);
/// The timeout of one backfill.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// The maximum number of bytes that are read, regardless of the free space in the ring.
const BYTES_MAX: usize = 64 << 20;

/// The maximum number of objects whose previous version is requested from upstream.
const BEFORE_MAX: usize = 64;

/// Why earlier events are not available.
enum BackfillError {
    /// Upstream no longer has them. The value is the message of its 410.
    Gone(String),
    /// The ring has no room for them.
    TooMany,
    Failed(StreamEnd),
}

impl From<StreamEnd> for BackfillError {
    fn from(ended: StreamEnd) -> Self {
        match ended {
            StreamEnd::Failed(Error::Refused(status)) if status.is_expired() => Self::Gone(status.message),
            ended => Self::Failed(ended),
        }
    }
}

impl From<Error> for BackfillError {
    fn from(error: Error) -> Self {
        StreamEnd::from(error).into()
    }
}

impl HistoryBackfiller {
    /// Runs backfill requests of resuming clients, for as long as the feed lives.
    pub(super) async fn run(&self) -> Infallible {
        let feed = &self.upstream.feed;
        loop {
            feed.resume_backfills.came().await;
            sleep(GATHER).await;
            self.until_live().await;
            let mut backoff = Backoff::default();
            while let Some(question) = feed.resume_backfills.next(&feed.reader) {
                let looking = async {
                    match question {
                        BackfillRequest::Events(from) => self.look_back(from).await,
                        BackfillRequest::Before(from) => self.explain(from).await,
                    }
                };
                let answer = timeout(LOOK_MAX, looking).await.unwrap_or(BackfillOutcome::Failed);
                self.log(question, answer);
                self.upstream.metrics.looked_back(answer);
                feed.resume_backfills.answered(answer);
                if answer == BackfillOutcome::Interrupted {
                    sleep(backoff.failed(Instant::now())).await;
                    self.until_live().await;
                }
            }
        }
    }

    fn log(&self, request: BackfillRequest, outcome: BackfillOutcome) {
        let feed = &self.upstream.feed.spec.key;
        match (request, outcome.as_str()) {
            (BackfillRequest::Events(rv), "extended") => {
                tracing::info!(%feed, "history extended back to rv {rv} for a resuming client");
            }
            (BackfillRequest::Events(rv), outcome) => tracing::info!(%feed, %rv, outcome, "history not extended"),
            (BackfillRequest::Before(rv), outcome) => {
                tracing::info!(%feed, %rv, outcome, "read earlier states of objects");
            }
        }
    }

    /// Waits until the feed has a stream. Without one upstream cannot be reached, and the reflector would not take what
    /// is found.
    async fn until_live(&self) {
        let mut state = self.upstream.feed.reader.watch_state();
        if state.wait_for(|state| *state == FeedState::Live).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn look_back(&self, from: ResourceVersion) -> BackfillOutcome {
        let Some(beginning) = self.upstream.feed.reader.beginning() else { return BackfillOutcome::Failed };
        let history = self.upstream.feed.reader.history();
        let asked = Instant::now();
        let changes = match self.read(from, &beginning).await {
            Ok(changes) => changes,
            Err(BackfillError::Gone(message)) => {
                let window = gap_recovery::window_start(&message).filter(|window| *window > from);
                return window.map_or(BackfillOutcome::TooEarly { from }, |before| BackfillOutcome::Gone { before });
            }
            Err(BackfillError::TooMany) => return BackfillOutcome::TooEarly { from },
            Err(BackfillError::Failed(error)) => {
                tracing::debug!(feed = %self.upstream.feed.spec.key, %error, "cannot read earlier history");
                let is_early = matches!(error, StreamEnd::Clean) && asked.elapsed() < WATCH_LASTS;
                return if error.broke_off() || is_early {
                    BackfillOutcome::Interrupted
                } else {
                    BackfillOutcome::Failed
                };
            }
        };
        match beginning.joined_by(from, changes) {
            Ok(past) => self.hand_over(from, past).await,
            Err(misfit) => {
                let feed = &self.upstream.feed.spec.key;
                tracing::warn!(
                    %feed, error = %misfit,
                    "backfill rejected: upstream history does not match the snapshot"
                );
                // One message in the channel is enough.
                let _ = self.words.try_send(ReflectorFinding::HistoryMismatch { history });
                BackfillOutcome::OtherHistory
            }
        }
    }

    /// Reads the changes after `from`, up to the beginning of the history.
    async fn read(&self, from: ResourceVersion, beginning: &HistoryStart) -> Result<Vec<Change>, BackfillError> {
        self.upstream.metrics.asked(SideRequest::Prehistory);
        let spec = &self.upstream.feed.spec;
        let path = spec
            .key
            .url(&format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}"));
        let mut stream = self.upstream.watch(Cause::Past, &path).await?;
        let (mut changes, mut bytes) = (Vec::new(), 0);
        loop {
            match stream.next(&self.upstream.reader).await? {
                // Versions do not decrease in a stream, so all earlier changes have come.
                WatchItem::Change { object, .. } if object.rv > beginning.at => return Ok(changes),
                WatchItem::Bookmark { rv, .. } if rv >= beginning.at => return Ok(changes),
                WatchItem::Bookmark { .. } => {}
                WatchItem::Change { event_type, object, frame } => {
                    bytes += frame.len();
                    changes.push(Change { event_type, object, frame: Some(frame) });
                    if bytes > BYTES_MAX || !beginning.room.takes(changes.len(), bytes) {
                        return Err(BackfillError::TooMany);
                    }
                }
                WatchItem::Error { status } => return Err(Error::Refused(status).into()),
            }
        }
    }

    /// Finds the previous objects of the changes after `from`.
    async fn explain(&self, from: ResourceVersion) -> BackfillOutcome {
        let mut changes = self.upstream.feed.reader.unexplained();
        if let Some(last) = changes.len().checked_sub(BEFORE_MAX + 1).map(|last| changes[last].rv())
            && from < last
        {
            return BackfillOutcome::PreviousUnknown { upto: last };
        }
        let asked = changes.split_off(changes.partition_point(|change| change.rv() <= from));
        let mut known = changes.last().map_or(ResourceVersion::default(), MissingPrevious::rv);
        let (lister, mut before) = (self.upstream.lister(SideRequest::Past), Vec::with_capacity(asked.len()));
        // Newest first, because storage compacts the oldest versions.
        for change in asked.into_iter().rev() {
            let below = ResourceVersion(change.rv().0.saturating_sub(1));
            self.upstream.metrics.asked(SideRequest::Past);
            match lister.object_at(change.key(), below).await {
                Ok(Some(object)) if object.rv <= below => before.push((change, Arc::new(object))),
                Err(error) if error.broke_off() => return BackfillOutcome::Interrupted,
                Err(error) if error.may_pass() => return BackfillOutcome::Failed,
                // The version was compacted, or the object is not the one that must have existed.
                Ok(_) | Err(_) => {
                    known = change.rv();
                    break;
                }
            }
        }
        let (done, is_done) = oneshot::channel();
        let explanation = PreviousObjects { known, before, done };
        if self.words.send(ReflectorFinding::PreviousObjects(explanation)).await.is_err() || is_done.await.is_err() {
            return BackfillOutcome::Failed;
        }
        if known > from { BackfillOutcome::PreviousUnknown { upto: known } } else { BackfillOutcome::PreviousFound }
    }

    /// Sends the events to the reflector, which prepends them to the history.
    async fn hand_over(&self, from: ResourceVersion, past: BackfilledEvents) -> BackfillOutcome {
        let (done, is_done) = oneshot::channel();
        if self.words.send(ReflectorFinding::Backfill(BackfillFinding { past, done })).await.is_err() {
            return BackfillOutcome::Failed;
        }
        match is_done.await {
            Ok(true) => BackfillOutcome::Prepended,
            Ok(false) => BackfillOutcome::TooEarly { from },
            Err(_) => BackfillOutcome::Failed,
        }
    }
}
