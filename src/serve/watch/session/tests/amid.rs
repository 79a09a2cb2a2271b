//! A watch does not end between two events of one version, because its client would resume after all of them (W3).

use std::task::Poll;
use std::time::Duration;

use super::fixture::{Stage, TERMS, added, deleted, lasting, pass};
use crate::cache::CacheConfig;

/// Two objects were deleted at 20, and one was added at 21. The client had room for one event.
fn amid(stage: &mut Stage) {
    let gone = vec![deleted("p", "x", 20), deleted("q", "x", 20)];
    assert_eq!(stage.writer.apply(gone), Ok(2));
    stage.writer.apply([added("r", "x", 21)]).expect("in order");
}

fn two() -> Stage {
    Stage::new(CacheConfig::default(), &[("p", "x", 5), ("q", "x", 6)])
}

#[tokio::test(start_paused = true)]
async fn watch_whose_timeout_expires_within_a_version_sends_the_rest_first() {
    let mut stage = two();
    let mut client = stage.watch_after(10, lasting(5));
    amid(&mut stage);
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED p 20".to_owned()])));
    pass(5).await;
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED q 20".to_owned()])));
    assert_eq!(client.poll(1), Poll::Ready(None));
}

#[tokio::test(start_paused = true)]
async fn drained_watch_within_a_version_sends_the_rest_first() {
    let mut stage = two();
    let mut client = stage.watch_after(10, TERMS);
    amid(&mut stage);
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED p 20".to_owned()])));
    let (_writer, _ending) = stage.drain(Duration::from_secs(20)).await;
    pass(17).await;
    let reported = client.reported();
    assert_eq!((&reported[0], reported.last()), (&"DELETED q 20".to_owned(), Some(&"over".to_owned())), "{reported:?}");
}

/// A codec does not poll a parked watch again.
#[tokio::test(start_paused = true)]
async fn watch_that_ends_after_the_rest_of_a_version_is_not_parked() {
    let mut stage = two();
    let mut client = stage.watch_after(10, lasting(5));
    let gone = vec![deleted("p", "x", 20), deleted("q", "x", 20)];
    assert_eq!(stage.writer.apply(gone), Ok(2));
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED p 20".to_owned()])));
    pass(5).await;
    assert_eq!(client.poll(1), Poll::Ready(Some(vec!["DELETED q 20".to_owned()])));
    assert!(!client.session.is_parked());
    assert_eq!(client.poll(1), Poll::Ready(None));
}

/// The client has everything of that version already.
#[tokio::test(start_paused = true)]
async fn watch_that_starts_after_a_version_does_not_wait_for_its_events() {
    let mut stage = two();
    let mut client = stage.watch_after(20, lasting(5));
    let gone = vec![deleted("p", "x", 20), deleted("q", "x", 20)];
    assert_eq!(stage.writer.apply(gone), Ok(2));
    pass(5).await;
    assert_eq!(client.reported(), ["over"]);
}
