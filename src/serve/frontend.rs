mod scrapes;

pub use self::scrapes::ScrapeAuthorizer;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{Method, Request, Response, Version};

use crate::auth::{Authorizer, BrowserGuard, Caller, NotGranted, Permit, RequestSender};
use crate::feeds::Feeds;
use crate::net::{Peer, PeerAddress, RequestBody};
use crate::serve::activity::{ActiveWatches, RequestSource, metrics};
use crate::serve::audit::{Audit, AuditRecord, Decision};
use crate::serve::forward::Forwarding;
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper};
use crate::serve::peers::{PeerReviews, health};
use crate::serve::read::{
    DiscoveryCache, DocumentKey, FeedSources, NotServable, ReadHandler, ReadRequest, ScanScheduler,
    UnauthenticatedRequest,
};
use crate::serve::response::{
    AUDIT_ID, LIST_RETRY_SECONDS, REASON, REFUSED_BY, ReplyBody, ResponseContext, expectation_failed,
    expects_the_impossible, forbid, malformed, new_audit_id, outcome, too_many, too_many_wait, turned_away,
    unavailable,
};
use crate::serve::route::readable::Extent;
use crate::serve::route::{Coverage, ForwardReason, Route, RouteInput, WatchRead, check_kind, route};
use crate::serve::serve_config::ServeConfig;
use crate::serve::watch::WatchOpener;
use crate::upstream::{Catalog, Client, Forwarder, Resource, SERVED, inspect, is_impersonation};
use crate::wire::Representation;
use base::{DrainWatch, Ready, Reloadable, Tasks};
use kubeapi::{FlowDistinguisher, Gvr, RequestInfo, RequestInfoError, Status, reaches_inside};

/// Receives requests and dispatches each to the part that answers it.
#[derive(Debug)]
pub struct Frontend {
    reader: ReadHandler,
    watches: WatchOpener,
    forwarding: Forwarding,
    discovery: DiscoveryCache,
    reviews: PeerReviews,
    ready: Ready,
    authorizer: Authorizer,
    catalog: Catalog,
    config: Reloadable<ServeConfig>,
    concurrency: Arc<ConcurrencyLimits>,
    browsers: Reloadable<BrowserGuard>,
    audit: Audit,
    active_watches: ActiveWatches,
    client: Client,
}

/// The components that the frontend connects.
pub struct FrontendDeps {
    pub client: Client,
    pub forwarder: Forwarder,
    pub catalog: Catalog,
    pub feeds: Feeds,
    pub authorizer: Authorizer,
    pub browsers: Reloadable<BrowserGuard>,
    pub audit: Audit,
    pub active_watches: ActiveWatches,
    pub tasks: Tasks,
    pub drain: DrainWatch,
    pub ready: Ready,
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

impl Frontend {
    pub fn new(config: ServeConfig, parts: FrontendDeps) -> Self {
        let FrontendDeps {
            client,
            forwarder,
            catalog,
            feeds,
            authorizer,
            browsers,
            audit,
            active_watches,
            tasks,
            drain,
            ready,
        } = parts;
        let concurrency = Arc::new(ConcurrencyLimits::new(&config.limits));
        let slow_readers = SlowReaderReaper::new(config.unread, config.body_max);
        tasks.spawn_needed("slow readers", slow_readers.clone().keep(drain.clone()));
        let known = (catalog.clone(), feeds.clone());
        let discovery =
            DiscoveryCache::new(client.clone(), known, concurrency.clone(), slow_readers.clone(), config.lag_max);
        let reviews = PeerReviews::new(client.clone(), authorizer.clone(), concurrency.clone(), &config);
        let config = Reloadable::new(config);
        let sources = Arc::new(FeedSources::new(config.clone(), feeds, drain.clone()));
        let scans = ScanScheduler::new();
        Self {
            discovery,
            reviews,
            ready,
            reader: ReadHandler::new(sources.clone(), scans.clone(), (concurrency.clone(), slow_readers.clone())),
            watches: WatchOpener::new(
                sources,
                scans,
                client.clone(),
                concurrency.clone(),
                slow_readers.clone(),
                active_watches.clone(),
                tasks.clone(),
            ),
            forwarding: Forwarding::new(
                client.clone(),
                forwarder,
                authorizer.clone(),
                concurrency.clone(),
                (tasks, drain, slow_readers),
            ),
            authorizer,
            catalog,
            config,
            concurrency,
            browsers,
            audit,
            active_watches,
            client,
        }
    }

    /// Applies new settings to later requests; requests in flight are not affected. The node, authorization, body and
    /// unread limits and the freshness timeout keep their initial values.
    pub fn tune(&self, to: &ServeConfig) {
        let now = self.config.get();
        let (node, authorizes) = (now.coverage.node.clone(), now.coverage.authorizes);
        let coverage = Coverage { node, authorizes, ..to.coverage.clone() };
        let (body_max, unread, fresh_wait_max) = (now.body_max, now.unread, now.fresh_wait_max);
        self.config.set(ServeConfig { coverage, fresh_wait_max, body_max, unread, ..to.clone() });
        self.concurrency.tune(&to.limits);
    }

    /// Answers one request, whose head is read at once.
    pub fn answer(
        self: Arc<Self>,
        peer: Peer,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ReplyBody>> + Send {
        let request = UnauthenticatedRequest::new(&peer, request);
        self.answer_received(peer, request)
    }

    async fn answer_received(
        self: Arc<Self>,
        peer: Peer,
        mut request: Box<UnauthenticatedRequest>,
    ) -> Response<ReplyBody> {
        let without_body = request.http.method() == Method::HEAD && request.http.version() == Version::HTTP_2;
        let finish = |response| self.finished(response, without_body);
        let (method, path) = (request.http.method().clone(), request.http.uri().path().to_owned());
        let info = RequestInfo::parse(method.as_str(), &path, &request.query).map(Box::new);
        let mut record = info.as_ref().ok().and_then(|info| self.record(&peer, &mut request, info));
        if let Some(response) = self.unauthenticated(&peer, &request, info.as_deref().ok()) {
            request.context.record = record.map(Arc::from);
            return finish(outcome::record(&request.context, response));
        }
        let caller = Box::pin(self.authenticate(&peer, &request.http)).await;
        if let (Some(record), Ok(caller)) = (&mut record, &caller) {
            record.put_caller(caller);
        }
        request.context.record = record.map(Arc::from);
        let recording = request.context.record.is_some().then(|| Box::new(request.context.clone()));
        let payer = caller.as_ref().ok().and_then(Caller::payer);
        let has_place = settle(&peer, caller.as_ref().ok(), payer.as_ref());
        let (who, received) = (RequestSource::new(payer, request.http.headers().get(USER_AGENT)), request.received);
        let forbidden = caller.as_ref().ok().and_then(|caller| self.forbids(&peer, &request.http, &info, caller));
        let response = match (info, caller) {
            _ if !has_place => request.context.status(&Status::too_many_requests(NO_SHARE, NO_SHARE_RETRY_SECONDS)),
            _ if forbidden.is_some() => forbid(&request.context, &forbidden.unwrap_or_default()),
            (Ok(info), Ok(caller)) => self.dispatch(request.of(caller, info)).await,
            // Upstream rejects a path that names no resource in its own words, for any caller.
            (Err(RequestInfoError::NoResource(_)), caller) => {
                Box::pin(self.pass_unread(request, caller.unwrap_or(Caller::Anonymous))).await
            }
            // A path with an invalid escape is not forwarded, because upstream would close the connection.
            (Err(RequestInfoError::BadEscape), _) => {
                metrics::refused(400);
                malformed(request.http.version())
            }
            (Ok(info), Err(refused)) => turned_away(&request.context, "", &info, &request.query, &refused),
        };
        let mut response = match recording {
            Some(context) => outcome::record(&context, response),
            None => response,
        };
        if let Some(id) = response.headers_mut().get_mut(AUDIT_ID) {
            // Every audit id is unique. As sensitive values, they are not added to HTTP/2's header table, which would
            // store each one and compare it with all others.
            id.set_sensitive(true);
        }
        let (code, took) = (response.status().as_u16(), received.elapsed());
        let cached = response.headers().contains_key(SERVED);
        tracing::debug!(target: "access", %method, path, code, cached, ?took, "response sent");
        outcome::show(&self.active_watches, &response, &who, (method.as_str(), &path));
        finish(response)
    }

    /// Returns the response to a request that needs no caller: a refusal, or a proxy's health check. It also closes the
    /// connection, unless an authenticated caller has used it. So each such response costs the sender a handshake.
    fn unauthenticated(
        &self,
        peer: &Peer,
        request: &UnauthenticatedRequest,
        info: Option<&RequestInfo>,
    ) -> Option<Response<ReplyBody>> {
        let refused = self.admit(peer, &request.http, &request.context).err().map(|refusal| *refusal);
        let response = refused.or_else(|| self.health(request, info))?;
        peer.connection.turn_away();
        Some(response)
    }

    /// Completes a response. Responses of the proxy itself get upstream's `Strict-Transport-Security`, and its errors
    /// get a header that names the origin of the refusal.
    fn finished(&self, mut response: Response<ReplyBody>, without_body: bool) -> Response<ReplyBody> {
        outcome::count(&response);
        let is_ours = !response.headers().contains_key(REASON);
        if let Some(said) = self.client.strict_transport_security().filter(|_| is_ours) {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, said);
        }
        if is_ours && (response.status().is_client_error() || response.status().is_server_error()) {
            response.headers_mut().entry(REFUSED_BY).or_insert(HeaderValue::from_static("proxy"));
        }
        if without_body { response.map(ReplyBody::of_head) } else { response }
    }

    async fn authenticate(&self, peer: &Peer, request: &Request<RequestBody>) -> Result<Caller, NotGranted> {
        let identified = pin!(self.authorizer.authenticate(RequestSender::of(peer), request.headers()));
        self.concurrency.while_unknown(identified).await.map_err(too_many_wait)?
    }

    /// Answers a downstream proxy that checks the health of its upstream, which is this proxy.
    fn health(&self, request: &UnauthenticatedRequest, info: Option<&RequestInfo>) -> Option<Response<ReplyBody>> {
        let info = info.filter(|_| request.context.by_proxy)?;
        health(&request.http, info, &self.ready)
    }

    /// Returns the audit record of the request, if requests are recorded. The response names the record.
    fn record(
        &self,
        peer: &Peer,
        request: &mut UnauthenticatedRequest,
        info: &RequestInfo,
    ) -> Option<Box<AuditRecord>> {
        let context = &mut request.context;
        let id = self.audit.is_on().then(|| context.audit_id.get_or_insert_with(new_audit_id))?;
        AuditRecord::new(&self.audit, peer, (request.http.uri(), request.http.headers()), info, id).map(Box::new)
    }

    /// Checks that the request is addressed to this proxy and is unambiguous.
    fn admit(
        &self,
        peer: &Peer,
        request: &Request<RequestBody>,
        context: &ResponseContext,
    ) -> Result<(), Box<Response<ReplyBody>>> {
        self.forwarding.check_hops(request.headers()).map_err(|status| Box::new(context.status(&status)))?;
        if let Some(status) = &context.accept_refused {
            return Err(Box::new(context.status(status)));
        }
        if expects_the_impossible(request) {
            return Err(Box::new(expectation_failed()));
        }
        if let Err(ambiguous) = inspect(request.headers()) {
            return Err(Box::new(context.status(&Status::bad_request(ambiguous.to_string()))));
        }
        if !self.is_open_to_all(peer) {
            return Ok(());
        }
        let checked = self.browsers.get().check(request.uri(), request.headers());
        checked.map_err(|foreign| Box::new(forbid(context, &foreign.to_string())))
    }

    /// Whether any process on this machine can connect and act with the proxy's permissions.
    fn is_open_to_all(&self, peer: &Peer) -> bool {
        self.authorizer.is_open() && matches!(peer.address, PeerAddress::Tcp(_))
    }

    /// Returns why a request is forbidden although its sender is authenticated, if it is. Either a web page may have
    /// caused the sender's browser to send it, or any local process may be the sender. `kubectl proxy` rejects `exec`
    /// and `attach` for the latter reason.
    fn forbids(
        &self,
        peer: &Peer,
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
        let asked = RouteInput {
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
            Err(ForwardReason::Verb) if PeerReviews::has(&request) => return Box::pin(self.review(request)).await,
            Err(reason) => return self.pass(request, reason).await,
            Ok(_) if !self.authorizer.serves(&request.caller) => {
                return self.pass(request, ForwardReason::Anonymous).await;
            }
            Ok(ours) => ours,
        };
        // Authorization comes first, so that an unauthorized caller learns nothing about other errors in the request.
        let permit = match self.permit(&mut request, resource).await {
            Ok(permit) => permit,
            Err(refused) => return request.turned_away(&refused),
        };
        let payer = request.caller.payer();
        let decision = self.audit.is_on().then(|| Decision::Allowed(permit.reason()));
        // Boxed, so that the future of another request does not reserve room for them: it is copied as it comes.
        let answered = match route {
            Route::Refuse(status) => Err(NotServable::Refuse(status)),
            Route::Get(read) => {
                let mut reading = Box::pin(self.reader.get(&request, &permit, resource, read));
                let answered = self.concurrency.while_waiting(payer.as_ref(), reading.as_mut()).await;
                answered.unwrap_or_else(|shed| Err(shed.into()))
            }
            Route::List(read) => {
                let mut reading = Box::pin(self.reader.list(&request, &permit, resource, read));
                let answered = self.concurrency.while_waiting(payer.as_ref(), reading.as_mut()).await;
                answered.unwrap_or_else(|shed| Err(shed.into()))
            }
            Route::Watch(WatchRead { representation: Representation::Table(_), .. }) if permit.part().is_some() => {
                Err(NotServable::Forward(ForwardReason::Table))
            }
            Route::Watch(read) => Box::pin(self.watches.open(&mut request, permit, resource, read)).await,
        };
        let mut response = match answered {
            Ok(response) => response,
            Err(why) => Box::pin(self.unready(request, why)).await,
        };
        // A request that was routed again keeps its latest decision.
        if let (Some(decision), None) = (decision, response.extensions().get::<Decision>()) {
            response.extensions_mut().insert(decision);
        }
        response
    }

    /// Answers a request that is not for a resource. If the cache cannot answer it or the caller may not send it, the
    /// request is forwarded.
    async fn document(&self, request: Box<ReadRequest>) -> Response<ReplyBody> {
        let key = self.discovery.key(&request).filter(|_| self.authorizer.serves(&request.caller));
        if let Some(key) = key {
            let payer = request.caller.payer();
            let answering = pin!(self.cached_document(&request, &key));
            if let Ok(Some(response)) = self.concurrency.while_waiting(payer.as_ref(), answering).await {
                return response;
            }
        }
        self.pass(request, ForwardReason::NonResource).await
    }

    async fn cached_document(&self, request: &ReadRequest, key: &DocumentKey) -> Option<Response<ReplyBody>> {
        let grant = self.authorizer.grant(&request.caller, &request.info).await.ok()?;
        let hops = self.forwarding.hops_with_us(request.http.headers()).ok()?;
        let mut response = self.discovery.answer(request, key, hops).await?;
        response.extensions_mut().insert(Decision::Allowed(grant.reason().clone()));
        Some(response)
    }

    /// Answers a review request of a downstream proxy, if the proxy may send it.
    async fn review(&self, request: Box<ReadRequest>) -> Response<ReplyBody> {
        let may = {
            let asked = pin!(self.authorizer.lets_proxy(&request.caller, &request.info));
            self.concurrency.while_waiting(request.caller.payer().as_ref(), asked).await.unwrap_or(false)
        };
        match self.forwarding.hops_with_us(request.http.headers()) {
            Ok(hops) if may => Box::pin(self.reviews.answer(request, hops)).await,
            _ => self.pass(request, ForwardReason::Verb).await,
        }
    }

    async fn permit(&self, request: &mut ReadRequest, resource: &Resource) -> Result<Permit, NotGranted> {
        let payer = request.caller.payer();
        if !request.is_for_readable(resource) {
            let mut granted = Box::pin(self.authorizer.grant(&request.caller, &request.info));
            let granted = self.concurrency.while_waiting(payer.as_ref(), granted.as_mut()).await;
            return granted.map_err(too_many_wait)?.map(Permit::Whole);
        }
        let mut permit = Box::pin(self.authorizer.readable(&request.caller, &request.info));
        let permit = self.concurrency.while_waiting(payer.as_ref(), permit.as_mut()).await.map_err(too_many_wait)??;
        request.context.extent = Some(if permit.part().is_some() { Extent::Some } else { Extent::All });
        Ok(permit)
    }

    /// Returns the resource of a request as discovery knows it. Discovery is refreshed if the resource is unknown and
    /// the request is a read that the cache could answer.
    ///
    /// # Errors
    /// Upstream has been unreachable since the process started, or too many requests are waiting. The read is not
    /// forwarded: it could at best reach an upstream that has just returned, and a watch would stay forwarded.
    async fn resource(&self, caller: &Caller, asked: &RouteInput<'_>) -> Result<Option<Arc<Resource>>, Status> {
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
        match self.concurrency.while_waiting(caller.payer().as_ref(), asked.as_mut()).await {
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

    /// Handles a request that could not be answered from a feed: it is routed again, forwarded, or refused.
    async fn unready(&self, mut request: Box<ReadRequest>, why: NotServable) -> Response<ReplyBody> {
        match why {
            NotServable::FeedEnded if request.rerouted < REROUTES_MAX => {
                request.rerouted += 1;
                self.dispatch(request).await
            }
            NotServable::FeedEnded => self.pass(request, ForwardReason::Unavailable).await,
            // Upstream would deny a collection that the caller may read only in part.
            NotServable::Forward(ForwardReason::Syncing | ForwardReason::NoProof)
                if request.context.extent == Some(Extent::Some) =>
            {
                let why = "the readable part of this collection is not known yet; try again";
                request.context.status(&unavailable(why))
            }
            NotServable::Forward(reason) => self.pass(request, reason).await,
            NotServable::Refuse(status) => request.context.status(&status),
        }
    }
}

/// Charges the connection to its caller. Returns false if the caller's share of the listener is used up.
fn settle(peer: &Peer, caller: Option<&Caller>, payer: Option<&FlowDistinguisher>) -> bool {
    match caller {
        // Like upstream, closes the connection of an unknown caller after this response, and reads no further requests
        // from it. A connection that a load balancer shares with known callers stays open (R-THREAT-14).
        Some(Caller::Anonymous) | None => {
            peer.connection.turn_away();
            true
        }
        Some(Caller::ProxyItself | Caller::Known(_)) => {
            peer.connection.found_known(payer.map(FlowDistinguisher::number))
        }
    }
}
