use std::sync::Arc;

use http::{HeaderValue, Request, Response};
use tokio::time::Instant;

use super::body::ReplyBody;
use super::refusals::turned_away;
use super::response_context::ResponseContext;
use super::route::ForwardReason;
use super::sources::{Need, NotServable};
use crate::auth::{Caller, NotGranted, Permit};
use crate::net::RequestBody;
use crate::upstream::{CAUSE, Cause, Resource};
use crate::wire::Representation;
use kubeapi::{Query, RequestInfo, ResourceVersion, Status, Verb};

/// A read request, with what was understood of it.
pub(super) struct ReadRequest {
    pub(super) http: Request<RequestBody>,
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

    /// What another proxy says that it asks for, if it asks for itself.
    fn cause(&self) -> Option<&HeaderValue> {
        self.http.headers().get(CAUSE).filter(|_| self.context.by_proxy)
    }

    /// Whether another proxy asks, for a feed of its own.
    pub(super) fn fills_a_feed(&self) -> bool {
        self.cause()
            .is_some_and(|cause| [Cause::List, Cause::Watch, Cause::Proof].iter().any(|of| cause == of.as_str()))
    }

    /// What becomes of a read of a state that is not held here: upstream may have it. But a proxy that only compares
    /// what it holds can do so another time.
    pub(super) fn not_held(&self, reason: ForwardReason) -> NotServable {
        let compares =
            |cause: &HeaderValue| [Cause::Comparison, Cause::SelfCheck].iter().any(|of| cause == of.as_str());
        if self.cause().is_some_and(compares) {
            return NotServable::Refuse(Box::new(Status::too_old_list()));
        }
        NotServable::Forward(reason)
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
