//! Tests clients that resume from before a feed's first list: the backfilled events, the refused resumes, and the cost.

use std::sync::Arc;

use futures_util::future::join_all;

use super::*;
use crate::cache::{CacheReader, CollectionView, WatchStartPosition};
use base::random;
use demo::{FaultInjector, RequestKind};
use kubeapi::{LabelSelector, Selector};

/// The maximum wait of a client if upstream does not respond.
const TURNED_AWAY: Duration = Duration::from_secs(6);
/// The maximum time that a client waits.
const HELD: Duration = Duration::from_secs(8);

/// Makes an upstream with some changes, and a feed that began after them. Returns them with the version from which
/// upstream has history.
async fn late(changes: usize) -> (Scene, u64) {
    let up = upstream().pods(3).in_memory();
    let from = up.revision();
    for n in 0..changes {
        up.create_pod("t1", &format!("p{n}"));
    }
    if changes > 0 {
        up.update_pod("t1", "p0");
        up.delete_pod("t1", "p0");
    }
    let scene = Scene::begun(up);
    scene.until_state("live", |state| state == FeedState::Live).await;
    (scene, from)
}

/// Resumes a client from `from`. Returns whether it can continue, and how long it waited.
async fn comes_back(scene: &Scene, from: u64) -> (bool, Duration) {
    comes_back_to(scene, from, CollectionView::everything()).await
}

/// Resumes a client that selects by labels.
async fn inquires(scene: &Scene, from: u64) -> (bool, Duration) {
    let labels = LabelSelector::parse("app").expect("a selector");
    comes_back_to(scene, from, CollectionView::new(None, Selector { labels, ..Selector::default() })).await
}

async fn comes_back_to(scene: &Scene, from: u64, view: CollectionView) -> (bool, Duration) {
    let (came, reader) = (Instant::now(), &scene.feed.reader);
    let wait = scene.feed.resume_backfills.wait(ResourceVersion(from), &view, reader);
    assert!(timeout(NEVER, wait).await.is_ok(), "neither here nor there in a day");
    (reader.open(WatchStartPosition::After(ResourceVersion(from)), view).is_ok(), came.elapsed())
}

/// The changes that the feed has after a version.
fn events(reader: &CacheReader, from: u64) -> Vec<(String, u64)> {
    let behind = reader.events().into_iter().filter(|event| event.rv.0 > from);
    behind.map(|event| (format!("{} {}", event.event_type, event.object.key), event.rv.0)).collect()
}

#[tokio::test(start_paused = true)]
async fn late_client_resumes_after_backfill_confirmed_by_bookmark() {
    let (scene, from) = late(2).await;
    let lists = scene.up.counts();
    let (goes_on, took) = comes_back(&scene, from).await;
    assert!(goes_on && took < seconds(3), "{took:?}");
    let expected = ["ADDED t1/p0", "ADDED t1/p1", "MODIFIED t1/p0", "DELETED t1/p0"];
    let expected: Vec<_> = expected.map(str::to_owned).into_iter().zip(from + 1..).collect();
    assert_eq!(events(&scene.feed.reader, from), expected);
    assert_eq!((scene.said("backfill"), scene.said("extended")), (1, 1));
    let now = scene.up.counts();
    assert_eq!((now.lists, now.watch_lists), (lists.lists, lists.watch_lists), "nothing is listed for it");
    // A client that resumes from a later version is served from the same history, without a wait.
    assert_eq!(comes_back(&scene, from + 1).await, (true, Duration::ZERO));
    assert_eq!(scene.said("backfill"), 1);
    scene.until(scene.up.create_pod("t1", "next")).await;
    assert!(scene.is_true());
}

#[tokio::test(start_paused = true)]
async fn backfill_completes_at_the_next_event_of_a_busy_upstream() {
    let (scene, from) = late(2).await;
    scene.until(scene.up.create_pod("t1", "later")).await;
    let (goes_on, took) = comes_back(&scene, from).await;
    assert!(goes_on && took < Duration::from_millis(300), "{took:?}");
    assert_eq!(events(&scene.feed.reader, from).len(), 5);
}

/// A fleet returns in any order, each client from another version.
#[tokio::test(start_paused = true)]
async fn fleet_resuming_from_many_versions_costs_few_backfills() {
    const FLEET: usize = 1_000;
    let (scene, from) = late(FLEET).await;
    let scene = Arc::new(scene);
    let clients = (from..).take(FLEET).map(|from| {
        let (scene, pause) = (scene.clone(), seconds(20).mul_f64(random::f64()));
        tokio::spawn(async move {
            sleep(pause).await;
            comes_back(&scene, from).await
        })
    });
    let reported = join_all(clients.collect::<Vec<_>>()).await;
    let served = reported.iter().filter(|reported| reported.as_ref().is_ok_and(|(goes_on, _)| *goes_on)).count();
    assert_eq!(served, FLEET);
    assert!(scene.said("backfill") <= 16, "{} watches", scene.said("backfill"));
    assert_eq!(scene.said("extended"), scene.said("backfill"));
}

#[tokio::test(start_paused = true)]
async fn expired_versions_are_rejected_from_memory_newer_ones_resume() {
    let (scene, from) = late(9).await;
    let window = from + 5;
    scene.up.faults().compact(window);
    let (goes_on, took) = comes_back(&scene, from + 2).await;
    assert!(!goes_on && took < seconds(1), "{took:?}");
    for older in [from + 4, from + 2, 1] {
        assert_eq!(comes_back(&scene, older).await, (false, Duration::ZERO), "from {older}");
    }
    sleep(seconds(3_600)).await;
    assert_eq!(comes_back(&scene, from + 4).await, (false, Duration::ZERO), "for ever");
    assert_eq!((scene.said("backfill"), scene.said("expired")), (1, 1));
    assert!(comes_back(&scene, window).await.0);
    assert_eq!(events(&scene.feed.reader, window).len(), 6);
}

/// A client that requests ever older versions affects no other client.
#[tokio::test(start_paused = true)]
async fn client_resuming_from_ever_older_versions_is_limited() {
    let (scene, from) = late(100).await;
    let floor = scene.feed.reader.floor().0;
    for older in (from..floor).rev() {
        comes_back(&scene, older).await;
    }
    assert_eq!(scene.said("backfill"), 16);
}

#[tokio::test(start_paused = true)]
async fn rejected_backfill_is_not_repeated_and_clients_fail_fast() {
    for code in [401, 403, 429, 500, 503] {
        let (scene, from) = late(2).await;
        scene.up.faults().answer(RequestKind::Watch, 1_000, code, Some(1));
        for _ in 0..20 {
            let (goes_on, took) = comes_back(&scene, from).await;
            assert!(!goes_on && took < TURNED_AWAY, "{code}: {took:?}");
        }
        assert_eq!((scene.said("backfill"), scene.said("failed")), (1, 1), "{code}");
        assert_eq!(scene.feed.reader.state(), FeedState::Live, "{code}: the feed has nothing to do with it");
    }
}

/// Waits until upstream has received `times` backfill requests.
async fn until_requested(scene: &Scene, times: u64) {
    let requested = async {
        while scene.said("backfill") < times {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(NEVER, requested).await.expect("it is requested");
}

/// A broken connection says nothing about how much history upstream has.
#[tokio::test(start_paused = true)]
async fn broken_backfill_is_retried_while_clients_wait() {
    type Break = fn(&FaultInjector);
    let breaks: [(&str, Break); 4] = [
        ("torn", |faults| faults.tear_frame(20)),
        ("reset", |faults| faults.reset_watches()),
        ("ended", |faults| faults.end_watches()),
        ("dropped", |faults| faults.drop_connections()),
    ];
    for (name, break_off) in breaks {
        for (times, goes_on) in [(1, true), (2, true), (1_000, false)] {
            let (scene, from) = late(2).await;
            let scene = Arc::new(scene);
            let waits = tokio::spawn({
                let scene = scene.clone();
                async move { comes_back(&scene, from).await }
            });
            for time in 1..=times.min(3) {
                until_requested(&scene, time).await;
                break_off(&scene.up.faults());
            }
            let (served, took) = waits.await.expect("no panic");
            assert!(served == goes_on && took < HELD, "{name} {times} times: {served} after {took:?}");
            assert_eq!(scene.said("backfill"), (times + 1).min(3), "{name} {times} times");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn broken_backfill_is_not_retried_without_waiting_clients() {
    let (scene, from) = late(2).await;
    assert!(timeout(seconds(1), comes_back(&scene, from)).await.is_err(), "it leaves");
    assert_eq!(scene.said("backfill"), 1);
    scene.up.faults().reset_watches();
    sleep(seconds(60)).await;
    assert_eq!(scene.said("backfill"), 1);
    assert!(comes_back(&scene, from).await.0);
}

#[tokio::test(start_paused = true)]
async fn backfill_times_out_if_upstream_sends_nothing() {
    let (scene, from) = late(2).await;
    scene.up.faults().hush_watches();
    let (goes_on, took) = comes_back(&scene, from).await;
    assert!(!goes_on && took < TURNED_AWAY, "{took:?}");
    scene.up.faults().unhush_watches();
    sleep(seconds(10)).await;
    assert!(comes_back(&scene, from).await.0, "that was not its last word");
}

/// Without upstream no client gets a result; once it is back, the clients that still wait continue.
#[tokio::test(start_paused = true)]
async fn backfill_waits_until_upstream_is_available() {
    let (scene, from) = late(2).await;
    scene.up.faults().down().await;
    scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
    let scene = Arc::new(scene);
    let waits = tokio::spawn({
        let scene = scene.clone();
        async move { comes_back(&scene, from).await }
    });
    sleep(seconds(30)).await;
    assert_eq!(scene.said("backfill"), 0);
    scene.up.faults().up().await;
    assert!(waits.await.expect("no panic").0);
    assert_eq!(scene.said("extended"), 1);
}

/// Upstream was restored from a backup, and the open stream does not show it. The backfilled events do not lead to the
/// listed state.
#[tokio::test(start_paused = true)]
async fn backfill_from_another_history_is_rejected() {
    let up = upstream().pods(3).in_memory();
    let backup = up.faults().backup();
    let from = up.revision();
    for n in 0..3 {
        up.create_pod("t1", &format!("lost-{n}"));
    }
    let scene = Scene::begun(up);
    scene.until_state("live", |state| state == FeedState::Live).await;
    scene.up.faults().hush_watches();
    scene.up.faults().restore(&backup);
    for n in 0..9 {
        scene.up.create_pod("t1", &format!("other-{n}"));
    }
    scene.up.faults().unhush_watches();
    let (goes_on, took) = comes_back(&scene, from).await;
    assert!(!goes_on && took < TURNED_AWAY, "{took:?}");
    assert_eq!((scene.said("mismatch"), scene.said("extended")), (1, 0));
    sleep(seconds(60)).await;
    assert!(scene.said("mismatch") >= 1, "it is looked into");
    assert!(!comes_back(&scene, from).await.0);
    assert_eq!(scene.said("backfill"), 1);
}

/// A history that began because an earlier one was unproven or rewound is not extended backwards.
#[tokio::test(start_paused = true)]
async fn later_history_is_not_backfilled() {
    let (scene, from) = late(2).await;
    scene.up.faults().down().await;
    scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
    for n in 0..65 {
        scene.up.create_pod("t1", &format!("meanwhile-{n}"));
    }
    scene.up.faults().forget_window();
    scene.up.faults().up().await;
    scene.until_state("live", |state| state == FeedState::Live).await;
    scene.until(scene.up.revision()).await;
    assert_eq!(scene.said("new_history"), 1);
    assert_eq!(comes_back(&scene, from).await, (false, Duration::ZERO));
    assert_eq!(scene.said("backfill"), 0);
}

#[tokio::test(start_paused = true)]
async fn backfill_larger_than_the_ring_is_abandoned() {
    let up = upstream().pods(3).in_memory();
    let from = up.revision();
    for n in 0..50 {
        up.create_pod("t1", &format!("p{n}"));
    }
    let scene = Scene::begun_with(up, CacheConfig { window_events_max: 10, ..CacheConfig::default() });
    scene.until_state("live", |state| state == FeedState::Live).await;
    assert!(!comes_back(&scene, from).await.0);
    assert_eq!(scene.said("beyond_window"), 1);
    assert!(comes_back(&scene, from + 45).await.0, "five events have room");
    assert_eq!(comes_back(&scene, from).await, (false, Duration::ZERO));
}

/// Makes a feed that began after `pods` existing pods had changed. Returns it with the version before the changes.
async fn changed(pods: usize) -> (Scene, u64) {
    let up = upstream().in_memory();
    for n in 0..pods {
        up.create_pod("t1", &format!("p{n}"));
    }
    let from = up.revision();
    for n in 0..pods {
        up.update_pod("t1", &format!("p{n}"));
    }
    let scene = Scene::begun(up);
    scene.until_state("live", |state| state == FeedState::Live).await;
    (scene, from)
}

#[tokio::test(start_paused = true)]
async fn past_objects_are_requested_only_for_clients_that_need_them() {
    let (scene, from) = changed(5).await;
    assert!(comes_back(&scene, from).await.0);
    assert_eq!(scene.said("past_object"), 0, "no client needs them");
    assert_eq!(inquires(&scene, from + 2).await, (true, Duration::from_millis(200)));
    assert_eq!((scene.said("past_object"), scene.said("previous_found")), (3, 1), "behind that version");
    assert!(inquires(&scene, from).await.0);
    assert_eq!(
        (scene.said("past_object"), scene.said("previous_found")),
        (5, 2),
        "and known states are not requested again"
    );
    for event in scene.feed.reader.events() {
        let before = event.previous.as_ref().expect("it is known").rv;
        assert_eq!(before.0, event.rv.0 - 5, "{}", event.object.key);
    }
    assert_eq!(scene.said("backfill"), 1);
}

#[tokio::test(start_paused = true)]
async fn first_resume_gets_events_and_past_objects() {
    let (scene, from) = changed(3).await;
    assert!(inquires(&scene, from).await.0);
    assert_eq!((scene.said("backfill"), scene.said("previous_found"), scene.said("past_object")), (1, 1, 3));
}

#[tokio::test(start_paused = true)]
async fn past_objects_are_not_requested_above_the_limit() {
    let (scene, from) = changed(70).await;
    assert!(!inquires(&scene, from).await.0);
    assert_eq!((scene.said("past_object"), scene.said("previous_missing")), (0, 1));
    assert_eq!(inquires(&scene, from + 5).await, (false, Duration::ZERO), "from memory");
    assert!(inquires(&scene, from + 6).await.0, "behind that there are few enough");
    assert_eq!(scene.said("past_object"), 64);
    assert!(comes_back(&scene, from).await.0, "who does not need to know goes on");
}

/// The watch window has events whose previous objects storage has compacted.
#[tokio::test(start_paused = true)]
async fn compacted_past_objects_limit_how_far_clients_resume() {
    let (scene, from) = changed(4).await;
    assert!(comes_back(&scene, from).await.0);
    scene.up.faults().compact(from + 2);
    assert!(!inquires(&scene, from).await.0);
    assert_eq!(scene.said("previous_missing"), 1);
    assert_eq!(inquires(&scene, from + 1).await, (false, Duration::ZERO));
    assert!(inquires(&scene, from + 2).await.0);
    assert!(comes_back(&scene, from).await.0);
}

#[tokio::test(start_paused = true)]
async fn failed_past_object_request_rejects_the_resuming_client() {
    let (scene, from) = changed(3).await;
    assert!(comes_back(&scene, from).await.0);
    scene.up.faults().answer(RequestKind::Selection, 1, 429, Some(1));
    assert!(!inquires(&scene, from).await.0);
    assert_eq!((scene.said("failed"), scene.said("past_object")), (1, 1));
    sleep(seconds(5)).await;
    assert!(inquires(&scene, from).await.0);
}
