//! Flow control: no byte exceeds a window, and every window is used (RFC 9113 §5.2, RFC 9113 §6.9).

use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::frames::{
    CANCEL, DATA, END_STREAM, FLOW_CONTROL_ERROR, FRAME_BYTES, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, PADDED, data,
    frame, get, head, hello, hello_with, last_data, open_head, post, request, reset, settings, window,
};
use super::rows::{CODECS, ECHO, HANG, SMALL, proxy, roomy, served_by};
use super::wire::{ReceivedFrames, Wire};
use crate::direct::{self, App, PODS, eventually, within};

/// The response over HTTP/1.1.
async fn whole(app: &App, path: &str) -> Vec<u8> {
    let answer = app.get(path).await;
    assert_eq!(answer.status, 200);
    answer.body.to_vec()
}

fn patterned(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at * 31 % 251).expect("a byte")).collect()
}

/// A list arrives completely and in order through a window of any size that is replenished as fast as it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_arrives_complete_with_any_window_size() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).run().await;
    let list = format!("{PODS}?resourceVersion=0");
    let expected = whole(&app, &list).await;
    for (initial, more) in [(0, 1), (0, 1_000), (1, 1), (100, 100), (100, 7), (1_000, 1)] {
        let mut wire = Wire::to(&app).await;
        wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, initial)]), get(1, &list)].concat()).await;
        wire.wait("a head", |received| received.streams.get(&1).is_some_and(|stream| !stream.heads.is_empty())).await;
        let mut given = initial as usize;
        while wire.received.answer(1).is_none() {
            let used =
                |received: &ReceivedFrames| received.streams[&1].body.len() == given || received.answer(1).is_some();
            wire.wait("the window is used", used).await;
            // Many small updates at once, and sometimes one by one.
            let times = if given.is_multiple_of(5) { 1 } else { 50 };
            wire.send(&window(1, more).repeat(times)).await;
            given += times * more as usize;
            wire.send(&window(0, more * u32::try_from(times).expect("few"))).await;
        }
        assert!(wire.received.streams[&1].body == expected, "{initial}, {more}: it is the list");
    }
}

/// A watch with a window that opens byte by byte receives everything, and does not delay other readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_arrives_complete_with_one_byte_window() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).run().await;
    let (beside, from) = (app.watch(PODS).initial_events().await, up.revision());
    beside.listed().await;
    let state = format!("{PODS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let since = format!("{PODS}?watch=true&resourceVersion={from}");
    for path in [state, since] {
        let mut wire = Wire::to(&app).await;
        wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, 0)]), get(1, &path)].concat()).await;
        wire.wait("a head", |received| received.streams.get(&1).is_some_and(|stream| !stream.heads.is_empty())).await;
        // The client has not read a byte of the state when this event arrives.
        let made = up.create_pod("default", &format!("made-{}", up.revision()));
        beside.reached(made).await;
        let expected_version = format!("\"resourceVersion\":\"{made}\"");
        let mut given = 0;
        while !String::from_utf8_lossy(&wire.received.streams[&1].body).contains(&expected_version) {
            wire.send(&[window(1, 1), window(0, 1)].concat()).await;
            given += 1;
            wire.wait("a byte", |received| received.streams[&1].body.len() == given).await;
        }
        assert!(wire.received.streams[&1].frames.iter().all(|bytes| *bytes <= 1), "one by one");
        let text = String::from_utf8_lossy(&wire.received.streams[&1].body).into_owned();
        let lines: Vec<_> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
        let whole = lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
        assert!(whole && text.matches("\"ADDED\"").count() > lines.len().saturating_sub(2), "{text}");
        assert!(beside.is_open());
    }
}

/// The connection's window applies to all streams together, and a stream that has window makes progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_streams_share_connection_window() {
    let up = demo::upstream().pods(300).run().await;
    let app = direct::app(&up).run().await;
    let list = format!("{PODS}?resourceVersion=0");
    let expected = whole(&app, &list).await;
    assert!(expected.len() > 100_000, "more than a window");
    let mut wire = Wire::to(&app).await;
    let largest = hello_with(&[(INITIAL_WINDOW_SIZE, 1 << 20), (MAX_FRAME_SIZE, 1 << 20)]);
    wire.send(&[largest, get(1, &list), get(3, &list)].concat()).await;
    let body_bytes =
        |received: &ReceivedFrames| received.streams.values().map(|stream| stream.body.len()).sum::<usize>();
    wire.wait("all of the window", |received| body_bytes(received) == 65_535).await;
    wire.settle().await;
    assert_eq!(body_bytes(&wire.received), 65_535);
    // A response without a body needs no window, so it arrives in between.
    wire.send(&head(5, &request("HEAD", &list, &[]))).await;
    wire.wait("an answer without a body", |received| received.answer(5).is_some()).await;
    wire.send(&window(0, 1)).await;
    wire.wait("one byte more", |received| body_bytes(received) == 65_536).await;
    wire.send(&window(0, 1 << 24)).await;
    wire.wait("both lists", |received| [1, 3].iter().all(|stream| received.answer(*stream) == Some(200))).await;
    assert!([1, 3].iter().all(|stream| wire.received.streams[stream].body == expected));
}

/// RFC 9113 §6.9.2: a window may become negative, and counts from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn negative_window_blocks_stream_until_positive() {
    let up = demo::upstream().pods(50).run().await;
    let app = direct::app(&up).run().await;
    let list = format!("{PODS}?resourceVersion=0");
    let expected = whole(&app, &list).await;
    let mut wire = Wire::to(&app).await;
    wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, 1_000)]), get(1, &list)].concat()).await;
    let body_bytes = |bytes: usize| {
        move |received: &ReceivedFrames| received.streams.get(&1).is_some_and(|stream| stream.body.len() == bytes)
    };
    wire.wait("the first window", body_bytes(1_000)).await;
    // At -1,000, then back to zero: no byte may arrive.
    wire.send(&[settings(&[(INITIAL_WINDOW_SIZE, 0)]), window(1, 1_000)].concat()).await;
    wire.settle().await;
    assert!(body_bytes(1_000)(&wire.received));
    wire.send(&window(1, 1)).await;
    wire.wait("a byte", body_bytes(1_001)).await;
    // A change by settings counts, too.
    wire.send(&settings(&[(INITIAL_WINDOW_SIZE, 10)])).await;
    wire.wait("ten bytes more", body_bytes(1_011)).await;
    wire.send(&[settings(&[(INITIAL_WINDOW_SIZE, 0)]), settings(&[(INITIAL_WINDOW_SIZE, 65_535)])].concat()).await;
    wire.send(&[window(0, 1 << 24), window(1, 1 << 24)].concat()).await;
    wire.wait("the list", |received| received.answer(1) == Some(200)).await;
    assert!(wire.received.streams[&1].body == expected);
}

/// Encodes a part of a body, which may be the last one, as frames.
type Frames<'a> = &'a dyn Fn(&[u8], bool) -> Vec<u8>;

/// A body of any size is echoed unchanged, because the server returns the window for forwarded bytes. Padding counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_replenishes_window_for_forwarded_bytes() {
    let (_upstream, app) = proxy().await;
    let plain = |part: &[u8], is_last| if is_last { last_data(1, part) } else { data(1, part) };
    let padded = |part: &[u8], is_last| {
        let flags = if is_last { PADDED | END_STREAM } else { PADDED };
        frame(DATA, flags, 1, &[&[255], part, &[0; 255]].concat())
    };
    let cases: [(&str, usize, usize, Frames<'_>); 4] = [
        ("100 KiB in small frames", 100 << 10, 1_000, &plain),
        ("100 KiB in large frames", 100 << 10, 16_384, &plain),
        ("4 MiB, more than the connection's window", 4 << 20, 16_384, &plain),
        ("4 MiB with 1 MiB of padding between", 4 << 20, 1_000, &padded),
    ];
    for (name, bytes, size, frames) in cases {
        let mut wire = Wire::to(&app).await;
        let body = patterned(bytes);
        wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, 1 << 24)]), window(0, 1 << 24), post(1, ECHO)].concat()).await;
        wire.wait("settings", |received| !received.settings.is_empty()).await;
        wire.upload(1, &body, size, frames).await;
        wire.wait(name, |received| received.answer(1) == Some(200)).await;
        assert!(wire.received.streams[&1].body == body, "{name}: the body is echoed");
    }
}

/// The connection's window is also returned for closed streams, because it would be exhausted otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_streams_return_connection_window() {
    const EACH: i64 = 4 * 16_384;
    let (upstream, app) = proxy().await;
    let mut wire = Wire::to(&app).await;
    wire.send(&hello()).await;
    wire.wait("settings", |received| !received.settings.is_empty()).await;
    let (mut sent, mut stream) = (0, 1);
    while sent < 3 << 20 {
        wire.wait("room on the connection", |received| sent + EACH <= received.window(0)).await;
        wire.send(&[post(stream, HANG), data(stream, &[b'a'; 16_384]).repeat(4)].concat()).await;
        (sent, stream) = (sent + EACH, stream + 2);
        // A reset before the request reaches upstream would count as a flood.
        let requested = usize::try_from(stream / 2).expect("few");
        eventually("it arrives upstream", || async { upstream.seen(HANG).len() == requested }).await;
        wire.send(&reset(stream - 2, CANCEL)).await;
    }
    wire.send(&get(stream, SMALL)).await;
    wire.wait("an answer", |received| received.answer(stream) == Some(200)).await;
}

/// A proxy whose upstream accepts no more connections, so the bodies of clients are not read.
struct Unreading {
    app: App,
    _upstream: std::net::TcpListener,
    _waiting: Vec<TcpStream>,
}

async fn unreading() -> Unreading {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let upstream = socket.listen(1).expect("it listens").into_std().expect("a listener that never accepts");
    let address = upstream.local_addr().expect("it is bound");
    // A backlog of one has room for two connections, however long they take. Further ones time out, except on systems
    // that accept a few more.
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let stream = within("it waits to be accepted", TcpStream::connect(address)).await;
        waiting.push(stream.expect("it waits to be accepted"));
    }
    while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        waiting.push(stream.expect("it waits to be accepted"));
    }
    let app = roomy(direct::in_front_of(&format!("http://{address}"))).run().await;
    Unreading { app, _upstream: upstream, _waiting: waiting }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exceeding_stream_window_is_flow_control_error() {
    let proxy = unreading().await;
    let mut wire = Wire::to(&proxy.app).await;
    wire.send(&hello()).await;
    wire.wait("settings", |received| !received.settings.is_empty()).await;
    let most = usize::try_from(wire.received.window(1)).expect("there is one");
    wire.write(&[post(1, ECHO), bodies(1, most), data(1, b"a")].concat()).await;
    let code =
        |received: &ReceivedFrames| received.reset(1).or_else(|| received.goodbyes.last().map(|(_, code)| *code));
    wire.wait("it is refused", |received| code(received).is_some()).await;
    // RFC 9113 §6.9.1: an error of the stream or of the connection.
    assert_eq!(code(&wire.received), Some(FLOW_CONTROL_ERROR));
}

/// Each stream is within its own window, and all of them together exceed the connection's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exceeding_connection_window_is_flow_control_error() {
    let proxy = unreading().await;
    let mut wire = Wire::to(&proxy.app).await;
    wire.send(&hello()).await;
    wire.wait("settings", |received| !received.settings.is_empty()).await;
    wire.settle().await;
    let most = usize::try_from(wire.received.window(1)).expect("there is one");
    let streams = usize::try_from(wire.received.window(0)).expect("there is one") / most + 1;
    for stream in (1..).step_by(2).take(streams) {
        wire.write(&[post(stream, ECHO), bodies(stream, most)].concat()).await;
    }
    wire.wait("it is refused", ReceivedFrames::is_failed).await;
    assert_eq!(wire.received.goodbyes.last().map(|(_, code)| *code), Some(FLOW_CONTROL_ERROR));
}

/// This many bytes of a body that does not end.
fn bodies(stream: u32, bytes: usize) -> Vec<u8> {
    vec![b'a'; bytes].chunks(FRAME_BYTES).flat_map(|part| data(stream, part)).collect()
}

/// No data follows the head of a response to HEAD, whichever frame ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_response_has_no_data_frames() {
    for codec in CODECS {
        let up = demo::upstream().pods(5).run().await;
        let app = served_by(codec, direct::app(&up)).run().await;
        let mut wire = Wire::to(&app).await;
        wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, 0)]), head(1, &request("HEAD", PODS, &[]))].concat()).await;
        wire.wait("an answer", |received| received.answer(1).is_some()).await;
        assert!(wire.received.streams[&1].body.is_empty());
    }
}

/// The body of a read from the cache takes no memory while the request waits for a version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_waiting_read_is_discarded() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    assert!(app.get(PODS).await.is_cached());
    let mut wire = Wire::to(&app).await;
    wire.send(&hello()).await;
    wire.settle().await;
    let initial = wire.received.window(0);
    let streams = [1, 3, 5];
    for stream in streams {
        let head = open_head(stream, &request("GET", &format!("{PODS}?resourceVersion=999999999"), &[]));
        wire.send(&[head, data(stream, &[0; FRAME_BYTES]).repeat(12)].concat()).await;
    }
    wire.wait("the window of the connection is returned", |received| received.window(0) > initial).await;
    assert!(streams.iter().all(|stream| wire.received.answer(*stream).is_none()), "all of them wait");
}
