//! Which document a request asks for, if copies can answer it.

use http::header::{
    ACCEPT, HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderValue, Method};

use super::evidence::{OPENAPI_V3, root_of};
use crate::serve::read::ReadRequest;
use crate::upstream::{ResourceCatalog, is_impersonation};
use kubeapi::{
    AGGREGATED_DISCOVERY, OpenApiVersion, SupportedMediaTypes, UrlQuery, discovery_accept, has_valid_timeout,
    openapi_accept, pretty,
};

/// All properties of a request that determine the document. Upstream has few documents and each has few keys, so no
/// caller can fill the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct DocumentKey {
    pub(super) path: String,
    pub(super) accept: &'static str,
    pub(super) gzip: bool,
    /// Whether JSON is indented, as for browsers and curl.
    pub(super) is_pretty: bool,
    /// Whether the document is requested by its hash, which only its headers show.
    pub(super) is_hashed: bool,
}

/// A request for a document.
#[derive(Debug)]
pub(crate) struct DocumentRequest {
    pub(super) key: DocumentKey,
    /// The hash of the requested contents.
    pub(super) hash: Option<String>,
}

pub(super) const VERSION: &str = "/version";
const OPENAPI_V2: &str = "/openapi/v2";
/// Headers that the handlers of OpenAPI documents understand, and copies do not.
const PRECONDITIONS: [HeaderName; 5] = [IF_MATCH, IF_MODIFIED_SINCE, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE];

impl DocumentKey {
    /// Returns the key of the root that tells whether copies of this document are current.
    pub(super) fn root(&self) -> Option<Self> {
        let path = root_of(&self.path)?.to_owned();
        Some(Self { path, accept: AGGREGATED_DISCOVERY, gzip: false, is_pretty: false, is_hashed: false })
    }

    pub(super) fn is_openapi(&self) -> bool {
        self.path.starts_with("/openapi/")
    }

    /// The metric label of the document.
    pub(super) fn kind(&self) -> &'static str {
        match self.path.as_str() {
            VERSION => "version",
            _ if self.is_openapi() => "openapi",
            _ => "discovery",
        }
    }
}

impl DocumentRequest {
    /// Returns the document that a request asks for, regardless of the caller's permissions; `None` if the request must
    /// be forwarded.
    pub(super) fn parse(request: &ReadRequest, catalog: &ResourceCatalog) -> Option<Self> {
        let ReadRequest { http, info, query, context, .. } = request;
        let (headers, accept) = (http.headers(), context.accept.as_deref());
        let is_plain = *http.method() == Method::GET
            && !info.is_resource
            && info.is_canonical
            && !headers.keys().any(is_impersonation)
            && headers.get_all(ACCEPT).iter().count() <= 1;
        let path = Some(info.path.as_str()).filter(|path| is_plain && is_served_by_upstream(path, catalog))?;
        let (hash, is_openapi) =
            (plain_query(query, root_of(path) == Some(OPENAPI_V3))?, path.starts_with("/openapi/"));
        let accept = match path {
            _ if is_openapi && !is_simple(headers) => None,
            OPENAPI_V2 => openapi_accept(accept, OpenApiVersion::V2),
            // It ignores the header.
            OPENAPI_V3 => Some(AGGREGATED_DISCOVERY),
            _ if root_of(path) == Some(OPENAPI_V3) => openapi_accept(accept, OpenApiVersion::V3),
            _ => discovery_accept(accept),
        }?;
        let is_pretty =
            !is_openapi && pretty(query, context.user_agent.as_deref(), Some(accept), SupportedMediaTypes::BUILTIN);
        // Only OpenAPI v3 is never compressed.
        let gzip = context.gzip && !path.starts_with(OPENAPI_V3);
        let key = DocumentKey { path: path.to_owned(), accept, gzip, is_pretty, is_hashed: !hash.is_empty() };
        Some(Self { key, hash: (!hash.is_empty()).then(|| hash.to_owned()) })
    }
}

/// Whether upstream itself writes the document at `path`, rather than an aggregated server.
fn is_served_by_upstream(path: &str, catalog: &ResourceCatalog) -> bool {
    match group_version(path) {
        Some((group, version)) => catalog.is_local_group(group, version),
        None if root_of(path) == Some(OPENAPI_V3) => {
            // Each aggregated server has documents such as `version`, and upstream asks any server that has one.
            ["/openapi/v3/api", "/openapi/v3/api/v1"].contains(&path) || catalog.has_only_local_groups()
        }
        None => [VERSION, "/api", "/api/v1", "/apis", OPENAPI_V2, OPENAPI_V3].contains(&path),
    }
}

/// Returns the API group, and the version if any, that a document below `/apis` is about.
fn group_version(path: &str) -> Option<(&str, Option<&str>)> {
    let path = path.strip_prefix(OPENAPI_V3).unwrap_or(path);
    let path = path.strip_prefix("/apis/").filter(|path| !path.is_empty())?;
    Some(path.split_once('/').map_or((path, None), |(group, version)| (group, Some(version))))
}

/// Returns the hash in the query, or an empty text. `None` if the query has more than a hash, if it may have one, and a
/// time limit, which discovery clients send.
fn plain_query(query: &UrlQuery, may_have_hash: bool) -> Option<&str> {
    let (mut hash, mut timeout) = (None, None);
    for pair in query.raw().split('&').filter(|_| !query.raw().is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let seen = match name {
            "hash" if may_have_hash && !value.is_empty() => &mut hash,
            "timeout" if value.ends_with('s') => &mut timeout,
            _ => return None,
        };
        if seen.replace(value).is_some() {
            return None;
        }
    }
    has_valid_timeout(query).then_some(hash.unwrap_or_default())
}

/// Whether a request has at most the precondition that its one `ETag` has changed.
fn is_simple(headers: &HeaderMap) -> bool {
    let mut tags = headers.get_all(IF_NONE_MATCH).iter().map(HeaderValue::as_bytes);
    let is_tag = |tag: &[u8]| {
        let opaque = tag.strip_prefix(b"\"").and_then(|tag| tag.strip_suffix(b"\""));
        opaque.is_some_and(|opaque| opaque.iter().all(u8::is_ascii_alphanumeric))
    };
    tags.next().is_none_or(is_tag)
        && tags.next().is_none()
        && PRECONDITIONS.iter().all(|name| !headers.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_version_is_the_path_below_apis() {
        for (path, expected) in [
            ("/apis/apps", Some(("apps", None))),
            ("/apis/apps/v1", Some(("apps", Some("v1")))),
            ("/apis/apps/", Some(("apps", Some("")))),
            ("/apis/apps/v1/deployments", Some(("apps", Some("v1/deployments")))),
            ("/apis/", None),
            ("/apis", None),
            ("/api/v1", None),
            ("/version", None),
            ("/openapi/v3/apis/apps/v1", Some(("apps", Some("v1")))),
            ("/openapi/v3/apis", None),
            ("/openapi/v2", None),
        ] {
            assert_eq!(group_version(path), expected, "{path}");
        }
    }

    #[test]
    fn only_a_hash_and_a_time_limit_are_plain() {
        for (query, expected, hashed) in [
            ("", Some(""), Some("")),
            ("timeout=32s", Some(""), Some("")),
            ("hash=AB", None, Some("AB")),
            ("hash=AB&timeout=32s", None, Some("AB")),
            ("timeout=32s&hash=AB", None, Some("AB")),
            ("hash=AB&hash=AB", None, None),
            ("hash=", None, None),
            ("hash=AB&x=1", None, None),
            ("hash=AB&", None, None),
            ("timeout=", None, None),
            ("timeout=x", None, None),
            ("timeout=xs", None, None),
            ("timeout=1s&timeout=2s", None, None),
            ("pretty=1", None, None),
            ("timeout=1s&pretty=1", None, None),
        ] {
            let query = UrlQuery::parse(query);
            assert_eq!([plain_query(&query, false), plain_query(&query, true)], [expected, hashed], "{query:?}");
        }
    }

    #[test]
    fn only_one_strong_tag_is_a_simple_precondition() {
        for (headers, expected) in [
            (&[][..], true),
            (&[(IF_NONE_MATCH, "\"AB01\"")], true),
            (&[(IF_NONE_MATCH, "\"\"")], true),
            (&[(IF_NONE_MATCH, "*")], false),
            (&[(IF_NONE_MATCH, "AB")], false),
            (&[(IF_NONE_MATCH, "W/\"AB\"")], false),
            (&[(IF_NONE_MATCH, "\"AB\", \"CD\"")], false),
            (&[(IF_NONE_MATCH, "\"AB\""), (IF_NONE_MATCH, "\"CD\"")], false),
            (&[(RANGE, "bytes=0-9")], false),
            (&[(IF_NONE_MATCH, "\"AB\""), (IF_MODIFIED_SINCE, "x")], false),
        ] {
            let all = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            let mut map = HeaderMap::new();
            for (name, value) in all {
                map.append(name, value);
            }
            assert_eq!(is_simple(&map), expected, "{headers:?}");
        }
    }
}
