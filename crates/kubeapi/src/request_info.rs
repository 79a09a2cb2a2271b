use super::go_text::{escape_html, quote};
use super::query::{unescape, unescape_bytes};
use super::{ListOptions, UrlQuery};
use std::fmt;

/// The attributes of a request, as the apiserver derives them before anything else: authentication, authorization,
/// priority and routing all depend on them (R-PATH-1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the path is below `/api/VERSION/` or `/apis/GROUP/VERSION/`. If not, only `path` and `verb` are
    /// meaningful.
    pub is_resource: bool,
    /// The request path, percent-decoded.
    pub path: String,
    pub verb: RequestVerb,
    /// The first path segment of the API: `api` or `apis`.
    pub prefix: String,
    /// The API group; empty for the core group.
    pub group: String,
    pub version: String,
    /// The namespace; empty for all namespaces and at cluster scope. For a Namespace object it is the object's own
    /// name.
    pub namespace: String,
    /// The plural name of the resource.
    pub resource: String,
    pub subresource: String,
    /// The object's name from the path. For a list or watch, it is that of `metadata.name=` in the field selector,
    /// which authorization uses.
    pub name: String,
    /// Whether the path has the deprecated `/watch/` form. Its verb is `watch` for any method, and its selectors are
    /// not authorized.
    pub watch_via_path: bool,
    /// The selectors as authorization evaluates them: the raw first values, for list, watch and deletecollection.
    pub field_selector: Option<String>,
    pub label_selector: Option<String>,
    /// Whether the path is written as all clients write it, so that a cache may serve it. Its segments are lower-case
    /// without escapes, not empty and not only dots, with at most one trailing slash. Any other path is forwarded to
    /// the apiserver.
    pub is_canonical: bool,
}

/// The API verb of a request, as in authorization.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestVerb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// The path has the removed `/proxy/` form.
    Proxy,
    /// The lower-cased method of a non-resource request, or `""` for a resource request whose method has no verb.
    Other(String),
}

impl RequestVerb {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Other(verb) => verb,
        }
    }

    fn of_method(method: &str) -> Self {
        match method {
            "GET" | "HEAD" => Self::Get,
            "POST" => Self::Create,
            "PUT" => Self::Update,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            _ => Self::default(),
        }
    }
}

impl Default for RequestVerb {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl fmt::Display for RequestVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason that a request has no [`RequestInfo`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestInfoError {
    /// `/api/VERSION/watch` without a resource: HTTP 500 as `text/plain`, this text and a newline, before
    /// authentication and without a `Cache-Control` header. The path in it is unchanged; Go would escape bytes that are
    /// invalid in a URL.
    #[error("{0}")]
    NoResource(String),
    /// The path has a `%` without two hex digits: Go's HTTP server responds with 400 itself, as text, and closes the
    /// connection.
    #[error("400 Bad Request: invalid URL escape in the path")]
    BadEscape,
}

impl RequestInfo {
    /// Determines the API attributes of a request. `path` is the raw one of the request line, without the query.
    ///
    /// # Errors
    /// One of the two cases in which the apiserver fails before it determines the attributes.
    pub fn parse(method: &str, path: &str, query: &UrlQuery) -> Result<Self, RequestInfoError> {
        let path = RequestPath::parse(path).ok_or(RequestInfoError::BadEscape)?;
        let verb = match method {
            "GET" => RequestVerb::Get,
            "PATCH" => RequestVerb::Patch,
            "DELETE" => RequestVerb::Delete,
            _ => RequestVerb::Other(method.to_lowercase()),
        };
        let (is_canonical, segments) = (path.is_canonical(), path.segments());
        let mut info = Self { path: path.decoded.clone(), verb, is_canonical, ..Self::default() };
        let mut rest = match segments.as_slice() {
            ["api", rest @ ..] if rest.len() >= 2 => rest,
            ["apis", group, rest @ ..] if rest.len() >= 2 => {
                (*group).clone_into(&mut info.group);
                rest
            }
            _ => return Ok(info),
        };
        info.is_resource = true;
        segments[0].clone_into(&mut info.prefix);
        rest[0].clone_into(&mut info.version);
        rest = &rest[1..];

        info.verb = match rest[0] {
            "watch" | "proxy" if rest.len() < 2 => return Err(no_resource(path.raw, query)),
            "watch" => RequestVerb::Watch,
            "proxy" => RequestVerb::Proxy,
            _ => RequestVerb::of_method(method),
        };
        if matches!(rest[0], "watch" | "proxy") {
            info.watch_via_path = rest[0] == "watch";
            rest = &rest[1..];
        }
        let parts = match rest {
            // Two subresources belong to the Namespace itself; any other segment is a resource inside it.
            ["namespaces", namespace, "status" | "finalize", ..] | ["namespaces", namespace] => {
                (*namespace).clone_into(&mut info.namespace);
                rest
            }
            ["namespaces", namespace, inside @ ..] => {
                (*namespace).clone_into(&mut info.namespace);
                inside
            }
            _ => rest,
        };
        let part = |at: usize| parts.get(at).copied().unwrap_or_default().to_owned();
        (info.resource, info.name) = (part(0), part(1));
        if info.verb != RequestVerb::Proxy {
            info.subresource = part(2);
        }
        info.take_query(query);
        Ok(info)
    }

    /// Sets the parts of the verb, the name and the selectors that depend on the query.
    fn take_query(&mut self, query: &UrlQuery) {
        if self.name.is_empty() && self.verb == RequestVerb::Get {
            let options = ListOptions::decode(query).unwrap_or_else(|| ListOptions {
                // If the query cannot be decoded, only this parameter is used, with a stricter parser.
                watch: query.first("watch").is_some_and(|text| !matches!(text.to_lowercase().as_str(), "false" | "0")),
                ..ListOptions::default()
            });
            self.verb = if options.watch { RequestVerb::Watch } else { RequestVerb::List };
            let name = options.fields.requires_exact("metadata.name");
            // Only a name that could be a path segment.
            if let Some(name) = name.filter(|name| !matches!(*name, "." | "..") && !name.contains(['/', '%'])) {
                name.clone_into(&mut self.name);
            }
        }
        if self.name.is_empty() && self.verb == RequestVerb::Delete {
            self.verb = RequestVerb::DeleteCollection;
        }
        let has_selectors = matches!(self.verb, RequestVerb::List | RequestVerb::Watch | RequestVerb::DeleteCollection);
        if has_selectors && !self.watch_via_path {
            self.field_selector = query.first("fieldSelector").map(str::to_owned);
            self.label_selector = query.first("labelSelector").map(str::to_owned);
        }
    }
}

/// The path of a request as Go's `net/url` and the apiserver's `splitPath` parse it.
struct RequestPath<'a> {
    raw: &'a str,
    decoded: String,
}

impl<'a> RequestPath<'a> {
    /// Parses a path; `None` for an invalid escape. Escapes are resolved before the path is split, so `%2F` separates
    /// segments.
    fn parse(raw: &'a str) -> Option<Self> {
        Some(Self { raw, decoded: unescape(raw, false)?.0 })
    }

    /// Returns the path segments. Slashes at both ends are ignored, however many; empty segments inside are kept.
    fn segments(&self) -> Vec<&str> {
        match self.decoded.trim_matches('/') {
            "" => Vec::new(),
            path => path.split('/').collect(),
        }
    }

    /// See [`RequestInfo::is_canonical`]. A colon is allowed, because names of RBAC objects contain it.
    fn is_canonical(&self) -> bool {
        let Some(path) = self.raw.strip_prefix('/') else { return false };
        let path = path.strip_suffix('/').unwrap_or(path);
        path.split('/').all(|segment| {
            let bytes = segment.as_bytes();
            bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b':'))
                && bytes.iter().any(|&byte| byte != b'.')
        })
    }
}

fn no_resource(path: &str, query: &UrlQuery) -> RequestInfoError {
    let uri = if query.raw().is_empty() { path.to_owned() } else { format!("{path}?{}", query.raw()) };
    let why = format!("failed to create RequestInfo: unable to determine kind and namespace from url, {uri}");
    RequestInfoError::NoResource(escape_html(&format!("Internal Server Error: {}: {why}", quote(&uri))))
}

/// The subresources that lead to a process, a port or a kubelet: of pods, services and nodes, and of aggregated APIs
/// (virtual machines, other clusters). Roles usually allow them with the verb `get`, which does not show their effect.
/// `console`, `usbredir`, `vnc` and `vsock` are the accesses of `KubeVirt` to a virtual machine.
const INSIDE_SUBRESOURCES: [&str; 8] =
    ["attach", "console", "exec", "portforward", "proxy", "usbredir", "vnc", "vsock"];
/// The maximum number of times that servers on the request's path may unescape a URL path.
const UNESCAPES_MAX: usize = 4;

/// Whether a request reaches into pods, services or nodes, whatever its method. `info` is its parsed form, if
/// available, and `path` the raw path of the request line.
///
/// For a path in canonical spelling, the apiserver's rules apply. For any other path the worst case is assumed: servers
/// in front of the apiserver may merge slashes, resolve dots, unescape again or ignore the case.
pub fn targets_workload(path: &str, info: Option<&RequestInfo>) -> bool {
    match info {
        Some(info) if info.is_canonical => {
            return info.verb == RequestVerb::Proxy || INSIDE_SUBRESOURCES.contains(&info.subresource.as_str());
        }
        // A path prefix such as `watch` without a resource.
        None if RequestPath::parse(path).is_some_and(|path| path.is_canonical()) => return false,
        _ => {}
    }
    let mut text = path.as_bytes().to_vec();
    for _ in 0..UNESCAPES_MAX {
        if text.split(|byte| b"/\\".contains(byte)).any(may_reach_inside) {
            return true;
        }
        let (next, _) = unescape_bytes(&text, false);
        if next == text {
            return false;
        }
        text = next;
    }
    // No legitimate client escapes this often.
    true
}

/// Whether a server could interpret a path segment as one of `INSIDE_SUBRESOURCES`. Some servers cut the segment off at
/// certain characters, or treat the rest as a query after unescaping.
fn may_reach_inside(segment: &[u8]) -> bool {
    let end = segment.iter().position(|byte| b";?#\0".contains(byte)).unwrap_or(segment.len());
    let is_edge = |byte: &u8| byte.is_ascii_control() || b" .+".contains(byte);
    let Some(start) = segment[..end].iter().position(|byte| !is_edge(byte)) else { return false };
    let last = segment[..end].iter().rposition(|byte| !is_edge(byte)).unwrap_or(start);
    INSIDE_SUBRESOURCES.iter().any(|subresource| segment[start..=last].eq_ignore_ascii_case(subresource.as_bytes()))
}

#[cfg(test)]
mod tests;
