//! Reads events from before a feed's first list, for clients that resume from there: after a restart of the proxy, or
//! when they come from another server.
//!
//! One upstream watch from the oldest requested version yields these events, as long as upstream still has them. It is
//! read until an event or a bookmark shows that nothing before the list is missing. The events are used only if they
//! lead to exactly the listed state ([`HistoryStart::joined_by`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::feed_client::FeedTaskContext;
use super::gap_recovery;
use super::metrics::FeedRequestPurpose;
use super::reflector_findings::ReflectorFinding;
use super::stream::{StreamItem, WatchStreamEnd};
use crate::cache::{HistoryStart, ObjectChange};
use crate::feeds::{BackfillOutcome, BackfillRequest};
use crate::upstream::{UpstreamError, UpstreamRequestCause};
use base::Backoff;
use kubeapi::ResourceVersion;

/// The delay between the first resuming client and the upstream request, so that clients that arrive together share one
/// request.
const BATCH_DELAY: Duration = Duration::from_millis(200);
/// The duration of the upstream watch. Upstream sends a bookmark two seconds before the end.
const WATCH_SECONDS: u64 = 3;
/// A watch that ends sooner than this was closed by a server that shuts down.
const WATCH_LASTS: Duration = Duration::from_millis(WATCH_SECONDS * 1_000 - 500);
/// The timeout of one history backfill.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of bytes that are read, regardless of the free space in the ring.
const BYTES_MAX: usize = 64 << 20;

/// The maximum number of objects whose previous version is requested from upstream.
const BEFORE_MAX: usize = 64;

impl FeedTaskContext {
    /// Reads events from before the first list for clients that resume from there, for as long as the feed lives.
    pub(super) async fn backfill_history(&self) -> Infallible {
        let feed = &self.feed;
        loop {
            feed.resume_backfills.requested().await;
            sleep(BATCH_DELAY).await;
            // Without a stream upstream cannot be reached, and the reflector would not take what is found.
            self.wait_live().await;
            let mut backoff = Backoff::default();
            while let Some(request) = feed.resume_backfills.next(&feed.reader) {
                let backfill = async {
                    match request {
                        BackfillRequest::Events(from) => self.backfill(from).await,
                        BackfillRequest::Before(from) => self.find_previous(from).await,
                    }
                };
                let outcome = timeout(TIMEOUT, backfill).await.unwrap_or(BackfillOutcome::Failed);
                self.log_backfill(request, outcome);
                self.count("kube_fanout_history_backfills_total", "outcome", outcome.as_str());
                feed.resume_backfills.answered(outcome);
                if outcome == BackfillOutcome::Interrupted {
                    sleep(backoff.failed(Instant::now())).await;
                    self.wait_live().await;
                }
            }
        }
    }

    fn log_backfill(&self, request: BackfillRequest, outcome: BackfillOutcome) {
        let feed = &self.feed.spec.key;
        match (request, outcome.as_str()) {
            (BackfillRequest::Events(rv), "extended") => {
                tracing::info!(%feed, from_rv = %rv, "history extended backwards for a resuming client");
            }
            (BackfillRequest::Events(rv), outcome) => {
                tracing::info!(%feed, from_rv = %rv, outcome, "history not extended for a resuming client");
            }
            (BackfillRequest::Before(rv), outcome) => {
                tracing::info!(
                    %feed, %rv, outcome,
                    "requests for previous states of changed objects ended"
                );
            }
        }
    }

    async fn backfill(&self, from: ResourceVersion) -> BackfillOutcome {
        let Some(beginning) = self.feed.reader.history_start() else { return BackfillOutcome::Failed };
        let history = self.feed.reader.history();
        let requested_at = Instant::now();
        let changes = match self.read_past(from, &beginning).await {
            Ok(changes) => changes,
            Err(WatchStreamEnd::Failed(UpstreamError::Refused(status))) if status.is_expired() => {
                let window = gap_recovery::window_start(&status.message).filter(|window| *window > from);
                return window.map_or(BackfillOutcome::TooEarly { from }, |before| BackfillOutcome::Gone { before });
            }
            Err(WatchStreamEnd::Failed(UpstreamError::TooLarge(_))) => return BackfillOutcome::TooEarly { from },
            Err(error) => {
                tracing::debug!(
                    feed = %self.feed.spec.key, %error,
                    "cannot read earlier events from upstream"
                );
                let is_early = matches!(error, WatchStreamEnd::Closed) && requested_at.elapsed() < WATCH_LASTS;
                return if error.broke_off() || is_early {
                    BackfillOutcome::Interrupted
                } else {
                    BackfillOutcome::Failed
                };
            }
        };
        match beginning.joined_by(from, changes) {
            Ok(past) => match self.hand_over(|done| ReflectorFinding::Backfill { past, done }).await {
                Some(true) => BackfillOutcome::Prepended,
                Some(false) => BackfillOutcome::TooEarly { from },
                None => BackfillOutcome::Failed,
            },
            Err(misfit) => {
                let feed = &self.feed.spec.key;
                tracing::warn!(
                    %feed, error = %misfit,
                    "backfill rejected: upstream history does not match the snapshot"
                );
                self.report_mismatch(history);
                BackfillOutcome::OtherHistory
            }
        }
    }

    /// Reads the changes after `from`, up to the beginning of the history. Fails with [`UpstreamError::TooLarge`] if the
    /// ring has no room for them.
    async fn read_past(
        &self,
        from: ResourceVersion,
        beginning: &HistoryStart,
    ) -> Result<Vec<ObjectChange>, WatchStreamEnd> {
        self.count_request(FeedRequestPurpose::Backfill);
        let spec = &self.feed.spec;
        let path = spec
            .key
            .url(&format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}"));
        let mut stream = self.open(UpstreamRequestCause::Past, &path, None).await?;
        let (mut changes, mut bytes) = (Vec::new(), 0);
        loop {
            match stream.next(&self.reader).await? {
                // Versions do not decrease in a stream, so all earlier changes have come.
                StreamItem::Change { change, .. } if change.object.rv > beginning.at => return Ok(changes),
                StreamItem::Bookmark { rv, .. } if rv >= beginning.at => return Ok(changes),
                StreamItem::Bookmark { .. } => {}
                StreamItem::Change { change, .. } => {
                    bytes += change.frame.as_ref().map_or(0, Bytes::len);
                    changes.push(change);
                    if bytes > BYTES_MAX || !beginning.headroom.takes(changes.len(), bytes) {
                        return Err(UpstreamError::TooLarge(bytes).into());
                    }
                }
            }
        }
    }

    /// Finds the previous objects of the changes after `from`.
    async fn find_previous(&self, from: ResourceVersion) -> BackfillOutcome {
        let mut changes = self.feed.reader.events_without_previous();
        if let Some(last) = changes.len().checked_sub(BEFORE_MAX + 1).map(|last| changes[last].rv)
            && from < last
        {
            return BackfillOutcome::PreviousUnknown { upto: last };
        }
        let requested = changes.split_off(changes.partition_point(|change| change.rv <= from));
        let mut known = changes.last().map_or(ResourceVersion::default(), |change| change.rv);
        let (lister, mut before) = (self.lister(FeedRequestPurpose::PastObject), Vec::with_capacity(requested.len()));
        // Newest first, because storage compacts the oldest versions.
        for change in requested.into_iter().rev() {
            let below = ResourceVersion(change.rv.0.saturating_sub(1));
            self.count_request(FeedRequestPurpose::PastObject);
            match lister.object_at(&change.object.key, below).await {
                Ok(Some(object)) if object.rv <= below => before.push((change, Arc::new(object))),
                Err(error) if error.is_disconnected() => return BackfillOutcome::Interrupted,
                Err(error) if error.is_transient() => return BackfillOutcome::Failed,
                // The version was compacted, or the object is not the one that must have existed.
                Ok(_) | Err(_) => {
                    known = change.rv;
                    break;
                }
            }
        }
        let explanation = |done| ReflectorFinding::PreviousObjects { known, before, done };
        if self.hand_over(explanation).await.is_none() {
            return BackfillOutcome::Failed;
        }
        if known > from { BackfillOutcome::PreviousUnknown { upto: known } } else { BackfillOutcome::PreviousFound }
    }
}
