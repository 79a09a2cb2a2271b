use crate::auth::{Authorizer, CrossOriginCheck};
use crate::feeds::FeedRegistry;
use crate::serve::activity::ActiveWatches;
use crate::serve::audit::AuditLog;
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper};
use crate::serve::serve_config::ServeConfig;
use crate::upstream::{RequestForwarder, ResourceCatalog, UpstreamClient};
use base::{BackgroundTasks, DrainWatch, ReadinessTracker, Reloadable};

/// The components that the parts of this module share.
#[derive(Debug)]
pub(crate) struct ServeComponents {
    pub(crate) client: UpstreamClient,
    pub(crate) forwarder: RequestForwarder,
    pub(crate) catalog: ResourceCatalog,
    pub(crate) feeds: FeedRegistry,
    pub(crate) authorizer: Authorizer,
    pub(crate) browsers: Reloadable<CrossOriginCheck>,
    pub(crate) config: Reloadable<ServeConfig>,
    pub(crate) concurrency: ConcurrencyLimits,
    pub(crate) slow_readers: SlowReaderReaper,
    pub(crate) audit: AuditLog,
    pub(crate) active_watches: ActiveWatches,
    pub(crate) tasks: BackgroundTasks,
    pub(crate) drain: DrainWatch,
    pub(crate) ready: ReadinessTracker,
}
