//! Tests of polls whose slice of a core has ended.

use std::task::{Context, Waker};

use super::*;
use crate::connection::STARTED_MAX;
use crate::output::FrameOutputBuffer;

const STREAMS: u32 = 4;

/// SETTINGS, and a GET on each of so many streams.
fn requests_on(streams: u32) -> Vec<u8> {
    let frame = |kind, flags, stream, payload: &[u8]| {
        [&Http2FrameHeader::new(kind, flags, stream, payload.len()).bytes(), payload].concat()
    };
    let gets = (0..streams).map(|at| frame(Http2FrameType::Headers, END_HEADERS | END_STREAM, 2 * at + 1, GET));
    std::iter::once(frame(Http2FrameType::Settings, 0, 0, &[])).chain(gets).flatten().collect()
}

#[tokio::test]
async fn pending_requests_start_in_small_batches() {
    const MANY: u32 = 100;
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let heads = Arc::<RequestHeadBudget>::default().connection();
    // The number of requests begun, the most that had begun and were not polled, and the number polled.
    let counts = Arc::new(Mutex::new((0, 0, 0)));
    let counted = counts.clone();
    let limits = Http2Limits { streams_max: MANY as usize, ..LIMITS };
    let service = known(move |_| {
        let (polled, mut counts) = (counted.clone(), counted.lock());
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0 - counts.2);
        let answer = std::future::poll_fn(move |_| {
            polled.lock().2 += 1;
            std::task::Poll::<Response<Body>>::Pending
        });
        Some((answer, AbortSignal::default()))
    });
    let mut http2 = Http2Connection::new(far, limits, heads, service);
    near.write_all(&requests_on(MANY)).await.expect("open");
    while !http2.wake_set().is_empty() {
        assert!(http2.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(*counts.lock(), (MANY, u32::try_from(STARTED_MAX).expect("few"), MANY));
}

#[tokio::test]
async fn connection_waiting_for_turn_holds_no_thread_buffer() {
    let mut waiting = [(); 2].map(|()| {
        let heads = Arc::<RequestHeadBudget>::default().connection();
        Http2Connection::new(
            tokio::io::empty(),
            LIMITS,
            heads,
            known(|request| Some(Server::default().answer(request))),
        )
    });
    for connection in &mut waiting {
        assert!((1..100).contains(&connection.output.buffer_bytes()), "its settings");
        // As a turn leaves it.
        connection.output = FrameOutputBuffer::default();
        connection.begin_goaway();
        let bytes = connection.output.buffer_bytes();
        assert!((1..100).contains(&bytes), "{bytes} bytes for its goodbye");
    }
}

/// The requests and frames after each poll until nothing is left to do. `is_over` states whether each poll has had
/// its slice when it begins.
async fn polls(is_over: bool) -> Vec<(usize, usize)> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (mut from, mut to) = tokio::io::split(near);
    let server = Server::default();
    let (heads, answering) = (Arc::<RequestHeadBudget>::default().connection(), server.clone());
    let mut http2 = Http2Connection::new(far, LIMITS, heads, known(move |request| Some(answering.answer(request))));
    to.write_all(&requests_on(STREAMS)).await.expect("open");
    let (mut seen, mut sent) = (Vec::new(), 0);
    for piece in 0.. {
        while !http2.wake_set().is_empty() {
            let ends = Instant::now();
            http2.wake_set().limit_turn(is_over.then_some(ends));
            assert!(http2.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            let mut bytes = vec![0; 1 << 16];
            let read = std::pin::pin!(from.read(&mut bytes)).poll(&mut Context::from_waker(Waker::noop()));
            if let std::task::Poll::Ready(read) = read {
                let text = String::from_utf8_lossy(&bytes[..read.expect("open")]).into_owned();
                sent += text.matches("event").count();
            }
            seen.push((server.request_count(), sent));
        }
        if piece > 0 {
            break;
        }
        (0..server.request_count()).for_each(|request| server.send(request, "event"));
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn poll_past_its_slice_defers_remaining_streams_and_requests() {
    let all = STREAMS as usize;
    assert_eq!(polls(false).await, [(all, 0), (all, all)]);
    let seen = polls(true).await;
    let steps = seen.iter().zip(&seen[1..]).map(|(before, after)| (after.0 - before.0, after.1 - before.1));
    assert_eq!((seen[0].0, seen.last()), (1, Some(&(all, all))));
    // One in any case, and one more before the poll checks the clock again.
    assert!(steps.clone().all(|(request_count, sent)| request_count <= 1 && sent <= 2), "{seen:?}");
}
