//! Headers that identify the sender of a request, and headers that are forwarded.

use http::header::{CONNECTION, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Uri};
use kube_fanout::auth::{AllowedHosts, CrossOriginCheck, Impersonation, WebOrigin};
use kube_fanout::upstream::{inspect, is_impersonation, strip_hop_by_hop};

use super::{head, text};

/// Header lines, `NAME: VALUE` each; the first line is the request's target.
pub fn headers(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let target = text(lines.next().unwrap_or_default()).parse().unwrap_or(Uri::from_static("/"));
    let mut headers = head(lines);
    let named = headers.keys().any(is_impersonation);
    match Impersonation::from_headers(&headers) {
        // A request without impersonation headers does not impersonate.
        Ok(identity) => assert!(identity.is_none() || named, "{headers:?}"),
        Err(_) => assert!(named, "{headers:?}"),
    }
    let _ = inspect(&headers);
    let allowed = vec!["https://example.com".parse::<WebOrigin>().expect("an origin")];
    for tls in [true, false] {
        let guard = CrossOriginCheck::new(tls, AllowedHosts::new(&["example.com".to_owned()]), allowed.clone());
        let _ = (guard.check(&target, &headers), guard.check_site(&headers));
    }
    let listed = listed(&headers);
    strip_hop_by_hop(&mut headers);
    for name in listed.iter().chain([&CONNECTION, &TRANSFER_ENCODING, &UPGRADE]) {
        assert!(!headers.contains_key(name), "{name} crosses: {headers:?}");
    }
}

/// The header names that `Connection` lists.
fn listed(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    names.collect()
}
