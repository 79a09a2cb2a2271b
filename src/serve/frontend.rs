use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{Method, Request, Response, Version};
use tokio::time::Instant;

use super::active_watches::{ActiveWatches, Who};
use super::answered;
use super::audit::{Audit, AuditRecord, Decision};
use super::body::ReplyBody;
use super::bounded_body::BodyTimes;
use super::concurrency::ConcurrencyLimits;
use super::coverage::Coverage;
use super::documents::{ServerDocuments, health};
use super::forwarding::Forwarding;
use super::metrics;
use super::read_request::ReadRequest;
use super::readable::{self, Extent};
use super::reader::Reader;
use super::refusals::{expects_the_impossible, forbid, turned_away};
use super::response_context::{
    AUDIT_ID, REASON, REFUSED_BY, ResponseContext, expectation_failed, malformed, new_audit_id,
};
use super::reviews::PeerReviews;
use super::route::{ForwardReason, Route, RouteInput, WatchRead, check_kind, route};
use super::serve_config::ServeConfig;
use super::sources::NotServable;
use super::statuses::{LIST_RETRY_SECONDS, too_many, too_many_wait, unavailable};
use crate::auth::{Authorizer, BrowserGuard, Caller, NotGranted, Permit, RequestSender};
use crate::feeds::Feeds;
use crate::net::{Peer, PeerAddress, RequestBody};
use crate::upstream::{Catalog, Client, Forwarder, Resource, SERVED, inspect, is_impersonation};
use crate::wire::Representation;
use base::{DrainWatch, Ready, Reloadable, Tasks};
use kubeapi::{FlowDistinguisher, Gvr, Query, RequestInfo, RequestInfoError, Status, reaches_inside};

/// Accepts requests, and hands each to the part that answers it.
#[derive(Debug)]
pub struct Frontend {
    reader: Reader,
    forwarding: Forwarding,
    documents: ServerDocuments,
    reviews: PeerReviews,
    ready: Ready,
    gate: Authorizer,
    catalog: Catalog,
    config: Reloadable<ServeConfig>,
    admission: Arc<ConcurrencyLimits>,
    browsers: Reloadable<BrowserGuard>,
    audit: Audit,
    sightings: ActiveWatches,
    client: Client,
}

/// The parts that the frontend connects.
pub struct Parts {
    pub client: Client,
    pub forwarder: Forwarder,
    pub catalog: Catalog,
    pub feeds: Feeds,
    pub gate: Authorizer,
    pub browsers: Reloadable<BrowserGuard>,
    pub audit: Audit,
    pub sightings: ActiveWatches,
    pub tasks: Tasks,
    pub drain: DrainWatch,
    pub ready: Ready,
}

const NO_WAY_IN: &str = "exec, attach, portforward and proxy are not passed on from a port that every process of this \
                         machine can reach; use a unix socket, or set execOnLoopback";
const NO_SHARE: &str = "all connections of this listener are taken, and no account holds more of them than yours";
/// When a client may come back whose connection has no place. Others end by themselves rarely.
const NO_SHARE_RETRY_SECONDS: u32 = 10;
/// How often an unknown resource makes us ask upstream what it serves.
const REDISCOVER_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for that answer.
const REDISCOVER_MAX: Duration = Duration::from_secs(5);
/// How many times a request is routed again because its feed has ended. If feeds end more often than that while it
/// waits, upstream answers it.
const REROUTES_MAX: u32 = 2;

impl Frontend {
    pub fn new(config: ServeConfig, parts: Parts) -> Self {
        let Parts { client, forwarder, catalog, feeds, gate, browsers, audit, sightings, tasks, drain, ready } = parts;
        let (admission, ends) = (Arc::new(ConcurrencyLimits::new(&config.limits)), (tasks.clone(), drain.clone()));
        let times = BodyTimes::new(config.body_max, &tasks);
        let known = (catalog.clone(), feeds.clone());
        let documents = ServerDocuments::new(client.clone(), known, admission.clone(), times.clone(), config.lag_max);
        let reviews = PeerReviews::new(client.clone(), gate.clone(), admission.clone(), &config);
        let config = Reloadable::new(config);
        Self {
            documents,
            reviews,
            ready,
            reader: Reader::new(
                &config,
                (feeds, sightings.clone()),
                client.clone(),
                (admission.clone(), times.clone()),
                ends,
            ),
            forwarding: Forwarding::new(
                client.clone(),
                forwarder,
                gate.clone(),
                admission.clone(),
                (tasks, drain, times),
            ),
            gate,
            catalog,
            config,
            admission,
            browsers,
            audit,
            sightings,
            client,
        }
    }

    /// Lets other settings hold for requests that come from now on. What is under way goes on as it began. The node
    /// that is served, and whether callers are told apart, stay as they were at the start.
    pub fn tune(&self, to: &ServeConfig) {
        let now = self.config.get();
        let (node, authorizes) = (now.coverage.node.clone(), now.coverage.authorizes);
        let coverage = Coverage { node, authorizes, ..to.coverage.clone() };
        let (body_max, unread, fresh_wait_max) = (now.body_max, now.unread, now.fresh_wait_max);
        self.config.set(ServeConfig { coverage, fresh_wait_max, body_max, unread, ..to.clone() });
        self.admission.tune(&to.limits);
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, peer: Peer, mut request: Request<RequestBody>) -> Response<ReplyBody> {
        let without_body = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
        let finish = |response| self.finished(response, without_body);
        let received = Instant::now();
        let readable = readable::take(&mut request);
        let query = Arc::new(Query::parse(request.uri().query().unwrap_or_default()));
        let mut context = ResponseContext::of(request.headers(), query.clone());
        context.cut = peer.cut.clone();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let info = RequestInfo::parse(method.as_str(), &path, &query);
        let mut record = info.as_ref().ok().and_then(|info| self.record(&peer, &request, info, &mut context));
        if let Some(response) = self.unauthenticated(&peer, &request, &info, &context) {
            context.record = record.map(Arc::new);
            return finish(answered::record(&context, response));
        }
        let caller = self.authenticate(&peer, &request).await;
        if let (Some(record), Ok(caller)) = (&mut record, &caller) {
            record.put_caller(caller);
        }
        context.record = record.map(Arc::new);
        let recording = context.record.is_some().then(|| context.clone());
        let payer = caller.as_ref().ok().and_then(Caller::payer);
        let has_place = settle(&peer, caller.as_ref().ok(), payer.as_ref());
        let who = Who::new(payer, request.headers().get(USER_AGENT));
        let forbidden = caller.as_ref().ok().and_then(|caller| self.forbids(&peer, &request, &info, caller));
        let response = match (info, caller) {
            _ if !has_place => context.status(&Status::too_many_requests(NO_SHARE, NO_SHARE_RETRY_SECONDS)),
            _ if forbidden.is_some() => forbid(&context, &forbidden.unwrap_or_default()),
            (Ok(info), Ok(caller)) => {
                let request =
                    ReadRequest { http: request, caller, info, query, context, received, readable, rerouted: 0 };
                self.dispatch(request).await
            }
            // Upstream has its own words for a path that means nothing, and has them for everybody.
            (Err(RequestInfoError::NoResource(_)), caller) => {
                let caller = caller.unwrap_or(Caller::Anonymous);
                Box::pin(self.forwarding.forward(request, &caller, None, &query, &context, ForwardReason::Spelling))
                    .await
            }
            // Upstream is not asked about a path that is none: it would break our connection off.
            (Err(RequestInfoError::BadEscape), _) => {
                metrics::refused(400);
                malformed(request.version())
            }
            (Ok(info), Err(refused)) => turned_away(&context, "", &info, &query, &refused),
        };
        let mut response = match recording {
            Some(context) => answered::record(&context, response),
            None => response,
        };
        if let Some(id) = response.headers_mut().get_mut(AUDIT_ID) {
            // No two ids are alike: HTTP/2 would keep each in its table of headers, and compare the next with all of
            // them.
            id.set_sensitive(true);
        }
        let (code, took) = (response.status().as_u16(), received.elapsed());
        let cached = response.headers().contains_key(SERVED);
        tracing::debug!(target: "access", %method, path, code, cached, ?took, "request");
        answered::show(&self.sightings, &response, &who, (method.as_str(), &path));
        finish(response)
    }

    /// The answer to a request whose caller does not matter: a refusal, or a proxy's question about health. It ends the
    /// connection unless a known caller has used that, so that each such answer costs its sender a handshake.
    fn unauthenticated(
        &self,
        peer: &Peer,
        request: &Request<RequestBody>,
        info: &Result<RequestInfo, RequestInfoError>,
        context: &ResponseContext,
    ) -> Option<Response<ReplyBody>> {
        let refused = self.admit(peer, request, context).err().map(|refusal| *refusal);
        let response = refused.or_else(|| self.health(request, info, context))?;
        peer.connection.turn_away();
        Some(response)
    }

    /// Adds to our own response what the connection and the client need: upstream's `Strict-Transport-Security`, and on
    /// an error the header that says whose refusal it is.
    fn finished(&self, mut response: Response<ReplyBody>, without_body: bool) -> Response<ReplyBody> {
        answered::count(&response);
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
        let identified = pin!(self.gate.authenticate(RequestSender::of(peer), request.headers()));
        self.admission.while_unknown(identified).await.map_err(too_many_wait)?
    }

    /// The answer to a proxy that asks how its upstream is.
    fn health(
        &self,
        request: &Request<RequestBody>,
        info: &Result<RequestInfo, RequestInfoError>,
        context: &ResponseContext,
    ) -> Option<Response<ReplyBody>> {
        let info = info.as_ref().ok().filter(|_| context.by_proxy)?;
        health(request, info, &self.ready)
    }

    /// The audit record of the request, if requests are recorded. The answer names the record.
    fn record(
        &self,
        peer: &Peer,
        request: &Request<RequestBody>,
        info: &RequestInfo,
        context: &mut ResponseContext,
    ) -> Option<AuditRecord> {
        let id = self.audit.is_on().then(|| context.audit_id.get_or_insert_with(new_audit_id))?;
        AuditRecord::new(&self.audit, peer, (request.uri(), request.headers()), info, id)
    }

    /// Checks that the request is for us, and can be read in one way only.
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

    /// Whether every process of this machine can reach the socket, and acts with our rights then.
    fn is_open_to_all(&self, peer: &Peer) -> bool {
        self.gate.is_open() && matches!(peer.address, PeerAddress::Tcp(_))
    }

    /// Why a request must not go on although its sender is known: perhaps the sender does not know that it sends it, or
    /// anybody may be the sender. `kubectl proxy` rejects `exec` and `attach` for the latter reason.
    fn forbids(
        &self,
        peer: &Peer,
        request: &Request<RequestBody>,
        info: &Result<RequestInfo, RequestInfoError>,
        caller: &Caller,
    ) -> Option<String> {
        if caller.shows_certificate() {
            // A browser adds the certificate to every request that a page has it send.
            return self.browsers.get().check_site(request.headers()).err().map(|foreign| foreign.to_string());
        }
        let reaches = || match info {
            // Such a request goes nowhere in any case.
            Err(RequestInfoError::BadEscape) => false,
            info => reaches_inside(request.uri().path(), info.as_ref().ok()),
        };
        let forbidden = !self.config.get().exec_on_loopback && self.is_open_to_all(peer) && reaches();
        forbidden.then(|| NO_WAY_IN.to_owned())
    }

    async fn dispatch(&self, mut request: ReadRequest) -> Response<ReplyBody> {
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
            Err(ForwardReason::NonResource) if self.documents.has(&request) => {
                return Box::pin(self.document(request)).await;
            }
            Err(ForwardReason::Verb) if PeerReviews::has(&request) => return Box::pin(self.review(request)).await,
            Err(reason) => return self.pass(request, reason).await,
            Ok(_) if !self.gate.serves(&request.caller) => return self.pass(request, ForwardReason::Anonymous).await,
            Ok(ours) => ours,
        };
        // A caller that may not read learns nothing of what else is wrong with the request.
        let permit = match self.permit(&mut request, resource).await {
            Ok(permit) => permit,
            Err(refused) => return request.turned_away(&refused),
        };
        let payer = request.caller.payer();
        let decision = self.audit.is_on().then(|| Decision::Allowed(permit.reason()));
        let answered = match route {
            Route::Refuse(status) => Err(NotServable::Refuse(status)),
            Route::Get(read) => {
                let reading = pin!(self.reader.get(&request, &permit, resource, read));
                self.admission.while_waiting(payer.as_ref(), reading).await.unwrap_or_else(|shed| Err(shed.into()))
            }
            // Boxed, so that the future of another request does not reserve room for them: it is copied as it comes.
            Route::List(read) => {
                let mut reading = Box::pin(self.reader.list(&request, &permit, resource, read));
                let answered = self.admission.while_waiting(payer.as_ref(), reading.as_mut()).await;
                answered.unwrap_or_else(|shed| Err(shed.into()))
            }
            Route::Watch(WatchRead { representation: Representation::Table(_), .. }) if permit.part().is_some() => {
                Err(NotServable::Forward(ForwardReason::Table))
            }
            Route::Watch(read) => Box::pin(self.reader.watch(&mut request, permit, resource, read)).await,
        };
        let mut response = match answered {
            Ok(response) => response,
            Err(why) => Box::pin(self.unready(request, why)).await,
        };
        // A request that was routed again keeps its last decision.
        if let (Some(decision), None) = (decision, response.extensions().get::<Decision>()) {
            response.extensions_mut().insert(decision);
        }
        response
    }

    /// Answers a proxy that asks for a document of upstream. Who may not have it hears so from upstream.
    async fn document(&self, request: ReadRequest) -> Response<ReplyBody> {
        let may = self.lets_proxy(&request).await;
        if let (true, Ok(hops)) = (may, self.forwarding.hops_with_us(request.http.headers()))
            && let payer = request.caller.payer()
            && let mut answering = Box::pin(self.documents.answer(&request, &hops))
            && let Ok(Some(response)) = self.admission.while_waiting(payer.as_ref(), answering.as_mut()).await
        {
            return response;
        }
        self.pass(request, ForwardReason::NonResource).await
    }

    /// Answers a proxy that asks for a review, if it may.
    async fn review(&self, request: ReadRequest) -> Response<ReplyBody> {
        let may = self.lets_proxy(&request).await;
        match self.forwarding.hops_with_us(request.http.headers()) {
            Ok(hops) if may => Box::pin(self.reviews.answer(request, hops)).await,
            _ => self.pass(request, ForwardReason::Verb).await,
        }
    }

    async fn lets_proxy(&self, request: &ReadRequest) -> bool {
        let asked = pin!(self.gate.lets_proxy(&request.caller, &request.info));
        self.admission.while_waiting(request.caller.payer().as_ref(), asked).await.unwrap_or(false)
    }

    async fn permit(&self, request: &mut ReadRequest, resource: &Resource) -> Result<Permit, NotGranted> {
        let payer = request.caller.payer();
        if !request.is_for_readable(resource) {
            let granted = pin!(self.gate.grant(&request.caller, &request.info));
            let granted = self.admission.while_waiting(payer.as_ref(), granted).await;
            return granted.map_err(too_many_wait)?.map(Permit::Whole);
        }
        let permit = pin!(self.gate.readable(&request.caller, &request.info));
        let permit = self.admission.while_waiting(payer.as_ref(), permit).await.map_err(too_many_wait)??;
        request.context.extent = Some(if permit.part().is_some() { Extent::Some } else { Extent::All });
        Ok(permit)
    }

    /// The resource of a request, as discovery knows it. Upstream is asked again if it is not known and the request is
    /// a read that can be answered here.
    ///
    /// # Errors
    /// Upstream has been away since this process began, or too many requests wait. A read that is passed on would at
    /// best meet an upstream that comes back at that moment, and a watch would stay there.
    async fn resource(&self, caller: &Caller, asked: &RouteInput<'_>) -> Result<Option<Arc<Resource>>, Status> {
        let info = asked.info;
        if !info.is_resource || info.resource.is_empty() {
            return Ok(None);
        }
        let gvr = Gvr::new(&info.group, &info.version, &info.resource);
        if let Some(resource) = self.catalog.find(&gvr) {
            return Ok(Some(resource));
        }
        // A caller without a credential does not make us ask, and neither does what upstream answers in any case.
        if matches!(caller, Caller::Anonymous) || check_kind(asked).is_err() {
            return Ok(None);
        }
        let mut asked = Box::pin(self.catalog.refresh_for(REDISCOVER_EVERY, REDISCOVER_MAX));
        match self.admission.while_waiting(caller.payer().as_ref(), asked.as_mut()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) if failure.is_outage => {
                return Err(unavailable(&format!("discovery has not succeeded yet: {}", failure.why)));
            }
            Ok(Err(failure)) => tracing::debug!(why = failure.why, "discovery failed"),
            Err(shed) => return Err(too_many(shed, LIST_RETRY_SECONDS)),
        }
        Ok(self.catalog.find(&gvr))
    }

    async fn pass(&self, request: ReadRequest, reason: ForwardReason) -> Response<ReplyBody> {
        let ReadRequest { http: request, caller, info, query, context, .. } = request;
        // Boxed, so that requests that are answered here have no room for it.
        Box::pin(self.forwarding.forward(request, &caller, Some(&info), &query, &context, reason)).await
    }

    /// Handles a request that could not be answered from a feed: it is routed again, passed through, or refused.
    async fn unready(&self, mut request: ReadRequest, why: NotServable) -> Response<ReplyBody> {
        match why {
            NotServable::Over if request.rerouted < REROUTES_MAX => {
                request.rerouted += 1;
                self.dispatch(request).await
            }
            NotServable::Over => self.pass(request, ForwardReason::Unavailable).await,
            // Upstream would deny what it cannot show in part.
            NotServable::Forward(ForwardReason::Syncing | ForwardReason::NoProof)
                if request.context.extent == Some(Extent::Some) =>
            {
                let why = "what may be read of this collection cannot be told yet";
                request.context.status(&unavailable(why))
            }
            NotServable::Forward(reason) => self.pass(request, reason).await,
            NotServable::Refuse(status) => request.context.status(&status),
        }
    }
}

/// Counts the connection for its caller. Returns whether the caller still has a share of the listener.
fn settle(peer: &Peer, caller: Option<&Caller>, payer: Option<&FlowDistinguisher>) -> bool {
    match caller {
        // As upstream does for unknown callers, the connection ends after this response, and further requests on it are
        // not read. A connection that a load balancer shares with known callers stays open (R-THREAT-14).
        Some(Caller::Anonymous) | None => {
            peer.connection.turn_away();
            true
        }
        Some(Caller::Ourselves | Caller::Known(_)) => peer.connection.found_known(payer.map(FlowDistinguisher::number)),
    }
}
