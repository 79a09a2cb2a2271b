//! Upstream loses an event, or changes bytes without a new version. The feed detects it with a self-check, its watches
//! end with 410, and later lists are right (F8).

use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::direct::{self, App, Ended, PODS, Protocol, Watch, upstream_client};

const OFTEN: Duration = Duration::from_millis(60);
const CACHED: &str = "/api/v1/pods?resourceVersion=0";

async fn sum(app: &App, name: &str, label: &str) -> u64 {
    let text = app.admin("/metrics").await.text();
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label) && line.contains("pods.v1"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Number of self-checks of a proxy without a difference.
async fn same(app: &App) -> u64 {
    sum(app, "kube_fanout_self_checks_total", r#"outcome="same""#).await
}

/// Returns after `times` more self-checks of a proxy whose pods change.
async fn compared(up: &RunningDemoApiserver, app: &App, times: u64) {
    let often = Box::pin(async {
        let expected = same(app).await + times;
        while same(app).await < expected {
            up.churn(20).await;
        }
    });
    direct::within("comparisons", often).await;
}

/// A fault, with a name.
type Mistake = (&'static str, fn(&RunningDemoApiserver));

const MISTAKES: [Mistake; 4] = [
    ("a creation is lost", |up| {
        up.faults().lose_next_event();
        up.create_pod("default", "lost");
    }),
    ("a change is lost", |up| {
        up.faults().lose_next_event();
        up.update_pod("default", "kept");
    }),
    ("a deletion is lost", |up| {
        up.faults().lose_next_event();
        up.delete_pod("default", "kept");
    }),
    ("bytes change and the version does not", |up| up.faults().alter("pods", "default/kept")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn self_check_mismatch_ends_watches_and_relists() {
    join_all(MISTAKES.map(async |(what, mistake)| {
        let up = demo::upstream().pods(0).run().await;
        up.create_pod("default", "kept");
        let app = direct::app(&up).with(|config| config.reflect.self_check = Some(OFTEN)).run().await;
        let open = Protocol::ALL.map(|protocol| app.watch(PODS).initial_events().from(0).over(protocol).into_future());
        let watches = join_all(open).await;
        join_all(watches.iter().map(Watch::listed)).await;
        mistake(&up);
        // No later event reveals it. More than one follows, because a change before the first state that the self-check
        // knows is none to it.
        let others = async {
            for number in 0.. {
                let last = up.create_pod("default", &format!("other-{number}"));
                join_all(watches.iter().map(|watch| watch.reached_or_ended(last))).await;
                sleep(OFTEN).await;
            }
        };
        let ends = join_all(watches.iter().map(Watch::ended));
        tokio::select! {
            ends = ends => assert!(ends.iter().all(|end| *end == Ended::Expired), "{what}: {ends:?}"),
            () = others => unreachable!("it goes on"),
        }
        app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
        let (ours, theirs) = (app.get(CACHED).await, upstream_client(&up).get(PODS).await);
        assert!(ours.is_cached(), "{what}");
        assert_eq!(ours.json()["items"], theirs.json()["items"], "{what}");
        assert_eq!(sum(&app, "kube_fanout_self_checks_total", r#"outcome="different""#).await, 1, "{what}");
        assert_eq!(sum(&app, "kube_fanout_history_gaps_total", r#"outcome="different""#).await, 1, "{what}");
        assert_eq!(sum(&app, "kube_fanout_history_gaps_total", r#"outcome="rewound""#).await, 0, "{what}");
    }))
    .await;
}

/// Under churn, no self-check finds a difference, and the watches stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_self_checks_under_churn_end_no_watch() {
    let up = demo::upstream().pods(700).run().await;
    let app = direct::app(&up).with(|config| config.reflect.self_check = Some(OFTEN)).run().await;
    let watch = app.watch(PODS).initial_events().from(0).await;
    watch.listed().await;
    compared(&up, &app, 20).await;
    assert_eq!(sum(&app, "kube_fanout_self_checks_total", r#"outcome="different""#).await, 0);
    assert_eq!(watch.end(), None);
}

/// A third proxy, whose pods keep changing, measures time: the others would be due for as many self-checks.
#[tokio::test]
async fn idle_proxy_sends_no_self_check_requests() {
    let (up, changing) = (demo::upstream().pods(6).run().await, demo::upstream().pods(6).run().await);
    let often = |up: &RunningDemoApiserver| direct::app(up).with(|config| config.reflect.self_check = Some(OFTEN));
    let (read, kept) = (often(&up).run().await, often(&up).preload("pods").run().await);
    let other = often(&changing).run().await;
    let watches = [read.watch(PODS).initial_events().from(0), other.watch(PODS).initial_events().from(0)];
    let watches = join_all(watches.map(IntoFuture::into_future)).await;
    join_all(watches.iter().map(Watch::listed)).await;
    kept.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    compared(&changing, &other, 5).await;
    assert_eq!(
        (read.feed_requests("pods.v1", "self_check").await, kept.feed_requests("pods.v1", "self_check").await),
        (0, 0)
    );
    let last = up.update_pod("default", "changed");
    watches[0].reached(last).await;
    kept.reached("pods", last).await;
    direct::eventually("it is compared", || async { same(&read).await >= 1 }).await;
    // One more self-check if the change was not known to be complete at the first one.
    let is_at_rest = || async {
        let before = read.feed_requests("pods.v1", "self_check").await;
        compared(&changing, &other, 5).await;
        read.feed_requests("pods.v1", "self_check").await == before
    };
    direct::eventually("it asks nothing more", is_at_rest).await;
    // One request for the versions, and three for complete objects.
    let skipped = sum(&read, "kube_fanout_self_checks_total", r#"outcome="skipped""#).await;
    let (questions, comparisons) = (read.feed_requests("pods.v1", "self_check").await, same(&read).await + skipped);
    assert!((4..=4 * comparisons).contains(&questions), "{questions} questions for {comparisons} comparisons");
    assert_eq!(kept.feed_requests("pods.v1", "self_check").await, 0);
}

#[tokio::test]
async fn unanswered_self_check_does_not_delay_drain() {
    let grace = Duration::from_secs(300);
    let up = demo::upstream().pods(6).run().await;
    let app = direct::app(&up).drain(grace).with(|config| config.reflect.self_check = Some(OFTEN)).run().await;
    let watch = app.watch(PODS).initial_events().from(0).await;
    watch.listed().await;
    up.faults().hold_lists();
    // The first change may precede the state from which changes are compared.
    let changes = async {
        loop {
            up.churn(20).await;
            watch.reached(up.update_pod("default", "changed")).await;
        }
    };
    let faults = up.faults();
    let compares = async {
        tokio::select! { () = faults.lists_waiting(1) => {}, () = changes => {} }
    };
    direct::within("a comparison is under way", Box::pin(compares)).await;
    // Everything is served during the self-check.
    assert!(app.get(CACHED).await.is_cached());
    watch.reached(up.create_pod("default", "newer")).await;
    drop(watch);
    let stopped = app.stop().await;
    assert!(stopped.took < grace / 2, "{:?}", stopped.took);
    direct::in_time(Duration::ZERO, "nothing open", up.until(|counts| counts.watches_open.total() == 0)).await;
}
