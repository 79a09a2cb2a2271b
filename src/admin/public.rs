//! The pages that other machines read: health, which says nothing of anybody, and metrics.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{AdminAnswer, AdminPages, METRICS, TEXT, answer, empty, livez, refuse_others, verdict};
use crate::auth::BrowserGuard;
use crate::base::{Pulse, Ready, Tunable};

/// What a kubelet or a balancer is told. It takes every Host, for there is nothing here that a web page could learn.
#[derive(Debug, Clone)]
pub struct HealthPages {
    pub ready: Ready,
    pub pulse: Pulse,
}

/// What a Prometheus on another machine is told.
#[derive(Clone)]
pub struct MetricsPage {
    pages: AdminPages,
    browsers: Tunable<BrowserGuard>,
    rendered: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

/// How long the text of a scrape serves those that come after it: whoever asks all the time must not keep the thread
/// that answers probes.
const RENDERED_MAX: Duration = Duration::from_secs(1);

impl HealthPages {
    /// Answers `/livez`, `/healthz` and `/readyz`, the last by the names of what is not ready and nothing else: feeds
    /// are called by namespaces that callers name.
    pub fn answer<B>(&self, request: &Request<B>) -> AdminAnswer {
        match request.uri().path() {
            "/livez" | "/healthz" => refuse_others(request).unwrap_or_else(|| livez(&self.pulse)),
            "/readyz" => refuse_others(request).unwrap_or_else(|| self.readyz(request.uri().query())),
            _ => empty(StatusCode::NOT_FOUND),
        }
    }

    /// Answers `ok` where everything is ready and nobody wants to hear more, as the apiserver does.
    fn readyz(&self, query: Option<&str>) -> AdminAnswer {
        let asks_more = query.unwrap_or_default().split('&').any(|part| part.split('=').next() == Some("verbose"));
        let pending = self.ready.pending();
        if pending.is_empty() && !asks_more { answer(StatusCode::OK, TEXT, "ok") } else { verdict(&pending, "") }
    }
}

impl MetricsPage {
    /// `browsers` keeps web pages away: the page shows names of namespaces.
    pub fn new(pages: AdminPages, browsers: Tunable<BrowserGuard>) -> Self {
        Self { pages, browsers, rendered: Arc::default() }
    }

    /// Answers `/metrics`.
    pub fn answer<B>(&self, request: &Request<B>) -> AdminAnswer {
        if let Err(foreign) = self.browsers.get().check(request.uri(), request.headers()) {
            return answer(StatusCode::FORBIDDEN, TEXT, format!("{foreign}\n"));
        }
        match request.uri().path() {
            "/metrics" => refuse_others(request).unwrap_or_else(|| answer(StatusCode::OK, METRICS, self.text())),
            _ => empty(StatusCode::NOT_FOUND),
        }
    }

    fn text(&self) -> Bytes {
        let mut rendered = self.rendered.lock();
        if let Some((at, text)) = rendered.as_ref()
            && at.elapsed() < RENDERED_MAX
        {
            return text.clone();
        }
        let text = Bytes::from(self.pages.metrics());
        *rendered = Some((Instant::now(), text.clone()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_not_alive_when_the_runtime_of_clients_has_stopped() {
        let pages = HealthPages { ready: Ready::new(), pulse: Pulse::new() };
        let _never_polled = pages.pulse.beat();
        let answer = |path: &str| pages.answer(&Request::get(path).body(()).expect("a path")).status();
        assert_eq!(answer("/livez"), StatusCode::OK);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!([answer("/livez"), answer("/healthz")], [StatusCode::SERVICE_UNAVAILABLE; 2]);
        assert_eq!(answer("/readyz"), StatusCode::OK, "which is another question");
    }
}
