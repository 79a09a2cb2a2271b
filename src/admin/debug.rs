use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{AdminPages, AdminResponse, json};
use crate::cache::FeedState;

/// The response of `/debug/config`: the running configuration. It has the paths of files, but not their content.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigPage {
    /// The path of the configuration file, if there is one.
    pub file: Option<String>,
    /// The reason that the current content of the file cannot be used; `None` if it can.
    pub last_error: Option<String>,
    /// The keys that changed in the file and require a restart.
    pub restart_required: Vec<String>,
    pub settings: BTreeMap<String, Value>,
}

/// A function that returns the running configuration for its debug page.
pub type ConfigReader = Arc<dyn Fn() -> ConfigPage + Send + Sync>;

/// One feed in the response of `/debug/feeds`, which people and scripts read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FeedStatusRow {
    resource: String,
    namespace: Option<String>,
    selector: Option<String>,
    encoding: &'static str,
    state: &'static str,
    stale_seconds: Option<u64>,
    resource_version: String,
    oldest_resource_version: String,
    objects: usize,
    object_bytes: usize,
    window_events: usize,
    window_bytes: usize,
    window_span_seconds: f64,
    memory_bytes: usize,
    lanes: usize,
    readers: usize,
    /// The number of clients that are being sent a snapshot of this feed. Each keeps its snapshot in memory
    /// (`cache::SnapshotPins`).
    snapshots_in_use: usize,
}

pub(super) fn feeds(pages: &AdminPages) -> AdminResponse {
    let page = |feed: Arc<crate::feeds::Feed>| {
        let stats = feed.reader.stats();
        let key = &feed.spec.key;
        let (state, stale_seconds) = match feed.reader.state() {
            FeedState::Syncing => ("syncing", None),
            FeedState::Live => ("live", None),
            FeedState::Stale { since } => ("stale", Some(since.elapsed().as_secs())),
            FeedState::Ended(end) => (end.as_str(), None),
        };
        FeedStatusRow {
            resource: key.gvr.to_string(),
            namespace: key.scope.namespace().map(str::to_owned),
            selector: key.scope.selector(),
            encoding: key.encoding.as_str(),
            state,
            stale_seconds,
            resource_version: stats.progress.to_string(),
            oldest_resource_version: stats.floor.to_string(),
            objects: stats.objects,
            object_bytes: stats.object_bytes,
            window_events: stats.events,
            window_bytes: stats.event_bytes,
            window_span_seconds: stats.span_seconds,
            memory_bytes: stats.memory_bytes,
            lanes: stats.lanes,
            readers: feed.readers(),
            snapshots_in_use: feed.reader.pinned(pages.feeds.pins()),
        }
    };
    json(&pages.feeds.all().into_iter().map(page).collect::<Vec<_>>())
}
