use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{Mutex, mpsc};

use crate::cache::FeedEndReason;
use crate::feeds::{Feed, FeedRegistry, FeedStartRequest};
use crate::upstream::UpstreamClient;
use crate::wire::ObjectReader;
use base::{BackgroundTasks, Reloadable};

use super::ReflectConfig;
use super::body_encoder_tracker::BodyEncoderTracker;
use super::feed_client::FeedTaskContext;
use super::prover::FreshnessProver;
use super::reflector::Reflector;
use super::reflector_findings::StorageRollbackNotifier;
use super::self_check::FeedSelfChecker;

/// Runs a reflector for every demanded feed, and stops it when the feed ends or is idle.
#[derive(Debug)]
pub struct ReflectorSupervisor {
    client: UpstreamClient,
    feeds: FeedRegistry,
    config: Reloadable<ReflectConfig>,
    tasks: BackgroundTasks,
    lists_only: Arc<AtomicBool>,
    rewinds: Arc<StorageRollbackNotifier>,
    refresh_lock: Arc<Mutex<()>>,
}

/// The interval at which feeds are checked for idleness.
const IDLE_CHECK: Duration = Duration::from_secs(5);

impl ReflectorSupervisor {
    pub fn new(
        client: UpstreamClient,
        feeds: FeedRegistry,
        config: impl Into<Reloadable<ReflectConfig>>,
        tasks: BackgroundTasks,
    ) -> Self {
        let config = config.into();
        let (lists_only, rewinds, refresh_lock) = (Arc::default(), Arc::default(), Arc::default());
        Self { client, feeds, config, tasks, lists_only, rewinds, refresh_lock }
    }

    /// Starts the feeds that are demanded, until the sender of the demands is dropped.
    pub async fn run(self, mut demands: mpsc::Receiver<FeedStartRequest>) {
        while let Some(demand) = demands.recv().await {
            self.start(demand);
        }
    }

    fn start(&self, demand: FeedStartRequest) {
        let FeedStartRequest { feed, writer } = demand;
        let key = feed.spec.key.clone();
        let reader = ObjectReader::new(key.encoding, feed.spec.shape, feed.spec.fields.clone());
        // Objects or bookmarks of another kind are rejected.
        let reader =
            if feed.spec.kind.is_empty() { reader } else { reader.with_kind(&key.gvr.api_version(), &feed.spec.kind) };
        let reader = Arc::new(reader.with_table_columns(&feed.columns).with_account(feed.reader.account()));
        let (findings, found) = mpsc::channel(1);
        let upstream = FeedTaskContext {
            client: self.client.clone(),
            feed: feed.clone(),
            reader,
            lists_only: self.lists_only.clone(),
            wants_plain: Arc::default(),
            behind_a_proxy: Arc::default(),
            body_encoders: Arc::new(BodyEncoderTracker::new(feed.clone())),
            refresh_lock: self.refresh_lock.clone(),
            findings,
        };
        let checker = FeedSelfChecker { upstream: upstream.clone(), config: self.config.clone() };
        let prover = FreshnessProver::new(upstream.clone());
        let waits = self.config.get().retry;
        let mut reflector = Reflector::new(upstream.clone(), writer, found, self.rewinds.clone(), waits);
        let (feeds, config) = (self.feeds.clone(), self.config.clone());
        self.tasks.spawn("feed", async move {
            tracing::info!(feed = %key, "feed started");
            let mut leaving = FeedRemovalGuard { feeds: &feeds, feed: &feed, end: FeedEndReason::Shutdown };
            // Polls each of the other tasks only when it was woken itself, so that an event wakes the reflector alone.
            let mut beside = FuturesUnordered::from_iter([
                prover.run().map(|never| match never {}).boxed(),
                upstream.verify_representations().map(|never| match never {}).boxed(),
                upstream.refresh_body_encodings().map(|never| match never {}).boxed(),
                upstream.backfill_history().map(|never| match never {}).boxed(),
                checker.run().map(|never| match never {}).boxed(),
                request_initial_proof(&upstream).map(|never| match never {}).boxed(),
                idle(&feeds, &feed, &config).map(|()| FeedEndReason::Idle).boxed(),
                feed.retired().map(|()| FeedEndReason::Outdated).boxed(),
                feed.reader.over_budget().map(|()| FeedEndReason::OverBudget).boxed(),
            ]);
            leaving.end = tokio::select! {
                biased;
                end = reflector.run() => end,
                Some(end) = beside.next() => end,
            };
            drop(beside);
            tracing::info!(feed = %key, reason = leaving.end.as_str(), "feed ended");
            let end = leaving.end;
            // Removes the feed from the registry first, so that a reader that is woken by the end does not find it
            // there.
            drop(leaving);
            reflector.end(end);
        });
    }
}

/// Removes a feed from the registry when dropped, even if its task is cancelled or panics.
struct FeedRemovalGuard<'a> {
    feeds: &'a FeedRegistry,
    feed: &'a Arc<Feed>,
    end: FeedEndReason,
}

impl Drop for FeedRemovalGuard<'_> {
    fn drop(&mut self) {
        self.feeds.ended(self.feed, self.end);
    }
}

/// Requests a proof for a feed that began with the state of a client's version.
///
/// Until then, the age of its state is unknown, so a gap could not be mended if the apiserver restarts. On a quiet
/// resource, upstream's first bookmark may be a minute away.
async fn request_initial_proof(upstream: &FeedTaskContext) -> Infallible {
    upstream.wait_live().await;
    upstream.feed.caught_up().await;
    std::future::pending().await
}

async fn idle(feeds: &FeedRegistry, feed: &Arc<Feed>, config: &Reloadable<ReflectConfig>) {
    loop {
        tokio::time::sleep(IDLE_CHECK.min(config.get().idle_max)).await;
        if feeds.end_if_idle(feed, config.get().idle_max) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheConfig, FeedState};
    use crate::feeds::{FeedKey, FeedScope, FeedSpec};
    use crate::wire::FeedEncoding;
    use kubeapi::Gvr;

    #[tokio::test(start_paused = true)]
    async fn feed_task_panic_ends_feed_and_next_reader_starts_a_new_one() {
        let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
        let gvr = Gvr::new("", "v1", "pods");
        let spec = FeedSpec::like_pods(FeedKey { gvr, scope: FeedScope::Cluster, encoding: FeedEncoding::Json });
        let first = feeds.handle(&spec, None).expect("there is room");
        let FeedStartRequest { feed, writer } = demands.recv().await.expect("a demand");
        let registry = feeds.clone();
        let panicked = tokio::spawn(async move {
            let _writer = writer;
            let _leaving = FeedRemovalGuard { feeds: &registry, feed: &feed, end: FeedEndReason::Shutdown };
            panic!("of this test");
        });
        assert!(panicked.await.is_err_and(|error| error.is_panic()));
        assert!(matches!(first.reader.state(), FeedState::Ended(_)), "{:?}", first.reader.state());
        let second = feeds.handle(&spec, None).expect("there is room");
        assert_ne!(second.reader.state(), first.reader.state());
        assert!(demands.try_recv().is_ok(), "the new feed asks for a reflector");
    }
}
