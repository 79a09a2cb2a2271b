//! An upstream that speaks HTTP/2 as nobody should: floods, limits of nothing, answers that nobody asked for. The proxy
//! stays as it is, and whoever asks it for what it has is served.

mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use kube_fanout::demo::{self, RunningUpstream};

use self::relay::{Flood, Manners};
use crate::direct::{self, App, CONFIGMAPS, Front, NODES, PODS, Plan, Signer, WIDGETS, configmap, eventually, in_time};
use crate::http2::frames::{
    CONTINUATION, END_HEADERS, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PUSH_PROMISE, data, frame,
    open_head, ping, priority, request, reset, settings, window,
};
use crate::http2::hpack::block;
use crate::process::Process;

/// How much more memory the process may have for each flood.
const GROWN_MEBIBYTES_MAX: usize = 30;
/// How often a frame is said.
const TIMES: u32 = 10_000;
/// The same of one whose answer nobody reads: more answers than sockets and the process may hold.
const ANSWERED_TIMES: u32 = 1_000_000;
/// A flood that has not got on for so many looks is one that the proxy does not read any more.
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
        unread(flood("pings whose answers are not read", none, |at, _| ping(u64::from(at)))),
        flood("settings", none, |_, _| settings(&[])),
        unread(flood("settings whose answers are not read", none, |_, _| settings(&[]))),
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
        flood("answers to nobody", none, |at, _| open_head(2 * at + 2, &block(&[(":status", "200")]))),
        flood("empty data", none, |_, stream| data(stream, &[])),
        flood("a byte of a window, of the connection", none, |_, _| window(0, 1)),
        flood("a byte of a window, of a stream", none, |_, stream| window(stream, 1)),
        flood("a window that is too large", none, |_, stream| window(stream, (1 << 31) - 1)),
        flood("priorities", none, |at, _| priority(2 * at + 1, 0)),
        flood("frames of no known kind", none, |at, _| frame(0xfa, 0, at, b"abc")),
        flood("resets of what is long over", none, |_, _| reset(1, 8)),
        flood("resets of what never was", none, |at, _| reset(2 * at + 1_000_001, 8)),
        flood("goodbyes", none, |_, _| frame(GOAWAY, 0, 0, &[&[0x7f, 255, 255, 255][..], &[0; 4]].concat())),
    ]
}

/// A header of a kilobyte, as a literal.
fn field() -> Vec<u8> {
    block(&[("x-long", &"x".repeat(1_000))])
}

/// Nobody notices a flood, who is served from memory.
async fn flood_all(process: &Process, manners: &Manners, up: &RunningUpstream) {
    let client = process.client();
    let watch = client.watch(PODS).initial_events().await;
    watch.listed().await;
    let cached = format!("{PODS}?resourceVersion=0");
    for flood in floods() {
        let flood = Arc::new(flood);
        direct::followed(up, "pods").await;
        // It is known who is at the other end.
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
            looks = if sent == last { looks + 1 } else { 0 };
            last = sent;
            grown = grown.max(process.resident_mebibytes().saturating_sub(before));
        }
        crate::http2::say(&format!("{}: {last} sent, done {}, {grown} MiB", flood.name, is_done(&flood)));
        assert!(grown < GROWN_MEBIBYTES_MAX, "{}: {grown} MiB", flood.name);
        // A server that reads nothing is left in time; here it goes, so that nobody waits for that.
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
async fn a_flood_from_upstream_costs_no_memory_and_nobody_an_event() {
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

/// A proxy in front of a server with such settings, over HTTP/2.
async fn behind(up: &RunningUpstream, signer: &Signer, said: &[(u16, u32)]) -> (Front, Plan) {
    let manners = Manners::new(said);
    let relay = move |near, far| manners.clone().relay(near, far);
    let front = Front::start(up.address(), &signer.good(), relay).await;
    let plan = direct::by(signer.credentials(&front));
    (front, plan)
}

/// Everything that can be had of four resources.
async fn all_is_served(app: &App, up: &RunningUpstream) {
    let paths = [PODS, NODES, CONFIGMAPS, WIDGETS];
    let cached = |path: &'static str| async move {
        eventually(path, || async { app.get(path).await.is_cached() }).await;
    };
    join_all(paths.map(cached)).await;
    let (pods, maps) = (app.watch(PODS).await, app.watch(CONFIGMAPS).await);
    pods.reached(up.create_pod("default", "one-more")).await;
    maps.reached(up.put("configmaps", configmap("default", "one-more", "x"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_few_streams_at_a_time_gets_more_connections() {
    for streams in [1, 2] {
        let (up, signer) = (demo::upstream().pods(5).streams_max(streams).run().await, Signer::new());
        let front = Front::passing(up.address(), &signer.good()).await;
        let app = direct::by(signer.credentials(&front)).run().await;
        in_time(Duration::from_secs(10), "four feeds", all_is_served(&app, &up)).await;
        app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_body_answers_what_has_none() {
    let (up, signer) = (demo::upstream().pods(5).run().await, Signer::new());
    let (_front, plan) = behind(&up, &signer, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    let app = plan.run().await;
    // Whoever has just connected does not know of it yet, and each core connects for itself.
    for _ in 0..16 {
        eventually("a connection for what passes through", || async { app.get("/livez").await.status == 200 }).await;
    }
    let write = app.request(Method::POST, "/api/v1/namespaces/default/configmaps");
    let write = write.header("content-type", "application/json").body(configmap("default", "a", "x").to_string());
    let written = tokio::spawn(write.try_send());
    all_is_served(&app, &up).await;
    assert_eq!(app.get("/livez").await.status, 200, "what passes through does, if it has no body");
    assert!(!written.is_finished(), "it waits for as long as its client does");
    assert_eq!(up.object("configmaps", "default", "a"), None, "its head may have come, its body has not");
    written.abort();
    app.stop().await;
}
