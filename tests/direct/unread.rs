//! Requests and responses that are not streams have a time limit, even if a client does not read or write them. Their
//! permits are released, and a cut response never looks complete. Unread responses hold no more memory than is
//! accounted.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use demo::RunningDemoApiserver;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use kube_fanout::auth::AuthMode;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::sync::watch;

use crate::direct::{
    self, App, CONFIGMAPS, Client, Protocol, Reply, Stub, eventually, eventually_in_time, stub, within,
};
use crate::shut::{LARGE, MIDDLING, Shut, with_objects};

/// Time limit of each operation: long enough to observe a full limit, even on a busy machine.
const MAX: Duration = Duration::from_secs(2);
static PIECE: [u8; 16 << 10] = [b'a'; 16 << 10];
const LONG: &str = "/long";
const SHORT: &str = "/short";
const POSTED: &str = "/api/v1/namespaces/default/pods";
const LOG: &str = "/api/v1/namespaces/default/pods/p/log";

/// Counts live instances.
struct Guest(watch::Sender<usize>);

impl Guest {
    fn arrive(guests: &watch::Sender<usize>) -> Self {
        guests.send_modify(|guests| *guests += 1);
        Self(guests.clone())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.send_modify(|guests| *guests -= 1);
    }
}

/// Answers [`SHORT`] and every POST at once, and anything else with an endless body. `guests`: the number of such
/// responses under way.
async fn endless(guests: watch::Sender<usize>) -> Stub {
    endless_for(guests, watch::Sender::new(0)).await
}

/// The same; `senders`: the number of requests whose body is incomplete.
async fn endless_for(guests: watch::Sender<usize>, senders: watch::Sender<usize>) -> Stub {
    stub(move |request: Request<Incoming>| {
        let (guests, senders) = (guests.clone(), senders.clone());
        async move {
            if request.uri().path() == SHORT {
                return Ok(Stub::reply(200, "short"));
            }
            if request.method() == Method::POST {
                let _sender = Guest::arrive(&senders);
                let whole = request.into_body().collect().await?.to_bytes();
                return Ok(Stub::reply(201, whole));
            }
            let guest = Guest::arrive(&guests);
            let pieces =
                stream::unfold(guest, async |guest| Some((Ok(Frame::data(Bytes::from_static(&PIECE))), guest)));
            Ok::<Reply, _>(Response::new(StreamBody::new(pieces).boxed_unsync()))
        }
    })
    .await
}

/// Limits of one forwarded request and one stream.
async fn one_at_a_time(upstream: &Stub) -> App {
    let plan = direct::in_front_of(&upstream.url()).with(|config| {
        config.serve.body_max = MAX;
        let limits = &mut config.serve.limits;
        (limits.forwards_max, limits.streams_max, limits.anonymous_forwards_max) = (1, 1, 1);
    });
    plan.run().await
}

/// Retries until a response is admitted, because a permit may be released a moment after its client has seen the cut.
async fn open(client: &Client, path: &str) -> Response<Incoming> {
    within("a permit", async {
        loop {
            let answer = client.clone().narrow().request(Method::GET, path).open().await.expect("a head");
            if answer.status() != 429 {
                return answer;
            }
        }
    })
    .await
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn is_let_in(client: &Client) -> bool {
    client.get(SHORT).await.status == 200
}

/// Asserts that the body ends with an error, and not as a complete one.
async fn is_cut(answer: Response<Incoming>) {
    let read = within("the end of the aborted response", answer.into_body().collect()).await;
    assert!(read.is_err(), "a truncated body looks whole");
}

/// Bytes that the kernel buffers for a client of this server, sent or not.
fn queued_bytes(server: SocketAddr, client: SocketAddr) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("it tells of sockets");
    let (local, remote) = (format!(":{:04X}", server.port()), format!(":{:04X}", client.port()));
    let queue = sockets.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, from, to, _, queues, ..] if from.ends_with(&local) && to.ends_with(&remote) => queues.split(':').next(),
        _ => None,
    });
    usize::from_str_radix(queue.expect("it is connected"), 16).expect("a number")
}

/// A client that does not read uses little of the memory that the machine has for all connections (R-THREAT-11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_connection_limits_kernel_send_buffer() {
    const QUEUED_MAX: usize = 256 << 10;
    let upstream = endless(watch::Sender::new(0)).await;
    let app = direct::in_front_of(&upstream.url()).run().await;
    let server = app.listener(0).url().trim_start_matches("http://").parse().expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    // The client's kernel buffers little, so the server's side must hold the rest.
    socket.set_recv_buffer_size(16 << 10).expect("a small buffer");
    let mut client = socket.connect(server).await.expect("it connects");
    let question = format!("GET {LOG}?follow=true HTTP/1.1\r\nhost: {server}\r\n\r\n");
    client.write_all(question.as_bytes()).await.expect("it is sent");
    let me = client.local_addr().expect("an address");
    eventually("there is more than it takes", || async { queued_bytes(server, me) > QUEUED_MAX / 4 }).await;
    let (began, mut queued) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        queued = queued.max(queued_bytes(server, me));
        tokio::task::yield_now().await;
    }
    assert!(queued <= QUEUED_MAX, "{queued} bytes are queued");
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_forwarded_response_times_out_and_frees_permit() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let guests = watch::Sender::new(0);
        let upstream = endless(guests.clone()).await;
        let app = one_at_a_time(&upstream).await;
        let client = app.over(protocol);
        let (started, unread) = (Instant::now(), open(&client, LONG).await);
        assert_eq!(unread.status(), 200);
        let status = client.get(SHORT).await.status;
        assert!(status == 429 || started.elapsed() >= MAX, "the limit is one: {status}");
        eventually_in_time(MAX, "the permit is returned", || is_let_in(&client)).await;
        eventually_in_time(MAX, "upstream is let go", || async { *guests.borrow() == 0 }).await;
        is_cut(unread).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_timeout_cuts_slow_response_but_not_followed_log() {
    let guests = watch::Sender::new(0);
    let upstream = endless(guests.clone()).await;
    let app = one_at_a_time(&upstream).await;
    is_cut(open(&app, LONG).await).await;
    let mut log = open(&app, LOG).await;
    is_cut(open(&app, LONG).await).await;
    let piece = within("more of the log", log.body_mut().frame()).await;
    assert!(piece.is_some_and(|piece| piece.is_ok()), "it lasts as long as upstream lets it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_request_body_times_out_and_frees_permit() {
    let senders = watch::Sender::new(0);
    let upstream = endless_for(watch::Sender::new(0), senders.clone()).await;
    let app = one_at_a_time(&upstream).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = app.over(protocol);
        // The previous request's permit may be released a moment after its response.
        let (started, posting) = within("it arrives upstream", async {
            loop {
                let begun = stream::once(async { Ok(Frame::data(Bytes::from_static(b"{"))) });
                let stopped = futures_util::StreamExt::chain(begun, stream::pending());
                let posting = client.request(Method::POST, POSTED).streaming(StreamBody::new(stopped).boxed_unsync());
                let (started, posting) = (Instant::now(), tokio::spawn(posting.send()));
                until(|| *senders.borrow() == 1 || posting.is_finished()).await;
                if *senders.borrow() == 1 {
                    break (started, posting);
                }
                assert_eq!(posting.await.expect("a response").status, 429, "{protocol:?}");
            }
        })
        .await;
        let status = client.get(SHORT).await.status;
        assert!(status == 429 || started.elapsed() >= MAX, "there is no other permit: {status}");
        eventually_in_time(MAX, "the permit is returned", || is_let_in(&client)).await;
        let refused = within("an answer", posting).await.expect("a response");
        assert_eq!(refused.refusal(), (400, "BadRequest".to_owned()), "{protocol:?}");
        eventually_in_time(MAX, "upstream is let go", || async { *senders.borrow() == 0 }).await;
    }
    let whole = app.request(Method::POST, POSTED).body("{}").send().await;
    assert_eq!((whole.status, whole.text().as_str()), (201, "{}"));
}

/// An unauthenticated caller has this time limit for every request, streams included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_anonymous_stream_times_out_and_frees_permit() {
    let guests = watch::Sender::new(0);
    let upstream = endless(guests.clone()).await;
    let plan = direct::in_front_of(&upstream.url()).with(|config| {
        config.auth = AuthMode::Delegated;
        config.serve.body_max = MAX;
        config.serve.limits.anonymous_forwards_max = 1;
    });
    let app = plan.run().await;
    for path in [LONG, LOG] {
        let (started, unread) = (Instant::now(), open(&app, path).await);
        let status = app.get(SHORT).await.status;
        assert!(status == 429 || started.elapsed() >= MAX, "the limit is one: {status}");
        eventually_in_time(MAX, "the permit is returned", || is_let_in(&app)).await;
        is_cut(unread).await;
    }
}

/// A response instead of a requested tunnel has the same limit as any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_to_refused_tunnel_times_out() {
    let guests = watch::Sender::new(0);
    let upstream = endless(guests.clone()).await;
    let app = one_at_a_time(&upstream).await;
    let open_stream = async || {
        let call = app.over(Protocol::Http1).narrow().request(Method::GET, LOG);
        call.header("connection", "Upgrade").header("upgrade", "SPDY/3.1").open().await.expect("a head")
    };
    let (started, unread) = (Instant::now(), open_stream().await);
    assert_eq!(unread.status(), 200);
    let status = open_stream().await.status();
    assert!(status == 429 || started.elapsed() >= MAX, "the limit is one: {status}");
    eventually_in_time(MAX, "the permit is returned", || async { open_stream().await.status() == 200 }).await;
    is_cut(unread).await;
}

const ROW: &str = "/api/v1/namespaces/default/configmaps/large?includeObject=Object";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// Number of attempts on a machine that stalls.
const TRIES_MAX: usize = 20;

/// How long an unread response keeps its share of the memory limit. If a machine stalls for longer, the test retries.
const ROOM_HELD: Duration = Duration::from_secs(3);

/// A proxy with a limit of four MiB of responses, and a short timeout for clients that do not read.
async fn with_little_room(up: &RunningDemoApiserver) -> App {
    let plan = direct::app(up).with(|config| {
        config.serve.body_max = ROOM_HELD;
        config.serve.limits.lists_bytes_max = 4 << 20;
    });
    plan.run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_cached_get_times_out_and_frees_permit() {
    let up = with_objects().await;
    let app = with_little_room(&up).await;
    let client = app.over(Protocol::Http2);
    let watch = client.watch(CONFIGMAPS).initial_events().await;
    watch.listed().await;
    // If the machine stalls, the first permit may be released before all requests have been sent.
    let mut shut = None;
    for _ in 0..TRIES_MAX {
        let (began, mut connection) = (Instant::now(), Shut::to(&client).await);
        let mut statuses = Vec::new();
        for path in [LARGE, LARGE, LARGE, LARGE, MIDDLING] {
            statuses.push(connection.request_status(path, "application/json").await);
        }
        statuses.push(client.get(LARGE).await.status);
        if began.elapsed() < ROOM_HELD {
            assert_eq!(statuses, [200, 200, 200, 429, 200, 429], "three get a permit, and a small response needs none");
            shut = Some(connection);
            break;
        }
        connection.is_cut().await;
    }
    let mut shut = shut.expect("all of it is requested in time once");
    assert!(client.get(MIDDLING).await.is_cached(), "small responses continue");
    eventually_in_time(ROOM_HELD, "the permits are returned", || async { client.get(LARGE).await.is_cached() }).await;
    shut.is_cut().await;
    assert_eq!(shut.bodies.len(), 4);
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let whole = client.over(protocol).get(LARGE).await;
        assert!(whole.is_cached() && whole.text().len() > 1 << 20, "a client that reads receives everything");
        let packed = client.over(protocol).request(Method::GET, LARGE).header("accept-encoding", "gzip").send().await;
        assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
    }
}

/// The response is buffered so that others could share it, and then not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_shared_responses_count_against_memory_limit() {
    let up = with_objects().await;
    let app = with_little_room(&up).await;
    let watch = app.watch(CONFIGMAPS).initial_events().await;
    watch.listed().await;
    assert!(app.get(LARGE).await.is_cached());
    // If the machine stalls, the first response releases its memory before all have been requested.
    for _ in 0..TRIES_MAX {
        let (began, mut shut) = (Instant::now(), Shut::to(&app).await);
        for _ in 0..6 {
            assert_eq!(
                shut.request_status(ROW, TABLE).await,
                200,
                "without room the request is forwarded, at the client's pace"
            );
        }
        let status = app.get(LARGE).await.status;
        let is_shown = began.elapsed() < ROOM_HELD;
        assert!(!is_shown || status == 429, "three of them hold it: {status}");
        eventually_in_time(ROOM_HELD, "the room is returned", || async { app.get(LARGE).await.is_cached() }).await;
        shut.is_cut().await;
        if is_shown {
            return;
        }
    }
    panic!("the six were never requested in time");
}
