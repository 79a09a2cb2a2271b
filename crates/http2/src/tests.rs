//! Tests of a connection from its client's side, frame by frame.

mod abuse;
mod slices;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Frame as BodyFrame;
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, timeout};

use super::connection::{Http2Connection, Http2Limits, SENT_BYTES_MAX};
use super::error::Http2ErrorCode;
use super::frame::{ACK, END_HEADERS, END_STREAM, HEAD_BYTES, HIGHEST, Http2FrameHeader, Http2FrameType};
use super::head_budget::RequestHeadBudget;
use super::output::DIRECT_BYTES_MAX;
use super::received_body::ReceivedBody;
use super::service::{HttpService, IdleAwareBody};
use base::AbortSignal;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The server's side: the requests, the bodies of the responses, which the test sends, and the size in bytes of a field
/// in their heads.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Vec<Asked>>>, Arc<AtomicUsize>);

type Asked = (Request<ReceivedBody>, mpsc::UnboundedSender<Bytes>, AbortSignal);

/// A service that is a closure, and whether its caller is known.
pub(crate) struct Answering<A>(A, Arc<AtomicBool>);

impl<A, F, B> HttpService for Answering<A>
where
    A: FnMut(Request<ReceivedBody>) -> Option<(F, AbortSignal)>,
    F: Future<Output = Response<B>> + Unpin,
    B: IdleAwareBody + Unpin,
{
    type Body = B;
    type Answer = F;

    fn call(&mut self, request: Request<ReceivedBody>) -> Option<(F, AbortSignal)> {
        (self.0)(request)
    }

    fn is_caller_unknown(&self) -> bool {
        !self.1.load(Ordering::Relaxed)
    }
}

/// A service whose caller is known.
pub(crate) fn known<A>(answering: A) -> Answering<A> {
    Answering(answering, Arc::new(true.into()))
}

impl Server {
    fn answer(&self, request: Request<ReceivedBody>) -> (BoxFuture<'static, Response<Body>>, AbortSignal) {
        let ((pieces, mut taken), cut) = (mpsc::unbounded_channel(), AbortSignal::default());
        self.0.lock().push((request, pieces, cut.clone()));
        let body = async_stream(move |cx| taken.poll_recv(cx));
        let mut answer = Response::new(body);
        let field = "x".repeat(self.1.load(Ordering::Relaxed));
        answer.headers_mut().insert("x", field.parse().expect("letters"));
        (Box::pin(async move { answer }), cut)
    }

    fn request_count(&self) -> usize {
        self.0.lock().len()
    }

    /// Sends a piece of the response to that request.
    fn send(&self, request: usize, piece: impl Into<Bytes>) {
        self.0.lock()[request].1.send(piece.into()).expect("the stream is there");
    }
}

fn async_stream(
    mut next: impl FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<Bytes>> + Send + 'static,
) -> Body {
    let frames =
        futures_util::stream::poll_fn(move |cx| next(cx).map(|piece| piece.map(|piece| Ok(BodyFrame::data(piece)))));
    StreamBody::new(frames).boxed_unsync()
}

/// The client's side.
struct Client {
    io: DuplexStream,
    server: Server,
    /// Whether a caller has been authenticated on the connection.
    is_known: Arc<AtomicBool>,
    budget: Arc<RequestHeadBudget>,
    ended: tokio::task::JoinHandle<Result<(), String>>,
    /// Starts the graceful shutdown when it is dropped.
    leave: Option<tokio::sync::oneshot::Sender<()>>,
}

const LIMITS: Http2Limits = Http2Limits {
    streams_max: 4,
    header_bytes_max: 1_000,
    header_max: Duration::from_secs(10),
    ping_after: Duration::from_secs(30),
};
/// GET, http, `/`.
const GET: &[u8] = &[0x82, 0x86, 0x84];
/// POST, http, `/`.
const POST: &[u8] = &[0x83, 0x86, 0x84];

impl Client {
    async fn new(buffer: usize) -> Self {
        Self::limited(LIMITS, true, buffer).await
    }

    async fn limited(limits: Http2Limits, is_known: bool, buffer: usize) -> Self {
        let budget = Arc::<RequestHeadBudget>::default();
        let (heads, is_known) = (budget.connection(), Arc::new(AtomicBool::new(is_known)));
        let (near, far) = tokio::io::duplex(buffer);
        let server = Server::default();
        let (answering, known) = (server.clone(), is_known.clone());
        let (leave, left) = tokio::sync::oneshot::channel::<()>();
        let ended = tokio::spawn(async move {
            let service = Answering(move |request| Some(answering.answer(request)), known);
            let mut connection = Http2Connection::new(far, limits, heads, service);
            let ended = tokio::select! {
                biased;
                ended = poll_fn(|cx| connection.poll(cx)) => Some(ended),
                _ = left => None,
            };
            let ended = if let Some(ended) = ended {
                ended
            } else {
                connection.begin_goaway();
                poll_fn(|cx| connection.poll(cx)).await
            };
            ended.map_err(|error| error.to_string())
        });
        let mut this = Self { io: near, server, is_known, budget, ended, leave: Some(leave) };
        this.put(Http2FrameType::Settings, 0, 0, &[]).await;
        assert_eq!(this.next().await.0.kind, Http2FrameType::Settings);
        assert_eq!(this.next().await.0.kind, Http2FrameType::WindowUpdate);
        assert_eq!(this.next().await.0, Http2FrameHeader::new(Http2FrameType::Settings, ACK, 0, 0));
        this
    }

    async fn put(&mut self, kind: Http2FrameType, flags: u8, stream: u32, payload: &[u8]) {
        let bytes = [&Http2FrameHeader::new(kind, flags, stream, payload.len()).bytes(), payload].concat();
        self.io.write_all(&bytes).await.expect("open");
    }

    async fn ask(&mut self, stream: u32, block: &[u8], ends: bool) {
        let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
        self.put(Http2FrameType::Headers, flags, stream, block).await;
    }

    async fn next(&mut self) -> (Http2FrameHeader, Vec<u8>) {
        let mut head = [0; HEAD_BYTES];
        self.io.read_exact(&mut head).await.expect("open");
        let head = Http2FrameHeader::read(&head).expect("whole");
        let mut payload = vec![0; head.length];
        self.io.read_exact(&mut payload).await.expect("open");
        (head, payload)
    }

    /// The next frame, whose payload consists of 32-bit numbers.
    async fn numbers(&mut self) -> (Http2FrameType, u32, Vec<u32>) {
        let (head, payload) = self.next().await;
        let numbers = payload.chunks_exact(4).map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four")));
        (head.kind, head.stream, numbers.collect())
    }

    async fn window(&mut self, stream: u32, bytes: u32) {
        self.put(Http2FrameType::WindowUpdate, 0, stream, &bytes.to_be_bytes()).await;
    }
}

fn reset(stream: u32, reason: Http2ErrorCode) -> (Http2FrameType, u32, Vec<u32>) {
    (Http2FrameType::Reset, stream, vec![reason as u32])
}

#[tokio::test(start_paused = true)]
async fn responses_are_streamed_and_interleaved() {
    let mut client = Client::new(1 << 16).await;
    client.ask(1, GET, true).await;
    client.ask(3, GET, true).await;
    for stream in [1, 3] {
        let (head, block) = client.next().await;
        assert_eq!((head.kind, head.flags, head.stream), (Http2FrameType::Headers, END_HEADERS, stream));
        assert_eq!(block.first(), Some(if stream == 1 { &0x20 } else { &0x88 }), "the empty table is announced once");
    }
    for (request, stream) in [(1, 3), (0, 1), (1, 3)] {
        client.server.send(request, &b"event"[..]);
        let (head, data) = client.next().await;
        assert_eq!((head, &data[..]), (Http2FrameHeader::new(Http2FrameType::Data, 0, stream, 5), &b"event"[..]));
    }
    client.server.0.lock().clear();
    for _ in 0..2 {
        let (head, _) = client.next().await;
        assert_eq!((head.kind, head.flags, head.length), (Http2FrameType::Data, END_STREAM, 0));
    }
    drop(client.io);
    assert_eq!(client.ended.await.expect("no panic"), Ok(()));
}

/// Covers the windows of the stream and of the connection, and settings that change them.
#[tokio::test(start_paused = true)]
async fn response_data_respects_flow_control_windows() {
    let mut client = Client::new(1 << 20).await;
    let setting = |bytes: u32| [&[0, 4][..], &bytes.to_be_bytes()].concat();
    client.put(Http2FrameType::Settings, 0, 0, &setting(10)).await;
    assert_eq!(client.next().await.0.kind, Http2FrameType::Settings);
    client.ask(1, GET, true).await;
    client.next().await;
    let sent: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    sent.chunks(70_000).for_each(|piece| client.server.send(0, piece.to_vec()));
    let mut seen = client.next().await.1;
    assert_eq!(seen.len(), 10);
    // The window is now -10, so the first update only brings it to zero.
    client.put(Http2FrameType::Settings, 0, 0, &setting(0)).await;
    assert_eq!(client.next().await.0.kind, Http2FrameType::Settings);
    client.window(1, 10).await;
    client.window(1, 1).await;
    let one = client.next().await.1;
    assert_eq!(one.len(), 1);
    seen.extend(one);
    client.window(1, HIGHEST - 10).await;
    while seen.len() < 65_535 {
        seen.extend(client.next().await.1);
    }
    assert_eq!(seen.len(), 65_535, "the connection's window");
    assert!(timeout(Duration::from_millis(50), client.next()).await.is_err());
    client.window(0, 5).await;
    let five = client.next().await.1;
    assert_eq!(five.len(), 5);
    seen.extend(five);
    client.window(0, 1_000_000).await;
    while seen.len() < sent.len() {
        seen.extend(client.next().await.1);
    }
    assert_eq!(seen, sent);
}

/// A client that returns the connection's window in small steps.
#[tokio::test(start_paused = true)]
async fn streams_share_connection_window_round_robin() {
    let mut client = Client::new(1 << 20).await;
    for stream in [1, 3, 5] {
        client.ask(stream, GET, true).await;
        client.next().await;
        client.window(stream, 1 << 20).await;
    }
    client.server.send(0, vec![0; 200_000]);
    let mut sent = 0;
    while sent < 65_535 {
        sent += client.next().await.0.length;
    }
    client.server.send(1, &b"event"[..]);
    client.server.send(2, &b"event"[..]);
    let mut reported = Vec::new();
    for _ in 0..4 {
        client.window(0, 1_000).await;
        reported.push(client.next().await.0);
        if reported.last().is_some_and(|head| head.length < 1_000) {
            // Another stream uses the rest.
            reported.push(client.next().await.0);
        }
    }
    for stream in [3, 5] {
        assert!(reported.iter().any(|head| head.stream == stream && head.length == 5), "{stream}: {reported:?}");
    }
}

/// A client that reads as fast as the server sends, with unlimited windows.
#[tokio::test(start_paused = true)]
async fn large_responses_yield_to_other_tasks() {
    const LARGE: usize = 8 << 20;
    let mut client = Client::new(64 << 20).await;
    let setting = [&[0, 4][..], &HIGHEST.to_be_bytes()].concat();
    client.put(Http2FrameType::Settings, 0, 0, &setting).await;
    assert_eq!(client.next().await.0.kind, Http2FrameType::Settings);
    client.window(0, HIGHEST - 65_535).await;
    for stream in [1, 3, 5, 7] {
        client.ask(stream, GET, true).await;
        client.next().await;
    }
    (0..4).for_each(|request| client.server.send(request, vec![0; LARGE]));
    let Client { mut io, ended, .. } = client;
    // A task of its own, which runs after each turn of the other.
    let reading = tokio::spawn(async move {
        let (mut read, mut part, mut most) = (0, vec![0; 4 * LARGE], 0);
        while read < 4 * LARGE {
            // Everything that was written while this task did not run.
            let length = io.read(&mut part).await.expect("open");
            (read, most) = (read + length, most.max(length));
        }
        most
    });
    let most = reading.await.expect("no panic");
    ended.abort();
    assert!(most <= SENT_BYTES_MAX + 2 * DIRECT_BYTES_MAX, "{most} bytes at once");
}

/// The reader of an upload gets an error when the connection ends.
#[tokio::test(start_paused = true)]
async fn incomplete_upload_fails_when_connection_ends() {
    let mut client = Client::new(1 << 16).await;
    client.ask(1, POST, false).await;
    client.put(Http2FrameType::Data, 0, 1, b"data").await;
    client.next().await;
    let (request, ..) = client.server.0.lock().remove(0);
    let taken = tokio::spawn(request.into_body().collect());
    client.ended.abort();
    let taken = timeout(Duration::from_secs(60), taken).await.expect("it ends in time").expect("no panic");
    assert!(taken.is_err());
}

#[tokio::test(start_paused = true)]
async fn reset_stream_does_not_affect_other_streams() {
    let mut client = Client::new(1 << 16).await;
    for stream in [1, 3, 5] {
        client.ask(stream, GET, true).await;
        client.next().await;
    }
    client.server.0.lock()[0].2.abort("test");
    assert_eq!(client.numbers().await, reset(1, Http2ErrorCode::Cancel));
    client.put(Http2FrameType::Reset, 0, 3, &8_u32.to_be_bytes()).await;
    client.put(Http2FrameType::Ping, 0, 0, b"12345678").await;
    assert_eq!(client.next().await.1, b"12345678");
    assert!(client.server.0.lock()[1].1.is_closed(), "its body is dropped");
    client.server.send(2, &b"event"[..]);
    assert_eq!(client.next().await.0.stream, 5);
}

#[tokio::test(start_paused = true)]
async fn streams_above_limit_are_refused_until_one_ends() {
    let mut client = Client::new(1 << 16).await;
    for stream in [1, 3, 5, 7] {
        client.ask(stream, GET, true).await;
        client.next().await;
    }
    client.ask(9, GET, true).await;
    assert_eq!(client.numbers().await, reset(9, Http2ErrorCode::Refused));
    client.put(Http2FrameType::Reset, 0, 1, &8_u32.to_be_bytes()).await;
    client.ask(11, GET, true).await;
    assert_eq!(client.next().await.0.stream, 11);
    assert_eq!(client.server.request_count(), 5);
}

#[tokio::test(start_paused = true)]
async fn upload_larger_than_windows_is_received_whole() {
    let mut client = Client::new(1 << 16).await;
    client.ask(1, POST, false).await;
    client.next().await;
    let (request, pieces, _) = client.server.0.lock().remove(0);
    let taken = tokio::spawn(async move { request.into_body().collect().await.expect("whole").to_bytes() });
    let sent: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut room = [(0, 1 << 20), (1, 256 << 10)];
    for (at, piece) in sent.chunks(16_000).enumerate() {
        while room.iter().any(|(_, room)| *room < piece.len()) {
            let (kind, stream, increment) = client.numbers().await;
            assert_eq!(kind, Http2FrameType::WindowUpdate);
            room[stream as usize].1 += increment[0] as usize;
        }
        room.iter_mut().for_each(|(_, room)| *room -= piece.len());
        let flags = if (at + 1) * 16_000 >= sent.len() { END_STREAM } else { 0 };
        client.put(Http2FrameType::Data, flags, 1, piece).await;
    }
    assert_eq!(taken.await.expect("no panic"), sent);
    drop(pieces);
    loop {
        let (head, _) = client.next().await;
        if head.kind == Http2FrameType::Data {
            assert_eq!(head.flags, END_STREAM);
            break;
        }
        assert_eq!((head.kind, head.stream), (Http2FrameType::WindowUpdate, 0), "the stream has ended");
    }
}

/// Reads a frame, and counts the connection window that it returns.
async fn read(client: &mut Client, room: &mut usize) -> Http2FrameType {
    let (head, payload) = client.next().await;
    if (head.kind, head.stream) == (Http2FrameType::WindowUpdate, 0) {
        *room += u32::from_be_bytes(payload[..4].try_into().expect("four")) as usize;
    }
    head.kind
}

/// The window of unread uploads is returned when their streams end, however they end.
#[tokio::test(start_paused = true)]
async fn connection_window_is_returned_when_uploads_end() {
    let mut client = Client::new(1 << 20).await;
    let mut room: usize = 1 << 20;
    for round in 0..40_u32 {
        let stream = 2 * round + 1;
        client.ask(stream, POST, false).await;
        let piece = vec![0; 16_000];
        for _ in 0..10 {
            while room < piece.len() {
                read(&mut client, &mut room).await;
            }
            room -= piece.len();
            client.put(Http2FrameType::Data, 0, stream, &piece).await;
        }
        if round % 2 == 0 {
            client.put(Http2FrameType::Reset, 0, stream, &8_u32.to_be_bytes()).await;
        } else {
            client.put(Http2FrameType::Ping, 0, 0, &[1; 8]).await;
            while read(&mut client, &mut room).await != Http2FrameType::Ping {}
            client.server.0.lock().iter().for_each(|(_, _, cut)| cut.abort("test"));
        }
    }
    client.put(Http2FrameType::Ping, 0, 0, &[2; 8]).await;
    while read(&mut client, &mut room).await != Http2FrameType::Ping {}
    assert_eq!(client.server.request_count(), 40, "forty uploads of 160 KB through a window of a megabyte");
}

#[tokio::test(start_paused = true)]
async fn goaway_is_two_step_and_accepted_requests_complete() {
    let mut client = Client::new(1 << 16).await;
    client.ask(1, GET, true).await;
    client.next().await;
    client.leave = None;
    assert_eq!(client.numbers().await, (Http2FrameType::GoAway, 0, vec![HIGHEST, 0]));
    let (ping, opaque) = client.next().await;
    assert_eq!(ping.kind, Http2FrameType::Ping);
    client.ask(3, GET, true).await;
    client.next().await;
    client.put(Http2FrameType::Ping, ACK, 0, &opaque).await;
    assert_eq!(client.numbers().await, (Http2FrameType::GoAway, 0, vec![3, 0]));
    // A request that was on its way is ignored, with its body and its reset.
    client.ask(5, POST, false).await;
    client.put(Http2FrameType::Data, 0, 5, b"data").await;
    client.window(5, 10).await;
    client.put(Http2FrameType::Reset, 0, 5, &8_u32.to_be_bytes()).await;
    client.server.send(1, &b"event"[..]);
    assert_eq!(client.next().await.0.stream, 3);
    assert_eq!(client.server.request_count(), 2);
    client.server.0.lock().clear();
    for _ in 0..2 {
        assert_eq!(client.next().await.0.flags, END_STREAM);
    }
    assert_eq!(client.io.read(&mut [0]).await.expect("closed"), 0);
    // The client returns window for data it has read. Closing a socket before reading that would reset it.
    for _ in 0..20 {
        client.window(0, 4_096).await;
    }
    assert!(!client.ended.is_finished(), "it waits for its client");
    drop(client.io);
    assert_eq!(client.ended.await.expect("no panic"), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn connection_closes_one_second_after_final_goaway() {
    let mut client = Client::new(1 << 16).await;
    client.leave = None;
    assert_eq!(client.numbers().await.0, Http2FrameType::GoAway);
    let (_, opaque) = client.next().await;
    client.put(Http2FrameType::Ping, ACK, 0, &opaque).await;
    assert_eq!(client.numbers().await.0, Http2FrameType::GoAway);
    let begun = Instant::now();
    assert_eq!(client.io.read(&mut [0]).await.expect("closed"), 0);
    assert_eq!(client.ended.await.expect("no panic"), Ok(()));
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_pinged_and_closed_without_ping_ack() {
    let mut client = Client::new(1 << 16).await;
    let begun = Instant::now();
    client.ask(1, GET, true).await;
    client.next().await;
    for at in [30, 60] {
        let (ping, opaque) = client.next().await;
        assert_eq!((ping.kind, ping.flags, begun.elapsed().as_secs()), (Http2FrameType::Ping, 0, at));
        client.put(Http2FrameType::Ping, ACK, 0, &opaque).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.next().await.0.kind, Http2FrameType::Ping);
    let ended = client.ended.await.expect("no panic");
    assert_eq!(
        (ended, begun.elapsed().as_secs()),
        (Err("the client did not acknowledge a PING in time".to_owned()), 120)
    );
}

#[tokio::test(start_paused = true)]
async fn stream_past_its_deadline_is_reset() {
    let mut client = Client::new(1 << 16).await;
    for stream in [1, 3] {
        client.ask(stream, GET, true).await;
        client.next().await;
    }
    let begun = Instant::now();
    for (request, seconds) in [(0, 20), (1, 10)] {
        client.server.0.lock()[request].2.set_timeout(Duration::from_secs(seconds), "too_slow");
        client.server.send(request, &b"event"[..]);
        client.next().await;
    }
    for (stream, seconds) in [(3, 10), (1, 20)] {
        assert_eq!(
            (client.numbers().await, begun.elapsed().as_secs()),
            (reset(stream, Http2ErrorCode::Cancel), seconds)
        );
    }
}
