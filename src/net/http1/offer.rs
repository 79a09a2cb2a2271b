use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request};

/// The client's settings, which accompany the offer.
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Removes an offer to upgrade to HTTP/2 (`h2c`), and returns whether there was one.
///
/// Such offers are obsolete (RFC 9113 §3.1) and may be ignored (RFC 9110 §7.8): the client continues in HTTP/1.1 on the
/// same connection. The JDK's HTTP client sends the offer with each request.
///
/// Any other offer, or one with a body, is kept and ends the connection, because the bytes after it are ambiguous.
pub(super) fn take_h2c_offer<B>(request: &mut Request<B>) -> bool {
    let is_connect = *request.method() == Method::CONNECT;
    let headers = request.headers_mut();
    if is_connect || headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING) {
        return false;
    }
    let mut offered = headers.get_all(UPGRADE).iter();
    let is_h2c = |protocol: &HeaderValue| protocol.as_bytes().eq_ignore_ascii_case(b"h2c");
    if !offered.next().is_some_and(is_h2c) || !offered.all(is_h2c) {
        return false;
    }
    headers.remove(UPGRADE);
    headers.remove(HTTP2_SETTINGS);
    remove_options(headers);
    true
}

/// Removes the names of the offer from `Connection`.
fn remove_options(headers: &mut HeaderMap) {
    let is_of_offer = |option: &[u8]| {
        [UPGRADE, HTTP2_SETTINGS].iter().any(|name| name.as_str().as_bytes().eq_ignore_ascii_case(option))
    };
    let values = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes);
    let options = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let kept = options.filter(|option| !is_of_offer(option)).collect::<Vec<_>>().join(&b", "[..]);
    headers.remove(CONNECTION);
    if let Some(kept) = HeaderValue::from_bytes(&kept).ok().filter(|kept| !kept.is_empty()) {
        headers.insert(CONNECTION, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, fields: &[(&str, &str)]) -> Request<()> {
        let request = fields.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        request.method(method).body(()).expect("a request")
    }

    #[test]
    fn sole_h2c_upgrade_offer_is_removed_with_its_headers() {
        for (connection, kept) in [
            ("Upgrade, HTTP2-Settings", None),
            ("upgrade,http2-settings , keep-alive", Some("keep-alive")),
            ("Authorization, Upgrade", Some("Authorization")),
            ("", None),
        ] {
            let fields =
                [("upgrade", "H2C"), ("http2-settings", "AAMAAABk"), ("connection", connection), ("accept", "*/*")];
            let mut request = request(Method::GET, &fields);
            assert!(take_h2c_offer(&mut request), "{connection}");
            let left = request.headers();
            assert_eq!(left.get(CONNECTION).map(|value| value.to_str().expect("text")), kept, "{connection}");
            assert_eq!(left.len(), 1 + usize::from(kept.is_some()), "{left:?}");
        }
    }

    #[test]
    fn other_upgrade_offers_are_kept() {
        let with = |fields: &[(&'static str, &'static str)]| [&[("connection", "upgrade")], fields].concat();
        for (method, fields) in [
            (Method::GET, with(&[])),
            (Method::GET, with(&[("upgrade", "websocket")])),
            (Method::GET, with(&[("upgrade", "h2c, websocket")])),
            (Method::GET, with(&[("upgrade", "h2c"), ("upgrade", "websocket")])),
            (Method::GET, with(&[("upgrade", "websocket"), ("upgrade", "h2c")])),
            (Method::POST, with(&[("upgrade", "h2c"), ("content-length", "0")])),
            (Method::POST, with(&[("upgrade", "h2c"), ("transfer-encoding", "chunked")])),
            (Method::CONNECT, with(&[("upgrade", "h2c")])),
        ] {
            let mut request = request(method, &fields);
            let before = request.headers().clone();
            assert!(!take_h2c_offer(&mut request), "{fields:?}");
            assert_eq!(*request.headers(), before);
        }
    }
}
