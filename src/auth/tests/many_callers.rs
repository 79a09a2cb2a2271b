//! A revoked permission ends in time, whatever other reviews there are, and however slow they are.

use std::collections::BTreeMap;

use tokio::time::sleep;

use super::*;
use crate::auth::access_reviewer::AccessReviewer;
use crate::auth::comparison_queue::ComparisonQueue;
use crate::auth::review_queue::ReviewPurpose;
use kubeapi::{AccessAttributes, User};

const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";
/// The duration of a crowd's reviews, which keeps its slots full for a whole test.
const SLOW: Duration = Duration::from_secs(9);
/// The time from a policy change to the end of a dependent watch without other load.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Revokes Ada's permission, reports the change, and returns the time until her watch ends.
async fn lost(scene: &Scene, watch: &ReadPermission) -> Duration {
    // All reviews of the crowd have been sent or are waiting by now.
    sleep(Duration::from_millis(100)).await;
    scene.stub.deny("ada", "*");
    scene.authorizer.policy_changed(&change("ada", ""));
    let took = time_to_end(&watch.end_token()).await;
    assert_eq!(watch.end_reason(), Some("denied"));
    took
}

#[tokio::test(start_paused = true)]
async fn unknown_token_flood_does_not_delay_revocation() {
    let scene = scene();
    let watch = scene.watch("ada", PODS).await;
    scene.stub.slow("guess", SLOW);
    for number in 0..400_u16 {
        let authorizer = scene.authorizer.clone();
        let [high, low] = number.to_be_bytes();
        tokio::spawn(async move { authorizer.known(&format!("guess-{number}"), [10, 0, high, low]).await.is_ok() });
    }
    assert!(lost(&scene, &watch).await <= AT_ONCE);
}

/// Guesses do not delay a lease's token review either, even if requests review the same token.
#[tokio::test(start_paused = true)]
async fn unknown_token_flood_does_not_delay_token_expiry() {
    let scene = scene_with(AuthConfig { token_ttl: Duration::from_millis(1), ..AuthConfig::remembering_for_a_day() });
    let watch = scene.watch("ada", PODS).await;
    scene.stub.slow("guess", SLOW);
    scene.stub.take("ada");
    let crowd = async {
        for number in 0_u32.. {
            let (authorizer, [_, high, mid, low]) = (scene.authorizer.clone(), number.to_be_bytes());
            tokio::spawn(
                async move { authorizer.known(&format!("guess-{number}"), [10, high, mid, low]).await.is_ok() },
            );
            sleep(Duration::from_millis(20)).await;
        }
    };
    let over = watch.end_token();
    let took = tokio::select! {
        () = crowd => unreachable!("it goes on"),
        took = time_to_end(&over) => took,
    };
    assert!(took <= seconds(61), "{took:?}");
    assert_eq!(watch.end_reason(), Some("unauthenticated"));
}

#[tokio::test(start_paused = true)]
async fn request_burst_does_not_delay_revocation() {
    let scene = scene();
    let watch = scene.watch("ada", PODS).await;
    // Half of the crowd uses her token and asks for the same access. A lease does not wait with them.
    scene.stub.slow("ada", SLOW);
    let ada = scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
    let bob = scene.authorizer.known("bob", [127, 0, 0, 1]).await.expect("authenticated");
    scene.stub.slow("bob", SLOW);
    scene.authorizer.policy_changed(&change("ada", "t1"));
    sleep(Duration::from_millis(10)).await;
    for number in 0..400 {
        let (authorizer, caller) = (scene.authorizer.clone(), if number % 2 == 0 { ada.clone() } else { bob.clone() });
        let uri = if number == 0 { PODS.to_owned() } else { format!("/api/v1/namespaces/t{number}/pods") };
        tokio::spawn(async move { authorizer.grant(&caller, &info(&uri)).await.is_ok() });
    }
    sleep(Duration::from_millis(10)).await;
    scene.stub.slow("ada", Duration::from_millis(2));
    sleep(seconds(12)).await;
    assert!(lost(&scene, &watch).await <= AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn namespace_reviews_do_not_delay_revocation() {
    let scene = scene();
    let watch = scene.watch("ada", PODS).await;
    let mut readable = Vec::new();
    for reader in ["bob-1", "bob-2", "bob-3"] {
        readable.push(scene.readable(reader, &named(1_000)).await.expect("it is let in"));
    }
    // Ada reads namespaces too, including that of her other watch.
    readable.push(scene.readable("ada", &named(1_000)).await.expect("it is let in"));
    scene.stub.slow("bob", SLOW);
    sleep(Duration::from_millis(100)).await;
    scene.stub.deny("ada", "*");
    scene.authorizer.policy_changed(&AffectedUsers::Everyone);
    let took = time_to_end(&watch.end_token()).await;
    assert!(took <= AT_ONCE, "{took:?}");
    assert_eq!(watch.end_reason(), Some("denied"));
}

#[tokio::test(start_paused = true)]
async fn leases_of_one_user_do_not_delay_another_users_revocation() {
    let scene = scene_with(AuthConfig { accesses_burst_per_user: 10_000, ..AuthConfig::remembering_for_a_day() });
    let watch = scene.watch("ada", PODS).await;
    let mut others = Vec::new();
    for number in 0..3_000 {
        others.push(scene.watch("bob", &format!("{PODS}&labelSelector=a%3D{number}")).await);
    }
    scene.stub.slow("bob", SLOW);
    sleep(Duration::from_millis(100)).await;
    scene.stub.deny("ada", "*");
    scene.authorizer.policy_changed(&AffectedUsers::Everyone);
    let took = time_to_end(&watch.end_token()).await;
    // If many leases are affected, their reviews are spread over a moment.
    assert!(took <= AT_ONCE + Duration::from_millis(600), "{took:?}");
}

/// The cost of a selector for upstream does not grow with the number of requests, however long the selector is.
#[tokio::test(start_paused = true)]
async fn long_selector_is_reviewed_once_until_policy_changes() {
    let scene = scene();
    let values = (0..2_500).map(|n| format!("v{n}")).collect::<Vec<_>>().join(",");
    let uri = format!("/api/v1/namespaces/t1/pods?labelSelector=app%20in%20({values})");
    assert!(uri.len() > 12_000);
    let caller = scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
    for put in [1, 1] {
        scene.stub.reviews();
        for _ in 0..50 {
            scene.authorizer.grant(&caller, &info(&uri)).await.expect("it is allowed");
        }
        let reviews = scene.stub.reviews();
        assert_eq!(reviews.iter().filter(|review| review.namespace.is_some()).count(), put);
        scene.authorizer.policy_changed(&change("ada", "t1"));
        // Cached decisions are dropped a moment later.
        sleep(seconds(1)).await;
    }
}

/// Denials are cached, except the Node authorizer's for an object that a pod may need already. Nothing reports when the
/// authorizer has seen the pod, and a kubelet retries within a second.
#[tokio::test(start_paused = true)]
async fn node_authorizer_missing_pod_denial_is_not_cached() {
    let scene = scene();
    let caller = scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
    let no_pod = "no relationship found between node 'n1' and this object";
    for (reason, is_granted) in [("", false), (no_pod, true), ("node: no relationship found between node 'n1'", true)] {
        scene.stub.because(reason);
        let map = info(&format!("/api/v1/namespaces/t1/configmaps/{}", reason.len()));
        scene.stub.deny("ada", "t1");
        scene.authorizer.grant(&caller, &map).await.expect_err("it is denied");
        scene.stub.allow("ada", "t1");
        assert_eq!(scene.authorizer.grant(&caller, &map).await.is_ok(), is_granted, "{reason}");
    }
}

/// Nor is it cached in the place of an allow decision that a lease has found to be outdated.
#[tokio::test(start_paused = true)]
async fn temporary_denial_of_lease_is_not_cached_as_long_as_an_allow() {
    let scene = scene();
    let caller = scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
    let watch = info("/api/v1/namespaces/t1/configmaps?watch=1&fieldSelector=metadata.name%3Dc");
    scene.stub.because("no relationship found between node 'n1' and this object");
    let granted = scene.authorizer.grant(&caller, &watch).await.expect("it is allowed");
    // Each request finds a cached allow decision when the lease sends its review.
    while !granted.end_token().is_cancelled() {
        scene.stub.allow("ada", "t1");
        scene.authorizer.grant(&caller, &watch).await.expect("it is allowed, or was a moment ago");
        scene.stub.deny("ada", "t1");
        sleep(seconds(1)).await;
    }
    scene.stub.allow("ada", "t1");
    scene.authorizer.grant(&caller, &watch).await.expect("it is reviewed again");
}

/// A decision is for a user with all its attributes, and not for another user of that name (A3).
#[tokio::test(start_paused = true)]
async fn decisions_are_cached_per_full_user_identity() {
    let stub = Arc::new(StubReviewClient::default());
    let reviewer =
        AccessReviewer::new(stub.clone(), Arc::new(ComparisonQueue::new(0)), &AuthConfig::remembering_for_a_day());
    let access = Arc::new(AccessAttributes::from_request(&info(PODS)));
    let ada = User { name: "ada".into(), ..User::default() };
    let of_uid = |uid: &str| User { uid: uid.into(), ..ada.clone() };
    let of_group = |group: &str| User { groups: vec![group.into()], ..ada.clone() };
    let with_extra = |value: &str| User { extra: BTreeMap::from([("k".into(), vec![value.into()])]), ..ada.clone() };
    let others = ["1", "2"].map(|of| [of_uid(of), of_group(of), with_extra(of)]).concat();
    for user in [vec![ada.clone()], others].concat().into_iter().map(Arc::new) {
        for count in [1, 0] {
            reviewer.decide(&user, &access, ReviewPurpose::Request, None).await.expect("it is allowed");
            assert_eq!(stub.reviews().len(), count, "{user:?}");
        }
    }
}

/// A dropped decision is gone, however many permissions change at the same moment (A3).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn mass_revocation_leaves_no_cached_allow_decision() {
    const LATER: usize = 100;
    let plenty = 10_000_000;
    let config = AuthConfig {
        accesses: plenty,
        accesses_per_user: plenty,
        accesses_burst_per_user: plenty,
        ..AuthConfig::default()
    };
    let stub = Arc::new(StubReviewClient::default());
    let reviewer = Arc::new(AccessReviewer::new(stub.clone(), Arc::new(ComparisonQueue::new(0)), &config));
    let access = Arc::new(AccessAttributes::from_request(&info(PODS)));
    let worker = |worker: usize| {
        let (stub, reviewer, access) = (stub.clone(), reviewer.clone(), access.clone());
        tokio::spawn(async move {
            let (mut lost, mut let_in) = (Vec::<Arc<User>>::new(), 0);
            for number in 0..500 {
                let name = format!("user-{worker}-{number}");
                let user = Arc::new(User { name: name.clone(), ..User::default() });
                let asks = |user: Arc<User>| {
                    let (reviewer, access) = (reviewer.clone(), access.clone());
                    async move { reviewer.decide(&user, &access, ReviewPurpose::Request, None).await }
                };
                asks(user.clone()).await.expect("it is allowed");
                stub.deny(&name, "t1");
                reviewer.remove_affected(&change(&name, "t1")).await;
                lost.push(user);
                // A while later, and once each, because a request replaces the decision.
                if let Some(user) = lost.len().checked_sub(LATER).map(|one| lost[one].clone()) {
                    let_in += usize::from(asks(user).await.is_ok());
                }
            }
            let_in
        })
    };
    let workers = (0..4).map(worker).collect::<Vec<_>>();
    let let_in =
        futures_util::future::join_all(workers).await.into_iter().map(|one| one.expect("no panic")).sum::<usize>();
    assert_eq!(let_in, 0, "they were let in by what was forgotten");
}
