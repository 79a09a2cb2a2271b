//! Deadlines and bookmarks (W9, W10, W16; R-TIMEOUT-1, R-BOOKMARK-1).

use std::time::Duration;

use demo::{self, Pod, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::time::Instant;
use verify::ApiserverGuarantee;

use crate::direct::{
    self, ALLOWANCE, CONFIGMAPS, Ended, Event, History, PODS, Protocol, Watch, assert_same, configmap, upstream_client,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn watch_ends_cleanly_after_timeout_seconds() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    // The feed is synced first, so that this takes no time from the watches' one second.
    direct::eventually("a feed", || async { app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached() }).await;
    let from = up.revision();
    let open = Protocol::ALL.map(|protocol| app.watch(PODS).from(from).timeout_seconds(1).over(protocol).into_future());
    let forever = app.watch(PODS).from(from).timeout_seconds(0).await;
    for watch in join_all(open).await {
        assert_eq!(watch.ended().await, Ended::Clean);
        let lived = watch.lived().expect("it is over");
        assert!(lived >= SECOND && lived < SECOND + ALLOWANCE, "{lived:?}");
        assert_eq!(watch.events(), []);
    }
    assert!(forever.is_open(), "zero is the server's choice, which is long");
}

#[tokio::test]
async fn watch_with_negative_timeout_ends_immediately() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    for protocol in Protocol::ALL {
        let plans = [app.watch(PODS).timeout_seconds(-1), app.watch(PODS).initial_events().timeout_seconds(-7)];
        for plan in plans {
            let watch = plan.over(protocol).await;
            assert_eq!(watch.ended().await, Ended::Clean);
            assert_eq!(watch.events(), []);
            assert!(watch.lived() < Some(ALLOWANCE));
        }
    }
}

/// Each upstream bookmark reaches these watches within a second, with upstream's bytes.
pub async fn bookmarks_cross(up: &RunningDemoApiserver, from: u64, watches: &[Watch]) {
    let theirs = upstream_client(up).watch(PODS).from(from).bookmarks().await;
    for n in 0..3 {
        let rv = up.put("configmaps", configmap("default", "other", &n.to_string()));
        let sent = Instant::now();
        up.faults().only("pods").bookmark();
        theirs.reached(rv).await;
        for watch in watches {
            watch.reached(rv).await;
            let took = watch.last_came().expect("a bookmark").duration_since(sent);
            assert!(took < SECOND + ALLOWANCE, "{took:?}");
            assert_same("the bookmarks", &watch.events(), &theirs.events());
        }
    }
}

#[tokio::test]
async fn upstream_bookmark_arrives_unchanged_within_one_second() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let open = Protocol::ALL.map(|protocol| app.watch(PODS).from(from).bookmarks().over(protocol).into_future());
    let (with_bookmarks, silent) = (join_all(open).await, app.watch(PODS).from(from).await);
    direct::followed(&up, "pods").await;
    bookmarks_cross(&up, from, &with_bookmarks).await;
    assert_eq!(silent.events(), []);
}

#[tokio::test]
async fn bookmark_never_precedes_events_or_decreases() {
    let up = demo::upstream().pods(80).seed(51).bookmark_period(Duration::from_millis(15)).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let selectors = ["app=api", "app in (front,queue)", "app!=worker", "nobody=has"];
    let open = selectors.iter().zip(Protocol::ALL.iter().cycle());
    let open =
        open.map(|(labels, protocol)| app.watch(PODS).labels(labels).bookmarks().from(history.from).over(*protocol));
    let watches = join_all(open.map(IntoFuture::into_future)).await;
    for n in 0..40 {
        let changed = up.churn(10).await;
        up.put("configmaps", configmap("default", "other", &n.to_string()));
        // The watch without matching objects observes progress only through bookmarks.
        watches[3].reached(changed).await;
    }
    let last = up.churn(1).await;
    up.faults().bookmark();
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    // All matching events precede the bookmark that covers them.
    history.read_to(last).await.judge(&watches, &[ApiserverGuarantee::Bookmarkable, ApiserverGuarantee::Reliable]);
    for watch in &watches {
        let events = watch.events();
        assert!(events.iter().any(Event::is_bookmark));
        for pair in events.windows(2) {
            assert!(pair[0].rv < pair[1].rv, "{:?} and then {:?}", pair[0], pair[1]);
        }
    }
}

#[tokio::test]
async fn bookmark_covers_filtered_event_after_last_sent_event() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let open = Protocol::ALL
        .map(|protocol| app.watch(PODS).labels("team=a").bookmarks().from(from).over(protocol).into_future());
    let watches = join_all(open).await;
    direct::followed(&up, "pods").await;
    for _ in 0..5 {
        // Both changes arrive in one chunk, so that they are read together.
        up.put_pod(&Pod::new("default", "seen").label("team", "a"));
        let hidden = up.put_pod(&Pod::new("default", "hidden").label("team", "b"));
        app.reached("pods", hidden).await;
        up.faults().only("pods").bookmark();
        join_all(watches.iter().map(|watch| watch.reached(hidden))).await;
    }
}

#[tokio::test]
async fn bookmark_of_one_resource_does_not_reach_another() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    // Both feeds start before the write: a feed whose initial list contains the write needs no bookmark for it.
    for path in [PODS, CONFIGMAPS] {
        app.get(path).await;
    }
    let from = up.revision();
    let (pods, maps) =
        (app.watch(PODS).from(from).bookmarks().await, app.watch(CONFIGMAPS).from(from).bookmarks().await);
    let rv = up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
    direct::followed(&up, "configmaps").await;
    up.faults().only("configmaps").bookmark();
    maps.reached(rv).await;
    assert_eq!(pods.events(), []);
    assert_eq!(maps.events().last().map(|event| event.object()["kind"].clone()), Some("ConfigMap".into()));
}
