use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::admission::{Admission, AdmissionLimits};
use super::audit::{Audit, AuditRecord, Decision};
use super::body::ReplyBody;
use super::coalesce::Coalesced;
use super::coverage::Coverage;
use super::feed::{Need, Unready, unavailable};
use super::metrics;
use super::overdue::{Overdue, Unread};
use super::readable::{self, Extent};
use super::response_context::{AUDIT_ID, ResponseContext, SERVED, malformed, new_audit_id};
use super::route::{ForwardReason, Route, RouteInput, WatchRead, route};
use super::scans::{self, Scans};
use super::slices::Slices;
use crate::auth::{BrowserGuard, Caller, Gate, NotGranted, Permit, RequestSender, Shown};
use crate::base::{DrainWatch, Tasks};
use crate::feeds::Feeds;
use crate::kube::{
    Gvr, Query, RequestInfo, RequestInfoError, ResourceVersion, Status, Verb, check_timeout, reaches_inside,
};
use crate::net::{Peer, PeerAddress};
use crate::upstream::{Catalog, Client, Forwarder, Resource, inspect, is_impersonation, status_from_code};
use crate::wire::Representation;

/// How requests are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeConfig {
    pub consistency: Consistency,
    pub coverage: Coverage,
    /// Whether what reaches into pods, services and nodes is passed on from a TCP socket that alone says who somebody
    /// is.
    pub exec_on_loopback: bool,
    /// How long a request waits for a feed that is being filled.
    pub sync_wait_max: Duration,
    /// How long a LIST, an answer that passes through and is no stream, and a request's body may take: the apiserver's
    /// `--request-timeout`.
    pub body_max: Duration,
    pub limits: AdmissionLimits,
    pub unread: Unread,
}

/// What a read without a resourceVersion may be answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// Only what is proven to contain every write that was complete when the request came.
    #[default]
    Strict,
    /// What a live feed has: milliseconds old as a rule, without proof.
    Bounded,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            consistency: Consistency::Strict,
            coverage: Coverage::default(),
            exec_on_loopback: false,
            sync_wait_max: Duration::from_secs(10),
            body_max: Duration::from_secs(60),
            limits: AdmissionLimits::default(),
            unread: Unread::default(),
        }
    }
}

/// Answers every request.
#[derive(Debug)]
pub struct Frontend {
    pub(super) config: ServeConfig,
    pub(super) client: Client,
    pub(super) catalog: Catalog,
    pub(super) feeds: Feeds,
    pub(super) admission: Arc<Admission>,
    pub(super) coalesced: Coalesced,
    pub(super) scans: Scans,
    pub(super) slices: Slices,
    pub(super) watches: metrics::Watches,
    pub(super) tasks: Tasks,
    pub(super) drain: DrainWatch,
    pub(super) overdue: Overdue,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) gate: Gate,
    browsers: BrowserGuard,
    audit: Audit,
}

/// What the door stands between.
pub struct Parts {
    pub client: Client,
    pub forwarder: Forwarder,
    pub catalog: Catalog,
    pub feeds: Feeds,
    pub gate: Gate,
    pub browsers: BrowserGuard,
    pub audit: Audit,
    pub tasks: Tasks,
    pub drain: DrainWatch,
}

/// A read on its way: the request, and what was understood of it.
pub(super) struct ReadRequest {
    pub(super) request: Request<Incoming>,
    pub(super) caller: Caller,
    pub(super) info: RequestInfo,
    pub(super) query: Arc<Query>,
    pub(super) manner: ResponseContext,
    pub(super) received: Instant,
    /// What may be read is asked for, where not all may.
    readable: bool,
    /// How often it has been routed again, because the feed that was to answer it ended.
    rerouted: u32,
}

impl ReadRequest {
    pub(super) fn turned_away(&self, refused: &NotGranted) -> Response<ReplyBody> {
        turned_away(&self.manner, self.caller.name(), &self.info, &self.query, refused)
    }

    /// Whether the request is for a collection across namespaces, and for what of it may be read.
    fn is_for_readable(&self, resource: &Resource) -> bool {
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

const NO_WAY_IN: &str = "exec, attach, portforward and proxy are not passed on from a port that every process of this \
                         machine can reach; use a unix socket, or set execOnLoopback";
/// How often an unknown resource makes us ask upstream what it serves.
const REDISCOVER_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for that.
const REDISCOVER_MAX: Duration = Duration::from_secs(5);
/// How often a request is routed again because its feed has ended. What ends more often than that while it waits is
/// upstream's to answer.
const REROUTES_MAX: u32 = 2;

impl Frontend {
    pub fn new(config: ServeConfig, parts: Parts) -> Self {
        let Parts { client, forwarder, catalog, feeds, gate, browsers, audit, tasks, drain } = parts;
        let (admission, forwarder) = (Arc::new(Admission::new(&config.limits)), Arc::new(forwarder));
        let overdue = Overdue::new(config.unread);
        tasks.spawn("unread watches", overdue.clone().keep(drain.clone()));
        tasks.spawn("pinned states", feeds.pins().clone().keep());
        Self {
            config,
            client,
            catalog,
            feeds,
            admission,
            coalesced: Coalesced::default(),
            scans: Scans::at_a_time(scans::at_a_time()),
            slices: Slices::new(scans::at_a_time()),
            watches: metrics::Watches::default(),
            tasks,
            drain,
            overdue,
            forwarder,
            gate,
            browsers,
            audit,
        }
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, peer: Peer, mut request: Request<Incoming>) -> Response<ReplyBody> {
        let without_body = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
        let finish = |response: Response<_>| if without_body { response.map(ReplyBody::of_head) } else { response };
        let received = Instant::now();
        let readable = readable::take(&mut request);
        let query = Arc::new(Query::parse(request.uri().query().unwrap_or_default()));
        let mut manner = ResponseContext::of(request.headers(), query.clone());
        manner.cut = peer.cut.clone();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let info = RequestInfo::parse(method.as_str(), &path, &query);
        let mut record = info.as_ref().ok().and_then(|info| self.record(&peer, &request, info, &mut manner));
        if let Err(response) = self.admit(&peer, &request, &manner) {
            manner.record = record.map(Arc::new);
            return finish(recorded(&manner, *response));
        }
        let caller = self.gate.authenticate(sender(&peer), request.headers()).await;
        if let (Some(record), Ok(caller)) = (&mut record, &caller) {
            record.put_caller(caller);
        }
        manner.record = record.map(Arc::new);
        let recording = manner.record.is_some().then(|| manner.clone());
        if matches!(caller, Ok(Caller::Anonymous) | Err(_)) {
            // As upstream does with those it does not know: what they send next, they send on another connection. What
            // has come by this one in the meantime is not looked at.
            peer.connection.close();
        }
        let forbidden = caller.as_ref().ok().and_then(|caller| self.forbids(&peer, &request, &info, caller));
        let response = match (info, caller) {
            _ if forbidden.is_some() => forbid(&manner, &forbidden.unwrap_or_default()),
            (Ok(info), Ok(caller)) => {
                let visit = ReadRequest { request, caller, info, query, manner, received, readable, rerouted: 0 };
                self.dispatch(visit).await
            }
            // Upstream has its own words for a path that means nothing, and has them for everybody.
            (Err(RequestInfoError::NoResource(_)), caller) => {
                let caller = caller.unwrap_or(Caller::Anonymous);
                Box::pin(self.forward(request, &caller, None, &query, &manner, ForwardReason::Spelling)).await
            }
            // And none at all for one that is none: it would break our connection off.
            (Err(RequestInfoError::BadEscape), _) => {
                metrics::refused(400);
                malformed(request.version())
            }
            (Ok(info), Err(refused)) => turned_away(&manner, "", &info, &query, &refused),
        };
        let mut response = match recording {
            Some(manner) => recorded(&manner, response),
            None => response,
        };
        if let Some(id) = response.headers_mut().get_mut(AUDIT_ID) {
            // No two are alike: HTTP/2 would keep each in its table of headers, and compare the next with all of them.
            id.set_sensitive(true);
        }
        let (code, took) = (response.status().as_u16(), received.elapsed());
        let cached = response.headers().contains_key(SERVED);
        tracing::debug!(target: "access", %method, path, code, cached, ?took, "request");
        finish(response)
    }

    /// What is to be recorded of the request, if anything is; its answer names the record.
    fn record(
        &self,
        peer: &Peer,
        request: &Request<Incoming>,
        info: &RequestInfo,
        manner: &mut ResponseContext,
    ) -> Option<AuditRecord> {
        let id = self.audit.is_on().then(|| manner.audit_id.get_or_insert_with(new_audit_id))?;
        AuditRecord::new(&self.audit, peer, (request.uri(), request.headers()), info, id)
    }

    /// Whether the request is for us at all, and can be read in one way only.
    fn admit(
        &self,
        peer: &Peer,
        request: &Request<Incoming>,
        manner: &ResponseContext,
    ) -> Result<(), Box<Response<ReplyBody>>> {
        self.check_hops(request.headers()).map_err(|status| Box::new(manner.status(&status)))?;
        if let Err(ambiguous) = inspect(request.headers()) {
            metrics::refused(400);
            // What follows on the connection can be read in two ways as well.
            peer.connection.close();
            return Err(Box::new(manner.status(&Status::bad_request(ambiguous.to_string()))));
        }
        if !self.is_open_to_all(peer) {
            return Ok(());
        }
        let checked = self.browsers.check(request.uri(), request.headers());
        checked.map_err(|foreign| Box::new(forbid(manner, &foreign.to_string())))
    }

    /// Whether every process of this machine can reach the socket, and acts with our rights then.
    fn is_open_to_all(&self, peer: &Peer) -> bool {
        self.gate.is_open() && matches!(peer.address, PeerAddress::Tcp(_))
    }

    /// Why a request goes nowhere although it is known who sends it, if so: the sender may not know that it does, or be
    /// anybody. `kubectl proxy` rejects `exec` and `attach` for the latter reason.
    fn forbids(
        &self,
        peer: &Peer,
        request: &Request<Incoming>,
        info: &Result<RequestInfo, RequestInfoError>,
        caller: &Caller,
    ) -> Option<String> {
        if caller.shows_certificate() {
            // Which a browser adds to whatever a page has it send.
            return self.browsers.check_site(request.headers()).err().map(|foreign| foreign.to_string());
        }
        let reaches = || match info {
            // It goes nowhere in any case.
            Err(RequestInfoError::BadEscape) => false,
            info => reaches_inside(request.uri().path(), info.as_ref().ok()),
        };
        let forbidden = !self.config.exec_on_loopback && self.is_open_to_all(peer) && reaches();
        forbidden.then(|| NO_WAY_IN.to_owned())
    }

    async fn dispatch(&self, mut visit: ReadRequest) -> Response<ReplyBody> {
        let resource = self.resource(&visit.caller, &visit.info).await;
        let asked = RouteInput {
            method: visit.request.method(),
            info: &visit.info,
            query: &visit.query,
            accept: visit.manner.accept.as_deref(),
            user_agent: visit.manner.user_agent.as_deref(),
            impersonates: visit.request.headers().keys().any(is_impersonation),
        };
        let route = route(&asked, resource.as_deref(), &self.config.coverage);
        let Some(resource) = resource else {
            return match route {
                Route::Forward(reason) => self.pass(visit, reason).await,
                _ => self.pass(visit, ForwardReason::Unknown).await,
            };
        };
        let route = match route {
            Route::Forward(reason) => return self.pass(visit, reason).await,
            _ if !self.gate.serves(&visit.caller) => return self.pass(visit, ForwardReason::Anonymous).await,
            route => route,
        };
        // Who may not read learns nothing of what else is wrong with the request.
        let permit = match self.permit(&mut visit, &resource).await {
            Ok(permit) => permit,
            Err(refused) => return visit.turned_away(&refused),
        };
        let decision = self.audit.is_on().then(|| Decision::Allowed(permit.reason()));
        let mut response = match route {
            Route::Forward(reason) => self.pass(visit, reason).await,
            Route::Refuse(status) => {
                metrics::refused(status.http_code());
                visit.manner.status(&status)
            }
            Route::Get(read) => self.get(visit, &permit, &resource, read).await,
            Route::List(read) => self.list(visit, &permit, &resource, read).await,
            Route::Watch(WatchRead { representation: Representation::Table(_), .. }) if permit.part().is_some() => {
                self.pass(visit, ForwardReason::Table).await
            }
            Route::Watch(read) => self.watch(visit, permit, &resource, read).await,
        };
        // One that was routed again has the decision of the last time.
        if let (Some(decision), None) = (decision, response.extensions().get::<Decision>()) {
            response.extensions_mut().insert(decision);
        }
        response
    }

    async fn permit(&self, visit: &mut ReadRequest, resource: &Resource) -> Result<Permit, NotGranted> {
        if !visit.is_for_readable(resource) {
            return self.gate.grant(&visit.caller, &visit.info).await.map(Permit::Whole);
        }
        let permit = self.gate.readable(&visit.caller, &visit.info).await?;
        visit.manner.extent = Some(if permit.part().is_some() { Extent::Some } else { Extent::All });
        Ok(permit)
    }

    /// What discovery knows of the request's resource; asks again when it knows nothing.
    async fn resource(&self, caller: &Caller, info: &RequestInfo) -> Option<Arc<Resource>> {
        if !info.is_resource || info.resource.is_empty() {
            return None;
        }
        let gvr = Gvr::new(&info.group, &info.version, &info.resource);
        if let Some(resource) = self.catalog.find(&gvr) {
            return Some(resource);
        }
        // Nobody in particular does not make us ask.
        if matches!(caller, Caller::Anonymous) {
            return None;
        }
        let since = Instant::now().checked_sub(REDISCOVER_EVERY)?;
        match timeout(REDISCOVER_MAX, self.catalog.refresh(since)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "discovery failed"),
            Err(_) => tracing::debug!("discovery took too long"),
        }
        self.catalog.find(&gvr)
    }

    pub(super) async fn pass(&self, visit: ReadRequest, reason: ForwardReason) -> Response<ReplyBody> {
        let ReadRequest { request, caller, info, query, manner, .. } = visit;
        // Apart, so that those which are answered here have no room for it.
        Box::pin(self.forward(request, &caller, Some(&info), &query, &manner, reason)).await
    }

    pub(super) async fn unready(&self, mut visit: ReadRequest, why: Unready) -> Response<ReplyBody> {
        match why {
            Unready::Over if visit.rerouted < REROUTES_MAX => {
                visit.rerouted += 1;
                Box::pin(self.dispatch(visit)).await
            }
            Unready::Over => self.pass(visit, ForwardReason::Unavailable).await,
            // Upstream would deny what it cannot show in part.
            Unready::Forward(ForwardReason::Syncing | ForwardReason::NoProof)
                if visit.manner.extent == Some(Extent::Some) =>
            {
                let why = "what may be read of this collection cannot be told yet";
                metrics::refused(503);
                visit.manner.status(&unavailable(why))
            }
            Unready::Forward(reason) => self.pass(visit, reason).await,
            Unready::Refuse(status) => {
                metrics::refused(status.http_code());
                visit.manner.status(&status)
            }
        }
    }
}

/// The answer, once it is recorded; another one if it has to be and cannot.
fn recorded(manner: &ResponseContext, response: Response<ReplyBody>) -> Response<ReplyBody> {
    match &manner.record {
        Some(record) if !record.answered(&response) => {
            metrics::records("refused", 1);
            metrics::refused(503);
            manner.status(&unavailable("the audit log does not keep up, and this may not be read unseen"))
        }
        _ => response,
    }
}

fn forbid(manner: &ResponseContext, why: &str) -> Response<ReplyBody> {
    metrics::refused(403);
    manner.status(&status_from_code(403, why))
}

fn sender(peer: &Peer) -> RequestSender {
    let address = match peer.address {
        PeerAddress::Tcp(address) => address.ip(),
        // They share a budget, as if they came from one machine, which they do.
        PeerAddress::Unix { .. } => Ipv4Addr::UNSPECIFIED.into(),
    };
    let shown = |chain: &Arc<[_]>| peer.connection.keep(|| Shown::new(chain.clone()));
    RequestSender { certificates: peer.certificates.as_ref().map(shown), address: Some(address) }
}

/// What somebody is told who gets nothing. A bad `timeout` comes first, whoever sends it (R-ORDER-1).
fn turned_away(
    manner: &ResponseContext,
    user: &str,
    info: &RequestInfo,
    query: &Query,
    refused: &NotGranted,
) -> Response<ReplyBody> {
    let long_running = matches!(info.verb, Verb::Watch | Verb::Proxy);
    let status = match check_timeout(query) {
        Err(status) if !long_running => status,
        _ => refused.status(user, info),
    };
    metrics::refused(status.http_code());
    let mut response = manner.status(&status);
    if let NotGranted::Denied(reason) = refused {
        response.extensions_mut().insert(Decision::Denied(reason.clone()));
    }
    if response.status() == StatusCode::FORBIDDEN {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}
