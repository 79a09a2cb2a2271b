//! Request heads and trailers, built from the fields of a header block (RFC 9113 §8.3).

use http::header::{CONTENT_LENGTH, COOKIE, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, uri};

use super::hpack::{FIELD_BYTES, HeaderFieldValue};
use super::response_head::FOREIGN;

/// A request head that is being decoded.
#[derive(Debug, Default)]
pub(super) struct RequestHead {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    pub(super) fields: HeaderMap,
    /// The size of the head as HTTP/2 counts it: names, values and 32 bytes for each field.
    pub(super) bytes: usize,
    bytes_max: usize,
    is_malformed: bool,
}

/// The reason that a head forms no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestHeadError {
    /// The request is malformed (RFC 9113 §8.1.1).
    Malformed,
    /// The header fields exceed the limit.
    TooLarge,
}

impl RequestHead {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Adds the next field.
    pub(super) fn take(&mut self, name: &[u8], value: HeaderFieldValue<'_>) {
        self.bytes = self.bytes.saturating_add(name.len() + value.bytes().len() + FIELD_BYTES);
        if self.is_malformed || self.bytes > self.bytes_max {
            return;
        }
        self.is_malformed = self.take_valid(name, value).is_none();
    }

    fn take_valid(&mut self, name: &[u8], value: HeaderFieldValue<'_>) -> Option<()> {
        let Some(name) = name.strip_prefix(b":") else {
            let name = HeaderName::from_lowercase(name).ok()?;
            if FOREIGN.contains(&name) && !(name == TE && value.bytes() == b"trailers") {
                return None;
            }
            self.fields.try_append(name, value.to_header()?).ok()?;
            return Some(());
        };
        // Pseudo-header fields must precede all others and occur once.
        if !self.fields.is_empty() {
            return None;
        }
        match name {
            b"method" => once(&mut self.method, Method::from_bytes(value.bytes()).ok()?),
            b"scheme" => once(&mut self.scheme, Scheme::try_from(value.bytes()).ok()?),
            b"authority" => once(&mut self.authority, Authority::try_from(value.bytes()).ok()?),
            b"path" => {
                // A path has no fragment. `PathAndQuery` would cut one off, and the rest would be another path.
                let is_path = value.bytes().starts_with(b"/") && !value.bytes().contains(&b'#');
                if !is_path && value.bytes() != b"*" {
                    return None;
                }
                once(&mut self.path, PathAndQuery::try_from(value.bytes()).ok()?)
            }
            _ => None,
        }
    }

    /// Builds the request, and returns the length of its body if declared. If `ends`, there is no body.
    pub(super) fn into_request(mut self, ends: bool) -> Result<(Request<()>, Option<u64>), RequestHeadError> {
        if self.bytes > self.bytes_max {
            return Err(RequestHeadError::TooLarge);
        }
        let length = self.content_length()?;
        if self.is_malformed || (ends && length.is_some_and(|length| length > 0)) {
            return Err(RequestHeadError::Malformed);
        }
        self.join_cookies();
        let fields = std::mem::take(&mut self.fields);
        let method = self.method.take().ok_or(RequestHeadError::Malformed)?;
        let mut request = Request::new(());
        *request.uri_mut() = self.uri(&method).ok_or(RequestHeadError::Malformed)?;
        *request.method_mut() = method;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = fields;
        Ok((request, length))
    }

    /// Returns the decoded fields as trailers; `None` if they are malformed or exceed the limit.
    pub(super) fn into_trailers(self) -> Option<HeaderMap> {
        let is_head = self.method.is_some() || self.scheme.is_some() || self.authority.is_some() || self.path.is_some();
        (!self.is_malformed && !is_head && self.bytes <= self.bytes_max).then_some(self.fields)
    }

    fn uri(&mut self, method: &Method) -> Option<Uri> {
        let mut parts = uri::Parts::default();
        let (scheme, path) = (self.scheme.take(), self.path.take());
        if *method == Method::CONNECT {
            // CONNECT has neither (RFC 9113 §8.5).
            if scheme.is_some() || path.is_some() || self.authority.is_none() {
                return None;
            }
        } else {
            let path = path.filter(|path| path.as_str() != "*" || *method == Method::OPTIONS)?;
            (parts.scheme, parts.path_and_query) = (Some(scheme?), Some(path));
        }
        parts.authority = self.authority.take();
        if parts.authority.is_none() {
            // A URI has both or none.
            parts.scheme = None;
        }
        Uri::from_parts(parts).ok()
    }

    /// Returns the length on which all fields `content-length` agree; `None` if there are none.
    fn content_length(&self) -> Result<Option<u64>, RequestHeadError> {
        let mut length = None;
        for field in self.fields.get_all(CONTENT_LENGTH) {
            let digits = field.to_str().ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
            let value = digits.and_then(|digits| digits.parse().ok()).ok_or(RequestHeadError::Malformed)?;
            if length.is_some_and(|length| length != value) {
                return Err(RequestHeadError::Malformed);
            }
            length = Some(value);
        }
        Ok(length)
    }

    /// Joins a cookie that was split into several fields (RFC 9113 §8.2.3), because upstream may use HTTP/1.
    fn join_cookies(&mut self) {
        if self.fields.get_all(COOKIE).iter().nth(1).is_none() {
            return;
        }
        let pieces: Vec<_> = self.fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(cookie) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
            self.fields.insert(COOKIE, cookie);
        }
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    let is_first = slot.is_none();
    *slot = Some(value);
    is_first.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "fanout"), (":path", "/api/v1/pods?watch=1")];

    fn head(fields: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead::new(1_000);
        fields.iter().for_each(|(name, value)| head.take(name.as_bytes(), HeaderFieldValue::Own(value.as_bytes())));
        head
    }

    fn with(fields: &[(&str, &str)]) -> Result<(Request<()>, Option<u64>), RequestHeadError> {
        head(&[&GET, fields].concat()).into_request(false)
    }

    #[test]
    fn request_is_built_from_pseudo_headers_and_fields() {
        let (request, length) =
            with(&[("accept", "*/*"), ("content-length", "7"), ("content-length", "7")]).expect("right");
        assert_eq!(request.uri(), "https://fanout/api/v1/pods?watch=1");
        assert_eq!((request.method(), request.version(), length), (&Method::GET, Version::HTTP_2, Some(7)));
        assert_eq!(request.headers()["accept"], "*/*");
        let (request, length) = head(&[GET[0], GET[1], GET[3]]).into_request(true).expect("right");
        assert_eq!((request.uri().to_string().as_str(), length), ("/api/v1/pods?watch=1", None));
        let (request, _) = head(&[(":method", "OPTIONS"), GET[1], (":path", "*")]).into_request(true).expect("right");
        assert_eq!(request.uri(), "*");
        let connect = head(&[(":method", "CONNECT"), (":authority", "fanout:443")]).into_request(true).expect("right");
        assert_eq!(connect.0.uri(), "fanout:443");
    }

    #[test]
    fn split_cookie_headers_are_joined() {
        let (request, _) = with(&[("cookie", "a=1"), ("accept", "*/*"), ("cookie", "b=2; c=3")]).expect("right");
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }

    #[test]
    fn malformed_request_head_is_refused() {
        let rows: &[&[(&str, &str)]] = &[
            &GET[1..],
            &[GET[0], GET[2], GET[3]],
            &GET[..3],
            &[GET[0], GET[1], (":path", "")],
            &[GET[0], GET[1], (":path", "api")],
            &[GET[0], GET[1], (":path", "*")],
            &[GET[0], GET[1], (":path", "/a b")],
            &[GET[0], GET[1], (":path", "/a#/b")],
            &[GET[0], GET[1], GET[3], GET[3]],
            &[GET[0], GET[1], GET[3], (":status", "200")],
            &[GET[0], GET[1], GET[3], (":protocol", "websocket")],
            &[GET[0], GET[1], ("accept", "*/*"), GET[3]],
            &[GET[0], GET[1], GET[3], ("Accept", "*/*")],
            &[GET[0], GET[1], GET[3], ("", "x")],
            &[GET[0], GET[1], GET[3], ("a b", "x")],
            &[GET[0], GET[1], GET[3], ("a", "x\r\nb: y")],
            &[GET[0], GET[1], GET[3], ("connection", "close")],
            &[GET[0], GET[1], GET[3], ("keep-alive", "1")],
            &[GET[0], GET[1], GET[3], ("proxy-connection", "close")],
            &[GET[0], GET[1], GET[3], ("transfer-encoding", "chunked")],
            &[GET[0], GET[1], GET[3], ("upgrade", "websocket")],
            &[GET[0], GET[1], GET[3], ("te", "gzip")],
            &[GET[0], GET[1], GET[3], ("content-length", "1"), ("content-length", "2")],
            &[GET[0], GET[1], GET[3], ("content-length", "+1")],
            &[GET[0], GET[1], GET[3], ("content-length", "99999999999999999999")],
            &[(":method", "CONNECT"), (":authority", "fanout:443"), (":path", "/")],
            &[(":method", "CONNECT")],
            &[GET[0], GET[1], (":authority", "a b"), GET[3]],
        ];
        for fields in rows {
            assert_eq!(head(fields).into_request(false).map(|_| ()), Err(RequestHeadError::Malformed), "{fields:?}");
        }
        assert!(with(&[("te", "trailers")]).is_ok());
        let ends = head(&[&GET[..], &[("content-length", "1")]].concat()).into_request(true);
        assert_eq!(ends.map(|_| ()), Err(RequestHeadError::Malformed), "a body was promised");
    }

    #[test]
    fn request_head_and_trailers_size_is_limited() {
        let long = "x".repeat(1_000);
        assert_eq!(with(&[("a", &long)]).map(|_| ()), Err(RequestHeadError::TooLarge));
        let many = vec![("a", ""); 30];
        assert_eq!(with(&many).map(|_| ()), Err(RequestHeadError::TooLarge));
        assert_eq!(head(&many).into_trailers(), Some(head(&many).fields));
        assert_eq!(head(&vec![("a", ""); 31]).into_trailers(), None);
    }

    #[test]
    fn trailers_reject_pseudo_headers_and_upper_case_names() {
        assert_eq!(head(&[("a", "1")]).into_trailers().expect("right")["a"], "1");
        assert_eq!(head(&[(":path", "/")]).into_trailers(), None);
        assert_eq!(head(&[("A", "1")]).into_trailers(), None);
    }
}
