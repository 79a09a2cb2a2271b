//! A client that does not read affects only itself (I1, W7; R-DOWNSTREAM-1, R-DOWNSTREAM-2).

use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt as _;
use verify::ApiserverGuarantee;

use crate::direct::{self, ALLOWANCE, Ended, History, PODS, Protocol, Watch};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_watch_delays_no_other_and_catches_up_within_window() {
    let up = demo::upstream().pods(100).seed(111).ring_events_max(20_000).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let plan = |n: usize| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]);
    let fast = join_all((0..3).map(|n| plan(n).into_future())).await;
    let stuck = join_all((0..3).map(|n| plan(n).stall_after(10).into_future())).await;
    let last = up.churn(4_000).await;
    direct::within("the fast ones", join_all(fast.iter().map(|watch| watch.reached(last)))).await;
    history.assert_delivered(&fast, last).await;
    join_all(stuck.iter().map(|watch| watch.received(10))).await;
    assert!(stuck.iter().all(|watch| watch.events().len() == 10));
    stuck.iter().for_each(Watch::resume);
    // The ring has all events.
    history.assert_delivered(&stuck, last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_watch_beyond_window_gets_410() {
    let up = demo::upstream().pods(100).seed(112).ring_events_max(20_000).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).window_events(64).run().await;
    let plan = |n: usize| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).stall_after(10);
    let stuck = join_all((0..3).map(|n| plan(n).into_future())).await;
    // Each has received its first events before the ring is full.
    let tenth = up.churn(10).await;
    join_all(stuck.iter().map(|watch| watch.reached(tenth))).await;
    let last = up.churn(4_000).await;
    app.reached("pods", last).await;
    history.read_to(last).await;
    stuck.iter().for_each(Watch::resume);
    join_all(stuck.iter().map(|watch| watch.reached_or_ended(last))).await;
    history
        .evidence()
        .watches(&stuck)
        .window(64)
        .overdue()
        .shows(&[ApiserverGuarantee::Reliable, ApiserverGuarantee::Expired]);
    for (n, watch) in stuck.iter().enumerate() {
        assert_eq!(watch.end(), Some(Ended::Expired), "over {:?}: ten megabytes do not fit", Protocol::ALL[n]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_window_skips_no_event() {
    let up = demo::upstream().pods(50).seed(113).run().await;
    let witness = up.beside();
    let mut history = History::following(&witness, PODS).await;
    let app = direct::app(&up).window_events(1).run().await;
    let watches =
        join_all((0..30).map(|n| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future()));
    let watches = watches.await;
    // A client that keeps up receives each event.
    let mut last = 0;
    for _ in 0..5 {
        last = up.churn(1).await;
        direct::within("every watch", join_all(watches.iter().map(|watch| watch.reached(last)))).await;
    }
    for _ in 0..150 {
        last = up.churn(2).await;
        tokio::task::yield_now().await;
    }
    app.reached("pods", last).await;
    join_all(watches.iter().map(|watch| watch.reached_or_ended(last))).await;
    history.read_to(last).await.evidence().watches(&watches).window(1).overdue().shows(&[]);
    assert!(watches.iter().all(|watch| watch.end().is_none_or(|end| end == Ended::Expired)));
    assert!(watches.iter().all(|watch| watch.changes().len() >= 5), "they had seen those");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_http2_stream_does_not_stall_other_streams() {
    let up = demo::upstream().pods(100).seed(114).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let client = app.multiplexed().await;
    let stuck = client.watch(PODS).from(history.from).stall_after(1).await;
    let fast = join_all((0..5).map(|_| client.watch(PODS).from(history.from).into_future())).await;
    let last = up.churn(300).await;
    history.assert_delivered(&fast, last).await;
    stuck.resume();
    history.assert_delivered(&[stuck], last).await;
}

/// A client that closes its sending side counts as disconnected, as in Go's server (R-DOWNSTREAM-9).
#[tokio::test]
async fn half_closed_client_ends_watch_immediately() {
    let up = demo::upstream().pods(10).run().await;
    let app = direct::app(&up).run().await;
    let mut io = app.over(Protocol::Http1).connect().await.expect("a connection");
    let request = format!("GET {PODS}?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: {}\r\n\r\n", app.url());
    io.write_all(request.replace("http://", "").as_bytes()).await.expect("sent");
    app.until_feed("pods", "a reader", |feed| feed["readers"] == 1).await;
    let left = tokio::time::Instant::now();
    io.shutdown().await.expect("half closed");
    app.until_feed("pods", "no reader", |feed| feed["readers"] == 0).await;
    assert!(left.elapsed() < Duration::from_secs(1) + ALLOWANCE, "{:?}", left.elapsed());
}

#[tokio::test]
async fn disconnected_client_ends_watch_immediately() {
    let up = demo::upstream().pods(10).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let watches = join_all((0..30).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n % 3]).into_future())).await;
    app.until_feed("pods", "30 readers", |feed| feed["readers"] == 30).await;
    let left = tokio::time::Instant::now();
    drop(watches);
    app.until_feed("pods", "no reader", |feed| feed["readers"] == 0).await;
    assert!(left.elapsed() < Duration::from_secs(1) + ALLOWANCE, "{:?}", left.elapsed());
}
