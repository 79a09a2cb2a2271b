//! Tests that lost changes are found by resourceVersion, and that nothing else counts as lost.

use std::time::Duration;

use demo::RunningDemoApiserver;
use tokio::time::{sleep, timeout};

use super::{InformerFleet, InformerFleetCounts, PODS_PATH, TargetCredentials, TrialWriters};

const INFORMERS: usize = 7;
const PODS: usize = 12;
const RATE: f64 = 100.0;
/// The timeout of every wait. It only prevents hangs.
const PATIENCE: Duration = Duration::from_secs(120);

async fn eventually<F: Future<Output = bool>>(what: &str, look: impl Fn() -> F) {
    let until = async {
        while !look().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, until).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

/// Runs informers against the demo upstream, whose faults `amid` injects.
async fn judged(
    up: &RunningDemoApiserver,
    amid: impl AsyncFnOnce(&InformerFleet, &TrialWriters),
) -> InformerFleetCounts {
    let target = TargetCredentials::default().target(&up.url()).await.expect("a URL");
    let writers = TrialWriters::create(&target, PODS).await.expect("pods are created");
    let crowd = InformerFleet::start(target.clone(), PODS_PATH, INFORMERS, PODS);
    let all = INFORMERS as u64;
    eventually("all have their state", || async { crowd.judge(writers.ledger()).synced == all }).await;
    writers.begin(&target, RATE);
    amid(&crowd, &writers).await;
    assert!(timeout(PATIENCE, writers.finish()).await.expect("the last changes are written"));
    let newest = writers.ledger().newest();
    assert!(newest > 0);
    eventually("the last change is received", || async { crowd.judge(writers.ledger()).behind == 0 }).await;
    let counts = crowd.judge_all(writers.ledger());
    crowd.stop().await;
    counts
}

async fn until_delivered(crowd: &InformerFleet, writers: &TrialWriters, more: u64) {
    let before = crowd.judge(writers.ledger()).delivered;
    let expected = before + more * INFORMERS as u64;
    eventually("changes are delivered", || async { crowd.judge(writers.ledger()).delivered >= expected }).await;
}

#[tokio::test]
async fn dropped_event_is_lost_for_each_informer() {
    let up = demo::upstream().run().await;
    let counts = judged(&up, async |crowd, writers| {
        until_delivered(crowd, writers, 5).await;
        up.faults().lose_next_event();
        until_delivered(crowd, writers, 5).await;
        // The loss is found while the trial runs, not only at its end.
        let all = INFORMERS as u64;
        eventually("the loss is found", || async { crowd.judge(writers.ledger()).lost == all }).await;
    })
    .await;
    assert_eq!((counts.lost, counts.wrong, counts.relists), (INFORMERS as u64, 0, 0), "{counts:?}");
}

#[tokio::test]
async fn duplicate_event_counts_as_wrong_and_stream_reset_loses_none() {
    let up = demo::upstream().run().await;
    let counts = judged(&up, async |crowd, writers| {
        until_delivered(crowd, writers, 5).await;
        up.faults().reset_watches();
        until_delivered(crowd, writers, 5).await;
        up.faults().drop_connections();
        until_delivered(crowd, writers, 5).await;
    })
    .await;
    assert_eq!((counts.lost, counts.wrong, counts.relists), (0, 0, 0), "{counts:?}");
    let counts = judged(&demo_with_pods().await, async |crowd, writers| until_delivered(crowd, writers, 1).await).await;
    assert_eq!((counts.lost, counts.wrong), (0, 0), "pods of other writers do not count as lost: {counts:?}");
    let up = demo::upstream().run().await;
    let counts = judged(&up, async |crowd, writers| {
        until_delivered(crowd, writers, 5).await;
        up.faults().duplicate_event();
        until_delivered(crowd, writers, 5).await;
    })
    .await;
    assert_eq!((counts.lost, counts.wrong), (0, INFORMERS as u64), "{counts:?}");
}

async fn demo_with_pods() -> RunningDemoApiserver {
    demo::upstream().pods(20).run().await
}

#[tokio::test]
async fn expired_history_causes_relists_without_loss() {
    let up = demo::upstream().run().await;
    let counts = judged(&up, async |crowd, writers| {
        until_delivered(crowd, writers, 5).await;
        up.faults().down().await;
        up.faults().forget_window();
        up.faults().up().await;
        until_delivered(crowd, writers, 5).await;
    })
    .await;
    assert_eq!((counts.lost, counts.wrong), (0, 0), "{counts:?}");
}
