//! W9 and W10: a bookmark is never ahead of the events that it covers, and it arrives in time (R-BOOKMARK-1,
//! R-BOOKMARK-3).

use std::task::Poll;

use tokio::time::Instant;

use super::fixture::{Stage, TERMS, WATCH_LIST, app_x, lasting, pass, pass_ms};
use crate::cache::{CacheConfig, CollectionView, FeedState, WatchStartPosition};
use crate::serve::watch::session::WatchOptions;
use kubeapi::ResourceVersion;

const NOTHING: [String; 0] = [];

#[tokio::test(start_paused = true)]
async fn bookmark_is_sent_every_minute() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), NOTHING);
    stage.advance(20);
    pass_ms(59_999).await;
    assert_eq!(client.reported(), NOTHING);
    pass_ms(1).await;
    assert_eq!(client.reported(), ["BOOKMARK 20"]);
    stage.advance(30);
    pass(60).await;
    assert_eq!(client.reported(), ["BOOKMARK 30"]);
    pass(60).await;
    assert_eq!(client.reported(), ["BOOKMARK 30"], "also when there is nothing new to vouch for");
    stage.advance(31);
    pass_ms(59_999).await;
    assert_eq!(client.reported(), NOTHING);
    pass_ms(1).await;
    assert_eq!(client.reported(), ["BOOKMARK 31"]);
}

#[tokio::test(start_paused = true)]
async fn timer_wakes_watch_for_due_bookmark() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), NOTHING);
    stage.advance(20);
    assert_eq!(client.woken(), 0);
    pass(60).await;
    assert_eq!(client.woken(), 1);
    assert_eq!(client.reported(), ["BOOKMARK 20"]);
}

/// A sink does not poll an idle watch before it is woken.
#[tokio::test(start_paused = true)]
async fn watch_with_pending_frames_is_not_parked() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), NOTHING);
    assert!(client.session.is_parked());
    stage.put("p", "x", 11);
    assert!(matches!(client.poll(1), Poll::Ready(Some(_))));
    assert!(client.session.is_parked(), "that was all");
    assert_eq!(client.woken(), 1);
    stage.put("p", "x", 12);
    assert_eq!(client.woken(), 2, "and it is woken for more");
    stage.put("q", "x", 13);
    assert!(matches!(client.poll(1), Poll::Ready(Some(_))));
    assert!(!client.session.is_parked(), "there was room for one only");
    stage.bookmark(15);
    assert!(matches!(client.poll(1), Poll::Ready(Some(_))));
    assert!(!client.session.is_parked(), "the bookmark came before it went to sleep");
    assert_eq!(client.reported(), ["BOOKMARK 15"]);
}

/// Observed of kube-apiserver with `timeoutSeconds=150`: at 60, 120 and 148 seconds.
#[tokio::test(start_paused = true)]
async fn last_bookmark_is_sent_two_seconds_before_timeout() {
    for (seconds, due) in [
        (150, vec![60, 120, 148]),
        (120, vec![60, 118]),
        (62, vec![60]),
        (61, vec![59]),
        (60, vec![58]),
        (10, vec![8]),
        (3, vec![1]),
        // Too short for a bookmark.
        (2, vec![]),
        (1, vec![]),
    ] {
        let mut stage = Stage::empty();
        let mut client = stage.watch_after(10, lasting(seconds));
        let mut reported = Vec::new();
        for second in 0..=u64::try_from(seconds).expect("positive") {
            stage.advance(100 + second);
            reported.extend(client.reported().into_iter().map(|what| (second, what)));
            pass(1).await;
        }
        let mut expected: Vec<_> =
            due.into_iter().map(|second| (second, format!("BOOKMARK {}", 100 + second))).collect();
        expected.push((u64::try_from(seconds).expect("positive"), "over".to_owned()));
        assert_eq!(reported, expected, "timeoutSeconds={seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn watch_without_bookmarks_gets_none() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, WatchOptions { bookmarks: false, ..lasting(150) });
    assert_eq!(client.reported(), NOTHING);
    for second in 1..150 {
        stage.bookmark(10 + second);
        pass(1).await;
        assert_eq!(client.reported(), NOTHING, "after {second} s");
    }
    pass(1).await;
    assert_eq!(client.reported(), ["over"]);
}

/// A tier of a chain must not delay the bookmarks of the tier above it by a minute.
#[tokio::test(start_paused = true)]
async fn upstream_bookmark_is_forwarded_immediately() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), NOTHING);
    stage.bookmark(20);
    assert_eq!(client.woken(), 1);
    assert_eq!(client.reported(), ["BOOKMARK 20"]);
    stage.bookmark(20);
    assert_eq!(client.reported(), NOTHING, "the same again says nothing");
    stage.bookmark(30);
    stage.bookmark(40);
    assert_eq!(client.reported(), ["BOOKMARK 40"], "of two that were missed the later is enough");
}

#[tokio::test(start_paused = true)]
async fn upstream_bookmark_before_watch_start_is_not_repeated() {
    let mut stage = Stage::empty();
    stage.bookmark(20);
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), NOTHING);
    pass(60).await;
    assert_eq!(client.reported(), ["BOOKMARK 20"], "until one is due");
}

/// etcd #15220: progress that was ahead of the data.
#[tokio::test(start_paused = true)]
async fn bookmark_follows_all_events_up_to_its_version() {
    for due in [false, true] {
        let mut stage = Stage::empty();
        let mut client = stage.watch_after(10, TERMS);
        assert_eq!(client.reported(), NOTHING);
        stage.put("p", "x", 11);
        stage.put("q", "x", 12);
        stage.delete("p", "x", 13);
        if due {
            stage.advance(20);
            pass(60).await;
        } else {
            stage.bookmark(20);
        }
        // A client with little room receives the events one by one, and the bookmark last.
        let mut reported = Vec::new();
        while let Poll::Ready(Some(frames)) = client.poll(1) {
            assert_eq!(frames.len(), 1);
            reported.extend(frames);
        }
        assert_eq!(reported, ["ADDED p 11", "ADDED q 12", "DELETED p 13", "BOOKMARK 20"], "due: {due}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_after_bookmark_have_later_versions() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    for n in 1..20 {
        stage.bookmark(n * 10 + 5);
        let mut reported = client.reported();
        stage.put("p", "x", n * 10 + 8);
        reported.extend(client.reported());
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert_eq!(reported[0], format!("BOOKMARK {}", n * 10 + 5));
        assert!(reported[1].ends_with(&format!(" {}", n * 10 + 8)), "{reported:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bookmark_advances_past_events_not_selected() {
    let mut stage = Stage::empty();
    let opened = stage.reader.open(WatchStartPosition::After(ResourceVersion(10)), app_x()).expect("in the ring");
    let mut client = stage.client(opened, TERMS);
    stage.put("p", "y", 11);
    assert_eq!(client.reported(), NOTHING);
    pass(60).await;
    assert_eq!(client.reported(), ["BOOKMARK 11"]);
}

/// An event also serves as a bookmark: after one, no bookmark is sent until one is due.
#[tokio::test(start_paused = true)]
async fn bookmark_for_known_version_is_sent_once_a_minute() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    stage.bookmark(10);
    pass(59).await;
    assert_eq!(client.reported(), NOTHING);
    pass(1).await;
    assert_eq!(client.reported(), ["BOOKMARK 10"], "also for the version that it started from");
    stage.put("p", "x", 11);
    assert_eq!(client.reported(), ["ADDED p 11"]);
    stage.bookmark(11);
    pass(59).await;
    assert_eq!(client.reported(), NOTHING);
    pass(1).await;
    assert_eq!(client.reported(), ["BOOKMARK 11"], "or a tier below would take the stream for dead");
}

/// A disconnected proxy must not report to the proxy below it that its data is current.
#[tokio::test(start_paused = true)]
async fn stale_feed_sends_no_bookmarks() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    stage.writer.set_state(FeedState::Stale { since: Instant::now() });
    pass(60).await;
    assert_eq!(client.reported(), NOTHING);
    stage.writer.set_state(FeedState::Live);
    pass(60).await;
    assert_eq!(client.reported(), ["BOOKMARK 10"]);
}

/// etcd #20221: a watch from a future version received past events.
#[tokio::test(start_paused = true)]
async fn watch_from_future_version_gets_no_bookmark_below_start() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(100, TERMS);
    for rv in [50, 99] {
        stage.bookmark(rv);
        pass(60).await;
        assert_eq!(client.reported(), NOTHING, "{rv}");
    }
    stage.bookmark(101);
    assert_eq!(client.reported(), ["BOOKMARK 101"]);
}

#[tokio::test(start_paused = true)]
async fn bookmark_versions_never_decrease() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    let mut last = 10;
    for rv in [20, 15, 30, 30, 25, 31] {
        stage.bookmark(rv);
        for reported in client.reported() {
            let reported: u64 = reported.strip_prefix("BOOKMARK ").expect("nothing else").parse().expect("a version");
            assert!(reported > last, "{reported} after {last}");
            last = reported;
        }
    }
    assert_eq!(last, 31);
}

/// The state is confirmed at a version that upstream's stream has not reached yet (R-VERSION-1).
#[tokio::test(start_paused = true)]
async fn initial_events_end_bookmark_has_confirmed_version() {
    let mut stage = Stage::new(CacheConfig::default(), &[("p", "x", 5)]);
    let mut before = stage.watch_after(10, TERMS);
    assert!(stage.reader.confirm(stage.reader.state_id(), ResourceVersion(30)));
    let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    assert_eq!(client.reported(), ["ADDED p 5", "BOOKMARK 30 end"]);
    // Late events below the confirmed version cancel each other out.
    stage.put("q", "x", 19);
    stage.delete("q", "x", 20);
    stage.bookmark(25);
    assert_eq!(before.reported(), ["ADDED q 19", "DELETED q 20", "BOOKMARK 25"]);
    assert_eq!(client.reported(), NOTHING);
    stage.put("q", "x", 31);
    stage.bookmark(40);
    for client in [&mut before, &mut client] {
        assert_eq!(client.reported(), ["ADDED q 31", "BOOKMARK 40"]);
    }
}
