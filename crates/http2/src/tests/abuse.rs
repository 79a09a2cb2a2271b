//! Clients that break rules, exceed limits, or send useless frames.

use futures_util::FutureExt as _;

use super::*;
use crate::head_budget::HEADS_BYTES_MAX;
use crate::output::BUFFERED_BYTES_MAX;
use crate::windows::UPLOAD_BYTES_MAX;

/// More useless frames than a client may send at once.
const TOO_MANY: usize = 1_100;

fn bytes(kind: Http2FrameType, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&Http2FrameHeader::new(kind, flags, stream, payload.len()).bytes(), payload].concat()
}

fn get(stream: u32) -> Vec<u8> {
    bytes(Http2FrameType::Headers, END_HEADERS | END_STREAM, stream, GET)
}

impl Client {
    async fn write(&mut self, frames: &[Vec<u8>]) {
        self.io.write_all(&frames.concat()).await.expect("open");
    }

    /// Reads up to the end of the connection. Returns the error code that the server gives.
    async fn reason(&mut self) -> u32 {
        loop {
            let (head, payload) = self.next().await;
            if head.kind == Http2FrameType::GoAway {
                return u32::from_be_bytes(payload[4..8].try_into().expect("four"));
            }
        }
    }
}

/// Go's client returns window like this for data it has read: thousands of times, long after the response has ended.
#[tokio::test(start_paused = true)]
async fn window_updates_after_response_end_cost_no_abuse_budget() {
    let mut client = Client::new(1 << 20).await;
    client.ask(1, GET, true).await;
    client.next().await;
    client.server.send(0, vec![0; 60_000]);
    client.server.0.lock().clear();
    while client.next().await.0.flags != END_STREAM {}
    for _ in 0..5_000 {
        client.window(1, 12).await;
        client.window(0, 12).await;
    }
    client.put(Http2FrameType::Ping, 0, 0, &[1; 8]).await;
    assert_eq!(client.next().await.0.kind, Http2FrameType::Ping);
}

/// A client that sends requests in a loop and never reads.
#[tokio::test(start_paused = true)]
async fn output_queued_for_unreading_client_is_bounded() {
    let mut client = Client::new(1 << 10).await;
    let mut taken = 0;
    while timeout(Duration::from_millis(200), client.put(Http2FrameType::Ping, 0, 0, &[0; 8])).await.is_ok() {
        taken += 1;
    }
    // A ping and its reply are 17 bytes each. The abuse budget ends the connection after a thousand pings, long before
    // the output limit.
    assert!(taken <= 1_100, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn protocol_violation_sends_goaway_with_reason_and_closes() {
    for (kind, flags, stream, payload, reason) in [
        (Http2FrameType::Data, 0, 1, &b"data"[..], Http2ErrorCode::Protocol),
        (Http2FrameType::Headers, END_HEADERS, 2, GET, Http2ErrorCode::Protocol),
        (Http2FrameType::Headers, END_HEADERS, 1, &[0x80], Http2ErrorCode::Compression),
        (Http2FrameType::Reset, 0, 1, &[0, 0, 0, 8], Http2ErrorCode::Protocol),
        (Http2FrameType::WindowUpdate, 0, 0, &[127, 255, 255, 255], Http2ErrorCode::FlowControl),
        (Http2FrameType::Settings, 0, 0, &[0, 4, 255, 255, 255, 255], Http2ErrorCode::FlowControl),
        (Http2FrameType::Ping, 0, 0, &[0; 7], Http2ErrorCode::FrameSize),
        (Http2FrameType::Continuation, 0, 1, &[], Http2ErrorCode::Protocol),
    ] {
        let mut client = Client::new(1 << 16).await;
        client.put(kind, flags, stream, payload).await;
        assert_eq!(client.numbers().await, (Http2FrameType::GoAway, 0, vec![0, reason as u32]), "{kind:?}");
        assert_eq!(client.io.read(&mut [0]).await.expect("closed"), 0);
        assert!(client.ended.await.expect("no panic").is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn window_update_flood_without_data_ends_connection() {
    for stream in [0, 1, 3] {
        let mut client = Client::new(1 << 20).await;
        for id in [1, 3] {
            client.ask(id, GET, true).await;
            client.next().await;
        }
        client.put(Http2FrameType::Reset, 0, 3, &8_u32.to_be_bytes()).await;
        client.write(&vec![bytes(Http2FrameType::WindowUpdate, 0, stream, &[0, 0, 0, 1]); TOO_MANY]).await;
        assert_eq!(client.reason().await, Http2ErrorCode::EnhanceYourCalm as u32, "stream {stream}");
    }
}

#[tokio::test(start_paused = true)]
async fn data_on_reset_stream_is_free_and_returns_connection_window() {
    let mut client = Client::new(1 << 20).await;
    for stream in [1, 3] {
        client.ask(stream, POST, false).await;
        client.next().await;
        client.server.0.lock()[stream as usize / 2].2.abort("test");
        assert_eq!(client.numbers().await, reset(stream, Http2ErrorCode::Cancel));
        // More frames than the abuse budget allows.
        let sent = bytes(Http2FrameType::Data, 0, stream, &[0; 128]);
        client.write(&vec![sent; UPLOAD_BYTES_MAX / 128]).await;
    }
    assert_eq!(
        client.numbers().await,
        (Http2FrameType::WindowUpdate, 0, vec![2 * u32::try_from(UPLOAD_BYTES_MAX).expect("few")])
    );
    client.put(Http2FrameType::Ping, 0, 0, &[1; 8]).await;
    assert_eq!(client.next().await.0.kind, Http2FrameType::Ping);
    client.write(&vec![bytes(Http2FrameType::Data, 0, 1, &[0]); TOO_MANY]).await;
    assert_eq!(client.reason().await, Http2ErrorCode::EnhanceYourCalm as u32);
}

/// A stream with a long response, whose request body nothing reads.
#[tokio::test(start_paused = true)]
async fn unread_request_body_is_limited_to_its_window() {
    let mut client = Client::new(1 << 20).await;
    client.ask(1, POST, false).await;
    client.next().await;
    let (request, _pieces, _cut) = client.server.0.lock().remove(0);
    drop(request);
    client.write(&vec![bytes(Http2FrameType::Data, 0, 1, &[0; 1 << 14]); UPLOAD_BYTES_MAX >> 14]).await;
    client.put(Http2FrameType::Ping, 0, 0, &[1; 8]).await;
    assert_eq!(client.next().await.0.kind, Http2FrameType::Ping, "the window of the stream is not given back");
    client.put(Http2FrameType::Data, 0, 1, &[0]).await;
    assert_eq!(client.numbers().await, reset(1, Http2ErrorCode::FlowControl));
}

#[tokio::test(start_paused = true)]
async fn unfinished_header_block_times_out_and_ends_connection() {
    let begun = [
        bytes(Http2FrameType::Headers, END_STREAM, 1, GET),
        bytes(Http2FrameType::Headers, END_HEADERS, 1, GET)[..10].to_vec(),
        [bytes(Http2FrameType::Headers, END_STREAM, 1, GET), bytes(Http2FrameType::Continuation, 0, 1, &[])].concat(),
    ];
    for begun in begun {
        let mut client = Client::new(1 << 16).await;
        // A block finished in time does not count.
        client.put(Http2FrameType::Headers, END_STREAM, 1, GET).await;
        tokio::time::sleep(LIMITS.header_max.mul_f64(0.9)).await;
        client.put(Http2FrameType::Continuation, END_HEADERS, 1, &[]).await;
        client.next().await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        let start = Instant::now();
        client.io.write_all(&begun).await.expect("open");
        // The first stream has begun already.
        assert_eq!(client.reason().await, Http2ErrorCode::EnhanceYourCalm as u32);
        assert_eq!(start.elapsed().as_secs(), LIMITS.header_max.as_secs());
        assert!(client.ended.await.expect("no panic").is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn unfinished_header_block_beyond_budget_ends_connection() {
    let limits = Http2Limits { header_bytes_max: 64 << 10, ..LIMITS };
    let mut client = Client::limited(limits, false, 1 << 16).await;
    let others = client.budget.connection();
    assert!(others.hold_unfinished((16 << 20) + (16 << 10)));
    client.put(Http2FrameType::Headers, END_STREAM, 1, &[0; 1 << 14]).await;
    client.put(Http2FrameType::Continuation, 0, 1, &[0; 1 << 14]).await;
    assert_eq!(client.reason().await, Http2ErrorCode::EnhanceYourCalm as u32);
    drop(client.io);
    let ended = client.ended.await.expect("no panic").expect_err("it breaks a rule");
    assert!(ended.contains("too many incomplete header blocks"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn requests_on_unauthenticated_connection_start_one_at_a_time() {
    let mut client = Client::limited(LIMITS, false, 1 << 16).await;
    client.write(&[get(1), get(3), get(5), bytes(Http2FrameType::Ping, 0, 0, &[1; 8])]).await;
    assert_eq!(client.next().await.0.stream, 1);
    // Other frames wait as well.
    client.put(Http2FrameType::Ping, 0, 0, &[2; 8]).await;
    client.server.send(0, &b"event"[..]);
    assert_eq!((client.next().await.0.kind, client.server.request_count()), (Http2FrameType::Data, 1));
    // The next one begins when the first is over.
    client.server.0.lock().clear();
    assert_eq!(client.next().await.0.flags, END_STREAM);
    assert_eq!((client.next().await.0.stream, client.server.request_count()), (3, 1));
    // All of them begin once the caller is known.
    client.is_known.store(true, Ordering::Relaxed);
    client.server.send(0, &b"event"[..]);
    let kinds = [client.next().await.0, client.next().await.0, client.next().await.0, client.next().await.0];
    assert_eq!(
        kinds.map(|head| head.kind),
        [Http2FrameType::Data, Http2FrameType::Ping, Http2FrameType::Ping, Http2FrameType::Headers]
    );
    assert_eq!(client.server.request_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn body_of_unauthenticated_request_waits_unread() {
    let mut client = Client::limited(LIMITS, false, 1 << 20).await;
    client.ask(1, POST, false).await;
    assert_eq!(client.next().await.0.stream, 1);
    let (request, pieces, _cut) = client.server.0.lock().remove(0);
    let mut body = request.into_body();
    client.write(&vec![bytes(Http2FrameType::Data, 0, 1, &[b'x'; 1 << 14]); UPLOAD_BYTES_MAX >> 14]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(body.frame().now_or_never().is_none(), "nothing of it is in memory");
    client.is_known.store(true, Ordering::Relaxed);
    pieces.send(Bytes::from_static(b"event")).expect("the stream is there");
    let mut received = 0;
    while received < UPLOAD_BYTES_MAX {
        received += body.frame().await.expect("more").expect("whole").into_data().expect("data").len();
    }
}

#[tokio::test(start_paused = true)]
async fn request_heads_beyond_budget_are_refused_until_released() {
    let mut client = Client::new(1 << 16).await;
    let _all = client.budget.connection().charge(HEADS_BYTES_MAX).expect("the budget is empty");
    // Both come before the first is answered.
    client.write(&[get(1), get(3)]).await;
    assert_eq!(client.numbers().await, reset(3, Http2ErrorCode::Refused));
    assert_eq!(client.next().await.0.stream, 1);
    client.ask(5, GET, true).await;
    assert_eq!((client.next().await.0.stream, client.server.request_count()), (5, 2));
}

#[tokio::test(start_paused = true)]
async fn indexed_value_is_shared_by_requests() {
    let mut client = Client::new(1 << 16).await;
    let kept = [GET, &[0x40, 1, b'x', 0x7f, 0x81, 2], &[b'v'; 384]].concat();
    let again = [GET, &[0xbe]].concat();
    for (stream, block) in [(1, &kept), (3, &again), (5, &again)] {
        client.ask(stream, block, true).await;
        client.next().await;
    }
    let requests = client.server.0.lock();
    let values: Vec<_> = requests.iter().map(|(request, ..)| request.headers()["x"].as_bytes()).collect();
    assert!(values.iter().all(|value| value.len() == 384 && value.as_ptr() == values[0].as_ptr()));
}

#[tokio::test(start_paused = true)]
async fn response_heads_above_queue_limit_reset_their_streams() {
    let mut client = Client::new(1 << 10).await;
    // The first one fills the output, and two fit into what may wait.
    client.server.1.store(BUFFERED_BYTES_MAX + (136 << 10), Ordering::Relaxed);
    client.write(&[get(1), get(3), get(5), get(7)]).await;
    let (mut heads, mut resets) = (Vec::new(), Vec::new());
    while heads.len() < 3 {
        let (head, _) = client.next().await;
        if head.kind == Http2FrameType::Reset {
            resets.push(head.stream);
        } else if head.flags & END_HEADERS != 0 {
            heads.push(head.stream);
        }
    }
    assert_eq!((heads, resets), (vec![1, 3, 5], vec![7]));
}

#[tokio::test]
async fn response_head_beyond_listener_budget_resets_stream() {
    let mut client = Client::new(1 << 10).await;
    // Each of them fills the output.
    client.server.1.store(BUFFERED_BYTES_MAX + (8 << 10), Ordering::Relaxed);
    client.write(&[get(1)]).await;
    while client.server.request_count() < 1 {
        tokio::task::yield_now().await;
    }
    let _others = client.budget.connection().charge(HEADS_BYTES_MAX).expect("the budget is empty");
    client.write(&[get(3)]).await;
    let (mut headers, mut resets) = (Vec::new(), Vec::new());
    while headers.is_empty() || resets.is_empty() {
        let (head, payload) = client.next().await;
        if head.kind == Http2FrameType::Reset {
            resets.push((head.stream, payload));
        } else if head.flags & END_HEADERS != 0 {
            headers.push(head.stream);
        }
    }
    assert_eq!((headers, resets), (vec![1], vec![(3, (Http2ErrorCode::EnhanceYourCalm as u32).to_be_bytes().into())]));
}
