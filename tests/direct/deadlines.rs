//! When watches end, and their final bookmarks, in real time (W9, W10, O1). A machine that stalls may fail these tests;
//! the rules themselves are tested on paused time.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use crate::direct::{self, Ended, PODS, Protocol, Watch};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn final_bookmark_precedes_watch_timeout_by_two_seconds() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let elsewhere = || app.watch("/api/v1/namespaces/nowhere/pods").from(from).timeout_seconds(8);
    let open = Protocol::ALL.map(|protocol| elsewhere().bookmarks().over(protocol).into_future());
    let (with_bookmarks, silent) = (join_all(open).await, elsewhere().await);
    // Other namespaces change, which these watches observe only through bookmarks.
    let last = up.create_pod("default", "somebody");
    app.reached("pods", last).await;
    let pause = longest_pause(join_all(with_bookmarks.iter().map(Watch::ended))).await;
    for watch in &with_bookmarks {
        assert_eq!(watch.ended().await, Ended::Clean);
        let bookmarks: Vec<_> = watch.events().iter().map(|event| (event.is_bookmark(), event.rv)).collect();
        assert_eq!(bookmarks, [(true, last)], "one, at the version reached");
        let came = watch.last_came().expect("a bookmark").duration_since(watch.opened);
        let left = watch.lived().expect("it is over").saturating_sub(came);
        // If a watch starts late, both times are late, and if the machine pauses for two seconds, they coincide.
        let is_before = left > SECOND.mul_f64(0.1) || pause >= SECOND.mul_f64(1.5);
        assert!(came >= SECOND * 6 && is_before, "{came:?} after the start, {left:?} before the end");
    }
    assert_eq!(silent.ended().await, Ended::Clean);
    assert_eq!(silent.events(), [], "it did not request bookmarks");
}

/// Runs `work`, and returns the machine's longest pause during it.
async fn longest_pause(work: impl Future) -> Duration {
    let mut work = pin!(work);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        let is_over = timeout(Duration::from_millis(50), work.as_mut()).await.is_ok();
        longest = longest.max(last.elapsed());
        if is_over {
            return longest;
        }
        last = Instant::now();
    }
}

#[tokio::test]
async fn drain_spreads_watch_ends_over_grace_at_frame_boundaries() {
    // The last watch begins to end long before the deadline, so that a busy machine is in time.
    const GRACE: Duration = Duration::from_secs(15);
    let up = demo::upstream().pods(30).seed(131).run().await;
    let mut app = direct::app(&up).drain(GRACE).run().await;
    let from = up.revision();
    let open = (0..60).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n % 3]).into_future());
    let watches = join_all(open).await;
    let began = Instant::now();
    app.begin_stop();
    let ends = join_all(watches.iter().map(|watch| async { (watch.ended().await, began.elapsed()) }));
    let ends = direct::during_churn(&up, ends).await;
    assert!(ends.iter().all(|(ended, _)| *ended == Ended::Clean), "{ends:?}");
    // If other processes use the machine, all watches are equally late.
    let first = ends.iter().map(|(_, at)| *at).min().expect("some");
    let (early, late): (Vec<_>, Vec<_>) = ends.iter().partition(|(_, at)| at.saturating_sub(first) < GRACE / 3);
    assert!(early.len() >= 6 && late.len() >= 6, "{} early, {} late", early.len(), late.len());
    assert!(ends.iter().all(|(_, at)| *at < GRACE), "before the deadline");
    let mut seen = 0;
    for watch in &watches {
        let events = watch.events();
        assert!(events.windows(2).all(|pair| pair[1].rv == pair[0].rv + 1), "no hole, up to the end");
        seen += events.len();
    }
    assert!(seen > watches.len(), "{seen} events are too few to have a hole");
    let stopped = app.stop().await;
    assert!(stopped.took < GRACE);
}
