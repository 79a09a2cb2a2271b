//! The fleet against the upstream directly.

use std::time::Duration;

use super::super::{fleet, upstream};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_watch_receives_everything() {
    let up = upstream().pods(50).run().await;
    for fleet in [fleet(&up.url(), 40).connections(3), fleet(&up.url(), 10).http1()] {
        let opened = up.counts().watches_opened.of("pods");
        let fleet = fleet.start().unwrap();
        assert!(fleet.synced(PATIENCE).await);
        let watches = up.counts().watches_opened.of("pods") - opened;
        let pods = up.keys("pods").len() as u64;
        assert_eq!(fleet.counts().initial, watches * pods);
        up.churn(100).await;
        tokio::time::timeout(PATIENCE, fleet.until(|counts| counts.deliveries == watches * 100)).await.unwrap();
        let latencies = fleet.latencies();
        assert!(latencies.count() > watches * 70 && latencies.quantile(0.5) > Duration::ZERO);
        assert_eq!((fleet.counts().errors, fleet.counts().watches_open), (0, watches));
        fleet.stop().await;
        up.until(|counts| counts.watches_open.total() == 0).await;
    }
    up.stop().await;
}

#[tokio::test]
async fn a_fleet_resumes_where_it_was_and_misses_nothing() {
    let up = upstream().pods(5).run().await;
    let fleet = fleet(&up.url(), 20).start().unwrap();
    assert!(fleet.synced(PATIENCE).await);
    up.churn(10).await;
    fleet.until(|counts| counts.deliveries == 200).await;
    up.faults().end_watches();
    // Before the connections are cut: an end that nobody has read is none.
    tokio::time::timeout(PATIENCE, fleet.until(|counts| counts.resumes >= 20)).await.unwrap();
    up.churn(10).await;
    up.faults().down().await;
    up.churn(10).await;
    up.faults().up().await;
    tokio::time::timeout(PATIENCE, fleet.until(|counts| counts.deliveries == 600)).await.unwrap();
    assert!(fleet.counts().resumes >= 20 && fleet.counts().relists == 0, "{:?}", fleet.counts());

    up.faults().down().await;
    up.churn(1).await;
    up.faults().forget_history();
    up.faults().up().await;
    tokio::time::timeout(PATIENCE, fleet.until(|counts| counts.relists == 20)).await.unwrap();
    fleet.stop().await;
    up.stop().await;
}

#[test]
fn only_plain_urls_are_accepted() {
    for url in ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1", "http://h:1/path"] {
        assert!(fleet(url, 1).start().is_err(), "{url}");
    }
}
