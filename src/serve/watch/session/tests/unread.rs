//! Watches whose clients do not read: they are never polled, or no longer polled (R-THREAT-11; W16).

use std::time::Duration;

use super::fixture::{Client, Stage, TERMS, WATCH_LIST, app_x, lasting, pass};
use crate::auth::{NamespaceAccess, ReadableNamespaces};
use crate::cache::{CacheConfig, CollectionView, WatchStartPosition};
use crate::serve::watch::session::WatchOptions;

const PODS: [(&str, &str, u64); 2] = [("p", "x", 5), ("q", "x", 6)];
const GRACE: Duration = Duration::from_secs(100);

fn stage() -> Stage {
    Stage::new(CacheConfig::default(), &PODS)
}

/// Advances the time second by second, for tasks that check periodically.
async fn seconds(seconds: u64) {
    for _ in 0..seconds {
        pass(1).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn unpolled_watch_is_cut_after_its_timeout() {
    let stage = stage();
    let state = stage.watch_current(CollectionView::everything(), WatchOptions { end_bookmark: true, ..lasting(20) });
    let live = stage.watch_after(10, lasting(20));
    let readable = ReadableNamespaces::with_decisions(&[("a", NamespaceAccess::Allowed)]);
    let part = stage.watch_part(&readable, WatchStartPosition::Current, CollectionView::everything(), lasting(20));
    let mut polled = stage.watch_current(CollectionView::everything(), lasting(20));
    assert_eq!(polled.reported(), ["ADDED p 5", "ADDED q 6"]);
    assert_eq!(stage.feeds.pins().len(), 2, "a watch that has sent its state has no pin");
    seconds(24).await;
    assert!(
        [&state, &live, &part, &polled].iter().all(|client| client.abort.reason().is_none()),
        "it may end by itself"
    );
    assert_eq!(polled.reported(), ["over"]);
    seconds(3).await;
    for client in [&state, &live, &part] {
        assert_eq!(client.abort.reason(), Some("timeout"));
    }
    assert_eq!(polled.abort.reason(), None, "it has ended by itself");
    drop((state, live, part));
    assert!(stage.feeds.pins().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unread_initial_state_is_cut_after_a_minute_but_slow_is_not() {
    let stage = stage();
    let readable = ReadableNamespaces::with_decisions(&[("a", NamespaceAccess::Allowed)]);
    let stuck = [
        stage.watch_current(CollectionView::everything(), WATCH_LIST),
        stage.watch_in_chunks(CollectionView::everything(), WATCH_LIST),
        stage.watch_current(app_x(), WATCH_LIST),
        stage.watch_part(&readable, WatchStartPosition::Current, CollectionView::everything(), WATCH_LIST),
    ];
    let mut slow = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    seconds(50).await;
    assert_eq!(slow.pieces(1).len(), 1, "one object");
    seconds(8).await;
    assert!(stuck.iter().all(|client| client.abort.reason().is_none()));
    seconds(5).await;
    assert!(stuck.iter().all(|client| client.abort.reason() == Some("stalled")));
    assert_eq!(slow.abort.reason(), None);
    seconds(40).await;
    assert_eq!(slow.reported(), ["ADDED q 6", "BOOKMARK 10 end", "BOOKMARK 10"]);
    seconds(600).await;
    assert_eq!(slow.abort.reason(), None, "from here on it has its place, and keeps nothing else");
}

#[tokio::test(start_paused = true)]
async fn drain_cuts_unread_watches_and_others_end_on_schedule() {
    let mut stage = stage();
    let stuck = [stage.watch_current(CollectionView::everything(), WATCH_LIST), stage.watch_after(10, TERMS)];
    let mut lagging = stage.watch_after(10, TERMS);
    stage.put("p", "x", 11);
    assert_eq!(lagging.pieces(1).len(), 1, "and not polled again");
    let mut reads = stage.watch_after(10, TERMS);
    assert_eq!(reads.reported(), ["MODIFIED p 11"]);
    let (_writer, ending) = stage.drain(GRACE).await;
    for _ in 0..8 {
        reads.poll(1_000).map(|_| ()).is_ready();
        seconds(1).await;
    }
    let is_drained = |client: &Client| client.abort.reason() == Some("drained");
    assert!(stuck.iter().all(is_drained) && is_drained(&lagging));
    assert!(!is_drained(&reads), "it ends by itself");
    drop((stuck, lagging, reads));
    assert!(ending.await.expect("no panic"), "the drain waits for no watch");
}

#[tokio::test(start_paused = true)]
async fn watch_with_unread_end_is_cut() {
    let stage = stage();
    let mut client = stage.watch_after(10, TERMS);
    client.session.end_with(&kubeapi::Status::too_old(1, 10), crate::serve::watch::session::WatchEndReason::Expired);
    seconds(4).await;
    assert_eq!(client.abort.reason(), None);
    seconds(3).await;
    assert!(client.abort.is_aborted());
}

#[tokio::test(start_paused = true)]
async fn unpolled_watch_is_not_cut_for_a_due_bookmark() {
    let stage = stage();
    let idle = stage.watch_after(10, TERMS);
    seconds(1_700).await;
    assert_eq!(idle.abort.reason(), None, "it has half an hour at least");
    seconds(1_950).await;
    assert_eq!(idle.abort.reason(), Some("timeout"), "and an hour at most");
}

#[tokio::test(start_paused = true)]
async fn memory_pressure_cuts_oldest_pinned_watch_first() {
    let mut stage = stage();
    let old = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    stage.put("p", "x", 11);
    let young = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    stage.put("p", "x", 12);
    assert!(stage.feeds.pins().bytes() > 0);
    assert!(stage.feeds.pins().free(1) > 0);
    assert_eq!((old.abort.reason(), young.abort.reason()), (Some("memory_pressure"), None));
}
