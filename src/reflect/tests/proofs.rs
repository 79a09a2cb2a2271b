//! Tests how a feed is proven current, what that costs upstream, and what proves nothing.

use super::*;
use crate::reflect::prover::STREAM_HEAD_START;
use kubeapi::ObjectKey;

/// More objects than are listed for every proof.
const MANY: usize = 600;

#[tokio::test(start_paused = true)]
async fn no_freshness_requests_are_sent_without_waiting_clients() {
    let scene = Scene::of(upstream().pods(3)).await;
    let before = scene.up.counts();
    for n in 0..20 {
        // Writes to another resource keep bookmarks coming.
        scene.elsewhere(n);
        sleep(seconds(30)).await;
    }
    let after = scene.up.counts();
    assert_eq!((after.lists, after.watch_lists), (before.lists, before.watch_lists));
    assert_eq!(["position", "equality", "catch_up"].map(|requests| scene.said(requests)), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn one_freshness_check_covers_all_waiting_clients() {
    let scene = Scene::of(upstream().pods(3)).await;
    let came = Instant::now();
    let readers = futures_util::future::join_all((0..1_000).map(|_| scene.feed.freshness.wait_proven(came)));
    timeout(seconds(1), readers).await.expect("a proof");
    assert_eq!((scene.said("position"), scene.said("equality")), (0, 1));
}

/// A request proves the feed current only for readers that arrived before it.
#[tokio::test(start_paused = true)]
async fn client_arriving_after_a_freshness_check_needs_a_new_one() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.proof().await;
    assert_eq!(scene.said("equality"), 1);
    scene.proof().await;
    assert_eq!(scene.said("equality"), 2);
}

/// The process may be suspended between a request and its response while much is written (etcd issue 20418).
#[tokio::test(start_paused = true)]
async fn client_arriving_during_a_freshness_check_is_not_covered() {
    let scene = Scene::of(upstream().pods(MANY)).await;
    scene.up.faults().hush_watches();
    let (first, proof) = (Instant::now(), scene.feed.freshness.wait_proven(Instant::now()));
    tokio::pin!(proof);
    assert!(timeout(seconds(4), &mut proof).await.is_err(), "the answer is on its way");
    let came = Instant::now();
    scene.up.faults().unhush_watches();
    proof.await;
    assert_eq!(scene.said("position"), 1);
    assert!(scene.feed.freshness.covers(first) && !scene.feed.freshness.covers(came));
}

/// A proof costs no more than the response would, for example for kubelets that open a watch of `csidrivers` one after
/// the other.
#[tokio::test(start_paused = true)]
async fn small_quiet_collection_is_proven_fresh_by_one_list_each_time() {
    for objects in [3, 100] {
        let scene = Scene::of(upstream().pods(objects)).await;
        for n in 1..=5 {
            scene.elsewhere(n);
            assert!(scene.proof().await < STREAM_HEAD_START, "the stream is not awaited");
            assert_eq!((scene.said("position"), scene.said("equality")), (0, u64::from(n)));
        }
    }
}

/// While the stream of a small collection delivers what a position asks for, no versions are listed.
#[tokio::test(start_paused = true)]
async fn small_busy_collection_is_proven_fresh_by_its_stream() {
    let scene = Scene::of(upstream().pods(100)).await;
    scene.up.faults().stall_watches(0);
    scene.up.update_pod("default", "pod-0");
    let resumed = async {
        sleep(STREAM_HEAD_START / 2).await;
        scene.up.faults().resume_watches();
    };
    tokio::join!(scene.proof(), resumed);
    assert_eq!((scene.said("position"), scene.said("equality")), (0, 1), "the list was ahead of the stream");
    for n in 1..=3 {
        scene.up.update_pod("default", "pod-0");
        scene.proof().await;
        assert_eq!((scene.said("position"), scene.said("equality")), (n, 1));
    }
    // It is quiet from now on: the stream is awaited once.
    scene.elsewhere(1);
    scene.proof().await;
    assert_eq!((scene.said("position"), scene.said("equality")), (4, 2));
    scene.proof().await;
    assert_eq!((scene.said("position"), scene.said("equality")), (4, 3));
}

#[tokio::test(start_paused = true)]
async fn write_to_other_resource_is_proven_irrelevant_by_one_list() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.elsewhere(1);
    let took = scene.proof().await;
    assert!(took < seconds(1), "{took:?}");
    assert_eq!((scene.said("equality"), scene.said("catch_up")), (1, 0));
    let requests = scene.up.requests();
    let of_versions = |accept: &http::HeaderValue| accept.to_str().is_ok_and(|text| text.contains("ObjectMetadata"));
    let list = requests.iter().find(|request| request.headers.get(http::header::ACCEPT).is_some_and(of_versions));
    let headers = &list.expect("it lists the versions").headers;
    assert_eq!(
        headers.get(crate::upstream::PROXY_ACCEPT_ENCODING).map(http::HeaderValue::as_bytes),
        Some(&b"gzip"[..])
    );
}

#[tokio::test(start_paused = true)]
async fn large_collection_freshness_uses_few_lists_then_catch_up() {
    let scene = Scene::of(upstream().pods(MANY)).await;
    scene.elsewhere(1);
    scene.proof().await;
    assert_eq!((scene.said("equality"), scene.said("catch_up")), (1, 0), "the first one is long enough ago");
    scene.elsewhere(2);
    let took = scene.proof().await;
    assert!(took <= seconds(5), "{took:?}");
    assert_eq!((scene.said("equality"), scene.said("catch_up")), (1, 1));
}

/// A state that is proven at N has version N, although the stream reaches N a minute later (R-VERSION-1).
#[tokio::test(start_paused = true)]
async fn proven_state_has_the_version_of_its_proof() {
    for objects in [3, 100, MANY] {
        let scene = Scene::of(upstream().pods(objects)).await;
        for number in 1..=3 {
            let written = scene.elsewhere(number);
            scene.proof().await;
            let state = scene.feed.reader.current().expect("it runs");
            assert!(state.rv.0 >= written, "{objects}, {number}: {} of {written}", state.rv);
            assert_eq!(state.len(), objects);
        }
        // The stream continues from its own version.
        scene.until(scene.up.create_pod("t1", "new")).await;
        assert!(scene.is_true());
        assert_eq!(scene.feed.reader.served_version(), scene.feed.reader.progress().rv);
    }
}

/// A restored storage assigns versions again, so an event below the confirmed version may be new.
#[tokio::test(start_paused = true)]
async fn confirmed_version_is_dropped_after_storage_restore() {
    let scene = Scene::of(upstream().pods(3)).await;
    let backup = scene.up.faults().backup();
    for number in 0..20 {
        scene.elsewhere(number);
    }
    scene.proof().await;
    let confirmed = scene.feed.reader.served_version();
    scene.up.faults().restore(&backup);
    scene.up.faults().reset_watches();
    let new = scene.up.create_pod("t1", "new");
    assert!(new <= confirmed.0, "{new} and {confirmed}");
    scene.proof().await;
    let state = scene.feed.reader.current().expect("it runs");
    assert!(state.get(&ObjectKey::new("t1", "new")).is_some(), "a read of the present shows it");
}

/// Versions are comparable across resources (KEP-5504).
#[tokio::test(start_paused = true)]
async fn version_of_another_resource_is_reached_by_one_list() {
    let scene = Scene::of(upstream().pods(3)).await;
    let written = ResourceVersion(scene.elsewhere(1));
    scene.feed.freshness.await_state_version(written);
    let began = Instant::now();
    timeout(NEVER, scene.feed.reader.follow_progress().wait_served(written)).await.expect("it is proven");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    sleep(seconds(10)).await;
    assert_eq!((scene.said("equality"), scene.said("catch_up")), (1, 0));
}

/// The stream stalls, and the missing changes are read beside it: every reader gets everything that was written.
#[tokio::test(start_paused = true)]
async fn stalled_stream_is_bypassed_by_a_catch_up() {
    let scene = Scene::of(upstream().pods(MANY)).await;
    scene.elsewhere(1);
    scene.proof().await;
    scene.up.faults().stall_watches(0);
    let written = scene.up.create_pod("t1", "new");
    scene.proof().await;
    assert!(scene.feed.reader.progress().rv.0 >= written);
    assert!(scene.is_true());
    let duplicates = || scene.feed.counts.duplicates.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(duplicates(), 0);
    scene.up.faults().resume_watches();
    let next = scene.up.create_pod("t1", "next");
    scene.until(next).await;
    assert!(scene.is_true());
    assert_eq!(duplicates(), 1, "the stream tells it as well");
}

#[tokio::test(start_paused = true)]
async fn response_older_than_the_cache_triggers_a_history_check() {
    let scene = Scene::of(upstream().pods(MANY)).await;
    let history = scene.feed.reader.history();
    // One server of several lags.
    scene.up.faults().lag(3, 5);
    let took = scene.proof().await;
    assert!(took > Duration::from_millis(100), "{took:?}");
    assert_eq!(scene.said("position"), 4);
    sleep(seconds(5)).await;
    assert!(
        (1..=2).contains(&scene.said("mismatch")),
        "the state is listed, once more if requested while that goes on"
    );
    assert_eq!((scene.feed.reader.history(), scene.said("rewound")), (history, 0), "and it is as it was");
}

#[tokio::test(start_paused = true)]
async fn failing_freshness_checks_are_retried_with_backoff() {
    let scene = Scene::of(upstream().pods(MANY)).await;
    scene.up.faults().answer(demo::RequestKind::Watch, 1_000_000, 503, None);
    assert!(scene.waits(seconds(30)).await);
    let requests = scene.said("position");
    // The waits are 0.2, 0.4 … 5 s, each multiplied by 0.5 to 1.5.
    assert!((7..=20).contains(&requests), "{requests} requests");
}

#[tokio::test(start_paused = true)]
async fn freshness_checks_stop_after_the_client_leaves() {
    let scene = Scene::of(upstream().pods(MANY)).await;
    scene.up.faults().answer(demo::RequestKind::Watch, 1_000_000, 503, None);
    assert!(scene.waits(seconds(2)).await);
    sleep(seconds(10)).await;
    let requests = scene.said("position");
    sleep(seconds(600)).await;
    assert_eq!(scene.said("position"), requests);
}

#[tokio::test(start_paused = true)]
async fn version_seen_elsewhere_is_fetched_despite_a_stalled_stream() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().stall_watches(0);
    let written = scene.up.create_pod("t1", "new");
    scene.feed.freshness.await_watch_version(ResourceVersion(written));
    let took = scene.until(written).await;
    assert!(took < seconds(3), "{took:?}");
    assert!(scene.is_true());
}

#[tokio::test(start_paused = true)]
async fn future_version_is_abandoned_and_does_not_block_others() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.feed.freshness.await_watch_version(ResourceVersion(1 << 40));
    sleep(seconds(60)).await;
    assert_eq!((scene.said("position"), scene.said("catch_up")), (1, 1));
    assert_eq!(scene.feed.freshness.versions.smallest_above(ResourceVersion(0)), None);
    scene.up.faults().stall_watches(0);
    for number in 0..5 {
        let written = scene.up.create_pod("t1", &format!("new{number}"));
        scene.feed.freshness.await_watch_version(ResourceVersion((1 << 40) + number));
        scene.feed.freshness.await_watch_version(ResourceVersion(written));
        let took = scene.until(written).await;
        assert!(took < seconds(2), "{took:?}");
    }
    assert!(scene.is_true());
}

/// While upstream does not respond, the version is not reported as too large.
#[tokio::test(start_paused = true)]
async fn failing_version_check_backs_off_while_a_client_waits() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().stall_watches(0);
    scene.up.faults().answer(demo::RequestKind::Watch, 1_000_000, 503, None);
    let written = scene.elsewhere(1);
    for _ in 0..60 {
        scene.feed.freshness.await_watch_version(ResourceVersion(written));
        sleep(seconds(1)).await;
    }
    let requests = scene.said("position");
    assert!((10..=30).contains(&requests), "{requests}");
    assert_eq!(scene.said("catch_up"), 1, "nothing says that there is something to catch up with");
    sleep(seconds(600)).await;
    assert!(scene.said("position") <= requests + 2, "no reader waits any more");
}

/// The lowest version is requested first, and a new one must not end the backoff of another.
#[tokio::test(start_paused = true)]
async fn decreasing_version_requests_share_one_backoff() {
    let scene = Scene::of(upstream().pods(3)).await;
    scene.up.faults().stall_watches(0);
    scene.up.faults().answer(demo::RequestKind::Watch, 1_000_000, 503, None);
    for below in 0..1_200 {
        scene.feed.freshness.await_watch_version(ResourceVersion((1 << 40) - below));
        sleep(seconds(60) / 1_200).await;
    }
    let requests = scene.said("position");
    assert!((10..=30).contains(&requests), "{requests}");
}

/// A request about a history that was given up says nothing about the next one.
#[tokio::test(start_paused = true)]
async fn freshness_proof_is_dropped_with_its_history() {
    let scene = Scene::of(upstream().pods(3)).await;
    let backup = scene.up.faults().backup();
    scene.up.create_pod("t1", "lost");
    scene.proof().await;
    let before = scene.feed.freshness.proven();
    assert!(before.is_some());
    scene.up.faults().restore(&backup);
    let took = scene.proof().await;
    assert!(took < seconds(60), "{took:?}");
    assert!(scene.is_true(), "no reader sees what was lost");
    assert_eq!(scene.said("rewound"), 1);
}

/// A proxy's list shows the version of its feed. Only a position request asks it to reach ours.
#[tokio::test(start_paused = true)]
async fn lagging_proxy_is_asked_for_its_position_however_tiny_the_collection() {
    let scene = Scene::begun(upstream().pods(3).in_memory());
    scene.is_a_proxy(None);
    let scene = scene.serving().await;
    let backup = scene.up.faults().backup();
    for n in 0..5 {
        scene.elsewhere(n);
    }
    scene.up.faults().bookmark();
    scene.until(scene.up.revision()).await;
    scene.elsewhere(5);
    scene.proof().await;
    // The next server lags, and does not answer position requests.
    scene.up.faults().restore(&backup);
    scene.up.faults().answer(demo::RequestKind::Watch, 1_000_000, 503, None);
    assert!(scene.waits(seconds(30)).await);
    assert_eq!((scene.said("mismatch"), scene.said("rewound")), (0, 0));
}
