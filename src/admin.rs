//! Metrics, health and debug pages: all of them on the admin address, and a subset on addresses that other machines can
//! reach. `app` runs this module on a separate runtime, so that scrapes cannot stall client traffic and client traffic
//! cannot stall probes.

mod access;
mod debug;
mod exporter;
mod live;
mod per_thread;
mod process;
mod series;

pub use access::{ClientActivityPages, HealthPages, MetricsAccess, MetricsPage, PageAccessCheck, PrivatePageRenderer};
pub use debug::{ConfigPage, ConfigReader};
pub use exporter::{MetricsExporter, exporter};
pub use process::show_dropped_log_lines;
pub use series::{UpstreamCostReader, UpstreamCostRow};

use std::fmt::Write;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use crate::cache::FeedState;
use crate::feeds::FeedRegistry;
use base::{ReadinessTracker, RuntimeHeartbeat, UnreadyComponent};

/// The data that the admin pages show.
#[derive(Clone)]
pub struct AdminPages {
    pub ready: ReadinessTracker,
    /// The heartbeat of the runtime that serves clients.
    pub heartbeat: RuntimeHeartbeat,
    pub feeds: FeedRegistry,
    pub costs: UpstreamCostReader,
    pub config: ConfigReader,
    pub private: ClientActivityPages,
    pub exporter: MetricsExporter,
}

/// The response with an admin page, which is never a stream.
pub type AdminResponse = Response<Full<Bytes>>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

impl AdminPages {
    /// Answers `/metrics`, `/livez`, `/healthz`, `/readyz`, `/debug/feeds`, `/debug/cost`, `/debug/config` and the
    /// files of the live page.
    pub fn answer<B>(&self, request: &Request<B>) -> AdminResponse {
        let path = request.uri().path();
        if let Some(file) = live::file(path) {
            return refuse_others(request).unwrap_or(file);
        }
        let page: &dyn Fn() -> AdminResponse = match path {
            "/metrics" => &|| answer(StatusCode::OK, METRICS, self.exporter.render(self)),
            "/livez" | "/healthz" => &|| livez(&self.heartbeat),
            "/readyz" => &|| self.readyz(),
            "/debug/feeds" => &|| debug::feeds(self),
            "/debug/cost" => &|| json(&(self.costs)()),
            "/debug/config" => &|| json(&(self.config)()),
            _ => match path.strip_prefix("/debug/") {
                Some(other) if !other.is_empty() && !other.contains('/') => &|| unknown(other),
                _ => return empty(StatusCode::NOT_FOUND),
            },
        };
        refuse_others(request).unwrap_or_else(page)
    }

    /// Lists every pending readiness condition and every feed, one per line.
    fn readyz(&self) -> AdminResponse {
        let mut text = String::new();
        for feed in self.feeds.all() {
            let (mark, state) = match feed.reader.state() {
                FeedState::Live => ('+', "live".to_owned()),
                FeedState::Stale { since } => ('+', format!("stale for {} s", since.elapsed().as_secs())),
                FeedState::Syncing => ('-', "syncing".to_owned()),
                FeedState::Ended(end) => ('-', format!("ended: {}", end.as_str())),
            };
            let stats = feed.reader.stats();
            let (key, objects, rv) = (&feed.spec.key, stats.objects, stats.progress);
            let _ = writeln!(text, "[{mark}]feed {key} {state}, {objects} objects at {rv}");
        }
        verdict(&self.ready.pending(), &text)
    }
}

/// Lists the pending readiness conditions, then `more`, then the verdict.
fn verdict(pending: &[UnreadyComponent], more: &str) -> AdminResponse {
    let mut text = String::new();
    for pending in pending {
        let _ = writeln!(text, "[-]{pending}");
    }
    let (code, verdict) =
        if pending.is_empty() { (StatusCode::OK, "passed") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    let _ = writeln!(text, "{more}readyz check {verdict}");
    answer(code, TEXT, text)
}

/// Returns the refusal of a request that is not a read, or `None` for GET and HEAD.
fn refuse_others<B>(request: &Request<B>) -> Option<AdminResponse> {
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return None;
    }
    let mut refusal = empty(StatusCode::METHOD_NOT_ALLOWED);
    refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
    Some(refusal)
}

/// Answers `/livez`: whether the worker threads can answer clients. The result does not depend on upstream's health
/// (O3).
fn livez(heartbeat: &RuntimeHeartbeat) -> AdminResponse {
    if heartbeat.is_stalled() {
        let text = format!("worker threads stalled for {} s\n", heartbeat.silent().as_secs());
        return answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, text);
    }
    answer(StatusCode::OK, TEXT, "ok")
}

fn unknown(other: &str) -> AdminResponse {
    let text = format!(
        "no page {other:?}; available are /debug/feeds, /debug/cost and /debug/config, and, with permission, \
         /debug/watches and /debug/recent\n"
    );
    answer(StatusCode::NOT_FOUND, TEXT, text)
}

fn json(page: &impl Serialize) -> AdminResponse {
    answer(StatusCode::OK, JSON, serde_json::to_vec(page).expect("numbers and text"))
}

fn answer(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> AdminResponse {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    // A foreign web page may embed these pages. The headers make browsers neither guess a type nor give the content to
    // that page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    answer
}

fn empty(code: StatusCode) -> AdminResponse {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = code;
    answer
}
