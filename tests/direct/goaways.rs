//! Upstream closes connections with GOAWAY while requests are under way (RFC 9113 §6.8). kube-apiserver does so with
//! `--goaway-chance`, and a load balancer in front of several servers does so when it drains.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use demo::{self, RunningDemoApiserver};
use futures_util::{StreamExt as _, stream};
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::direct::{self, Answer, App, Front, Near, Protocol, Signer};
use crate::http2::frames::{DATA, GOAWAY, HEADERS, PREFACE, frame, window};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// More than the proxy keeps of a request body.
const LARGE_BYTES: usize = 300 << 10;
const FRAME_HEAD: usize = 9;
/// The least and the greatest number of writes until one of them meets a closing connection.
const POSTS_MIN: usize = 8;
const POSTS_MAX: usize = 1_000;

/// A relay that closes each connection after this many requests.
#[derive(Clone)]
struct Leaving {
    requests: u32,
    /// Whether the last of them is passed on. Its response never arrives, because the connection ends instead.
    passes_last: bool,
    /// Until this is set, no connection is closed.
    begun: Arc<AtomicBool>,
    /// Number of closed connections.
    gone: Arc<AtomicUsize>,
}

impl Leaving {
    fn after(requests: u32, passes_last: bool) -> Self {
        Self { requests, passes_last, begun: Arc::default(), gone: Arc::default() }
    }

    async fn relay(self, mut near: Near, mut far: TcpStream) {
        if near.get_ref().1.alpn_protocol() != Some(b"h2") {
            let _ = copy_bidirectional(&mut near, &mut far).await;
            return;
        }
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = far.into_split();
        let (injector, injected) = mpsc::unbounded_channel();
        let cut_at = AtomicU32::new(0);
        tokio::select! {
            _ = self.up(near_read, far_write, injector, &cut_at) => {}
            _ = down(far_read, near_write, injected, &cut_at) => {}
        }
    }

    /// Frames of the proxy. Streams above the last accepted one are dropped.
    async fn up(
        &self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
        injector: mpsc::UnboundedSender<Vec<u8>>,
        cut_at: &AtomicU32,
    ) -> io::Result<()> {
        let mut preface = vec![0; PREFACE.len()];
        from.read_exact(&mut preface).await?;
        to.write_all(&preface).await?;
        let (mut requests, mut last) = (0, u32::MAX);
        loop {
            let mut passed = vec![0; FRAME_HEAD];
            from.read_exact(&mut passed).await?;
            let (length, stream) = (length(&passed), stream_of(&passed));
            passed.resize(FRAME_HEAD + length, 0);
            from.read_exact(&mut passed[FRAME_HEAD..]).await?;
            // Requests have no trailers, so each HEADERS frame is one request.
            if passed[3] == HEADERS && last == u32::MAX && self.begun.load(Ordering::SeqCst) {
                requests += 1;
                if requests == self.requests {
                    last = if self.passes_last { stream } else { stream.saturating_sub(2) };
                    cut_at.store(if self.passes_last { stream } else { 0 }, Ordering::SeqCst);
                    self.gone.fetch_add(1, Ordering::SeqCst);
                    let _ = injector.send(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()));
                }
            }
            if stream <= last {
                to.write_all(&passed).await?;
                to.flush().await?;
            } else if passed[3] == DATA && length > 0 {
                // The remaining streams need the window that the dropped body used.
                let _ = injector.send(window(0, u32::try_from(length).expect("short")));
            }
        }
    }
}

/// Frames of the server, and of the relay in its name. Ends at the response of the stream `cut_at`.
async fn down(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut injected: mpsc::UnboundedReceiver<Vec<u8>>,
    cut_at: &AtomicU32,
) -> io::Result<()> {
    let (mut unread, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        while unread.len() >= FRAME_HEAD && unread.len() >= FRAME_HEAD + length(&unread) {
            let passed: Vec<u8> = unread.drain(..FRAME_HEAD + length(&unread)).collect();
            if passed[3] == HEADERS && stream_of(&passed) == cut_at.load(Ordering::SeqCst) {
                return Ok(());
            }
            to.write_all(&passed).await?;
        }
        to.flush().await?;
        tokio::select! {
            Some(extra) = injected.recv() => to.write_all(&extra).await?,
            read = from.read(&mut part) => match read? {
                0 => return Ok(()),
                read => unread.extend_from_slice(&part[..read]),
            },
        }
    }
}

fn length(frame: &[u8]) -> usize {
    u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize
}

fn stream_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[5..FRAME_HEAD].try_into().expect("four bytes"))
}

/// A proxy whose upstream connections close after this many requests.
async fn behind(up: &RunningDemoApiserver, leaving: &Leaving) -> (Front, App) {
    let (signer, relaying) = (Signer::new(), leaving.clone());
    let relay = move |near, far| relaying.clone().relay(near, far);
    let front = Front::start(up.address(), &signer.good(), relay).await;
    let app = direct::by(signer.credentials(&front)).run().await;
    leaving.begun.store(true, Ordering::SeqCst);
    (front, app)
}

async fn post(app: &App, protocol: Protocol, name: &str, bytes: usize) -> Answer {
    let object = json!({"metadata": {"name": name}, "data": {"a": "x".repeat(bytes)}});
    let call = app.over(protocol).request(Method::POST, MAPS).header("content-type", "application/json");
    call.body(object.to_string()).send().await
}

fn is_there(up: &RunningDemoApiserver, name: &str) -> bool {
    up.object("configmaps", "default", name).is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_refused_by_goaway_are_retried_exactly_once() {
    let up = demo::upstream().run().await;
    // With this many requests at a time, a request never meets as many closing connections in a row.
    let leaving = Leaving::after(40, false);
    let (_front, app) = behind(&up, &leaving).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (app, names) = (&app, (0..200).map(|n| format!("{protocol:?}-{n}").to_lowercase()));
        let posted = stream::iter(names).map(|name| async move {
            let posted = post(app, protocol, &name, 10).await;
            // A repeated write would be a 409.
            assert_eq!(posted.status, 201, "{name}: {}", posted.text());
            let got = app.over(protocol).get(&format!("{MAPS}/{name}")).await;
            assert_eq!(got.status, 200, "{name}: {}", got.text());
        });
        posted.buffer_unordered(4).collect::<Vec<()>>().await;
    }
    assert!(leaving.gone.load(Ordering::SeqCst) > 0);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_retries_small_body_and_returns_503_for_large() {
    let up = demo::upstream().run().await;
    // Each request after the first of its connection is dropped.
    let leaving = Leaving::after(2, false);
    let (_front, app) = behind(&up, &leaving).await;
    // Each core has a connection of its own, so many cores answer many requests before one is dropped.
    let small = (0..POSTS_MAX).take_while(|n| *n < POSTS_MIN || leaving.gone.load(Ordering::SeqCst) == 0);
    for n in small {
        let posted = post(&app, Protocol::Http2, &format!("small-{n}"), 100 << 10).await;
        assert_eq!(posted.status, 201, "{n}: {}", posted.text());
    }
    assert!(leaving.gone.load(Ordering::SeqCst) > 0);
    let (mut refused, mut n) = (0, 0);
    while n < POSTS_MIN || refused == 0 {
        n += 1;
        assert!(n < POSTS_MAX, "none was refused");
        let name = format!("large-{n}");
        let posted = post(&app, Protocol::Http2, &name, LARGE_BYTES).await;
        let is_refused = posted.status == 503;
        // Nothing has happened, so the client may retry.
        assert_eq!((posted.header("retry-after").is_some(), is_there(&up, &name)), (is_refused, !is_refused), "{n}");
        assert!(is_refused || posted.status == 201, "{n}: {}", posted.text());
        refused += usize::from(is_refused);
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn possibly_executed_post_is_not_retried_after_goaway() {
    let up = demo::upstream().run().await;
    let leaving = Leaving::after(2, true);
    let (_front, app) = behind(&up, &leaving).await;
    let (mut unknown, mut n) = (0, 0);
    while n < POSTS_MIN || unknown == 0 {
        n += 1;
        assert!(n < POSTS_MAX, "none was dropped");
        let name = format!("a-{n}");
        let posted = post(&app, Protocol::Http2, &name, 10).await;
        assert!(is_there(&up, &name), "{n}");
        if posted.status != 201 {
            // If it had been retried, the response would be a 409.
            assert_eq!((posted.status, posted.header("retry-after")), (502, None), "{n}: {}", posted.text());
            unknown += 1;
        }
    }
    app.stop().await;
}
