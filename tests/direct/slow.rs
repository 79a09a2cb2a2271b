//! A client that does not read harms only itself (I1, W7; R-DOWNSTREAM-1, R-DOWNSTREAM-2).

use std::time::Duration;

use futures_util::future::join_all;
use kube_fanout::demo;

use crate::direct::{self, Ended, Event, History, PODS, Protocol, Watch, assert_same};

/// What a client saw is the history from its beginning without a hole, up to where it was told to list again, if so.
async fn is_honest(who: &str, watch: &Watch, expected: &[Event]) -> Option<Ended> {
    direct::eventually(&format!("{who}: an end or everything"), || async {
        !watch.is_open() || watch.changes().len() >= expected.len()
    })
    .await;
    let seen = watch.changes();
    assert_same(who, &seen, &expected[..seen.len().min(expected.len())]);
    assert!(watch.end().is_none_or(|end| end == Ended::Expired), "{who}: {:?}", watch.end());
    assert!(watch.end().is_some() || seen.len() == expected.len(), "{who}");
    watch.end()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stuck_one_holds_up_nobody_and_gets_everything_when_it_reads_on() {
    let up = demo::upstream().pods(100).seed(111).ring_events_max(20_000).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let plan = |n: usize| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]);
    let fast = join_all((0..6).map(|n| plan(n).into_future())).await;
    let stuck = join_all((0..6).map(|n| plan(n).stall_after(10).into_future())).await;
    let last = up.churn(4_000).await;
    direct::within("the fast ones", join_all(fast.iter().map(|watch| watch.reached(last)))).await;
    let expected = history.upto(last).await.all();
    fast.iter().for_each(|watch| assert_same("a fast one", &watch.events(), &expected));
    for (n, watch) in stuck.iter().enumerate() {
        assert_eq!(watch.events().len(), 10);
        watch.resume();
        let ended = is_honest(&format!("stuck one {n}"), watch, &expected).await;
        assert_eq!(ended, None, "the ring had it all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_stuck_for_longer_than_the_ring_is_told_to_list_again() {
    let up = demo::upstream().pods(100).seed(112).ring_events_max(20_000).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).window_events(64).run().await;
    let plan = |n: usize| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).stall_after(10);
    let stuck = join_all((0..3).map(|n| plan(n).into_future())).await;
    let last = up.churn(4_000).await;
    app.reached("pods", last).await;
    let expected = history.upto(last).await.all();
    stuck.iter().for_each(Watch::resume);
    for (n, watch) in stuck.iter().enumerate() {
        let ended = is_honest(&format!("stuck over {:?}", Protocol::ALL[n]), watch, &expected).await;
        assert_eq!(ended, Some(Ended::Expired), "ten megabytes do not fit between us");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_of_one_event_never_skips() {
    let up = demo::upstream().pods(50).seed(113).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).window_events(1).run().await;
    let watches =
        join_all((0..30).map(|n| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future()));
    let watches = watches.await;
    // Who keeps up sees each.
    let mut last = 0;
    for _ in 0..5 {
        last = up.churn(1).await;
        direct::within("everybody", join_all(watches.iter().map(|watch| watch.reached(last)))).await;
    }
    for _ in 0..150 {
        last = up.churn(2).await;
        tokio::task::yield_now().await;
    }
    app.reached("pods", last).await;
    let expected = history.upto(last).await.all();
    for (n, watch) in watches.iter().enumerate() {
        is_honest(&format!("watch {n}"), watch, &expected).await;
    }
    assert!(watches.iter().all(|watch| watch.changes().len() >= 5), "they had seen those");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_stream_does_not_stall_its_neighbours_on_one_connection() {
    let up = demo::upstream().pods(100).seed(114).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let client = app.multiplexed().await;
    let stuck = client.watch(PODS).from(history.from).stall_after(1).await;
    let fast = join_all((0..5).map(|_| client.watch(PODS).from(history.from).into_future())).await;
    let last = up.churn(300).await;
    join_all(fast.iter().map(|watch| watch.reached(last))).await;
    let expected = history.upto(last).await.all();
    fast.iter().for_each(|watch| assert_same("a neighbour", &watch.events(), &expected));
    stuck.resume();
    stuck.reached(last).await;
    assert_same("the stuck one", &stuck.events(), &expected);
}

#[tokio::test]
async fn a_client_that_leaves_is_forgotten_at_once() {
    let up = demo::upstream().pods(10).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let watches = join_all((0..30).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n % 3]).into_future())).await;
    app.until_feed("pods", "30 readers", |feed| feed["readers"] == 30).await;
    let left = tokio::time::Instant::now();
    drop(watches);
    app.until_feed("pods", "no reader", |feed| feed["readers"] == 0).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
}
