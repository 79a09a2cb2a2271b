//! Moves a feed on for readers that have seen a later version elsewhere: by another proxy, or by an apiserver.
//!
//! Two questions go side by side. One asks upstream to come to the least version that is wanted: an apiserver learns
//! how far a quiet resource is only when somebody asks for more than it has. The other is a watch from our own version,
//! which says what we lack, or by a bookmark that it is nothing. That takes a second, so it begins at once. If the
//! collection is small, its versions are listed first; if they equal ours, the state has the wanted version. That is
//! enough for clients that read a state. Watches and proxies follow the stream.
//!
//! A proxy comes further as well when it is asked to, and tells it on our own stream: there the watch is rarely needed.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::time::{Instant, timeout};

use super::super::metrics::SideRequest;
use super::super::stream::Ended;
use super::{PROOF_MAX, Prover, Running, STREAM_HEAD_START};
use kubeapi::ResourceVersion;

/// The timeout of a list of versions. Upstream responds at once if it has the version, and after seconds if it never
/// gets it, which must not delay other versions.
const LISTED_WITHIN: Duration = Duration::from_millis(500);

/// What upstream answered when it was asked to come to a version.
enum Came {
    To(ResourceVersion),
    /// It does not have that version.
    Short,
    Unanswered,
}

/// A version that upstream is asked for, and since when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    rv: ResourceVersion,
    at: Instant,
}

impl Prover {
    /// Goes after the versions that readers wait for, as long as they do.
    pub(super) async fn chase(&self) -> Infallible {
        let (feed, reader) = (&self.upstream.feed, &self.upstream.feed.reader);
        let mut wanted = feed.freshness.watch_versions();
        let (mut progress, mut state) = (reader.follow_progress(), reader.watch_state());
        let (mut history, mut upstream) = (reader.history(), ResourceVersion::default());
        let mut asked: Option<Asked> = None;
        let mut coming: Running<'_, Came> = None.into();
        let mut resting: Running<'_, ()> = None.into();
        let mut rests = false;
        let mut catching_up: Running<'_, ()> = None.into();
        let mut catches_up = false;
        loop {
            // An answer that was asked of another history says nothing of this one.
            if std::mem::replace(&mut history, reader.history()) != history {
                (upstream, asked, coming) = (ResourceVersion::default(), None, None.into());
            }
            wanted.borrow_and_update();
            let reached = progress.look().rv;
            feed.freshness.settle_versions(reached, reader.shown_at());
            // Whichever version is wanted next, it waits for the end of a pause.
            let next = feed.freshness.next_version(upstream.max(reached)).filter(|_| self.live() && !rests);
            if next != asked.map(|asked| asked.rv) {
                asked = next.map(|rv| Asked { rv, at: Instant::now() });
                coming = next.map(|rv| self.come_to(rv).boxed()).into();
            }
            if !catches_up && self.live() && feed.freshness.begins_to_catch_up(upstream, !self.is_behind_a_proxy()) {
                catching_up = Some(self.catch_up_for_all().boxed()).into();
                catches_up = true;
            }
            state.borrow_and_update();
            let is_wanted = feed.freshness.next_version(reached).is_some();
            tokio::select! {
                biased;
                Some(came) = &mut coming, if asked.is_some() => match (came, asked.take()) {
                    (Came::To(rv), _) => upstream = upstream.max(rv),
                    (Came::Short, Some(asked)) => feed.freshness.give_up_version(asked.rv, asked.at),
                    (Came::Short, None) => {}
                    (Came::Unanswered, _) => (resting, rests) = (Some(self.unreached.rest().boxed()).into(), true),
                },
                Some(()) = &mut resting, if rests => rests = false,
                Some(()) = &mut catching_up, if catches_up => catches_up = false,
                () = progress.changed(), if is_wanted => {}
                _ = wanted.changed() => {}
                _ = state.changed() => {}
            }
        }
    }

    pub(super) fn is_behind_a_proxy(&self) -> bool {
        self.behind_a_proxy.load(Ordering::Relaxed)
    }

    /// Asks upstream to come as far as a version, unless our own stream tells it at once.
    async fn come_to(&self, rv: ResourceVersion) -> Came {
        let reader = &self.upstream.feed.reader;
        if timeout(STREAM_HEAD_START, reader.reached(rv)).await.is_ok() {
            return Came::To(rv);
        }
        self.upstream.metrics.asked(SideRequest::Position);
        let lister = self.upstream.lister(SideRequest::Position);
        let answer = match timeout(PROOF_MAX, lister.position(Some(rv))).await {
            Ok(Ok(told)) if told.at >= rv => {
                self.behind_a_proxy.store(told.is_from_memory, Ordering::Relaxed);
                if told.is_from_memory {
                    // It announces on our own stream how far it has come.
                    let _ = timeout(STREAM_HEAD_START, reader.reached(rv)).await;
                }
                Some(Came::To(told.at))
            }
            Ok(Err(Ended::Failed(error))) if error.is_too_large_version() => Some(Came::Short),
            Ok(Err(error)) => {
                tracing::debug!(feed = %self.upstream.feed.spec.key, %error, "a version could not be asked for");
                None
            }
            Ok(Ok(_)) | Err(_) => None,
        };
        if answer.is_some() {
            self.unreached.succeeded();
        }
        answer.unwrap_or(Came::Unanswered)
    }

    /// Catches up with upstream. All who wait are told, as soon as it is known.
    async fn catch_up_for_all(&self) {
        // What has only just happened is on its way.
        tokio::time::sleep(STREAM_HEAD_START).await;
        let feed = &self.upstream.feed;
        let before = feed.reader.progress().rv;
        let Some(wanted) = feed.freshness.next_version(before) else { return };
        if !feed.freshness.awaits_stream() || !self.watches_say_how_far() {
            match timeout(LISTED_WITHIN, self.is_at(wanted)).await {
                Ok(Ok(true)) => return self.behind.succeeded(),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::debug!(feed = %feed.spec.key, %error, "versions could not be listed"),
                Err(_) => tracing::debug!(feed = %feed.spec.key, "listing versions took too long"),
            }
        }
        if !self.watches_say_how_far() {
            return self.behind.rest().await;
        }
        match timeout(PROOF_MAX, self.by_catching_up(true)).await {
            Ok(Ok(())) if feed.reader.progress().rv > before => return self.behind.succeeded(),
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(feed = %feed.spec.key, %error, "catching up failed"),
            Err(_) => tracing::debug!(feed = %feed.spec.key, "catching up took too long"),
        }
        self.behind.rest().await;
    }
}
