//! Far more frames than a client needs, or responses that the client does not read (RFC 9113 §10.5). The server may
//! answer, stop reading, or end the connection. It buffers none of them, and serves other connections during the flood.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio::task::JoinSet;

use super::frames::{
    CANCEL, CONTINUATION, END_STREAM, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW_SIZE, data, frame, get, head, hello,
    ping, post, priority, request, reset, settings, window,
};
use super::rows::print_line;
use crate::direct::{Client, Dir, Io, PODS, Protocol};
use crate::process::Process;

/// Maximum memory growth of the process during each flood.
const GROWN_MEBIBYTES_MAX: usize = 30;
/// Number of repetitions of a frame.
const TIMES: usize = 100_000;
/// Repetitions of a frame that requires a reply which the client does not read: more than sockets and the process may
/// buffer.
const ANSWERED_TIMES: usize = 4_000_000;
const REQUESTS: usize = 10_000;
/// Frames per write.
const TOGETHER: u32 = 100;
/// Number of responses on other connections between two polls of a flood.
const ANSWERS: usize = 5;
/// If a sender makes no progress for this many polls, the server has stopped reading it.
const LOOKS: usize = 4;

const POSTED: &str = "/api/v1/namespaces/default/pods";

/// Bytes to send once, a frame to repeat, by its number, and the maximum count.
struct Flood {
    name: &'static str,
    first: Vec<u8>,
    again: fn(u32) -> Vec<u8>,
    times: usize,
}

fn stream(at: u32) -> u32 {
    2 * at + 3
}

fn floods() -> Vec<Flood> {
    let none = Vec::new;
    let flood = |name, first, times, again| Flood { name, first, again, times };
    vec![
        flood("pings", none(), ANSWERED_TIMES, |at| ping(u64::from(at))),
        flood("settings", none(), ANSWERED_TIMES, |at| settings(&[(HEADER_TABLE_SIZE, at)])),
        flood(
            "windows of streams that change",
            (0..100).flat_map(|at| post(2 * at + 1, POSTED)).collect(),
            TIMES,
            |at| settings(&[(INITIAL_WINDOW_SIZE, at % 2 * 1_000)]),
        ),
        flood("empty data", post(1, POSTED), TIMES, |_| data(1, &[])),
        flood("a byte of a window, of a stream", post(1, POSTED), TIMES, |_| window(1, 1)),
        flood("a byte of a window, of the connection", none(), TIMES, |_| window(0, 1)),
        flood("priorities", none(), TIMES, |at| priority(stream(at), 0)),
        flood("frames of no known kind", none(), TIMES, |at| frame(0xfa, 0, at, b"abc")),
        flood("empty parts of a head", frame(HEADERS, END_STREAM, 1, &[]), TIMES, |_| frame(CONTINUATION, 0, 1, &[])),
        flood("rapid resets", none(), REQUESTS, |at| [get(stream(at), PODS), reset(stream(at), CANCEL)].concat()),
        flood("streams made to be reset by the server", none(), REQUESTS, |at| {
            [get(stream(at), PODS), window(stream(at), 0)].concat()
        }),
        flood("heads that are malformed", none(), REQUESTS, |at| {
            head(stream(at), &request("GET", PODS, &[("connection", "close")]))
        }),
        flood("heads of streams that do not end", none(), REQUESTS, |at| post(stream(at), POSTED)),
        flood("requests and pings", none(), REQUESTS, |at| [get(stream(at), PODS), ping(u64::from(at))].concat()),
    ]
}

/// Progress of a sender.
#[derive(Default)]
struct Progress {
    sent: AtomicUsize,
    is_done: AtomicBool,
}

/// Sends everything, or as much as the server reads.
async fn pour(mut io: impl AsyncWriteExt + Unpin, flood: &Flood, times: usize, progress: &Progress) -> io::Result<()> {
    io.write_all(&[hello(), flood.first.clone()].concat()).await?;
    for first in (0..u32::try_from(times).expect("few enough")).step_by(TOGETHER as usize) {
        let bytes: Vec<u8> = (first..first + TOGETHER).flat_map(flood.again).collect();
        io.write_all(&bytes).await?;
        progress.sent.fetch_add(TOGETHER as usize, Ordering::Relaxed);
    }
    io.flush().await
}

/// Sends a flood, and reads the replies or not.
async fn send(io: Box<dyn Io>, flood: Arc<Flood>, progress: Arc<Progress>, is_reading: bool) {
    let (mut reader, writer) = tokio::io::split(io);
    let reading = async {
        let mut part = vec![0; 64 << 10];
        while is_reading && matches!(reader.read(&mut part).await, Ok(1..)) {}
        std::future::pending::<()>().await;
    };
    let pouring = async {
        let times = if is_reading { flood.times.min(TIMES) } else { flood.times };
        let _ = pour(writer, &flood, times, &progress).await;
        progress.is_done.store(true, Ordering::Relaxed);
        // The connection stays open, so that the memory that the server keeps for it is visible.
        std::future::pending::<()>().await;
    };
    tokio::join!(reading, pouring);
}

/// Requests on new connections and on an old one are answered.
async fn others_are_answered(old: &Client, new: &Client) {
    for _ in 0..ANSWERS {
        assert_eq!(old.get(PODS).await.status, 200);
        assert_eq!(new.over(Protocol::Http2).get(PODS).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_frame_flood_uses_no_memory_and_delays_no_other_client() {
    let (up, dir) = (demo::upstream().pods(20).run().await, Dir::new());
    let process = Process::serve(&dir, &up.url(), &[]).await;
    let new = process.client();
    let watch = new.watch(PODS).initial_events().await;
    watch.listed().await;
    let old = new.multiplexed().await;
    others_are_answered(&old, &new).await;
    for flood in floods() {
        let flood = Arc::new(flood);
        for is_reading in [true, false] {
            let before = process.resident_mebibytes();
            let (progress, mut sender) = (Arc::<Progress>::default(), JoinSet::new());
            // Small socket buffers for a client that does not read.
            let sending = if is_reading { new.clone() } else { new.clone().narrow() };
            let io = sending.over(Protocol::Http2).connect().await.expect("a connection");
            sender.spawn(send(io, flood.clone(), progress.clone(), is_reading));
            let (mut looks, mut last, mut grown) = (0, 0, 0);
            while looks < LOOKS {
                others_are_answered(&old, &new).await;
                let sent = progress.sent.load(Ordering::Relaxed);
                // The last frames of a sender that is done have yet to be read. Nothing sent yet is no flood that has stopped.
                let has_begun = sent > 0 || progress.is_done.load(Ordering::Relaxed);
                looks = if has_begun && sent == last { looks + 1 } else { 0 };
                last = sent;
                grown = grown.max(process.resident_mebibytes().saturating_sub(before));
            }
            let (name, is_done) = (flood.name, progress.is_done.load(Ordering::Relaxed));
            print_line(&format!("{name}, reading {is_reading}: {last} sent, done {is_done}, {grown} MiB"));
            assert!(grown < GROWN_MEBIBYTES_MAX, "{name}, reading {is_reading}: {grown} MiB");
        }
    }
    watch.reached(up.create_pod("default", "behind-the-floods")).await;
}
