//! The pages for other machines: health, which reveals nothing about clients, and metrics.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::access::{PageAccessCheck, decide, refused};
use super::{AdminPages, AdminResponse, METRICS, TEXT, answer, empty, livez, refuse_others, verdict};
use crate::auth::CrossOriginCheck;
use crate::net::ConnectionPeer;
use base::{ReadinessTracker, Reloadable, RuntimeHeartbeat};

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
            && let Err(foreign) = browsers.get().check(request.uri(), request.headers())
        {
            return ready(answer(StatusCode::FORBIDDEN, TEXT, format!("{foreign}\n"))).boxed();
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
                let (page, decision) = (self.clone(), decide(access_check(peer, "/metrics", request.headers())));
                async move { decision.await.map_or_else(|why| refused(&why), |()| page.page()) }.boxed()
            }
        }
    }

    fn page(&self) -> AdminResponse {
        let mut rendered = self.rendered.lock();
        let recent = rendered.as_ref().filter(|(at, _)| at.elapsed() < RENDERED_MAX).map(|(_, text)| text.clone());
        let text = recent.unwrap_or_else(|| {
            let text = Bytes::from(self.pages.metrics());
            *rendered = Some((Instant::now(), text.clone()));
            text
        });
        answer(StatusCode::OK, METRICS, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
