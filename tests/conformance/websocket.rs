//! Watches over WebSocket: the frames, the close and the handshake rules are the same as the apiserver's.

use std::ops::Deref;
use std::time::Instant;

use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use http::Request;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::bed::{self, Pair, Plan, Plane, RequestSpec, Target, log_line, normal, within};

fn request(target: &Target, path: &str, headers: &[(&'static str, &str)]) -> Request<()> {
    let url = format!("wss://{}{path}", target.host());
    let mut request = url.into_client_request().expect("a request");
    let token = format!("Bearer {}", target.identity.token);
    for (name, value) in headers.iter().chain(&[("authorization", token.as_str())]) {
        request.headers_mut().insert(*name, value.parse().expect("a header"));
    }
    request
}

/// Opens a watch, and checks the subprotocol in the 101 response.
pub async fn open(target: &Target, path: &str, accept: &str) -> WebSocketStream<TlsStream<TcpStream>> {
    let request = request(target, path, &[("origin", target.origin()), ("accept", accept)]);
    let opening = Box::pin(client_async(request, target.connect("http/1.1").await));
    within("a WebSocket opens", opening).await.unwrap_or_else(|error| panic!("{path}: {error}")).0
}

/// All messages before the close, and the close.
pub async fn messages(mut socket: WebSocketStream<TlsStream<TcpStream>>) -> (Vec<Message>, Option<(u16, String)>) {
    let mut messages = Vec::new();
    loop {
        match within("a WebSocket message", socket.next()).await {
            Some(Ok(Message::Close(close))) => {
                return (messages, close.map(|close| (close.code.into(), close.reason.to_string())));
            }
            Some(Ok(message)) => messages.push(message),
            Some(Err(error)) => panic!("after {} messages: {error}", messages.len()),
            None => return (messages, None),
        }
    }
}

/// Messages formatted as frames of an HTTP watch, for the comparison.
fn comparable(messages: &[Message]) -> Vec<String> {
    let frames = messages.iter().map(|message| match message {
        Message::Text(text) => bed::Frame::Json(text.as_bytes().to_vec().into()),
        Message::Binary(binary) => {
            let length = u32::try_from(binary.len()).expect("short").to_be_bytes();
            bed::Frame::Protobuf([&length, binary.as_ref()].concat().into())
        }
        other => panic!("not of a watch: {other:?}"),
    });
    frames.filter_map(|frame| normal::event(&frame)).collect()
}

/// Opens the same watch of the pair's configmaps at both, and checks that messages and close are equal. If the time of
/// one was up too early, both are opened again with twice the time. Returns the number of messages.
pub async fn same<P: Deref<Target = Plane>>(pair: &Pair<P>, query: &str, form: &str) -> usize {
    let mut path = pair.path(query);
    let [(direct, closed), (through, closes)] = loop {
        let messages_of = [pair.bed.target(), pair.proxy.target()].map(async |target: Target| {
            let started = Instant::now();
            let messages_of = messages(open(&target, &path, form).await).await;
            (comparable(&messages_of.0), started.elapsed().as_secs_f64(), messages_of)
        });
        let [direct, through] = join_all(messages_of).await.try_into().expect("two");
        let is_late = bed::is_late(&path, (&direct.0, direct.1), (&through.0, through.1));
        match bed::longer(&path) {
            Some(longer) if is_late => path = longer,
            _ => break [direct.2, through.2],
        }
    };
    assert_eq!(comparable(&through), comparable(&direct), "{query} {form}");
    assert_eq!(closes, closed, "{query} {form}");
    assert_eq!(closes, Some((1000, String::new())), "{query} {form}");
    if form == "application/json" {
        let whole = |message: &Message| message.to_text().is_ok_and(|text| text.ends_with('\n'));
        assert!(through.iter().all(whole), "a message ends with its newline");
    }
    through.len()
}

#[tokio::test]
async fn websocket_watch_frames_and_close_match_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    let version = pair.maps().await;
    pair.direct.patch(&pair.path("/cm-a"), json!({"data": {"more": "x"}})).await;
    pair.direct.delete(&pair.path("/cm-b")).await;
    pair.settle(pair.direct.version(&pair.path("")).await).await;
    let queries = [
        "?watch=1&timeoutSeconds=3".to_owned(),
        "?watch=1&timeoutSeconds=3&allowWatchBookmarks=1".to_owned(),
        format!("?watch=1&timeoutSeconds=3&resourceVersion={version}"),
        format!("?watch=1&timeoutSeconds=3&resourceVersion={version}&labelSelector=app%3Dnone"),
    ];
    let mut watches = Vec::new();
    for query in &queries {
        for form in ["application/json", "application/vnd.kubernetes.protobuf;stream=watch"] {
            watches.push(same(&pair, query, form));
        }
    }
    let compared: usize = join_all(watches).await.into_iter().sum();
    log_line(&format!("{compared} messages of {} watches compared", 2 * queries.len()));
}

#[tokio::test]
async fn websocket_watch_answers_pings_and_ends_on_client_close() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    for target in [pair.bed.target(), pair.proxy.target()] {
        let mut socket = open(&target, &pair.path("?watch=1"), "application/json").await;
        let listed = pair.direct.json(&pair.path("")).await["items"].as_array().map_or(0, Vec::len);
        for _ in 0..listed {
            within("an initial event", socket.next()).await.expect("open").expect("a message");
        }
        socket.send(Message::Ping(b"are you there"[..].into())).await.expect("sent");
        let pong = within("a pong", socket.next()).await.expect("open").expect("a message");
        assert_eq!(pong, Message::Pong(b"are you there"[..].into()));
        socket.send(Message::text("ignored")).await.expect("sent");
        let name = bed::unique("live");
        pair.create_map(&pair.namespace, &name).await;
        let event = within("a live event", socket.next()).await.expect("open").expect("a message");
        assert!(event.to_text().is_ok_and(|text| text.contains(&name)), "{event:?}");
        socket.close(None).await.expect("sent");
        within("the end", async { while let Some(Ok(_)) = socket.next().await {} }).await;
    }
    let open = || async { pair.proxy.metrics().await.sum("kube_fanout_watches_open", &[("protocol", "websocket")]) };
    bed::eventually("the proxy gives the watch up", async || (open().await == 0).then_some(())).await;
}

/// A marker header that removes the token, which every other request has.
const NO_TOKEN: &str = "no-token";

/// The status line, the relevant headers and the body of a handshake that may be refused.
async fn handshake(target: &Target, path: &str, headers: &[(&str, &str)]) -> (String, Vec<String>, String) {
    let token = ("authorization", "Bearer PLAIN");
    let with_token = (!headers.iter().any(|(name, _)| *name == NO_TOKEN)).then_some(token);
    let lines = headers.iter().copied().chain(with_token).filter(|(name, _)| *name != NO_TOKEN).map(|(name, value)| {
        let value = value.replace("PLAIN", &target.identity.token).replace("TOKEN", &encoded(&target.identity.token));
        let value = if value == "OWN" { target.origin().to_owned() } else { value };
        format!("{name}: {value}\r\n")
    });
    let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{}", target.host(), lines.collect::<String>());
    let mut stream = target.connect("http/1.1").await;
    stream.write_all(format!("{head}\r\n").as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // A refusal may leave the connection open, so its Content-Length determines its end.
    while !complete(&answer) {
        match within("an answer to a handshake", stream.read(&mut buffer)).await {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().to_owned();
    let meaning = ["upgrade:", "connection:", "sec-websocket-", "content-type:"];
    let named = lines.map(|line| {
        line.split_once(": ").map_or(line.to_owned(), |(name, value)| format!("{}: {value}", name.to_lowercase()))
    });
    // A connection that was to be upgraded is not reused, by either server.
    let named = named.filter(|line| line != "connection: close");
    let mut named: Vec<_> = named.filter(|line| meaning.iter().any(|name| line.starts_with(name))).collect();
    named.sort();
    let body = if status.contains("101") { String::new() } else { body.trim().to_owned() };
    (status, named, body)
}

fn complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    match length.and_then(|length| length.parse::<usize>().ok()) {
        _ if head.contains(" 101 ") => true,
        Some(length) => body.len() >= length,
        None => !chunked || body.ends_with("0\r\n\r\n"),
    }
}

fn encoded(token: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token)
}

#[tokio::test]
async fn websocket_handshakes_match_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let (upgrade, connection) = (("upgrade", "websocket"), ("connection", "Upgrade"));
    let (origin, version) = (("origin", "OWN"), ("sec-websocket-version", "13"));
    let protocols = |names: &'static str| ("sec-websocket-protocol", names);
    let whole = [upgrade, connection, key, version, origin];
    let with = |more: &[(&'static str, &'static str)]| [&whole[..], more].concat();
    let without = |name: &str| whole.into_iter().filter(|(other, _)| *other != name).collect::<Vec<_>>();
    let bearer = "base64url.bearer.authorization.k8s.io.TOKEN";
    let alone: &'static str = Box::leak(bearer.to_owned().into_boxed_str());
    let beside: &'static str = Box::leak(format!("{bearer}, base64.binary.k8s.io").into_boxed_str());
    let cases = [
        ("as it should be", with(&[]), "101"),
        ("without an Origin", without("origin"), "403"),
        ("an empty subprotocol", with(&[protocols("a,")]), "400"),
        ("one subprotocol", with(&[protocols("base64.binary.k8s.io")]), "101"),
        ("an unknown subprotocol", with(&[protocols("whatever")]), "101"),
        ("two subprotocols", with(&[protocols("a, b")]), "400"),
        ("two subprotocol headers", with(&[protocols("a"), protocols("b")]), "101"),
        ("another version", [&without("sec-websocket-version")[..], &[("sec-websocket-version", "8")]].concat(), "400"),
        ("no version", without("sec-websocket-version"), "400"),
        ("no key", without("sec-websocket-key"), "400"),
        ("a token as a subprotocol", with(&[(NO_TOKEN, ""), protocols(beside)]), "101"),
    ];
    // The apiserver refuses a token as the only subprotocol with 401. With `auth: none` the proxy does not refuse it
    // (docs/DIFFERENCES.md).
    let only =
        handshake(&pair.proxy.target(), &pair.path("?watch=1"), &with(&[(NO_TOKEN, ""), protocols(alone)])).await;
    assert!(only.0.contains("101") && !only.1.concat().contains("bearer"), "a token is not repeated: {only:?}");
    let mut differences = Vec::new();
    for (what, headers, expected) in &cases {
        let path = pair.path("?watch=1&timeoutSeconds=1");
        let direct = handshake(&pair.bed.target(), &path, headers).await;
        let through = handshake(&pair.proxy.target(), &path, headers).await;
        assert!(direct.0.contains(expected), "the apiserver, {what}: {direct:?}");
        if through != direct {
            differences.push(format!("{what}:\n  apiserver {direct:?}\n  proxy     {through:?}"));
        }
    }
    let yaml = with(&[("accept", "application/yaml")]);
    let bad = [("YAML", "?watch=1", &yaml), ("a bad selector", "?watch=1&labelSelector=a+in", &whole.to_vec())]
        .map(|(what, query, headers)| (what, pair.path(query), headers.clone()));
    for (what, path, headers) in &bad {
        let direct = handshake(&pair.bed.target(), path, headers).await;
        let through = handshake(&pair.proxy.target(), path, headers).await;
        if through != direct {
            differences.push(format!("{what}:\n  apiserver {direct:?}\n  proxy     {through:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    log_line(&format!("{} handshakes answered alike", cases.len() + bad.len()));
}

/// The apiserver requires an Origin header with any value. So does the proxy if a token authenticates the caller. If
/// access to the listener is enough, the proxy accepts only its own origin.
#[tokio::test]
async fn websocket_origin_check_with_token_matches_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let delegated = Plan::delegated(&pair.bed).start(&pair.bed).await;
    delegated.client().until_ok("its feed is filled", RequestSpec::get(&pair.path("?resourceVersion=0"))).await;
    for (origin, code) in [
        ("http://localhost", "101"),
        ("https://evil.example", "101"),
        ("file://", "101"),
        ("/", "101"),
        ("null", "403"),
        ("localhost", "403"),
        ("http://[", "403"),
    ] {
        let headers = [
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
            ("origin", origin),
        ];
        let path = pair.path("?watch=1&timeoutSeconds=1");
        let direct = handshake(&pair.bed.target(), &path, &headers).await;
        assert!(direct.0.contains(code), "the apiserver, {origin}: {direct:?}");
        assert_eq!(handshake(&delegated.target(), &path, &headers).await, direct, "{origin}");
        let through = handshake(&pair.proxy.target(), &path, &headers).await;
        assert!(through.0.contains("403") && through.2.contains("allowedOrigins"), "{origin}: {through:?}");
    }
}
