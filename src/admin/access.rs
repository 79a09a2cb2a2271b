//! The pages that other machines may reach, or that show clients: who may read them. The runtime that serves clients
//! decides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{AdminPages, AdminResponse, JSON, METRICS, TEXT, answer, empty, livez, refuse_others, verdict};
use crate::auth::CrossOriginCheck;
use crate::net::ConnectionPeer;
use base::{ReadinessTracker, Reloadable, RuntimeHeartbeat};
use kubeapi::Status;

/// Decides by the connection, the path and the headers of a request whether its sender may read the page. Returns the
/// refusal if not, and `None` if the decision failed.
pub type PageAccessCheck =
    Arc<dyn Fn(&ConnectionPeer, &str, &HeaderMap) -> BoxFuture<'static, PageDecision> + Send + Sync>;
type PageDecision = Option<Result<(), Status>>;

/// The pages for a kubelet or a load balancer. They accept every Host, because they contain nothing that a web page
/// could exploit.
#[derive(Debug, Clone)]
pub struct HealthPages {
    pub ready: ReadinessTracker,
    pub heartbeat: RuntimeHeartbeat,
}

/// The metrics page for a Prometheus on another machine.
#[derive(Clone)]
pub struct MetricsPage {
    pages: AdminPages,
    readers: MetricsAccess,
    rendered: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

/// The callers that may read metrics.
#[derive(Clone)]
pub enum MetricsAccess {
    /// All callers that reach the address may read the metrics, except web pages, because metrics contain names of
    /// namespaces.
    Unauthenticated(Reloadable<CrossOriginCheck>),
    /// Callers whose access to the metrics is authorized per request.
    Authorized(PageAccessCheck),
}

/// How long a rendered metrics page is reused, so that frequent scrapes do not occupy the thread that answers probes.
const RENDERED_MAX: Duration = Duration::from_secs(1);

/// A function that renders a debug page by its name and query, as JSON.
pub type PrivatePageRenderer = Arc<dyn Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync>;

/// The debug pages about clients, and the authorization for them.
#[derive(Clone)]
pub struct ClientActivityPages {
    pub page: PrivatePageRenderer,
    /// `None` if the proxy does not authenticate callers. It then shows these pages on a unix socket only.
    pub access_check: Option<PageAccessCheck>,
}

/// The debug pages that list clients and their requests. A process that may connect to the admin's unix socket could
/// read this process's memory, and sees them without a check. On other addresses, upstream authorizes the sender.
const PAGES: [&str; 2] = ["/debug/watches", "/debug/recent"];
/// The timeout for a decision. The runtime that makes it may be stuck.
const ACCESS_CHECK_MAX: Duration = Duration::from_secs(15);

impl HealthPages {
    /// Answers `/livez`, `/healthz` and `/readyz`. The last lists pending conditions, but no feeds, because the names
    /// of feeds contain namespaces that callers chose.
    pub fn answer<B>(&self, request: &Request<B>) -> AdminResponse {
        match request.uri().path() {
            "/livez" | "/healthz" => refuse_others(request).unwrap_or_else(|| livez(&self.heartbeat)),
            "/readyz" => refuse_others(request).unwrap_or_else(|| self.readyz(request.uri().query())),
            _ => empty(StatusCode::NOT_FOUND),
        }
    }

    /// Like the apiserver, returns just `ok` if everything is ready and `verbose` is not set.
    fn readyz(&self, query: Option<&str>) -> AdminResponse {
        let is_verbose = query.unwrap_or_default().split('&').any(|part| part.split('=').next() == Some("verbose"));
        let pending = self.ready.pending();
        if pending.is_empty() && !is_verbose { answer(StatusCode::OK, TEXT, "ok") } else { verdict(&pending, "") }
    }
}

impl MetricsPage {
    pub fn new(pages: AdminPages, readers: MetricsAccess) -> Self {
        Self { pages, readers, rendered: Arc::default() }
    }

    /// Answers a scrape of `/metrics`. The response is a refusal if the sender may not read metrics.
    pub fn answer<B>(&self, peer: &ConnectionPeer, request: &Request<B>) -> BoxFuture<'static, AdminResponse> {
        if let MetricsAccess::Unauthenticated(browsers) = &self.readers
            && let Some(refusal) = refuse_foreign(&browsers.get(), request)
        {
            return ready(refusal).boxed();
        }
        if request.uri().path() != "/metrics" {
            return ready(empty(StatusCode::NOT_FOUND)).boxed();
        }
        if let Some(refusal) = refuse_others(request) {
            return ready(refusal).boxed();
        }
        match &self.readers {
            MetricsAccess::Unauthenticated(_) => ready(self.page()).boxed(),
            MetricsAccess::Authorized(access_check) => {
                let page = self.clone();
                authorized(access_check, peer, request, move || page.page())
            }
        }
    }

    fn page(&self) -> AdminResponse {
        let mut rendered = self.rendered.lock();
        let recent = rendered.as_ref().filter(|(at, _)| at.elapsed() < RENDERED_MAX).map(|(_, text)| text.clone());
        let text = recent.unwrap_or_else(|| {
            let text = Bytes::from(self.pages.exporter.render(&self.pages));
            *rendered = Some((Instant::now(), text.clone()));
            text
        });
        answer(StatusCode::OK, METRICS, text)
    }
}

impl AdminPages {
    /// Like [`answer`](Self::answer), but also serves the debug pages about clients. `browsers` guards a port that web
    /// pages may try to reach. Without it, the socket must be accessible only to the process's own user.
    pub fn handle_private<B>(
        &self,
        browsers: Option<&CrossOriginCheck>,
        peer: &ConnectionPeer,
        request: &Request<B>,
    ) -> BoxFuture<'static, AdminResponse> {
        let path = request.uri().path();
        if let Some(refusal) = browsers.and_then(|browsers| refuse_foreign(browsers, request)) {
            return ready(refusal).boxed();
        }
        if !PAGES.contains(&path) {
            return ready(self.answer(request)).boxed();
        }
        if let Some(refusal) = refuse_others(request) {
            return ready(refusal).boxed();
        }
        let (name, query) = (path.trim_start_matches("/debug/").to_owned(), request.uri().query().unwrap_or_default());
        let (page, query) = (self.private.page.clone(), query.to_owned());
        let render = move || answer(StatusCode::OK, JSON, page(&name, &query).unwrap_or_default());
        if browsers.is_none() {
            return ready(render()).boxed();
        }
        let Some(access_check) = &self.private.access_check else {
            let why = "this page needs authenticated callers (auth: delegated) or a unix socket (admin: unix:PATH), \
                       because every local process can reach this address";
            return ready(refused(&Status::from_code(403, why))).boxed();
        };
        authorized(access_check, peer, request, render)
    }
}

/// Returns the refusal of a request that a foreign web page sends.
fn refuse_foreign<B>(browsers: &CrossOriginCheck, request: &Request<B>) -> Option<AdminResponse> {
    let foreign = browsers.check(request.uri(), request.headers()).err()?;
    Some(answer(StatusCode::FORBIDDEN, TEXT, format!("{foreign}\n")))
}

/// Returns a page if its sender may read it, or the refusal.
fn authorized<B>(
    access_check: &PageAccessCheck,
    peer: &ConnectionPeer,
    request: &Request<B>,
    page: impl FnOnce() -> AdminResponse + Send + 'static,
) -> BoxFuture<'static, AdminResponse> {
    let decision = decide(access_check(peer, request.uri().path(), request.headers()));
    async move { decision.await.map_or_else(|why| refused(&why), |()| page()) }.boxed()
}

/// Awaits a decision; a timeout counts as a refusal.
async fn decide(decision: impl Future<Output = PageDecision>) -> Result<(), Status> {
    let late = || Status::service_unavailable("cannot authenticate or authorize: timed out");
    timeout(ACCESS_CHECK_MAX, decision).await.ok().flatten().unwrap_or_else(|| Err(late()))
}

/// Returns a refusal as the apiserver would write it.
fn refused(why: &Status) -> AdminResponse {
    let code = StatusCode::from_u16(why.http_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut refusal = answer(code, JSON, why.to_json());
    let headers = refusal.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = why.retry_after_seconds() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    refusal
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// The runtime that serves clients may be stuck, and then a scrape must fail.
    #[tokio::test(start_paused = true)]
    async fn missing_authorization_decision_returns_503() {
        let refusal = refused(&decide(pending()).await.expect_err("there is no decision"));
        assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
        let lost = decide(ready(None)).await.expect_err("the deciding task has panicked");
        assert_eq!(lost.http_code(), 503);
        assert_eq!(decide(ready(Some(Ok(())))).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn livez_fails_when_client_runtime_stalls() {
        let pages = HealthPages { ready: ReadinessTracker::new(), heartbeat: RuntimeHeartbeat::default() };
        let _never_polled = pages.heartbeat.beat();
        let answer = |path: &str| pages.answer(&Request::get(path).body(()).expect("a path")).status();
        assert_eq!(answer("/livez"), StatusCode::OK);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!([answer("/livez"), answer("/healthz")], [StatusCode::SERVICE_UNAVAILABLE; 2]);
        assert_eq!(answer("/readyz"), StatusCode::OK, "which is another question");
    }
}
