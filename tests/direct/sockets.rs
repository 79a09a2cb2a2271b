//! Upgrades: a watch's handshake as the apiserver's library expects it, and tunnels to upstream (R-WS-1; P3).

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::direct::{self, App, Client, Ended, PODS, Protocol, Stub, stub, within};

const HANDSHAKE: [(&str, &str); 5] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("origin", "http://localhost"),
];

/// Sends a handshake by hand. `change` replaces headers, and removes those with an empty value.
async fn handshake(client: &Client, path: &str, change: &[(&str, &str)]) -> String {
    let kept = HANDSHAKE.iter().filter(|(name, _)| change.iter().all(|(changed, _)| changed != name));
    let lines = kept.chain(change.iter().filter(|(_, value)| !value.is_empty()));
    let lines: Vec<_> = lines.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut io = client.connect().await.expect("a connection");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{}\r\n", lines.concat());
    io.write_all(head.as_bytes()).await.expect("a request is sent");
    let mut answer = Vec::new();
    within("a head", async {
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut part = [0; 1024];
            let read = io.read(&mut part).await.expect("an answer");
            assert_ne!(read, 0, "closed after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..read]);
        }
    })
    .await;
    String::from_utf8_lossy(&answer).to_lowercase()
}

fn watch_path(rv: u64) -> String {
    format!("{PODS}?watch=true&resourceVersion={rv}")
}

#[tokio::test]
async fn websocket_handshake_is_validated_like_apiserver() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    let path = watch_path(up.revision());
    let plain = handshake(&app, &path, &[]).await;
    assert!(plain.starts_with("http/1.1 101"), "{plain}");
    assert!(plain.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{plain}");
    for absent in ["sec-websocket-protocol", "content-type", "cache-control", "sec-websocket-extensions"] {
        assert!(!plain.contains(absent), "{plain}");
    }
    let one = handshake(&app, &path, &[("sec-websocket-protocol", "base64.binary.k8s.io")]).await;
    assert!(one.starts_with("http/1.1 101") && one.contains("sec-websocket-protocol: base64.binary.k8s.io"), "{one}");
    for (change, code) in [
        (("origin", ""), "403"),
        (("sec-websocket-version", "12"), "400"),
        (("sec-websocket-key", ""), "400"),
        (("sec-websocket-protocol", "a, b"), "400"),
    ] {
        let refused = handshake(&app, &path, &[change]).await;
        assert!(refused.starts_with(&format!("http/1.1 {code}")), "{change:?}: {refused}");
    }
    let upper = handshake(&app, &path, &[("upgrade", "WebSocket"), ("connection", "keep-alive, upgrade")]).await;
    assert!(upper.starts_with("http/1.1 101"), "{upper}");
}

#[tokio::test]
async fn invalid_websocket_watch_is_refused_before_upgrade() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    for (query, code) in [("labelSelector=a%20in", 400), ("sendInitialEvents=true", 422), ("resourceVersion=abc", 500)]
    {
        let path = format!("{PODS}?{query}");
        let refused = app.watch(&path).over(Protocol::WebSocket).open().await.err().expect("a refusal");
        assert_eq!(refused.status, code, "{query}");
    }
}

#[tokio::test]
async fn websocket_watch_handles_ping_text_and_close() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    let mut request = format!("ws://localhost{}", watch_path(up.revision())).into_client_request().expect("a request");
    request.headers_mut().insert("origin", "http://localhost".parse().expect("a value"));
    let io = app.connect().await.expect("a connection");
    let (mut socket, _) = tokio_tungstenite::client_async(request, io).await.expect("a watch");
    socket.send(Message::Text("who are you?".into())).await.expect("sent");
    socket.send(Message::Ping(Bytes::from_static(b"there?"))).await.expect("sent");
    let pong = within("a pong", socket.next()).await.expect("a message").expect("a whole one");
    assert_eq!(pong, Message::Pong(Bytes::from_static(b"there?")));
    up.create_pod("default", "seen");
    let event = within("an event", socket.next()).await.expect("a message").expect("a whole one");
    assert!(event.is_text() && event.to_text().is_ok_and(|text| text.ends_with("}\n")));
    app.until_feed("pods", "one reader", |feed| feed["readers"] == 1).await;
    socket.close(None).await.expect("closed");
    app.until_feed("pods", "no reader", |feed| feed["readers"] == 0).await;
}

#[tokio::test]
async fn oversized_websocket_message_ends_only_its_watch() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    let other = app.watch(PODS).from(up.revision()).over(Protocol::WebSocket).await;
    let mut request = format!("ws://localhost{}", watch_path(up.revision())).into_client_request().expect("a request");
    request.headers_mut().insert("origin", "http://localhost".parse().expect("a value"));
    let io = app.connect().await.expect("a connection");
    let (mut socket, _) = tokio_tungstenite::client_async(request, io).await.expect("a watch");
    app.until_feed("pods", "two readers", |feed| feed["readers"] == 2).await;
    let _ = socket.send(Message::Binary(vec![0; 1 << 20].into())).await;
    app.until_feed("pods", "one reader", |feed| feed["readers"] == 1).await;
    other.reached(up.create_pod("default", "seen")).await;
}

/// An upstream that upgrades `/…/exec` to a tunnel that sends a greeting and echoes, and refuses `/…/attach`.
async fn tunnels() -> (Stub, App) {
    let upstream = stub(|mut request: Request<Incoming>| async move {
        let protocol = request.headers().get("upgrade").cloned();
        let (true, Some(protocol)) = (request.uri().path().ends_with("/exec"), protocol) else {
            return Ok(Stub::reply(403, "no tunnel for you"));
        };
        let upgrade = hyper::upgrade::on(&mut request);
        drop(tokio::spawn(async move {
            let mut io = TokioIo::new(upgrade.await.expect("an upgrade"));
            io.write_all(b"hello ").await.expect("written");
            let (mut from, mut to) = tokio::io::split(io);
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.write_all(b" bye").await;
            let _ = to.shutdown().await;
        }));
        let mut reply: Response<_> = Stub::reply(101, "");
        reply.headers_mut().insert("upgrade", protocol);
        reply.headers_mut().insert("connection", "Upgrade".parse()?);
        reply.headers_mut().insert("x-stream-protocol-version", "v5.channel.k8s.io".parse()?);
        Ok(reply)
    })
    .await;
    let app = direct::in_front_of(&upstream.url()).with(|config| config.serve.exec_on_loopback = true).run().await;
    (upstream, app)
}

/// A caller identified only by a local port cannot run commands in a pod (docs/SECURITY.md, "Ports without
/// authentication").
#[tokio::test]
async fn exec_and_attach_on_loopback_port_return_403() {
    let upstream = stub(|_| async { Ok(Stub::reply(200, "ran")) }).await;
    let app = direct::in_front_of(&upstream.url()).run().await;
    for verb in ["exec", "attach"] {
        let path = EXEC.replace("/exec", &format!("/{verb}"));
        let answer = app.get(&path).await;
        assert_eq!(answer.status, 403, "{verb}: {}", answer.text());
        assert!(answer.text().contains("use a unix socket, or set execOnLoopback"), "{}", answer.text());
        assert_eq!(upstream.seen("/api/v1/namespaces/default/pods/p/").len(), 0);
    }
    let answer = app.get(&EXEC.replace("/exec", "/log")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ran"));
}

#[tokio::test]
async fn tunnel_paths_on_loopback_require_exec_on_loopback() {
    let upstream = stub(|_| async { Ok(Stub::reply(200, "reached")) }).await;
    let app = direct::in_front_of(&upstream.url()).unix().run().await;
    let loopback_app =
        direct::in_front_of(&upstream.url()).with(|config| config.serve.exec_on_loopback = true).run().await;
    let within = "/api/v1/namespaces/default";
    for path in [
        format!("{within}/pods/p/portforward?ports=80"),
        format!("{within}/pods/p/proxy"),
        format!("{within}/pods/https:p:443/proxy/a?b=c"),
        format!("{within}/services/s/proxy/"),
        "/api/v1/nodes/n/proxy/run/default/p/c?cmd=id".to_owned(),
        "/api/v1/proxy/nodes/n/metrics".to_owned(),
        format!("{within}/pods/p%2Fexec?command=sh"),
        format!("{within}/pods/p/%2565xec?command=sh"),
        "//api/v1/namespaces/default/pods/p//exec".to_owned(),
        format!("{within}/pods/p/log/../exec"),
        format!("/version/..{within}/pods/p/Exec"),
        "/api/v1%252Fnodes%252Fn%252Fproxy/watch".to_owned(),
    ] {
        let route = path.split('?').next().expect("a path");
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
                let answer = app.over(protocol).request(method.clone(), &path).send().await;
                assert_eq!(answer.refusal(), (403, "Forbidden".to_owned()), "{method} {path}");
                assert!(answer.text().contains("execOnLoopback"), "{}", answer.text());
            }
        }
        assert!(upstream.seen(route).is_empty(), "{path}");
        for client in [&app.listener(1), &loopback_app] {
            assert_eq!(client.get(&path).await.text(), "reached", "{path}");
        }
    }
    for path in ["/api/v1/namespaces/proxy/pods/exec", "/api/v1/namespaces/default/services/proxy", "/proxy"] {
        assert_eq!(app.get(path).await.status, 200, "{path}");
    }
}

const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec?command=sh&stdin=1";

#[tokio::test]
async fn tunnel_forwards_all_bytes_and_half_close() {
    let (upstream, app) = tunnels().await;
    for protocol in ["websocket", "SPDY/3.1"] {
        let mut io = app.connect().await.expect("a connection");
        let upgrade = format!("connection: upgrade\r\nupgrade: {protocol}\r\n");
        let more = "x-stream-protocol-version: v5.channel.k8s.io\r\n\r\n";
        let head = format!("GET {EXEC} HTTP/1.1\r\nhost: localhost\r\n{upgrade}{more}");
        io.write_all(head.as_bytes()).await.expect("sent");
        let sent: Vec<u8> = (0..200_000u32).map(|n| u8::try_from(n % 251).expect("small")).collect();
        let (mut from, mut to) = tokio::io::split(io);
        let sending = async {
            to.write_all(&sent).await.expect("sent");
            to.shutdown().await.expect("half closed");
        };
        let mut received = Vec::new();
        let receiving = from.read_to_end(&mut received);
        let ((), read) = within("the tunnel's life", async { tokio::join!(sending, receiving) }).await;
        read.expect("a clean end");
        let end = received.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
        assert!(head.starts_with("http/1.1 101") && head.contains(&format!("upgrade: {}", protocol.to_lowercase())));
        assert!(head.contains("x-stream-protocol-version: v5.channel.k8s.io"));
        let expected = [b"hello ".as_slice(), &sent, b" bye"].concat();
        assert!(received[end..] == expected, "{protocol}: {} bytes of {}", received.len() - end, expected.len());
    }
    assert_eq!(upstream.seen("/api/v1/namespaces/default/pods/p/exec").len(), 2);
}

#[tokio::test]
async fn refused_tunnel_returns_403_and_tunnels_no_bytes() {
    let (upstream, app) = tunnels().await;
    let mut io = app.connect().await.expect("a connection");
    let path = EXEC.replace("/exec", "/attach");
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n{smuggled}"
    );
    io.write_all(head.as_bytes()).await.expect("sent");
    let mut received = Vec::new();
    let mut part = [0; 4096];
    within("the refusal", async {
        while !String::from_utf8_lossy(&received).contains("no tunnel for you") {
            let read = io.read(&mut part).await.expect("an answer");
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&received));
            received.extend_from_slice(&part[..read]);
        }
    })
    .await;
    assert!(String::from_utf8_lossy(&received).starts_with("HTTP/1.1 403"));
    drop(io);
    let smuggled = upstream.seen("/smuggled");
    // It may be forwarded as a request of its own, which the proxy has checked; never as bytes of a tunnel.
    assert!(smuggled.iter().all(|head| head.headers.contains_key("kube-fanout-hops")));
}

#[tokio::test]
async fn forwarded_websocket_watch_returns_upstream_response() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let refused = app.watch(PODS).accept(table).over(Protocol::WebSocket).open().await;
    // The demo upstream does not upgrade: its plain response is returned, not a broken connection.
    let answer = refused.err().expect("the demo upstream's plain answer");
    assert_eq!(answer.status, 200);
    // The feed is synced first, so that this takes no time from the watch's one second.
    assert!(app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached());
    let watch = app.watch(PODS).from(up.revision()).timeout_seconds(1).over(Protocol::WebSocket).await;
    assert_eq!(watch.ended().await, Ended::Clean);
}
