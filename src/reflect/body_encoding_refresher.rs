//! Replaces bodies that a server of another release encoded with the encoding of the current server.
//!
//! A resume needs no list, so a feed may outlive the release that encoded its bodies. A server cannot change its
//! release while a connection to it is open, so it is queried once per connection. If its release is not the one that
//! encoded the bodies, the current state is listed. Each object that is cached at the same version gets the new body.
//! Objects of other versions come through the stream.
//!
//! Most upgrades need none of this: a list that mends a gap comes from the new server, and its bodies replace the
//! cached ones. Otherwise there is a minute of jitter, and one feed lists at a time; a state that a reader waits for is
//! renewed at once. The writer replaces bodies in steps. Chunks get new names, and snapshots for paginating clients are
//! dropped. Then states are served again.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::upstream::UpstreamServer;
use base::{Backoff, BackoffBounds, random};

use super::body_encoder_tracker::{BodyEncoderState, BodyEncoderTracker, BodyEncodingMatch};
use super::feed_client::FeedTaskContext;
use super::metrics::FeedRequestPurpose;
use super::reflector_findings::ReflectorFinding;
use super::stream::WatchStreamEnd;

/// The time in which a list delays those of other feeds. One that hangs must not hide the states of all.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Limits how soon bodies are renewed.
///
/// Thousands of proxies see the same upgrade, and so do all feeds of a proxy. New bodies are needed only for states. A
/// request for a state does not wait for the pause, unless the servers behind one address alternate.
#[derive(Debug, Default)]
struct BodyEncodingRefreshLimit {
    last: Option<Instant>,
    doublings: u32,
}

impl BodyEncodingRefreshLimit {
    const SPREAD: BackoffBounds =
        BackoffBounds { first: Duration::from_secs(60), longest: Duration::from_secs(20 * 60) };
    /// The time between two renewals above which they are treated as unrelated.
    const REST: Duration = Duration::from_secs(10 * 60);

    /// Returns the longest pause, and whether it ends as soon as a reader needs a state.
    fn next(&mut self, now: Instant) -> (Duration, bool) {
        let rested = self.last.is_none_or(|last| now.duration_since(last) >= Self::REST);
        self.doublings = if rested { 0 } else { (self.doublings + 1).min(16) };
        let longest = Self::SPREAD.doubled(self.doublings + 1);
        // A second immediate renewal is allowed, because an upgrade may be rolled back.
        (longest, self.doublings <= 1)
    }

    fn renewed(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

impl FeedTaskContext {
    /// Keeps the bodies of the feed in the encoding of the followed server, for as long as the feed lives.
    pub(super) async fn refresh_body_encodings(&self) -> Infallible {
        if !BodyEncoderTracker::applies_to(&self.feed) {
            std::future::pending::<()>().await;
        }
        let mut changes = self.body_encoders.follow();
        let mut pace = BodyEncodingRefreshLimit::default();
        loop {
            let by = changes.borrow_and_update().clone();
            let settled = async {
                self.refresh_if_needed(&by, &mut pace).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = settled => {}
            }
        }
    }

    /// Finds the releases of the servers that encoded the bodies and of the followed one, and renews the bodies if they
    /// differ.
    async fn refresh_if_needed(&self, by: &BodyEncoderState, pace: &mut BodyEncodingRefreshLimit) {
        let mut retries = Backoff::default();
        loop {
            let unknown = by.unknown();
            for server in &unknown {
                self.fetch_build(server).await;
            }
            if unknown.is_empty() {
                break;
            }
            // A server that does not respond now may never do so.
            self.body_encoders.update(true);
            if !by.unknown().is_empty() {
                sleep(retries.failed(Instant::now())).await;
            }
        }
        self.body_encoders.update(true);
        while by.comparison() == BodyEncodingMatch::Mismatch {
            self.wait_before_refresh(pace.next(Instant::now())).await;
            let renewed = self.refresh_bodies(by.count).await;
            pace.renewed(Instant::now());
            match renewed {
                Ok(()) => return,
                Err(error) => {
                    let feed = &self.feed.spec.key;
                    tracing::debug!(%feed, %error, "cannot refresh objects for another upstream version; retrying");
                    sleep(retries.failed(Instant::now())).await;
                }
            }
        }
    }

    async fn fetch_build(&self, server: &UpstreamServer) {
        if let Err(error) = self.client.learn_build(server).await {
            let (feed, server) = (&self.feed.spec.key, self.client.url_of(server));
            tracing::debug!(
                %feed, server, %error,
                "cannot read an upstream server's Kubernetes version; reads may wait for a retry"
            );
        }
    }

    async fn wait_before_refresh(&self, (longest, may_be_cut): (Duration, bool)) {
        tokio::select! {
            biased;
            () = sleep(longest.mul_f64(random::f64())) => {}
            () = self.feed.body_release.state_requested(), if may_be_cut => {}
        }
    }

    /// Lists the state and has the bodies replaced whose encoding differs. The reflector replaces them while a stream
    /// is open. If the stream is lost, the renewal starts over with the next one.
    async fn refresh_bodies(&self, count: u64) -> Result<(), WatchStreamEnd> {
        let turn = self.refresh_lock.lock().await;
        let (key, began) = (&self.feed.spec.key, Instant::now());
        self.count_request(FeedRequestPurpose::ReleaseChange);
        // The new release may support them.
        self.lists_only.store(false, Ordering::Relaxed);
        let lister = self.lister(FeedRequestPurpose::ReleaseChange);
        let mut listing = pin!(lister.current());
        let listed = timeout(TURN_MAX, &mut listing).await;
        drop(turn);
        let listed = match listed {
            Ok(listed) => listed?,
            Err(_) => listing.await?,
        };
        for server in &listed.servers {
            self.fetch_build(server).await;
        }
        let Some(cached) = self.feed.reader.applied() else { return Ok(()) };
        let objects = cached.with_different_bytes(&listed.snapshot).await;
        drop(cached);
        let (changed, of) = (objects.len(), listed.snapshot.len());
        let renewal = |done| ReflectorFinding::Renewal { objects, count, done };
        if self.hand_over(renewal).await.is_none() {
            return Ok(());
        }
        let took = began.elapsed();
        tracing::info!(feed = %key, changed, objects = of, ?took, "objects encoded again by another release of upstream");
        self.body_encoders.renewed(listed.servers);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_renewal_backs_off_if_servers_alternate() {
        let (mut pace, start) = (BodyEncodingRefreshLimit::default(), Instant::now());
        let minute = Duration::from_secs(60);
        let mut next = |at: Instant| {
            let (longest, may_be_cut) = pace.next(at);
            pace.renewed(at);
            (longest.as_secs() / 60, may_be_cut)
        };
        assert_eq!(next(start), (1, true));
        assert_eq!(next(start + minute), (2, true));
        assert_eq!(next(start + 2 * minute), (4, false));
        assert_eq!(next(start + 3 * minute), (8, false));
        for n in 4..40 {
            let (longest, may_be_cut) = next(start + n * minute);
            assert!(longest <= 20 && !may_be_cut);
        }
        assert_eq!(next(start + 60 * minute), (1, true), "the next upgrade is another one");
    }
}
