//! Keeps the catalog of upstream's resources up to date: requested once, and again when something indicates a change.
//!
//! The loop reads two feeds like any client, of `CustomResourceDefinitions` and of `APIServices`, and passes their
//! declarations to the catalog, so that these are not requested. Resources that no definition declares are requested
//! after one of these streams was lost, and otherwise rarely. If the two feeds are not readable, everything is
//! requested every 30 seconds; `schedule` decides when. Feeds that the catalog contradicts are retired. Their watches
//! end cleanly, as the apiserver ends them.

mod listener;
mod schedule;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::listener::{ApiDefinitionWatcher, ApiDefinitionWatcherEvent};
use self::schedule::{DefinitionWatchCoverage, DiscoverySchedule, next_recheck};
use super::refused_read_retrier::RefusedReadRetrier;
use crate::serve::feed_spec;
use crate::upstream::{ApiDefinitionKind, PerApiDefinitionKind, UpstreamError};
use crate::wire::JsonLayout;
use base::{BackgroundTasks, Backoff, ReadinessGuard, sleep_until_opt};

/// Keeps the catalog in sync with upstream, and the feeds in sync with the catalog.
#[derive(Debug, Clone)]
pub(super) struct DiscoveryLoop {
    pub(super) retrier: RefusedReadRetrier,
    pub(super) tasks: BackgroundTasks,
    /// The pause before a feed of CustomResourceDefinitions or APIServices is retried after a failure.
    pub(super) retry_after: Duration,
    /// The mode of the process, for the log.
    pub(super) mode: String,
}

/// The delay between a change and the reaction to it. Changes come in groups, and upstream itself serves a definition
/// only shortly after it was written.
const REACTION_DELAY: Duration = Duration::from_millis(100);
/// The capacity of the channel for messages from listeners.
const MESSAGES_MAX: usize = 16;
/// How long the first discovery may take before that is logged.
const SLOW_DISCOVERY: Duration = Duration::from_secs(10);
/// How long the start waits for upstream's release, for the log.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// How long the start waits for the feeds of CustomResourceDefinitions and APIServices.
const LISTENING_MAX: Duration = Duration::from_secs(5);

impl DiscoveryLoop {
    /// Requests upstream's resources until a request succeeds. `starting` shows the reason of the last failure.
    pub(super) async fn wait_for_discovery(&self, starting: &ReadinessGuard) {
        let (mut backoff, started) = (Backoff::default(), Instant::now());
        starting.set_reason(move || Some(format!("no response from upstream for {} s", started.elapsed().as_secs())));
        while let Err(error) = self.discover().await {
            tracing::warn!(%error, "upstream API discovery failed; retrying");
            let why = error.summary();
            starting.set_reason(move || Some(why.clone()));
            sleep(backoff.failed(Instant::now())).await;
        }
        let RefusedReadRetrier { client, catalog, .. } = &self.retrier;
        let release = timeout(RELEASE_MAX, client.release()).await.ok().and_then(Result::ok);
        let upstream_version = release.map_or_else(|| "unknown".to_owned(), |release| release.to_string());
        tracing::info!(
            version = super::VERSION,
            mode = self.mode,
            upstream = client.server_url(),
            upstream_version,
            resources = catalog.all().len(),
            "discovered upstream's API resources"
        );
        starting.set_reason(|| Some("waiting for the feeds of CustomResourceDefinitions and APIServices".to_owned()));
    }

    /// Requests upstream's resources. If that takes long, logs it once, because each of several requests may take long.
    async fn discover(&self) -> Result<bool, UpstreamError> {
        let discovery = self.retrier.catalog.refresh(Instant::now());
        tokio::pin!(discovery);
        if let Ok(discovered) = timeout(SLOW_DISCOVERY, &mut discovery).await {
            return discovered;
        }
        tracing::warn!(upstream = self.retrier.client.server_url(), "upstream API discovery is slow; waiting");
        discovery.await
    }

    /// Follows changes and refreshes the catalog when necessary. `starting` is held until all listeners have reported,
    /// or `LISTENING_MAX` has passed, and the catalog was refreshed once more.
    pub(super) async fn run(&self, starting: ReadinessGuard) {
        let (sender, mut messages) = mpsc::channel(MESSAGES_MAX);
        for from in ApiDefinitionKind::ALL {
            let (retrier, messages) = (self.retrier.clone(), sender.clone());
            let listener = ApiDefinitionWatcher { from, retrier, messages, retry_after: self.retry_after };
            self.tasks.spawn_critical("definitions", listener.run());
        }
        let mut listening = Listening::default();
        // A timeout is not an error: without listeners, upstream is polled.
        let _ = timeout(LISTENING_MAX, async {
            while listening.contains(&None) {
                if let Some((from, event)) = messages.recv().await {
                    record(&mut listening, from, event);
                }
            }
        })
        .await;
        let requested = Instant::now();
        let is_success = self.refresh(true).await;
        let mut schedule = DiscoverySchedule::new(requested, Instant::now());
        schedule.set_coverage(self.coverage(is_success, listening));
        drop(starting);
        // When the catalog changed, and when the feeds were last compared with it.
        let (mut changed, mut compared) = (None, Instant::now());
        loop {
            tokio::select! {
                biased;
                Some((from, event)) = messages.recv() => {
                    let now = Instant::now();
                    if event == ApiDefinitionWatcherEvent::Changed {
                        let resources = self.retrier.catalog.all().len();
                        tracing::info!(resources, "upstream's API resources changed");
                        self.retrier.feeds.clear_refusals();
                        self.retire_outdated();
                        (changed, compared) = (Some(now), now);
                    } else if record(&mut listening, from, event) {
                        schedule.change(now);
                    }
                    if listening != ALL_LISTENING {
                        schedule.set_coverage(self.coverage(true, listening));
                    }
                }
                () = sleep_until_opt(next_recheck(changed, compared)) => {
                    // A feed may have been requested before upstream served the resource that its definition declares.
                    self.retrier.feeds.clear_not_found();
                    self.retire_outdated();
                    compared = Instant::now();
                }
                () = sleep_until(schedule.due()) => {
                    let requested = Instant::now();
                    let is_success = self.refresh(schedule.has_pending_change()).await;
                    schedule.refresh(requested, Instant::now());
                    schedule.set_coverage(self.coverage(is_success, listening));
                }
            }
        }
    }

    /// Refreshes the catalog, and ends the feeds that it contradicts. Returns whether upstream answered.
    async fn refresh(&self, has_pending_change: bool) -> bool {
        let RefusedReadRetrier { catalog, feeds, .. } = &self.retrier;
        match catalog.refresh(Instant::now()).await {
            Ok(true) => {
                tracing::info!(resources = catalog.all().len(), "upstream's API resources changed");
                feeds.clear_refusals();
            }
            // The catalog may already have the change from a refresh for a request. Or discovery listed the resource
            // before upstream served it. Feeds that failed because it did not exist may retry.
            Ok(false) if has_pending_change => feeds.clear_not_found(),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "upstream API discovery failed; keeping the known resources");
                return false;
            }
        }
        self.retire_outdated();
        true
    }

    /// Returns how completely changes are observed from now on.
    fn coverage(&self, is_success: bool, listening: Listening) -> DefinitionWatchCoverage {
        let catalog = &self.retrier.catalog;
        match (is_success, listening == ALL_LISTENING, catalog.reads().contains(&true)) {
            (false, ..) | (true, false, true) => DefinitionWatchCoverage::Part,
            (true, true, _) => DefinitionWatchCoverage::All,
            (true, false, false) => DefinitionWatchCoverage::Nothing { retry_after: catalog.refused_until() },
        }
    }

    /// Retires the feeds that the catalog contradicts. Like the apiserver, the proxy ends the watches of a custom
    /// resource whose definition changes (R-END-2). This is necessary because the new definition may write the same
    /// objects differently.
    fn retire_outdated(&self) {
        let RefusedReadRetrier { catalog, feeds, .. } = &self.retrier;
        for feed in feeds.all() {
            let spec = &feed.spec;
            let fits = match catalog.find(&spec.key.gvr) {
                Some(resource) => feed_spec(&resource, spec.key.scope.clone(), spec.key.encoding) == *spec,
                None => !catalog.is_removed(&spec.key.gvr),
            };
            // Built-in types change only with the apiserver, and its watches end when it does.
            if spec.shape == JsonLayout::Custom && !fits {
                feeds.retire(&feed);
            }
        }
    }
}

/// Whether each listener observes all changes; `None` before its first report.
type Listening = PerApiDefinitionKind<Option<bool>>;
const ALL_LISTENING: Listening = [Some(true); ApiDefinitionKind::ALL.len()];

/// Records a listener's state. Returns whether upstream's resources may have changed, so that they must be requested.
fn record(listening: &mut Listening, from: ApiDefinitionKind, event: ApiDefinitionWatcherEvent) -> bool {
    let is_listening = match event {
        ApiDefinitionWatcherEvent::Changed => return false,
        ApiDefinitionWatcherEvent::Unparsable => return true,
        ApiDefinitionWatcherEvent::Listening => true,
        ApiDefinitionWatcherEvent::Disconnected => false,
    };
    listening[from as usize].replace(is_listening) != Some(is_listening) && is_listening
}
