//! Tests gaps after upstream has lost its window: the recovered changes, the unrecoverable ones, and the cost.

use super::*;
use base::random;

/// Restarts the apiserver: it is unreachable for `away`, and then has lost its window.
async fn restarts(scene: &Scene, away: Duration, meanwhile: impl FnOnce(&RunningDemoApiserver)) {
    scene.up.faults().down().await;
    scene.until_state("stale", |state| matches!(state, FeedState::Stale { .. })).await;
    sleep(away).await;
    meanwhile(&scene.up);
    scene.up.faults().forget_window();
    scene.up.faults().up().await;
    scene.until_state("live", |state| state == FeedState::Live).await;
    scene.until(scene.up.revision()).await;
}

#[tokio::test(start_paused = true)]
async fn changes_during_upstream_restart_are_recovered() {
    let scene = Scene::of(upstream().pods(3)).await;
    for name in ["changed", "gone"] {
        scene.until(scene.up.create_pod("t1", name)).await;
    }
    let history = scene.feed.reader.history();
    restarts(&scene, seconds(20), |up| {
        up.create_pod("t1", "new");
        for _ in 0..3 {
            up.update_pod("t1", "changed");
        }
        up.delete_pod("t1", "gone");
    })
    .await;
    assert!(scene.is_true());
    assert_eq!((scene.feed.reader.history(), scene.said("mended")), (history, 1));
    assert_eq!((scene.said("relist"), scene.said("new_history") + scene.said("rewound")), (1, 0));
    assert!(scene.said("past_object") >= 3, "each object's past is requested");
}

/// An apiserver that has just started sheds load and authenticates clients again. A retry gets the recovered changes
/// later.
#[tokio::test(start_paused = true)]
async fn gap_repair_is_retried_after_a_temporary_error() {
    for code in [401, 429, 500, 503] {
        let scene = Scene::of(upstream().pods(3)).await;
        let history = scene.feed.reader.history();
        restarts(&scene, seconds(20), |up| {
            up.create_pod("t1", "new");
            up.faults().answer(demo::RequestKind::Selection, 2, code, Some(1));
        })
        .await;
        assert!(scene.is_true(), "{code}");
        assert_eq!((scene.said("mended"), scene.said("new_history")), (1, 0), "{code}");
        assert_eq!(scene.feed.reader.history(), history, "{code}");
        assert!(scene.said("past_object") >= 2, "{code}: requested again: {}", scene.said("past_object"));
    }
}

#[tokio::test(start_paused = true)]
async fn upstream_restart_without_changes_costs_at_most_one_list() {
    let scene = Scene::of(upstream().pods(3)).await;
    let history = scene.feed.reader.history();
    restarts(&scene, seconds(20), |_| {}).await;
    sleep(seconds(60)).await;
    assert!(scene.said("relist") <= 1 && scene.said("past_object") == 0);
    assert_eq!(scene.feed.reader.history(), history);
}

#[tokio::test(start_paused = true)]
async fn gap_beyond_time_or_object_limit_starts_a_new_history() {
    let changes: [(Duration, usize); 2] = [(seconds(400), 1), (seconds(20), 65)];
    for (away, objects) in changes {
        let scene = Scene::of(upstream().pods(3)).await;
        let history = scene.feed.reader.history();
        restarts(&scene, away, |up| {
            for n in 0..objects {
                up.create_pod("t1", &format!("p{n}"));
            }
        })
        .await;
        assert!(scene.is_true(), "{away:?} {objects}");
        assert_ne!(scene.feed.reader.history(), history, "{away:?} {objects}");
        assert_eq!((scene.said("mended"), scene.said("new_history")), (0, 1), "{away:?} {objects}");
    }
}

/// The storage was compacted too, so nothing can be recovered.
#[tokio::test(start_paused = true)]
async fn gap_past_storage_compaction_starts_a_new_history() {
    let scene = Scene::of(upstream().pods(3)).await;
    let history = scene.feed.reader.history();
    restarts(&scene, seconds(20), |up| {
        up.create_pod("t1", "new");
        up.update_pod("t1", "new");
        up.faults().forget_history();
    })
    .await;
    assert!(scene.is_true());
    assert_ne!(scene.feed.reader.history(), history);
    assert_eq!((scene.said("mended"), scene.said("new_history")), (0, 1));
}

/// An apiserver compacts its storage every five minutes, so the storage never has the versions long before a gap.
#[tokio::test(start_paused = true)]
async fn deletion_is_recovered_from_storage_compacted_up_to_the_gap() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.create_pod("t1", "gone");
    for _ in 0..100 {
        scene.up.update_pod("t1", "pod-0");
    }
    scene.until(scene.up.create_pod("t1", "last")).await;
    let (history, seen) = (scene.feed.reader.history(), scene.up.revision());
    restarts(&scene, seconds(20), |up| {
        up.faults().compact(seen - 1);
        up.delete_pod("t1", "gone");
        up.create_pod("t1", "new");
    })
    .await;
    assert!(scene.is_true());
    assert_eq!((scene.said("mended"), scene.said("new_history")), (1, 0));
    assert_eq!(scene.feed.reader.history(), history);
}

#[tokio::test(start_paused = true)]
async fn list_after_storage_restore_starts_a_new_history() {
    let scene = Scene::of(upstream().pods(3)).await;
    let backup = scene.up.faults().backup();
    let lost = scene.up.create_pod("t1", "lost");
    scene.until(lost).await;
    let history = scene.feed.reader.history();
    scene.up.faults().down().await;
    scene.until_state("lost", |state| state != FeedState::Live).await;
    scene.up.faults().restore(&backup);
    scene.up.faults().forget_window();
    scene.up.faults().up().await;
    scene.until_state("live", |state| state == FeedState::Live).await;
    sleep(seconds(60)).await;
    assert!(scene.is_true(), "what was lost is not served");
    assert_ne!(scene.feed.reader.history(), history);
    assert_eq!((scene.said("rewound"), scene.said("mended")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn mended_gap_is_announced_by_a_bookmark() {
    let scene = Scene::of(upstream().pods(3)).await;
    let before = scene.feed.reader.progress();
    restarts(&scene, seconds(5), |_| {
        scene.elsewhere(1);
    })
    .await;
    let after = scene.feed.reader.progress();
    assert_eq!(scene.said("mended"), 1);
    assert_eq!((after.rv, after.bookmarks), (ResourceVersion(scene.up.revision()), before.bookmarks + 1));
}

/// Upstream has no index of a past version, so it would read all pods of the cluster for each node's proxy.
#[tokio::test(start_paused = true)]
async fn gap_of_a_field_selector_feed_is_mended_without_a_past_list() {
    for (node, past_objects) in [("node-2", 0), ("node-1", 2)] {
        let scope = FeedScope::Selected { field: "spec.nodeName".into(), value: "node-1".into() };
        let spec = FeedSpec::like_pods(FeedKey { scope, ..spec().key });
        let up = upstream().pods(3).in_memory();
        up.put_pod(&demo::Pod::new("t1", "ours").node("node-1"));
        let reflect = ReflectConfig { self_check: None, ..ReflectConfig::default() };
        let scene = Scene::following(&spec, up, CacheConfig::default(), reflect, None).serving().await;
        let (history, before) = (scene.feed.reader.history(), scene.feed.reader.snapshot().len());
        restarts(&scene, seconds(20), |up| {
            for _ in 0..2 {
                up.put_pod(&demo::Pod::new("t1", "new").node(node));
            }
        })
        .await;
        assert_eq!((scene.said("mended"), scene.said("new_history")), (1, 0), "{node}");
        assert_eq!(scene.feed.reader.history(), history, "{node}");
        let new = usize::from(node == "node-1");
        assert_eq!(scene.feed.reader.snapshot().len(), before + new, "{node}");
        let requests = scene.up.requests();
        let queries: Vec<_> = requests.iter().filter_map(|request| request.uri.query()).collect();
        let exact: Vec<_> = queries.iter().filter(|query| query.contains("resourceVersionMatch=Exact")).collect();
        assert!(exact.iter().all(|query| query.contains("metadata.name")), "{node}: {exact:?}");
        assert_eq!(exact.len(), past_objects, "{node}: {exact:?}");
    }
}

/// The second restart is not attributed to the list after the first one, although no item came in between.
#[tokio::test(start_paused = true)]
async fn two_quick_upstream_restarts_end_no_quiet_watch() {
    for between in [1, 4, 27, 50] {
        let scene = Scene::of(upstream().pods(3)).await;
        let history = scene.feed.reader.history();
        for name in ["first", "second"] {
            restarts(&scene, seconds(5), |up| {
                up.create_pod("t1", name);
                scene.elsewhere(1);
            })
            .await;
            sleep(seconds(between)).await;
        }
        assert!(scene.is_true(), "{between}");
        assert_eq!((scene.said("mended"), scene.said("new_history")), (2, 0), "{between}");
        assert_eq!(scene.feed.reader.history(), history, "{between}");
    }
}

/// After a restart of the proxy, the feed begins at a client's version, whose age is unknown. Upstream's next bookmark
/// is a minute away.
#[tokio::test(start_paused = true)]
async fn apiserver_restarts_soon_after_a_proxy_restart_end_no_watch() {
    for (between, is_busy, restarted) in
        [1, 5, 30, 55].into_iter().flat_map(|between| [(between, false, 1), (between, true, 1), (between, false, 3)])
    {
        let up = upstream().pods(3).in_memory();
        let from = up.revision();
        up.put("configmaps", serde_json::json!({"metadata": {"name": "before", "namespace": "t1"}}));
        if is_busy {
            up.create_pod("t1", "before");
        }
        let scene = Scene::resumed(up, from).await;
        let history = scene.feed.reader.history();
        for number in 0..restarted {
            sleep(seconds(between)).await;
            restarts(&scene, seconds(5), |up| {
                scene.elsewhere(number);
                if is_busy {
                    up.create_pod("t1", "meanwhile");
                }
            })
            .await;
        }
        let what = format!("{between} s, busy: {is_busy}, {restarted} times");
        assert!(scene.is_true(), "{what}");
        let gaps = (scene.said("mended"), scene.said("new_history"));
        assert_eq!((gaps, scene.feed.reader.history()), ((u64::from(restarted), 0), history), "{what}");
    }
}

/// An outage of an apiserver, and what fails once it is back.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Plain,
    /// It goes away again while it responds to the list.
    DuringRelist,
    /// It goes away again while the gap is recovered.
    DuringMend,
}

/// Takes the apiserver away and back, and away once more if `outage` says so.
async fn outage(scene: &Scene, outage: Outage, away: Duration, name: &str, is_busy: bool) {
    let (up, faults) = (&scene.up, scene.up.faults());
    let change = |number: u32| {
        scene.elsewhere(number);
        if is_busy {
            up.create_pod("t1", &format!("{name}-{number}"));
        }
    };
    let restart = async |number: u32| {
        faults.down().await;
        sleep(away).await;
        change(number);
        faults.forget_window();
        faults.up().await;
    };
    match outage {
        Outage::Plain => restart(1).await,
        Outage::DuringRelist => {
            faults.hold_lists();
            restart(1).await;
            sleep(seconds(40)).await;
            restart(2).await;
            faults.release_lists();
        }
        Outage::DuringMend => {
            faults.answer(demo::RequestKind::Selection, 1, 503, Some(1));
            restart(1).await;
            sleep(seconds(2)).await;
            restart(2).await;
        }
    }
}

/// A feed that has run for a while, or one that begins at a client's version, as after a restart of the proxy.
async fn drawn_scene() -> Scene {
    if random::u32(..2) == 0 {
        return Scene::of(upstream().pods(3)).await;
    }
    let up = upstream().pods(3).in_memory();
    let from = up.revision();
    up.put("configmaps", serde_json::json!({"metadata": {"name": "before", "namespace": "t1"}}));
    let scene = Scene::resumed(up, from).await;
    sleep(seconds(random::u64(1..30))).await;
    scene
}

/// For any sequence of outages: upstream's storage has the whole history, so no watch ends.
#[tokio::test(start_paused = true)]
async fn random_outages_end_no_client_watch() {
    use Outage::{DuringMend, DuringRelist, Plain};
    for seed in 0..60 {
        random::seed(seed);
        let is_busy = random::u32(..2) == 0;
        let scene = drawn_scene().await;
        let history = scene.feed.reader.history();
        let mut drawn = Vec::new();
        for number in 0..random::u32(2..=3) {
            let kind = [Plain, DuringRelist, DuringMend][random::usize(..3)];
            let (away, quiet) = (random::u64(1..8), random::u64(0..25));
            drawn.push((kind, away, quiet));
            outage(&scene, kind, seconds(away), &format!("o{number}"), is_busy).await;
            sleep(seconds(quiet)).await;
        }
        scene.until(scene.up.create_pod("t1", "last")).await;
        assert!(scene.is_true(), "{seed}, busy: {is_busy}, {drawn:?}");
        let ended = scene.said("new_history") + scene.said("rewound") + scene.said("different");
        assert_eq!((scene.feed.reader.history(), ended), (history, 0), "{seed}, busy: {is_busy}, {drawn:?}");
    }
}

/// An upstream that responds 410 to every watch is listed, but not as fast as it can respond.
#[tokio::test(start_paused = true)]
async fn relists_are_paced_if_every_watch_returns_410() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().answer(demo::RequestKind::Watch, 1_000_000, 410, None);
    scene.up.faults().end_watches();
    sleep(seconds(300)).await;
    let lists = scene.said("relist");
    assert!((5..=25).contains(&lists), "{lists} lists in five minutes");
}

#[tokio::test(start_paused = true)]
async fn restore_found_by_one_feed_makes_other_feeds_check() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.elsewhere(1);
    let other = scene.other();
    sleep(seconds(10)).await;
    let backup = scene.up.faults().backup();
    scene.until(scene.up.create_pod("t1", "lost")).await;
    let history = other.reader.history();
    scene.up.faults().restore(&backup);
    // Only the stream of pods is lost, and detects the restore.
    scene.up.faults().only("pods").reset_watches();
    scene.until_state("found out", |state| state != FeedState::Live).await;
    sleep(seconds(10)).await;
    let looked = other.counts.labelled_counts().iter().any(|(word, count)| word.value == "mismatch" && *count == 1);
    assert!(looked, "{:?}", other.counts.labelled_counts());
    assert_eq!((other.reader.history(), scene.said("rewound")), (history, 1), "nothing of its own was lost");
}
