use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::{HttpFrontend, UnauthenticatedRequest, self_review};
use crate::auth::{Caller, GrantError, ReadPermission};
use crate::listing::{LimitExceeded, ListPageRequest};
use crate::serve::audit::AuditDecision;
use crate::serve::forward::is_short_table;
use crate::serve::peers::DownstreamReviewHandler;
use crate::serve::read::{AuthorizedRead, CacheReadResult, NotServable, ReadRequest, has_visible_part};
use crate::serve::response::{
    LIST_RETRY_SECONDS, ResponseBody, put_stale_rules, too_many, too_many_waiting, unavailable,
};
use crate::serve::route::{ForwardReason, ReadRoute, ReadRouteInput, check_kind, route};
use crate::upstream::{UpstreamResource, is_impersonation};
use crate::wire::Representation;
use kubeapi::{Gvr, RequestVerb, Status, UrlQuery};

/// The minimum interval between discovery refreshes caused by unknown resources.
const REDISCOVER_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for a refresh of discovery.
const REDISCOVER_MAX: Duration = Duration::from_secs(5);
/// How many times a request is routed again because its feed has ended. After that, the request is forwarded.
const REROUTES_MAX: u32 = 2;

/// The answers to requests that the frontend has admitted.
impl HttpFrontend {
    /// Routes a request, authorizes it, and serves or forwards it.
    pub(super) async fn dispatch(&self, mut request: Box<ReadRequest>) -> Response<ResponseBody> {
        let mut reroutes = 0;
        // The request is routed again if its feed ends while it waits.
        loop {
            let config = self.shared.config.get();
            let settled_since = self.shared.catalog.settled_since(config.lag_max);
            let input = ReadRouteInput {
                method: request.http.method(),
                info: &request.info,
                query: &request.query,
                accept: request.context.accept.as_deref(),
                user_agent: request.context.user_agent.as_deref(),
                impersonates: request.http.headers().keys().any(is_impersonation),
                is_feed_request: request.is_feed_request(),
                is_filtered: false,
                is_reduced: request.is_reduced(&config.reduced),
                has_settled_definitions: settled_since.is_some_and(|since| request.received >= since),
            };
            let resource = match self.resource(&request.caller, &input).await {
                Ok(resource) => resource,
                Err(status) => return request.context.status(&status),
            };
            let resource = resource.as_deref();
            let is_filtered_caller = request.has_filtered_caller(&config.filter);
            let is_partly_visible =
                |known| has_visible_part(&request.info, known, &request.caller, &self.shared.authorizer);
            let mut unfiltered = None;
            let routed = match route(&input, resource, &config.coverage) {
                Err(reason @ (ForwardReason::Table | ForwardReason::Representation))
                    if is_filtered_caller && resource.is_some_and(is_partly_visible) =>
                {
                    unfiltered = Some(reason);
                    route(&ReadRouteInput { is_filtered: true, ..input }, resource, &config.coverage)
                }
                routed => routed,
            };
            let (resource, route) = match routed {
                Err(reason) => return Box::pin(self.not_cached(request, resource, reason)).await,
                Ok(_) if !self.shared.authorizer.may_read_cache(&request.caller) => {
                    return self.forward(request, ForwardReason::Anonymous).await;
                }
                Ok(routed) => routed,
            };
            // The apiserver reads no body of a LIST, GET or WATCH, and it would take memory while the request waits.
            request.drop_body();
            // Authorization comes first, so that an unauthorized caller learns nothing about other errors in the
            // request.
            let permission = match self.authorize(&mut request, resource, is_filtered_caller).await {
                Ok(permission) => permission,
                Err(error) => return request.auth_refusal(&error),
            };
            if let Some(reason) = unfiltered.filter(|_| permission.namespaces().is_none()) {
                return self.forward(request, reason).await;
            }
            let decision = self.shared.audit.is_on().then(|| AuditDecision::Allowed(permission.reason().clone()));
            // Boxed, so that the futures of other routes stay small.
            let authorized = AuthorizedRead { request: &request, permission: &permission, resource };
            let served = match route {
                ReadRoute::Get(read) => {
                    let mut reading = Box::pin(self.reader.get(authorized, read));
                    let served = self.while_waiting(&request.caller, &request.query, reading.as_mut()).await;
                    served.map_err(NotServable::from).flatten()
                }
                ReadRoute::List(read) => Box::pin(self.list(authorized, read)).await,
                ReadRoute::Watch(read) => Box::pin(self.watches.open(&mut request, permission, resource, read)).await,
            };
            let mut response = match served {
                Ok(response) => response,
                Err(NotServable::FeedEnded) if reroutes < REROUTES_MAX => {
                    reroutes += 1;
                    continue;
                }
                Err(refusal) => self.refuse_or_forward(request, refusal).await,
            };
            // The refusal of a filtered read has the decision that caused it.
            if let Some(decision) = decision.filter(|_| response.extensions().get::<AuditDecision>().is_none()) {
                response.extensions_mut().insert(decision);
            }
            return response;
        }
    }

    /// Answers a request that the route keeps from the cache of objects.
    async fn not_cached(
        &self,
        mut request: Box<ReadRequest>,
        resource: Option<&UpstreamResource>,
        reason: ForwardReason,
    ) -> Response<ResponseBody> {
        let config = self.shared.config.get();
        match reason {
            ForwardReason::NonResource => self.document(request).await,
            ForwardReason::Verb if DownstreamReviewHandler::is_proxy_review(&request) => self.review(request).await,
            ForwardReason::Verb if self_review::is_filterable(&request, &config.filter) => {
                let caller = request.caller.clone();
                let response = self.forward(request, reason).await;
                let deps = (&self.shared.catalog, &config.coverage, &self.shared.authorizer);
                self_review::with_filtered_reads(response, &caller, deps).await
            }
            _ => {
                let is_table = reason == ForwardReason::Table
                    && request.info.verb == RequestVerb::List
                    && is_short_table(Some(&request.info), &request.query);
                request.context.is_permitted = is_table && self.permits(&mut request, resource).await;
                self.forward(request, reason).await
            }
        }
    }

    /// Lists a page. If the proxy cannot print it, and the caller may read only some namespaces, upstream prints the rows
    /// for the proxy, because it would deny them to the caller.
    async fn list(&self, authorized: AuthorizedRead<'_>, read: ListPageRequest) -> CacheReadResult {
        let AuthorizedRead { request, permission, .. } = authorized;
        let rows = match read.representation {
            Representation::Table(_) => return self.forwarding.filtered_table(authorized, read).await,
            Representation::Printed(include) if permission.namespaces().is_some() => {
                Some(ListPageRequest { representation: Representation::Table(include), ..read.clone() })
            }
            _ => None,
        };
        let mut reading = Box::pin(self.reader.list(authorized, read));
        let served = self.while_waiting(&request.caller, &request.query, reading.as_mut()).await;
        match (served.map_err(NotServable::from).flatten(), rows) {
            (Err(NotServable::Forward(ForwardReason::NotDerivable)), Some(rows)) => {
                self.forwarding.filtered_table(authorized, rows).await
            }
            (served, _) => served,
        }
    }

    /// Returns the resource of a request as discovery knows it. Discovery is refreshed if the resource is unknown and
    /// the request is a read that the cache could answer.
    ///
    /// # Errors
    /// Upstream has been unreachable since the process started, or too many requests are waiting. The read is not
    /// forwarded: it could at best reach an upstream that has just returned, and a watch would stay forwarded.
    async fn resource(
        &self,
        caller: &Caller,
        input: &ReadRouteInput<'_>,
    ) -> Result<Option<Arc<UpstreamResource>>, Status> {
        let info = input.info;
        if !info.is_resource || info.resource.is_empty() {
            return Ok(None);
        }
        let gvr = Gvr::new(&info.group, &info.version, &info.resource);
        if let Some(resource) = self.shared.catalog.find(&gvr) {
            return Ok(Some(resource));
        }
        // Anonymous callers, and requests that are forwarded in any case, do not cause a refresh.
        if matches!(caller, Caller::Anonymous) || check_kind(input).is_err() {
            return Ok(None);
        }
        let mut refreshed = Box::pin(self.shared.catalog.refresh_for(REDISCOVER_EVERY, REDISCOVER_MAX));
        match self.while_waiting(caller, input.query, refreshed.as_mut()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) if failure.is_outage => {
                return Err(unavailable(&format!("upstream discovery has not completed yet: {}", failure.reason)));
            }
            Ok(Err(failure)) => {
                tracing::debug!(resource = %gvr, error = failure.reason, "cannot look up a resource: discovery failed");
            }
            Err(shed) => return Err(too_many(shed, LIST_RETRY_SECONDS)),
        }
        Ok(self.shared.catalog.find(&gvr))
    }

    /// Returns the caller's permission for a read. For a caller whose reads are filtered, it may cover only a part.
    async fn authorize(
        &self,
        request: &mut ReadRequest,
        resource: &UpstreamResource,
        is_filtered_caller: bool,
    ) -> Result<ReadPermission, GrantError> {
        let (caller, info) = (&request.caller, &request.info);
        let is_filterable = || is_filtered_caller && has_visible_part(info, resource, caller, &self.shared.authorizer);
        let mut granted = Box::pin(self.shared.authorizer.readable(caller, info, is_filterable));
        let granted = self.while_waiting(caller, &request.query, granted.as_mut()).await;
        let granted = granted.map_err(too_many_waiting).flatten();
        request.context.stale_rules = match &granted {
            Ok(permission) => permission.stale_rules(),
            // The rules allow nothing, and upstream, which decides then, cannot be asked.
            Err(GrantError::Unavailable(_)) => self.shared.authorizer.stale_rules(),
            Err(_) => None,
        };
        let permission = granted?;
        request.context.is_filtered = permission.namespaces().is_some();
        Ok(permission)
    }

    /// Whether the caller may read everything that a request names. An error is a no: upstream decides then.
    async fn permits(&self, request: &mut ReadRequest, resource: Option<&UpstreamResource>) -> bool {
        let Some(resource) = resource.filter(|_| self.shared.authorizer.may_read_cache(&request.caller)) else {
            return false;
        };
        let Ok(permission) = self.authorize(request, resource, false).await else { return false };
        let info = &request.info;
        let namespace = (resource.namespaced && !info.namespace.is_empty()).then_some(&*info.namespace);
        let name = (!info.name.is_empty()).then_some(&*info.name);
        // Upstream may have revoked what stale rules allow.
        permission.stale_rules().is_none() && permission.covers(&resource.gvr, resource.namespaced, namespace, name)
    }

    /// Awaits what a request needs before it gets a permit of its own.
    async fn while_waiting<T>(
        &self,
        caller: &Caller,
        query: &UrlQuery,
        needed: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, LimitExceeded> {
        self.shared.concurrency.waiting.while_waiting(caller.flow().as_ref(), query, needed).await
    }

    /// Answers an authorized read that the cache cannot answer.
    async fn refuse_or_forward(&self, request: Box<ReadRequest>, refusal: NotServable) -> Response<ResponseBody> {
        match refusal {
            NotServable::FeedEnded => self.forward(request, ForwardReason::Unavailable).await,
            // Upstream would deny a collection that the caller may read only in part.
            NotServable::Forward(ForwardReason::Syncing | ForwardReason::NoProof) if request.context.is_filtered => {
                let message = "the collection to filter is not cached yet; try again";
                request.context.status(&unavailable(message))
            }
            NotServable::Forward(reason) => self.forward(request, reason).await,
            NotServable::Unauthorized(error) => request.auth_refusal(&error),
            NotServable::Late(status) | NotServable::Refuse(status) => request.context.status(&status),
        }
    }

    /// Answers a request that is not for a resource. If the cache cannot answer it or the caller may not send it, the
    /// request is forwarded.
    async fn document(&self, request: Box<ReadRequest>) -> Response<ResponseBody> {
        if let Some(wanted) =
            self.discovery.parse(&request).filter(|_| self.shared.authorizer.may_read_cache(&request.caller))
        {
            let response = pin!(async {
                let grant = self.shared.authorizer.grant(&request.caller, &request.info).await.ok()?;
                let hops = self.forwarding.hops_with_self(request.http.headers());
                let mut response = self.discovery.respond(&request, &wanted, hops).await?;
                put_stale_rules(response.headers_mut(), grant.stale_rules());
                response.extensions_mut().insert(AuditDecision::Allowed(grant.reason().clone()));
                Some(response)
            });
            if let Ok(Some(response)) = self.while_waiting(&request.caller, &request.query, response).await {
                return response;
            }
        }
        self.forward(request, ForwardReason::NonResource).await
    }

    /// Answers a review request of a downstream proxy, if the proxy may send it.
    async fn review(&self, request: Box<ReadRequest>) -> Response<ResponseBody> {
        let is_allowed = {
            let allowed = pin!(self.shared.authorizer.allows_proxy(&request.caller, &request.info));
            self.while_waiting(&request.caller, &request.query, allowed).await.unwrap_or(false)
        };
        if !is_allowed {
            return self.forward(request, ForwardReason::Verb).await;
        }
        let hops = self.forwarding.hops_with_self(request.http.headers());
        Box::pin(self.reviews.handle(request, hops)).await
    }

    async fn forward(&self, request: Box<ReadRequest>, reason: ForwardReason) -> Response<ResponseBody> {
        // Boxed, so that requests that are answered here have no room for it.
        Box::pin(async move {
            let ReadRequest { http: request, caller, info, query, context, .. } = *request;
            self.forwarding.forward(request, &caller, Some(&info), &query, &context, reason).await
        })
        .await
    }

    /// Forwards a request whose path names no resource.
    pub(super) async fn forward_unparsed(
        &self,
        request: Box<UnauthenticatedRequest>,
        caller: Caller,
    ) -> Response<ResponseBody> {
        let UnauthenticatedRequest { http: request, query, context, .. } = *request;
        self.forwarding.forward(request, &caller, None, &query, &context, ForwardReason::AmbiguousUrl).await
    }
}
