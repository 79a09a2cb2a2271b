//! Fetches complete states of a feed, which are staged and handed over whole.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::cache::{CacheReader, OverBudget, Snapshot, Staging};
use crate::feeds::{Feed, FeedSpec};
use crate::upstream::{Cause, Client, Error, Question, Server};
use crate::wire::{BookmarkTemplate, ListPage, Object, ObjectReader, WatchItem};
use base::mutant;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

use super::failure::refuses_watch_list;
use super::metrics::{FeedMetrics, SideRequest};
use super::stream::{Ended, WatchStream, ask};

/// A complete state, and the stream that continues it, if it came with one.
#[derive(Debug)]
pub(super) struct InitialState {
    pub(super) snapshot: Snapshot,
    pub(super) stream: Option<Follow>,
    /// The servers that wrote it.
    pub(super) servers: Vec<Server>,
    /// Whether it is how far a proxy's feed is, and not upstream's storage.
    pub(super) is_from_memory: bool,
}

/// How far upstream is.
#[derive(Debug)]
pub(super) struct ReportedPosition {
    /// No write that was complete when this was asked is newer, as far as it is one of the resource.
    pub(super) at: ResourceVersion,
    /// The layout of this resource's bookmarks, if upstream shows it.
    pub(super) template: Option<BookmarkTemplate>,
    /// Whether it is how far a proxy's feed is.
    pub(super) is_from_memory: bool,
}

/// The watch behind a state.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) stream: WatchStream,
    /// The layout of upstream's bookmarks, if the stream has shown it.
    pub(super) template: Option<BookmarkTemplate>,
}

/// One object as upstream has it at a version.
#[derive(Debug)]
pub(super) struct ObjectThen {
    /// `None` if it did not exist.
    pub(super) object: Option<Object>,
    /// The version that the answer is of: the one that was asked for, if upstream can read a past state.
    pub(super) at: ResourceVersion,
    /// Who answered.
    pub(super) server: Server,
}

/// Which state a LIST asks for (R-LIST-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// The most recent one.
    Current,
    NotOlderThan(ResourceVersion),
    Exact(ResourceVersion),
}

const PAGE_LIMIT: usize = 500;
/// How many bytes of events may come while a list is made under an open watch.
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// An apiserver that does not have what follows a version says so before anything else.
const FORGOTTEN_WITHIN: Duration = Duration::from_millis(250);
/// How many times a LIST in pages starts over because its continue token expired. Then it is made in one piece.
const PAGED_TRIES_MAX: usize = 2;
/// How many pages in a row may be empty and name another one. An apiserver fills a page or ends the list.
const EMPTY_PAGES_MAX: usize = 8;

/// Asks upstream about one feed. Cloning shares.
#[derive(Clone)]
pub(super) struct FeedClient {
    pub(super) client: Client,
    pub(super) feed: Arc<Feed>,
    pub(super) reader: Arc<ObjectReader>,
    pub(super) metrics: FeedMetrics,
    /// Whether upstream is known not to stream lists; shared by all feeds of one upstream.
    pub(super) lists_only: Arc<AtomicBool>,
}

impl FeedClient {
    /// Returns what fetches states for this reason.
    pub(super) fn lister(&self, why: SideRequest) -> Lister<'_> {
        let (spec, cache) = (&self.feed.spec, &self.feed.reader);
        let cause = why.cause().of(&spec.key.gvr);
        Lister { client: &self.client, spec, reader: &self.reader, cache, cause }
    }

    /// Opens a watch for this reason.
    pub(super) async fn watch(&self, cause: Cause, path: &str) -> Result<WatchStream, Error> {
        let key = &self.feed.spec.key;
        WatchStream::open(&self.client, cause.of(&key.gvr), path, key.encoding).await
    }
}

/// Fetches states of one feed.
pub(super) struct Lister<'a> {
    pub(super) client: &'a Client,
    pub(super) spec: &'a FeedSpec,
    pub(super) reader: &'a ObjectReader,
    pub(super) cache: &'a CacheReader,
    pub(super) cause: Cause,
}

impl Lister<'_> {
    /// Streams the most recent state (KEP-3157): one request that is both the list and the watch behind it.
    async fn watch_list(&self) -> Result<InitialState, Ended> {
        let query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let any = if mutant(10) { "&resourceVersion=0" } else { "" };
        let mut stream = self.stream(self.cause, &self.spec.key.url(&format!("{query}{any}"))).await?;
        let mut staged = self.cache.stage();
        loop {
            match stream.next(self.reader).await? {
                WatchItem::Change { event_type: EventType::Added, object, .. } => {
                    // This frame goes to no client, so only the body is kept.
                    staged.push(self.reader.alone(object)).map_err(over_budget)?;
                }
                WatchItem::Change { event_type, .. } => {
                    return Err(Error::NotInitial(event_type).into());
                }
                WatchItem::Bookmark { object, rv, initial_events_end: true } => {
                    let template =
                        BookmarkTemplate::from_object(&self.spec.envelope(), &object).map_err(Error::Wire)?;
                    stream.is_listed();
                    let (snapshot, servers) = (staged.finish(rv), vec![stream.server().clone()]);
                    let is_from_memory = stream.is_from_memory();
                    let stream = Some(Follow { stream, template: Some(template) });
                    return Ok(InitialState { snapshot, stream, servers, is_from_memory });
                }
                WatchItem::Bookmark { .. } => {}
                WatchItem::Error { event } => {
                    return Err(Error::Refused(Box::new(super::session::status_of(&event))).into());
                }
            }
        }
    }

    /// The current state, by a streamed list where upstream has it. `lists_only` says whether it is known not to.
    pub(super) async fn current(&self, lists_only: &AtomicBool) -> Result<InitialState, Ended> {
        match self.streamed(lists_only).await? {
            Some(initial) => Ok(initial),
            None => Ok(self.list(At::Current).await?),
        }
    }

    /// The current state, with a watch behind it that is open already: so upstream's window may be as short as it
    /// likes.
    pub(super) async fn current_and_watch(&self, lists_only: &AtomicBool) -> Result<InitialState, Ended> {
        match self.streamed(lists_only).await? {
            Some(initial) => Ok(initial),
            None => self.list_under_watch().await,
        }
    }

    /// The current state by a streamed list; `None` if upstream does not stream lists.
    async fn streamed(&self, lists_only: &AtomicBool) -> Result<Option<InitialState>, Ended> {
        if lists_only.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.watch_list().await {
            Ok(initial) => Ok(Some(initial)),
            Err(Ended::Failed(error)) if refuses_watch_list(&error) => {
                tracing::info!(%error, "upstream does not stream lists; using paginated lists");
                lists_only.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(ended) => Err(ended),
        }
    }

    /// How far upstream's storage is, beside one who has come to this version. It is below that only if that is not
    /// upstream's any more, or a server lags.
    ///
    /// A proxy says how far its feed is, and proves that nothing newer exists without moving it. Whoever has followed
    /// another proxy may have come further with the same state. So such a one is asked to come as far, and if it does,
    /// it has contradicted nothing.
    pub(super) async fn position_beside(&self, ours: ResourceVersion) -> Result<ResourceVersion, Ended> {
        let told = self.position(None).await?;
        if told.at >= ours || !told.is_from_memory {
            return Ok(told.at);
        }
        match self.position(Some(ours)).await {
            Ok(_) => Ok(ours),
            Err(Ended::Failed(error)) if error.is_too_large_version() => Ok(told.at),
            Err(ended) => Err(ended),
        }
    }

    /// Asks how far upstream is, or to come as far as a version. A streamed list of what cannot exist is answered by
    /// one bookmark, and costs upstream no objects.
    pub(super) async fn position(&self, least: Option<ResourceVersion>) -> Result<ReportedPosition, Ended> {
        const NOTHING: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                               &allowWatchBookmarks=true&timeoutSeconds=5";
        let version = least.map(|rv| format!("&resourceVersion={rv}")).unwrap_or_default();
        let path = self.spec.key.url_of_nothing(&format!("{NOTHING}{version}"));
        let mut stream = match self.stream(Cause::Proof, &path).await {
            Ok(stream) => stream,
            Err(error) if refuses_watch_list(&error) => {
                let at = least.map_or(At::Current, At::NotOlderThan);
                let first = self.spec.key.url(&page_query(at, Some(1), ""));
                let (page, _, is_from_memory) = self.page(&first, &mut self.cache.stage()).await?;
                return Ok(ReportedPosition { at: page.resource_version, template: None, is_from_memory });
            }
            Err(error) => return Err(error.into()),
        };
        loop {
            match stream.next(self.reader).await? {
                WatchItem::Bookmark { rv, object, .. } => {
                    let template = BookmarkTemplate::from_object(&self.spec.envelope(), &object);
                    let (template, is_from_memory) = (Some(template.map_err(Error::Wire)?), stream.is_from_memory());
                    return Ok(ReportedPosition { at: rv, template, is_from_memory });
                }
                WatchItem::Change { .. } => {}
                WatchItem::Error { event } => {
                    return Err(Error::Refused(Box::new(super::session::status_of(&event))).into());
                }
            }
        }
    }
    /// Lists a collection in one piece, because it is expected to be small enough.
    pub(super) async fn list_whole(&self, at: At) -> Result<InitialState, Error> {
        match self.pages(at, None).await {
            Err(Error::TooLarge(_)) => self.list(at).await,
            listed => listed,
        }
    }

    /// Lists page by page, all pages of one version.
    pub(super) async fn list(&self, at: At) -> Result<InitialState, Error> {
        for _ in 0..PAGED_TRIES_MAX {
            match self.pages(at, Some(PAGE_LIMIT)).await {
                // The snapshot behind the continue token is gone, so the list starts over (R-UPSTREAM-9).
                Err(error) if error.is_expired() && !matches!(at, At::Exact(_)) => {}
                listed => return listed,
            }
        }
        self.pages(at, None).await
    }

    /// Lists the most recent state while a watch from before it is open and read. Where lists are not streamed, this is
    /// how a list and its events meet although upstream forgets faster than it lists.
    async fn list_under_watch(&self) -> Result<InitialState, Ended> {
        let from = self.position(None).await?.at;
        let mut stream = self.behind(from).await?;
        let (mut ahead, mut bytes) = (VecDeque::new(), 0);
        let mut listing = pin!(self.list(At::Current));
        let listed = loop {
            let item = tokio::select! {
                biased;
                listed = &mut listing => break listed?,
                item = stream.next(self.reader) => item?,
            };
            match &item {
                WatchItem::Change { frame, .. } => bytes += frame.len(),
                WatchItem::Bookmark { .. } => {}
                WatchItem::Error { event } => {
                    return Err(Error::Refused(Box::new(super::session::status_of(event))).into());
                }
            }
            if bytes > AHEAD_BYTES_MAX {
                return Err(Error::TooLarge(AHEAD_BYTES_MAX).into());
            }
            ahead.push_back(item);
        };
        // The list has these already.
        ahead.retain(|item| match item {
            WatchItem::Change { object, .. } => object.rv > listed.snapshot.rv,
            WatchItem::Bookmark { rv, .. } => *rv > listed.snapshot.rv,
            WatchItem::Error { .. } => true,
        });
        let stream = stream.behind(ahead);
        Ok(InitialState { stream: Some(Follow { stream, template: None }), ..listed })
    }

    /// Opens the watch that goes on from a version, unless upstream has forgotten what follows it. It says so at once,
    /// in the stream.
    pub(super) async fn not_forgotten(&self, at: ResourceVersion) -> Option<WatchStream> {
        let mut stream = self.behind(at).await.ok()?;
        match timeout(FORGOTTEN_WITHIN, stream.next(self.reader)).await {
            // Nothing has happened since.
            Err(_) => Some(stream),
            Ok(Ok(WatchItem::Error { .. }) | Err(_)) => None,
            Ok(Ok(item)) => Some(stream.behind(VecDeque::from([item]))),
        }
    }

    /// Opens the watch that goes on from a version.
    async fn behind(&self, at: ResourceVersion) -> Result<WatchStream, Error> {
        let query = format!("watch=true&allowWatchBookmarks=true&resourceVersion={at}");
        self.stream(Cause::Watch.of(&self.spec.key.gvr), &self.spec.key.url(&query)).await
    }

    async fn stream(&self, cause: Cause, path: &str) -> Result<WatchStream, Error> {
        WatchStream::open(self.client, cause, path, self.spec.key.encoding).await
    }

    /// One object exactly as it was at `rv`, if it existed.
    pub(super) async fn object_at(&self, key: &ObjectKey, rv: ResourceVersion) -> Result<Option<Object>, Error> {
        Ok(self.object_then(key, rv).await?.object)
    }

    /// The same, with who answered and for which version.
    pub(super) async fn object_then(&self, key: &ObjectKey, rv: ResourceVersion) -> Result<ObjectThen, Error> {
        let exact = format!("resourceVersion={rv}&resourceVersionMatch=Exact");
        let (page, server, _) = self.page(&self.spec.key.url_of(key, &exact), &mut self.cache.stage()).await?;
        let object = page.items.into_iter().find(|object| object.key == *key);
        Ok(ObjectThen { object, at: page.resource_version, server })
    }

    async fn pages(&self, at: At, limit: Option<usize>) -> Result<InitialState, Error> {
        let mut staged = self.cache.stage();
        let (mut token, mut servers, mut is_from_memory) = (String::new(), Vec::<Server>::new(), false);
        let mut empty_pages = 0;
        loop {
            let (page, server, of_memory) =
                self.page(&self.spec.key.url(&page_query(at, limit, &token)), &mut staged).await?;
            is_from_memory |= of_memory;
            if !servers.iter().any(|known| known.is(&server)) {
                servers.push(server);
            }
            empty_pages = if page.items.is_empty() { empty_pages + 1 } else { 0 };
            for object in page.items {
                staged.push(object).map_err(over_budget)?;
            }
            if page.continue_token.is_empty() {
                let snapshot = staged.finish(page.resource_version);
                return Ok(InitialState { snapshot, stream: None, servers, is_from_memory });
            }
            if page.continue_token == token || empty_pages > EMPTY_PAGES_MAX {
                return Err(Error::EndlessPages);
            }
            token = page.continue_token;
        }
    }

    /// Reads one page, which counts beside the objects that are read from it. Returns who wrote it, and whether that is
    /// a proxy which had it in memory.
    async fn page(&self, path: &str, staged: &mut Staging) -> Result<(ListPage, Server, bool), Error> {
        let response = ask(self.client, self.cause, Question::Short, path, self.spec.key.encoding).await?;
        let (server, is_from_memory) = (response.body().server().clone(), response.body().is_from_memory());
        let reading = self.client.read_while(response, |len| staged.page_grows_to(len).map_err(over_budget));
        // The server is asked while its connection is certainly there. If it does not say its release now, whoever
        // needs that asks again.
        let (body, _) = tokio::join!(reading, self.client.meet(&server));
        let body = body?;
        staged.page_is_read().map_err(over_budget)?;
        let page = self.reader.list(&body)?;
        drop(body);
        staged.page_is_over();
        Ok((page, server, is_from_memory))
    }
}

fn over_budget(OverBudget: OverBudget) -> Error {
    Error::OverBudget
}

/// The query for a state of this version or later.
pub(super) fn not_older_than(rv: ResourceVersion) -> String {
    format!("resourceVersion={rv}&resourceVersionMatch=NotOlderThan")
}

fn page_query(at: At, limit: Option<usize>, token: &str) -> String {
    let mut query = Vec::new();
    query.extend(limit.map(|limit| format!("limit={limit}")));
    if token.is_empty() {
        match at {
            At::Current => {}
            At::NotOlderThan(rv) => query.push(not_older_than(rv)),
            At::Exact(rv) => query.push(format!("resourceVersion={rv}&resourceVersionMatch=Exact")),
        }
    } else {
        // Tokens are base64url without padding: nothing in them needs escaping.
        query.push(format!("continue={token}"));
    }
    query.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_page_names_the_version_and_a_later_one_only_its_token() {
        let exact = At::Exact(ResourceVersion(7));
        assert_eq!(page_query(At::Current, None, ""), "");
        assert_eq!(page_query(exact, Some(500), ""), "limit=500&resourceVersion=7&resourceVersionMatch=Exact");
        assert_eq!(page_query(exact, Some(500), "abc"), "limit=500&continue=abc");
        let later = page_query(At::NotOlderThan(ResourceVersion(7)), Some(1), "");
        assert_eq!(later, "limit=1&resourceVersion=7&resourceVersionMatch=NotOlderThan");
    }
}
