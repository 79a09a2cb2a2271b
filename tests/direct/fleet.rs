//! The bench's watches count what really happened. They run against the demo upstream, with and without its faults.

use bench::{BenchPlan, TargetCredentials, WatchFleet, WatchProtocol};
use demo::{self, RunningDemoApiserver};

use crate::direct::PATIENCE;

/// Watches that start with the existing objects, as informers do.
fn informers() -> BenchPlan {
    BenchPlan { watch_list: true, ..BenchPlan::default() }
}

/// Watches that have received their initial state.
async fn synced(up: &RunningDemoApiserver, plan: BenchPlan) -> WatchFleet {
    let target = TargetCredentials::default().target(&up.url()).await.unwrap_or_else(|error| panic!("{error}"));
    let fleet = WatchFleet::start(&plan, &target);
    fleet.set_out();
    assert!(fleet.synced(PATIENCE).await.is_some(), "{:?}: {:?}", fleet.counts(), fleet.complaint());
    fleet
}

/// Waits until this many events have been delivered to all watches together.
async fn delivered(fleet: &WatchFleet, events: u64) {
    assert!(fleet.until(PATIENCE, |counts| counts.deliveries >= events).await, "{events}: {:?}", fleet.counts());
    assert_eq!(fleet.counts().deliveries, events);
}

#[tokio::test]
async fn bench_counts_every_delivered_event() {
    let up = demo::upstream().pods(50).run().await;
    let shared = BenchPlan { watches: 40, connections: 3, ..informers() };
    let own = BenchPlan { watches: 10, protocol: WatchProtocol::H1, ..informers() };
    for plan in [shared, own] {
        let opened = up.counts().watches_opened.of("pods");
        let fleet = synced(&up, plan).await;
        let watches = up.counts().watches_opened.of("pods") - opened;
        assert_eq!(fleet.counts().initial, watches * up.keys("pods").len() as u64);
        fleet.open_window();
        let before = up.events("pods");
        up.churn(100).await;
        delivered(&fleet, watches * 100).await;
        let latency = fleet.latency();
        assert!(latency.len() > watches * 70 && latency.value_at_quantile(0.5) > 0);
        let counts = fleet.counts();
        assert_eq!((counts.refused + counts.broken, counts.resumed, counts.open()), (0, 0, watches));
        assert_eq!((up.events("pods") - before, fleet.missed(100), fleet.repeated()), (100, 0, 0));
        assert_eq!(fleet.missed(101), watches, "each lacks one");
        fleet.stop().await;
        up.until(|counts| counts.watches_open.total() == 0).await;
    }
    up.stop().await;
}

#[tokio::test]
async fn bench_counts_deletion_without_latency() {
    let up = demo::upstream().pods(3).run().await;
    let fleet = synced(&up, BenchPlan { watches: 7, connections: 1, ..BenchPlan::default() }).await;
    fleet.open_window();
    up.create_pod("t1", "a");
    delivered(&fleet, 7).await;
    up.delete_pod("t1", "a");
    delivered(&fleet, 14).await;
    assert_eq!(fleet.counts().initial, 0, "each began at the version of now");
    assert_eq!((fleet.latency().len(), fleet.missed(2)), (7, 0), "what it says of its writing is long past");
    fleet.stop().await;
    up.stop().await;
}

#[tokio::test]
async fn bench_watches_resume_after_outage_without_missed_events() {
    let up = demo::upstream().pods(5).run().await;
    let fleet = synced(&up, BenchPlan { watches: 20, connections: 1, ..informers() }).await;
    up.churn(10).await;
    delivered(&fleet, 200).await;
    up.faults().end_watches();
    // Before the connections are cut, because an end that no client has read does not count.
    assert!(fleet.until(PATIENCE, |counts| counts.resumed >= 20).await, "{:?}", fleet.counts());
    up.churn(10).await;
    up.faults().down().await;
    up.churn(10).await;
    up.faults().up().await;
    delivered(&fleet, 600).await;
    assert_eq!((fleet.counts().relisted, fleet.missed(30), fleet.repeated()), (0, 0, 0), "{:?}", fleet.counts());

    up.faults().down().await;
    up.churn(1).await;
    up.faults().forget_history();
    up.faults().up().await;
    assert!(fleet.until(PATIENCE, |counts| counts.relisted >= 20).await, "{:?}", fleet.counts());
    assert_eq!(fleet.missed(1000), 0, "nothing is known about clients that relisted");
    fleet.stop().await;
    up.stop().await;
}

#[tokio::test]
async fn bench_watch_pauses_after_stream_ends_immediately() {
    let up = demo::upstream().run().await;
    let fleet = synced(&up, BenchPlan { watches: 1, ..informers() }).await;
    // A watch that ends a second after it began, because the machine stalled, does not count as ended at once.
    for ends in 1..200 {
        up.faults().end_watches();
        let is_again = fleet.until(PATIENCE, |counts| counts.resumed + counts.broken == ends && counts.open() == 1);
        assert!(is_again.await, "{:?}", fleet.counts());
        if fleet.counts().broken == 1 {
            break;
        }
    }
    let counts = fleet.counts();
    assert!(counts.broken == 1 && counts.resumed >= 1, "{counts:?}");
    assert!(fleet.complaint().is_some_and(|why| why.contains("at once")), "{:?}", fleet.complaint());
    fleet.stop().await;
    up.stop().await;
}

#[tokio::test]
async fn bench_target_accepts_only_http_server_urls() {
    for url in ["127.0.0.1:1", "h", "ftp://h:1", "http://h:1/path", "unix:/run/x"] {
        assert!(TargetCredentials::default().target(url).await.is_err(), "{url}");
    }
    for url in ["http://127.0.0.1:1", "http://h:1/"] {
        assert!(TargetCredentials::default().target(url).await.is_ok(), "{url}");
    }
}
