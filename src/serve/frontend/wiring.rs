use std::sync::Arc;

use super::HttpFrontend;
use super::request_router::RequestRouter;
use crate::auth::{Authorizer, CrossOriginCheck};
use crate::feeds::FeedRegistry;
use crate::serve::activity::ActiveWatches;
use crate::serve::activity::metrics::WatchMetricsRegistry;
use crate::serve::audit::AuditLog;
use crate::serve::forward::{ForwardHandler, RequestCoalescer};
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper};
use crate::serve::peers::DownstreamReviewHandler;
use crate::serve::read::{DiscoveryCache, FeedResolver, ReadHandler, ScanScheduler};
use crate::serve::serve_components::ServeComponents;
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
        let HttpFrontendDeps { client, forwarder, catalog, feeds, authorizer, browsers, .. } = deps;
        let HttpFrontendDeps { audit, active_watches, tasks, drain, ready, .. } = deps;
        let concurrency = ConcurrencyLimits::new(&config.limits);
        let slow_readers = SlowReaderReaper::new(config.unread, config.body_max);
        tasks.spawn_critical("slow readers", slow_readers.clone().run(drain.clone()));
        let config = Reloadable::new(config);
        let sources = Arc::new(FeedResolver::new(config.clone(), feeds.clone(), drain.clone()));
        let scans = ScanScheduler::new();
        let shared = Arc::new(ServeComponents {
            client,
            catalog,
            feeds,
            authorizer,
            config,
            concurrency,
            slow_readers,
            audit,
            active_watches,
            tasks,
            drain,
        });
        let router = RequestRouter {
            reader: ReadHandler { shared: shared.clone(), sources: sources.clone(), scans: scans.clone() },
            watches: WatchOpener { shared: shared.clone(), sources, scans, metrics: WatchMetricsRegistry::default() },
            forwarding: ForwardHandler {
                shared: shared.clone(),
                forwarder: Arc::new(forwarder),
                coalesced: RequestCoalescer::default(),
            },
            discovery: DiscoveryCache::new(shared.clone()),
            reviews: DownstreamReviewHandler::new(shared.clone()),
            shared: shared.clone(),
        };
        Self { router, shared, browsers, ready }
    }
}
