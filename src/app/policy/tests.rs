//! Tests of what the RBAC watcher concludes from the states of its feed.

use std::sync::Arc;

use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::auth::{AccessDecider, AuthConfig, DelegatedAuthDeps};
use crate::cache::{CacheConfig, CacheWriter, FeedEndReason, FeedSnapshot};
use crate::feeds::{Feed, FeedKey, FeedRegistry, FeedScope, FeedSpec};
use crate::upstream::{CredentialSource, DocumentRefusalBackoff, ResourceCatalog, UpstreamClient, UpstreamCostTotals};
use base::{BackoffBounds, WallClock};
use kubeapi::ResourceVersion;

#[test]
fn open_stream_is_live_only_after_a_proof() {
    let now = Instant::now();
    let [earlier, later] = [now - Duration::from_secs(9), now + Duration::from_secs(9)];
    let (stale, unproven) = (|since| RbacFeedLiveness::Stale { since }, |since| RbacFeedLiveness::Unproven { since });
    let live = RbacFeedLiveness::Live;
    let ended = FeedState::Ended(FeedEndReason::Idle);
    for (before, state, proved, unneeded) in [
        (stale(earlier), FeedState::Live, unproven(now), live),
        (unproven(earlier), FeedState::Live, unproven(earlier), unproven(earlier)),
        (live, FeedState::Live, live, live),
        (stale(now), FeedState::Stale { since: earlier }, stale(earlier), stale(earlier)),
        (unproven(now), FeedState::Stale { since: later }, stale(later), stale(later)),
        (live, FeedState::Stale { since: earlier }, stale(earlier), stale(earlier)),
        (live, FeedState::Syncing, stale(now), stale(now)),
        (unproven(earlier), ended, stale(now), stale(now)),
    ] {
        let after = [true, false].map(|needs_proof| before.after(state, needs_proof, now));
        assert_eq!(after, [proved, unneeded], "{before:?}, {state:?}");
    }
}

/// An authorizer that decides by RBAC, and a watcher of cluster role bindings on a feed without a reflector. The other
/// kinds are known and live.
struct Scene {
    authorizer: Authorizer,
    feed: Arc<Feed>,
    writer: CacheWriter,
    watcher: JoinHandle<()>,
    _tasks: BackgroundTasks,
}

const KIND: RbacKind = RbacKind::ClusterRoleBinding;

fn scene() -> Scene {
    let nowhere = CredentialSource::Anonymous(http::Uri::from_static("http://127.0.0.1:1"));
    let client = UpstreamClient::connect(&nowhere, UpstreamCostTotals::default()).expect("nothing is sent");
    let (config, tasks) = (AuthConfig { decide: AccessDecider::Rbac, ..AuthConfig::default() }, BackgroundTasks::new());
    let parts = DelegatedAuthDeps {
        client: client.clone(),
        client_authorities: None,
        front_proxy: None,
        node: None,
        clock: WallClock::default(),
        tasks: tasks.clone(),
    };
    let authorizer = Authorizer::delegated(config, parts);
    for kind in RbacKind::ALL.into_iter().filter(|kind| *kind != KIND) {
        authorizer.load_policy(kind, []);
        authorizer.set_policy_feed(kind, None);
    }
    let (feeds, mut requests) = FeedRegistry::new(CacheConfig::default());
    let gvr = Gvr::new("rbac.authorization.k8s.io", "v1", KIND.resource());
    let key = FeedKey { gvr, scope: FeedScope::Cluster, encoding: FeedEncoding::Json };
    let handle = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
    let request = requests.try_recv().expect("it is started");
    let waits = BackoffBounds { first: Duration::from_secs(1), longest: Duration::from_secs(1) };
    let catalog = ResourceCatalog::new(client.clone(), DocumentRefusalBackoff::central(waits));
    let watcher = RbacWatcher {
        kind: KIND,
        retrier: RefusedReadRetrier { client, catalog, feeds, on_node: false },
        authorizer: authorizer.clone(),
        is_needed: watch::channel(true).1,
        retry_after: Duration::from_secs(1),
    };
    let watcher = tokio::spawn(async move { watcher.follow_feed(&handle).await });
    Scene { authorizer, feed: request.feed, writer: request.writer, watcher, _tasks: tasks }
}

impl Scene {
    async fn enter(&mut self, state: FeedState) {
        self.writer.set_state(state);
        self.settle().await;
    }

    async fn list(&mut self, version: u64) {
        self.writer.replace(FeedSnapshot::from_objects(ResourceVersion(version), []));
        self.enter(FeedState::Live).await;
    }

    /// Lets the watcher react to everything.
    async fn settle(&self) {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    /// Whether RBAC changes are received as they happen.
    fn is_live(&self) -> bool {
        self.authorizer.policy_unchanged_since().is_some()
    }
}

#[tokio::test]
async fn feed_counts_as_live_after_a_proof_of_its_present_stream() {
    let mut scene = scene();
    scene.list(5).await;
    assert!(!scene.is_live(), "the list may be an old one");
    let needed = scene.feed.freshness.subscribe().borrow().expect("a proof is requested");
    scene.feed.freshness.prove(needed);
    scene.settle().await;
    assert!(scene.is_live());
    scene.enter(FeedState::Stale { since: Instant::now() }).await;
    assert!(!scene.is_live() && scene.authorizer.stale_rules().is_some(), "the rules decide for a while");
    scene.enter(FeedState::Live).await;
    assert!(!scene.is_live(), "the earlier proof is not one of this stream");
    scene.feed.freshness.prove(Instant::now());
    scene.settle().await;
    assert!(scene.is_live());
}

/// Bindings of a history that upstream no longer has must not decide until the next list.
#[tokio::test]
async fn lost_history_clears_its_kind() {
    let mut scene = scene();
    scene.list(5).await;
    scene.feed.freshness.prove(Instant::now());
    scene.settle().await;
    scene.enter(FeedState::Stale { since: Instant::now() }).await;
    assert!(scene.authorizer.stale_rules().is_some());
    scene.enter(FeedState::Syncing).await;
    assert_eq!(scene.authorizer.stale_rules(), None, "nothing is decided");
    scene.list(3).await;
    scene.feed.freshness.prove(Instant::now());
    scene.settle().await;
    assert!(scene.is_live(), "the next list is read");
    let Scene { authorizer, writer, watcher, .. } = scene;
    drop(writer);
    watcher.await.expect("it ends");
    assert!(authorizer.policy_unchanged_since().is_none());
}
