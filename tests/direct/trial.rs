//! The command `try`: it says that nothing was lost where nothing was, and finds what is lost by its version.

use kube_fanout::demo::{self, RunningUpstream};
use kube_fanout::trial::{CrowdCounts, InformerCrowd, PODS_PATH, TargetCredentials, Writers};

use crate::direct::{Dir, eventually, within};
use crate::process::run;

const INFORMERS: usize = 7;
const PODS: usize = 12;
const RATE: f64 = 100.0;

/// Informers of the upstream itself, which is told what to do wrong.
async fn judged(up: &RunningUpstream, amid: impl AsyncFnOnce(&InformerCrowd, &Writers)) -> CrowdCounts {
    let target = TargetCredentials::default().target(&up.url()).await.expect("a URL");
    let writers = Writers::create(&target, PODS).await.expect("pods are created");
    let crowd = InformerCrowd::start(target.clone(), PODS_PATH, INFORMERS, PODS);
    let all = INFORMERS as u64;
    eventually("all have their state", || async { crowd.judge(writers.ledger()).synced == all }).await;
    writers.begin(&target, RATE);
    amid(&crowd, &writers).await;
    assert!(within("the last changes", writers.finish()).await);
    let newest = writers.ledger().newest();
    assert!(newest > 0);
    eventually("the last change is heard of", || async { crowd.judge(writers.ledger()).behind == 0 }).await;
    let counts = crowd.judge_all(writers.ledger());
    crowd.stop().await;
    counts
}

async fn until_delivered(crowd: &InformerCrowd, writers: &Writers, more: u64) {
    let before = crowd.judge(writers.ledger()).delivered;
    let wanted = before + more * INFORMERS as u64;
    eventually("changes are delivered", || async { crowd.judge(writers.ledger()).delivered >= wanted }).await;
}

#[tokio::test]
async fn a_change_that_nobody_is_told_is_lost_by_each_of_them() {
    let up = demo::upstream().run().await;
    let counts = judged(&up, async |crowd, writers| {
        until_delivered(crowd, writers, 5).await;
        up.faults().lose_next_event();
        until_delivered(crowd, writers, 5).await;
        // What is lost is found while it goes on, and not only at the end.
        let all = INFORMERS as u64;
        eventually("the loss is found", || async { crowd.judge(writers.ledger()).lost == all }).await;
    })
    .await;
    assert_eq!((counts.lost, counts.wrong, counts.relists), (INFORMERS as u64, 0, 0), "{counts:?}");
}

#[tokio::test]
async fn a_change_that_is_told_twice_is_noticed_and_a_broken_stream_is_no_loss() {
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
    assert_eq!((counts.lost, counts.wrong), (0, 0), "pods of others are nobody's loss: {counts:?}");
    let up = demo::upstream().run().await;
    let counts = judged(&up, async |crowd, writers| {
        until_delivered(crowd, writers, 5).await;
        up.faults().duplicate_event();
        until_delivered(crowd, writers, 5).await;
    })
    .await;
    assert_eq!((counts.lost, counts.wrong), (0, INFORMERS as u64), "{counts:?}");
}

async fn demo_with_pods() -> RunningUpstream {
    demo::upstream().pods(20).run().await
}

#[tokio::test]
async fn a_history_that_is_gone_has_them_ask_for_the_state_again() {
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

#[test]
fn what_cannot_be_tried_is_said() {
    let wrong = run(&["try", "--demo", "--script", "5s etcd"]);
    assert_eq!(wrong.code, Some(64), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("expected apiserver, proxy or quit"), "{}", wrong.stderr);
    assert_eq!(run(&["try", "--demo", "--testbed", "x"]).code, Some(64));
    assert_eq!(run(&["try", "--informers", "0"]).code, Some(64));
    let dir = Dir::new();
    let missing = dir.join("no-such-testbed");
    let void = run(&["try", "--testbed", missing.to_str().expect("a path")]);
    assert_eq!(void.code, Some(2), "{}", void.stderr);
    assert!(void.stderr.contains("no-such-testbed"), "{}", void.stderr);
    let no_plane = dir.file("kube-testbed", "#!/bin/sh\nexit 1\n");
    let void = run(&["try", "--testbed", no_plane.to_str().expect("a path")]);
    assert_eq!(void.code, Some(2), "{}", void.stderr);
}
