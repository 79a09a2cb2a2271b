//! Credentials and object contents appear in no log, at any level (R-THREAT-15).

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::direct::{self, Behind, Client, Dir, Protocol, Stub, stub, within};
use crate::process::{Process, kubeconfig};

/// Part of every text that must not appear in logs.
const CANARY: &str = "CANARY";
const SECRET: &str = "CANARYsecret";
const GOOD: &str = "CANARYgood";
const BAD: &str = "CANARYbad";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Ways to present credentials, or to impersonate.
fn credentials() -> Vec<Vec<(&'static str, String)>> {
    let header = |name, value: String| vec![(name, value)];
    let bearer = |token: &str| header("authorization", format!("Bearer {token}"));
    let basic = BASE64_STANDARD.encode("CANARYname:CANARYword");
    let impersonated = [("impersonate-user", "CANARYuser".to_owned()), ("impersonate-group", "CANARYgroup".to_owned())];
    vec![
        vec![],
        bearer(GOOD),
        bearer(BAD),
        header("authorization", format!("Basic {basic}")),
        header("authorization", CANARY.to_owned()),
        header("cookie", "session=CANARYcookie".to_owned()),
        impersonated.to_vec(),
        [bearer(GOOD), impersonated.to_vec()].concat(),
        [bearer(GOOD), bearer(BAD)].concat(),
        [bearer(GOOD), header("connection", "authorization".to_owned())].concat(),
        header("x-remote-user", "CANARYremote".to_owned()),
        header("impersonate-extra-scopes", "CANARYextra".to_owned()),
        header("sec-websocket-protocol", format!("{BEARER}{}", BASE64_URL_SAFE_NO_PAD.encode(GOOD))),
    ]
}

const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// Paths and their Accept headers.
const READS: [(&str, &str); 14] = [
    (SECRETS, "application/json"),
    ("/api/v1/secrets?limit=1", "application/json"),
    ("/api/v1/namespaces/default/secrets/s", "application/json"),
    ("/api/v1/namespaces/default/secrets/none", "application/json"),
    (SECRETS, "application/json;as=Table;g=meta.k8s.io;v=v1"),
    (SECRETS, "application/yaml"),
    ("/api/v1/secrets?watch=1&timeoutSeconds=1&resourceVersion=0", "application/json"),
    (MAPS, "application/json"),
    ("/api/v1/namespaces/default/configmaps/m?token=CANARYquery&access_token=CANARYquery", "application/json"),
    ("/api/v1/configmaps?limit=nonsense", "application/json"),
    ("/api/v1/configmaps?watch=1&resourceVersion=nonsense", "application/json"),
    ("/apis/none.example/v1/nones", "application/json"),
    ("/version", "application/json"),
    ("/api/v1/%zz", "application/json"),
];

/// Requests everything with every credential. Returns the status codes seen, and whether the secret contents were
/// served.
async fn drive(client: &Client) -> (Vec<u16>, bool) {
    let (codes, contents) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = client.over(protocol);
        // Concurrent, because one of the reads takes a second.
        let requests = credentials().into_iter().map(async |headers| {
            let calls = READS.iter().map(|(path, accept)| {
                // HTTP/2 does not allow this header, and hyper refuses it before sending.
                let headers = headers.iter().filter(|(name, _)| protocol == Protocol::Http1 || *name != "connection");
                let call = client.request(Method::GET, path).header("accept", accept);
                headers.fold(call, |call, (name, value)| call.header(name, value)).try_send()
            });
            for answer in join_all(calls).await.into_iter().flatten() {
                codes.lock().push(answer.status);
                if answer.is_cached() && answer.text().contains(&BASE64_STANDARD.encode(SECRET)) {
                    contents.store(true, Ordering::Relaxed);
                }
            }
            let writing = client.request(Method::POST, SECRETS).header("content-type", "application/json");
            let writing = headers.iter().fold(writing, |call, (name, value)| call.header(name, value));
            let written = writing.body("{\"data\": \"CANARYbody\"").try_send().await;
            codes.lock().extend(written.map(|answer| answer.status));
        });
        join_all(requests).await;
    }
    (codes.into_inner(), contents.into_inner())
}

/// Sends raw bytes on a new connection; returns when a response has arrived.
async fn send_raw(client: &Client, text: &str) -> String {
    let mut socket = client.connect().await.expect("a connection");
    socket.write_all(text.as_bytes()).await.expect("it is sent");
    let mut answer = vec![0; 4096];
    let read = within("an answer", socket.read(&mut answer)).await.unwrap_or_default();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// Sends what hyper would not send.
async fn drive_raw(client: &Client) {
    let token = BASE64_URL_SAFE_NO_PAD.encode(GOOD);
    let upgrade = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://localhost\r\n";
    let protocols = [format!("{BEARER}{token}, v"), format!("{BEARER}{token}"), format!("{BEARER}%CANARY%, v")];
    for path in [format!("{SECRETS}?watch=1"), format!("{SECRETS}/s/none"), "/api/v1/watch".to_owned()] {
        for protocol in &protocols {
            let head = format!("GET {path} HTTP/1.1\r\n{upgrade}Sec-WebSocket-Protocol: {protocol}\r\n\r\n");
            assert!(send_raw(client, &head).await.starts_with("HTTP/1.1 "), "{head}");
        }
    }
    for head in [
        "GET /CANARY\u{1b}[31m HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer CANARY\u{7}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer CANARY\r\n\r\n",
        "CANARY\r\n\r\n",
        "GET /api/v1/a%0d%0a2026-01-01%1b%5b31m HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        send_raw(client, head).await;
    }
}

/// An upstream that accepts one token and lets its bearer read everything; the demo answers all other requests.
async fn judging(up: &RunningDemoApiserver) -> Stub {
    let behind = Behind::at(&up.url());
    stub(move |request: Request<Incoming>| {
        let behind = behind.clone();
        async move {
            let path = request.uri().path().to_owned();
            if request.method() == Method::POST && path.ends_with("reviews") {
                let review: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
                let mut reply = Stub::reply(201, judged(review).to_string());
                reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                return Ok(reply);
            }
            behind.answer(request).await
        }
    })
    .await
}

fn judged(mut review: Value) -> Value {
    let user = json!({"username": "ada", "groups": ["system:authenticated"]});
    review["status"] = match review["kind"].as_str() {
        Some("TokenReview") if review["spec"]["token"] == GOOD => json!({"authenticated": true, "user": user}),
        Some("TokenReview") => json!({"authenticated": false}),
        Some("SubjectAccessReview") => json!({"allowed": review["spec"]["user"] == "ada", "reason": "by the test"}),
        _ => json!({"userInfo": {"username": "proxy"}}),
    };
    review
}

/// An upstream whose objects contain canaries.
async fn planted() -> RunningDemoApiserver {
    let up = demo::upstream().pods(3).run().await;
    let data = BASE64_STANDARD.encode(SECRET);
    let annotations = json!({"note": "CANARYannotation"});
    for (path, object) in [
        (SECRETS, json!({"metadata": {"name": "s", "annotations": annotations}, "data": {"key": data}})),
        (MAPS, json!({"metadata": {"name": "m", "annotations": annotations}, "data": {"key": SECRET}})),
    ] {
        let created =
            direct::upstream_client(&up).request(Method::POST, path).header("content-type", "application/json");
        let created = created.body(object.to_string()).send().await;
        assert_eq!(created.status, 201, "{}", created.text());
    }
    up
}

/// A kubeconfig with a canary as its token.
fn with_token(dir: &Dir, url: &str) -> String {
    let path = kubeconfig(dir, url, "");
    let text = fs::read_to_string(&path).expect("readable").replace("user: {}", "user: {token: CANARYproxy}");
    fs::write(&path, text).expect("writable");
    path.to_str().expect("a path").to_owned()
}

/// Fails if the text contains a canary in any encoding.
fn assert_clean(what: &str, text: &str) {
    let spelled = |text: &str| [BASE64_STANDARD.encode(text), BASE64_URL_SAFE_NO_PAD.encode(text)];
    let basic = spelled("CANARYname:CANARYword");
    let found = [spelled(SECRET), spelled(GOOD), basic].concat().into_iter().chain([CANARY.to_owned()]);
    for canary in found {
        let line = text.lines().find(|line| line.contains(&canary));
        assert!(line.is_none(), "{what} shows {canary}: {}", line.unwrap_or_default());
    }
    assert!(!text.contains('\u{1b}'), "{what} shows control characters");
}

async fn nothing_is_seen(auth: &str, format: &str) -> String {
    let up = planted().await;
    let stub = judging(&up).await;
    let dir = Dir::new();
    let (log, audit) = (dir.join("log"), dir.join("audit"));
    let config = dir.file("config.yaml", &format!("drain: 100ms\nlog: {{format: {format}}}\nauth: {auth}\n"));
    let text = |path: &Path| path.to_str().expect("a path").to_owned();
    let (upstream, audit_log, config) = (with_token(&dir, &stub.url()), text(&audit), text(&config));
    let arguments = ["--kubeconfig", &upstream, "--config", &config, "--audit-log", &audit_log];
    let process = Process::traced(&log, &[&arguments[..], &["--cache-sensitive", "secrets"]].concat()).await;
    let client = process.client();
    // The first reads may arrive before the feed exists.
    let warm = client.request(Method::GET, SECRETS).header("authorization", &format!("Bearer {GOOD}"));
    assert_eq!(warm.send().await.status, 200);
    let (codes, contents) = drive(&client).await;
    drive_raw(&client).await;
    assert!(contents, "the Secret was never served");
    for code in [200, 400, 404] {
        assert!(codes.contains(&code), "{code} was not seen: {codes:?}");
    }
    for page in ["/metrics", "/debug/feeds", "/debug/cost", "/readyz", "/livez"] {
        assert_clean(page, &process.admin(page).await);
    }
    process.signal("TERM");
    let output = process.ended().await;
    assert_eq!(output.code, Some(0));
    assert_clean("standard output", &output.stdout);
    let (log, audit) = (fs::read_to_string(&log).expect("a log"), fs::read_to_string(&audit).expect("a log"));
    assert!(log.contains("DEBUG") && log.contains("response sent"), "nothing was logged");
    assert!(!log.contains("panicked"), "{log}");
    assert_clean("the log", &log);
    assert!(audit.contains("\"secrets\""), "nothing was recorded");
    for line in audit.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).expect("JSON")["kind"], "Event");
    }
    // An audit log names users, but a credential is never a user name.
    assert_clean("the audit log", &audit);
    log
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_contain_no_credentials_or_content_without_auth() {
    let log = nothing_is_seen("none", "json").await;
    assert!(log.lines().count() > 1);
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_contain_no_credentials_or_content_with_delegated_auth() {
    let log = nothing_is_seen("delegated", "text").await;
    assert!(log.lines().count() > 1 && log.lines().all(|line| line.starts_with("20")), "a path injected a log line");
}
