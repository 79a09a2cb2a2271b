//! The first complete state of a feed, staged and handed over whole.

use crate::cache::{FeedSpec, Snapshot};
use crate::kube::{EventType, ResourceVersion};
use crate::upstream::{Client, Error, Question};
use crate::wire::{BookmarkTemplate, Form, Object, ObjectReader, WatchItem};

use super::stream::{Ended, WatchStream, accept};

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

/// Objects that one LIST may hold: bounds what a broken server can make us stage.
const OBJECTS_MAX: usize = 5_000_000;
const PAGE_LIMIT: usize = 500;
/// How often a LIST starts over because its continue token expired, before it is asked for in one piece.
const PAGED_TRIES_MAX: usize = 2;

/// Streams the initial state (KEP-3157): one request that is both the list and the watch behind it.
///
/// `not_older_than: None` asks for the most recent state.
pub(super) async fn watch_list(
    client: &Client,
    spec: &FeedSpec,
    reader: &ObjectReader,
    not_older_than: Option<ResourceVersion>,
) -> Result<Initial, Ended> {
    let version = not_older_than.map_or_else(String::new, |rv| format!("&resourceVersion={rv}"));
    let path = format!(
        "{}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{version}",
        spec.key.path()
    );
    let mut stream = WatchStream::open(client, &path, spec.key.form).await?;
    let mut staged: Vec<Object> = Vec::new();
    loop {
        match stream.next(reader).await? {
            WatchItem::Change { event_type: EventType::Added, object, .. } if staged.len() < OBJECTS_MAX => {
                staged.push(object);
            }
            WatchItem::Change { event_type, .. } => {
                return Err(Error::Form(format!("{event_type} among the initial events")).into());
            }
            WatchItem::Bookmark { object, rv, initial_events_end: true } => {
                let template = BookmarkTemplate::from_object(&spec.envelope(), &object).map_err(Error::Wire)?;
                let snapshot = Snapshot::from_objects(rv, staged);
                return Ok(Initial { snapshot, stream: Some((stream, template)) });
            }
            WatchItem::Bookmark { .. } => {}
            WatchItem::Error { event } => {
                return Err(Error::Refused(Box::new(super::session::status_of(&event))).into());
            }
        }
    }
}

/// Lists in one piece a collection that is expected to be small enough, so that upstream sees one LIST.
pub(super) async fn list_whole(
    client: &Client,
    spec: &FeedSpec,
    reader: &ObjectReader,
    at: At,
) -> Result<Initial, Error> {
    match pages(client, spec, reader, at, None).await {
        Err(Error::TooLarge(_)) => list(client, spec, reader, at).await,
        listed => listed,
    }
}

/// Lists page by page, all pages of one version.
pub(super) async fn list(client: &Client, spec: &FeedSpec, reader: &ObjectReader, at: At) -> Result<Initial, Error> {
    for _ in 0..PAGED_TRIES_MAX {
        match pages(client, spec, reader, at, Some(PAGE_LIMIT)).await {
            // The snapshot behind the continue token is gone: start over (reliability.md U15).
            Err(error) if error.is_expired() && !matches!(at, At::Exact(_)) => {}
            listed => return listed,
        }
    }
    pages(client, spec, reader, at, None).await
}

async fn pages(
    client: &Client,
    spec: &FeedSpec,
    reader: &ObjectReader,
    at: At,
    limit: Option<usize>,
) -> Result<Initial, Error> {
    let mut objects = Vec::new();
    let mut token = String::new();
    loop {
        let path = page_path(&spec.key.path(), at, limit, &token);
        let page = fetch_page(client, &path, spec.key.form, reader).await?;
        objects.extend(page.items);
        if page.continue_token.is_empty() {
            let snapshot = Snapshot::from_objects(page.resource_version, objects);
            return Ok(Initial { snapshot, stream: None });
        }
        if page.continue_token == token || objects.len() > OBJECTS_MAX {
            return Err(Error::Form("a LIST whose pages do not end".into()));
        }
        token = page.continue_token;
    }
}

fn page_path(base: &str, at: At, limit: Option<usize>, token: &str) -> String {
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
    if query.is_empty() { base.to_owned() } else { format!("{base}?{}", query.join("&")) }
}

async fn fetch_page(
    client: &Client,
    path: &str,
    form: Form,
    reader: &ObjectReader,
) -> Result<crate::wire::ListPage, Error> {
    let response = client.open(Question::Short, path, accept(form)).await?;
    let answered = crate::upstream::form_of(&response);
    if answered != Some(form) {
        return Err(Error::Form(format!("asked for {}, got {answered:?}", form.as_str())));
    }
    let body = client.read(response).await?;
    Ok(reader.list(&body)?)
}

/// One object exactly as it was at `rv`, if it existed.
pub(super) async fn object_at(
    client: &Client,
    spec: &FeedSpec,
    reader: &ObjectReader,
    key: &crate::kube::ObjectKey,
    rv: ResourceVersion,
) -> Result<Option<Object>, Error> {
    let base = match key.namespace() {
        "" => spec.key.gvr.path(),
        namespace => spec.key.gvr.namespaced_path(namespace),
    };
    let name = key.name();
    let path = format!("{base}?fieldSelector=metadata.name%3D{name}&resourceVersion={rv}&resourceVersionMatch=Exact");
    let page = fetch_page(client, &path, spec.key.form, reader).await?;
    Ok(page.items.into_iter().find(|object| object.key == *key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_page_names_the_version_and_a_later_one_only_its_token() {
        let exact = At::Exact(ResourceVersion(7));
        assert_eq!(page_path("/api/v1/pods", At::Current, None, ""), "/api/v1/pods");
        assert_eq!(
            page_path("/api/v1/pods", exact, Some(500), ""),
            "/api/v1/pods?limit=500&resourceVersion=7&resourceVersionMatch=Exact"
        );
        assert_eq!(page_path("/api/v1/pods", exact, Some(500), "abc"), "/api/v1/pods?limit=500&continue=abc");
    }
}
