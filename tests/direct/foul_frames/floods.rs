//! Floods of frames that an upstream sends over HTTP/2. The proxy keeps none of them and continues to serve its
//! clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use demo::{self, RunningDemoApiserver};

use super::relay::{Flood, Manners};
use crate::direct::{self, Front, PODS, Signer, eventually};
use crate::http2::frames::{
    CONTINUATION, END_HEADERS, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PUSH_PROMISE, data, frame,
    open_head, ping, priority, request, reset, settings, window,
};
use crate::http2::hpack::block;
use crate::http2::rows::print_line;
use crate::process::Process;

/// Maximum memory growth of the process during each flood.
const GROWN_MEBIBYTES_MAX: usize = 30;
/// Number of repetitions of a frame.
const TIMES: u32 = 10_000;
/// Repetitions of a frame that requires a reply which nothing reads: more replies than sockets and the process may
/// buffer.
const ANSWERED_TIMES: u32 = 1_000_000;
/// If a flood makes no progress for this many polls, the proxy has stopped reading it.
const LOOKS: usize = 3;

fn floods() -> Vec<Flood> {
    let flood = |name, first: fn(u32) -> Vec<u8>, again: fn(u32, u32) -> Vec<u8>| Flood {
        name,
        first,
        again,
        times: TIMES,
        is_reading: true,
        sent: AtomicUsize::new(0),
        is_done: AtomicBool::new(false),
    };
    let unread = |flood: Flood| Flood { times: ANSWERED_TIMES, is_reading: false, ..flood };
    let none: fn(u32) -> Vec<u8> = |_| Vec::new();
    let headless: fn(u32) -> Vec<u8> = |stream| frame(HEADERS, 0, stream, &[]);
    vec![
        flood("pings", none, |at, _| ping(u64::from(at))),
        unread(flood("pings with unread acknowledgements", none, |at, _| ping(u64::from(at)))),
        flood("settings", none, |_, _| settings(&[])),
        unread(flood("settings with unread acknowledgements", none, |_, _| settings(&[]))),
        flood("windows of streams that change", none, |at, _| settings(&[(INITIAL_WINDOW_SIZE, at % 2 * 1_000)])),
        flood("a limit of streams that changes", none, |at, _| settings(&[(MAX_CONCURRENT_STREAMS, 1 + at % 2)])),
        flood("empty parts of a head", headless, |_, stream| frame(CONTINUATION, 0, stream, &[])),
        flood("parts of a head without end", headless, |_, stream| frame(CONTINUATION, 0, stream, &field())),
        flood("heads that announce another", none, |_, stream| open_head(stream, &block(&[(":status", "103")]))),
        flood("trailers without end", none, |_, stream| open_head(stream, &block(&[("a", "b")]))),
        flood("promises", none, |at, stream| {
            let promised = [&(2 * at + 2).to_be_bytes()[..], &request("GET", PODS, &[])].concat();
            frame(PUSH_PROMISE, END_HEADERS, stream, &promised)
        }),
        flood("responses on idle streams", none, |at, _| open_head(2 * at + 2, &block(&[(":status", "200")]))),
        flood("empty data", none, |_, stream| data(stream, &[])),
        flood("a byte of a window, of the connection", none, |_, _| window(0, 1)),
        flood("a byte of a window, of a stream", none, |_, stream| window(stream, 1)),
        flood("a window that is too large", none, |_, stream| window(stream, (1 << 31) - 1)),
        flood("priorities", none, |at, _| priority(2 * at + 1, 0)),
        flood("frames of no known kind", none, |at, _| frame(0xfa, 0, at, b"abc")),
        flood("resets of closed streams", none, |_, _| reset(1, 8)),
        flood("resets of what never was", none, |at, _| reset(2 * at + 1_000_001, 8)),
        flood("goodbyes", none, |_, _| frame(GOAWAY, 0, 0, &[&[0x7f, 255, 255, 255][..], &[0; 4]].concat())),
    ]
}

/// A header of a kilobyte, as a literal.
fn field() -> Vec<u8> {
    block(&[("x-long", &"x".repeat(1_000))])
}

/// A client that is served from the cache does not notice a flood.
async fn flood_all(process: &Process, manners: &Manners, up: &RunningDemoApiserver) {
    let client = process.client();
    let watch = client.watch(PODS).initial_events().await;
    watch.listed().await;
    let cached = format!("{PODS}?resourceVersion=0");
    for flood in floods() {
        let flood = Arc::new(flood);
        direct::followed(up, "pods").await;
        // The release of the upstream server is known.
        eventually(flood.name, || async { client.get(&cached).await.is_cached() }).await;
        let before = process.resident_mebibytes();
        manners.flood(flood.clone());
        let (mut looks, mut last, mut grown) = (0, 0, 0);
        while looks < LOOKS {
            for _ in 0..3 {
                let answer = client.get(&cached).await;
                assert!(answer.is_cached(), "{}: {}", flood.name, answer.status);
            }
            let sent = flood.sent.load(Ordering::Relaxed);
            // Nothing sent yet is no flood that has stopped.
            let has_begun = sent > 0 || is_done(&flood);
            looks = if has_begun && sent == last { looks + 1 } else { 0 };
            last = sent;
            grown = grown.max(process.resident_mebibytes().saturating_sub(before));
        }
        print_line(&format!("{}: {last} sent, done {}, {grown} MiB", flood.name, is_done(&flood)));
        assert!(grown < GROWN_MEBIBYTES_MAX, "{}: {grown} MiB", flood.name);
        // The proxy leaves a server that reads nothing after a timeout; here the server goes away, so that the test
        // need not wait.
        manners.cut();
        let made = up.create_pod("default", &flood.name.replace([' ', ','], "-"));
        direct::within(flood.name, watch.reached(made)).await;
    }
    assert!(watch.is_open());
}

fn is_done(flood: &Flood) -> bool {
    flood.is_done.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_frame_flood_uses_no_memory_and_loses_no_event() {
    let (up, signer, manners) = (demo::upstream().pods(20).run().await, Signer::new(), Manners::new(&[]));
    let relaying = manners.clone();
    let front = Front::start(up.address(), &signer.good(), move |near, far| relaying.clone().relay(near, far)).await;
    let kubeconfig = signer.kubeconfig(&front);
    let named = kubeconfig.to_str().expect("a path");
    let listening = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let process = Process::as_configured(2, &[&["--kubeconfig", named][..], &listening].concat()).await;
    flood_all(&process, &manners, &up).await;
    assert!(manners.connections.load(Ordering::Relaxed) > 0, "it was HTTP/2");
}
