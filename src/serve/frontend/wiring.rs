use std::sync::Arc;

use super::HttpFrontend;
use super::request_router::RequestRouter;
use crate::auth::{Authorizer, CrossOriginCheck};
use crate::feeds::FeedRegistry;
use crate::serve::activity::{ActiveWatches, metrics};
use crate::serve::audit::AuditLog;
use crate::serve::forward::{ForwardHandler, RequestCoalescer};
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper};
use crate::serve::peers::DownstreamReviewHandler;
use crate::serve::read::{DiscoveryCache, FeedResolver, ReadHandler, ScanScheduler};
use crate::serve::serve_config::ServeConfig;
use crate::serve::watch::WatchOpener;
use crate::upstream::{RequestForwarder, ResourceCatalog, UpstreamClient};
use base::{BackgroundTasks, DrainWatch, ReadinessTracker, Reloadable};

/// The components that the frontend connects.
pub struct HttpFrontendDeps {
    pub client: UpstreamClient,
    pub forwarder: RequestForwarder,
    pub catalog: ResourceCatalog,
    pub feeds: FeedRegistry,
    pub authorizer: Authorizer,
    pub browsers: Reloadable<CrossOriginCheck>,
    pub audit: AuditLog,
    pub active_watches: ActiveWatches,
    pub tasks: BackgroundTasks,
    pub drain: DrainWatch,
    pub ready: ReadinessTracker,
}

impl HttpFrontend {
    /// Creates the frontend and the parts that answer its requests.
    pub fn new(config: ServeConfig, deps: HttpFrontendDeps) -> Self {
        let HttpFrontendDeps { client, catalog, feeds, authorizer, audit, active_watches, tasks, drain, .. } = deps;
        let concurrency = Arc::new(ConcurrencyLimits::new(&config.limits));
        let slow_readers = SlowReaderReaper::new(config.unread, config.body_max);
        tasks.spawn_critical("slow readers", slow_readers.clone().run(drain.clone()));
        let catalog_and_feeds = (catalog.clone(), feeds.clone());
        let discovery = DiscoveryCache::new(
            client.clone(),
            catalog_and_feeds,
            concurrency.clone(),
            slow_readers.clone(),
            config.lag_max,
        );
        let reviews = DownstreamReviewHandler::new(client.clone(), authorizer.clone(), concurrency.clone(), &config);
        let config = Reloadable::new(config);
        let (sources, scans) =
            (Arc::new(FeedResolver::new(config.clone(), feeds, drain.clone())), ScanScheduler::new());
        let router = RequestRouter {
            reader: ReadHandler {
                sources: sources.clone(),
                scans: scans.clone(),
                concurrency: concurrency.clone(),
                slow_readers: slow_readers.clone(),
            },
            watches: WatchOpener {
                sources,
                scans,
                client: client.clone(),
                catalog: catalog.clone(),
                concurrency: concurrency.clone(),
                watches: metrics::WatchMetricsRegistry::default(),
                active_watches: active_watches.clone(),
                slow_readers: slow_readers.clone(),
                tasks: tasks.clone(),
            },
            forwarding: ForwardHandler {
                client: client.clone(),
                forwarder: Arc::new(deps.forwarder),
                authorizer: authorizer.clone(),
                concurrency: concurrency.clone(),
                coalesced: RequestCoalescer::default(),
                tasks,
                drain,
                slow_readers,
            },
            discovery,
            reviews,
            authorizer: authorizer.clone(),
            catalog,
            config: config.clone(),
            concurrency: concurrency.clone(),
            audit: audit.clone(),
        };
        let (browsers, ready) = (deps.browsers, deps.ready);
        Self { router, authorizer, config, concurrency, browsers, audit, active_watches, client, ready }
    }
}
