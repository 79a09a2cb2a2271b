//! An object that is larger than the proxy's limit on frames (FU-10).

use std::time::Duration;

use demo::{self, RequestCounts, RunningDemoApiserver};
use tokio::time::timeout;

use crate::direct::{self, App, CONFIGMAPS, PODS, configmap, eventually, within};

/// More than the frame limit, and far more than etcd accepts.
const HUGE_BYTES: usize = 17 << 20;

/// Returns when the feed of config maps has stopped, and upstream has received no request for them for a second.
async fn all_is_still(up: &RunningDemoApiserver, app: &App) {
    let requests = |counts: &RequestCounts| (counts.lists.of("configmaps"), counts.watches_opened.of("configmaps"));
    loop {
        let so_far = requests(&up.counts());
        let is_requested = timeout(Duration::from_secs(1), up.until(|counts| requests(counts) != so_far)).await.is_ok();
        if !is_requested && app.feed("configmaps").await.is_none() && requests(&up.counts()) == so_far {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_object_forwards_only_its_resource() {
    let up = demo::upstream().pods(5).run().await;
    up.put("configmaps", configmap("default", "small", "x"));
    let app = direct::app(&up).run().await;
    assert!(app.get(CONFIGMAPS).await.is_cached() && app.get(PODS).await.is_cached());
    let watch = app.watch(CONFIGMAPS).from(up.revision()).await;
    let before = up.counts();
    let huge = up.put("configmaps", configmap("default", "huge", &"x".repeat(HUGE_BYTES)));
    let ended = within("the end of a watch that cannot go on", watch.ended()).await;
    assert_eq!(ended, crate::direct::Ended::Clean, "its client resumes from its last version");
    let path = format!("{CONFIGMAPS}?resourceVersion=0");
    let passes = || async {
        let answer = app.get(&path).await;
        !answer.is_cached() && answer.rv() >= huge
    };
    eventually("upstream answers for it", passes).await;
    Box::pin(within("attempts to read it end", all_is_still(&up, &app))).await;
    let after = up.counts();
    for _ in 0..20 {
        assert!(!app.get(&path).await.is_cached());
        assert!(app.get(PODS).await.is_cached(), "nothing of that concerns others");
    }
    let later = up.counts();
    assert_eq!(later.lists.of("configmaps") - after.lists.of("configmaps"), 20, "the forwarded ones");
    assert_eq!(later.watches_opened.of("configmaps"), after.watches_opened.of("configmaps"));
    let tried = after.watches_opened.of("configmaps") - before.watches_opened.of("configmaps");
    assert!(tried <= 12, "{tried} attempts to read it");
}
