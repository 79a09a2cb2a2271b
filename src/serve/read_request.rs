use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::body::ReplyBody;
use super::refusals::turned_away;
use super::response_context::ResponseContext;
use super::sources::Need;
use crate::auth::{Caller, NotGranted, Permit};
use crate::kube::{Query, RequestInfo, ResourceVersion, Verb};
use crate::upstream::Resource;
use crate::wire::Representation;

/// A read request, with what was understood of it.
pub(super) struct ReadRequest {
    pub(super) http: Request<Incoming>,
    pub(super) caller: Caller,
    pub(super) info: RequestInfo,
    pub(super) query: Arc<Query>,
    pub(super) context: ResponseContext,
    pub(super) received: Instant,
    /// Whether the caller asks for what it may read, if it may not read all.
    pub(super) readable: bool,
    /// How many times it was routed again because the feed that was to answer it had ended.
    pub(super) rerouted: u32,
}

impl ReadRequest {
    pub(super) fn turned_away(&self, refused: &NotGranted) -> Response<ReplyBody> {
        turned_away(&self.context, self.caller.name(), &self.info, &self.query, refused)
    }

    /// Whether the request asks for the readable part of a collection across namespaces.
    pub(super) fn is_for_readable(&self, resource: &Resource) -> bool {
        let across = resource.namespaced && self.info.namespace.is_empty();
        self.readable && across && matches!(self.info.verb, Verb::List | Verb::Watch)
    }

    /// What this read needs of a feed.
    pub(super) fn need<'a>(
        &'a self,
        permit: &'a Permit,
        resource: &Resource,
        representation: Representation,
        resume: Option<ResourceVersion>,
    ) -> Need<'a> {
        let namespace = (resource.namespaced && !self.info.namespace.is_empty()).then_some(&*self.info.namespace);
        Need { permit, namespace, representation, received: self.received, resume }
    }
}
