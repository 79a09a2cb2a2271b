//! Answers GETs.

use super::ReadHandler;
use crate::auth::Permit;
use crate::serve::activity::metrics;
use crate::serve::read::request::ReadRequest;
use crate::serve::read::request::ReadResult;
use crate::serve::read::sources::NotServable;
use crate::serve::response::{FeedStatus, put_served};
use crate::serve::route::{ForwardReason, GetRead};
use crate::upstream::Resource;
use kubeapi::Status;

impl ReadHandler {
    /// Returns one object from the cache.
    pub(crate) async fn get(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        resource: &Resource,
        read: GetRead,
    ) -> ReadResult {
        if !permit.names(Some(read.key.name())) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        let running = self.sources.running_source(permit, resource, read.namespace(), read.representation);
        let Some(source) = running else {
            return Err(NotServable::Forward(ForwardReason::NotCached));
        };
        let feed = &source.feed;
        self.sources.fresh(feed, read.version, (request.received, false)).await?;
        self.sources.of_present(&source).await?;
        let Some(current) = feed.reader.current() else {
            return Err(NotServable::FeedEnded);
        };
        let Some(object) = current.get(&read.key).cloned() else {
            metrics::served("get", &feed.spec.key, read.representation);
            let mut response = request.context.status(&Status::not_found(&resource.gvr, read.key.name()));
            put_served(response.headers_mut(), FeedStatus::stale_seconds(feed));
            return Ok(response);
        };
        match feed.reader.body(&object, &source.renderer) {
            Ok(body) => {
                let (encoding, envelope) = (read.representation.encoding(), source.renderer.envelope());
                let shown = self.objects.show(request, envelope, (encoding, body), FeedStatus::of(feed)).await;
                // A refusal is not counted as served from the cache.
                if shown.status().is_success() {
                    metrics::served("get", &feed.spec.key, read.representation);
                }
                Ok(shown)
            }
            Err(refused) => {
                source.refuse(&refused);
                Err(NotServable::Forward(ForwardReason::NotDerivable))
            }
        }
    }
}
