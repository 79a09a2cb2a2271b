//! Tests streams that break, stall or contradict themselves.

use super::*;

async fn next_is_reported(scene: &Scene) {
    let written = scene.up.create_pod("t1", "next");
    scene.until(written).await;
    assert!(scene.is_true());
}

#[tokio::test(start_paused = true)]
async fn cleanly_ended_watch_resumes_at_once_without_a_list() {
    let scene = Scene::of(upstream().pods(3)).await;
    let (history, before) = (scene.feed.reader.history(), scene.up.counts());
    for n in 0..5 {
        scene.up.faults().end_watches();
        let written = scene.up.create_pod("t1", &format!("p{n}"));
        let took = scene.until(written).await;
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert_eq!(scene.feed.reader.state(), FeedState::Live);
        sleep(seconds(10)).await;
    }
    let after = scene.up.counts();
    assert_eq!((after.lists, after.watch_lists), (before.lists, before.watch_lists));
    assert_eq!(scene.feed.reader.history(), history);
    assert_eq!(scene.said("closed_at_once"), 0, "it is the ordinary end of a watch");
}

/// An ended watch is no failure, but without its successor nothing shows that the state is current.
#[tokio::test(start_paused = true)]
async fn feed_that_cannot_resume_within_a_second_is_stale() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().hold_watches();
    scene.up.faults().end_watches();
    let took = scene.until_state("held", |state| matches!(state, FeedState::Stale { .. })).await;
    assert!((seconds(1)..=seconds(2)).contains(&took), "{took:?}");
    scene.up.faults().release_watches();
    scene.until_state("live", |state| state == FeedState::Live).await;
    next_is_reported(&scene).await;
}

/// An apiserver that ends each watch right after it began is refusing us: that is a failure, with backoff.
#[tokio::test(start_paused = true)]
async fn watches_that_end_immediately_are_reopened_with_backoff() {
    let scene = Scene::of(upstream().pods(3)).await;
    let opened = scene.up.counts().watches_opened.total();
    let began = Instant::now();
    while began.elapsed() < seconds(60) {
        scene.up.faults().end_watches();
        sleep(Duration::from_millis(10)).await;
    }
    let opened = scene.up.counts().watches_opened.total() - opened;
    assert!((3..=25).contains(&opened), "{opened} watches in a minute");
    assert!(scene.said("closed_at_once") >= 3);
}

/// Upstream repeats the newest change, which shows that the history is the same.
#[tokio::test(start_paused = true)]
async fn lost_connection_resumes_just_before_the_newest_event() {
    let scene = Scene::of(upstream().pods(3)).await;
    let newest = scene.up.create_pod("t1", "newest");
    scene.until(newest).await;
    sleep(seconds(10)).await;
    scene.up.faults().drop_connections();
    // Events that are written before the loss is noticed may still arrive.
    scene.until_state("lost", |state| state != FeedState::Live).await;
    let before = scene.up.counts();
    next_is_reported(&scene).await;
    // A check of the history, which the repeated event makes superfluous, would be over by then.
    sleep(seconds(20)).await;
    assert_eq!(scene.last_start(), Some(newest - 1));
    assert_eq!(scene.said("mismatch") + scene.said("position"), 0, "the stream itself tells");
    let after = scene.up.counts();
    assert_eq!((after.lists, after.watch_lists), (before.lists, before.watch_lists));
    assert_eq!(scene.said("connection_lost") + scene.said("closed_at_once"), 1);
}

#[tokio::test(start_paused = true)]
async fn resumed_stream_without_newest_event_starts_new_history() {
    let scene = Scene::of(upstream().pods(3)).await;
    let backup = scene.up.faults().backup();
    let lost = scene.up.create_pod("t1", "lost");
    scene.until(lost).await;
    sleep(seconds(10)).await;
    let history = scene.feed.reader.history();
    scene.up.faults().down().await;
    scene.until_state("lost", |state| state != FeedState::Live).await;
    scene.up.faults().restore(&backup);
    // The storage has passed its earlier version, so versions alone look normal.
    for n in 0..5 {
        scene.up.create_pod("t1", &format!("other-{n}"));
    }
    assert!(scene.up.revision() > lost);
    scene.up.faults().up().await;
    scene.until_state("a new history", |state| state == FeedState::Live).await;
    sleep(seconds(60)).await;
    next_is_reported(&scene).await;
    assert_ne!(scene.feed.reader.history(), history);
    assert_eq!((scene.said("rewound"), scene.said("new_history")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn silent_stream_times_out_and_reconnects() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().hush_watches();
    let took = scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
    assert!((seconds(60)..=seconds(90)).contains(&took), "{took:?}");
    assert_eq!(scene.said("idle_timeout"), 1);
    scene.up.faults().unhush_watches();
    next_is_reported(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn duplicate_event_is_applied_once() {
    let scene = Scene::of(upstream().pods(3)).await;
    let written = scene.up.create_pod("t1", "once");
    scene.until(written).await;
    let history = scene.feed.reader.history();
    scene.up.faults().duplicate_event();
    next_is_reported(&scene).await;
    assert_eq!((scene.feed.reader.history(), scene.said("out_of_order")), (history, 0));
    assert_eq!(scene.feed.counts.duplicates.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// An unreadable stream is not retried forever: after the third failure in a row from one version, the feed relists.
#[tokio::test(start_paused = true)]
async fn third_unreadable_stream_from_one_version_relists() {
    let scene = Scene::of(upstream().pods(3)).await;
    let lists = || scene.said("initial");
    for time in 1..=3 {
        assert_eq!(lists(), 1, "before the {time}th");
        scene.up.faults().send_malformed();
        scene.until_state("broken", |state| state != FeedState::Live).await;
        scene.until_state("live", |state| state == FeedState::Live).await;
    }
    assert_eq!((lists(), scene.said("unreadable")), (2, 3));
    next_is_reported(&scene).await;
    // An event in between resets the count.
    for n in 0..6 {
        scene.up.faults().send_malformed();
        scene.until_state("broken", |state| state != FeedState::Live).await;
        let written = scene.up.create_pod("t1", &format!("p{n}"));
        scene.until(written).await;
    }
    assert_eq!(lists(), 2);
}

/// A truncated frame is never half applied: the watch resumes before it.
#[tokio::test(start_paused = true)]
async fn truncated_frame_is_reread_in_full() {
    let scene = Scene::of(upstream().pods(3)).await;
    let history = scene.feed.reader.history();
    let orders: [fn(&demo::FaultInjector); 2] = [|faults| faults.break_frame(40), |faults| faults.tear_frame(40)];
    for order in orders {
        order(&scene.up.faults());
        next_is_reported(&scene).await;
        sleep(seconds(200)).await;
    }
    assert_eq!(scene.feed.reader.history(), history);
}

#[tokio::test(start_paused = true)]
async fn unavailable_upstream_is_retried_with_backoff_and_found_soon() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().down().await;
    let took = scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
    assert!(took < seconds(1), "{took:?}");
    sleep(seconds(600)).await;
    let failed = scene.said("unreachable");
    // From 0.8 s to half a minute.
    assert!((20..=40).contains(&failed), "{failed} attempts in ten minutes");
    scene.up.faults().up().await;
    let took = scene.until_state("live", |state| state == FeedState::Live).await;
    assert!(took <= seconds(30), "{took:?}");
    next_is_reported(&scene).await;
    sleep(seconds(130)).await;
    scene.up.faults().down().await;
    sleep(seconds(5)).await;
    scene.up.faults().up().await;
    let took = scene.until_state("live", |state| state == FeedState::Live).await;
    assert!(took <= seconds(10), "a healthy spell is a new beginning: {took:?}");
}

/// Upstream responds to another request now and then, but when the feed has been woken, the connections break again.
async fn flap(scene: &Scene, long: Duration) {
    let began = Instant::now();
    while began.elapsed() < long {
        scene.up.faults().up().await;
        assert!(scene.ask().await, "it is up");
        scene.up.faults().down().await;
        sleep(Duration::from_millis(400)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn successful_request_wakes_feed_after_earlier_false_wakeups() {
    for _ in 0..10 {
        let scene = Scene::of(upstream().pods(3)).await;
        scene.up.faults().down().await;
        scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
        flap(&scene, seconds(9)).await;
        scene.up.faults().up().await;
        assert!(scene.ask().await, "it is up");
        let took = scene.until_state("live", |state| state == FeedState::Live).await;
        assert!(took <= seconds(9), "as long again as it was away: {took:?}");
        next_is_reported(&scene).await;
    }
}

#[tokio::test(start_paused = true)]
async fn flapping_upstream_does_not_defeat_feed_backoff() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().down().await;
    scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
    flap(&scene, seconds(600)).await;
    let failed = scene.said("unreachable") + scene.said("connection_lost");
    assert!((20..=40).contains(&failed), "{failed} attempts in ten minutes, as if no request were answered");
}

#[tokio::test(start_paused = true)]
async fn feed_without_readers_ends_after_the_idle_timeout() {
    let Scene { up, feeds, feed, client: _client, _tasks } = Scene::of(upstream().pods(3)).await;
    let mut state = feed.reader.watch_state();
    sleep(seconds(3600)).await;
    assert_eq!(feed.reader.state(), FeedState::Live, "it has a lease");
    drop(feed);
    let began = Instant::now();
    let ended = timeout(NEVER, state.wait_for(|state| matches!(state, FeedState::Ended(_)))).await;
    assert_eq!(*ended.expect("it ends").expect("it says so"), FeedState::Ended(FeedEndReason::Idle));
    assert!((seconds(600)..=seconds(610)).contains(&began.elapsed()), "{:?}", began.elapsed());
    up.until(|counts| counts.watches_open.total() == 0).await;
    assert!(feeds.find(&spec().key, None).is_none());
}

/// A feed that starts over, or has lost its history, lists at a proxy that lags and cannot reach its upstream.
#[tokio::test(start_paused = true)]
async fn list_of_a_lagging_proxy_is_retried_and_no_rollback() {
    for starts_over in [true, false] {
        let scene = Scene::begun(upstream().pods(3).in_memory());
        scene.is_a_proxy(None);
        let scene = scene.serving().await;
        let backup = scene.up.faults().backup();
        let reached = scene.elsewhere(1);
        scene.up.faults().bookmark();
        scene.until(reached).await;
        if starts_over {
            // It does so after three unreadable streams.
            for _ in 0..3 {
                scene.until_state("live", |state| state == FeedState::Live).await;
                scene.up.faults().send_malformed();
                scene.until_state("unreadable", |state| state != FeedState::Live).await;
            }
        } else {
            scene.up.faults().answer(demo::RequestKind::Watch, 1, 410, None);
            scene.up.faults().end_watches();
        }
        scene.up.faults().restore(&backup);
        scene.up.faults().answer(demo::RequestKind::List, 1_000_000, 503, None);
        sleep(seconds(60)).await;
        assert!(scene.said("refused") > 1 && scene.feed.reader.state() != FeedState::Live, "{starts_over}");
        assert_eq!(scene.said("rewound"), 0, "{starts_over}");
        scene.up.faults().answer_as_usual();
        while scene.elsewhere(2) <= reached {}
        scene.until_state("live", |state| state == FeedState::Live).await;
        assert_eq!(scene.said("rewound"), 0, "{starts_over}");
        next_is_reported(&scene).await;
    }
}

/// The stream of a proxy is open, but says nothing about changes that the proxy does not receive (L7).
#[tokio::test(start_paused = true)]
async fn stream_of_a_stale_proxy_leaves_the_feed_stale_until_an_item() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.is_a_proxy(Some(40));
    scene.up.faults().end_watches();
    let is_stale = |state| matches!(state, FeedState::Stale { since } if since.elapsed() >= seconds(40));
    scene.until_state("stale", is_stale).await;
    let opened = scene.up.counts().watches_opened.of("pods");
    scene.is_a_proxy(None);
    sleep(seconds(10)).await;
    assert_eq!(scene.up.counts().watches_opened.of("pods"), opened, "the stream stays open");
    assert!(is_stale(scene.feed.reader.state()));
    next_is_reported(&scene).await;
    assert_eq!(scene.feed.reader.state(), FeedState::Live);
}

/// The first state of a proxy without a stream is proven, but not followed.
#[tokio::test(start_paused = true)]
async fn first_state_of_a_stale_proxy_is_stale() {
    let scene = Scene::begun(upstream().pods(3).in_memory());
    scene.is_a_proxy(Some(40));
    scene.until_state("synced", |state| state != FeedState::Syncing).await;
    assert!(matches!(scene.feed.reader.state(), FeedState::Stale { since } if since.elapsed() >= seconds(40)));
    next_is_reported(&scene).await;
    assert_eq!(scene.feed.reader.state(), FeedState::Live);
}
