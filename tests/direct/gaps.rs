//! Upstream returns 410. The proxy lists once and mends the gap if it can prove what happened; otherwise it ends the
//! watches instead of inventing events (F4, F6, R-UPSTREAM-3).

use base::now_ns;
use demo::{self, Pod, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;
use verify::ApiserverGuarantee;

use crate::direct::{self, App, Ended, History, PODS, Protocol, Watch, assert_same};

/// An application whose clients are synced; upstream is down afterwards.
async fn in_step(up: &RunningDemoApiserver, app: &App, history: &mut History) -> Vec<Watch> {
    let open = Protocol::ALL.map(|protocol| app.watch(PODS).from(history.from).over(protocol).into_future());
    let watches = join_all(open).await;
    let last = up.churn(10).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    history.read_to(last).await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    watches
}

#[tokio::test]
async fn upstream_restart_without_changes_ends_no_watch() {
    let up = demo::upstream().pods(40).seed(91).run().await;
    let witness = up.beside();
    let mut history = History::following(&witness, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = in_step(&up, &app, &mut history).await;
    // Other resources changed, so the version to resume from is older than the new window.
    up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
    let since = now_ns();
    up.faults().forget_history();
    up.faults().up().await;
    app.until_pods_are_listed_again().await;
    let last = up.churn(10).await;
    history.assert_delivered(&watches, last).await;
    history.evidence().upstream_requests(&up).broken("a restart", since, &[]).shows(&[ApiserverGuarantee::OneRelist]);
}

/// Changes while the proxy is disconnected, each with a name.
type Gap = (&'static str, fn(&RunningDemoApiserver));

const GAPS: [Gap; 6] = [
    ("an update", |up| {
        up.update_pod("default", "kept");
    }),
    ("several updates of one", |up| {
        (1..6).map(|n| up.put_pod(&Pod::new("default", "kept").restarts(n))).for_each(drop::<u64>);
    }),
    ("a creation", |up| {
        up.create_pod("default", "born");
    }),
    ("a creation and updates", |up| {
        (0..3).map(|_| up.update_pod("default", "born")).for_each(drop::<u64>);
    }),
    ("a deletion", |up| {
        up.delete_pod("default", "doomed");
    }),
    ("an update, a deletion and others between", |up| {
        up.update_pod("default", "doomed");
        up.update_pod("default", "kept");
        up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
        up.delete_pod("default", "doomed");
        up.create_pod("default", "born");
    }),
];

#[tokio::test]
async fn gap_is_backfilled_from_storage_without_loss_or_duplicates() {
    for (what, happen) in GAPS {
        let up = demo::upstream().pods(10).seed(92).run().await;
        up.create_pod("default", "kept");
        up.create_pod("default", "doomed");
        let witness = up.beside();
        let mut history = History::following(&witness, PODS).await;
        history.describe(what);
        let app = direct::app(&up).run().await;
        let watches = in_step(&up, &app, &mut history).await;
        happen(&up);
        history.read_to(up.revision()).await;
        let since = now_ns();
        up.faults().forget_window();
        up.faults().up().await;
        let last = up.create_pod("default", "end");
        history.assert_delivered(&watches, last).await;
        history.evidence().upstream_requests(&up).broken(what, since, &[]).shows(&[ApiserverGuarantee::OneRelist]);
    }
}

#[tokio::test]
async fn relist_retries_after_410_without_ending_watches() {
    let up = demo::upstream().pods(10).seed(95).run().await;
    let witness = up.beside();
    let mut history = History::following(&witness, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = in_step(&up, &app, &mut history).await;
    up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
    up.faults().forget_history();
    up.faults().only("pods").answer(RequestKind::List, 1, 410, None);
    up.faults().up().await;
    app.until_pods_are_listed_again().await;
    let last = up.create_pod("default", "end");
    history.assert_delivered(&watches, last).await;
}

#[tokio::test]
async fn unrecoverable_gap_ends_watches_with_410_and_lists_once() {
    let up = demo::upstream().pods(40).seed(93).run().await;
    let witness = up.beside();
    let mut history = History::following(&witness, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = in_step(&up, &app, &mut history).await;
    let unseen = up.churn(10).await;
    history.read_to(unseen).await;
    up.faults().forget_history();
    let before = direct::whole_lists(&up, PODS);
    up.faults().up().await;
    app.until_pods_are_listed_again().await;
    let last = up.create_pod("default", "behind");
    join_all(watches.iter().map(|watch| watch.reached_or_ended(last))).await;
    let mut evidence = history.read_to(last).await.evidence();
    evidence
        .watches(&watches)
        .forgotten(unseen)
        .overdue()
        .shows(&[ApiserverGuarantee::Reliable, ApiserverGuarantee::Expired]);
    assert!(watches.iter().all(|watch| watch.end() == Some(Ended::Expired)));
    let again = join_all((0..30).map(|_| app.watch(PODS).initial_events().from(0).into_future())).await;
    join_all(again.iter().map(Watch::listed)).await;
    let theirs = direct::upstream_client(&up).watch(PODS).initial_events().await;
    theirs.listed().await;
    again.iter().for_each(|watch| assert_same("listed from us", &watch.changes(), &theirs.changes()));
    let lists = direct::whole_lists(&up, PODS) - before;
    assert!(lists <= 2, "{lists} lists for one incident");
}

#[tokio::test]
async fn resume_from_before_gap_returns_410() {
    let up = demo::upstream().pods(40).seed(94).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = in_step(&up, &app, &mut history).await;
    let seen = watches[0].events().last().expect("events").rv;
    up.churn(10).await;
    up.faults().forget_history();
    up.faults().up().await;
    assert_eq!(watches[0].ended().await, Ended::Expired);
    for from in [history.from, seen] {
        assert_eq!(app.watch(PODS).from(from).await.ended().await, Ended::Expired, "from {from}");
    }
}

/// A new proxy cannot know how old a version named by a client is. Objects created and deleted since then, within five
/// minutes or a day, are not skipped silently.
#[tokio::test]
async fn resume_from_before_proxy_start_returns_410_after_compaction() {
    let up = demo::upstream().pods(10).seed(98).run().await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(PODS).initial_events().from(0).await;
    watch.listed().await;
    let seen = up.create_pod("default", "kept");
    watch.reached(seen).await;
    app.stop().await;
    up.create_pod("default", "ghost");
    up.delete_pod("default", "ghost");
    up.faults().forget_window();
    let app = direct::app(&up).run().await;
    assert_eq!(app.watch(PODS).from(seen).await.ended().await, Ended::Expired);
    let list = app.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!((list.is_cached(), list.items().len()), (true, 11));
}

/// The same proxy once it is in sync with upstream: its first state was as old as its client's, its current one is not.
#[tokio::test]
async fn gap_after_sync_is_backfilled_without_ending_watches() {
    let up = demo::upstream().pods(10).seed(99).run().await;
    let seen = up.create_pod("default", "kept");
    up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
    let app = direct::app(&up).run().await;
    let watch = app.watch(PODS).from(seen).await;
    // Upstream's storage was beyond that version when the feed started, and the stream has reached that position.
    let later = up.update_pod("default", "kept");
    watch.reached(later).await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    up.update_pod("default", "kept");
    up.faults().forget_window();
    up.faults().up().await;
    let last = up.create_pod("default", "end");
    watch.reached(last).await;
    assert_eq!(watch.events().len(), 3);
    assert!(watch.is_open());
}
