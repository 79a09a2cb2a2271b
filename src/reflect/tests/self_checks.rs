//! Tests the periodic comparison of a feed with upstream: its findings, its cost, and the changes that are not
//! differences (F8).

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
/// The longest interval between two rounds, plus the time to check a difference again.
const ROUND: Duration = Duration::from_secs(45 * 60 + 60);
/// More objects than are compared in a round.
const MANY: usize = 1_600;

async fn written(scene: &Scene, name: &str) {
    let written = scene.up.update_pod("t1", name);
    scene.until(written).await;
}

/// The number of self-check requests so far.
fn requests(scene: &Scene) -> u64 {
    scene.said("self_check")
}

/// How often the feed was found to differ, and how often it was given up because of that.
fn differed(scene: &Scene) -> (u64, u64) {
    let said = scene.feed.counts.labelled_counts();
    let of = |metric: &str| said.iter().find(|(word, _)| word.metric == metric && word.value == "different");
    let count = |metric: &str| of(metric).map_or(0, |(_, count)| *count);
    (count("kube_fanout_self_checks_total"), count("kube_fanout_history_gaps_total"))
}

#[tokio::test(start_paused = true)]
async fn self_check_runs_once_per_change_and_never_when_idle() {
    let scene = Scene::checked(upstream().pods(3)).await;
    sleep(24 * HOUR).await;
    assert_eq!(requests(&scene), 0, "all of it was listed");
    for changes in 1..=3 {
        written(&scene, "one").await;
        sleep(10 * HOUR).await;
        // The versions, and three objects in full.
        assert_eq!((requests(&scene), scene.said("same"), scene.said("skipped")), (4 * changes, changes, 0));
    }
    assert_eq!(differed(&scene), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn unread_warm_feed_is_not_self_checked() {
    let scene = Scene::checked(upstream().pods(3)).await;
    drop(scene.feed.clone().as_keep_alive());
    for n in 0..50 {
        written(&scene, &format!("p{n}")).await;
        sleep(HOUR).await;
    }
    assert_eq!(requests(&scene), 0);
    drop(scene.feeds.handle(&spec(), None).expect("it runs"));
    sleep(ROUND).await;
    assert_eq!(scene.said("same"), 1, "a client has read it");
    written(&scene, "later").await;
    sleep(24 * HOUR).await;
    assert_eq!(scene.said("same"), 1, "and no client since");
}

/// A fault, with a name.
type Mistake = (&'static str, fn(&Scene));

const MISTAKES: [Mistake; 4] = [
    ("a creation is lost", |scene| {
        scene.up.faults().lose_next_event();
        scene.up.create_pod("t1", "lost");
    }),
    ("a change is lost", |scene| {
        scene.up.faults().lose_next_event();
        scene.up.update_pod("t1", "kept");
    }),
    ("a deletion is lost", |scene| {
        scene.up.faults().lose_next_event();
        scene.up.delete_pod("t1", "kept");
    }),
    ("bytes change and the version does not", |scene| scene.up.faults().alter("pods", "t1/kept")),
];

#[tokio::test(start_paused = true)]
async fn self_check_detects_lost_events_and_starts_a_new_history() {
    for (what, mistake) in MISTAKES {
        let scene = Scene::checked(upstream().pods(0)).await;
        scene.up.create_pod("t1", "kept");
        written(&scene, "other").await;
        let history = scene.feed.reader.history();
        mistake(&scene);
        written(&scene, "next").await;
        // Only a few objects are compared by bytes, so it may take several rounds.
        for _ in 0..10 {
            sleep(ROUND).await;
            if scene.feed.reader.history() != history {
                break;
            }
            written(&scene, "next").await;
        }
        assert_ne!(scene.feed.reader.history(), history, "{what}");
        assert_eq!(scene.feed.reader.state(), FeedState::Live, "{what}");
        assert!(scene.is_true(), "{what}");
        assert_eq!((differed(&scene), scene.said("rewound")), ((1, 1), 0), "{what}");
        let cached = scene.feed.reader.snapshot();
        let altered = cached.iter().any(|object| object.body().windows(7).any(|bytes| bytes == b"altered"));
        assert_eq!(altered, what.starts_with("bytes"), "{what}");
        written(&scene, "last").await;
        sleep(24 * HOUR).await;
        assert_eq!(differed(&scene), (1, 1), "{what}: once");
    }
}

#[tokio::test(start_paused = true)]
async fn missing_object_in_large_collection_is_found_by_object_count() {
    let scene = Scene::checked(upstream().pods(MANY)).await;
    let history = scene.feed.reader.history();
    scene.up.faults().lose_next_event();
    scene.up.create_pod("t1", "lost");
    written(&scene, "next").await;
    sleep(ROUND).await;
    assert_ne!(scene.feed.reader.history(), history);
    assert!(scene.is_true());
    assert!(requests(&scene) <= 20, "{} requests", requests(&scene));
}

#[tokio::test(start_paused = true)]
async fn large_collection_is_self_checked_in_parts() {
    let scene = Scene::checked(upstream().pods(MANY)).await;
    let (last, _) = scene.up.keys("pods").pop().expect("many");
    written(&scene, "next").await;
    sleep(24 * HOUR).await;
    assert_eq!(scene.said("same"), 4, "four parts");
    // Each part takes a request for the count, except the first, whose page includes it.
    assert_eq!(requests(&scene), 4 * (1 + 3) + 3);
    let history = scene.feed.reader.history();
    scene.up.faults().lose_next_event();
    let (namespace, name) = last.split_once('/').expect("namespaced");
    scene.up.update_pod(namespace, name);
    written(&scene, "next").await;
    sleep(4 * ROUND).await;
    assert_ne!(scene.feed.reader.history(), history);
    assert!(scene.is_true());
}

/// Objects are created and deleted all the time, some of them several at one version.
#[tokio::test(start_paused = true)]
async fn self_check_finds_no_difference_in_a_healthy_busy_feed() {
    const LEASED: [&str; 3] = ["l0", "l1", "l2"];
    for pods in [20, MANY] {
        let scene = Scene::checked(upstream().pods(pods)).await;
        let ours = scene.of_a_node("node-1");
        for n in 0..6_000_u32 {
            match n % 10 {
                0 => {
                    for name in LEASED {
                        scene.up.create_pod("t1", name);
                    }
                }
                5 => {
                    scene.up.delete_pods_at_once("t1", &LEASED);
                }
                7 => {
                    scene.up.delete_pod("t1", &format!("p{}", n % 70));
                }
                _ => {
                    let node = format!("node-{}", n % 3);
                    scene.up.put_pod(&demo::Pod::new("t1", &format!("p{}", n % 71)).node(&node));
                }
            }
            sleep(Duration::from_millis(7_919)).await;
        }
        for feed in [&scene.feed, &ours] {
            let said = feed.counts.labelled_counts();
            let count = |value: &str| said.iter().filter(|(word, _)| word.value == value).map(|(_, n)| n).sum::<u64>();
            assert!((15..=40).contains(&count("same")), "{}: {said:?}", feed.spec.key);
            assert_eq!((count("different"), count("skipped")), (0, 0), "{}: {said:?}", feed.spec.key);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn field_selector_feed_is_self_checked_with_current_state() {
    for (what, mistake) in &MISTAKES[..3] {
        let scene = Scene::checked(upstream().pods(10)).await;
        let ours = scene.of_a_node("node-1");
        let put = |name: &str| scene.up.put_pod(&demo::Pod::new("t1", name).node("node-1"));
        put("kept");
        sleep(seconds(1)).await;
        let history = ours.reader.history();
        if what.starts_with("a creation") {
            scene.up.faults().lose_next_event();
            put("lost");
        } else {
            mistake(&scene);
        }
        put("next");
        sleep(ROUND + seconds(180)).await;
        assert_ne!(ours.reader.history(), history, "{what}");
        assert!(ours.counts.labelled_counts().iter().any(|(word, _)| word.value == "self_check"));
    }
}

/// The rest of a transaction is still on its way when the feed is compared.
#[tokio::test(start_paused = true)]
async fn late_event_is_not_a_divergence() {
    let scene = Scene::checked(upstream().pods(3)).await;
    let history = scene.feed.reader.history();
    let two = ["a", "b"];
    for name in two {
        scene.up.create_pod("t1", name);
    }
    sleep(seconds(1)).await;
    scene.up.faults().stall_watches(1);
    scene.up.delete_pods_at_once("t1", &two);
    while requests(&scene) == 0 {
        sleep(Duration::from_millis(100)).await;
        // Otherwise the stream would be considered dead.
        scene.up.faults().bookmark_at_last_event();
    }
    scene.up.faults().resume_watches();
    sleep(24 * HOUR).await;
    assert!(scene.said("same") >= 1);
    assert_eq!((differed(&scene), scene.feed.reader.history()), ((0, 0), history));
}

#[tokio::test(start_paused = true)]
async fn rejected_self_check_is_retried_with_backoff() {
    let scene = Scene::checked(upstream().pods(3)).await;
    written(&scene, "one").await;
    scene.up.faults().answer(demo::RequestKind::List, 1_000_000, 410, None);
    for (n, skipped) in (1..=3).zip(1..) {
        sleep(48 * HOUR).await;
        assert_eq!(scene.said("skipped"), skipped, "once for each state");
        // A bookmark advances the feed.
        scene.elsewhere(n);
    }
    for (code, retry_after) in [(403, None), (429, Some(1)), (503, None)] {
        let scene = Scene::checked(upstream().pods(3)).await;
        let history = scene.feed.reader.history();
        written(&scene, "one").await;
        scene.up.faults().answer(demo::RequestKind::List, 1_000_000, code, retry_after);
        sleep(48 * HOUR).await;
        // After 0.5, 1, 2, 4 … 32 hours, each varied by half.
        assert!((4..=9).contains(&scene.said("skipped")), "{code}: {} rounds", scene.said("skipped"));
        assert_eq!(requests(&scene), scene.said("skipped"), "{code}: one request each");
        assert_eq!((differed(&scene), scene.feed.reader.history()), ((0, 0), history), "{code}");
        assert_eq!(scene.feed.reader.state(), FeedState::Live, "{code}");
    }
}

/// After an upgrade, the same objects have other bytes at the same versions.
#[tokio::test(start_paused = true)]
async fn upstream_upgrade_is_not_a_divergence() {
    let scene = Scene::checked(upstream().pods(5)).await;
    let history = scene.feed.reader.history();
    for minor in 37..43 {
        scene.up.faults().down().await;
        scene.until_state("lost", |state| state != FeedState::Live).await;
        scene.up.faults().upgrade(minor);
        scene.up.faults().up().await;
        written(&scene, "one").await;
        sleep(2 * ROUND).await;
    }
    assert!(scene.said("same") >= 6);
    assert_eq!((differed(&scene), scene.feed.reader.history()), ((0, 0), history));
}

/// A restored upstream is detected by its versions, before or after a comparison, and its restored state is served.
#[tokio::test(start_paused = true)]
async fn upstream_restore_is_a_rewind_and_not_a_divergence() {
    let scene = Scene::checked(upstream().pods(3)).await;
    let backup = scene.up.faults().backup();
    for n in 0..20 {
        written(&scene, &format!("lost-{n}")).await;
    }
    scene.up.faults().down().await;
    scene.until_state("lost", |state| state != FeedState::Live).await;
    scene.up.faults().restore(&backup);
    scene.up.faults().up().await;
    sleep(2 * ROUND).await;
    for n in 0..40 {
        scene.up.create_pod("t1", &format!("other-{n}"));
        sleep(seconds(600)).await;
    }
    assert!(scene.is_true());
    assert_eq!((differed(&scene), scene.said("rewound")), ((0, 0), 1));
}

/// For a feed of one namespace, the keys in continue tokens are names without a namespace.
#[tokio::test(start_paused = true)]
async fn multi_page_namespace_feed_is_self_checked() {
    let scene = Scene::checked(upstream().pods(20)).await;
    let name = |n: usize| format!("p{n:04}");
    for n in 0..700 {
        scene.up.create_pod("t1", &name(n));
    }
    let ours = scene.of_scope(FeedScope::Namespace("t1".into()));
    sleep(seconds(10)).await;
    for lost in [10, 690] {
        let history = ours.reader.history();
        scene.up.faults().lose_next_event();
        scene.up.update_pod("t1", &name(lost));
        written(&scene, &name(350)).await;
        sleep(3 * ROUND).await;
        assert_ne!(ours.reader.history(), history, "{lost}");
        let cached = ours.reader.snapshot();
        let theirs = scene.up.keys("pods").into_iter().filter(|(key, _)| key.starts_with("t1/"));
        assert!(cached.iter().map(|object| (object.key.as_str().to_owned(), object.rv.0)).eq(theirs), "{lost}");
    }
    assert_eq!(said(&ours, "skipped"), 0);
}

/// Upstream responds with whole objects if it does not support metadata-only lists.
#[tokio::test(start_paused = true)]
async fn oversized_self_check_response_shrinks_the_page() {
    const OBJECTS: usize = 300;
    let scene = Scene::checked(upstream().pods(0)).await;
    let filler = "x".repeat(40 << 10);
    for n in 0..OBJECTS {
        let annotations = serde_json::json!({"long": filler});
        let metadata = serde_json::json!({"name": format!("p{n:03}"), "namespace": "t1", "annotations": annotations});
        scene.up.put("pods", serde_json::json!({"metadata": metadata}));
    }
    sleep(20 * HOUR).await;
    // Responses with 500, 250 and 125 objects are too large; those with 62 are not.
    assert_eq!((scene.said("skipped"), scene.said("same")), (3, OBJECTS.div_ceil(62) as u64));
    assert_eq!(differed(&scene), (0, 0));
}

/// Proxies that started together, as after a rollout, with one upstream.
#[tokio::test(start_paused = true)]
async fn fleet_self_checks_are_spread_and_stop_without_changes() {
    const PROXIES: u64 = 30;
    /// The requests of a round: the versions, and three objects.
    const EACH: u64 = 4;
    let up = upstream().pods(3).remember_requests(false).in_memory();
    let proxies: Vec<_> = (0..PROXIES).map(|_| Scene::beside(&up)).collect();
    sleep(seconds(10)).await;
    let requests = || proxies.iter().map(|(feed, _)| said(feed, "self_check")).sum::<u64>();
    let mut minutes = Vec::new();
    for minute in 0..3 * 60 {
        up.update_pod("t1", "one");
        let before = requests();
        sleep(seconds(60)).await;
        minutes.push(requests() - before);
        assert!(minute != 29 || requests() >= PROXIES / 2 * EACH, "most have sent requests in the first half hour");
    }
    let (all, most) = (minutes.iter().sum::<u64>(), minutes.iter().max().copied().unwrap_or_default());
    // Each proxy has a round in half an hour: on average one round a minute, and rarely many more.
    assert!((5 * PROXIES * EACH..=7 * PROXIES * EACH).contains(&all), "{all}");
    assert!(most <= 10 * EACH, "{most} in a minute: {minutes:?}");
    sleep(2 * ROUND).await;
    let before = requests();
    sleep(6 * HOUR).await;
    assert_eq!(requests(), before, "nothing has changed");
    let differing: u64 = proxies.iter().map(|(feed, _)| said(feed, "different") + said(feed, "skipped")).sum();
    assert_eq!(differing, 0);
}

fn said(feed: &FeedHandle, value: &str) -> u64 {
    feed.counts.labelled_counts().iter().filter(|(word, _)| word.value == value).map(|(_, count)| count).sum()
}

impl Scene {
    /// Adds another proxy with the same upstream. Returns its feed and the values that keep it running.
    fn beside(up: &RunningDemoApiserver) -> (FeedHandle, (FeedRegistry, BackgroundTasks)) {
        let (feeds, demands) = FeedRegistry::new(CacheConfig::default());
        let (client, tasks) = (UpstreamClient::in_memory(up.connector()), BackgroundTasks::new());
        let supervisor = ReflectorSupervisor::new(client, feeds.clone(), ReflectConfig::default(), tasks.clone());
        tasks.spawn("supervisor", supervisor.run(demands));
        (feeds.handle(&spec(), None).expect("there is room"), (feeds, tasks))
    }

    /// A feed of the pods in `scope`.
    fn of_scope(&self, scope: FeedScope) -> FeedHandle {
        let key = FeedKey { scope, ..spec().key };
        self.feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room")
    }

    /// A feed of the pods of a node.
    fn of_a_node(&self, node: &str) -> FeedHandle {
        self.of_scope(FeedScope::Selected { field: "spec.nodeName".into(), value: node.into() })
    }
}
