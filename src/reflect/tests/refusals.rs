//! Tests requests that upstream denies, or resources and features that it does not have.

use super::*;
use demo::RequestKind;

async fn ended(scene: &Scene) -> (FeedEndReason, Duration) {
    let took = scene.until_state("over", |state| matches!(state, FeedState::Ended(_))).await;
    let FeedState::Ended(end) = scene.feed.reader.state() else { panic!("it was over") };
    (end, took)
}

#[tokio::test(start_paused = true)]
async fn rejected_initial_list_ends_feed_with_matching_reason() {
    for (code, end) in [
        (403, FeedEndReason::Forbidden),
        (404, FeedEndReason::Gone),
        (405, FeedEndReason::Gone),
        (406, FeedEndReason::NotOffered),
    ] {
        let up = upstream().in_memory();
        up.faults().answer(RequestKind::Any, 100, code, None);
        let scene = Scene::begun(up);
        let (why, took) = ended(&scene).await;
        assert_eq!(why, end, "{code}");
        assert!(took < seconds(1), "{code}: {took:?}");
        assert!(scene.feeds.find(&spec().key, None).is_none());
        assert!(scene.feeds.handle(&spec(), None).is_err(), "{code}: it is not requested again at once");
    }
}

/// An apiserver that has just started denies requests until its caches are filled.
#[tokio::test(start_paused = true)]
async fn live_feed_tolerates_refusals_for_a_grace_period() {
    for code in [403, 404, 406] {
        let scene = Scene::of(upstream().pods(3)).await;
        let history = scene.feed.reader.history();
        scene.up.faults().answer(RequestKind::Watch, 2, code, None);
        scene.up.faults().end_watches();
        scene.until_state("refused", |state| matches!(state, FeedState::Stale { .. })).await;
        let took = scene.until_state("live", |state| state == FeedState::Live).await;
        assert!(took < seconds(20), "{code}: {took:?}");
        assert_eq!(scene.feed.reader.history(), history, "{code}");

        scene.up.faults().answer(RequestKind::Any, 1_000_000, code, None);
        scene.up.faults().end_watches();
        let (_, took) = ended(&scene).await;
        assert!((seconds(15)..=seconds(60)).contains(&took), "{code}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_delays_the_next_request() {
    let scene = Scene::of(upstream().pods(3)).await;
    let opened = scene.up.counts().requests;
    scene.up.faults().answer(RequestKind::Watch, 1, 429, Some(17));
    scene.up.faults().end_watches();
    scene.until_state("refused", |state| matches!(state, FeedState::Stale { .. })).await;
    sleep(Duration::from_millis(16_500)).await;
    assert_eq!(scene.up.counts().requests - opened, 1);
    let took = scene.until_state("live", |state| state == FeedState::Live).await;
    assert!(took <= seconds(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn excessive_retry_after_is_capped() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().answer(RequestKind::Watch, 1, 503, Some(86_400));
    scene.up.faults().end_watches();
    scene.until_state("refused", |state| matches!(state, FeedState::Stale { .. })).await;
    let took = scene.until_state("live", |state| state == FeedState::Live).await;
    assert!((seconds(29)..=seconds(46)).contains(&took), "{took:?}");
}

/// A server without streamed lists is sent paginated lists, and no further streamed ones.
#[tokio::test(start_paused = true)]
async fn server_without_watch_list_gets_paged_lists() {
    for code in [400, 422] {
        let up = upstream().pods(1_200).in_memory();
        up.faults().answer(RequestKind::Watch, 1, code, None);
        let scene = Scene::begun(up);
        scene.until_state("live", |state| state == FeedState::Live).await;
        assert!(scene.is_true());
        let counts = scene.up.counts();
        assert_eq!((counts.lists.of("pods"), counts.watch_lists.of("pods")), (3, 0), "{code}: 500 each");
        let other = scene.other();
        other.reader.synced(Instant::now() + seconds(60)).await;
        let counts = scene.up.counts();
        assert_eq!((counts.lists.of("configmaps"), counts.watch_lists.total()), (1, 0), "{code}: all feeds know");
    }
}

/// A server that is temporarily unable to respond is sent the same request again.
#[tokio::test(start_paused = true)]
async fn temporary_list_error_retries_the_same_request() {
    for code in [429, 500, 503] {
        let up = upstream().pods(3).in_memory();
        up.faults().answer(RequestKind::Watch, 3, code, None);
        let scene = Scene::begun(up);
        let took = scene.until_state("live", |state| state == FeedState::Live).await;
        assert!(took > seconds(2), "{code}: {took:?}");
        let counts = scene.up.counts();
        assert_eq!((counts.lists.total(), counts.watch_lists.of("pods")), (0, 1), "{code}");
        assert_eq!((scene.said("refused"), scene.said("initial")), (3, 4), "{code}");
    }
}

/// Objects that were read by another definition no longer fit: the next feed replaces this one.
#[tokio::test(start_paused = true)]
async fn changed_definition_ends_feed_and_starts_its_replacement() {
    let scene = Scene::of(upstream().pods(3)).await;
    let changed = FeedSpec { edition: Some("2".into()), ..spec() };
    let next = scene.feeds.handle(&changed, None).expect("it is no refusal");
    let (end, took) = ended(&scene).await;
    assert_eq!((end, took < seconds(1)), (FeedEndReason::Outdated, true));
    let mut state = next.reader.watch_state();
    timeout(seconds(60), state.wait_for(|state| *state == FeedState::Live)).await.expect("in time").expect("it runs");
}

/// A refusal says something about one release only. The next server of another one is asked for streamed lists again.
#[tokio::test(start_paused = true)]
async fn refused_streamed_lists_are_requested_again_after_an_upgrade() {
    let up = upstream().pods(3).in_memory();
    up.faults().answer(RequestKind::Watch, 1, 400, None);
    let scene = Scene::begun(up).serving().await;
    let streamed = || scene.up.requests().iter().filter(|request| is_streamed_list(&request.uri)).count();
    assert_eq!((streamed(), scene.up.counts().lists.of("pods")), (1, 1), "the list is read in pages");
    upgraded(&scene, 37).await;
    sleep(seconds(600)).await;
    assert_eq!((scene.said("release_change"), streamed()), (1, 2));
}

/// After an upgrade, the lists of one resource do not end, for example because of its conversion webhook.
#[tokio::test(start_paused = true)]
async fn hanging_list_of_one_resource_does_not_hide_the_states_of_others() {
    let scene = Scene::of(upstream().pods(3)).await;
    let other = scene.other();
    let _ = timeout(NEVER, other.reader.watch_state().wait_for(|state| *state == FeedState::Live)).await;
    upgraded(&scene, 37).await;
    for feed in [&scene.feed, &other] {
        while feed.body_release.is_current() || feed.reader.state() != FeedState::Live {
            sleep(Duration::from_millis(100)).await;
        }
    }
    scene.up.faults().only("pods").hold_watches();
    let feed = scene.feed.clone();
    let _reader = tokio::spawn(async move { feed.body_release.wait_current_requested().await });
    while scene.said("release_change") == 0 {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(timeout(seconds(15), other.body_release.wait_current_requested()).await.is_ok());
    assert!(!scene.feed.body_release.is_current());
    scene.up.faults().release_watches();
    assert!(timeout(NEVER, scene.feed.body_release.wait_current_requested()).await.is_ok());
}

/// Replaces upstream by another release, while the feed has no stream.
async fn upgraded(scene: &Scene, minor: u32) {
    scene.up.faults().down().await;
    scene.until_state("lost", |state| state != FeedState::Live).await;
    scene.up.faults().upgrade(minor);
    scene.up.faults().up().await;
}

fn is_streamed_list(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("sendInitialEvents") && !query.contains("fieldSelector"))
}
