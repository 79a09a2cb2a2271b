//! Keeps feeds that run from the start, whether somebody reads them or not.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep_until;

use super::discovery::DiscoveryLoop;
use super::rights::Rights;
use crate::base::{NotReady, Ready};
use crate::cache::FeedState;
use crate::feeds::{FeedHandle, Feeds};
use crate::serve::{Coverage, feed_spec};
use crate::upstream::Catalog;

/// The pause before a preloaded feed that could not start, or has ended, is started again.
const PRELOAD_AGAIN: Duration = Duration::from_secs(5);

/// The feeds that run from the start. They decide whether the process is ready.
#[derive(Debug, Clone)]
pub(super) struct Preload {
    pub(super) names: Vec<String>,
    pub(super) coverage: Coverage,
    pub(super) ready: Ready,
    /// How long one of them may be without its stream.
    pub(super) stale_max: Option<Duration>,
}

impl Preload {
    /// Starts a feed for each of the names. The process is not ready until all of them have been complete once.
    pub(super) fn start(self, known: &DiscoveryLoop) {
        let DiscoveryLoop { rights: Rights { catalog, feeds, .. }, tasks, .. } = known;
        for name in self.coverage.resources.iter().filter(|name| catalog.find_by_name(name).is_none()) {
            tracing::warn!(resource = name, "feeds.resources: upstream serves no such resource");
        }
        for name in self.names.clone() {
            let guard = self.ready.register(format!("preload {name}"));
            tasks.spawn("preload", self.clone().keep(name, catalog.clone(), feeds.clone(), guard));
        }
    }

    /// Keeps one feed running; `guard` is held until it has been complete for the first time.
    async fn keep(self, name: String, catalog: Catalog, feeds: Feeds, guard: NotReady) {
        let mut guard = Some(guard);
        loop {
            match preloaded(&name, &self.coverage, &catalog, &feeds) {
                Ok(feed) => {
                    let mut state = feed.reader.watch_state();
                    let settled = state.wait_for(|state| *state != FeedState::Syncing).await.map(|state| *state);
                    if matches!(settled, Ok(FeedState::Live | FeedState::Stale { .. })) {
                        drop(guard.take());
                        self.tell_of_stream(&name, state).await;
                    }
                }
                Err(why) => tracing::warn!(resource = name, %why, "preload: no feed; trying again"),
            }
            tokio::time::sleep(PRELOAD_AGAIN).await;
        }
    }

    /// Says that the process is not ready whenever a feed has been without its stream for too long; returns when the
    /// feed has ended.
    async fn tell_of_stream(&self, name: &str, mut state: watch::Receiver<FeedState>) {
        let mut stale: Option<NotReady> = None;
        loop {
            let late = match (*state.borrow_and_update(), self.stale_max) {
                (FeedState::Ended(_), _) => return,
                (FeedState::Stale { since }, Some(longest)) if stale.is_none() => Some(since + longest),
                (FeedState::Live, _) => {
                    stale = None;
                    None
                }
                (FeedState::Syncing | FeedState::Stale { .. }, _) => None,
            };
            let late = async {
                match late {
                    Some(late) => sleep_until(late).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return },
                () = late => {
                    tracing::warn!(resource = name, "without its stream for too long: not ready");
                    stale = Some(self.ready.register(format!("stream of {name}")));
                }
            }
        }
    }
}

fn preloaded(name: &str, coverage: &Coverage, catalog: &Catalog, feeds: &Feeds) -> Result<FeedHandle, String> {
    let resource = catalog.find_by_name(name).ok_or("upstream serves no such resource")?;
    let scope = coverage.scope(&resource).map_err(|why| why.to_string())?;
    let feed = feeds.handle(&feed_spec(&resource, scope, resource.encoding), None);
    Ok(feed.map_err(|why| format!("{why:?}"))?.only_keeping())
}
