//! Clients that stop reading in the middle of an initial state, and the seconds after which they are cut off
//! (R-THREAT-11; O1).

use std::time::Duration;

use kube_fanout::serve::SlowReaderLimits;

use crate::stuck::{UNREAD, impatient, large, nothing_is_kept_behind, stuck, were_cut};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_watch_is_cut_after_initial_state_idle_timeout() {
    let up = large().await;
    let unread = SlowReaderLimits { state_idle_max: Duration::from_secs(12), ..UNREAD };
    let app = impatient(&up, unread).run().await;
    let stuck = stuck(&app, &app, 3_000).await;
    nothing_is_kept_behind(&app, unread.state_idle_max).await;
    were_cut(&stuck).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_does_not_wait_for_stuck_watches() {
    let up = large().await;
    let drain = Duration::from_secs(20);
    let app = impatient(&up, UNREAD).drain(drain).run().await;
    let stuck = stuck(&app, &app, 3_000).await;
    let stopped = app.stop().await;
    // A watch that was still reading when the drain began ends at its own moment, before the drain's last fifth.
    assert!(stopped.took < drain, "{:?}", stopped.took);
    were_cut(&stuck).await;
}
