//! Keeps feeds that run from the start, whether somebody reads them or not.

use std::time::Duration;

use super::discovery::DiscoveryLoop;
use super::rights::Rights;
use crate::base::{NotReady, Ready};
use crate::cache::FeedState;
use crate::feeds::{FeedHandle, Feeds};
use crate::serve::{Coverage, feed_spec};
use crate::upstream::Catalog;

/// The pause before a preloaded feed that could not start, or has ended, is started again.
const PRELOAD_AGAIN: Duration = Duration::from_secs(5);

/// Starts a feed for each of these names. The process is not ready until all of them have been complete once.
pub(super) fn start(names: Vec<String>, coverage: &Coverage, known: &DiscoveryLoop, ready: &Ready) {
    let DiscoveryLoop { rights: Rights { catalog, feeds, .. }, tasks, .. } = known;
    for name in coverage.resources.iter().filter(|name| catalog.find_by_name(name).is_none()) {
        tracing::warn!(resource = name, "feeds.resources: upstream serves no such resource");
    }
    for name in names {
        let guard = ready.register(format!("preload {name}"));
        tasks.spawn("preload", keep(name, coverage.clone(), catalog.clone(), feeds.clone(), guard));
    }
}

/// Keeps one feed running; `guard` is held until it has been complete for the first time.
async fn keep(name: String, coverage: Coverage, catalog: Catalog, feeds: Feeds, guard: NotReady) {
    let mut guard = Some(guard);
    loop {
        match preloaded(&name, &coverage, &catalog, &feeds) {
            Ok(feed) => {
                let mut state = feed.reader.watch_state();
                let settled = state.wait_for(|state| *state != FeedState::Syncing).await.map(|state| *state);
                if matches!(settled, Ok(FeedState::Live | FeedState::Stale { .. })) {
                    drop(guard.take());
                    let _ = state.wait_for(|state| matches!(state, FeedState::Ended(_))).await;
                }
            }
            Err(why) => tracing::warn!(resource = name, %why, "preload: no feed; trying again"),
        }
        tokio::time::sleep(PRELOAD_AGAIN).await;
    }
}

fn preloaded(name: &str, coverage: &Coverage, catalog: &Catalog, feeds: &Feeds) -> Result<FeedHandle, String> {
    let resource = catalog.find_by_name(name).ok_or("upstream serves no such resource")?;
    let scope = coverage.scope(&resource).map_err(|why| why.to_string())?;
    feeds.handle(&feed_spec(&resource, scope, resource.encoding), None).map_err(|why| format!("{why:?}"))
}
