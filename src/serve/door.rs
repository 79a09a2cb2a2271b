use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::admission::{Admission, Limits, Shed};
use super::answer::{Manner, put_served};
use super::body::ReplyBody;
use super::coalesce::Coalesced;
use super::feed::{Unready, unavailable};
use super::list;
use super::metrics::{self, WatchMetrics};
use super::route::{Asked, GetRead, ListRead, Reason, Route, WatchRead, route};
use super::session::{End, Terms, WatchSession};
use super::watch::WatchBody;
use super::websocket;
use crate::auth::{Gate, Grant};
use crate::base::{DrainWatch, Tasks};
use crate::cache::{Feeds, Lease, Start};
use crate::kube::{Gvr, Query, RequestInfo, RequestInfoError, Status, VersionMatch, WatchStart};
use crate::net::Peer;
use crate::upstream::{Catalog, Client, Resource, status_from_code};

/// How requests are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub consistency: Consistency,
    /// How long a request waits for a feed that is being filled.
    pub sync_wait_max: Duration,
    pub limits: Limits,
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

impl Default for Config {
    fn default() -> Self {
        Self {
            consistency: Consistency::Strict,
            sync_wait_max: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

/// Answers every request.
#[derive(Debug)]
pub struct Door {
    pub(super) config: Config,
    pub(super) client: Client,
    pub(super) catalog: Catalog,
    pub(super) feeds: Feeds,
    pub(super) admission: Admission,
    pub(super) coalesced: Coalesced,
    pub(super) tasks: Tasks,
    gate: Gate,
    drain: DrainWatch,
}

/// A read on its way: the request, and what was understood of it.
struct Visit {
    request: Request<Incoming>,
    info: RequestInfo,
    query: Query,
    manner: Manner,
    received: Instant,
}

/// How often an unknown resource makes us ask upstream what it serves.
const REDISCOVER_EVERY: Duration = Duration::from_secs(2);

impl Door {
    pub fn new(
        config: Config,
        client: Client,
        catalog: Catalog,
        feeds: Feeds,
        gate: Gate,
        tasks: Tasks,
        drain: DrainWatch,
    ) -> Self {
        let admission = Admission::new(&config.limits);
        Self { config, client, catalog, feeds, admission, coalesced: Coalesced::default(), tasks, gate, drain }
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, peer: Peer, request: Request<Incoming>) -> Response<ReplyBody> {
        let received = Instant::now();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let manner = Manner::of(request.headers(), Some(query.clone()));
        if let Err(response) = self.admit(&peer, &request, &manner) {
            return *response;
        }
        let response = match RequestInfo::parse(request.method().as_str(), request.uri().path(), &query) {
            Ok(info) => self.dispatch(Visit { request, info, query, manner, received }).await,
            // Upstream has its own words for a path that means nothing.
            Err(RequestInfoError::NoResource(_) | RequestInfoError::BadEscape) => {
                self.forward(request, None, &query, &manner, Reason::Spelling).await
            }
        };
        if response.status().as_u16() >= 400 && !response.headers().contains_key("audit-id") {
            metrics::refused(response.status().as_u16());
        }
        response
    }

    /// Whether the request is for us at all.
    fn admit(&self, peer: &Peer, request: &Request<Incoming>, manner: &Manner) -> Result<(), Box<Response<ReplyBody>>> {
        self.check_hops(request.headers()).map_err(|status| Box::new(manner.status(&status)))?;
        if matches!(peer, Peer::Unix) {
            return Ok(());
        }
        let named = request.uri().authority().map(http::uri::Authority::as_str);
        let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
        let host = named.or(header).unwrap_or_default();
        self.gate.check_host(host).map_err(|wrong| {
            metrics::refused(403);
            Box::new(manner.status(&status_from_code(403, &wrong.to_string())))
        })
    }

    async fn dispatch(&self, visit: Visit) -> Response<ReplyBody> {
        let resource = self.resource(&visit.info).await;
        let asked = Asked {
            method: visit.request.method(),
            info: &visit.info,
            query: &visit.query,
            accept: visit.manner.accept.as_deref(),
            user_agent: visit.manner.user_agent.as_deref(),
        };
        let route = route(&asked, resource.as_deref());
        let Some(resource) = resource else {
            return match route {
                Route::Forward(reason) => self.pass(visit, reason).await,
                _ => self.pass(visit, Reason::Unknown).await,
            };
        };
        let grant = self.gate.grant(&self.gate.authenticate(), &visit.info);
        match route {
            Route::Forward(reason) => self.pass(visit, reason).await,
            Route::Refuse(status) => {
                metrics::refused(status.http_code());
                visit.manner.status(&status)
            }
            Route::Get(read) => self.get(visit, &grant, &resource, read).await,
            Route::List(read) => self.list(visit, &grant, &resource, read).await,
            Route::Watch(read) => self.watch(visit, grant, &resource, read).await,
        }
    }

    /// What discovery knows of the request's resource; asks again when it knows nothing.
    async fn resource(&self, info: &RequestInfo) -> Option<Arc<Resource>> {
        if !info.is_resource || info.resource.is_empty() {
            return None;
        }
        let gvr = Gvr::new(&info.group, &info.version, &info.resource);
        if let Some(resource) = self.catalog.find(&gvr) {
            return Some(resource);
        }
        let since = Instant::now().checked_sub(REDISCOVER_EVERY)?;
        if let Err(error) = self.catalog.refresh(since).await {
            tracing::debug!(%error, "discovery failed");
        }
        self.catalog.find(&gvr)
    }

    async fn pass(&self, visit: Visit, reason: Reason) -> Response<ReplyBody> {
        let Visit { request, info, query, manner, .. } = visit;
        self.forward(request, Some(&info), &query, &manner, reason).await
    }

    async fn unready(&self, visit: Visit, why: Unready) -> Response<ReplyBody> {
        match why {
            Unready::Forward(reason) => self.pass(visit, reason).await,
            Unready::Refuse(status) => {
                metrics::refused(status.http_code());
                visit.manner.status(&status)
            }
        }
    }

    async fn get(&self, visit: Visit, _grant: &Grant, resource: &Resource, read: GetRead) -> Response<ReplyBody> {
        let namespace = Some(read.key.namespace()).filter(|namespace| !namespace.is_empty());
        let Some(lease) = self.running_feed(resource, namespace, read.form) else {
            return self.pass(visit, Reason::NotCached).await;
        };
        if let Err(why) = self.fresh(&lease, read.version, visit.received).await {
            return self.unready(visit, why).await;
        }
        metrics::served("get", &lease.spec.key);
        match lease.reader.snapshot().get(&read.key) {
            Some(object) => {
                let body = ReplyBody::full(lease.reader.envelope().object(object.body()));
                visit.manner.served(read.form, false, Self::stale_seconds(&lease), body)
            }
            None => {
                let mut response = visit.manner.status(&Status::not_found(&resource.gvr, read.key.name()));
                put_served(response.headers_mut(), Self::stale_seconds(&lease));
                response
            }
        }
    }

    async fn list(&self, visit: Visit, grant: &Grant, resource: &Resource, read: ListRead) -> Response<ReplyBody> {
        let lease = match self.ready_feed(resource, read.view.namespace(), read.form, visit.received).await {
            Ok(lease) => lease,
            Err(why) => return self.unready(visit, why).await,
        };
        let snapshot = match read.plan.version {
            VersionMatch::Exact(rv) => match lease.reader.snapshot_at(rv) {
                Some(snapshot) => snapshot,
                None if read.plan.start.is_some() => return self.pass(visit, Reason::Continue).await,
                None => return self.pass(visit, Reason::ExactVersion).await,
            },
            version => match self.fresh(&lease, version, visit.received).await {
                Ok(()) => lease.reader.snapshot(),
                Err(why) => return self.unready(visit, why).await,
            },
        };
        metrics::served("list", &lease.spec.key);
        let body = list::page(grant, &lease.reader, &snapshot, &read);
        visit.manner.served(read.form, false, Self::stale_seconds(&lease), ReplyBody::List(Box::new(body)))
    }

    async fn watch(&self, visit: Visit, grant: Grant, resource: &Resource, read: WatchRead) -> Response<ReplyBody> {
        let lease = match self.ready_feed(resource, read.view.namespace(), read.form, visit.received).await {
            Ok(lease) => lease,
            Err(why) => return self.unready(visit, why).await,
        };
        let fresh = match read.start {
            WatchStart::State { at, .. } => self.fresh(&lease, at, visit.received).await,
            WatchStart::FromCurrent => self.fresh(&lease, VersionMatch::Unset, visit.received).await,
            WatchStart::After(_) | WatchStart::FromCached => Ok(()),
        };
        // What cannot be given in time is said inside of the stream, as the apiserver does (semantics.md §3.5); a
        // private watch upstream for everybody would be worse than an error.
        let failed = match fresh {
            Ok(()) => None,
            Err(Unready::Refuse(status)) => Some(*status),
            Err(Unready::Forward(_)) if Self::stale_seconds(&lease).is_some() => {
                let why = "upstream cannot be reached, and the cache cannot be proven to be current";
                return self.unready(visit, Unready::Refuse(Box::new(unavailable(why)))).await;
            }
            Err(Unready::Forward(_)) => {
                let at = lease.reader.progress().rv.0;
                Some(Status::too_large(at + 1, at))
            }
        };
        let place = match self.admission.watch() {
            Ok(place) => place,
            Err(shed) => return visit.manner.status(&too_many_watches(shed)),
        };
        self.open_watch(visit, grant, place, lease, read, failed)
    }

    fn open_watch(
        &self,
        mut visit: Visit,
        grant: Grant,
        place: super::admission::Place,
        lease: Lease,
        read: WatchRead,
        failed: Option<Status>,
    ) -> Response<ReplyBody> {
        let websocket = websocket::is_upgrade(visit.request.headers());
        let upgrade = match websocket.then(|| websocket::handshake(visit.request.headers())) {
            Some(Ok(response)) => Some(response),
            Some(Err(response)) => return response,
            None => None,
        };
        let start = match read.start {
            WatchStart::After(rv) => Start::After(rv),
            WatchStart::State { .. } => Start::Current,
            WatchStart::FromCached | WatchStart::FromCurrent => Start::After(lease.reader.progress().rv),
        };
        metrics::served("watch", &lease.spec.key);
        let stale = Self::stale_seconds(&lease);
        let protocol = protocol(&visit.request, websocket);
        let form = read.form;
        let session = self.session(grant, place, lease, start, &read, failed, protocol);
        let Some(response) = upgrade else {
            return visit.manner.served(form, true, stale, ReplyBody::Watch(Box::new(WatchBody::new(session))));
        };
        self.tasks.spawn("websocket", websocket::run(hyper::upgrade::on(&mut visit.request), form, session));
        response
    }

    /// The watch, or one that says why it cannot be and ends.
    fn session(
        &self,
        grant: Grant,
        place: super::admission::Place,
        lease: Lease,
        start: Start,
        read: &WatchRead,
        failed: Option<Status>,
        protocol: &'static str,
    ) -> WatchSession {
        let end_bookmark = read.start.ends_with_bookmark();
        let terms = Terms { bookmarks: read.bookmarks, end_bookmark, timeout_seconds: read.timeout_seconds };
        let metrics = WatchMetrics::open(&lease.spec.key, protocol);
        let (opened, refusal) = match lease.reader.open(start, read.view.clone()) {
            Ok(opened) => (opened, failed.map(|status| (status, End::TooLarge))),
            Err(too_old) => {
                let status = Status::too_old(too_old.requested.0, too_old.floor.0);
                (lease.reader.open_at_end(read.view.clone()), Some((status, End::Expired)))
            }
        };
        let told = opened.cursor.start();
        let drain = self.drain.clone();
        let mut session =
            WatchSession::new(grant, place, lease, opened.cursor, opened.snapshot, told, &terms, drain, metrics);
        if let Some((status, end)) = refusal {
            session.end_with(&status, end);
        }
        session
    }
}

fn protocol(request: &Request<Incoming>, websocket: bool) -> &'static str {
    match (websocket, request.version()) {
        (true, _) => "websocket",
        (false, http::Version::HTTP_2) => "h2",
        _ => "h1",
    }
}

fn too_many_watches(shed: Shed) -> Status {
    Status::too_many_requests(shed.to_string(), 5)
}
