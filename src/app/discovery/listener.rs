use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::app::rights::Rights;
use crate::cache::{Cursor, FeedState, Pull, View};
use crate::feeds::{FeedHandle, Scope};
use crate::kube::Gvr;
use crate::serve::feed_spec;

/// Listens to a resource whose changes say that something else may be served. Its feed is one like any other: clients
/// that watch the resource share it.
pub(super) struct ChangeListener {
    pub(super) gvr: Gvr,
    pub(super) rights: Rights,
    /// Tells under which number.
    pub(super) number: usize,
    pub(super) told: mpsc::Sender<(usize, News)>,
    /// When there is no feed, or it has ended. Upstream is asked no more often than what was refused is.
    pub(super) again: Duration,
}

/// The messages of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Every change is told from now on. What came before is not known.
    Listening,
    Changed,
    /// Changes may go unheard: there is no feed, or upstream's stream is lost.
    Deaf,
}

/// How much is pulled at once; it is not kept.
const ROOM: usize = 1 << 20;

impl ChangeListener {
    pub(super) async fn run(self) {
        loop {
            if let Some(feed) = self.feed() {
                self.listen(&feed).await;
            }
            self.tell(News::Deaf).await;
            tokio::time::sleep(self.again).await;
        }
    }

    fn feed(&self) -> Option<FeedHandle> {
        if !self.rights.follow_cluster() {
            return None;
        }
        let resource = self.rights.catalog.find(&self.gvr).filter(|resource| resource.watchable)?;
        self.rights.feeds.handle(&feed_spec(&resource, Scope::Cluster, resource.encoding), None).ok()
    }

    /// Returns when the feed has ended.
    async fn listen(&self, feed: &FeedHandle) {
        let mut state = feed.reader.watch_state();
        let mut cursor = None;
        loop {
            let now = *state.borrow_and_update();
            match now {
                FeedState::Ended(_) => return,
                FeedState::Syncing => cursor = None,
                FeedState::Live | FeedState::Stale { .. } => {
                    cursor.get_or_insert_with(|| feed.reader.open_at_end(View::everything()).cursor);
                    self.tell(if now == FeedState::Live { News::Listening } else { News::Deaf }).await;
                }
            }
            loop {
                tokio::select! {
                    changed = state.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    is_whole = changed(cursor.as_mut()) => {
                        if !is_whole {
                            // Another history, or none: the state tells which.
                            cursor = None;
                            self.tell(News::Deaf).await;
                            break;
                        }
                        self.tell(News::Changed).await;
                    }
                }
            }
        }
    }

    async fn tell(&self, news: News) {
        // Fails only when everything ends.
        let _ = self.told.send((self.number, news)).await;
    }
}

/// Completes behind the next changes; false if the history that they belong to is lost.
async fn changed(cursor: Option<&mut Cursor>) -> bool {
    let Some(cursor) = cursor else { return std::future::pending().await };
    let mut frames = Vec::new();
    std::future::poll_fn(|cx| {
        let mut is_new = false;
        loop {
            frames.clear();
            match cursor.pull(ROOM, Some(cx.waker()), &mut frames) {
                Pull::Frames { .. } => is_new = true,
                Pull::CaughtUp { .. } if is_new => return Poll::Ready(true),
                Pull::CaughtUp { .. } => return Poll::Pending,
                Pull::Expired { .. } | Pull::Refused(_) | Pull::Stopped(_) => return Poll::Ready(false),
            }
        }
    })
    .await
}
