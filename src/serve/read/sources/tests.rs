use std::sync::Arc;

use futures_util::FutureExt as _;
use http::Request;
use http_body_util::Either;
use http2::ReceivedBody;

use super::*;
use crate::auth::{Authorizer, Caller};
use crate::cache::CacheConfig;
use crate::feeds::FeedStartRequest;
use crate::net::{ConnectionPeer, DownstreamConnection, PeerAddress};
use crate::serve::read::ReadRequest;
use crate::serve::response::ResponseContext;
use crate::serve::serve_config::{ListenerRoles, ReducedReads};
use crate::upstream::tests::upstream_resource;
use base::{AbortSignal, DrainTrigger};
use kubeapi::{Gvr, RequestInfo, UrlQuery};

const DEADLINE: Duration = Duration::from_secs(3);

/// A live feed of pods at version 10.
fn pods() -> (FeedResolver, FeedHandle, FeedStartRequest, DrainTrigger) {
    let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
    let key = FeedKey { gvr: Gvr::new("", "v1", "pods"), scope: FeedScope::Cluster, encoding: FeedEncoding::Protobuf };
    let feed = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
    let mut demand = demands.try_recv().expect("the feed is demanded");
    demand.writer.replace(FeedSnapshot::from_objects(ResourceVersion(10), Vec::new()));
    demand.writer.set_state(FeedState::Live);
    let (trigger, drain) = DrainTrigger::new();
    (FeedResolver::new(ServeConfig::default().into(), feeds, drain), feed, demand, trigger)
}

fn need(kind: ReadKind) -> FeedRequirements<'static> {
    let representation = Representation::Object(FeedEncoding::Json);
    FeedRequirements { namespace: Some("a"), representation, received: Instant::now(), by_proxy: false, kind }
}

/// Waits for one of the events that a request may wait for, none of which occurs.
async fn waits(feed: &FeedHandle, wait: usize) -> Result<Option<()>, NotServable> {
    let (deadline, received) = (Instant::now() + DEADLINE, Instant::now());
    match wait {
        0 => wait_while_running(feed, deadline, feed.freshness.wait_proven(received)).await,
        1 => wait_while_running(feed, deadline, feed.reader.reached(ResourceVersion(11))).await,
        _ => {
            let settled = feed.renderings.wait_verified(Representation::Object(FeedEncoding::Json));
            wait_while_running(feed, deadline, settled).await.map(|settled| settled.map(drop))
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_wait_ends_when_feed_ends_or_deadline_passes() {
    for wait in 0..3 {
        for (ends, expected) in [(true, Err(NotServable::FeedEnded)), (false, Ok(None))] {
            let (_sources, feed, FeedStartRequest { mut writer, .. }, _trigger) = pods();
            let began = Instant::now();
            let waiting = tokio::spawn(async move { waits(&feed, wait).await });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished(), "{wait}: the feed runs");
            if ends {
                writer.set_state(FeedState::Ended(FeedEndReason::Outdated));
            }
            assert_eq!(waiting.await.expect("no panic"), expected, "{wait}");
            let waited = if ends { Duration::ZERO } else { DEADLINE };
            assert!(began.elapsed().abs_diff(waited) < Duration::from_millis(10), "{wait}: {:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ready_result_is_returned_although_feed_ended() {
    let (_sources, feed, FeedStartRequest { mut writer, .. }, _trigger) = pods();
    writer.set_state(FeedState::Ended(FeedEndReason::Outdated));
    let there = wait_while_running(&feed, Instant::now(), std::future::ready(7)).await;
    assert_eq!(there, Ok(Some(7)));
}

/// What each kind of read waits for, with a watch cache upstream and without one.
#[test]
fn goal_and_limit_of_wait_follow_from_version_and_kind() {
    const SHOWN: ResourceVersion = ResourceVersion(7);
    let (any, unset, exact) =
        (ResourceVersionMatch::Any, ResourceVersionMatch::Unset, ResourceVersionMatch::Exact(ResourceVersion(9)));
    let (rv, later) = (ResourceVersion(9), ResourceVersionMatch::NotOlderThan(ResourceVersion(9)));
    let watch = |start, timeout_seconds| ReadKind::Watch { start, timeout_seconds };
    let state = |at| watch(WatchStart::State { at, end_bookmark: true }, None);
    let [none, second, fresh, proof] = [0, 1, 3, 30].map(Duration::from_secs);
    for (kind, goal, [cached, uncached], [missed, missed_uncached]) in [
        (
            ReadKind::List(exact),
            FeedWaitCondition::Nothing,
            [none; 2],
            [WaitTimeoutAction::TooLarge, WaitTimeoutAction::NoProof],
        ),
        (ReadKind::List(any), FeedWaitCondition::Version(SHOWN), [fresh, second], [WaitTimeoutAction::Answer; 2]),
        (
            ReadKind::Get(later),
            FeedWaitCondition::Version(rv),
            [fresh, second],
            [WaitTimeoutAction::TooLarge, WaitTimeoutAction::NoProof],
        ),
        (
            ReadKind::List(later),
            FeedWaitCondition::Version(rv),
            [fresh, second],
            [WaitTimeoutAction::TooLarge, WaitTimeoutAction::NoProof],
        ),
        (ReadKind::List(unset), FeedWaitCondition::Proof, [fresh; 2], [WaitTimeoutAction::NoProof; 2]),
        (state(any), FeedWaitCondition::Version(SHOWN), [fresh, second], [WaitTimeoutAction::Answer; 2]),
        (
            state(later),
            FeedWaitCondition::Version(rv),
            [fresh, second],
            [WaitTimeoutAction::TooLarge, WaitTimeoutAction::NoProof],
        ),
        (state(unset), FeedWaitCondition::Proof, [proof; 2], [WaitTimeoutAction::NoProof; 2]),
        (
            watch(WatchStart::FromCurrent, Some(2)),
            FeedWaitCondition::Proof,
            [Duration::from_secs(2); 2],
            [WaitTimeoutAction::NoProof; 2],
        ),
        (
            watch(WatchStart::FromCurrent, Some(-1)),
            FeedWaitCondition::Proof,
            [proof; 2],
            [WaitTimeoutAction::NoProof; 2],
        ),
        (
            watch(WatchStart::FromCurrent, Some(i64::MAX)),
            FeedWaitCondition::Proof,
            [proof; 2],
            [WaitTimeoutAction::NoProof; 2],
        ),
        (
            watch(WatchStart::FromCached, None),
            FeedWaitCondition::Nothing,
            [none; 2],
            [WaitTimeoutAction::TooLarge, WaitTimeoutAction::NoProof],
        ),
        (
            watch(WatchStart::After(rv), None),
            FeedWaitCondition::InBackground(rv),
            [none; 2],
            [WaitTimeoutAction::TooLarge, WaitTimeoutAction::NoProof],
        ),
    ] {
        assert_eq!(need(kind).goal(true, fresh, SHOWN), (goal, cached, missed), "{kind:?}");
        assert_eq!(need(kind).goal(false, fresh, SHOWN), (goal, uncached, missed_uncached), "{kind:?}, not cached");
    }
}

/// How a request continues if its version or its proof does not come.
#[tokio::test(start_paused = true)]
async fn missed_version_or_proof_forwards_reads_and_fails_watches() {
    let (unset, later) = (ResourceVersionMatch::Unset, ResourceVersionMatch::NotOlderThan(ResourceVersion(99)));
    let watch = |at| ReadKind::Watch { start: WatchStart::State { at, end_bookmark: false }, timeout_seconds: Some(5) };
    let late = |requested| NotServable::Late(Box::new(Status::too_large(requested, 10)));
    for (kind, by_proxy, is_stale, seconds, expected) in [
        (ReadKind::List(unset), false, false, 3, NotServable::Forward(ForwardReason::NoProof)),
        (ReadKind::Get(later), false, false, 3, late(99)),
        (ReadKind::List(later), false, true, 3, late(99)),
        (watch(later), false, true, 3, late(99)),
        (watch(unset), false, false, 5, late(11)),
        (watch(unset), false, true, 3, unreachable()),
        // A proxy would conclude that the storage went back.
        (ReadKind::List(later), true, false, 4, unreachable()),
        (watch(later), true, false, 4, unreachable()),
        (watch(later), true, true, 4, unreachable()),
    ] {
        let (sources, feed, FeedStartRequest { mut writer, .. }, _trigger) = pods();
        if is_stale {
            writer.set_state(FeedState::Stale { since: Instant::now() });
        }
        let (began, renderer) = (Instant::now(), feed.reader.verbatim().clone());
        let need = FeedRequirements { by_proxy, ..need(kind) };
        let waited = sources.wait_ready(&FeedWithRenderer { feed, renderer }, &need).await;
        assert_eq!(waited, Err(expected), "{kind:?} {by_proxy}");
        assert!(began.elapsed().abs_diff(Duration::from_secs(seconds)) < Duration::from_millis(10), "{kind:?}");
    }
}

/// The storage may have gone back only if upstream says that it does not have the version.
#[tokio::test(start_paused = true)]
async fn proxy_learns_that_version_is_too_large_only_from_upstream() {
    let later = ReadKind::List(ResourceVersionMatch::NotOlderThan(ResourceVersion(99)));
    let late = || NotServable::Late(Box::new(Status::too_large(99, 10)));
    for (missing, asked_before, expected) in
        [(99, 0, late()), (50, 3, late()), (99, 4, unreachable()), (100, 0, unreachable())]
    {
        let (sources, feed, _demand, _trigger) = pods();
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(asked_before)).await;
        feed.freshness.versions.remove_unavailable(ResourceVersion(missing), asked);
        let renderer = feed.reader.verbatim().clone();
        let need = FeedRequirements { by_proxy: true, ..need(later) };
        let waited = sources.wait_ready(&FeedWithRenderer { feed, renderer }, &need).await;
        assert_eq!(waited, Err(expected), "{missing}, asked {asked_before} s before");
    }
}

/// R-THREAT-6: a read is compared with the access that the authorizer allowed.
#[test]
fn read_requires_permission_for_its_collection_and_name() {
    const GROUP: &str = "/apis/example.com/v1";
    let info = |path: &str| RequestInfo::parse("GET", path, &UrlQuery::default()).expect("a path");
    let (all, in_a, one) = ("widgets", "namespaces/a/widgets", "namespaces/a/widgets/w");
    for (permitted, requested, name, fits) in [
        (all, all, None, true),
        (in_a, in_a, None, true),
        (in_a, one, Some("w"), true),
        (one, one, Some("w"), true),
        (one, in_a, None, false),
        (one, in_a, Some("v"), false),
        (in_a, all, None, false),
        (all, in_a, None, false),
        (in_a, "namespaces/b/widgets", None, false),
        ("namespaces/a/gadgets", in_a, None, false),
        ("namespaces/a/widgets/w/status", one, Some("w"), false),
    ] {
        let [permitted, requested] = [permitted, requested].map(|path| format!("{GROUP}/{path}"));
        let grant = Authorizer::open().grant(&Caller::ProxyItself, &info(&permitted)).now_or_never();
        let permission = grant.expect("decided without a review").expect("the caller is the proxy");
        let request = read_request(&requested);
        let (json, kind) = (Representation::Object(FeedEncoding::Json), ReadKind::List(ResourceVersionMatch::Any));
        let authorized = AuthorizedRead { request: &request, permission: &permission, resource: &widgets("uid/1") };
        let need = FeedRequirements::new(authorized, name, json, kind);
        let refused = NotServable::Forward(ForwardReason::PermissionMismatch);
        assert_eq!(need.err(), (!fits).then_some(refused), "{requested} {name:?} with a permission for {permitted}");
    }
}

fn read_request(path: &str) -> ReadRequest {
    let http = Request::get(path).header("user-agent", "agent/1").body(Either::Left(ReceivedBody::empty()));
    let http = http.expect("a request");
    let peer = ConnectionPeer {
        address: PeerAddress::Unix { uid: None },
        certificates: None,
        connection: DownstreamConnection::default(),
        abort: AbortSignal::default(),
    };
    ReadRequest {
        query: Arc::new(UrlQuery::parse("")),
        context: ResponseContext::from_headers(&peer, http.headers(), Arc::default()),
        received: Instant::now(),
        caller: Caller::ProxyItself,
        info: RequestInfo::parse("GET", path, &UrlQuery::parse("")).expect("no empty segment"),
        http,
        listener: ListenerRoles::default(),
    }
}

/// Proxies below serve the objects to clients that read all fields.
#[test]
fn proxy_below_receives_all_fields() {
    let named = ReducedReads { user_agents: vec!["agent/".to_owned()], ..ReducedReads::default() };
    for (by_proxy, on_listener, readers, is_reduced) in [
        (false, false, &named, true),
        (false, true, &ReducedReads::default(), true),
        (false, false, &ReducedReads::default(), false),
        (true, true, &named, false),
    ] {
        let mut request = read_request("/api/v1/pods");
        request.context.by_proxy = by_proxy;
        request.listener.is_reduced = on_listener;
        assert_eq!(request.is_reduced(readers), is_reduced, "{by_proxy} {on_listener}");
    }
}

/// The catalog may have a new definition before the feed of the old one is retired.
#[test]
fn get_uses_only_feed_of_current_crd_definition() {
    let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
    let _handle =
        feeds.handle(&spec(&widgets("uid/1"), FeedScope::Cluster, FeedEncoding::Json), None).expect("there is room");
    let FeedStartRequest { mut writer, .. } = demands.try_recv().expect("the feed is demanded");
    writer.replace(FeedSnapshot::from_objects(ResourceVersion(10), Vec::new()));
    writer.set_state(FeedState::Live);
    let (_trigger, drain) = DrainTrigger::new();
    let sources = FeedResolver::new(ServeConfig::default().into(), feeds, drain);
    for (edition, is_read) in [("uid/1", true), ("uid/2", false)] {
        let source = sources.running_source(&widgets(edition), &need(ReadKind::Get(ResourceVersionMatch::Any)));
        assert_eq!(source.is_some(), is_read, "{edition}");
    }
}

fn widgets(edition: &str) -> UpstreamResource {
    let widgets = upstream_resource(Gvr::new("example.com", "v1", "widgets"), "Widget");
    UpstreamResource {
        origin: ResourceOrigin::Custom,
        edition: Some(edition.into()),
        fields: Arc::default(),
        ..widgets
    }
}
