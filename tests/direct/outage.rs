//! Upstream goes down and comes back. Clients do not notice, and lose nothing (F1, F2, F4, R-UPSTREAM-4).

use std::time::Duration;

use base::BackoffBounds;
use demo::{self, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;

use crate::direct::{self, History, PODS, Protocol, Watch};
use crate::process::Process;

async fn turned_away(up: &RunningDemoApiserver) {
    direct::within("the end of upstream's watch", up.until(|counts| counts.watches_open.of("pods") == 0)).await;
}

async fn watches(up: &RunningDemoApiserver, app: &direct::App, from: u64) -> Vec<Watch> {
    let open = (0..9).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n % 3]).into_future());
    let watches = join_all(open).await;
    if app.feed("pods").await.is_some_and(|feed| feed["state"] == "live") {
        direct::followed(up, "pods").await;
    }
    watches
}

#[tokio::test]
async fn start_and_end_of_an_outage_are_logged() {
    let (up, dir) = (demo::upstream().pods(3).run().await, direct::Dir::new());
    let process = Process::serve(&dir, &up.url(), &["--preload", "pods"]).await;
    let has_state = async |state: &str| {
        let state = format!("state=\"{state}\"");
        let pods = || async {
            let is_of_pods = |line: &&str| line.contains("resource=\"pods.v1\"") && line.contains(&state);
            let metrics = process.metrics().await;
            metrics
                .lines()
                .filter(|line| line.starts_with("kube_fanout_feed_state"))
                .find(is_of_pods)
                .is_some_and(|line| line.ends_with(" 1"))
        };
        direct::eventually("the state of the feed", pods).await;
    };
    has_state("live").await;
    up.faults().down().await;
    has_state("stale").await;
    up.faults().up().await;
    has_state("live").await;
    process.signal("TERM");
    let log = process.ended().await.stderr;
    for line in ["cannot list or watch upstream; retrying feed=pods.v1", "feed live again feed=pods.v1"] {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
}

#[tokio::test]
async fn upstream_outage_keeps_watches_open_and_loses_no_event() {
    let up = demo::upstream().pods(60).seed(81).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watches(&up, &app, history.from).await;
    let last = up.churn(20).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    let before = direct::whole_lists(&up, PODS);
    for _ in 0..3 {
        up.faults().down().await;
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
        up.churn(40).await;
        up.faults().up().await;
        app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    }
    let last = up.churn(10).await;
    history.assert_delivered(&watches, last).await;
    direct::assert_not_listed_again(&up, &app, "pods", before).await;
}

#[tokio::test]
async fn interrupted_upstream_streams_resume_without_relist() {
    let up = demo::upstream().pods(60).seed(82).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watches(&up, &app, history.from).await;
    let before = direct::whole_lists(&up, PODS);
    let mut last = 0;
    for round in 0..30 {
        last = up.churn(5).await;
        let opened = up.counts().watches_opened.of("pods");
        match round % 3 {
            0 => up.faults().end_watches(),
            1 => up.faults().reset_watches(),
            _ => up.faults().drop_connections(),
        }
        last = up.churn(5).await.max(last);
        direct::within("the resumed watch", up.until(|counts| counts.watches_opened.of("pods") > opened)).await;
    }
    history.assert_delivered(&watches, last).await;
    direct::assert_not_listed_again(&up, &app, "pods", before).await;
}

#[tokio::test]
async fn refused_resume_is_retried_without_relist() {
    let up = demo::upstream().pods(20).seed(83).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watches(&up, &app, history.from).await;
    let before = direct::whole_lists(&up, PODS);
    for code in [500, 503, 504, 401, 429] {
        up.faults().only("pods").answer(RequestKind::Watch, 2, code, None);
    }
    up.faults().end_watches();
    turned_away(&up).await;
    let last = up.churn(10).await;
    history.assert_delivered(&watches, last).await;
    direct::assert_not_listed_again(&up, &app, "pods", before).await;
}

#[tokio::test]
async fn upstream_retry_after_delays_watch_retry() {
    let up = demo::upstream().pods(20).seed(84).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watches = watches(&up, &app, history.from).await;
    // The proof of the watches is over then: its stream would receive the response that is meant for the feed.
    assert!(app.get(PODS).await.is_cached());
    up.faults().only("pods").answer(RequestKind::Watch, 1, 429, Some(2));
    let began = std::time::Instant::now();
    up.faults().reset_watches();
    turned_away(&up).await;
    let last = up.churn(10).await;
    history.assert_delivered(&watches, last).await;
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn feed_backs_off_if_upstream_ends_every_watch() {
    const REOPENINGS: usize = 7;
    let up = demo::upstream().pods(5).run().await;
    let retry = BackoffBounds { first: Duration::from_millis(50), ..BackoffBounds::default() };
    let app = direct::app(&up).with(|config| config.reflect.retry = retry).run().await;
    let watch = app.watch(PODS).from(up.revision()).await;
    direct::followed(&up, "pods").await;
    let (before, began) = (direct::resumed(&up, PODS), std::time::Instant::now());
    let ends = async {
        while direct::resumed(&up, PODS) < before + REOPENINGS {
            up.until(|counts| counts.watches_open.of("pods") > 0).await;
            up.faults().only("pods").end_watches();
            up.until(|counts| counts.watches_open.of("pods") == 0).await;
        }
    };
    direct::within("reopened watches", Box::pin(ends)).await;
    // Two may be opened again at once: only the connection of the first may have been lost, and the demo may end one
    // before the proxy has seen it open.
    let (took, least) = (began.elapsed(), (1..REOPENINGS - 1).map(|n| retry.first * (1 << (n - 1))).sum::<Duration>());
    assert!(took >= least.mul_f64(0.8), "{REOPENINGS} watches in {took:?}");
    let last = up.create_pod("default", "at-last");
    watch.reached(last).await;
}

#[tokio::test]
async fn clients_disconnect_and_resume_during_upstream_outage() {
    let up = demo::upstream().pods(20).seed(85).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let first = watches(&up, &app, history.from).await;
    let seen = up.churn(10).await;
    join_all(first.iter().map(|watch| watch.reached(seen))).await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    drop(first);
    // Resumed from the ring, without upstream.
    let second = watches(&up, &app, history.from).await;
    join_all(second.iter().map(|watch| watch.reached(seen))).await;
    let stale = app.watch(PODS).from(seen).await;
    assert!(stale.headers.contains_key("kube-fanout-stale-seconds"));
    up.churn(10).await;
    up.faults().up().await;
    let last = up.churn(1).await;
    history.assert_delivered(&second, last).await;
}
