use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::time::Instant;

use super::*;

/// A client of an upstream that responds to the first request with `response` and keeps the connection open.
fn client_of(response: &'static str) -> UpstreamClient {
    let (near, mut far) = duplex(4096);
    let near = parking_lot::Mutex::new(Some(near));
    tokio::spawn(async move {
        far.read_u8().await.expect("a request");
        far.write_all(response.as_bytes()).await.expect("the connection is open");
        std::future::pending::<()>().await;
    });
    UpstreamClient::in_memory(move || near.lock().take())
}

#[tokio::test(start_paused = true)]
async fn error_with_incomplete_body_is_returned_by_its_code() {
    let client = client_of("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 9\r\n\r\n<");
    let began = Instant::now();
    let error = client.fetch(UpstreamRequestCause::Discovery, "/version", "*/*").await.expect_err("a 502");
    assert_eq!((error.code(), began.elapsed()), (Some(502), STATUS_TIMEOUT));
}

#[tokio::test]
async fn rejected_forwarded_request_makes_the_credentials_be_checked() {
    let client = client_of("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
    let user = RequestIdentity::User(Arc::default());
    let body = Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync();
    let response = client.send(&user, ForwardPoolKind::Short, Request::new(body)).await.expect("a response");
    assert_eq!(response.status(), 401);
    assert!(client.shared.transports.are_doubted.load(Ordering::Relaxed));
}

#[test]
fn error_page_becomes_a_message_of_one_line() {
    let (head, ()) = http::Response::builder().status(502).body(()).expect("a status").into_parts();
    let status = read_status(&head, b"<html>\r\n  <h1>502 Bad Gateway</h1>\r\n</html>\r\n");
    assert_eq!((status.code, status.message.as_str()), (502, "<html> <h1>502 Bad Gateway</h1> </html>"));
}

#[test]
fn retry_after_accepts_only_seconds() {
    let later = "Wed, 25 Nov 2026 07:28:00 GMT";
    for (header, seconds) in [
        ("3", Some(3)),
        ("86400", Some(86_400)),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("99999999999", None),
        (later, None),
    ] {
        let refused = http::Response::builder().status(429).header(http::header::RETRY_AFTER, header);
        let (head, ()) = refused.body(()).expect("a header").into_parts();
        assert_eq!(read_status(&head, b"").retry_after_seconds(), seconds, "{header:?}");
    }
    // The delay in the Status has precedence over the header.
    let refused = http::Response::builder().status(503).header(http::header::RETRY_AFTER, "9").body(());
    let (head, ()) = refused.expect("a header").into_parts();
    let mut status = Status::service_unavailable("later");
    status.set_retry_after(2);
    assert_eq!(read_status(&head, &status.to_json()).retry_after_seconds(), Some(2));
}

#[test]
fn hsts_header_of_last_response_is_used() {
    let policy = HstsHeader::default();
    let response =
        |value: &'static str| HeaderMap::from_iter([(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(value))]);
    for (headers, expected) in [
        (HeaderMap::new(), None),
        (response("max-age=1"), Some("max-age=1")),
        (response("max-age=1"), Some("max-age=1")),
        (response("max-age=2,preload"), Some("max-age=2,preload")),
        (HeaderMap::new(), None),
        (response("max-age=1"), Some("max-age=1")),
    ] {
        policy.update(&headers);
        assert_eq!(policy.get().as_ref().and_then(|value| value.to_str().ok()), expected);
    }
}
