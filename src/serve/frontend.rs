use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};

use crate::auth::{Authorizer, Caller, ClientConnectionInfo, CrossOriginCheck, GrantError, ReadPermission};
use crate::feeds::FeedRegistry;
use crate::net::{ConnectionPeer, PeerAddress, RequestBody};
use crate::serve::activity::{ActiveWatches, UserAndAgent, metrics};
use crate::serve::audit::{AuditDecision, AuditLog, AuditRecord, ServedLocally};
use crate::serve::forward::{ForwardHandler, RequestCoalescer};
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper};
use crate::serve::peers::{PeerReviewHandler, health};
use crate::serve::read::{
    DiscoveryCache, FeedResolver, NotServable, ReadHandler, ReadRequest, ScanScheduler, UnauthenticatedRequest,
};
use crate::serve::response::{
    AUDIT_ID, LIST_RETRY_SECONDS, REASON, REFUSED_BY, ReplyBody, ResponseContext, expectation_failed,
    expects_the_impossible, malformed, new_audit_id, not_granted, too_many, too_many_wait, turned_away, unavailable,
};
use crate::serve::route::readable::CollectionExtent;
use crate::serve::route::{CacheCoverage, ForwardReason, ReadRoute, ReadRouteInput, RoutedWatch, check_kind, route};
use crate::serve::serve_config::ServeConfig;
use crate::serve::watch::WatchOpener;
use crate::upstream::{
    RequestForwarder, ResourceCatalog, SERVED, UpstreamClient, UpstreamResource, inspect, is_impersonation,
};
use crate::wire::Representation;
use base::{BackgroundTasks, DrainWatch, ReadinessTracker, Reloadable};
use kubeapi::{
    AccessAttributes, FlowDistinguisher, Gvr, RequestInfo, RequestInfoError, Status, UrlQuery, reaches_inside,
};

/// Receives requests and dispatches each to the part that answers it.
#[derive(Debug)]
pub struct HttpFrontend {
    reader: ReadHandler,
    watches: WatchOpener,
    forwarding: ForwardHandler,
    discovery: DiscoveryCache,
    reviews: PeerReviewHandler,
    ready: ReadinessTracker,
    authorizer: Authorizer,
    catalog: ResourceCatalog,
    config: Reloadable<ServeConfig>,
    concurrency: Arc<ConcurrencyLimits>,
    browsers: Reloadable<CrossOriginCheck>,
    audit: AuditLog,
    active_watches: ActiveWatches,
    client: UpstreamClient,
}

/// The components that the frontend connects.
pub struct HttpFrontendDeps {
    pub client: UpstreamClient,
    pub forwarder: RequestForwarder,
    pub catalog: ResourceCatalog,
    pub feeds: FeedRegistry,
    pub authorizer: Authorizer,
    pub browsers: Reloadable<CrossOriginCheck>,
    pub audit: AuditLog,
    pub active_watches: ActiveWatches,
    pub tasks: BackgroundTasks,
    pub drain: DrainWatch,
    pub ready: ReadinessTracker,
}

const NO_WAY_IN: &str = "exec, attach, portforward and proxy are not forwarded from a port that every local process \
                         can reach; use a unix socket, or set execOnLoopback";
const NO_SHARE: &str =
    "connection limit reached (limits.connections), and no other caller has more connections than you";
/// The `Retry-After` of a client whose connection got no slot, in seconds. It is long, because other connections rarely
/// end.
const NO_SHARE_RETRY_SECONDS: u32 = 10;
/// The minimum interval between discovery refreshes caused by unknown resources.
const REDISCOVER_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for a refresh of discovery.
const REDISCOVER_MAX: Duration = Duration::from_secs(5);
/// How many times a request is routed again because its feed has ended. After that, the request is forwarded.
const REROUTES_MAX: u32 = 2;

impl HttpFrontend {
    pub fn new(config: ServeConfig, deps: HttpFrontendDeps) -> Self {
        let HttpFrontendDeps { client, catalog, feeds, authorizer, tasks, drain, .. } = deps;
        let concurrency = Arc::new(ConcurrencyLimits::new(&config.limits));
        let slow_readers = SlowReaderReaper::new(config.unread, config.body_max);
        tasks.spawn_needed("slow readers", slow_readers.clone().keep(drain.clone()));
        let known = (catalog.clone(), feeds.clone());
        let discovery =
            DiscoveryCache::new(client.clone(), known, concurrency.clone(), slow_readers.clone(), config.lag_max);
        let reviews = PeerReviewHandler::new(client.clone(), authorizer.clone(), concurrency.clone(), &config);
        let config = Reloadable::new(config);
        let (sources, scans) =
            (Arc::new(FeedResolver::new(config.clone(), feeds, drain.clone())), ScanScheduler::new());
        Self {
            discovery,
            reviews,
            ready: deps.ready,
            reader: ReadHandler {
                sources: sources.clone(),
                scans: scans.clone(),
                concurrency: concurrency.clone(),
                slow_readers: slow_readers.clone(),
            },
            watches: WatchOpener {
                sources,
                scans,
                client: client.clone(),
                concurrency: concurrency.clone(),
                watches: metrics::WatchMetricsRegistry::default(),
                active_watches: deps.active_watches.clone(),
                slow_readers: slow_readers.clone(),
                tasks: tasks.clone(),
            },
            forwarding: ForwardHandler {
                client: client.clone(),
                forwarder: Arc::new(deps.forwarder),
                authorizer: authorizer.clone(),
                concurrency: concurrency.clone(),
                coalesced: RequestCoalescer::default(),
                tasks,
                drain,
                slow_readers,
            },
            authorizer,
            catalog,
            config,
            concurrency,
            browsers: deps.browsers,
            audit: deps.audit,
            active_watches: deps.active_watches,
            client,
        }
    }

    /// Applies new settings to later requests; requests in flight are not affected. The node, authorization, body and
    /// unread limits and the freshness timeout keep their initial values.
    pub fn tune(&self, to: &ServeConfig) {
        let now = self.config.get();
        let (node, authorizes) = (now.coverage.node.clone(), now.coverage.authorizes);
        let coverage = CacheCoverage { node, authorizes, ..to.coverage.clone() };
        let (body_max, unread, fresh_wait_max) = (now.body_max, now.unread, now.fresh_wait_max);
        self.config.set(ServeConfig { coverage, fresh_wait_max, body_max, unread, ..to.clone() });
        self.concurrency.tune(&to.limits);
    }

    /// Answers one request, whose head is read at once.
    pub fn answer(
        self: Arc<Self>,
        peer: ConnectionPeer,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ReplyBody>> + Send {
        let request = UnauthenticatedRequest::new(&peer, request);
        async move {
            // Moved, so that they are dropped with the answer and not with the future.
            let (peer, mut request) = (peer, request);
            let without_body = request.http.method() == Method::HEAD && request.http.version() == Version::HTTP_2;
            let finish = |response| self.finished(response, without_body);
            let (method, path) = (request.http.method().clone(), request.http.uri().path().to_owned());
            let info = RequestInfo::parse(method.as_str(), &path, &request.query).map(Box::new);
            let mut record = info.as_ref().ok().filter(|_| self.audit.is_on()).and_then(|info| {
                // The answer names the record.
                let id = request.context.audit_id.get_or_insert_with(new_audit_id);
                let head = (request.http.uri(), request.http.headers());
                AuditRecord::new(&self.audit, &peer, head, info, id).map(Box::new)
            });
            if let Some(response) = self.unauthenticated(&peer, &request, info.as_deref().ok()) {
                request.context.record = record.map(Arc::from);
                return finish(recorded(&request.context, response));
            }
            let caller = {
                let mut found_out =
                    Box::pin(self.authorizer.authenticate(ClientConnectionInfo::of(&peer), request.http.headers()));
                let found_out = self.concurrency.unknown.while_waiting(None, found_out.as_mut()).await;
                found_out.map_err(too_many_wait).flatten()
            };
            if let (Some(record), Ok(caller)) = (&mut record, &caller) {
                record.put_caller(caller);
            }
            request.context.record = record.map(Arc::from);
            let recording = request.context.record.is_some().then(|| Box::new(request.context.clone()));
            let payer = caller.as_ref().ok().and_then(Caller::payer);
            let has_place = match &caller {
                Ok(Caller::ProxyItself | Caller::Known(_)) => {
                    peer.connection.authenticated(payer.as_ref().map(FlowDistinguisher::number))
                }
                // Like upstream, closes the connection of an unknown caller after this response, and reads no further
                // requests from it. A connection that a load balancer shares with known callers stays open
                // (R-THREAT-14).
                Ok(Caller::Anonymous) | Err(_) => {
                    peer.connection.authentication_failed();
                    true
                }
            };
            let (who, received) = (UserAndAgent::new(payer, request.http.headers().get(USER_AGENT)), request.received);
            let forbidden = caller.as_ref().ok().and_then(|caller| self.forbids(&peer, &request.http, &info, caller));
            let response = match (info, caller, forbidden) {
                _ if !has_place => request.context.status(&Status::too_many_requests(NO_SHARE, NO_SHARE_RETRY_SECONDS)),
                (.., Some(why)) => request.context.status(&Status::from_code(403, &why)),
                (Ok(info), Ok(caller), _) => self.dispatch(request.of(caller, info)).await,
                // Upstream rejects a path that names no resource in its own words, for any caller.
                (Err(RequestInfoError::NoResource(_)), caller, _) => {
                    Box::pin(self.pass_unread(request, caller.unwrap_or(Caller::Anonymous))).await
                }
                // A path with an invalid escape is not forwarded, because upstream would close the connection.
                (Err(RequestInfoError::BadEscape), ..) => {
                    metrics::refused(400);
                    malformed(request.http.version())
                }
                (Ok(info), Err(refused), _) => turned_away(&request.context, "", &info, &request.query, &refused),
            };
            let mut response = match recording {
                Some(context) => recorded(&context, response),
                None => response,
            };
            if let Some(id) = response.headers_mut().get_mut(AUDIT_ID) {
                // Every audit id is unique. As sensitive values, they are not added to HTTP/2's header table, which
                // would store each one and compare it with all others.
                id.set_sensitive(true);
            }
            let (code, took) = (response.status().as_u16(), received.elapsed());
            let cached = response.headers().contains_key(SERVED);
            tracing::debug!(target: "access", %method, path, code, cached, ?took, "response sent");
            // The recent events of the debug pages have the refusals, and the reads that were forwarded.
            let asked = (method.as_str(), &*path);
            if let Some(ServedLocally { status: Some(status), .. }) = response.extensions().get() {
                if response.status() != StatusCode::NOT_FOUND {
                    self.active_watches.refused(&who, asked, (status.http_code(), &status.message));
                }
            } else if let Some(reason) = response.headers().get(REASON).and_then(|reason| reason.to_str().ok())
                && [Method::GET, Method::HEAD].contains(&method)
            {
                self.active_watches.passed(&who, asked, reason);
            }
            finish(response)
        }
    }

    /// Returns the response to a request that needs no caller: the refusal of one that is not addressed to this proxy
    /// or is ambiguous, or a proxy's health check. It also closes the connection, unless an authenticated caller has
    /// used it. So each such response costs the sender a handshake.
    fn unauthenticated(
        &self,
        peer: &ConnectionPeer,
        request: &UnauthenticatedRequest,
        info: Option<&RequestInfo>,
    ) -> Option<Response<ReplyBody>> {
        let (http, context) = (&request.http, &request.context);
        let response = if let Err(looped) = self.forwarding.check_hops(http.headers()) {
            context.status(&looped)
        } else if let Some(status) = &context.accept_refused {
            context.status(status)
        } else if expects_the_impossible(http) {
            expectation_failed()
        } else if let Err(ambiguous) = inspect(http.headers()) {
            context.status(&Status::bad_request(ambiguous.to_string()))
        } else if self.is_open_to_all(peer)
            && let Err(foreign) = self.browsers.get().check(http.uri(), http.headers())
        {
            context.status(&Status::from_code(403, &foreign.to_string()))
        } else {
            health(http, info.filter(|_| context.by_proxy)?, &self.ready)?
        };
        peer.connection.authentication_failed();
        Some(response)
    }

    /// Completes a response. Responses of the proxy itself get upstream's `Strict-Transport-Security`, and its errors
    /// get a header that names the origin of the refusal.
    fn finished(&self, mut response: Response<ReplyBody>, without_body: bool) -> Response<ReplyBody> {
        if let Some(ServedLocally { status: Some(status), .. }) = response.extensions().get() {
            metrics::refused(status.http_code());
        }
        let is_ours = !response.headers().contains_key(REASON);
        if let Some(said) = self.client.strict_transport_security().filter(|_| is_ours) {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, said);
        }
        if is_ours && (response.status().is_client_error() || response.status().is_server_error()) {
            response.headers_mut().entry(REFUSED_BY).or_insert(HeaderValue::from_static("proxy"));
        }
        if without_body { response.map(ReplyBody::of_head) } else { response }
    }

    /// Whether any process on this machine can connect and act with the proxy's permissions.
    fn is_open_to_all(&self, peer: &ConnectionPeer) -> bool {
        self.authorizer.is_open() && matches!(peer.address, PeerAddress::Tcp(_))
    }

    /// Returns why a request is forbidden although its sender is authenticated, if it is. Either a web page may have
    /// caused the sender's browser to send it, or any local process may be the sender. `kubectl proxy` rejects `exec`
    /// and `attach` for the latter reason.
    fn forbids(
        &self,
        peer: &ConnectionPeer,
        request: &Request<RequestBody>,
        info: &Result<Box<RequestInfo>, RequestInfoError>,
        caller: &Caller,
    ) -> Option<String> {
        if caller.shows_certificate() {
            // A browser adds the client certificate to every request that a page sends.
            return self.browsers.get().check_site(request.headers()).err().map(|foreign| foreign.to_string());
        }
        let reaches = || match info {
            // Such a request is always rejected.
            Err(RequestInfoError::BadEscape) => false,
            info => reaches_inside(request.uri().path(), info.as_deref().ok()),
        };
        let forbidden = !self.config.get().exec_on_loopback && self.is_open_to_all(peer) && reaches();
        forbidden.then(|| NO_WAY_IN.to_owned())
    }

    async fn dispatch(&self, mut request: Box<ReadRequest>) -> Response<ReplyBody> {
        let mut reroutes = 0;
        // The request is routed again if its feed ends while it waits.
        loop {
            let asked = ReadRouteInput {
                method: request.http.method(),
                info: &request.info,
                query: &request.query,
                accept: request.context.accept.as_deref(),
                user_agent: request.context.user_agent.as_deref(),
                impersonates: request.http.headers().keys().any(is_impersonation),
                fills_a_feed: request.fills_a_feed(),
                readable: request.readable,
            };
            let resource = match self.resource(&request.caller, &asked).await {
                Ok(resource) => resource,
                Err(status) => return request.context.status(&status),
            };
            let config = self.config.get();
            let (resource, route) = match route(&asked, resource.as_deref(), &config.coverage) {
                Err(ForwardReason::NonResource) => return Box::pin(self.document(request)).await,
                Err(ForwardReason::Verb) if PeerReviewHandler::has(&request) => {
                    return Box::pin(self.review(request)).await;
                }
                Err(reason) => return self.pass(request, reason).await,
                Ok(_) if !self.authorizer.serves(&request.caller) => {
                    return self.pass(request, ForwardReason::Anonymous).await;
                }
                Ok(ours) => ours,
            };
            // Authorization comes first, so that an unauthorized caller learns nothing about other errors in the
            // request.
            let permit = match self.permit(&mut request, resource).await {
                Ok(permit) => permit,
                Err(refused) => return request.turned_away(&refused),
            };
            let payer = request.caller.payer();
            let decision = self.audit.is_on().then(|| AuditDecision::Allowed(permit.reason()));
            // Boxed, so that the future of another request does not reserve room for them: it is copied as it comes.
            let answered = match route {
                ReadRoute::Refuse(status) => Err(NotServable::Refuse(status)),
                ReadRoute::Get(read) => {
                    let mut reading = Box::pin(self.reader.get(&request, &permit, resource, read));
                    let answered = self.concurrency.waiting.while_waiting(payer.as_ref(), reading.as_mut()).await;
                    answered.unwrap_or_else(|shed| Err(shed.into()))
                }
                ReadRoute::List(read) => {
                    let mut reading = Box::pin(self.reader.list(&request, &permit, resource, read));
                    let answered = self.concurrency.waiting.while_waiting(payer.as_ref(), reading.as_mut()).await;
                    answered.unwrap_or_else(|shed| Err(shed.into()))
                }
                ReadRoute::Watch(RoutedWatch { representation: Representation::Table(_), .. })
                    if permit.part().is_some() =>
                {
                    Err(NotServable::Forward(ForwardReason::Table))
                }
                ReadRoute::Watch(read) => Box::pin(self.watches.open(&mut request, permit, resource, read)).await,
            };
            let mut response = match answered {
                Ok(response) => response,
                Err(NotServable::FeedEnded) if reroutes < REROUTES_MAX => {
                    reroutes += 1;
                    continue;
                }
                Err(NotServable::FeedEnded) => self.pass(request, ForwardReason::Unavailable).await,
                // Upstream would deny a collection that the caller may read only in part.
                Err(NotServable::Forward(ForwardReason::Syncing | ForwardReason::NoProof))
                    if request.context.extent == Some(CollectionExtent::Some) =>
                {
                    let why = "the readable part of this collection is not known yet; try again";
                    request.context.status(&unavailable(why))
                }
                Err(NotServable::Forward(reason)) => self.pass(request, reason).await,
                Err(NotServable::Late(status) | NotServable::Refuse(status)) => request.context.status(&status),
            };
            if let Some(decision) = decision {
                response.extensions_mut().insert(decision);
            }
            return response;
        }
    }

    /// Answers a request that is not for a resource. If the cache cannot answer it or the caller may not send it, the
    /// request is forwarded.
    async fn document(&self, request: Box<ReadRequest>) -> Response<ReplyBody> {
        if let Some(key) = self.discovery.key(&request).filter(|_| self.authorizer.serves(&request.caller)) {
            let answering = pin!(async {
                let grant = self.authorizer.grant(&request.caller, &request.info).await.ok()?;
                let hops = self.forwarding.hops_with_us(request.http.headers());
                let mut response = self.discovery.answer(&request, &key, hops).await?;
                response.extensions_mut().insert(AuditDecision::Allowed(grant.reason().clone()));
                Some(response)
            });
            let payer = request.caller.payer();
            if let Ok(Some(response)) = self.concurrency.waiting.while_waiting(payer.as_ref(), answering).await {
                return response;
            }
        }
        self.pass(request, ForwardReason::NonResource).await
    }

    /// Answers a review request of a downstream proxy, if the proxy may send it.
    async fn review(&self, request: Box<ReadRequest>) -> Response<ReplyBody> {
        let may = {
            let asked = pin!(self.authorizer.lets_proxy(&request.caller, &request.info));
            self.concurrency.waiting.while_waiting(request.caller.payer().as_ref(), asked).await.unwrap_or(false)
        };
        if !may {
            return self.pass(request, ForwardReason::Verb).await;
        }
        let hops = self.forwarding.hops_with_us(request.http.headers());
        Box::pin(self.reviews.answer(request, hops)).await
    }

    async fn permit(
        &self,
        request: &mut ReadRequest,
        resource: &UpstreamResource,
    ) -> Result<ReadPermission, GrantError> {
        let payer = request.caller.payer();
        let is_for_readable = request.is_for_readable(resource);
        let (caller, info) = (&request.caller, &request.info);
        let mut permitted = Box::pin(async move {
            if is_for_readable {
                self.authorizer.readable(caller, info).await
            } else {
                self.authorizer.grant(caller, info).await.map(ReadPermission::Whole)
            }
        });
        let permitted = self.concurrency.waiting.while_waiting(payer.as_ref(), permitted.as_mut()).await;
        let permit = permitted.map_err(too_many_wait).flatten()?;
        if is_for_readable {
            request.context.extent =
                Some(if permit.part().is_some() { CollectionExtent::Some } else { CollectionExtent::All });
        }
        Ok(permit)
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
        asked: &ReadRouteInput<'_>,
    ) -> Result<Option<Arc<UpstreamResource>>, Status> {
        let info = asked.info;
        if !info.is_resource || info.resource.is_empty() {
            return Ok(None);
        }
        let gvr = Gvr::new(&info.group, &info.version, &info.resource);
        if let Some(resource) = self.catalog.find(&gvr) {
            return Ok(Some(resource));
        }
        // Anonymous callers, and requests that are forwarded in any case, do not cause a refresh.
        if matches!(caller, Caller::Anonymous) || check_kind(asked).is_err() {
            return Ok(None);
        }
        let mut asked = Box::pin(self.catalog.refresh_for(REDISCOVER_EVERY, REDISCOVER_MAX));
        match self.concurrency.waiting.while_waiting(caller.payer().as_ref(), asked.as_mut()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) if failure.is_outage => {
                return Err(unavailable(&format!("upstream discovery has not completed yet: {}", failure.why)));
            }
            Ok(Err(failure)) => {
                tracing::debug!(resource = %gvr, error = failure.why, "cannot look up a resource: discovery failed");
            }
            Err(shed) => return Err(too_many(shed, LIST_RETRY_SECONDS)),
        }
        Ok(self.catalog.find(&gvr))
    }

    async fn pass(&self, request: Box<ReadRequest>, reason: ForwardReason) -> Response<ReplyBody> {
        // Boxed, so that requests that are answered here have no room for it.
        Box::pin(async move {
            let ReadRequest { http: request, caller, info, query, context, .. } = *request;
            self.forwarding.forward(request, &caller, Some(&info), &query, &context, reason).await
        })
        .await
    }

    /// Forwards a request whose path could not be parsed.
    async fn pass_unread(&self, request: Box<UnauthenticatedRequest>, caller: Caller) -> Response<ReplyBody> {
        let UnauthenticatedRequest { http: request, query, context, .. } = *request;
        self.forwarding.forward(request, &caller, None, &query, &context, ForwardReason::AmbiguousUrl).await
    }
}

/// Writes the audit record of the response. Returns the response, or a refusal if a required record cannot be written.
fn recorded(context: &ResponseContext, response: Response<ReplyBody>) -> Response<ReplyBody> {
    match &context.record {
        Some(record) if !record.answered(&response) => {
            metrics::records("refused", 1);
            context.status(&unavailable("the audit log queue is full, and this read must be audited; try again"))
        }
        _ => response,
    }
}

/// Allows callers to read metrics if upstream allows them to `get` the path `/metrics`.
#[derive(Clone)]
pub struct ScrapeAuthorizer {
    authorizer: Authorizer,
    browsers: Reloadable<CrossOriginCheck>,
}

impl ScrapeAuthorizer {
    /// Creates the authorizer. `browsers` checks senders with client certificates, because a browser sends the
    /// certificate for any page.
    pub fn new(authorizer: Authorizer, browsers: Reloadable<CrossOriginCheck>) -> Self {
        Self { authorizer, browsers }
    }

    /// Checks whether the sender of a request may read the metrics.
    ///
    /// # Errors
    /// The sender is not authorized, or that cannot be determined.
    pub async fn admit(self, sender: ClientConnectionInfo, headers: HeaderMap) -> Result<(), Status> {
        let info = RequestInfo::parse("GET", "/metrics", &UrlQuery::default());
        let info = info.map_err(|error| Status::bad_request(error.to_string()))?;
        let refused = |why: &GrantError, user: &str| not_granted(why, user, &AccessAttributes::of(&info));
        let caller = self.authorizer.authenticate(sender, &headers).await.map_err(|why| refused(&why, ""))?;
        if caller.shows_certificate() {
            let site = self.browsers.get().check_site(&headers);
            site.map_err(|foreign| Status::from_code(403, &foreign.to_string()))?;
        }
        let granted = self.authorizer.grant(&caller, &info).await;
        granted.map(drop).map_err(|why| refused(&why, caller.name()))
    }
}
