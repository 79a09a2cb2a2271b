//! Advances a feed for readers that have seen a later version elsewhere: from another proxy, or from an apiserver.
//!
//! Two requests run side by side. One asks upstream to reach the lowest version that readers wait for. It is needed
//! because an apiserver learns the position of a quiet resource only when a request names a higher version. The other
//! is a watch from our own version, which sends the missing changes, or a bookmark if there are none. It takes a
//! second, so it starts at once. If the collection is small, its versions are listed first. If they equal ours, the
//! state has the requested version. That suffices for clients that read a state; watches and proxies follow the stream.
//!
//! A proxy also advances on request, and announces it on our own stream. With a proxy the watch is rarely
//! needed.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::time::{Instant, timeout};

use super::super::metrics::FeedRequestPurpose;
use super::super::stream::WatchStreamEnd;
use super::{FreshnessProver, PROOF_MAX, STREAM_HEAD_START, finished};
use kubeapi::ResourceVersion;

/// The timeout of a list of versions. Upstream responds at once if it has the version, and only after seconds if it
/// never gets it, which must not delay other versions.
const LISTED_WITHIN: Duration = Duration::from_millis(500);

impl FreshnessProver {
    /// Reaches the versions that readers wait for, for as long as they wait.
    pub(super) async fn reach_versions(&self) -> Infallible {
        let (feed, reader) = (&self.upstream.feed, &self.upstream.feed.reader);
        let versions = &feed.freshness.versions;
        let mut awaited = versions.subscribe();
        let (mut progress, mut state) = (reader.follow_progress(), reader.watch_state());
        let (mut history, mut upstream) = (reader.history(), ResourceVersion::default());
        let mut requested: Option<ResourceVersion> = None;
        let mut reaching: Option<BoxFuture<'_, Option<ResourceVersion>>> = None;
        let mut resting: Option<BoxFuture<'_, ()>> = None;
        let mut catching_up: Option<BoxFuture<'_, ()>> = None;
        loop {
            // A response to a request about another history says nothing about this one.
            if std::mem::replace(&mut history, reader.history()) != history {
                (upstream, requested, reaching) = (ResourceVersion::default(), None, None);
            }
            awaited.borrow_and_update();
            let reached = progress.borrow_progress().rv;
            versions.remove_reached(reached, reader.served_version(), Instant::now());
            // The backoff applies to every version.
            let next = versions.smallest_above(upstream.max(reached)).filter(|_| self.is_live() && resting.is_none());
            if next != requested {
                requested = next;
                reaching = next.map(|rv| self.reach_version(rv).boxed());
            }
            if catching_up.is_none() && self.is_live() && versions.start_catch_up(upstream, !self.is_behind_a_proxy()) {
                catching_up = Some(self.catch_up_for_all().boxed());
            }
            state.borrow_and_update();
            let is_awaited = versions.smallest_above(reached).is_some();
            tokio::select! {
                biased;
                reached = finished(&mut reaching) => {
                    requested = None;
                    match reached {
                        Some(rv) => upstream = upstream.max(rv),
                        None => resting = Some(self.unreached.backoff().boxed()),
                    }
                }
                () = finished(&mut resting) => {}
                () = finished(&mut catching_up) => {}
                () = progress.changed(), if is_awaited => {}
                _ = awaited.changed() => {}
                _ = state.changed() => {}
            }
        }
    }

    pub(super) fn is_behind_a_proxy(&self) -> bool {
        self.upstream.behind_a_proxy.load(Ordering::Relaxed)
    }

    /// Asks upstream to reach a version, unless the feed's stream delivers it at once. Returns the version that upstream
    /// has certainly reached; `None` if the request failed. If upstream does not have the requested version, readers no
    /// longer wait for it.
    async fn reach_version(&self, rv: ResourceVersion) -> Option<ResourceVersion> {
        let (feed, requested_at) = (&self.upstream.feed, Instant::now());
        let reader = &feed.reader;
        if timeout(STREAM_HEAD_START, reader.reached(rv)).await.is_ok() {
            return Some(rv);
        }
        self.upstream.count_request(FeedRequestPurpose::Position);
        let lister = self.upstream.lister(FeedRequestPurpose::Position);
        let reached = match timeout(PROOF_MAX, lister.position(Some(rv))).await {
            Ok(Ok(reported)) if reported.at >= rv => {
                if reported.is_from_memory {
                    // The proxy announces its new position on our own stream.
                    let _ = timeout(STREAM_HEAD_START, reader.reached(rv)).await;
                }
                reported.at
            }
            Ok(Err(WatchStreamEnd::Failed(error))) if error.is_too_large_version() => {
                feed.freshness.versions.remove_unavailable(rv, requested_at);
                ResourceVersion::default()
            }
            Ok(Err(error)) => {
                tracing::debug!(
                    feed = %feed.spec.key, %error,
                    "cannot read upstream's current resourceVersion"
                );
                return None;
            }
            Ok(Ok(_)) | Err(_) => return None,
        };
        self.unreached.succeeded();
        Some(reached)
    }

    /// Catches up with upstream and announces the result to all waiting readers.
    async fn catch_up_for_all(&self) {
        // Recent changes are still on their way.
        tokio::time::sleep(STREAM_HEAD_START).await;
        let feed = &self.upstream.feed;
        let before = feed.reader.progress().rv;
        let Some(awaited) = feed.freshness.versions.smallest_above(before) else { return };
        if !feed.freshness.versions.follows() || !self.watches_have_bookmarks() {
            match timeout(LISTED_WITHIN, self.is_at(awaited)).await {
                Ok(Ok(true)) => return self.failures.succeeded(),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(feed = %feed.spec.key, %error, "cannot list the objects' resourceVersions");
                }
                Err(_) => tracing::debug!(feed = %feed.spec.key, "listing the objects' resourceVersions timed out"),
            }
        }
        if !self.watches_have_bookmarks() {
            return self.failures.backoff().await;
        }
        match timeout(PROOF_MAX, self.prove_by_catching_up(true)).await {
            Ok(Ok(())) if feed.reader.progress().rv > before => return self.failures.succeeded(),
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(feed = %feed.spec.key, %error, "cannot catch up with upstream"),
            Err(_) => tracing::debug!(feed = %feed.spec.key, "catching up with upstream timed out"),
        }
        self.failures.backoff().await;
    }
}
