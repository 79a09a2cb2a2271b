//! The first complete state of a feed, staged and handed over whole.

use crate::cache::{CacheReader, FeedSpec, OverBudget, Snapshot, Staging};
use crate::kube::{EventType, ObjectKey, ResourceVersion};
use crate::upstream::{Client, Error, Question};
use crate::wire::{BookmarkTemplate, ListPage, Object, ObjectReader, WatchItem};

use super::stream::{Ended, WatchStream, ask};

/// A complete state, and the stream that continues it if it came by one.
#[derive(Debug)]
pub(super) struct Initial {
    pub(super) snapshot: Snapshot,
    pub(super) stream: Option<(WatchStream, BookmarkTemplate)>,
}

/// Which state a LIST asks for (semantics.md §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// The most recent one.
    Current,
    NotOlderThan(ResourceVersion),
    Exact(ResourceVersion),
}

const PAGE_LIMIT: usize = 500;
/// How often a LIST starts over because its continue token expired, before it is asked for in one piece.
const PAGED_TRIES_MAX: usize = 2;

/// Fetches states of one feed.
pub(super) struct Lister<'a> {
    pub(super) client: &'a Client,
    pub(super) spec: &'a FeedSpec,
    pub(super) reader: &'a ObjectReader,
    pub(super) cache: &'a CacheReader,
}

impl Lister<'_> {
    /// Streams the initial state (KEP-3157): one request that is both the list and the watch behind it.
    ///
    /// `not_older_than: None` asks for the most recent state.
    pub(super) async fn watch_list(&self, not_older_than: Option<ResourceVersion>) -> Result<Initial, Ended> {
        let version = not_older_than.map_or_else(String::new, |rv| format!("&resourceVersion={rv}"));
        let query = format!(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{version}"
        );
        let mut stream = WatchStream::open(self.client, &self.spec.key.url(&query), self.spec.key.form).await?;
        let mut staged = self.cache.stage();
        loop {
            match stream.next(self.reader).await? {
                WatchItem::Change { event_type: EventType::Added, object, .. } => {
                    staged.push(object).map_err(over_budget)?;
                }
                WatchItem::Change { event_type, .. } => {
                    return Err(Error::Form(format!("{event_type} among the initial events")).into());
                }
                WatchItem::Bookmark { object, rv, initial_events_end: true } => {
                    let template =
                        BookmarkTemplate::from_object(&self.spec.envelope(), &object).map_err(Error::Wire)?;
                    let snapshot = staged.finish(rv);
                    return Ok(Initial { snapshot, stream: Some((stream, template)) });
                }
                WatchItem::Bookmark { .. } => {}
                WatchItem::Error { event } => {
                    return Err(Error::Refused(Box::new(super::session::status_of(&event))).into());
                }
            }
        }
    }

    /// How upstream lays out a bookmark of this resource: a streamed list of nothing is one bookmark, and costs it no
    /// object.
    pub(super) async fn bookmark(&self) -> Result<BookmarkTemplate, Ended> {
        const NOTHING: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                               &allowWatchBookmarks=true&timeoutSeconds=5";
        let path = self.spec.key.url_of_nothing(NOTHING);
        let mut stream = WatchStream::open(self.client, &path, self.spec.key.form).await?;
        loop {
            match stream.next(self.reader).await? {
                WatchItem::Bookmark { object, .. } => {
                    let template = BookmarkTemplate::from_object(&self.spec.envelope(), &object);
                    return Ok(template.map_err(Error::Wire)?);
                }
                WatchItem::Change { .. } => {}
                WatchItem::Error { event } => {
                    return Err(Error::Refused(Box::new(super::session::status_of(&event))).into());
                }
            }
        }
    }

    /// Lists in one piece a collection that is expected to be small enough, so that upstream sees one LIST.
    pub(super) async fn list_whole(&self, at: At) -> Result<Initial, Error> {
        match self.pages(at, None).await {
            Err(Error::TooLarge(_)) => self.list(at).await,
            listed => listed,
        }
    }

    /// Lists page by page, all pages of one version.
    pub(super) async fn list(&self, at: At) -> Result<Initial, Error> {
        for _ in 0..PAGED_TRIES_MAX {
            match self.pages(at, Some(PAGE_LIMIT)).await {
                // The snapshot behind the continue token is gone: start over (reliability.md U15).
                Err(error) if error.is_expired() && !matches!(at, At::Exact(_)) => {}
                listed => return listed,
            }
        }
        self.pages(at, None).await
    }

    /// One object exactly as it was at `rv`, if it existed.
    pub(super) async fn object_at(&self, key: &ObjectKey, rv: ResourceVersion) -> Result<Option<Object>, Error> {
        let exact = format!("resourceVersion={rv}&resourceVersionMatch=Exact");
        let page = self.page(&self.spec.key.url_of(key, &exact), &mut self.cache.stage()).await?;
        Ok(page.items.into_iter().find(|object| object.key == *key))
    }

    async fn pages(&self, at: At, limit: Option<usize>) -> Result<Initial, Error> {
        let mut staged = self.cache.stage();
        let mut token = String::new();
        loop {
            let page = self.page(&self.spec.key.url(&page_query(at, limit, &token)), &mut staged).await?;
            for object in page.items {
                staged.push(object).map_err(over_budget)?;
            }
            if page.continue_token.is_empty() {
                let snapshot = staged.finish(page.resource_version);
                return Ok(Initial { snapshot, stream: None });
            }
            if page.continue_token == token {
                return Err(Error::Form("a LIST whose pages do not end".into()));
            }
            token = page.continue_token;
        }
    }

    /// A page counts beside the objects that are read of it.
    async fn page(&self, path: &str, staged: &mut Staging) -> Result<ListPage, Error> {
        let response = ask(self.client, Question::Short, path, self.spec.key.form).await?;
        let body = self.client.read_while(response, |len| staged.page_grows_to(len).map_err(over_budget)).await?;
        staged.page_is_read().map_err(over_budget)?;
        let page = self.reader.list(&body)?;
        drop(body);
        staged.page_is_over();
        Ok(page)
    }
}

fn over_budget(OverBudget: OverBudget) -> Error {
    Error::OverBudget
}

fn page_query(at: At, limit: Option<usize>, token: &str) -> String {
    let mut query = Vec::new();
    query.extend(limit.map(|limit| format!("limit={limit}")));
    if token.is_empty() {
        match at {
            At::Current => {}
            At::NotOlderThan(rv) => query.push(format!("resourceVersion={rv}&resourceVersionMatch=NotOlderThan")),
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
    }
}
