//! Upstream's window is shorter than a list takes: the state is listed a few times, and then it goes on (F4, F6).

use std::sync::Arc;

use kube_fanout::demo::{self, RequestKind, Running};
use tokio::time::{Duration, sleep};

use crate::direct::{self, Ended, PODS};

/// Events that upstream's window holds, and that happen during each list of all pods.
const WINDOW: usize = 400;
const DURING_A_LIST: u64 = 1_000;
/// Lists of an incident. A few are in vain where the machine is so busy that a watch falls out of the window as well.
const LISTS_MAX: u64 = 12;

/// Writes to one pod for as long as it is not dropped.
struct Writer(tokio::task::JoinHandle<()>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn writing(up: &Arc<Running>) -> Writer {
    let up = up.clone();
    Writer(tokio::spawn(async move {
        loop {
            (0..2).map(|_| up.update_pod("default", "busy")).for_each(drop::<u64>);
            sleep(Duration::from_millis(1)).await;
        }
    }))
}

/// The proxy was away for longer than the window, which goes on rolling. How many LISTs that cost upstream.
async fn back_behind_a_rolling_window(streams_lists: bool) -> u64 {
    let up = Arc::new(demo::upstream().pods(50).seed(96).ring_events_max(WINDOW).run().await);
    if !streams_lists {
        up.faults().only("pods").answer(RequestKind::Watch, 1, 400, None);
    }
    let app = direct::app(&up).run().await;
    let before = app.watch(PODS).initial_events().from(0).await;
    before.listed().await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    up.churn(2 * WINDOW).await;
    up.faults().lists_outlast(DURING_A_LIST);
    let lists = up.counts().lists.of("pods");
    let _writer = writing(&up);
    up.faults().up().await;
    // History is lost; a client is told so, and lists again, here, until it stays for as long as lists would take.
    assert_eq!(before.ended().await, Ended::Expired);
    let later = up.revision() + 3 * DURING_A_LIST;
    for _ in 0..LISTS_MAX {
        let again = app.watch(PODS).initial_events().from(0).await;
        tokio::select! {
            end = again.ended() => assert_eq!(end, Ended::Expired),
            () = app.reached("pods", later) => break,
        }
    }
    app.reached("pods", later).await;
    up.counts().lists.of("pods") - lists
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_is_shorter_than_a_list_costs_a_few_lists() {
    let lists = back_behind_a_rolling_window(true).await;
    assert!((1..=LISTS_MAX).contains(&lists), "{lists} lists");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_lists_are_not_streamed_the_watch_is_opened_before_the_list() {
    let lists = back_behind_a_rolling_window(false).await;
    assert!((1..=LISTS_MAX).contains(&lists), "{lists} lists");
}

/// A fleet of proxies meets the same window, and each comes out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_that_come_back_together_each_come_out() {
    let up = Arc::new(demo::upstream().pods(50).seed(97).ring_events_max(WINDOW).run().await);
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
    up.churn(2 * WINDOW).await;
    up.faults().lists_outlast(DURING_A_LIST);
    let lists = up.counts().lists.of("pods");
    let _writer = writing(&up);
    let back = up.revision();
    up.faults().up().await;
    for app in &apps {
        app.reached("pods", back + 3 * DURING_A_LIST).await;
    }
    let lists = up.counts().lists.of("pods") - lists;
    assert!(lists <= LISTS_MAX * 8, "{lists} lists of 8 proxies");
}
