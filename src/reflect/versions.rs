//! Lists the keys and versions of a feed's objects, which costs less than listing the objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::upstream::{UpstreamError, UpstreamRequestCause, UpstreamRequestKind, encoding_of};
use crate::wire::{FeedEncoding, JsonLayout, ObjectReader};
use kubeapi::{ObjectKey, ResourceVersion};

use super::continuity::ObjectVersion;
use super::feed_client::FeedTaskContext;

/// Keys and versions of a part of a collection.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectVersionPage {
    /// The resourceVersion of the listed collection.
    pub(super) at: ResourceVersion,
    pub(super) versions: BTreeMap<ObjectKey, ResourceVersion>,
    /// Whether this page is the last one of the collection.
    pub(super) is_last: bool,
    /// The number of objects after this page, if upstream reports it.
    pub(super) remaining: Option<u64>,
    /// Whether upstream is a proxy that responds from its cache. The version is then the position of its feed.
    pub(super) is_from_memory: bool,
}

impl ObjectVersionPage {
    /// Returns the last key of this page; `None` if it is the last page of the collection.
    pub(super) fn end(&self) -> Option<&ObjectKey> {
        self.versions.last_key_value().filter(|_| !self.is_last).map(|(last, _)| last)
    }

    /// Returns the keys and versions in key order.
    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectVersion<'_>> {
        self.versions.iter().map(|(key, rv)| (key, *rv))
    }

    /// Returns the number of objects from the first of this page on, if upstream reports it.
    pub(super) fn count(&self) -> Option<usize> {
        let behind = if self.is_last { Some(0) } else { self.remaining };
        Some(self.versions.len() + usize::try_from(behind?).ok()?)
    }
}

impl FeedTaskContext {
    /// Lists the versions that upstream returns for `query`, as metadata only where it can. Fails with
    /// [`UpstreamError::TooLarge`] if the response exceeds `bytes_max`.
    pub(super) async fn versions(
        &self,
        cause: UpstreamRequestCause,
        query: &str,
        bytes_max: usize,
    ) -> Result<ObjectVersionPage, UpstreamError> {
        const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                                application/json";
        let path = self.feed.spec.key.url(query);
        let kind = UpstreamRequestKind::Short;
        let response = self.client.open_compressed(cause, kind, &path, self.headers(kind, METADATA)).await?;
        let encoding = encoding_of(&response).unwrap_or(FeedEncoding::Json);
        let is_from_memory = response.body().is_from_memory();
        let body = self.client.read_at_most(response, bytes_max).await;
        let body = body.inspect_err(|error| self.record_failed_list(error))?;
        // Metadata in protobuf has one layout for every resource; JSON has the resource's own.
        let layout = if encoding == FeedEncoding::Protobuf { JsonLayout::BuiltIn } else { self.feed.spec.shape };
        let page = ObjectReader::new(encoding, layout, Arc::default()).list(&body)?;
        Ok(ObjectVersionPage {
            at: page.resource_version,
            is_last: page.continue_token.is_empty(),
            remaining: page.remaining,
            is_from_memory,
            versions: page.items.into_iter().map(|object| (object.key, object.rv)).collect(),
        })
    }
}
