//! Requests for the part of a collection across namespaces that the caller may read (docs/GUIDES.md).

use http::header::HeaderName;
use http::{Request, Uri};

use kubeapi::UrlQuery;

/// The request header for the readable part of a collection. In a response, it states whether the result is complete.
pub(crate) const READABLE: HeaderName = HeaderName::from_static("kube-fanout-readable");
/// The query parameter with the meaning of the header [`READABLE`], for callers that cannot set headers.
const PARAMETER: &str = "kubeFanoutReadable";

/// The part of a collection that a response shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectionExtent {
    All,
    Some,
}

impl CollectionExtent {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Some => "some",
        }
    }
}

/// Removes the header and the parameter for the readable part, which only this proxy interprets. Returns whether the
/// readable part is requested.
pub(crate) fn take_readable<B>(request: &mut Request<B>) -> bool {
    let header = request.headers_mut().remove(READABLE);
    let header = header.and_then(|value| value.to_str().ok().map(is_true));
    let Some((rest, value)) = strip_parameter(request.uri().query().unwrap_or_default()) else {
        return header.unwrap_or(false);
    };
    let path = request.uri().path();
    let path_and_query = if rest.is_empty() { path.to_owned() } else { format!("{path}?{rest}") };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = path_and_query.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    header.unwrap_or(value)
}

/// Returns the query without the parameter, and the parameter's first value; `None` if the parameter is absent.
fn strip_parameter(raw: &str) -> Option<(String, bool)> {
    let first = raw.split('&').find_map(value)?;
    let rest: Vec<_> = raw.split('&').filter(|pair| value(pair).is_none()).collect();
    Some((rest.join("&"), first))
}

/// Returns the value of a query pair if it is the parameter. Most pairs can be excluded without decoding them.
fn value(pair: &str) -> Option<bool> {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    if name != PARAMETER && !name.contains('%') {
        return None;
    }
    UrlQuery::parse(pair).first(PARAMETER).map(is_true)
}

/// Parses a boolean as the API does: everything else is true.
fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_option_is_removed_from_request() {
        for (header, uri, expected, rest) in [
            (None, "/api/v1/pods", false, "/api/v1/pods"),
            (None, "/api/v1/pods?watch=1", false, "/api/v1/pods?watch=1"),
            (None, "/api/v1/pods?kubeFanoutReadable=true", true, "/api/v1/pods"),
            (None, "/api/v1/pods?kubeFanoutReadable", true, "/api/v1/pods"),
            (None, "/api/v1/pods?kubeFanoutReadable=False&limit=5", false, "/api/v1/pods?limit=5"),
            (None, "/api/v1/pods?a=b%2Cc&kube%46anoutReadable=1&&d=e+f", true, "/api/v1/pods?a=b%2Cc&&d=e+f"),
            (None, "/api/v1/pods?kubeFanoutReadable=0&kubeFanoutReadable=1", false, "/api/v1/pods"),
            (None, "/api/v1/pods?kubefanoutreadable=1", false, "/api/v1/pods?kubefanoutreadable=1"),
            (Some("true"), "/api/v1/pods?limit=5", true, "/api/v1/pods?limit=5"),
            (Some("0"), "/api/v1/pods?kubeFanoutReadable=1", false, "/api/v1/pods"),
            (None, "https://h:1/api/v1/pods?kubeFanoutReadable=1", true, "https://h:1/api/v1/pods"),
        ] {
            let mut request = Request::builder().uri(uri).body(()).expect("a request");
            if let Some(value) = header {
                request.headers_mut().insert(READABLE, value.parse().expect("a value"));
            }
            assert_eq!(take_readable(&mut request), expected, "{header:?} {uri}");
            assert_eq!(request.uri().to_string(), rest, "{header:?} {uri}");
            assert!(request.headers().is_empty(), "{header:?} {uri}");
        }
    }
}
