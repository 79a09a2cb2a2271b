//! An object that is larger than the proxy's limit on frames (FU-10).

use demo::{self, ReceivedRequest, RunningDemoApiserver};
use http::Method;

use crate::direct::{self, CONFIGMAPS, PODS, configmap, eventually, within};

/// More than the frame limit, and far more than etcd accepts.
const HUGE_BYTES: usize = 17 << 20;

/// The agent of the reads that are counted, which the proxy forwards with them.
const READER: &str = "reader/1";

/// How many requests for config maps upstream has received in the name of the test's reader.
fn forwarded(up: &RunningDemoApiserver) -> usize {
    let is_reader = |seen: &&ReceivedRequest| seen.headers.get("user-agent").is_some_and(|agent| agent == READER);
    up.requests().iter().filter(is_reader).filter(|seen| seen.uri.path() == CONFIGMAPS).count()
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
    eventually("attempts to read it end", || async { app.feed("configmaps").await.is_none() }).await;
    for _ in 0..20 {
        assert!(!app.request(Method::GET, &path).header("user-agent", READER).send().await.is_cached());
        assert!(app.get(PODS).await.is_cached(), "nothing of that concerns others");
    }
    assert_eq!(forwarded(&up), 20, "each is forwarded once");
    let tried = up.counts().watches_opened.of("configmaps") - before.watches_opened.of("configmaps");
    assert!(tried <= 12, "{tried} attempts to read it");
}
