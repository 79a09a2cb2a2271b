use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::AdminPages;
use crate::cache::FeedState;

/// One feed, for people and scripts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FeedPage {
    resource: String,
    namespace: Option<String>,
    selector: Option<String>,
    form: &'static str,
    state: &'static str,
    stale_seconds: Option<u64>,
    resource_version: String,
    oldest_resource_version: String,
    objects: usize,
    object_bytes: usize,
    ring_events: usize,
    ring_bytes: usize,
    ring_span_seconds: f64,
    memory_bytes: usize,
    lanes: usize,
    readers: usize,
    /// States that clients are being told.
    pinned: usize,
}

pub(super) async fn feeds(State(pages): State<Arc<AdminPages>>) -> Json<Vec<FeedPage>> {
    let page = |feed: Arc<crate::feeds::Feed>| {
        let stats = feed.reader.stats();
        let key = &feed.spec.key;
        let (state, stale_seconds) = match feed.reader.state() {
            FeedState::Syncing => ("syncing", None),
            FeedState::Live => ("live", None),
            FeedState::Stale { since } => ("stale", Some(since.elapsed().as_secs())),
            FeedState::Ended(end) => (end.as_str(), None),
        };
        FeedPage {
            resource: key.gvr.to_string(),
            namespace: key.scope.namespace().map(str::to_owned),
            selector: key.scope.selector(),
            form: key.form.as_str(),
            state,
            stale_seconds,
            resource_version: stats.progress.to_string(),
            oldest_resource_version: stats.floor.to_string(),
            objects: stats.objects,
            object_bytes: stats.object_bytes,
            ring_events: stats.events,
            ring_bytes: stats.event_bytes,
            ring_span_seconds: stats.span_seconds,
            memory_bytes: stats.memory_bytes,
            lanes: stats.lanes,
            readers: feed.readers(),
            pinned: feed.reader.pinned(pages.feeds.pins()),
        }
    };
    Json(pages.feeds.all().into_iter().map(page).collect())
}
