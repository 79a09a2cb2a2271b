//! Keeps the preloaded feeds running from the start, whether or not they have readers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::metrics;
use crate::cache::{FeedEndReason, FeedState};
use crate::config::ServeSettings;
use crate::feeds::{FeedHandle, FeedRegistry, FeedUnavailable};
use crate::serve::feed_spec;
use crate::upstream::ResourceCatalog;
use base::{BackgroundTasks, LogRateLimit, ReadinessGuard, ReadinessTracker, Reloadable, sleep_until_opt};
use tokio::sync::watch;

/// The pause before a preloaded feed that failed to start, or has ended, is started again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The feeds that run without readers. The process becomes ready only if those of the start are.
#[derive(Debug, Clone)]
pub(super) struct FeedPreload {
    /// The configuration: the names of the feeds, and how long one of them may be disconnected.
    pub(super) running: Reloadable<ServeSettings>,
    pub(super) ready: ReadinessTracker,
    pub(super) catalog: ResourceCatalog,
    pub(super) feeds: FeedRegistry,
    pub(super) tasks: BackgroundTasks,
}

/// The guards of the feeds that are kept running, by name. Dropping a guard stops keeping the feed.
type PreloadGuards = HashMap<String, DropGuard>;

impl FeedPreload {
    /// Starts a feed for each preloaded name. The process is not ready until all of them have synced once.
    pub(super) fn start(self) {
        let (mut config, mut running_feeds) = (self.running.get(), PreloadGuards::new());
        // Every guard holds it.
        let starting = Arc::new(());
        self.start_missing(&config, &mut running_feeds, Some(&starting));
        self.tasks.clone().spawn("preloads", async move {
            loop {
                self.running.replaced(&config).await;
                let now = self.running.get();
                // A changed configuration, which all proxies read, does not make a serving proxy unready.
                let is_starting = Arc::strong_count(&starting) > 1;
                if now.serve.coverage != config.serve.coverage {
                    // Feeds outside the new coverage are not kept, and feeds inside it are started.
                    running_feeds.clear();
                }
                config = now;
                self.start_missing(&config, &mut running_feeds, Some(&starting).filter(|_| is_starting));
            }
        });
    }

    fn start_missing(&self, config: &ServeSettings, running_feeds: &mut PreloadGuards, starting: Option<&Arc<()>>) {
        let resources = &config.serve.coverage.resources;
        for name in resources.iter().filter(|name| self.catalog.find_by_name(name).is_none()) {
            tracing::warn!(resource = name, "feeds.resources names a resource that upstream does not serve");
        }
        running_feeds.retain(|name, _| config.preload.contains(name));
        for name in &config.preload {
            if running_feeds.contains_key(name) {
                continue;
            }
            let token = CancellationToken::new();
            let guard = starting.map(|starting| (self.ready.register(format!("preload {name}")), starting.clone()));
            let keeping = self.clone().keep_running(name.clone(), guard);
            running_feeds.insert(name.clone(), token.clone().drop_guard());
            let failing = metrics::preload_failing(name);
            self.tasks.spawn("preload", async move {
                tokio::select! {
                    () = keeping => {}
                    () = token.cancelled() => failing.set(0.0),
                }
            });
        }
    }

    /// Keeps one feed running; `guard` is held until it has synced for the first time.
    async fn keep_running(self, name: String, mut guard: Option<(ReadinessGuard, Arc<()>)>) {
        let failures = LogRateLimit::default();
        let failing = metrics::preload_failing(&name);
        loop {
            match self.preloaded(&name) {
                Ok(feed) => {
                    if let Some((guard, _)) = &guard {
                        let counts = feed.counts.clone();
                        guard.set_reason(move || Some(syncing(counts.last_failure())));
                    }
                    let mut state = feed.reader.watch_state();
                    let settled = state.wait_for(|state| *state != FeedState::Syncing).await.map(|state| *state);
                    if matches!(settled, Ok(FeedState::Live | FeedState::Stale { .. })) {
                        drop(guard.take());
                        failing.set(0.0);
                        self.report_stale_stream(&name, &feed, state).await;
                    }
                }
                Err(why) => {
                    failing.set(1.0);
                    if let Some(failures) = failures.failed(Instant::now()) {
                        tracing::warn!(resource = name, reason = %why, failures, "preload failed; retrying");
                    }
                    if let Some((guard, _)) = &guard {
                        guard.set_reason(move || Some(why.clone()));
                    }
                }
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    fn preloaded(&self, name: &str) -> Result<FeedHandle, String> {
        let resource = self.catalog.find_by_name(name).ok_or("upstream serves no such resource")?;
        let scope = self.running.get().serve.coverage.scope(&resource).map_err(|why| why.to_string())?;
        let feed = self.feeds.handle(&feed_spec(&resource, scope, resource.encoding), None);
        Ok(feed.map_err(|why| unavailable(why).to_owned())?.as_keep_alive())
    }

    /// Makes the process unready while the feed has been disconnected for too long. Returns when the feed has ended.
    async fn report_stale_stream(&self, name: &str, feed: &FeedHandle, mut state: watch::Receiver<FeedState>) {
        let mut stale: Option<ReadinessGuard> = None;
        loop {
            let config = self.running.get();
            let stale_at = match (*state.borrow_and_update(), config.ready_stale_max) {
                (FeedState::Ended(_), _) => return,
                (FeedState::Syncing, _) => None,
                (FeedState::Stale { since }, Some(longest)) => Some(since + longest),
                (FeedState::Live, _) | (FeedState::Stale { .. }, None) => {
                    stale = None;
                    None
                }
            };
            if stale_at.is_some_and(|stale_at| stale_at <= Instant::now()) {
                if stale.is_none() {
                    tracing::warn!(
                        resource = name,
                        "proxy not ready: the resource had no upstream watch for longer than readyStaleMax"
                    );
                    let (guard, counts) = (self.ready.register(format!("stream of {name}")), feed.counts.clone());
                    stale = Some(guard.with_reason(move || counts.last_failure()));
                }
            } else if stale_at.is_some() {
                stale = None;
            }
            tokio::select! {
                biased;
                changed = state.changed() => if changed.is_err() { return },
                () = sleep_until_opt(stale_at.filter(|_| stale.is_none())) => {}
                () = self.running.replaced(&config) => {}
            }
        }
    }
}

/// Returns the reason that a preloaded feed has not synced yet. Every caller that reaches the health port may read the
/// text.
fn syncing(trouble: Option<String>) -> String {
    trouble.map_or_else(|| "listing".to_owned(), |trouble| format!("the initial list failed: {trouble}"))
}

/// Returns the reason that there is no feed for a preloaded name. Every caller that reaches the health port may read
/// the text.
fn unavailable(why: FeedUnavailable) -> &'static str {
    match why {
        FeedUnavailable::TooMany => "too many feeds",
        FeedUnavailable::Ended(end) => match end {
            FeedEndReason::Forbidden => "upstream does not let this proxy list and watch it (RBAC)",
            FeedEndReason::Gone => "upstream serves no such resource",
            FeedEndReason::NotOffered => "upstream does not serve it in a format that can be cached",
            FeedEndReason::Unreadable => "its objects cannot be decoded",
            FeedEndReason::OverBudget => "it does not fit into the memory for feeds",
            FeedEndReason::Outdated | FeedEndReason::Idle | FeedEndReason::Shutdown => "its feed has terminated",
        },
    }
}
