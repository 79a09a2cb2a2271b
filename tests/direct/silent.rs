//! Idle connections do not keep other clients out, and are closed (R-DOWNSTREAM-5, I3).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Request, request};
use http_body_util::BodyExt as _;
use kube_fanout::net::{ClientCertificates, ConnectionLimits, Listener, ListenerTls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
#[cfg(target_os = "linux")]
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
#[cfg(target_os = "linux")]
use tokio::time::{Instant, timeout};

use crate::direct::{Client, Dir, Listening, PODS, Protocol, Trust, eventually, within};
use crate::process::{Process, kubeconfig, metric};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);
const PLACES: usize = 40;
/// How many more connections may be there until they have authenticated.
const BEYOND: usize = PLACES / 4;

/// Limits under which only a new connection closes an idle one.
fn patient(connections_max: usize) -> ConnectionLimits {
    ConnectionLimits {
        connections_max,
        handshake_max: LONG,
        first_request_max: LONG,
        idle_max: LONG,
        header_max: LONG,
        ..ConnectionLimits::default()
    }
}

fn listener() -> Listener {
    Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a free port")
}

async fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
    }
    silent
}

/// Whether the server has closed the connection.
async fn ends(io: &mut TcpStream) -> bool {
    matches!(within("the end of a connection", io.read(&mut [0; 64])).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn connection_limit_evicts_oldest_silent_connection() {
    const ASKED: usize = 5;
    let listener = listener();
    let address = listener.local_address().expect("it is bound").to_string();
    let listening = Listening::start(listener, None, patient(PLACES));
    let mut silent = silent(&address, PLACES + BEYOND).await;
    for _ in 0..ASKED {
        assert_eq!(listening.client().get("/").await.status, 200);
    }
    assert!(ends(&mut silent[0]).await, "the oldest has gone");
    // At most one closed for each connection beyond the limit, because earlier requests have disconnected since.
    let kept = &mut silent[BEYOND + ASKED];
    kept.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it is open");
    let mut head = [0; 12];
    within("an answer", kept.read_exact(&mut head)).await.expect("it is answered");
    assert_eq!(&head, b"HTTP/1.1 200");
}

#[tokio::test]
async fn unfinished_tls_handshakes_do_not_block_new_clients() {
    let (dir, names) = (Dir::new(), vec!["127.0.0.1".to_owned()]);
    let tls = ListenerTls::self_signed(names, ClientCertificates::Requested).expect("a certificate");
    let ca = dir.file("ca.pem", tls.self_signed_pem().expect("we made it"));
    let listener = listener();
    let address = listener.local_address().expect("it is bound").to_string();
    let listening = Listening::start(listener, Some(tls), patient(PLACES));
    // Twice the connection limit, some with an unfinished handshake.
    let mut silent = silent(&address, 2 * PLACES).await;
    for io in &mut silent[PLACES..] {
        let _ = io.write_all(b"\x16\x03\x01\x02\x00\x01\x00").await;
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = listening.client().trusting(Some(Trust::in_file(&ca))).over(protocol);
        assert_eq!(client.get("/").await.status, 200, "{protocol:?}");
    }
    assert!(ends(&mut silent[0]).await, "the oldest has gone");
}

/// R-HOST-1: the remaining descriptors are for active clients and for upstream.
#[tokio::test]
async fn silent_connections_do_not_exhaust_descriptors() {
    const DESCRIPTORS: usize = 80;
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let process = Process::with_descriptors("-n", DESCRIPTORS, &kubeconfig(&dir, &up.url(), "")).await;
    let address = process.client().url().trim_start_matches("http://").to_owned();
    let silent = silent(&address, 2 * DESCRIPTORS).await;
    for path in [PODS, "/version"] {
        assert_eq!(process.client().get(path).await.status, 200, "{path}");
    }
    let displaced = metric(&process.metrics().await, "kube_fanout_connections_failed_total", "reason=\"evicted\"");
    assert!(displaced >= DESCRIPTORS as f64, "{displaced}");
    drop(silent);
}

/// R-HOST-1: a connection that arrives when there is no descriptor waits for one, and open connections are not
/// affected.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_connections_work_and_new_ones_wait_without_descriptors() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let process = Process::serve(&dir, &up.url(), &[]).await;
    let existing = process.client().multiplexed().await;
    let watches = [process.client().watch(PODS).initial_events().await, existing.watch(PODS).initial_events().await];
    for watch in &watches {
        watch.listed().await;
    }
    let before = process.limit_descriptors(Some(1));
    let newcomer = process.client();
    let asking = tokio::spawn(async move { newcomer.get(PODS).await.status });
    let address = process.client().url().trim_start_matches("http://").to_owned();
    let others = silent(&address, 20).await;
    let (began, spent) = (Instant::now(), process.cpu_seconds());
    for n in 0..20 {
        let made = up.create_pod("default", &format!("p{n}"));
        for watch in &watches {
            watch.reached(made).await;
        }
        assert!(existing.get(&format!("{PODS}?resourceVersion=0")).await.is_cached());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (spent, took) = (process.cpu_seconds() - spent, began.elapsed().as_secs_f64());
    assert!(spent < 2.0 + took / 5.0, "{spent} s of {took} s: it does not retry in a busy loop");
    assert!(!asking.is_finished(), "no connection is accepted");
    drop(others);
    process.limit_descriptors(before);
    assert_eq!(within("the newcomer", asking).await.expect("no panic"), 200);
    for watch in &watches {
        watch.reached(up.create_pod("default", &format!("behind-{}", up.revision()))).await;
        assert!(watch.is_open());
    }
    process.signal("TERM");
    let log = process.ended().await.stderr;
    let lines = log.matches("cannot accept connections").count() as f64;
    assert!(lines >= 1.0 && lines <= 1.0 + began.elapsed().as_secs_f64() / 60.0, "at most one line a minute: {log}");
}

/// Whether this holds while a process has no free descriptor. If a lower descriptor number becomes free at the last
/// moment, the limit is below the silent connections' numbers. Then all of them close without making room. So each
/// attempt opens some more connections, of which the first fill such gaps.
#[cfg(target_os = "linux")]
async fn without_descriptor(process: &Process, more: &Mutex<Vec<TcpStream>>, so: impl Future<Output = bool>) -> bool {
    const ATTEMPT_MAX: Duration = Duration::from_secs(3);
    more.lock().await.extend(silent(process.client().url().trim_start_matches("http://"), 40).await);
    let before = process.leave_no_descriptor();
    let is_so = timeout(ATTEMPT_MAX, so).await.unwrap_or(false);
    process.limit_descriptors(before);
    is_so
}

/// R-HOST-1: no new client displaces them, and still they do not take descriptors that others need.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn admin_and_upstream_connections_evict_silent_connections() {
    const SILENT: usize = 200;
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let process = Process::serve(&dir, &up.url(), &[]).await;
    let existing = process.client().multiplexed().await;
    let watch = existing.watch(PODS).initial_events().await;
    watch.listed().await;
    let address = process.client().url().trim_start_matches("http://").to_owned();
    let mut silent = silent(&address, SILENT).await;
    let read = async |name, label| metric(&process.metrics().await, name, label);
    let displaced = async || read("kube_fanout_connections_failed_total", "reason=\"evicted\"").await;
    // The test's own connection and the prober's exist too.
    let are_there = || async { read("kube_fanout_connections_open", "").await > SILENT as f64 + 1.0 };
    eventually("they are there", are_there).await;
    assert!(displaced().await < 1.0);
    // An earlier connection may be about to free its descriptor, so it may take several attempts to have none left.
    let more = Mutex::new(Vec::new());
    // An attempt in which all closed shows nothing.
    let a_few_went = async |before: f64| (1.0..SILENT as f64).contains(&(displaced().await - before));
    let admin_has_none = || async {
        let before = displaced().await;
        let is_ready = without_descriptor(&process, &more, Box::pin(process.is_ready())).await;
        is_ready && a_few_went(before).await
    };
    eventually("the admin pages needed a descriptor", admin_has_none).await;
    let logs = AtomicU32::new(0);
    let upstream_has_none = || async {
        // Each followed log has an upstream connection of its own while it is requested.
        let path = "/api/v1/namespaces/default/pods/p0/log?follow=true";
        let count = 1 + logs.fetch_add(1, Ordering::Relaxed);
        let are_answered = async {
            let answers = join_all((0..count).map(|_| existing.get(path))).await;
            answers.iter().all(|log| log.status < 500)
        };
        let before = displaced().await;
        without_descriptor(&process, &more, Box::pin(are_answered)).await && a_few_went(before).await
    };
    eventually("upstream needed a descriptor", upstream_has_none).await;
    assert!(ends(&mut silent[0]).await, "the oldest has gone");
    watch.reached(up.create_pod("default", "behind")).await;
}

/// The soft descriptor limit does not limit connections.
#[tokio::test]
async fn connections_up_to_the_hard_descriptor_limit_are_accepted() {
    const SOFT: usize = 80;
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let process = Process::with_descriptors("-Sn", SOFT, &kubeconfig(&dir, &up.url(), "")).await;
    let address = process.client().url().trim_start_matches("http://").to_owned();
    let silent = silent(&address, 2 * SOFT).await;
    assert_eq!(process.client().get(PODS).await.status, 200);
    let displaced = metric(&process.metrics().await, "kube_fanout_connections_failed_total", "reason=\"evicted\"");
    assert!(displaced == 0.0, "{displaced}");
    drop(silent);
    process.signal("TERM");
    let stderr = process.ended().await.stderr;
    assert_eq!(stderr.matches("raised the file descriptor limit").count(), 1, "{stderr}");
}

#[tokio::test]
async fn connection_limit_evicts_idle_connection_but_no_stream() {
    let listening = Listening::start(listener(), None, patient(PLACES));
    let mut streams = Vec::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = listening.client().over(protocol);
        let open = client.request(Method::GET, "/stream").open().await.expect("a stream");
        streams.push((client, open.into_body()));
    }
    let mut idle = Vec::new();
    for _ in 0..PLACES + BEYOND {
        let client = listening.client().multiplexed().await;
        assert_eq!(client.get("/").await.status, 200);
        idle.push(client);
    }
    let first = &idle[0];
    let gone = || async { first.request(Method::GET, "/").try_send().await.is_err() };
    eventually("the one that has idled for longest has gone", gone).await;
    listening.send_to_all("still here");
    for (_, stream) in &mut streams {
        let frame = within("a word", stream.frame()).await.expect("it continues").expect("unbroken");
        assert_eq!(frame.into_data().expect("data"), "still here");
    }
}

/// Sends a request on a new connection whose window stays closed, and waits for the response head. Returns the
/// connection.
pub async fn unread(client: &Client, request: request::Builder) -> JoinHandle<Result<(), h2::Error>> {
    let io = client.over(Protocol::Http2).connect().await.expect("a connection");
    let mut builder = h2::client::Builder::new();
    let (mut sender, connection) = builder.initial_window_size(0).handshake::<_, Bytes>(io).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let (answer, _) = sender.send_request(request.body(()).expect("a request"), true).expect("it is sent");
    let answer = within("a head", answer).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    // Both are kept, because dropping either would reset the stream.
    tokio::spawn(async move {
        let (_sender, mut body) = (sender, answer.into_body());
        assert!(body.data().await.is_none_or(|read| read.is_err()), "nothing fits into the window");
    });
    connection
}

/// The same on a listener without a proxy.
async fn unread_root(listening: &Listening) -> JoinHandle<Result<(), h2::Error>> {
    unread(&listening.client(), Request::get("http://localhost/")).await
}

#[tokio::test]
async fn connection_limit_evicts_unread_connection() {
    let listening = Listening::start(listener(), None, patient(PLACES));
    let mut kept = Vec::new();
    for _ in 0..PLACES + BEYOND {
        kept.push(unread_root(&listening).await);
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        assert_eq!(listening.client().over(protocol).get("/").await.status, 200, "{protocol:?}");
    }
    let _ = within("the oldest has gone", kept.swap_remove(0)).await.expect("no panic");
}

#[tokio::test]
async fn connection_with_unread_response_closes_after_idle_timeout() {
    let limits = ConnectionLimits { idle_max: Duration::from_millis(100), ..ConnectionLimits::default() };
    let listening = Listening::start(listener(), None, limits);
    let _ = within("its end", unread_root(&listening).await).await.expect("no panic");
}

#[tokio::test]
async fn idle_timeout_closes_connection_without_open_stream() {
    let limits = ConnectionLimits { idle_max: Duration::from_millis(100), ..ConnectionLimits::default() };
    let listening = Listening::start(listener(), None, limits);
    let (idle, busy) = (listening.client().multiplexed().await, listening.client().multiplexed().await);
    assert_eq!(idle.get("/").await.status, 200);
    let mut stream = busy.request(Method::GET, "/stream").open().await.expect("a stream").into_body();
    let asks = AtomicU32::new(0);
    let gone = || async {
        // A request makes the connection active, so the pauses grow.
        tokio::time::sleep(Duration::from_millis(10) * asks.fetch_add(1, Ordering::Relaxed)).await;
        idle.request(Method::GET, "/").try_send().await.is_err()
    };
    eventually("it takes no more requests", gone).await;
    listening.send_to_all("still here");
    assert!(within("a word", stream.frame()).await.expect("it continues").is_ok());
    assert_eq!(busy.get("/").await.status, 200);
}

#[tokio::test]
async fn closing_connection_ignores_pipelined_requests() {
    let listening = Listening::start(listener(), None, ConnectionLimits::default());
    let io = listening.client().over(Protocol::Http2).connect().await.expect("a connection");
    let (sender, connection) = h2::client::handshake(io).await.expect("HTTP/2");
    let mut sender = sender.ready().await.expect("it takes requests");
    let request = |path| Request::get(format!("http://localhost{path}")).body(()).expect("a request");
    // All are sent before the first is answered.
    let (first, _) = sender.send_request(request("/leave"), true).expect("it is sent");
    let (second, _) = sender.send_request(request("/"), true).expect("it is sent");
    let connection = tokio::spawn(connection);
    assert_eq!(within("an answer", first).await.expect("the last one").status(), 200);
    let refused = within("a refusal", second).await.expect_err("it was not processed");
    assert_eq!(refused.reason(), Some(h2::Reason::REFUSED_STREAM), "it may be sent again");
    drop(sender);
    let _ = within("the end", connection).await;
    let mut io = listening.client().connect().await.expect("a connection");
    let piped = ["/leave", "/"].map(|path| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).concat();
    io.write_all(piped.as_bytes()).await.expect("it is sent");
    let mut received = Vec::new();
    let _ = within("the end", io.read_to_end(&mut received)).await;
    let received = String::from_utf8(received).expect("text");
    assert_eq!(received.matches("HTTP/1.1 200").count(), 1, "{received}");
    assert_eq!(listening.requests(), 2, "of four");
}
