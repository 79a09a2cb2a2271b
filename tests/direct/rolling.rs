//! Upstream's event window is shorter than a list takes. The proxy lists a few times, and then its watch continues (F4,
//! F6).

use std::sync::Arc;

use demo::{self, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::time::{Duration, sleep};

use crate::direct::{self, App, Ended, PODS};

/// Maximum number of events in upstream's window, and number of events during each list of all pods.
const WINDOW: usize = 400;
const DURING_A_LIST: u64 = 1_000;
/// Maximum number of lists in an incident. A few may fail if the window moves just before a watch starts.
const LISTS_MAX: u64 = 12;

/// Writes to one pod until dropped.
struct Writer(tokio::task::JoinHandle<()>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn writing(up: &Arc<RunningDemoApiserver>) -> Writer {
    let up = up.clone();
    Writer(tokio::spawn(async move {
        loop {
            // Storage still has events that the window lacks.
            up.faults().forget_window();
            for _ in 0..WINDOW / 2 {
                (0..2).map(|_| up.update_pod("default", "busy")).for_each(drop::<u64>);
                sleep(Duration::from_millis(1)).await;
            }
        }
    }))
}

/// Returns when a client has watched for longer than two lists take. The client relists after each 410. A feed that
/// relists over and over has no events to send.
async fn goes_on(up: &RunningDemoApiserver, app: &App) {
    for _ in 0..LISTS_MAX {
        let watch = app.watch(PODS).initial_events().from(0).await;
        let later = up.revision() + 2 * DURING_A_LIST;
        let has_come = || watch.changes().last().is_some_and(|event| event.rv >= later);
        direct::eventually("an event or the end", || async { !watch.is_open() || has_come() }).await;
        if has_come() {
            return;
        }
    }
    panic!("none of {LISTS_MAX} watches received events for long");
}

/// Upstream comes back with a window that starts after its clients' versions, and keeps moving while the writer lives.
/// Returns the number of LISTs before that.
async fn came_back(up: &Arc<RunningDemoApiserver>) -> (u64, Writer) {
    up.churn(2 * WINDOW).await;
    up.faults().forget_window();
    up.faults().lists_outlast(DURING_A_LIST);
    let lists = up.counts().lists.of("pods");
    let writer = writing(up);
    up.faults().up().await;
    (lists, writer)
}

/// The proxy was disconnected for longer than the window. Returns how many LISTs that cost upstream.
async fn back_behind_a_rolling_window(streams_lists: bool) -> u64 {
    let up = Arc::new(demo::upstream().pods(50).seed(96).run().await);
    if !streams_lists {
        up.faults().only("pods").answer(RequestKind::Watch, 1, 400, None);
    }
    let app = direct::app(&up).run().await;
    let before = app.watch(PODS).initial_events().from(0).await;
    before.listed().await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    let (lists, _writer) = came_back(&up).await;
    // History is lost, so the client receives 410.
    assert_eq!(before.ended().await, Ended::Expired);
    goes_on(&up, &app).await;
    up.counts().lists.of("pods") - lists
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_window_shorter_than_list_causes_few_lists() {
    let lists = back_behind_a_rolling_window(true).await;
    assert!((1..=LISTS_MAX).contains(&lists), "{lists} lists");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_opens_before_list_without_watch_list_support() {
    let lists = back_behind_a_rolling_window(false).await;
    assert!((1..=LISTS_MAX).contains(&lists), "{lists} lists");
}

/// Many proxies meet the same window, and each recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_recover_from_short_event_window() {
    let up = Arc::new(demo::upstream().pods(50).seed(97).run().await);
    let mut apps = Vec::new();
    for _ in 0..8 {
        let app = direct::app(&up).run().await;
        app.watch(PODS).initial_events().from(0).await.listed().await;
        apps.push(app);
    }
    up.faults().down().await;
    for app in &apps {
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    }
    let (lists, _writer) = came_back(&up).await;
    join_all(apps.iter().map(|app| goes_on(&up, app))).await;
    let lists = up.counts().lists.of("pods") - lists;
    assert!(lists <= LISTS_MAX * 8, "{lists} lists of 8 proxies");
}
