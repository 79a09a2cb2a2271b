//! Metrics and health, on a runtime of their own, so that a scrape cannot stall traffic nor traffic a probe.

mod debug;
mod exporter;
mod series;

pub use exporter::{Exporter, exporter};

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::auth::BrowserGuard;
use crate::base::Ready;
use crate::cache::FeedState;
use crate::feeds::Feeds;

/// What the admin pages show.
#[derive(Clone)]
pub struct AdminPages {
    pub ready: Ready,
    pub feeds: Feeds,
    pub exporter: Exporter,
}

impl AdminPages {
    /// `/metrics`, `/livez`, `/readyz`, `/debug/feeds`.
    pub fn router(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/livez", get(livez))
            .route("/healthz", get(livez))
            .route("/readyz", get(readyz))
            .route("/debug/feeds", get(debug::feeds))
            .route("/debug/{other}", get(unknown))
            .with_state(Arc::new(self))
    }
}

/// The same pages for a port that web pages may reach for.
pub fn guarded(pages: Router, browsers: BrowserGuard) -> Router {
    pages.layer(from_fn_with_state(Arc::new(browsers), turn_away_pages))
}

async fn turn_away_pages(State(browsers): State<Arc<BrowserGuard>>, request: Request, next: Next) -> Response {
    match browsers.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(foreign) => (StatusCode::FORBIDDEN, format!("{foreign}\n")).into_response(),
    }
}

async fn metrics(State(pages): State<Arc<AdminPages>>) -> Response {
    let text = pages.exporter.render(&pages.feeds);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// The process answers: upstream's health is none of this probe's business (O3).
async fn livez() -> &'static str {
    "ok"
}

/// A line for whatever must be there before clients are sent here, and one per feed.
async fn readyz(State(pages): State<Arc<AdminPages>>) -> Response {
    let pending = pages.ready.pending();
    let mut text = String::new();
    for what in &pending {
        let _ = writeln!(text, "[-]{what} not ready");
    }
    for feed in pages.feeds.all() {
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
    let (code, verdict) =
        if pending.is_empty() { (StatusCode::OK, "passed") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    let _ = writeln!(text, "readyz check {verdict}");
    (code, text).into_response()
}

async fn unknown(Path(other): Path<String>) -> Response {
    (StatusCode::NOT_FOUND, format!("no page {other:?} here; there is /debug/feeds\n")).into_response()
}
