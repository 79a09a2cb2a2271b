//! Tests of permissions from RBAC while changes of RBAC are watched.

use tokio::time::sleep;

use super::*;
use crate::auth::NamespaceAccess;

const RBAC: &str = r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "c" to User "ada""#;
const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";
/// The time within which any permission is reviewed, whatever its authorizer is, and a lease without it ends.
const BOUND: Duration = Duration::from_secs(660);

/// An authorizer that reviews permissions from RBAC every ten minutes.
fn patient_scene() -> Scene {
    scene_with(AuthConfig { recheck_rbac: seconds(600), ..AuthConfig::remembering_for_a_day() })
}

/// All accesses are allowed by RBAC, whose changes are watched from now on.
fn scene_of(reason: &'static str) -> Scene {
    let scene = patient_scene();
    scene.stub.because(reason);
    hear(&scene);
    scene
}

fn hear(scene: &Scene) {
    (0..4).for_each(|_| scene.authorizer.policy_watch_started());
    scene.authorizer.set_policy_watched(true);
}

/// The number of access reviews.
fn accesses(scene: &Scene) -> usize {
    scene.counted().0
}

#[tokio::test(start_paused = true)]
async fn rbac_granted_access_is_reviewed_rarely_while_rbac_is_watched() {
    for (reason, least, most) in [(RBAC, 3, 6), ("", 30, 40), ("allowed by a webhook", 30, 40)] {
        let scene = scene_of(reason);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(10)).await;
        assert_eq!(accesses(&scene), 2, "{reason}: as the watch begins, and as changes begin to be watched");
        sleep(seconds(30 * 60)).await;
        let (accesses, tokens) = scene.counted();
        assert!((least..=most).contains(&accesses), "{reason}: {accesses} in half an hour");
        assert!((30..=40).contains(&tokens), "whose the token is, RBAC does not say");
        assert_eq!(watch.end_reason(), None);
    }
}

/// Upstream's authorizers may lag further than the rounds after a change cover.
#[tokio::test(start_paused = true)]
async fn decision_right_after_policy_change_is_reviewed_again() {
    for name in ["ada", "system:node:n1"] {
        let scene = scene_of(RBAC);
        sleep(seconds(60)).await;
        let watch = scene.watch(name, PODS).await;
        sleep(seconds(300)).await;
        scene.authorizer.policy_changed(&change(name, "t1"));
        // The reviews of each round return the old state.
        sleep(seconds(10)).await;
        scene.stub.deny(name, "t1");
        let took = time_to_end(&watch.end_token()).await;
        assert!(took <= seconds(130), "{name}: {took:?}");
        assert_eq!(watch.end_reason(), Some("denied"));
    }
}

/// The authorizers may not have seen a change a few seconds later either, when a watch begins.
#[tokio::test(start_paused = true)]
async fn watch_opened_after_policy_change_is_reviewed_again_in_a_minute() {
    for name in ["ada", "system:node:n1"] {
        let scene = scene_of(RBAC);
        sleep(seconds(300)).await;
        scene.authorizer.policy_changed(&change(name, "t1"));
        sleep(seconds(6)).await;
        let watch = scene.watch(name, PODS).await;
        sleep(seconds(2)).await;
        scene.stub.deny(name, "t1");
        let took = time_to_end(&watch.end_token()).await;
        assert!(took <= seconds(130), "{name}: {took:?}");
    }
}

/// A watch of some namespaces has a review for each of them, and its revalidator sends none.
#[tokio::test(start_paused = true)]
async fn unrelated_change_keeps_review_schedule_of_namespaced_watch() {
    for name in ["ada", "system:node:n1"] {
        let scene = scene_of(RBAC);
        let readable = scene.readable(name, &["t1".to_owned()]).await.expect("it is let in");
        sleep(seconds(300)).await;
        scene.authorizer.policy_changed(&change(name, "t2"));
        sleep(seconds(400)).await;
        scene.stub.deny(name, "t1");
        scene.authorizer.policy_changed(&change(name, "t1"));
        sleep(seconds(5)).await;
        assert_eq!(readable.decision("t1"), Some(NamespaceAccess::Denied), "{name}");
    }
}

/// The first decision counts too: a watch that begins while RBAC is watched is not reviewed again.
#[tokio::test(start_paused = true)]
async fn new_watch_costs_one_review_while_rbac_is_watched() {
    let scene = scene_of(RBAC);
    sleep(seconds(60)).await;
    let _watch = scene.watch("ada", PODS).await;
    sleep(seconds(400)).await;
    assert_eq!(accesses(&scene), 1);
}

#[tokio::test(start_paused = true)]
async fn rbac_change_ends_rbac_granted_watch_within_seconds() {
    for late in [0, 1_900] {
        let scene = scene_of(RBAC);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(300)).await;
        scene.authorizer.policy_changed(&change("ada", "t1"));
        sleep(Duration::from_millis(late)).await;
        scene.stub.deny("ada", "t1");
        let took = time_to_end(&watch.end_token()).await + Duration::from_millis(late);
        assert!(took < seconds(5), "{late} ms late: {took:?}");
    }
}

/// A change before all policy watches are open ends the permission shortly after they are.
#[tokio::test(start_paused = true)]
async fn rbac_change_missed_before_watches_open_ends_the_watch() {
    let scene = patient_scene();
    scene.stub.because(RBAC);
    let watch = scene.watch("ada", PODS).await;
    sleep(seconds(1)).await;
    hear(&scene);
    sleep(Duration::from_millis(1_900)).await;
    scene.stub.deny("ada", "t1");
    let took = time_to_end(&watch.end_token()).await;
    assert!(took < seconds(3), "{took:?}");
}

/// An apiserver that starts may deny until it has its rules. Each RBAC watch that begins again has leases reviewed.
#[tokio::test(start_paused = true)]
async fn denials_soon_after_rbac_watches_resume_need_later_confirmation() {
    for is_lasting in [false, true] {
        let scene = scene();
        hear(&scene);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(100)).await;
        scene.authorizer.set_policy_watched(false);
        sleep(seconds(1)).await;
        scene.stub.deny("ada", "t1");
        accesses(&scene);
        hear(&scene);
        // Several reviews are denied within four seconds.
        for _ in 0..3 {
            sleep(seconds(1)).await;
            scene.authorizer.policy_changed(&change("ada", "t1"));
        }
        sleep(seconds(1)).await;
        assert!(accesses(&scene) >= 2, "reviewed");
        assert_eq!(watch.end_reason(), None, "{is_lasting}");
        if is_lasting {
            let took = time_to_end(&watch.end_token()).await;
            assert!(took <= seconds(8), "{took:?}");
            assert_eq!(watch.end_reason(), Some("denied"));
        } else {
            scene.stub.allow("ada", "t1");
            sleep(seconds(300)).await;
            assert_eq!(watch.end_reason(), None, "the denials were not confirmed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn revocation_without_rbac_change_ends_watch_within_bound() {
    for (is_heard, bound) in [(true, BOUND), (false, seconds(75))] {
        for after in [0, 200, 500, 900] {
            let scene = scene_of(RBAC);
            let (watch, of_node) = (scene.watch("ada", PODS).await, scene.watch("system:node:n1", PODS).await);
            sleep(seconds(20 + after)).await;
            scene.authorizer.set_policy_watched(is_heard);
            scene.stub.deny("ada", "t1");
            scene.stub.deny("system:node:n1", "t1");
            let (over, of_node) = (watch.end_token(), of_node.end_token());
            let (took, nodes) = tokio::join!(time_to_end(&over), time_to_end(&of_node));
            assert!(took <= bound && nodes <= BOUND, "{is_heard}, {after}: {took:?}, {nodes:?}");
            assert_eq!(watch.end_reason(), Some("denied"));
        }
    }
}

/// The grace of an outage counts from the last known decision, and not from the failed review.
#[tokio::test(start_paused = true)]
async fn rbac_granted_watch_ends_after_the_same_outage_grace() {
    let scene = scene_of(RBAC);
    let watch = scene.watch("ada", PODS).await;
    sleep(seconds(500)).await;
    scene.stub.silent(true);
    scene.authorizer.set_policy_watched(false);
    let took = time_to_end(&watch.end_token()).await;
    assert!(took >= seconds(235) && took <= seconds(365), "{took:?}");
    assert_eq!(watch.end_reason(), Some("unavailable"));
}

/// A node's permission is reviewed rarely. A single failed review ends nothing, and a watch continues in an outage for
/// the same grace as others, from when the outage is noticed.
#[tokio::test(start_paused = true)]
async fn node_watch_outage_grace_starts_when_outage_is_detected() {
    for after in [1, 100, 450, 900] {
        let scene = scene();
        let watch = scene.watch("system:node:n1", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.silent(true);
        let took = time_to_end(&watch.end_token()).await;
        assert!(took >= seconds(295) && took <= seconds(600 + 365), "{after}: {took:?}");
        assert_eq!(watch.end_reason(), Some("unavailable"));

        let scene = self::scene();
        let watch = scene.watch("system:node:n1", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.silent(true);
        sleep(seconds(290)).await;
        scene.stub.silent(false);
        sleep(seconds(2_000)).await;
        assert_eq!(watch.end_reason(), None, "{after}: it is over in time");
    }
}

/// The Node authorizer gives no reason, and the apiserver does not end a node's watches, like all others.
#[tokio::test(start_paused = true)]
async fn node_access_is_reviewed_every_ten_minutes_others_each_minute() {
    for (name, least, most) in [("system:node:n1", 3, 6), ("node:n1", 30, 40)] {
        let scene = scene();
        let watch = scene.watch(name, PODS).await;
        sleep(seconds(30 * 60)).await;
        let reviews = accesses(&scene);
        assert!((least..=most).contains(&reviews), "{name}: {reviews} in half an hour");
        scene.stub.deny(name, "t1");
        let took = time_to_end(&watch.end_token()).await;
        assert!(took <= BOUND, "{name}: {took:?}");
        assert_eq!(watch.end_reason(), Some("denied"));
    }
}

/// A downstream proxy's requests other than for the content of feeds.
#[tokio::test(start_paused = true)]
async fn downstream_proxy_access_is_reviewed_as_rarely_as_a_watch() {
    for (reason, least, most) in [("", 27, 31), (RBAC, 2, 4)] {
        let scene = scene_of(reason);
        let caller = scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
        let asks = info("/api/v1/namespaces/t1/pods");
        sleep(seconds(10)).await;
        for _ in 0..300 {
            assert!(scene.authorizer.allows_proxy(&caller, &asks).await);
            sleep(seconds(6)).await;
        }
        let reviews = accesses(&scene);
        assert!((least..=most).contains(&reviews), "{reason}: {reviews} in half an hour");
        scene.stub.deny("ada", "t1");
        scene.authorizer.policy_changed(&change("ada", "t1"));
        sleep(seconds(4)).await;
        assert!(!scene.authorizer.allows_proxy(&caller, &asks).await, "{reason}");
    }
}
