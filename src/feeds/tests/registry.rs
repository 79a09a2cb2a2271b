//! The registry: one feed per key, started once, ended once, and not retried immediately if that is pointless.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, advance};

use crate::cache::tests::fixture::rv;
use crate::cache::{CacheConfig, FeedEndReason, FeedSnapshot, FeedState};
use crate::feeds::{
    FEEDS_MAX, Feed, FeedKey, FeedRegistry, FeedScope, FeedSpec, FeedStartRequest, FeedTrafficCounts, FeedUnavailable,
};
use crate::wire::FeedEncoding;
use kubeapi::Gvr;

fn spec(resource: &str, namespace: Option<&str>, encoding: FeedEncoding) -> FeedSpec {
    let scope = namespace.map_or(FeedScope::Cluster, |namespace| FeedScope::Namespace(namespace.into()));
    FeedSpec::like_pods(FeedKey { gvr: Gvr::new("", "v1", resource), scope, encoding })
}

fn pods() -> FeedSpec {
    spec("pods", None, FeedEncoding::Json)
}

fn feeds() -> (FeedRegistry, mpsc::Receiver<FeedStartRequest>) {
    FeedRegistry::new(CacheConfig::default())
}

/// Returns the only feed.
fn the_one(feeds: &FeedRegistry) -> Arc<Feed> {
    let mut all = feeds.all();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Returns the pending demands. A feed lives as long as its demand's writer.
fn demanded(demands: &mut mpsc::Receiver<FeedStartRequest>) -> Vec<FeedStartRequest> {
    std::iter::from_fn(|| demands.try_recv().ok()).collect()
}

fn keys(demands: &[FeedStartRequest]) -> Vec<String> {
    demands.iter().map(|demand| demand.feed.spec.key.to_string()).collect()
}

/// F4: a thousand simultaneous clients cause one upstream watch.
#[test]
fn concurrent_clients_start_one_feed() {
    let (feeds, mut demands) = feeds();
    let leases: Vec<_> = (0..1_000).map(|_| feeds.handle(&pods(), None).expect("there is room")).collect();
    assert_eq!(keys(&demanded(&mut demands)), ["pods.v1 (json)"]);
    assert_eq!(leases[0].readers(), 1_000);
    assert_eq!(feeds.all().len(), 1);
}

#[test]
fn each_scope_and_encoding_has_its_own_feed() {
    let (feeds, mut demands) = feeds();
    let specs = [
        pods(),
        spec("pods", Some("a"), FeedEncoding::Json),
        spec("pods", None, FeedEncoding::Protobuf),
        spec("nodes", None, FeedEncoding::Json),
    ];
    for spec in &specs {
        feeds.handle(spec, None).expect("there is room");
    }
    assert_eq!(
        keys(&demanded(&mut demands)),
        ["pods.v1 (json)", "pods.v1 in a (json)", "pods.v1 (protobuf)", "nodes.v1 (json)"]
    );
    let paths: Vec<_> = feeds.all().iter().map(|feed| feed.spec.key.url("")).collect();
    assert_eq!(paths, ["/api/v1/nodes", "/api/v1/pods", "/api/v1/pods", "/api/v1/namespaces/a/pods"]);
}

#[test]
fn find_does_not_start_a_feed() {
    let (feeds, mut demands) = feeds();
    assert!(feeds.find(&pods().key, None).is_none());
    assert!(demanded(&mut demands).is_empty());
    let lease = feeds.handle(&pods(), None).expect("there is room");
    let found = feeds.find(&pods().key, None).expect("it runs");
    assert_eq!((lease.readers(), found.readers()), (2, 2));
}

/// A client may use the new definition before the feed of the old one is retired.
#[test]
fn find_skips_feed_of_another_crd_definition() {
    let (feeds, _demands) = feeds();
    let editions: [Arc<str>; 2] = ["uid/1".into(), "uid/2".into()];
    let spec = FeedSpec { edition: Some(editions[0].clone()), ..pods() };
    let _lease = feeds.handle(&spec, None).expect("there is room");
    for (edition, is_found) in [(Some(&editions[0]), true), (Some(&editions[1]), false), (None, false)] {
        assert_eq!(feeds.find(&spec.key, edition).is_some(), is_found, "{edition:?}");
    }
}

#[test]
fn ended_feed_is_not_found_and_restarts_on_demand() {
    let (feeds, mut demands) = feeds();
    let old = feeds.handle(&pods(), None).expect("there is room");
    let mut demand = demands.try_recv().expect("it is demanded");
    demand.writer.set_state(FeedState::Ended(FeedEndReason::Idle));
    assert!(feeds.find(&pods().key, None).is_none(), "it is over, though still in the registry");
    feeds.ended(&the_one(&feeds), FeedEndReason::Idle);
    assert!(feeds.all().is_empty());
    let new = feeds.handle(&pods(), None).expect("idleness is no refusal");
    let again = demanded(&mut demands);
    assert_eq!(keys(&again), ["pods.v1 (json)"]);
    assert_eq!((old.reader.state(), new.reader.state()), (FeedState::Ended(FeedEndReason::Idle), FeedState::Syncing));
}

#[tokio::test(start_paused = true)]
async fn rejected_feed_is_not_retried_for_30_seconds() {
    for (end, refused) in [
        (FeedEndReason::Forbidden, true),
        (FeedEndReason::Gone, true),
        (FeedEndReason::NotOffered, true),
        (FeedEndReason::Unreadable, true),
        (FeedEndReason::OverBudget, true),
        (FeedEndReason::Outdated, false),
        (FeedEndReason::Idle, false),
        (FeedEndReason::Shutdown, false),
    ] {
        let (feeds, mut demands) = feeds();
        drop(feeds.handle(&pods(), None).expect("there is room"));
        assert_eq!(demanded(&mut demands).len(), 1);
        feeds.ended(&the_one(&feeds), end);
        assert_eq!(end.is_refusal(), refused, "{end:?}");
        let again = feeds.handle(&pods(), None).map(drop);
        assert_eq!(again, if refused { Err(FeedUnavailable::Ended(end)) } else { Ok(()) }, "{end:?}");
        let other = spec("pods", Some("a"), FeedEncoding::Json);
        assert!(feeds.handle(&other, None).is_ok(), "a refusal is about one key");
        advance(Duration::from_secs(29)).await;
        assert_eq!(feeds.handle(&pods(), None).is_err(), refused, "{end:?} after 29 s");
        advance(Duration::from_secs(1)).await;
        assert!(feeds.handle(&pods(), None).is_ok(), "{end:?} after 30 s");
    }
}

/// Ends each feed as forbidden for `seconds` seconds. Returns the seconds at which one could be started.
async fn refused(feeds: &FeedRegistry, demands: &mut mpsc::Receiver<FeedStartRequest>, seconds: u64) -> Vec<u64> {
    ended_as(FeedEndReason::Forbidden, feeds, demands, seconds).await
}

async fn ended_as(
    end: FeedEndReason,
    feeds: &FeedRegistry,
    demands: &mut mpsc::Receiver<FeedStartRequest>,
    seconds: u64,
) -> Vec<u64> {
    let mut came = Vec::new();
    for second in 0..seconds {
        if feeds.handle(&pods(), None).is_ok() {
            came.push(second);
            assert_eq!(demanded(demands).len(), 1);
            feeds.ended(&the_one(feeds), end);
        }
        advance(Duration::from_secs(1)).await;
    }
    came
}

#[tokio::test(start_paused = true)]
async fn unreadable_resource_backs_off_until_discovery_changes() {
    for end in [FeedEndReason::Unreadable, FeedEndReason::NotOffered] {
        let (feeds, mut demands) = feeds();
        let day = ended_as(end, &feeds, &mut demands, 24 * 3600).await;
        assert_eq!(day[..4], [0, 30, 90, 210], "{end:?}");
        assert!((29..=40).contains(&day.len()), "{end:?}: {} times: {day:?}", day.len());
        feeds.clear_refusals();
        assert!(feeds.handle(&pods(), None).is_ok(), "{end:?}: perhaps it can be now");
    }
    // A resource that upstream does not have may appear at any time.
    let (feeds, mut demands) = feeds();
    assert_eq!(ended_as(FeedEndReason::Gone, &feeds, &mut demands, 100).await, [0, 30, 60, 90]);
}

#[tokio::test(start_paused = true)]
async fn forbidden_feed_backs_off_until_permissions_change() {
    let (feeds, mut demands) = feeds();
    let day = refused(&feeds, &mut demands, 24 * 3600).await;
    assert_eq!(day[..2], [0, 30]);
    assert!((29..=40).contains(&day.len()), "{} times: {day:?}", day.len());
    assert!(day.windows(2).skip(8).all(|pair| pair[1] - pair[0] <= 3601), "{day:?}");
    while refused(&feeds, &mut demands, 1).await.is_empty() {}
    feeds.clear_refusals();
    assert!(feeds.handle(&pods(), None).is_err(), "what is served says nothing of rights");
    advance(Duration::from_secs(30)).await;
    feeds.on_permissions_changed();
    let again = refused(&feeds, &mut demands, 100).await;
    assert_eq!(again[..2], [0, 30]);
    for _ in 0..100 {
        feeds.on_permissions_changed();
        assert!(feeds.handle(&pods(), None).is_err(), "a storm of changes is no storm of questions");
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_feed_that_was_live_before_is_retried_soon() {
    let (feeds, mut demands) = feeds();
    refused(&feeds, &mut demands, 2000).await;
    advance(Duration::from_secs(3600)).await;
    drop(feeds.handle(&pods(), None).expect("it is due"));
    let mut demand = demands.try_recv().expect("it is demanded");
    demand.writer.replace(FeedSnapshot::from_objects(rv(10), Vec::new()));
    demand.writer.set_state(FeedState::Live);
    feeds.ended(&the_one(&feeds), FeedEndReason::Forbidden);
    assert_eq!(refused(&feeds, &mut demands, 40).await, [30]);
}

#[tokio::test(start_paused = true)]
async fn discovery_change_clears_feed_rejections() {
    let (feeds, _demands) = feeds();
    drop(feeds.handle(&pods(), None).expect("there is room"));
    feeds.ended(&the_one(&feeds), FeedEndReason::Gone);
    assert!(feeds.handle(&pods(), None).is_err());
    feeds.clear_refusals();
    assert!(feeds.handle(&pods(), None).is_ok());
}

#[test]
fn feed_count_is_limited() {
    let (feeds, mut demands) = feeds();
    let specs: Vec<_> = (0..FEEDS_MAX).map(|n| spec("pods", Some(&format!("ns-{n}")), FeedEncoding::Json)).collect();
    for spec in &specs {
        feeds.handle(spec, None).expect("there is room");
    }
    assert_eq!(feeds.handle(&pods(), None).map(drop), Err(FeedUnavailable::TooMany));
    assert!(feeds.handle(&specs[0], None).is_ok(), "one that runs is no further one");
    assert_eq!(demanded(&mut demands).len(), FEEDS_MAX);
    feeds.ended(&feeds.all()[0], FeedEndReason::Idle);
    assert!(feeds.handle(&pods(), None).is_ok());
}

#[test]
fn feed_request_fails_without_a_supervisor() {
    let (feeds, demands) = feeds();
    drop(demands);
    assert_eq!(feeds.handle(&pods(), None).map(drop), Err(FeedUnavailable::TooMany));
    assert!(feeds.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn feed_idle_time_counts_from_its_last_reader_drop() {
    let (feeds, _demands) = feeds();
    let first = feeds.handle(&pods(), None).expect("there is room");
    let feed = feeds.all().remove(0);
    let second = first.clone();
    assert_eq!(feed.readers(), 1, "a clone is the same reader");
    advance(Duration::from_secs(60)).await;
    assert_eq!(feed.idle_for(), Duration::ZERO);
    drop(first);
    assert_eq!(feed.idle_for(), Duration::ZERO, "the clone is still there");
    drop(second);
    assert_eq!((feed.readers(), feed.idle_for()), (0, Duration::ZERO));
    advance(Duration::from_secs(5)).await;
    assert_eq!(feed.idle_for(), Duration::from_secs(5));
    let again = feeds.handle(&pods(), None).expect("it runs");
    assert_eq!(feed.idle_for(), Duration::ZERO);
    drop(again);
}

/// A feed reads certain fields of its objects. If others become selectable, its objects lack them.
#[tokio::test(start_paused = true)]
async fn feed_with_outdated_spec_is_replaced() {
    let (feeds, mut demands) = feeds();
    let old = feeds.handle(&pods(), None).expect("there is room");
    let old_feed = the_one(&feeds);
    let changed = FeedSpec { index_field: Some("spec.nodeName".into()), ..pods() };
    let new = feeds.handle(&changed, None).expect("there is room");
    let _running = demanded(&mut demands);
    assert_eq!((old.spec.index_field.clone(), new.spec.index_field.clone()), (None, Some("spec.nodeName".into())));
    old.retired().await;
    assert!(new.retired().now_or_never().is_none());
    // The old feed ends when it notices; the registry no longer has it.
    feeds.ended(&old_feed, FeedEndReason::Outdated);
    assert_eq!(the_one(&feeds).spec, changed);
    assert!(feeds.find(&changed.key, None).is_some());
}

#[tokio::test(start_paused = true)]
async fn replacement_of_a_retired_feed_settles_first() {
    let (feeds, _demands) = feeds();
    let first = feeds.handle(&pods(), None).expect("there is room");
    assert!(!first.is_replacement_recent());
    feeds.retire(&the_one(&feeds));
    first.retired().await;
    assert!(feeds.all().is_empty(), "it has no leases");
    tokio::time::advance(Duration::from_secs(9)).await;
    let second = feeds.handle(&pods(), None).expect("there is room");
    assert!(second.is_replacement_recent());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!second.is_replacement_recent());
    assert!(
        !feeds.handle(&spec("nodes", None, FeedEncoding::Json), None).expect("there is room").is_replacement_recent()
    );
}

#[tokio::test(start_paused = true)]
async fn forget_gone_clears_only_not_found_rejections() {
    let (feeds, _demands) = feeds();
    let (gone, forbidden) = (pods(), spec("nodes", None, FeedEncoding::Json));
    for (spec, end) in [(&gone, FeedEndReason::Gone), (&forbidden, FeedEndReason::Forbidden)] {
        drop(feeds.handle(spec, None).expect("there is room"));
        feeds.ended(&the_one(&feeds), end);
    }
    feeds.clear_not_found();
    assert!(feeds.handle(&gone, None).is_ok());
    assert_eq!(feeds.handle(&forbidden, None).err(), Some(FeedUnavailable::Ended(FeedEndReason::Forbidden)));
}

#[tokio::test(start_paused = true)]
async fn idle_feed_is_removed_atomically_with_the_idle_check() {
    const IDLE: Duration = Duration::from_secs(10);
    let (feeds, _demands) = feeds();
    let lease = feeds.handle(&pods(), None).expect("there is room");
    let feed = the_one(&feeds);
    advance(IDLE * 2).await;
    assert!(!feeds.end_if_idle(&feed, IDLE), "it is read");
    drop(lease);
    advance(Duration::from_secs(9)).await;
    assert!(!feeds.end_if_idle(&feed, IDLE), "not yet");
    assert!(feeds.find(&pods().key, None).is_some());
    advance(IDLE).await;
    assert!(feeds.end_if_idle(&feed, IDLE));
    assert!(feeds.find(&pods().key, None).is_none());
}

const KEPT: Duration = Duration::from_secs(60);

/// A registry that keeps the counters of ended feeds for [`KEPT`].
fn counting() -> (FeedRegistry, mpsc::Receiver<FeedStartRequest>) {
    FeedRegistry::new(CacheConfig { counts_age_max: KEPT, ..CacheConfig::default() })
}

#[tokio::test(start_paused = true)]
async fn feed_counts_expire_later_and_resume_if_feed_returns() {
    let (feeds, mut demands) = counting();
    let mut begin = || {
        let _lease = feeds.handle(&pods(), None).expect("there is room");
        demands.try_recv().expect("it is demanded").feed
    };
    let feed = begin();
    FeedTrafficCounts::add(&feed.counts.events, 7);
    feeds.ended(&feed, FeedEndReason::Idle);
    advance(KEPT / 2).await;
    assert_eq!(feeds.counts().len(), 1, "it can still be read");
    let feed = begin();
    assert_eq!(feed.counts.events.load(Ordering::Relaxed), 7, "it does not jump back");
    advance(KEPT * 2).await;
    assert_eq!(feeds.counts().len(), 1, "it runs");
    // The successor starts before its predecessor has ended.
    feeds.retire(&feed);
    let successor = begin();
    feeds.ended(&feed, FeedEndReason::Outdated);
    advance(KEPT * 2).await;
    assert_eq!(feeds.counts().len(), 1, "one of them runs");
    feeds.ended(&successor, FeedEndReason::Idle);
    advance(KEPT).await;
    assert!(feeds.counts().is_empty());
    assert_eq!(begin().counts.events.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn ended_feed_counts_are_capped() {
    let (feeds, mut demands) = counting();
    let spec = |number: usize| spec("pods", Some(&format!("n{number}")), FeedEncoding::Json);
    for number in 0..3_000 {
        drop(feeds.handle(&spec(number), None).expect("there is room"));
        advance(Duration::from_millis(1)).await;
        feeds.ended(&demands.try_recv().expect("it is demanded").feed, FeedEndReason::Idle);
    }
    let counts: BTreeMap<_, _> = feeds.counts().into_iter().collect();
    assert_eq!(counts.len(), FEEDS_MAX);
    assert!(counts.contains_key(&spec(2_999).key) && !counts.contains_key(&spec(1_500).key));
    advance(KEPT).await;
    assert!(feeds.counts().is_empty());
}

/// A starting feed learns the versions from which its first readers want to resume.
#[test]
fn starting_feed_records_the_oldest_resume_version() {
    let (feeds, mut demands) = feeds();
    let lease = feeds.handle(&pods(), None).expect("there is room");
    assert_eq!(lease.oldest_resume(), None);
    for (resume, oldest) in [(Some(20), Some(20)), (Some(30), Some(20)), (None, Some(20)), (Some(10), Some(10))] {
        drop(feeds.handle(&pods(), resume.map(rv)).expect("it runs"));
        assert_eq!(lease.oldest_resume(), oldest.map(rv), "{resume:?}");
    }
    let mut demand = demands.try_recv().expect("it is demanded");
    demand.writer.set_state(FeedState::Live);
    drop(feeds.handle(&pods(), Some(rv(5))).expect("it runs"));
    assert_eq!(lease.oldest_resume(), Some(rv(10)), "it has started: too late");
    let first = feeds.handle(&spec("nodes", None, FeedEncoding::Json), Some(rv(7))).expect("there is room");
    assert_eq!(first.oldest_resume(), Some(rv(7)), "the one who starts it counts as well");
}

#[test]
fn feed_end_reasons_have_stable_names() {
    let ends = [
        (FeedEndReason::Forbidden, "forbidden"),
        (FeedEndReason::Gone, "gone"),
        (FeedEndReason::NotOffered, "not_offered"),
        (FeedEndReason::Unreadable, "unreadable"),
        (FeedEndReason::OverBudget, "over_budget"),
        (FeedEndReason::Outdated, "outdated"),
        (FeedEndReason::Idle, "idle"),
        (FeedEndReason::Shutdown, "shutdown"),
    ];
    for (end, word) in ends {
        assert_eq!(end.as_str(), word);
    }
}

#[tokio::test(start_paused = true)]
async fn feeds_are_stale_if_all_with_a_state_are_for_long() {
    let (feeds, mut demands) = feeds();
    let min = Duration::from_secs(10);
    assert!(!feeds.are_stale(min), "there is none");
    let [_a, _b, _c] = ["pods", "nodes", "secrets"]
        .map(|name| feeds.handle(&spec(name, None, FeedEncoding::Json), None).expect("there is room"));
    let mut running = demanded(&mut demands);
    assert!(!feeds.are_stale(min), "none has a state");
    let stale = || FeedState::Stale { since: Instant::now() };
    running[0].writer.set_state(stale());
    assert!(!feeds.are_stale(min), "just now");
    advance(min).await;
    assert!(feeds.are_stale(min), "the others have no state");
    running[1].writer.set_state(FeedState::Live);
    assert!(!feeds.are_stale(min));
    running[1].writer.set_state(stale());
    assert!(!feeds.are_stale(min), "just now");
    advance(min).await;
    assert!(feeds.are_stale(min));
}
