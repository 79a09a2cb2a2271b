//! Bytes that one parser takes for a body and another one for a request are never handled as a request (R-DOWNSTREAM-6,
//! R-THREAT-3, R-THREAT-4).

use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::direct::{self, App, Stub, stub, within};

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Returns everything that the server sends, up to the end of the connection.
async fn send(app: &App, text: &str) -> String {
    let mut io = app.connect().await.expect("a connection");
    io.write_all(text.as_bytes()).await.expect("it is sent");
    let mut response = Vec::new();
    // A server that closes with unread bytes resets the connection, which ends it too.
    let _ = within("the end of the connection", io.read_to_end(&mut response)).await;
    String::from_utf8_lossy(&response).to_lowercase()
}

async fn recording() -> (Stub, App) {
    let upstream =
        stub(|request: Request<Incoming>| async move { Ok(Stub::reply(200, request.uri().path().to_owned())) });
    let upstream = upstream.await;
    let app = direct::in_front_of(&upstream.url()).with(|config| config.serve.exec_on_loopback = true).run().await;
    (upstream, app)
}

#[tokio::test]
async fn ambiguous_body_length_smuggles_no_request() {
    let (upstream, app) = recording().await;
    let body = format!("0\r\n\r\n{HIDDEN}");
    let length = format!("content-length: {}\r\n", body.len());
    for (order, headers) in [
        ("length first", format!("{length}transfer-encoding: chunked\r\n")),
        ("coding first", format!("transfer-encoding: chunked\r\n{length}")),
        ("a folded coding", format!("{length}transfer-encoding:\r\n chunked\r\n")),
        ("several codings", format!("{length}transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n")),
        ("two lengths", format!("{length}content-length: 5\r\n")),
        ("a list of lengths", format!("content-length: 5, {}\r\n", body.len())),
        ("a signed length", format!("content-length: +{}\r\n", body.len())),
    ] {
        for path in ["/version", "/api/v1/namespaces/default/pods/p/log"] {
            let response = send(&app, &format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n{body}")).await;
            assert!(upstream.seen("/hidden").is_empty(), "{order}: {response}");
            assert!(response.matches("http/1.1 ").count() <= 1, "{order}: {response}");
        }
    }
}

#[tokio::test]
async fn refused_upgrade_closes_connection() {
    let (upstream, app) = recording().await;
    for protocol in ["websocket", "SPDY/3.1", "h2c", "other"] {
        for path in ["/version", "/api/v1/namespaces/default/pods/p/portforward"] {
            let upgrade = format!("connection: upgrade\r\nupgrade: {protocol}\r\n");
            let response =
                send(&app, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n{HIDDEN}")).await;
            assert!(upstream.seen("/hidden").is_empty(), "{protocol}: {response}");
            assert!(response.contains("connection: close"), "{protocol}: {response}");
        }
    }
    let connect = format!("CONNECT localhost:1 HTTP/1.1\r\nhost: localhost:1\r\n\r\n{HIDDEN}");
    let response = send(&app, &connect).await;
    assert!(upstream.seen("/hidden").is_empty() && response.contains("connection: close"), "{response}");
}

/// Sends a request and returns the response, whose body is the request's path.
async fn send_request(io: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str, fields: &str) -> String {
    io.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").as_bytes())
        .await
        .expect("it is sent");
    let mut response = Vec::new();
    while !response.ends_with(path.as_bytes()) {
        response.push(within("an answer", io.read_u8()).await.expect("the connection stays open"));
    }
    String::from_utf8(response).expect("text").to_lowercase()
}

/// The JDK's client offers `h2c` with each request, and continues in HTTP/1.1 on the same connection. Bytes before the
/// response may be meant for HTTP/2.
#[tokio::test]
async fn connection_remains_open_after_h2c_offer() {
    let (upstream, app) = recording().await;
    let offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
    let mut io = app.connect().await.expect("a connection");
    for path in ["/version", "/second", "/third"] {
        let response = send_request(&mut io, path, offer).await;
        assert!(response.starts_with("http/1.1 200") && !response.contains("connection: close"), "{response}");
        for head in upstream.seen(path) {
            assert!(!head.headers.contains_key("upgrade") && !head.headers.contains_key("http2-settings"), "{head:?}");
        }
    }
    let last = format!("GET /last HTTP/1.1\r\nhost: localhost\r\n{offer}\r\n{HIDDEN}");
    io.write_all(last.as_bytes()).await.expect("it is sent");
    let mut response = Vec::new();
    let _ = within("the end of the connection", io.read_to_end(&mut response)).await;
    let response = String::from_utf8_lossy(&response).to_lowercase();
    assert!(response.contains("connection: close") && response.ends_with("/last"), "{response}");
    assert!(upstream.seen("/hidden").is_empty());
}

#[tokio::test]
async fn refused_connect_closes_connection() {
    let upstream = stub(|request: Request<Incoming>| async move {
        let status = if request.method() == Method::CONNECT { 403 } else { 200 };
        Ok(Stub::reply(status, request.uri().path().to_owned()))
    });
    let upstream = upstream.await;
    let app = direct::in_front_of(&upstream.url()).run().await;
    for target in ["localhost:443", "/version", "http://localhost/version"] {
        let response = send(&app, &format!("CONNECT {target} HTTP/1.1\r\nhost: localhost\r\n\r\n{HIDDEN}")).await;
        assert!(
            response.matches("http/1.1 ").count() <= 1 && !response.starts_with("http/1.1 200"),
            "{target}: {response}"
        );
    }
    assert!(upstream.seen("/hidden").is_empty());
}

/// The connection behaves as the response's Connection header announces.
#[tokio::test]
async fn http10_response_announces_connection_close() {
    let (upstream, app) = recording().await;
    for path in ["/version", "/api/v1/namespaces/default/pods/p/log"] {
        let fields = "host: localhost\r\nconnection: keep-alive\r\n";
        let response = send(&app, &format!("GET {path} HTTP/1.0\r\n{fields}\r\n{HIDDEN}")).await;
        assert!(response.starts_with("http/1.0 200") && response.contains("connection: close"), "{response}");
        assert!(!response.contains("keep-alive") && response.ends_with(path), "{response}");
    }
    assert!(upstream.seen("/hidden").is_empty());
}

/// These responses precede authentication, so each costs its sender a connection.
#[tokio::test]
async fn response_before_authentication_closes_connection() {
    let (upstream, app) = recording().await;
    let hops = vec!["a"; 16].join(", ");
    let long = vec!["*"; 65].join(",");
    for (path, header, code) in [
        ("/version", format!("kube-fanout-hops: {hops}"), 508),
        ("/livez", "kube-fanout-hops: a".to_owned(), 200),
        ("/version", format!("accept: {long}"), 400),
        ("/version", "expect: 200-ok".to_owned(), 417),
        ("/version", "sec-fetch-site: cross-site".to_owned(), 403),
        ("/api/%zz", "accept: */*".to_owned(), 400),
    ] {
        let response = send(&app, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n{HIDDEN}")).await;
        assert!(
            response.starts_with(&format!("http/1.1 {code}")) && response.contains("connection: close"),
            "{response}"
        );
        assert_eq!(response.contains("kube-fanout-refused-by: proxy"), code != 200, "{response}");
    }
    assert!(upstream.seen("/hidden").is_empty() && upstream.seen("/version").is_empty());
}

/// The fragment is not part of a request target. Without it the target is another one: a whole collection.
#[tokio::test]
async fn request_target_with_fragment_returns_400() {
    let (upstream, app) = recording().await;
    let collection = "/api/v1/namespaces/default/configmaps";
    let delete = format!("DELETE {collection}#/a HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(send(&app, &delete).await.starts_with("http/1.1 400"));
    // Empty lines may precede a request (RFC 9112 §2.2).
    assert!(send(&app, &format!("\r\n\r\n{delete}")).await.starts_with("http/1.1 400"));
    let mut io = app.connect().await.expect("a connection");
    send_request(&mut io, "/version", "").await;
    io.write_all(delete.as_bytes()).await.expect("it is sent");
    let mut response = Vec::new();
    let _ = within("the end of the connection", io.read_to_end(&mut response)).await;
    assert!(response.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&response));
    assert!(upstream.seen(collection).is_empty());
}

/// Load balancers probe with HTTP/1.0 and without a Host header, which no browser does.
#[tokio::test]
async fn http10_request_without_host_is_served() {
    let (upstream, app) = recording().await;
    let response = send(&app, "GET /version HTTP/1.0\r\n\r\n").await;
    assert!(response.starts_with("http/1.0 200"), "{response}");
    assert_eq!(upstream.seen("/version").len(), 1);
}

#[tokio::test]
async fn ambiguous_request_returns_400_and_closes_connection() {
    let (upstream, app) = recording().await;
    for header in ["connection: impersonate-user", "x_remote_user: a", "host: other"] {
        let response =
            send(&app, &format!("GET /version HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n{HIDDEN}")).await;
        assert!(response.starts_with("http/1.1 400") && response.contains("connection: close"), "{header}: {response}");
    }
    assert!(upstream.seen("/hidden").is_empty() && upstream.seen("/version").is_empty());
}

#[tokio::test]
async fn malformed_chunked_body_returns_400() {
    let echo = stub(|request: Request<Incoming>| async move {
        request.into_body().collect().await?;
        Ok(Stub::reply(200, "all of it"))
    });
    let upstream = echo.await;
    let app = direct::in_front_of(&upstream.url()).run().await;
    for chunk in ["zz\r\n", "-5\r\nhello\r\n", "ffffffffffffffff1\r\nhello\r\n", "5;a\nb\r\nhello\r\n"] {
        let head = "POST /version HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
        let response = send(&app, &format!("{head}{chunk}0\r\n\r\n{HIDDEN}")).await;
        assert!(response.starts_with("http/1.1 400"), "{chunk:?}: {response}");
    }
    assert!(upstream.seen("/hidden").is_empty());
}

/// R-THREAT-9: a tunnel's credentials are not sent to the redirect target that upstream names.
#[tokio::test]
async fn redirect_of_tunnel_returns_502() {
    let elsewhere = stub(|_| async { Ok(Stub::reply(200, "thank you")) }).await;
    let place = format!("{}/api/v1/namespaces/default/pods/p/portforward", elsewhere.url());
    let named = place.clone();
    let redirecting = stub(move |_| {
        let place = named.clone();
        async move {
            let mut reply = Stub::reply(307, "");
            reply.headers_mut().insert("location", place.parse()?);
            Ok(reply)
        }
    });
    let upstream = redirecting.await;
    let app = direct::in_front_of(&upstream.url()).with(|config| config.serve.exec_on_loopback = true).run().await;
    for protocol in ["websocket", "SPDY/3.1"] {
        let upgrade = format!("connection: upgrade\r\nupgrade: {protocol}\r\nauthorization: Bearer theirs\r\n");
        let path = "/api/v1/namespaces/default/pods/p/portforward";
        let response = send(&app, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n")).await;
        assert!(response.starts_with("http/1.1 502") && !response.contains("location:"), "{protocol}: {response}");
    }
    assert!(elsewhere.seen("/api/v1/namespaces/default/pods/p/portforward").is_empty(), "{place}");
}
