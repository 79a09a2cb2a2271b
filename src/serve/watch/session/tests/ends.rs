//! How watches end: by timeout, with 410, in a drain, with their feed. Each end is counted once (W7, W12, W13, W16).

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::runtime::{Builder, Runtime};

use super::fixture::{Client, Stage, TERMS, WATCH_LIST, added, lasting, pass, pass_ms};
use crate::cache::{CacheConfig, CollectionView, FeedEndReason, FeedSnapshot};
use crate::serve::activity::WatchEndReason;
use crate::serve::response::ServedFeedStatus;
use crate::serve::watch::session::WatchOptions;
use crate::upstream::ServerBuild;
use kubeapi::{ResourceVersion, Status};

const NOTHING: [String; 0] = [];

fn small_ring() -> Stage {
    Stage::new(CacheConfig { window_events_max: 2, ..CacheConfig::default() }, &[])
}

#[tokio::test(start_paused = true)]
async fn watch_ends_after_requested_timeout() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, WatchOptions { bookmarks: false, ..lasting(5) });
    pass_ms(4_999).await;
    stage.put("p", "x", 11);
    assert_eq!(client.reported(), ["ADDED p 11"]);
    let woken = client.woken();
    pass_ms(1).await;
    assert!(client.woken() > woken, "its clock wakes it");
    assert_eq!(client.reported(), ["over"], "cleanly, on a frame's boundary");
    stage.put("p", "x", 12);
    assert_eq!(client.reported(), ["over"], "nothing follows");
}

/// Before the watch starts, the request may have waited for history or for a proof.
#[tokio::test(start_paused = true)]
async fn watch_timeout_counts_from_request_arrival() {
    let mut stage = Stage::new(CacheConfig::default(), &[("p", "x", 5)]);
    stage.waited = Duration::from_secs(3);
    let mut waited = stage.watch_after(10, WatchOptions { bookmarks: false, ..lasting(5) });
    pass_ms(1_999).await;
    stage.put("q", "x", 11);
    assert_eq!(waited.reported(), ["ADDED q 11"]);
    pass_ms(1).await;
    assert_eq!(waited.reported(), ["over"]);
    stage.waited = Duration::from_secs(5);
    assert_eq!(
        stage.watch_current(CollectionView::everything(), lasting(5)).reported(),
        ["over"],
        "it has waited for all of it"
    );
}

/// `--min-request-timeout`: uniform between half an hour and an hour (R-TIMEOUT-1).
#[tokio::test(start_paused = true)]
async fn watch_without_timeout_lasts_30_to_60_minutes() {
    for timeout_seconds in [None, Some(0)] {
        let stage = Stage::empty();
        let mut clients: Vec<_> =
            (0..50).map(|_| stage.watch_after(10, WatchOptions { timeout_seconds, ..TERMS })).collect();
        let ended = |clients: &mut Vec<Client>| {
            clients.retain_mut(|client| client.reported() != ["over"]);
            50 - clients.len()
        };
        pass(1799).await;
        assert_eq!(ended(&mut clients), 0);
        pass(901).await;
        let halfway = ended(&mut clients);
        assert!((5..=45).contains(&halfway), "{halfway} of 50 after 45 minutes: they should be spread");
        pass(901).await;
        assert_eq!(ended(&mut clients), 50);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_without_timeout_uses_upstream_minimum() {
    let stage = Stage::empty();
    let duration_min = Duration::from_secs(300);
    let mut clients: Vec<_> = (0..20).map(|_| stage.watch_after(10, WatchOptions { duration_min, ..TERMS })).collect();
    pass(299).await;
    assert!(clients.iter_mut().all(|client| client.reported() != ["over"]));
    pass(302).await;
    assert!(clients.iter_mut().all(|client| client.reported() == ["over"]));
}

#[tokio::test(start_paused = true)]
async fn negative_timeout_ends_watch_immediately() {
    let mut stage = Stage::new(CacheConfig::default(), &[("p", "x", 5)]);
    // The last two overflow when converted to nanoseconds, and become negative.
    for seconds in [-1, 9_223_372_037, i64::MAX] {
        let options = || WatchOptions { end_bookmark: true, ..lasting(seconds) };
        assert_eq!(
            stage.watch_current(CollectionView::everything(), options()).reported(),
            ["over"],
            "{seconds}: no state"
        );
        let mut client = stage.watch_after(10, options());
        stage.put("p", "x", stage.reader.progress().rv.0 + 1);
        assert_eq!(client.reported(), ["over"], "{seconds}: no events");
    }
}

/// The state was taken before another build took over, and the session made after it.
#[tokio::test(start_paused = true)]
async fn state_taken_before_an_upgrade_is_attributed_to_no_build() {
    let stage = Stage::new(CacheConfig::default(), &[("p", "x", 5)]);
    let options = |changes| WatchOptions { by_proxy: true, changes_before_state: Some(changes), ..WATCH_LIST };
    let build = |minor| {
        let version = format!(r#"{{"major":"1","minor":"{minor}","gitVersion":"v1.{minor}.0","gitCommit":"{minor}"}}"#);
        Some(Arc::new(ServerBuild::parse(version.as_bytes()).expect("a build")))
    };
    let builds = &stage.feed.body_release;
    builds.set_written(build(36), ResourceVersion(10));
    let before = builds.changes_before_states();
    assert!(builds.set_written(build(37), ResourceVersion(10)));
    let mut client = stage.watch_current(CollectionView::everything(), options(before));
    assert!(client.session.feed_status().encoder_build.is_none());
    assert_eq!(client.reported().last().map(String::as_str), Some("over"), "the downstream proxy asks again");

    let client = stage.watch_current(CollectionView::everything(), options(builds.changes_before_states()));
    assert_eq!(client.session.feed_status().encoder_build, build(37));
    builds.set_present(false);
    assert_eq!(builds.changes_before_states(), before, "bodies that are not current are by the build before");
    assert!(ServedFeedStatus::of_state(&stage.feed, before).encoder_build.is_none());
}

#[tokio::test(start_paused = true)]
async fn very_long_timeout_does_not_overflow() {
    let stage = Stage::empty();
    let mut client = stage.watch_after(10, WatchOptions { bookmarks: false, ..lasting(9_223_372_036) });
    assert_eq!(client.reported(), NOTHING);
    pass(300 * 24 * 3600).await;
    assert_eq!(client.reported(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn watch_beyond_evicted_history_gets_one_410_and_ends() {
    let mut stage = small_ring();
    let mut client = stage.watch_after(10, TERMS);
    stage.put("p", "x", 11);
    assert_eq!(client.reported(), ["ADDED p 11"]);
    for rv in 12..=20 {
        stage.put("p", "x", rv);
    }
    stage.bookmark(30);
    assert_eq!(client.reported(), ["ERROR 410 Expired: too old resource version: 11 (18)", "over"]);
    stage.put("p", "x", 31);
    pass(600).await;
    assert_eq!(client.reported(), ["over"], "nothing follows an ERROR");
}

#[tokio::test(start_paused = true)]
async fn relist_expires_watches_with_410() {
    let mut stage = Stage::new(CacheConfig::default(), &[("p", "x", 5)]);
    let mut clients = [
        stage.watch_after(10, TERMS),
        stage.watch_current(CollectionView::everything(), WATCH_LIST),
        stage.watch_after(10, WatchOptions { bookmarks: false, ..TERMS }),
    ];
    assert_eq!(clients[0].reported(), NOTHING);
    assert_eq!(clients[2].reported(), NOTHING);
    stage.writer.replace(FeedSnapshot::from_objects(ResourceVersion(20), Vec::new()));
    assert_eq!(clients.each_ref().map(Client::woken), [1, 0, 1]);
    let expired = "ERROR 410 Expired: too old resource version: 10 (20)";
    assert_eq!(clients[0].reported(), [expired, "over"]);
    assert_eq!(clients[2].reported(), [expired, "over"]);
    // The initial state of one version is sent completely, even if that version has expired. Then the error follows.
    assert_eq!(clients[1].reported(), ["ADDED p 5", "BOOKMARK 10 end", expired, "over"]);
}

/// The resource is gone, or the proxy may no longer read it; no version has expired.
#[tokio::test(start_paused = true)]
async fn ended_feed_ends_its_watches_without_error() {
    for end in [FeedEndReason::Gone, FeedEndReason::Forbidden, FeedEndReason::Shutdown] {
        let mut stage = Stage::empty();
        let mut client = stage.watch_after(10, TERMS);
        stage.put("p", "x", 11);
        assert_eq!(client.reported(), ["ADDED p 11"]);
        let _proxy = stage.end_feed(end);
        assert_eq!(client.woken(), 1);
        assert_eq!(client.reported(), ["over"], "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn watch_that_cannot_start_sends_error_and_ends() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    client.session.end_with(&Status::too_large(99, 10), WatchEndReason::TooLarge);
    stage.put("p", "x", 11);
    let text = "ERROR 504 Timeout: Timeout: Too large resource version: 99, current: 10";
    assert_eq!(client.reported(), [text, "over"], "instead of the state, not behind it");
}

#[tokio::test(start_paused = true)]
async fn error_after_end_of_watch_is_not_sent() {
    let stage = Stage::empty();
    let mut client = stage.watch_after(10, lasting(-1));
    client.session.end_with(&Status::too_old(1, 10), WatchEndReason::Expired);
    assert_eq!(client.reported(), ["over"]);
}

const GRACE: Duration = Duration::from_secs(100);

/// A thousand watches end spread over the drain time.
#[tokio::test(start_paused = true)]
async fn drain_spreads_watch_ends_over_grace_period() {
    let stage = Stage::empty();
    let mut clients: Vec<_> = (0..50).map(|_| stage.watch_after(10, TERMS)).collect();
    assert!(clients.iter_mut().all(|client| client.reported().is_empty()));
    let (_writer, drained) = stage.drain(GRACE).await;
    let mut ended = Vec::new();
    for _ in 0..10 {
        pass(10).await;
        let before = clients.len();
        clients.retain_mut(|client| client.reported() != ["over"]);
        ended.push(before - clients.len());
    }
    assert!(clients.is_empty(), "all within the grace period: {ended:?}");
    assert!(ended[8..].iter().all(|ended| *ended == 0), "and some time before its end: {ended:?}");
    assert!(ended[..8].iter().filter(|ended| **ended > 0).count() >= 4, "not all at once: {ended:?}");
    assert!(drained.await.expect("no panic"), "the drain has ended");
}

/// This also holds when a bookmark is due that the watch has not reached yet.
#[tokio::test(start_paused = true)]
async fn lagging_watch_ends_at_its_drain_time() {
    let mut stage = Stage::empty();
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), NOTHING);
    for version in 11..20 {
        stage.put("p", "x", version);
    }
    pass(60).await;
    assert_eq!(client.pieces(1).len(), 1);
    let (_writer, ending) = stage.drain(GRACE).await;
    pass(80).await;
    assert_eq!(client.reported(), ["over"]);
    drop(client);
    assert!(ending.await.expect("no panic"));
}

#[tokio::test(start_paused = true)]
async fn drained_watch_gets_final_bookmark_unless_events_are_pending() {
    for (options, pending, expected) in [
        (TERMS, false, vec!["BOOKMARK 20", "over"]),
        (WatchOptions { bookmarks: false, ..TERMS }, false, vec!["over"]),
        // Events are pending, so a bookmark would be wrong. The client resumes from its last event.
        (TERMS, true, vec!["over"]),
    ] {
        let mut stage = Stage::empty();
        let mut client = stage.watch_after(10, options);
        assert_eq!(client.reported(), NOTHING);
        stage.advance(20);
        let (mut writer, ending) = stage.drain(GRACE).await;
        pass(80).await;
        if pending {
            writer.apply([added("p", "x", 21)]).expect("in order");
        }
        assert_eq!(client.reported(), expected, "pending: {pending}");
        drop(client);
        assert!(ending.await.expect("no panic"));
    }
}

#[tokio::test(start_paused = true)]
async fn draining_watch_sends_events_until_its_end_time() {
    let stage = Stage::empty();
    // The watch may leave after the minute in which a bookmark is due.
    let mut client = stage.watch_after(10, WatchOptions { bookmarks: false, ..TERMS });
    let (mut writer, ending) = stage.drain(GRACE).await;
    let mut reported = Vec::new();
    let mut rv = 10;
    while reported.last().is_none_or(|last| last != "over") {
        rv += 1;
        writer.apply([added("p", "x", rv)]).expect("in order");
        reported.extend(client.reported());
        pass(1).await;
        assert!(rv < 200, "it never ends");
    }
    reported.pop();
    assert!(
        reported.iter().all(|reported| reported.starts_with("ADDED p ") || reported.starts_with("MODIFIED p ")),
        "{reported:?}"
    );
    drop(client);
    assert!(ending.await.expect("no panic"));
}

#[tokio::test(start_paused = true)]
async fn ended_watch_releases_its_permit() {
    let stage = Stage::empty();
    let before = stage.free_places();
    let mut client = stage.watch_after(10, lasting(5));
    assert_eq!(stage.free_places(), before - 1);
    pass(5).await;
    assert_eq!(client.reported(), ["over"]);
    drop(client);
    assert_eq!(stage.free_places(), before);
}

/// Every kind of end with its metric label. Each is counted once, and the gauge of open watches falls by one.
#[test]
fn each_watch_end_is_counted_once_with_its_reason() {
    type Ending = fn(&Runtime, Stage, Client);
    let endings: [(&str, i64, Ending); 9] = [
        ("timeout", -1, |_, _, mut client| assert_eq!(client.reported(), ["over"])),
        ("timeout", -1, |_, _, mut client| client.session.end_with(&Status::too_old(1, 10), WatchEndReason::Expired)),
        ("timeout", 5, |runtime, _stage, mut client| {
            runtime.block_on(pass(5));
            assert_eq!(client.reported(), ["over"]);
        }),
        ("expired", 100, |_, mut stage, mut client| {
            stage.writer.replace(FeedSnapshot::from_objects(ResourceVersion(20), Vec::new()));
            assert_eq!(client.reported().len(), 2);
        }),
        ("too_large", 100, |_, _stage, mut client| {
            client.session.end_with(&Status::too_large(99, 10), WatchEndReason::TooLarge);
            assert_eq!(client.reported().len(), 2);
        }),
        ("feed_ended", 100, |_, stage, mut client| {
            let _proxy = stage.end_feed(FeedEndReason::Gone);
            assert_eq!(client.reported(), ["over"]);
        }),
        ("drained", 1_000, |runtime, mut stage, mut client| {
            stage.advance(20);
            let _ending = runtime.block_on(stage.drain(GRACE));
            assert_eq!(client.reported(), NOTHING);
            runtime.block_on(pass(80));
            assert_eq!(client.reported(), ["BOOKMARK 20", "over"]);
        }),
        ("client_closed", 100, |_, _stage, mut client| assert_eq!(client.reported(), NOTHING)),
        // The client went away before it took the error.
        ("client_closed", 100, |_, _stage, mut client| {
            client.session.end_with(&Status::too_old(1, 10), WatchEndReason::Expired);
        }),
    ];
    for (reason, seconds, end) in endings {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let mut runtime = Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
            let _entered = runtime.enter();
            let stage = Stage::empty();
            let client = stage.watch_after(10, lasting(seconds));
            end(&runtime, stage, client);
        });
        let text = recorder.handle().render();
        let values = |name: &str| -> Vec<&str> {
            text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next()).collect()
        };
        assert_eq!(values("kube_fanout_watches_open{"), ["0"], "{reason}: {text}");
        assert_eq!(values("kube_fanout_watches_ended_total{"), ["1"], "{reason}: {text}");
        assert!(text.contains(&format!(r#"reason="{reason}""#)), "{reason}: {text}");
    }
}
