//! The start of a connection (RFC 9113 §3.4), and the effect of its settings.

use std::collections::BTreeMap;

use super::frames::{
    ACK, CONTINUATION, END_HEADERS, END_STREAM, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS, PREFACE, PROTOCOL_ERROR, SETTINGS, frame, get, hello, hello_with, ping, request, settings,
    window,
};
use super::hpack::{Literal, literal};
use super::rows::{
    Before,
    Outcome::{Closed, Ends, Ignored},
    SMALL, hold, proxy,
};
use super::wire::{ReceivedFrames, Wire};
use crate::direct::{self, Protocol};

/// The connection ends, and nothing reaches upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_preface_closes_connection() {
    let (upstream, app) = proxy().await;
    let mut wrong = PREFACE.to_vec();
    wrong[23] = b' ';
    let lines = b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec();
    let small = get(1, SMALL);
    for (name, sent) in [
        ("its last byte is wrong", [wrong, settings(&[]), small.clone()].concat()),
        ("its last word is wrong", [lines, settings(&[]), small.clone()].concat()),
        ("another version", [b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n".as_slice(), &settings(&[]), &small].concat()),
        ("frames without it", [settings(&[]), small.clone()].concat()),
    ] {
        let mut wire = Wire::to(&app.over(Protocol::Http2)).await;
        wire.is_read = false;
        wire.write(&sent).await;
        // Input other than HTTP/2 may be answered as malformed HTTP/1.1.
        wire.until(name, |received| received.is_over).await;
    }
    assert!(upstream.seen(SMALL).is_empty());
}

/// The first frame is SETTINGS (RFC 9113 §3.4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closes_if_first_frame_is_not_settings() {
    let (_upstream, app) = proxy().await;
    let first = |bytes: Vec<u8>| [PREFACE, &bytes, &settings(&[]), &get(1, SMALL)].concat();
    let refused = || vec![Ends(PROTOCOL_ERROR), Closed];
    let rows = vec![
        ("settings", first(settings(&[(INITIAL_WINDOW_SIZE, 100)])), vec![Ignored]),
        ("a ping", first(ping(1)), refused()),
        ("a window", first(window(0, 1)), refused()),
        ("a frame of no known kind", first(frame(0xfa, 0, 0, &[])), refused()),
    ];
    hold(&app, vec![("the first frame", Before::Nothing, rows)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_preface_or_frame_closes_connection() {
    let (_upstream, app) = proxy().await;
    for bytes in [1, 3, 14, 18, 23] {
        let mut wire = Wire::to(&app).await;
        wire.is_read = false;
        wire.write(&PREFACE[..bytes]).await;
        wire.finish().await;
        wire.until("the connection's end", |received| received.is_over).await;
    }
    let mut wire = Wire::to(&app).await;
    wire.send(&[hello(), get(1, SMALL)[..12].to_vec()].concat()).await;
    wire.finish().await;
    wire.until("the end of half a frame", |received| received.is_over).await;
    assert!(wire.received.streams.is_empty());
}

/// The result does not depend on how the bytes are split.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_split_into_single_bytes_are_served() {
    let (_upstream, app) = proxy().await;
    let block = [request("GET", SMALL, &[]), literal(Literal::Remembered, b"x-a", b"b")].concat();
    let parts =
        [frame(HEADERS, END_STREAM, 1, &block[..20]), frame(CONTINUATION, END_HEADERS, 1, &block[20..]), ping(7)];
    let bytes = [hello(), parts.concat()].concat();
    for size in [1, 2, 10] {
        let mut wire = Wire::to(&app).await;
        for part in bytes.chunks(size) {
            wire.write(part).await;
            tokio::task::yield_now().await;
        }
        wire.note(&bytes);
        wire.wait("the answer", |received| received.answer(1) == Some(200) && received.pongs == [7]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_and_pings_are_acknowledged_once_in_order() {
    let (_upstream, app) = proxy().await;
    let mut wire = Wire::to(&app).await;
    let all = (1..=20).flat_map(|at| [settings(&[(0xfa00, at)]), ping(u64::from(at))].concat());
    wire.send(&[hello(), all.collect()].concat()).await;
    wire.wait("twenty of each", |received| received.pongs.len() == 20 && received.settings_acks == 21).await;
    assert_eq!(wire.received.pongs, (1..=20).collect::<Vec<_>>());
    wire.settle().await;
    assert_eq!(wire.received.settings_acks, 21);
    // An acknowledgement in excess of the settings is harmless.
    wire.send(&[frame(SETTINGS, ACK, 0, &[]), get(1, SMALL)].concat()).await;
    wire.until("an answer", |received| received.answer(1).is_some()).await;
}

/// The server announces its stream limit, and its other settings are valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_settings_are_valid_and_announce_stream_limit() {
    let (_upstream, app) = proxy().await;
    let mut wire = Wire::to(&app).await;
    // The client may send requests before the server's settings arrive.
    wire.send(&[hello(), get(1, SMALL)].concat()).await;
    wire.wait("an answer", |received| received.answer(1) == Some(200)).await;
    let settings: BTreeMap<_, _> = wire.received.settings.iter().map(|(id, value)| (*id, *value)).collect();
    assert_eq!(settings.get(&MAX_CONCURRENT_STREAMS), Some(&250), "{settings:?}");
    let is_allowed = |(id, value): (&u16, &u32)| match id {
        2 => *value == 0,
        4 => i32::try_from(*value).is_ok(),
        5 => (16_384..1 << 24).contains(value),
        _ => true,
    };
    assert!(settings.iter().all(is_allowed), "{settings:?}");
}

/// The client shrinks and grows its header table. The server must follow and announce it (RFC 7541 §4.2), or the
/// decoder of its blocks fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_header_table_follows_client_size() {
    let (_upstream, app) = proxy().await;
    let mut stream = 1;
    for first in [None, Some(0), Some(64), Some(65_536)] {
        let mut wire = Wire::to(&app).await;
        let ours: Vec<_> = first.map(|bytes| (HEADER_TABLE_SIZE, bytes)).into_iter().collect();
        wire.send(&hello_with(&ours)).await;
        for then in [None, Some(100), Some(0), Some(4_096), Some(60), Some(1 << 20), Some(0)] {
            if let Some(bytes) = then {
                let acks = wire.received.settings_acks;
                wire.send(&settings(&[(HEADER_TABLE_SIZE, bytes)])).await;
                wire.wait("it is acknowledged", |received| received.settings_acks > acks).await;
            }
            for _ in 0..3 {
                wire.send(&get(stream, SMALL)).await;
                wire.wait("an answer", |received: &ReceivedFrames| received.answer(stream) == Some(200)).await;
                stream += 2;
            }
        }
        // Two updates at once: the smallest size counts as well.
        let acks = wire.received.settings_acks;
        let (none, all) = (settings(&[(HEADER_TABLE_SIZE, 0)]), settings(&[(HEADER_TABLE_SIZE, 4_096)]));
        wire.send(&[none, all, get(stream, SMALL), get(stream + 2, SMALL)].concat()).await;
        wire.wait("both are acknowledged", |received| received.settings_acks == acks + 2).await;
        let are_there =
            |received: &ReceivedFrames| [stream, stream + 2].iter().all(|it| received.answer(*it) == Some(200));
        wire.wait("both answers", are_there).await;
        stream += 4;
    }
}

/// The same server answers over TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_over_tls_serves_requests_and_closes_on_http1() {
    let upstream = demo::upstream().run().await;
    let app = direct::app(&upstream).tls().run().await;
    let mut wire = Wire::to(&app.over(Protocol::Http2)).await;
    wire.send(&[hello(), get(1, direct::PODS), ping(1)].concat()).await;
    wire.wait("an answer", |received| received.answer(1) == Some(200) && received.pongs == [1]).await;
    let mut wire = Wire::to(&app.over(Protocol::Http2)).await;
    wire.is_read = false;
    wire.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    wire.finish().await;
    wire.until("the end of what is not HTTP/2", |received| received.is_over).await;
}
