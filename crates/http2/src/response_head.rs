//! Response heads as header blocks.

use std::cell::RefCell;
use std::time::SystemTime;

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::hpack;

/// The connection-specific header fields of HTTP/1 (RFC 9113 §8.2.2).
pub(super) static FOREIGN: [HeaderName; 6] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    TE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

thread_local! {
    /// The last second that was formatted as a date, and its text.
    static NOW: RefCell<(u64, Option<HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// Writes the head of a response. `length` is the size of its body in bytes, if known.
pub(super) fn put(block: &mut Vec<u8>, status: u16, fields: &mut HeaderMap, length: Option<u64>) {
    let named: Vec<_> = fields.get_all(CONNECTION).iter().cloned().collect();
    for name in named.iter().filter_map(|names| names.to_str().ok()).flat_map(|names| names.split(',')) {
        fields.remove(name.trim());
    }
    FOREIGN.iter().for_each(|name| drop(fields.remove(name)));
    if let Some(length) = length.filter(|_| !fields.contains_key(CONTENT_LENGTH)) {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    if !fields.contains_key(DATE) {
        fields.insert(DATE, date());
    }
    hpack::put_status(block, status);
    hpack::put_fields(block, fields);
}

/// Returns the current date, formatted once per second (RFC 9110 §6.6.1).
#[allow(clippy::disallowed_methods, reason = "the date is only sent, and decides nothing")]
fn date() -> HeaderValue {
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    NOW.with_borrow_mut(|(written, text)| {
        if *written != second || text.is_none() {
            *text = HeaderValue::try_from(httpdate::fmt_http_date(now)).ok();
            *written = second;
        }
        text.clone().unwrap_or(HeaderValue::from_static(""))
    })
}

#[cfg(test)]
mod tests {
    use super::super::hpack::HpackDecoder;
    use super::*;

    fn written(status: u16, mut fields: HeaderMap, length: Option<u64>) -> Vec<(String, String)> {
        let mut block = Vec::new();
        put(&mut block, status, &mut fields, length);
        let mut read = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        HpackDecoder::new()
            .read(&block, 1_000, |name, value| read.push((text(name), text(value.bytes()))))
            .expect("right");
        read
    }

    #[test]
    fn response_has_date_and_length_without_hop_by_hop_headers() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("content-type", "text/plain"),
        ] {
            fields.insert(name, HeaderValue::from_static(value));
        }
        fields.append("connection", HeaderValue::from_static("X-Other"));
        fields.insert("x-other", HeaderValue::from_static("1"));
        let read = written(200, fields, Some(5));
        let names: Vec<_> = read.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [":status", "content-type", "content-length", "date"]);
        assert_eq!(read[2].1, "5");
        assert!(httpdate::parse_http_date(&read[3].1).is_ok());
    }

    #[test]
    fn response_keeps_its_own_date_and_length() {
        let mut fields = HeaderMap::new();
        fields.insert(DATE, HeaderValue::from_static("yesterday"));
        fields.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        let read = written(410, fields, Some(5));
        assert_eq!(read[0], (":status".to_owned(), "410".to_owned()));
        assert!(read[1..].iter().all(|(_, value)| value == "yesterday" || value == "7"));
        assert_eq!(written(200, HeaderMap::new(), None).len(), 2, "an unknown length is not sent");
    }
}
