//! A watch does not end between two events of one version, because its client would resume after all of them (W3).

use std::task::Poll;
use std::time::Duration;

use super::fixture::{Stage, TERMS, added, deleted, lasting, pass, pass_ms};
use crate::cache::tests::fixture::rv;
use crate::cache::{CacheConfig, View};
use crate::serve::watch::session::WatchTerms;
use kubeapi::Selector;

const NOTHING: [String; 0] = [];

fn two() -> Stage {
    Stage::new(CacheConfig::default(), &[("p", "x", 5), ("q", "x", 6)])
}

#[tokio::test(start_paused = true)]
async fn expired_watch_waits_for_rest_of_version_before_ending() {
    let mut stage = two();
    let mut client = stage.watch_after(10, lasting(5));
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    assert_eq!(client.told(), ["DELETED p 20"]);
    pass(5).await;
    assert_eq!(client.told(), NOTHING, "it could not go on from here");
    let woken = client.woken();
    stage.writer.take(deleted("q", "x", 20)).expect("in order");
    assert!(client.woken() > woken);
    assert_eq!(client.told(), ["DELETED q 20"]);
    stage.writer.settle();
    assert_eq!(client.told(), ["over"]);
}

#[tokio::test(start_paused = true)]
async fn watch_waiting_for_rest_of_version_is_woken_when_complete() {
    let mut stage = two();
    let mut client = stage.watch_after(10, lasting(5));
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    assert_eq!(client.told(), ["DELETED p 20"]);
    pass(5).await;
    assert_eq!(client.told(), NOTHING);
    let woken = client.woken();
    stage.writer.settle();
    assert!(client.woken() > woken, "and not by a timer");
    assert_eq!(client.told(), ["over"]);
}

/// All events have arrived, and the client had room for one.
#[tokio::test(start_paused = true)]
async fn expired_watch_sends_remaining_events_of_version_first() {
    let mut stage = two();
    let mut client = stage.watch_after(10, lasting(5));
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    stage.writer.take(deleted("q", "x", 20)).expect("in order");
    stage.writer.take(added("r", "x", 21)).expect("in order");
    stage.writer.settle();
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED p 20".to_owned()])));
    pass(5).await;
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED q 20".to_owned()])));
    assert_eq!(client.poll(1), Poll::Ready(None));
}

/// Once several events of a version have arrived, silence proves nothing. So upstream is asked whether the version is
/// complete.
#[tokio::test(start_paused = true)]
async fn version_with_several_events_is_confirmed_upstream() {
    let mut stage = two();
    let feed = stage.feeds.all().remove(0);
    let mut client = stage.watch_after(10, lasting(5));
    for (name, seconds, asked_for) in [("p", 5, None), ("q", 1, Some(20))] {
        stage.writer.take(deleted(name, "x", 20)).expect("in order");
        assert_eq!(client.told(), [format!("DELETED {name} 20")]);
        pass(seconds).await;
        assert_eq!(client.told(), NOTHING);
        assert_eq!(feed.freshness.next_version(rv(0)), asked_for.map(rv), "{name}");
    }
}

/// The client has everything of that version, and upstream is not asked.
#[tokio::test(start_paused = true)]
async fn watch_that_sent_no_event_of_version_ends_without_waiting() {
    let mut stage = two();
    let feed = stage.feeds.all().remove(0);
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    stage.writer.take(deleted("q", "x", 20)).expect("in order");
    let mut client = stage.watch_after(20, lasting(5));
    pass(5).await;
    assert_eq!(client.told(), ["over"]);
    assert_eq!(feed.freshness.next_version(rv(0)), None);
}

#[tokio::test(start_paused = true)]
async fn wait_for_rest_of_version_times_out() {
    let mut stage = two();
    let mut client = stage.watch_after(10, lasting(5));
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    client.told();
    pass(5).await;
    assert_eq!(client.told(), NOTHING);
    pass_ms(2_999).await;
    assert_eq!(client.told(), NOTHING);
    let woken = client.woken();
    pass_ms(2).await;
    assert!(client.woken() > woken);
    assert_eq!(client.told(), ["over"]);
}

#[tokio::test(start_paused = true)]
async fn drained_watch_ends_after_all_events_of_its_version() {
    let mut stage = two();
    let mut client = stage.watch_after(10, TERMS);
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    assert_eq!(client.told(), ["DELETED p 20"]);
    let (mut writer, _ending) = stage.drain(Duration::from_secs(20)).await;
    pass(17).await;
    assert_eq!(client.told(), NOTHING);
    writer.take(deleted("q", "x", 20)).expect("in order");
    writer.take(added("r", "x", 22)).expect("in order");
    writer.settle();
    let told = client.told();
    assert_eq!((&told[0], told.last()), (&"DELETED q 20".to_owned(), Some(&"over".to_owned())), "{told:?}");
}

/// Only draining watches wait for it. Without them, the version would count as complete a second later.
#[tokio::test(start_paused = true)]
async fn drain_bookmark_waits_for_complete_version() {
    for settles in [true, false] {
        let stage = two();
        let elsewhere = || View::new(Some("elsewhere"), Selector::everything());
        let mut client = stage.watch_current(elsewhere(), TERMS);
        let mut silent = stage.watch_current(elsewhere(), WatchTerms { bookmarks: false, ..TERMS });
        assert_eq!((client.told(), silent.told()), (vec![], vec![]));
        let (mut writer, _ending) = stage.drain(Duration::from_secs(20)).await;
        pass(17).await;
        writer.take(added("r", "x", 20)).expect("in order");
        assert_eq!(client.told(), NOTHING, "it may be one of several");
        assert!(writer.is_whole_awaited());
        assert_eq!(silent.told(), ["over"], "who is told no version waits for none");
        if settles {
            writer.settle();
            assert_eq!(client.told(), ["BOOKMARK 20", "over"]);
        } else {
            writer.take(added("r", "y", 21)).expect("in order");
            assert_eq!(client.told(), ["BOOKMARK 20", "over"], "no later one is waited for");
        }
    }
}

/// Neither a due bookmark nor upstream's own bookmark has an incomplete version.
#[tokio::test(start_paused = true)]
async fn bookmark_never_has_incomplete_version() {
    let mut stage = two();
    let mut all = stage.watch_after(10, TERMS);
    let mut one = stage.watch_current(
        View::new(Some("elsewhere"), Selector::everything()),
        WatchTerms { end_bookmark: true, ..TERMS },
    );
    stage.writer.take(deleted("p", "x", 20)).expect("in order");
    assert_eq!(all.told(), ["DELETED p 20"]);
    assert_eq!(one.told(), ["BOOKMARK 10 end"]);
    pass(60).await;
    assert_eq!((all.told(), one.told()), (vec![], vec!["BOOKMARK 19".to_owned()]));
    stage.bookmark(20);
    assert_eq!((all.told(), one.told()), (vec![], vec![]), "it may be between two of them");
    stage.writer.settle();
    assert_eq!((all.told(), one.told()), (vec![], vec!["BOOKMARK 20".to_owned()]));
}
