//! Upstream's stream is cut at any byte of a frame, with a reset or with a clean end. Clients lose no event and receive
//! none twice or truncated (R-UPSTREAM-1, W13).

use demo::{self, FaultInjector, RunningDemoApiserver};

use crate::direct::{self, CONFIGMAPS, History, PODS, Protocol, configmap};

/// Injects the cut, with a change before and one after it, and waits until the proxy has recovered.
async fn cut_at(
    up: &RunningDemoApiserver,
    plural: &str,
    offset: usize,
    cut: fn(&FaultInjector, usize),
    change: impl Fn(usize) -> u64,
) -> u64 {
    let opened = up.counts().watches_opened.of(plural);
    change(2 * offset);
    cut(&up.faults().only(plural), offset);
    let last = change(2 * offset + 1);
    let back = up.until(|counts| counts.watches_opened.of(plural) > opened && counts.watches_open.of(plural) > 0);
    direct::within("a new watch upstream", back).await;
    last
}

/// Cuts a small frame at every byte.
async fn cut_everywhere(cut: fn(&FaultInjector, usize)) {
    let up = demo::upstream().run().await;
    let mut history = History::begin(&up, CONFIGMAPS).await;
    let app = direct::app(&up).run().await;
    let mut watches = Vec::new();
    for protocol in Protocol::ALL {
        watches.push(app.watch(CONFIGMAPS).from(history.from).over(protocol).await);
    }
    let change = |n: usize| up.put("configmaps", configmap("auth", "changing", &n.to_string()));
    change(0);
    direct::followed(&up, "configmaps").await;
    let frame = up.object("configmaps", "auth", "changing").expect("just made").len() + 60;
    let mut last = 0;
    for offset in 0..frame {
        last = cut_at(&up, "configmaps", offset, cut, change).await;
    }
    history.assert_delivered(&watches, last).await;
    assert_eq!(history.all().len(), 1 + 2 * frame);
    // Resumed each time.
    direct::assert_not_listed_again(&up, &app, "configmaps", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_at_any_byte_of_small_frame_loses_no_event() {
    cut_everywhere(FaultInjector::break_frame).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_end_at_any_byte_of_small_frame_loses_no_event() {
    cut_everywhere(FaultInjector::tear_frame).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_at_many_bytes_of_pod_frame_lose_no_event() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(PODS).from(history.from).await;
    let change = |_| up.update_pod("default", "changing");
    change(0);
    direct::followed(&up, "pods").await;
    let frame = up.object("pods", "default", "changing").expect("just made").len() + 30;
    let mut last = 0;
    for (n, offset) in (0..frame).step_by(23).enumerate() {
        last =
            cut_at(&up, "pods", offset, [FaultInjector::break_frame, FaultInjector::tear_frame][n % 2], change).await;
    }
    history.assert_delivered(&[watch], last).await;
}
