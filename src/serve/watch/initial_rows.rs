//! The initial state of a Table watch of one object. It is requested from upstream for each watch, because cells such
//! as ages are computed when a row is printed.

use super::opener::WatchOpener;
use crate::feeds::FeedScope;
use crate::serve::read::{ReadRequest, spec};
use crate::serve::route::{ForwardReason, RoutedWatch};
use crate::upstream::{UpstreamError, UpstreamRequestCause, UpstreamResource};
use crate::wire::{FeedEncoding, ListPage, ObjectReader, ObjectRevision, Representation, TABLE_ACCEPT};
use kubeapi::{FlowDistinguisher, Gvr, UrlQuery, WatchStart};

/// The query parameters that a list does not have, or whose value the proxy chooses.
const WATCH_ONLY_PARAMETERS: [&str; 6] =
    ["watch", "allowWatchBookmarks", "sendInitialEvents", "timeoutSeconds", "timeout", "includeObject"];

impl WatchOpener {
    /// Replaces the initial state of a Table watch with a list from upstream. The watch continues after the list's
    /// version. Returns the object from the list.
    ///
    /// # Errors
    ///
    /// Upstream's response is not as expected. The request must be forwarded.
    pub(super) async fn initial_row(
        &self,
        request: &ReadRequest,
        resource: &UpstreamResource,
        read: &mut RoutedWatch,
    ) -> Result<Option<ObjectRevision>, ForwardReason> {
        let has_state =
            matches!((read.representation, read.start), (Representation::Table(_), WatchStart::State { .. }));
        if !has_state || request.is_feed_request() {
            return Ok(None);
        }
        let namespace = if resource.namespaced { request.info.namespace.as_str() } else { "" };
        let path = list_path(request.http.uri().path(), namespace, &request.query, &resource.gvr)
            .ok_or(ForwardReason::Table)?;
        let ListPage { resource_version, continue_token, items, .. } =
            self.rows(request.caller.flow().as_ref(), &path, resource).await.map_err(|error| {
                tracing::debug!(resource = %resource.gvr, %error, "cannot list the initial rows of a Table watch; forwarding");
                ForwardReason::Table
            })?;
        // The request to upstream had the proxy's identity, so the result is checked against the caller's view.
        if !continue_token.is_empty() || items.len() > 1 || !items.iter().all(|row| read.view.matches(row)) {
            return Err(ForwardReason::Table);
        }
        read.start = WatchStart::After(resource_version);
        Ok(items.into_iter().next())
    }

    async fn rows(
        &self,
        flow: Option<&FlowDistinguisher>,
        path: &str,
        resource: &UpstreamResource,
    ) -> Result<ListPage, Box<dyn std::error::Error + Send + Sync>> {
        let _permit = self.shared.concurrency.forwards.acquire(flow)?;
        let (answered, body) = self.shared.client.fetch(UpstreamRequestCause::Forwarded, path, TABLE_ACCEPT).await?;
        if answered != Some(FeedEncoding::Table.byte_encoding()) {
            return Err(
                UpstreamError::OtherRepresentation { requested: FeedEncoding::Table.to_string(), answered }.into()
            );
        }
        let shape = spec(resource, FeedScope::Cluster, FeedEncoding::Table).shape;
        Ok(ObjectReader::new(FeedEncoding::Table, shape, resource.fields.clone()).list(&body)?)
    }
}

/// Returns the path of the list for a watch's initial state, with whole objects; `None` for deprecated watch paths.
fn list_path(path: &str, namespace: &str, query: &UrlQuery, gvr: &Gvr) -> Option<String> {
    let collection = gvr.path_in(namespace);
    let is_list_parameter = |pair: &&str| {
        let pair = UrlQuery::parse(pair);
        pair.pairs().next().is_some_and(|(name, _)| !WATCH_ONLY_PARAMETERS.contains(&name))
    };
    let pairs: Vec<_> = query.raw().split('&').filter(is_list_parameter).chain(["includeObject=Object"]).collect();
    (path == collection).then(|| format!("{path}?{}", pairs.join("&")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_table_list_keeps_selectors_and_version_of_watch() {
        let pods = Gvr::new("", "v1", "pods");
        for (path, namespace, query, expected) in [
            (
                "/api/v1/namespaces/a/pods",
                "a",
                "fieldSelector=metadata.name%3Dp&resourceVersion=0&watch=true",
                Some("fieldSelector=metadata.name%3Dp&resourceVersion=0&includeObject=Object"),
            ),
            (
                "/api/v1/pods",
                "",
                "w%61tch=1&labelSelector=a+in+(b)&includeObject=None&timeoutSeconds=5&&resourceVersion=",
                Some("labelSelector=a+in+(b)&resourceVersion=&includeObject=Object"),
            ),
            ("/api/v1/watch/namespaces/a/pods/p", "a", "resourceVersion=0", None),
        ] {
            let expected = expected.map(|query| format!("{path}?{query}"));
            assert_eq!(list_path(path, namespace, &UrlQuery::parse(query), &pods), expected, "{path}?{query}");
        }
    }
}
