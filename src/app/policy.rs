//! Follows RBAC while there are open watches with checked permissions, or always if RBAC is evaluated here
//! (`delegated.decide: rbac`). After a change, permissions are checked again.
//!
//! Otherwise a proxy without such watches causes no load on upstream. A lease that starts before the listeners are synced
//! is checked again shortly after they are (`RbacWatcher::begin`), as after any loss of history.

use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::refused_read_retrier::RefusedReadRetrier;
use crate::auth::{Authorizer, RbacEvent, RbacKind};
use crate::cache::{CollectionView, FeedCursor, FeedState, PullResult, WatchStartPosition};
use crate::feeds::FeedHandle;
use crate::wire::{FeedEncoding, Representation};
use base::{BackgroundTasks, random};
use kubeapi::{EventType, Gvr};
use tokio::sync::watch;

/// Follows one kind of RBAC objects through an ordinary feed.
struct RbacWatcher {
    kind: RbacKind,
    retrier: RefusedReadRetrier,
    authorizer: Authorizer,
    is_needed: watch::Receiver<bool>,
    retry_after: Duration,
}

/// Whether the feed of a kind reports changes as they happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RbacFeedLiveness {
    /// Changes have been observed late, or not at all, since this time.
    Stale { since: Instant },
    /// The stream is open since this time. A server that lags, or whose storage was restored, continues an old version.
    Unproven { since: Instant },
    /// The stream is open, and the objects have caught up with upstream after it was opened.
    Live,
}

/// The longest time that listeners continue without a lease.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(60);
/// The number of bytes pulled at a time.
const ROOM: usize = 256 << 10;

/// Starts a listener for each kind, which runs while there are leases, or always if RBAC is evaluated here.
///
/// `retry_after` is the pause before a retry when there is no feed or it has ended. Retries reach upstream no more
/// often than a refused request may be repeated. `linger` is how long listeners continue after the last lease has
/// ended. A random part of up to a half is cut off. Then the feeds are idle, and end like others.
pub(super) fn start_listeners(
    retrier: &RefusedReadRetrier,
    authorizer: &Authorizer,
    leases: watch::Receiver<usize>,
    tasks: &BackgroundTasks,
    retry_after: Duration,
    linger: Duration,
) {
    let (need_sender, is_needed) = watch::channel(authorizer.decides_by_rbac());
    tasks.spawn_critical("policy", publish_need(leases, need_sender, linger));
    for kind in RbacKind::ALL {
        let (retrier, authorizer, is_needed) = (retrier.clone(), authorizer.clone(), is_needed.clone());
        let listener = RbacWatcher { kind, retrier, authorizer, is_needed, retry_after };
        listener.set_stale(Instant::now());
        tasks.spawn_critical("policy", listener.run());
    }
}

/// Publishes whether changes must be followed: from the first lease until `linger` after the last, or always if they
/// must be followed without leases.
async fn publish_need(mut leases: watch::Receiver<usize>, need_sender: watch::Sender<bool>, linger: Duration) {
    if *need_sender.borrow() {
        drop(leases.wait_for(|_| false).await);
        return;
    }
    // An error means that there will be no more leases.
    while leases.wait_for(|count| *count > 0).await.is_ok() {
        need_sender.send_replace(true);
        loop {
            if leases.wait_for(|count| *count == 0).await.is_err() {
                return;
            }
            tokio::select! {
                biased;
                _ = leases.wait_for(|count| *count > 0) => {}
                () = sleep(linger.mul_f64(1.0 - 0.5 * random::f64())) => break,
            }
        }
        need_sender.send_replace(false);
    }
}

impl RbacWatcher {
    async fn run(self) {
        let (mut starts, mut ends) = (self.is_needed.clone(), self.is_needed.clone());
        let (mut is_reported, mut continues) = (false, true);
        while continues && starts.wait_for(|is_needed| *is_needed).await.is_ok() {
            tokio::select! {
                biased;
                never = self.follow(&mut is_reported) => match never {},
                // An error means that following will never be needed again.
                result = ends.wait_for(|is_needed| !is_needed) => continues = result.is_ok(),
            }
            self.set_stale(Instant::now());
            self.authorizer.clear_policy(self.kind);
        }
    }

    /// Follows RBAC changes for as long as the future is polled.
    async fn follow(&self, is_reported: &mut bool) -> Infallible {
        let gvr = Gvr::new("rbac.authorization.k8s.io", "v1", self.kind.resource());
        loop {
            if let Some(feed) = self.retrier.feed(&gvr) {
                self.follow_feed(&feed).await;
            }
            self.set_stale(Instant::now());
            if !std::mem::replace(is_reported, true) {
                let resource = self.kind.resource();
                tracing::warn!(
                    resource,
                    "cannot watch RBAC objects; rechecking the permissions of open watches once a minute"
                );
            }
            sleep(self.retry_after).await;
        }
    }

    /// Follows the feed of RBAC objects; returns when it has ended, or cannot be read as JSON.
    async fn follow_feed(&self, feed: &FeedHandle) {
        let mut state = feed.reader.watch_state();
        loop {
            let Ok(now) = state.wait_for(|state| *state != FeedState::Syncing).await.map(|state| *state) else {
                return;
            };
            if matches!(now, FeedState::Ended(_)) {
                return;
            }
            let Some(mut cursor) = self.begin(feed).await else { return };
            let (mut frames, mut continues) = (Vec::new(), true);
            let mut liveness = RbacFeedLiveness::Stale { since: Instant::now() };
            while continues {
                let now = *state.borrow_and_update();
                // The feed gives up its history before it has the next one.
                if now == FeedState::Syncing {
                    break;
                }
                liveness = liveness.after(now, self.authorizer.decides_by_rbac(), Instant::now());
                match liveness {
                    RbacFeedLiveness::Stale { since } => self.set_stale(since),
                    RbacFeedLiveness::Unproven { .. } => {}
                    RbacFeedLiveness::Live => self.authorizer.set_policy_feed(self.kind, None),
                }
                continues = tokio::select! {
                    biased;
                    continues = pull(&mut cursor, &mut frames) => continues,
                    changed = state.changed() => changed.is_ok(),
                    () = liveness.proven(feed) => {
                        liveness = RbacFeedLiveness::Live;
                        true
                    }
                };
                for frame in frames.drain(..) {
                    if self.authorizer.apply_policy_change(self.kind, self.decode(&frame)) {
                        self.retrier.changed();
                    }
                }
            }
            // Changes may have been missed.
            self.set_stale(Instant::now());
            if !matches!(*state.borrow(), FeedState::Ended(_)) && self.authorizer.decides_by_rbac() {
                // The objects may never have been in upstream's present history.
                self.authorizer.clear_policy(self.kind);
            }
        }
    }

    /// Reads the current RBAC objects and returns a cursor to later changes; `None` if they cannot be read as JSON.
    async fn begin(&self, feed: &FeedHandle) -> Option<FeedCursor> {
        let json = Representation::Object(FeedEncoding::Json);
        let renderer = if feed.spec.key.encoding == FeedEncoding::Json {
            feed.reader.verbatim().clone()
        } else {
            feed.renderings.wait_verified(json).await.ok()?
        };
        let opened = feed.reader.open(WatchStartPosition::Current, CollectionView::everything()).ok()?;
        let snapshot = opened.snapshot?;
        let cursor = opened.cursor.rendered_by(renderer);
        let mut objects = Vec::new();
        for object in snapshot.select(&CollectionView::everything(), feed.reader.namespaced(), None) {
            let body = feed.reader.body(object, cursor.renderer()).ok()?;
            let frame = cursor.renderer().envelope().frame(EventType::Added, &body);
            objects.push(self.decode(&frame));
        }
        // The proxy's own permissions may have changed unobserved.
        self.retrier.changed();
        self.authorizer.load_policy(self.kind, objects);
        Some(cursor)
    }

    /// Decodes an event; returns `None` if that is not possible.
    fn decode(&self, frame: &Bytes) -> Option<RbacEvent> {
        let decoded = serde_json::from_slice(frame).inspect_err(|error| {
            let resource = self.kind.resource();
            tracing::warn!(resource, %error, "cannot decode an RBAC object; rechecking the permissions of all callers");
        });
        decoded.ok()
    }

    fn set_stale(&self, since: Instant) {
        self.authorizer.set_policy_feed(self.kind, Some(since));
    }
}

impl RbacFeedLiveness {
    /// Returns the liveness in a state of the feed that is observed at `now`. Decisions by the objects need the proof;
    /// to end leases, an open stream suffices.
    fn after(self, state: FeedState, needs_proof: bool, now: Instant) -> Self {
        match (state, self) {
            (FeedState::Live, Self::Stale { .. }) if needs_proof => Self::Unproven { since: now },
            (FeedState::Live, Self::Stale { .. } | Self::Live) => Self::Live,
            (FeedState::Live, Self::Unproven { since }) => Self::Unproven { since },
            (FeedState::Stale { since }, _) => Self::Stale { since },
            (FeedState::Syncing | FeedState::Ended(_), _) => Self::Stale { since: now },
        }
    }

    /// Completes when the objects are proven to be current; never, unless that is what is missing.
    async fn proven(self, feed: &FeedHandle) {
        match self {
            Self::Unproven { since } => feed.freshness.wait_proven(since).await,
            Self::Stale { .. } | Self::Live => std::future::pending().await,
        }
    }
}

/// Completes when the cursor has frames of changes. Returns false if the cursor's history is lost.
pub(super) async fn pull(cursor: &mut FeedCursor, frames: &mut Vec<Bytes>) -> bool {
    std::future::poll_fn(|cx| match cursor.pull(ROOM, Some(cx.waker()), frames) {
        PullResult::Frames { .. } => Poll::Ready(true),
        PullResult::CaughtUp { .. } => Poll::Pending,
        PullResult::Expired { .. } | PullResult::Refused(_) | PullResult::Stopped(_) => Poll::Ready(false),
    })
    .await
}

#[cfg(test)]
mod tests;
