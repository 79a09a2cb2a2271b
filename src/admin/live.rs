//! The live page: its HTML, script and stylesheet are embedded in the binary. In the browser it polls the other admin
//! pages, so a user sees only what these pages show to that user.

use http::header::{CACHE_CONTROL, HeaderName, REFERRER_POLICY, X_FRAME_OPTIONS};
use http::{HeaderValue, StatusCode};

use super::{AdminResponse, answer};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const SCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
const SVG: HeaderValue = HeaderValue::from_static("image/svg+xml");

const PAGE: &str = include_str!("live/page.html");
const COLOURS: &str = include_str!("live/live.css");
const ICON: &str = include_str!("live/icon.svg");
/// The script of the live page, concatenated from its parts.
const PIECES: &str = concat!(
    include_str!("live/begin.js"),
    include_str!("live/numbers.js"),
    include_str!("live/metrics.js"),
    include_str!("live/pictures.js"),
    include_str!("live/tables.js"),
    include_str!("live/page.js"),
);

/// The Content-Security-Policy of the live page, which may run, load and request only resources of its own address. No
/// text can become markup (`require-trusted-types-for`), and no other page can frame it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

const SECURITY_HEADERS: [(HeaderName, HeaderValue); 5] = [
    (http::header::CONTENT_SECURITY_POLICY, POLICY),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    // A new release may change the page.
    (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

/// Returns the file of the live page at a path; `None` at any other path.
pub(super) fn file(path: &str) -> Option<AdminResponse> {
    let (kind, text) = match path {
        "/" => (HTML, PAGE),
        "/live.css" => (CSS, COLOURS),
        "/live.js" => (SCRIPT, PIECES),
        "/live.svg" => (SVG, ICON),
        _ => return None,
    };
    let mut answer = answer(StatusCode::OK, kind, text);
    answer.headers_mut().extend(SECURITY_HEADERS);
    Some(answer)
}
