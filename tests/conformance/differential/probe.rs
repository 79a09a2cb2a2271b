//! A request as data: it is drawn, sent to both servers, shrunk while their answers still differ, and printed.

use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::bed::{LASTS_MAX, RequestSpec, Target};
use crate::reduced::DROP;

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Over {
    H1,
    H2,
    WebSocket,
}

/// A query parameter, or a piece of a query that is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    Value(&'static str, String),
    Raw(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub method: &'static str,
    pub path: String,
    pub query: Vec<Parameter>,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    pub over: Over,
}

/// The headers of a WebSocket handshake.
const UPGRADE: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

impl Parameter {
    pub fn is(&self, name: &str) -> bool {
        matches!(self, Self::Value(own, _) if *own == name)
    }

    fn spelled(&self) -> String {
        match self {
            Self::Value(name, value) => format!("{name}={}", escaped(value)),
            Self::Raw(text) => (*text).to_owned(),
        }
    }
}

impl Probe {
    pub fn target(&self) -> String {
        let query = self.query.iter().map(Parameter::spelled).collect::<Vec<_>>().join("&");
        if query.is_empty() { self.path.clone() } else { format!("{}?{query}", self.path) }
    }

    pub fn request_spec(&self) -> RequestSpec {
        let mut headers = HeaderMap::new();
        for (name, value) in self.sent() {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
            headers.append(name, HeaderValue::from_str(value).expect("a header value"));
        }
        let method = Method::from_bytes(self.method.as_bytes()).expect("a method");
        RequestSpec { method, path: self.target(), headers, body: self.body.clone().into() }
    }

    fn sent(&self) -> impl Iterator<Item = (&str, &str)> {
        let upgrade = UPGRADE.into_iter().filter(|_| self.over == Over::WebSocket);
        upgrade.chain(self.headers.iter().map(|(name, value)| (*name, value.as_str())))
    }

    /// The first value of a parameter, which is the one that counts.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.query.iter().find_map(|parameter| match parameter {
            Parameter::Value(own, value) if *own == name => Some(value.as_str()),
            _ => None,
        })
    }

    /// Doubles the timeout of a watch, up to [`LASTS_MAX`]. Returns whether it did.
    pub fn last_longer(&mut self) -> bool {
        let lasts = self.query.iter_mut().find_map(|parameter| match parameter {
            Parameter::Value("timeoutSeconds", seconds) => Some(seconds),
            _ => None,
        });
        let longer = lasts.as_deref().and_then(|seconds| seconds.parse::<u32>().ok()).map(|seconds| 2 * seconds);
        let Some((lasts, longer)) = lasts.zip(longer.filter(|longer| *longer <= LASTS_MAX)) else { return false };
        *lasts = longer.to_string();
        true
    }

    /// Whether the client leaves managedFields out, which the apiserver ignores.
    pub fn is_reduced(&self) -> bool {
        self.headers.iter().any(|(name, value)| *name == "accept" && value.contains(DROP))
    }

    pub fn writes(&self) -> bool {
        matches!(self.method, "POST" | "PUT" | "PATCH" | "DELETE")
    }

    /// Whether this is a list of exactly one version (R-LIST-1).
    pub fn is_exact(&self) -> bool {
        let version = self.first("resourceVersion").and_then(|version| version.parse::<u64>().ok());
        let version = version.is_some_and(|version| version > 0);
        let limited = self.first("limit").is_some_and(|limit| limit.parse().is_ok_and(|limit: i64| limit > 0));
        let matched = self.first("resourceVersionMatch").unwrap_or_default();
        // A list with a name selector reads one key, for which a version with a limit does not mean "exact".
        let one = self.first("fieldSelector").is_some_and(|fields| fields.contains("metadata.name="));
        let token = self.first("continue").is_some_and(|token| !token.is_empty());
        version && matched == "Exact" || !one && (token || version && limited && matched.is_empty())
    }

    /// A curl command that reproduces the request.
    pub fn curl(&self, server: &Target) -> String {
        let version = if self.over == Over::H2 { "--http2" } else { "--http1.1" };
        let method = if self.method == "HEAD" { "--head".to_owned() } else { format!("-X {}", self.method) };
        let bearer = format!("Bearer {}", server.identity.token);
        let mut headers: Vec<_> = self.sent().collect();
        if !server.identity.token.is_empty() && !headers.iter().any(|(name, _)| *name == AUTHORIZATION.as_str()) {
            headers.push((AUTHORIZATION.as_str(), &bearer));
        }
        // Removes the headers that curl adds.
        for own in [ACCEPT.as_str(), "user-agent"] {
            if !headers.iter().any(|(name, _)| *name == own) {
                headers.push((own, ""));
            }
        }
        let headers = headers.iter().map(|(name, value)| quoted(&format!("{name}: {value}")));
        let headers = headers.collect::<Vec<_>>().join(" -H ");
        let body = if self.body.is_empty() { String::new() } else { format!(" --data-binary {}", quoted(&self.body)) };
        let certificate = server.identity.certificate.as_ref();
        let certificate = certificate.map_or_else(String::new, |path| format!(" --cert {}", path.display()));
        let url = quoted(&format!("{}{}", server.url, self.target()));
        format!("curl -gksS -i {version} --path-as-is{certificate} {method} -H {headers}{body} {url}")
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Percent-encodes a parameter value.
fn escaped(value: &str) -> String {
    encoded(value, b"-._~")
}

/// Percent-encodes a name for a path.
pub fn path_segment(name: &str) -> String {
    encoded(name, b"-._~:@")
}

fn encoded(text: &str, plain: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || plain.contains(&byte);
    let written = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(written).collect()
}
