//! Lifecycle of streams and connections: their number, their end, and the effect on others (RFC 9113 §5.1, RFC 9113
//! §6.4, RFC 9113 §6.8).

use std::time::Duration;

use futures_util::future::join_all;

use super::frames::{
    CANCEL, GOAWAY, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, NO_ERROR, REFUSED_STREAM, data, frame, get, head,
    hello, hello_with, last_data, post, request, reset,
};
use super::rows::{CODECS, ECHO, SMALL, proxy, proxy_by, served_by};
use super::wire::{ReceivedFrames, Wire};
use crate::direct::{self, App, PODS, eventually, within};

/// Streams above the server's limit are refused such that the client may retry (RFC 9113 §5.1.2). Once another stream
/// ends, a retry is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_above_limit_are_refused_and_can_be_retried() {
    const BEYOND: u32 = 5;
    for codec in CODECS {
        let (upstream, app) = proxy_by(codec).await;
        let mut wire = Wire::to(&app).await;
        wire.send(&hello()).await;
        wire.wait("settings", |received| received.settings.contains_key(&MAX_CONCURRENT_STREAMS)).await;
        let most = wire.received.settings[&MAX_CONCURRENT_STREAMS];
        let number = |at: u32| 2 * at + 1;
        let open: Vec<u8> = (0..most).flat_map(|at| post(number(at), ECHO)).collect();
        wire.send(&open).await;
        let requested = most as usize;
        eventually("all arrive upstream", || async { upstream.seen(ECHO).len() == requested }).await;
        for at in most..most + BEYOND {
            wire.send(&get(number(at), SMALL)).await;
        }
        let refused = |received: &ReceivedFrames| {
            (most..most + BEYOND).all(|at| received.reset(number(at)) == Some(REFUSED_STREAM))
        };
        wire.wait("they are refused", refused).await;
        assert!(upstream.seen(SMALL).is_empty(), "they were not processed");
        // The first stream ends, and the next one is accepted; the others are unchanged.
        wire.send(&last_data(1, b"done")).await;
        wire.wait("the first answer", |received| received.answer(1) == Some(200)).await;
        let again = number(most + BEYOND);
        wire.send(&get(again, SMALL)).await;
        wire.wait("it is accepted", |received| received.answer(again) == Some(200)).await;
        // A reset frees a stream slot, too.
        wire.send(&reset(3, CANCEL)).await;
        wire.settle().await;
        wire.send(&[get(again + 2, SMALL), last_data(5, b"done")].concat()).await;
        wire.wait("both", |received| [again + 2, 5].iter().all(|stream| received.answer(*stream) == Some(200))).await;
        assert!(wire.received.goodbyes.is_empty());
    }
}

fn watch(stream: u32) -> Vec<u8> {
    get(stream, &format!("{PODS}?watch=1&resourceVersion=0"))
}

fn has_received(received: &ReceivedFrames, stream: u32, name: &str) -> bool {
    received.streams.get(&stream).is_some_and(|stream| String::from_utf8_lossy(&stream.body).contains(name))
}

/// Returns when the proxy has this many watches.
async fn until_watches(app: &App, count: u64) {
    app.until_feed("pods", &format!("{count} watches"), |feed| feed["readers"] == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_stream_ends_only_its_watch() {
    for codec in CODECS {
        let up = demo::upstream().pods(2).run().await;
        let app = served_by(codec, direct::app(&up)).run().await;
        let mut wire = Wire::to(&app).await;
        wire.send(&[hello(), watch(1), watch(3), watch(5)].concat()).await;
        let all = |received: &ReceivedFrames| [1, 3, 5].iter().all(|stream| has_received(received, *stream, "ADDED"));
        wire.wait("three watches", all).await;
        until_watches(&app, 3).await;
        wire.send(&reset(3, CANCEL)).await;
        wire.settle().await;
        until_watches(&app, 2).await;
        up.create_pod("default", "later");
        wire.wait("the others", |received| has_received(received, 1, "later") && has_received(received, 5, "later"))
            .await;
        assert!(!has_received(&wire.received, 3, "later"));
        // Window updates of a closed stream are ignored, and no other stream receives them.
        wire.send(&[super::frames::window(3, 100), get(7, PODS)].concat()).await;
        wire.wait("an answer", |received| received.answer(7) == Some(200)).await;
    }
}

/// A client that sends GOAWAY opens no new streams; its open requests are answered (RFC 9113 §6.8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_before_client_goaway_are_served() {
    for codec in CODECS {
        let (_upstream, app) = proxy_by(codec).await;
        let mut wire = Wire::to(&app).await;
        let goodbye = frame(GOAWAY, 0, 0, &[0_u32.to_be_bytes(), NO_ERROR.to_be_bytes()].concat());
        wire.send(&[hello(), post(1, ECHO), get(3, SMALL), goodbye, data(1, b"hel"), last_data(1, b"lo")].concat())
            .await;
        let both = |received: &ReceivedFrames| [1, 3].iter().all(|stream| received.answer(*stream) == Some(200));
        wire.wait("both answers", both).await;
        assert_eq!(wire.received.streams[&1].body, b"hello");
    }
}

/// A client that closes its sending side cannot acknowledge anything, so the connection ends with all its streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_ends_when_client_closes_sending_side() {
    for codec in CODECS {
        let up = demo::upstream().pods(2).run().await;
        let app = served_by(codec, direct::app(&up)).run().await;
        let mut wire = Wire::to(&app).await;
        wire.send(&[hello(), watch(1)].concat()).await;
        wire.wait("a watch", |received| has_received(received, 1, "ADDED")).await;
        wire.finish().await;
        wire.until("the end", |received| received.is_over).await;
        until_watches(&app, 0).await;
        assert_eq!(app.get(PODS).await.status, 200);
    }
}

/// RFC 9113 §6.8: a server that closes announces the last stream that it answers, and answers it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_completes_streams_accepted_before_goaway() {
    join_all(CODECS.map(async |codec| {
        let upstream = demo::upstream().pods(30).run().await;
        // Long enough for the whole test. Its connections receive GOAWAY within the first tenth.
        let mut app = served_by(codec, direct::app(&upstream)).drain(Duration::from_secs(75)).run().await;
        let mut wire = Wire::to(&app).await;
        let list = format!("{PODS}?resourceVersion=0");
        wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, 0)]), get(1, &list), get(3, &list)].concat()).await;
        let begun = |received: &ReceivedFrames| {
            [1, 3].iter().all(|it| received.streams.get(it).is_some_and(|it| !it.heads.is_empty()))
        };
        wire.wait("two answers begin", begun).await;
        app.begin_stop();
        wire.wait("a goodbye", |received| !received.goodbyes.is_empty()).await;
        // The first GOAWAY may be a notice that names every stream. Another one follows when the client has seen it.
        let is_last =
            |received: &ReceivedFrames| received.goodbyes.last().is_some_and(|(last, _)| *last < u32::MAX >> 1);
        wire.wait("the last goodbye", is_last).await;
        assert!(wire.received.goodbyes.iter().all(|(last, code)| *last >= 3 && *code == NO_ERROR));
        // A stream after GOAWAY is not answered, and breaks nothing.
        wire.send(&head(5, &request("GET", &list, &[]))).await;
        wire.settle().await;
        assert!(wire.received.answer(5).is_none());
        wire.send(&[super::frames::window(1, 1 << 20), super::frames::window(3, 1 << 20)].concat()).await;
        wire.send(&super::frames::window(0, 1 << 20)).await;
        wire.wait("both answers", |received| [1, 3].iter().all(|stream| received.answer(*stream) == Some(200))).await;
        let (first, second) = (&wire.received.streams[&1].body, &wire.received.streams[&3].body);
        assert!(!first.is_empty() && first == second && serde_json::from_slice::<serde_json::Value>(first).is_ok());
        wire.until("the end", |received| received.is_over).await;
        within("the proxy's end", app.stop()).await;
    }))
    .await;
}

/// A cookie field may be split into crumbs, which are one field in HTTP/1.1 (RFC 9113 §8.2.3). The current server lets
/// upstream join them, so none may be lost or reordered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_cookie_fields_are_forwarded_in_order() {
    let (upstream, app) = proxy().await;
    let mut wire = Wire::to(&app).await;
    let crumbs = [("cookie", "a=b"), ("x-other", "c"), ("cookie", "d=e")];
    wire.send(&[hello(), head(1, &request("GET", SMALL, &crumbs))].concat()).await;
    wire.wait("an answer", |received| received.answer(1) == Some(200)).await;
    let seen = upstream.seen(SMALL);
    let cookies: Vec<_> = seen[0].headers.get_all("cookie").iter().map(|it| it.to_str().expect("text")).collect();
    assert_eq!(cookies.join("; "), "a=b; d=e");
}
