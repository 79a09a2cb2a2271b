//! Upstream sends invalid data, and none of it is passed on (R-UPSTREAM-6, R-UPSTREAM-8, R-UPSTREAM-10, W1, W2).

use base::now_ns;
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use verify::ApiserverGuarantee;

use crate::direct::{self, App, Ended, History, PODS, Protocol, Watch, assert_same};

async fn watching(up: &RunningDemoApiserver, app: &App, history: &History) -> Vec<Watch> {
    let open =
        Protocol::ALL.map(|protocol| app.watch(PODS).from(history.from).bookmarks().over(protocol).into_future());
    let watches = join_all(open).await;
    let last = up.churn(10).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    watches
}

/// The proxy takes an event for permanently invalid after three attempts.
const ROUNDS_MAX: usize = 20;

/// Sends the same invalid event after the same version, several times, until the watch ends. Not each new watch is the
/// feed's: a proof opens one too.
pub async fn send_malformed_until_ended(up: &RunningDemoApiserver, watch: &Watch) {
    for _ in 0..ROUNDS_MAX {
        let opened = up.counts().watches_opened.of("pods");
        up.faults().only("pods").send_malformed();
        tokio::select! {
            biased;
            _ = watch.ended() => return,
            () = reopened(up, opened) => {}
        }
    }
}

async fn reopened(up: &RunningDemoApiserver, opened: u64) {
    let resumed = up.until(|counts| counts.watches_opened.of("pods") > opened && counts.watches_open.of("pods") > 0);
    direct::within("a new watch upstream", resumed).await;
}

#[tokio::test]
async fn malformed_frame_resumes_stream_without_ending_watches() {
    let up = demo::upstream().pods(20).seed(101).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watching(&up, &app, &history).await;
    let mut last = 0;
    for _ in 0..8 {
        let opened = up.counts().watches_opened.of("pods");
        up.faults().only("pods").send_malformed();
        reopened(&up, opened).await;
        last = up.churn(3).await;
        app.reached("pods", last).await;
    }
    history.assert_delivered(&watches, last).await;
}

#[tokio::test]
async fn duplicate_event_is_dropped() {
    let up = demo::upstream().pods(20).seed(102).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watching(&up, &app, &history).await;
    // Without the proof of freshness that a resumed feed requests at its start, which may come late.
    let streams = || up.counts().watches_opened.of("pods") - up.counts().watch_lists.of("pods");
    let opened = streams();
    let mut last = 0;
    for _ in 0..10 {
        up.faults().only("pods").duplicate_event();
        last = up.churn(2).await;
        app.reached("pods", last).await;
    }
    assert_eq!(streams(), opened, "and it costs nothing");
    history.assert_delivered(&watches, last).await;
}

#[tokio::test]
async fn decreasing_resource_version_is_never_delivered() {
    let up = demo::upstream().pods(20).seed(103).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watching(&up, &app, &history).await;
    let since = now_ns();
    up.faults().only("pods").regress_revision();
    let last = up.churn(5).await;
    join_all(watches.iter().map(|watch| watch.reached_or_ended(last))).await;
    let list = app.get(PODS).await;
    let mut evidence = history.read_to(last).await.evidence();
    evidence.answer(&list);
    // Continuing and restarting are both correct; no client may observe the older version.
    evidence.watches(&watches).overdue().broken("a version that goes back", since, &[ApiserverGuarantee::Expired]);
    evidence.shows(&[ApiserverGuarantee::Reliable, ApiserverGuarantee::Unique, ApiserverGuarantee::ListSnapshot]);
    assert!(watches.iter().all(|watch| watch.end().is_none_or(|end| end == Ended::Expired)));
}

/// A DELETED event without its object does not identify the object, so upstream has to resend it.
#[tokio::test]
async fn deleted_event_without_object_is_not_lost() {
    let up = demo::upstream().pods(20).seed(105).run().await;
    up.create_pod("default", "doomed");
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watching(&up, &app, &history).await;
    up.faults().hollow_deletions(1);
    up.delete_pod("default", "doomed");
    let last = up.create_pod("default", "behind");
    history.assert_delivered(&watches, last).await;
    let list = app.get(PODS).await;
    assert!(list.is_cached() && !list.text().contains("doomed"));
}

#[tokio::test]
async fn repeated_malformed_event_ends_watches_with_410_and_relists() {
    let up = demo::upstream().pods(20).seed(104).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watching(&up, &app, &history).await;
    let since = now_ns();
    let seen = watches[0].changes().len();
    send_malformed_until_ended(&up, &watches[0]).await;
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
        assert_eq!(watch.changes().len(), seen);
    }
    let mut evidence = history.read_to(up.revision()).await.evidence();
    evidence
        .watches(&watches)
        .broken("poison", since, &[ApiserverGuarantee::Expired])
        .shows(&[ApiserverGuarantee::Reliable]);
    let relisted = app.watch(PODS).initial_events().from(0).await;
    relisted.listed().await;
    let theirs = direct::upstream_client(&up).watch(PODS).initial_events().await;
    theirs.listed().await;
    assert_same("relisted", &relisted.changes(), &theirs.changes());
}
