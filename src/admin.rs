//! Serves metrics and health. `app` runs it on a runtime of its own, so that a scrape cannot stall traffic, nor
//! traffic a probe.

mod debug;
mod exporter;
mod series;

pub use exporter::{Exporter, exporter};

use std::fmt::Write;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;

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

/// The answer of an admin page: whole, not a stream.
pub type AdminAnswer = Response<Full<Bytes>>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

impl AdminPages {
    /// Answers `/metrics`, `/livez`, `/healthz`, `/readyz` and `/debug/feeds`.
    pub fn answer<B>(&self, request: &Request<B>) -> AdminAnswer {
        let path = request.uri().path();
        let page: &dyn Fn() -> AdminAnswer = match path {
            "/metrics" => &|| answer(StatusCode::OK, METRICS, self.exporter.render(&self.feeds)),
            "/livez" | "/healthz" => &livez,
            "/readyz" => &|| self.readyz(),
            "/debug/feeds" => &|| debug::feeds(self),
            _ => match path.strip_prefix("/debug/") {
                Some(other) if !other.is_empty() && !other.contains('/') => &|| unknown(other),
                _ => return empty(StatusCode::NOT_FOUND),
            },
        };
        if [Method::GET, Method::HEAD].contains(request.method()) {
            return page();
        }
        let mut refusal = empty(StatusCode::METHOD_NOT_ALLOWED);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
        refusal
    }

    /// Answers like [`answer`](Self::answer), on a port that web pages may try to reach.
    pub fn answer_guarded<B>(&self, browsers: &BrowserGuard, request: &Request<B>) -> AdminAnswer {
        match browsers.check(request.uri(), request.headers()) {
            Ok(()) => self.answer(request),
            Err(foreign) => answer(StatusCode::FORBIDDEN, TEXT, format!("{foreign}\n")),
        }
    }

    /// Answers with a line for each thing that the process still waits for before it is ready, and one for each feed.
    fn readyz(&self) -> AdminAnswer {
        let pending = self.ready.pending();
        let mut text = String::new();
        for what in &pending {
            let _ = writeln!(text, "[-]{what} not ready");
        }
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
        let (code, verdict) =
            if pending.is_empty() { (StatusCode::OK, "passed") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
        let _ = writeln!(text, "readyz check {verdict}");
        answer(code, TEXT, text)
    }
}

/// Says that the process answers. This does not depend on upstream's health (O3).
fn livez() -> AdminAnswer {
    answer(StatusCode::OK, TEXT, "ok")
}

fn unknown(other: &str) -> AdminAnswer {
    answer(StatusCode::NOT_FOUND, TEXT, format!("no page {other:?} here; there is /debug/feeds\n"))
}

fn answer(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> AdminAnswer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}

fn empty(code: StatusCode) -> AdminAnswer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = code;
    answer
}
