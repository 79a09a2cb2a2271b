//! Requests that the cache does not answer are forwarded, and the responses come back unchanged (P1, P2, R-THREAT-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::direct::{self, Answer, App, Behind, Client, PODS, Protocol, Stub, assert_alike, stub, upstream_client};

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
/// A path that the cache cannot serve.
const ELSEWHERE: &str = "/elsewhere/and/further?x=1&y=%2F";

/// An upstream that echoes every other request.
async fn echo() -> Stub {
    stub(|request: Request<Incoming>| async move {
        let (_, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Stub::reply(200, body))
    })
    .await
}

async fn in_front_of(stub: &Stub) -> App {
    direct::in_front_of(&stub.url()).run().await
}

#[tokio::test]
async fn writes_are_forwarded_and_reach_watches() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    let watch = app.watch("/api/v1/configmaps").from(up.revision()).await;
    for client in [app.over(Protocol::Http1), app.over(Protocol::Http2)] {
        let name = format!("{CONFIGMAPS}/written");
        let send = async |method: Method, path: &str, media: &str, text: &str| {
            client.request(method, path).header("content-type", media).body(text.to_owned()).send().await
        };
        let json = "application/json";
        let made = send(Method::POST, CONFIGMAPS, json, r#"{"metadata":{"name":"written"},"data":{"a":"1"}}"#).await;
        assert_eq!((made.status, made.is_cached()), (201, false));
        let again = send(Method::POST, CONFIGMAPS, json, r#"{"metadata":{"name":"written"}}"#).await;
        assert_eq!(again.refusal(), (409, "AlreadyExists".to_owned()));
        let put = send(Method::PUT, &name, json, r#"{"metadata":{"name":"written"},"data":{"a":"2"}}"#).await;
        assert_eq!((put.status, put.json()["data"]["a"].as_str()), (200, Some("2")));
        let patched = send(Method::PATCH, &name, "application/merge-patch+json", r#"{"data":{"b":"3"}}"#).await;
        assert_eq!((patched.status, patched.json()["data"]["b"].as_str()), (200, Some("3")));
        let wrong = send(Method::PATCH, &name, "text/plain", "?").await;
        assert_eq!(wrong.status, 415);
        let gone = send(Method::DELETE, &name, json, "").await;
        assert_eq!(gone.status, 200);
        watch.reached(up.revision()).await;
    }
    let types: Vec<_> = watch.events().iter().map(|event| event.kind.clone()).collect();
    assert_eq!(types, ["ADDED", "MODIFIED", "MODIFIED", "DELETED"].repeat(2));
}

#[tokio::test]
async fn uncached_requests_return_upstream_response() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    for path in [
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps/v1",
        "/version",
        "/healthz",
        "/readyz?verbose",
        "/openapi/v3",
        "/nowhere",
        "/api/v1/nothing",
        "/api/v9/pods",
        "/api/v1/watch",
        "//api/v1/pods",
        "/api/v1/pods/",
        "/api/v1/namespaces/default%2Fpods",
        "/api/v1/%70ods",
        "/API/v1/pods",
        "/api/v1/pods;x",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/default//pods",
        "/api/v1/pods?watch=0&watch=1",
        "/api/v1/pods?%zz=1&limit=1&;=2",
        "/api/v1/namespaces/default/pods/nobody",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/default/status",
    ] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let (ours, theirs) =
                (app.over(protocol).get(path).await, upstream_client(&up).over(protocol).get(path).await);
            assert_alike(path, &ours, &theirs);
            assert_eq!(ours.header("content-type"), theirs.header("content-type"), "{path}");
        }
    }
    for (method, path) in [(Method::HEAD, PODS), (Method::HEAD, "/version"), (Method::OPTIONS, PODS)] {
        let ours = app.request(method.clone(), path).send().await;
        let theirs = upstream_client(&up).request(method, path).send().await;
        assert_alike(path, &ours, &theirs);
    }
}

#[tokio::test]
async fn unexpected_get_body_is_not_parsed_as_next_request() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    app.get("/api/v1/pods?resourceVersion=0").await;
    let mut io = app.connect().await.expect("a connection");
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let get = |path: &str, more: String| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}");
    let with_body = |path: &str| get(path, format!("content-length: {}\r\n\r\n{smuggled}", smuggled.len()));
    let last = get("/version", "connection: close\r\n\r\n".to_owned());
    let cached = "/api/v1/pods?resourceVersion=0&labelSelector=nobody%3Dhas";
    let requests = [with_body(cached), with_body("/healthz"), with_body(cached), last].concat();
    io.write_all(requests.as_bytes()).await.expect("sent");
    let mut answers = String::new();
    direct::within("all answers", io.read_to_string(&mut answers)).await.expect("text");
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 4, "{answers}");
    assert_eq!(answers.matches("HTTP/1.1").count(), 4, "{answers}");
    assert!(up.requests().iter().all(|seen| seen.uri.path() != "/smuggled"));
}

#[tokio::test]
async fn unsupported_media_types_are_forwarded() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).run().await;
    app.get("/api/v1/pods?resourceVersion=0").await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    for (accept, agent, query) in [
        (table, "x", "?resourceVersion=0"),
        ("application/json", "curl/8", "?resourceVersion=0"),
        ("application/json", "x", "?resourceVersion=0&pretty=true"),
        ("application/vnd.kubernetes.protobuf", "x", "?resourceVersion=0"),
        ("application/*", "x", "?resourceVersion=0"),
        ("application/yaml", "x", ""),
    ] {
        let fetch = async |client: &Client| {
            let call = client.request(Method::GET, &format!("{PODS}{query}")).header("accept", accept);
            call.header("user-agent", agent).send().await
        };
        // A Table has the age of its rows in seconds, so the proxy is queried while upstream's response stays the same.
        let direct = upstream_client(&up);
        let (ours, theirs) = loop {
            let (before, ours, after) = (fetch(&direct).await, fetch(&app).await, fetch(&direct).await);
            if before.body == after.body {
                break (ours, after);
            }
        };
        assert_alike(accept, &ours, &theirs);
        assert!(!ours.is_cached());
    }
}

#[tokio::test]
async fn forward_drops_hop_by_hop_and_identity_headers() {
    let upstream = echo().await;
    let app = in_front_of(&upstream).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut call = app.over(protocol).request(Method::POST, ELSEWHERE).body("x");
        let kept = [
            ("x-custom", "kept"),
            ("cookie", "a=b"),
            ("content-type", "text/odd"),
            ("audit-id", "abc"),
            ("accept-encoding", "gzip"),
            ("if-none-match", "\"x\""),
            ("impersonate-user", "somebody"),
            ("impersonate-group", "g"),
            ("impersonate-extra-scopes", "x"),
        ];
        for (name, value) in kept {
            call = call.header(name, value);
        }
        let theirs = [
            ("authorization", "Bearer secret"),
            ("x-remote-user", "root"),
            ("x-remote-uid", "1"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-a", "b"),
            ("proxy-authorization", "Basic x"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-real-ip", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
        ];
        for (name, value) in theirs {
            call = call.header(name, value);
        }
        if protocol == Protocol::Http1 {
            call =
                call.header("connection", "keep-alive, x-hop").header("x-hop", "1").header("keep-alive", "timeout=5");
        }
        assert_eq!(call.send().await.status, 200);
        let head = upstream.seen("/elsewhere/and/further").pop().expect("a request");
        assert_eq!((head.method, head.uri.query()), (Method::POST, Some("x=1&y=%2F")));
        for (name, value) in kept {
            assert_eq!(head.headers.get(name).and_then(|value| value.to_str().ok()), Some(value), "{name}");
        }
        for (name, _) in theirs.into_iter().chain([("x-hop", ""), ("keep-alive", "")]) {
            assert_eq!(head.headers.get(name), None, "{name} over {protocol:?}");
        }
        let host = head.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
        assert!(upstream.url().ends_with(host) && !host.is_empty(), "{host}");
    }
}

#[tokio::test]
async fn connection_header_cannot_strip_identity_or_loop_headers() {
    let upstream = echo().await;
    let app = in_front_of(&upstream).await;
    let call = app.request(Method::POST, ELSEWHERE).header("connection", "content-type, kube-fanout-hops, host");
    assert_eq!(call.header("content-type", "text/odd").body("x").send().await.status, 200);
    let head = upstream.seen("/elsewhere/and/further").pop().expect("a request");
    assert!(head.headers.contains_key("kube-fanout-hops"), "loops stay detectable");
    assert!(head.headers.contains_key("host"));
    // Proxies that drop a restriction on the way have granted more than was requested.
    for name in ["impersonate-user", "Impersonate-Group", "authorization", "x-remote-user"] {
        let refused = app.request(Method::POST, ELSEWHERE).header("connection", name).header(name, "x").send().await;
        assert_eq!(refused.refusal().0, 400, "{name}");
    }
    assert_eq!(upstream.seen("/elsewhere/and/further").len(), 1);
}

#[tokio::test]
async fn impersonated_request_bypasses_cache() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let path = "/api/v1/pods?resourceVersion=0";
    assert!(app.get(path).await.is_cached());
    let answer = app.request(Method::GET, path).header("impersonate-user", "somebody").send().await;
    assert_eq!((answer.status, answer.is_cached()), (200, false));
    // The proxy may send a request of its own in between.
    let seen = up.requests().into_iter().rfind(|seen| seen.uri == *path).expect("a request");
    assert_eq!(seen.headers.get("impersonate-user").map(HeaderValue::as_bytes), Some(b"somebody".as_slice()));
}

#[tokio::test]
async fn forwarded_response_keeps_status_headers_and_body() {
    let upstream = stub(|request: Request<Incoming>| async move {
        let status: u16 = request.uri().path().trim_start_matches("/status/").parse().unwrap_or(404);
        let text = if matches!(status, 204 | 304) { "" } else { "the body" };
        let mut reply = Stub::reply(status, text);
        let headers = [
            ("warning", "299 - \"old\""),
            ("warning", "299 - \"older\""),
            ("retry-after", "7"),
            ("audit-id", "theirs"),
            ("x-kubernetes-pf-flowschema-uid", "u"),
            ("content-type", "text/odd"),
            ("set-cookie", "a=b"),
            ("location", "http://elsewhere.example/"),
            ("etag", "\"e\""),
        ];
        for (name, value) in headers {
            reply.headers_mut().append(name, HeaderValue::from_static(value));
        }
        Ok(reply)
    })
    .await;
    let app = in_front_of(&upstream).await;
    for status in [200, 201, 202, 204, 301, 302, 304, 307, 400, 401, 403, 404, 409, 410, 418, 422, 429, 500, 503, 504] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let answer = app.over(protocol).get(&format!("/status/{status}")).await;
            assert_eq!(answer.status, status, "a redirect is the client's to follow");
            assert_eq!(answer.text(), if matches!(status, 204 | 304) { "" } else { "the body" }, "{status}");
            let warnings: Vec<_> = answer.headers.get_all("warning").iter().collect();
            assert_eq!(warnings, ["299 - \"old\"", "299 - \"older\""]);
            for (name, value) in [
                ("retry-after", "7"),
                ("audit-id", "theirs"),
                ("content-type", "text/odd"),
                ("location", "http://elsewhere.example/"),
                ("etag", "\"e\""),
            ] {
                assert_eq!(answer.header(name), Some(value), "{status} {name}");
            }
            assert!(!answer.is_cached());
        }
    }
}

#[tokio::test]
async fn large_bodies_stream_both_ways_without_buffering() {
    let upstream = stub(|request: Request<Incoming>| async move {
        let (_, body) = request.into_parts();
        let frames = body.into_data_stream().map(|data| data.map(Frame::data).map_err(Into::into));
        let mut reply = Stub::reply(200, "");
        *reply.body_mut() = StreamBody::new(frames).boxed_unsync();
        Ok(reply)
    })
    .await;
    let app = in_front_of(&upstream).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (send, parts) = mpsc::channel::<Bytes>(1);
        let frames = stream::unfold(parts, |mut parts| async {
            let part = parts.recv().await?;
            Some((Ok(Frame::data(part)), parts))
        });
        let call =
            app.over(protocol).request(Method::POST, ELSEWHERE).streaming(StreamBody::new(frames).boxed_unsync());
        let answer = async {
            // The response starts before the request has ended.
            call.open().await.expect("a head").into_body()
        };
        let first = Bytes::from(vec![b'0'; 1000]);
        let (mut body, sent) = tokio::join!(answer, send.send(first.clone()));
        sent.expect("a reader");
        let mut got = 0;
        while got < first.len() {
            got += direct::within("the first part", body.frame())
                .await
                .expect("a frame")
                .expect("whole")
                .data_ref()
                .map_or(0, Bytes::len);
        }
        assert_eq!(got, first.len(), "the first part is back before the second is sent");
        let feed = async {
            for n in 1..=160u8 {
                send.send(Bytes::from(vec![n; 100_000])).await.expect("a reader");
            }
            drop(send);
        };
        let rest = async {
            let rest = body.collect().await.expect("a whole body").to_bytes();
            assert_eq!(rest.len(), 16_000_000);
            assert!((1..=160u8).zip(rest.chunks(100_000)).all(|(n, part)| part.iter().all(|byte| *byte == n)));
        };
        direct::within("sixteen megabytes", async { tokio::join!(feed, rest) }).await;
    }
}

#[tokio::test]
async fn forwarded_response_keeps_trailers() {
    let upstream = stub(|_| async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("42"));
        let frames = [Ok(Frame::data(Bytes::from_static(b"body"))), Ok(Frame::trailers(trailers))];
        let mut reply = Stub::reply(200, "");
        *reply.body_mut() = StreamBody::new(stream::iter(frames)).boxed_unsync();
        reply.headers_mut().insert("trailer", HeaderValue::from_static("x-checksum"));
        Ok(reply)
    })
    .await;
    let app = in_front_of(&upstream).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let answer: Answer = app.over(protocol).request(Method::GET, ELSEWHERE).header("te", "trailers").send().await;
        assert_eq!(answer.text(), "body");
        let checksum = answer.trailers.as_ref().and_then(|trailers| trailers.get("x-checksum"));
        assert_eq!(checksum, Some(&HeaderValue::from_static("42")), "over {protocol:?}");
    }
}

#[tokio::test]
async fn failed_write_is_not_retried_and_returns_502() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let upstream = stub(move |request: Request<Incoming>| {
        let tries = counted.clone();
        async move {
            let elsewhere = request.uri().path().starts_with("/elsewhere");
            let _ = request.into_body().collect().await;
            tries.fetch_add(usize::from(elsewhere), Ordering::SeqCst);
            Err::<direct::Reply, _>("gone without an answer".into())
        }
    })
    .await;
    let app = in_front_of(&upstream).await;
    for (n, method) in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].into_iter().enumerate() {
        let answer = app.request(method.clone(), ELSEWHERE).body("x").send().await;
        // The write may have been executed, so the response must not invite a retry.
        assert_eq!((answer.status, answer.header("retry-after")), (502, None), "{method}");
        assert_eq!(tries.load(Ordering::SeqCst), n + 1, "{method}");
    }
    let read = app.get(ELSEWHERE).await;
    assert_eq!((read.status, read.header("retry-after")), (503, Some("1")));
}

#[tokio::test]
async fn local_responses_copy_upstream_hsts_header() {
    let up = demo::upstream().pods(1).run().await;
    let behind = Behind::at(&up.url());
    let upstream = stub(move |request: Request<Incoming>| {
        let behind = behind.clone();
        async move {
            let mut answer = behind.answer(request).await?;
            answer.headers_mut().insert("strict-transport-security", HeaderValue::from_static("max-age=7"));
            Ok(answer)
        }
    })
    .await;
    let app = in_front_of(&upstream).await;
    let cached = app.get(&format!("{PODS}?resourceVersion=0")).await;
    assert_eq!((cached.is_cached(), cached.header("strict-transport-security")), (true, Some("max-age=7")));
    let refused = app.get(&format!("{PODS}?limit=x")).await;
    assert_eq!((refused.status, refused.header("strict-transport-security")), (400, Some("max-age=7")));
}

#[tokio::test]
async fn invalid_path_returns_400_like_go_server() {
    let upstream = echo().await;
    let app = in_front_of(&upstream).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let answer = app.over(protocol).get("/api/v1/pods%zz").await;
        assert_eq!((answer.status, answer.text().as_str()), (400, "400 Bad Request"));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        let closes = answer.header("connection").is_some_and(|connection| connection == "close");
        assert_eq!(closes, protocol == Protocol::Http1);
    }
    assert!(upstream.seen("/api/v1/pods%zz").is_empty());
}

/// Counts its live instances.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn client_disconnect_cancels_upstream_request() {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    let upstream = stub(move |request: Request<Incoming>| {
        let open = request.uri().path().ends_with("/log").then(|| Open::new(&counted));
        async move {
            let endless = stream::unfold(open, |open| async {
                tokio::task::yield_now().await;
                open.map(|open| (Ok(Frame::data(Bytes::from_static(&[b'x'; 4096]))), Some(open)))
            });
            let mut reply = Stub::reply(200, "");
            *reply.body_mut() = StreamBody::new(endless).boxed_unsync();
            Ok(reply)
        }
    })
    .await;
    let app = in_front_of(&upstream).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let path = "/api/v1/namespaces/default/pods/p/log?follow=true";
        let mut body = app.over(protocol).request(Method::GET, path).open().await.expect("a head").into_body();
        body.frame().await.expect("a frame").expect("a beginning");
        assert_eq!(open.load(Ordering::SeqCst), 1);
        drop(body);
        direct::eventually("the end upstream", || async { open.load(Ordering::SeqCst) == 0 }).await;
    }
}
