//! L5: one upstream request serves every client request received before it was sent, and no other.

use std::time::Duration;

use tokio::time::{Instant, advance};

use crate::cache::tests::fixture::rv;
use crate::feeds::FeedFreshness;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn freshness_proof_covers_only_earlier_requests() {
    let freshness = FeedFreshness::default();
    let requested_at = Instant::now() + SECOND;
    assert!(!freshness.covers(requested_at), "nothing is proven yet");
    freshness.prove(requested_at);
    for (received, covered) in [
        (requested_at - SECOND, true),
        (requested_at - Duration::from_nanos(1), true),
        (requested_at, true),
        (requested_at + Duration::from_nanos(1), false),
        (requested_at + SECOND, false),
    ] {
        assert_eq!(freshness.covers(received), covered, "{:?}", received.checked_duration_since(requested_at));
    }
}

#[tokio::test(start_paused = true)]
async fn older_freshness_proof_does_not_replace_a_newer_one() {
    let freshness = FeedFreshness::default();
    let early = Instant::now();
    advance(SECOND).await;
    let late = Instant::now();
    freshness.prove(late);
    freshness.prove(early);
    assert!(freshness.covers(late), "an older answer that comes later takes nothing back");
}

#[tokio::test(start_paused = true)]
async fn relist_clears_proven_freshness() {
    let freshness = FeedFreshness::default();
    let requested_at = Instant::now();
    freshness.prove(requested_at);
    freshness.clear();
    assert!(!freshness.covers(requested_at));
    freshness.prove(requested_at);
    assert!(freshness.covers(requested_at), "the next proof counts again");
}

/// Waits in a task, which finishes when the wait ends.
fn waiting(freshness: &FeedFreshness, received: Instant) -> tokio::task::JoinHandle<()> {
    let freshness = freshness.clone();
    tokio::spawn(async move { freshness.wait_proven(received).await })
}

#[tokio::test(start_paused = true)]
async fn waiting_request_needs_a_check_sent_after_its_arrival() {
    let freshness = FeedFreshness::default();
    let needed = freshness.subscribe();
    let received = Instant::now();
    let waits = waiting(&freshness, received);
    tokio::task::yield_now().await;
    assert_eq!(*needed.borrow(), Some(received), "the wish is known");
    freshness.prove(received - Duration::from_millis(1));
    tokio::task::yield_now().await;
    assert!(!waits.is_finished(), "that question was sent before the request came");
    freshness.prove(received);
    waits.await.expect("it is served");
}

#[tokio::test(start_paused = true)]
async fn latest_freshness_request_covers_all_waiters() {
    let freshness = FeedFreshness::default();
    let mut needed = freshness.subscribe();
    let first = Instant::now();
    advance(SECOND).await;
    let second = Instant::now();
    let both = [waiting(&freshness, second), waiting(&freshness, first)];
    tokio::task::yield_now().await;
    assert_eq!(*needed.borrow_and_update(), Some(second));
    // One request after both serves both.
    freshness.prove(second);
    for waits in both {
        waits.await.expect("it is served");
    }
    assert!(!needed.has_changed().expect("the currency lives"));
}

#[tokio::test(start_paused = true)]
async fn already_covered_request_sends_no_freshness_check() {
    let freshness = FeedFreshness::default();
    let received = Instant::now();
    freshness.prove(received);
    freshness.wait_proven(received).await;
    assert_eq!(*freshness.subscribe().borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn cloned_freshness_shares_state() {
    let freshness = FeedFreshness::default();
    let now = Instant::now();
    let other = freshness.clone();
    other.prove(now);
    assert!(freshness.covers(now));
    other.await_watch_version(rv(7));
    assert_eq!(freshness.versions.smallest_above(rv(0)), Some(rv(7)));
}

#[tokio::test(start_paused = true)]
async fn repeated_version_request_does_not_wake_the_catch_up_task() {
    let freshness = FeedFreshness::default();
    let mut needed = freshness.versions.subscribe();
    for (want, is_news, next) in [(5, true, 5), (5, false, 5), (3, true, 3), (9, true, 3)] {
        freshness.await_watch_version(rv(want));
        assert_eq!(needed.has_changed().expect("the currency lives"), is_news, "{want}");
        needed.mark_unchanged();
        assert_eq!(freshness.versions.smallest_above(rv(0)), Some(rv(next)), "{want}");
    }
    freshness.versions.remove_reached(rv(3), rv(3), Instant::now());
    let versions = &freshness.versions;
    assert!(versions.start_catch_up(rv(0), true) && !versions.start_catch_up(rv(0), true));
    freshness.versions.remove_unavailable(rv(5), Instant::now());
    assert_eq!(freshness.versions.smallest_above(rv(0)), None);
    assert!(!needed.has_changed().expect("the currency lives"), "who goes after it knows");
    freshness.await_watch_version(rv(5));
    assert!(needed.has_changed().expect("the currency lives"), "it may be needed again");
}
