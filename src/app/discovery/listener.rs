use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::{FutureExt as _, OptionFuture};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::REACTION_DELAY;
use crate::app::policy::pull;
use crate::app::refused_read_retrier::RefusedReadRetrier;
use crate::cache::{CacheReader, CollectionView, FeedState};
use crate::feeds::FeedHandle;
use crate::upstream::{ApiDefinition, ApiDefinitionKind};
use crate::wire::{FeedEncoding, ObjectRenderer, Representation};
use kubeapi::{ObjectKey, ResourceVersion};

/// Follows a resource whose objects declare further resources, and passes the declarations to the catalog. It reads an
/// ordinary feed, which it shares with clients that watch the resource.
pub(super) struct ApiDefinitionWatcher {
    pub(super) from: ApiDefinitionKind,
    pub(super) retrier: RefusedReadRetrier,
    pub(super) messages: mpsc::Sender<(ApiDefinitionKind, ApiDefinitionWatcherEvent)>,
    /// The pause before a retry when there is no feed or it has ended. A retry does not reach upstream more often than
    /// a refused request may be repeated.
    pub(super) retry_after: Duration,
}

/// The messages of a discovery listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiDefinitionWatcherEvent {
    /// The catalog is up to date, and will receive every later change.
    Listening,
    /// The declarations have changed, and the catalog has the change.
    Changed,
    /// A change could not be parsed, so discovery must be requested from upstream.
    Unparsable,
    /// Changes may be missed, because there is no feed or its upstream stream is lost.
    Disconnected,
}

/// The declarations of all objects. Each version of an object is parsed once.
#[derive(Default)]
struct ParsedApiDefinitions {
    known: HashMap<ObjectKey, (ResourceVersion, ApiDefinition)>,
}

impl ApiDefinitionWatcher {
    pub(super) async fn run(self) {
        loop {
            if let Some(feed) = self.retrier.feed(&self.from.gvr()) {
                self.listen(&feed).await;
            }
            self.disconnected().await;
            sleep(self.retry_after).await;
        }
    }

    /// Follows the feed; returns when it has ended.
    async fn listen(&self, feed: &FeedHandle) {
        let mut state = feed.reader.watch_state();
        let mut cursor = None;
        let mut declarations = ParsedApiDefinitions::default();
        loop {
            let now = *state.borrow_and_update();
            match now {
                FeedState::Ended(_) => return,
                // A history was given up. Until the next one, changes are not seen.
                FeedState::Syncing => {
                    if cursor.take().is_some() {
                        self.disconnected().await;
                    }
                }
                FeedState::Live => {
                    // The cursor is opened before the state is read, so that no change is missed. A change in between
                    // is in both.
                    cursor.get_or_insert_with(|| feed.reader.open_at_end(CollectionView::everything()).cursor);
                    let changed = self.read(&mut declarations, &feed.reader);
                    self.send(ApiDefinitionWatcherEvent::Listening).await;
                    self.send_change(changed).await;
                }
                FeedState::Stale { .. } => {
                    cursor.get_or_insert_with(|| feed.reader.open_at_end(CollectionView::everything()).cursor);
                    self.disconnected().await;
                }
            }
            loop {
                // The frames only signal a change.
                let mut frames = Vec::new();
                let pulled = OptionFuture::from(cursor.as_mut().map(|cursor| pull(cursor, &mut frames)));
                tokio::select! {
                    biased;
                    changed = state.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    Some(is_whole) = pulled => {
                        if !is_whole {
                            // The feed has started a new history or has ended; its state says which.
                            cursor = None;
                            self.disconnected().await;
                            break;
                        }
                        // A burst is one change.
                        while cursor.as_mut().and_then(|cursor| pull(cursor, &mut frames).now_or_never()) == Some(true) {
                            frames.clear();
                        }
                        self.retrier.catalog.mark_changed();
                        sleep(REACTION_DELAY).await;
                        if feed.reader.state() == FeedState::Live {
                            self.send_change(self.read(&mut declarations, &feed.reader)).await;
                        }
                    }
                }
            }
        }
    }

    /// Passes the current declarations to the catalog. Returns whether they change the served resources; `None` if an
    /// object cannot be read.
    fn read(&self, declarations: &mut ParsedApiDefinitions, reader: &CacheReader) -> Option<bool> {
        let catalog = &self.retrier.catalog;
        if let Err(why) = declarations.update(self.from, reader, catalog.minor()) {
            tracing::warn!(
                resource = %self.from.gvr(), reason = why,
                "discovery feed incomplete; polling the discovery API instead"
            );
            catalog.feed_lost(self.from);
            return None;
        }
        Some(catalog.apply_feed(self.from, declarations.known.values().map(|(_, declaration)| declaration)))
    }

    async fn send_change(&self, changed: Option<bool>) {
        match changed {
            Some(true) => self.send(ApiDefinitionWatcherEvent::Changed).await,
            Some(false) => {}
            None => self.send(ApiDefinitionWatcherEvent::Unparsable).await,
        }
    }

    async fn disconnected(&self) {
        self.retrier.catalog.feed_lost(self.from);
        self.send(ApiDefinitionWatcherEvent::Disconnected).await;
    }

    async fn send(&self, message: ApiDefinitionWatcherEvent) {
        // Sending fails only during shutdown, when the receiver is dropped.
        let _ = self.messages.send((self.from, message)).await;
    }
}

impl ParsedApiDefinitions {
    /// Parses the changed objects, or returns the reason that one cannot be parsed.
    fn update(
        &mut self,
        from: ApiDefinitionKind,
        reader: &CacheReader,
        minor: Option<u32>,
    ) -> Result<(), &'static str> {
        let json = Representation::Object(FeedEncoding::Json);
        let minor = minor.ok_or("the upstream version is unknown")?;
        let renderer =
            ObjectRenderer::derived(json, reader.envelope(), minor).ok_or("objects cannot be converted to JSON")?;
        let mut last = std::mem::take(&mut self.known);
        for object in reader.applied().ok_or("the feed has terminated")?.iter() {
            let declaration = match last.remove(&object.key) {
                Some((rv, declaration)) if rv == object.rv => declaration,
                _ => {
                    let document =
                        renderer.object(object.body()).map_err(|_| "an object cannot be converted to JSON")?;
                    from.read(&document).ok_or("an object has an unexpected structure")?
                }
            };
            self.known.insert(object.key.clone(), (object.rv, declaration));
        }
        Ok(())
    }
}
