//! Tests of the namespaces of readable watches: which are reviewed again, when, and how many there may be.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::sleep;

use super::*;
use crate::auth::NamespaceAccess;
use crate::auth::review_permission::ReviewResource;

fn places(reviews: &[StubReview]) -> BTreeSet<&str> {
    reviews.iter().filter_map(|review| review.namespace.as_deref()).collect()
}

/// The number of reviews in the busiest second.
fn most_in_a_second(reviews: &[StubReview]) -> usize {
    let times: Vec<_> = reviews.iter().map(|review| review.at).collect();
    let within = |at: usize| times[at..].iter().take_while(|time| **time < times[at] + seconds(1)).count();
    (0..times.len()).map(within).max().unwrap_or_default()
}

fn lease(readable: &ReadableNamespaces) -> CancellationToken {
    readable.grant_status().end_token().expect("it is that of a watch")
}

#[tokio::test(start_paused = true)]
async fn change_in_one_namespace_reviews_only_that_namespace() {
    let scene = scene();
    let readable = scene.readable("ada", &named(500)).await.expect("it is let in");
    sleep(seconds(1)).await;
    scene.stub.reviews();
    scene.stub.deny("ada", "t7");
    scene.authorizer.policy_changed(&change("ada", "t7"));
    scene.authorizer.policy_changed(&change("ada", "t70000"));
    sleep(Duration::from_millis(50)).await;
    assert_eq!(readable.decision("t7"), Some(NamespaceAccess::Denied), "at once");
    let reviews = scene.stub.reviews();
    assert!(places(&reviews).contains("t7") && reviews.len() < 20, "{reviews:?}");
    scene.stub.allow("ada", "t7");
    scene.authorizer.policy_changed(&change("ada", "t7"));
    sleep(seconds(5)).await;
    assert_eq!(readable.decision("t7"), Some(NamespaceAccess::Allowed));
}

#[tokio::test(start_paused = true)]
async fn unchanged_namespaces_are_reviewed_once_a_minute_spread_out() {
    let scene = scene();
    let readable = scene.readable("ada", &named(1_000)).await.expect("it is let in");
    scene.stub.reviews();
    sleep(seconds(300)).await;
    let reviews = scene.stub.reviews();
    let mut last = BTreeMap::new();
    for StubReview { at, namespace, .. } in reviews.iter().filter(|review| review.namespace.is_some()) {
        if let Some(before) = last.insert(namespace.clone(), *at) {
            assert!(*at - before <= seconds(61), "{namespace:?}");
        }
    }
    assert_eq!(last.len(), 1_000);
    assert!(last.values().all(|at| at.elapsed() <= seconds(61)));
    assert!(most_in_a_second(&reviews) < 80, "{} in a second", most_in_a_second(&reviews));
    assert!(reviews.len() < 7_500, "{} reviews in five minutes", reviews.len());
    // A permission ends without a reported change.
    scene.stub.deny("ada", "t5");
    sleep(seconds(75)).await;
    assert_eq!(readable.decision("t5"), Some(NamespaceAccess::Denied));
}

/// A change affects all namespaces of a user, at their maximum number.
#[tokio::test(start_paused = true)]
async fn cluster_wide_change_reviews_all_namespaces_within_rate_limit() {
    let scene = scene();
    let namespaces = named(2_000);
    let readable = scene.readable("ada", &namespaces).await.expect("it is let in");
    sleep(seconds(1)).await;
    scene.stub.reviews();
    namespaces.iter().for_each(|namespace| scene.stub.deny("ada", namespace));
    scene.authorizer.policy_changed(&change("ada", ""));
    sleep(seconds(5)).await;
    let visible =
        namespaces.iter().filter(|namespace| readable.decision(namespace) != Some(NamespaceAccess::Denied)).count();
    assert_eq!(visible, 0);
    sleep(seconds(10)).await;
    let reviews = scene.stub.reviews();
    assert!(most_in_a_second(&reviews) <= 500 + 125, "{} in a second", most_in_a_second(&reviews));
    assert!(!lease(&readable).is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn watches_above_the_namespace_limit_are_rejected_or_ended() {
    let scene =
        scene_with(AuthConfig { namespaces: 100, namespaces_per_user: 25, ..AuthConfig::remembering_for_a_day() });
    let first = scene.readable("ada", &named(60)).await.expect("it is let in");
    let uri = "/api/v1/configmaps?watch=1";
    let second = scene.readable_of("ada", uri, &named(41)).await.map(drop);
    assert!(matches!(second, Err(GrantError::TooMany { .. })), "{second:?}");
    let second = scene.readable_of("ada", uri, &named(40)).await.expect("as many as that");
    // One more namespace in an open watch is one too many for that watch, and for no other.
    first.request_review("another");
    assert!(lease(&first).is_cancelled() && !lease(&second).is_cancelled());
    assert_eq!(first.grant_status().revoked().map(|revoked| revoked.reason.as_str()), Some("too_many"));
    scene.readable("bob", &named(100)).await.expect("others have their own");
    drop((first, second));
    sleep(seconds(1)).await;
    scene.readable("ada", &named(100)).await.expect("there is room again");
}

/// Upstream answers too slowly for all reviews: nothing is served by an outdated decision.
#[tokio::test(start_paused = true)]
async fn watch_ends_when_namespace_reviews_are_too_slow() {
    let scene = scene();
    let readable = scene.readable("ada", &named(1_000)).await.expect("it is let in");
    scene.stub.slow("ada", seconds(2));
    scene.authorizer.policy_changed(&change("ada", ""));
    let took = time_to_end(&lease(&readable)).await;
    assert!(took <= seconds(20), "{took:?}");
    assert_eq!(readable.grant_status().revoked().map(|revoked| revoked.reason.as_str()), Some("too_many"));
}

#[tokio::test(start_paused = true)]
async fn upstream_outage_ends_namespace_access_after_grace_period() {
    let scene = scene();
    let readable = scene.readable("ada", &named(300)).await.expect("it is let in");
    scene.stub.silent(true);
    sleep(seconds(200)).await;
    assert_eq!(readable.decision("t1"), Some(NamespaceAccess::Allowed));
    let reviews = scene.stub.reviews().len();
    assert!(reviews < 5_000, "{reviews} reviews that fail");
    let took = time_to_end(&lease(&readable)).await;
    assert!(took <= seconds(165), "{took:?}");
    assert_eq!(readable.grant_status().revoked().map(|revoked| revoked.reason.as_str()), Some("unavailable"));
}

/// An apiserver that starts after an outage rejects all reviews for some seconds.
#[tokio::test(start_paused = true)]
async fn rejected_reviews_after_an_outage_keep_namespace_access() {
    let scene = scene();
    let readable = scene.readable("ada", &named(3)).await.expect("it is let in");
    for _ in 0..2 {
        scene.stub.silent(true);
        sleep(seconds(150)).await;
        scene.stub.lack(ReviewResource::ACCESS, true);
        scene.stub.silent(false);
        sleep(seconds(20)).await;
        assert!(readable.grant_status().revoked().is_none());
        scene.stub.lack(ReviewResource::ACCESS, false);
        sleep(seconds(100)).await;
    }
    scene.stub.lack(ReviewResource::ACCESS, true);
    let took = time_to_end(&lease(&readable)).await;
    assert!((seconds(30)..=seconds(95)).contains(&took), "{took:?}");
}

/// An authorizer that fails for one namespace does not delay the others.
#[tokio::test(start_paused = true)]
async fn namespace_with_failing_review_does_not_delay_others() {
    let scene = scene();
    let readable = scene.readable("ada", &named(1_000)).await.expect("it is let in");
    scene.stub.mute("t7");
    scene.authorizer.policy_changed(&change("ada", "t7"));
    sleep(seconds(100)).await;
    scene.stub.deny("ada", "t8");
    scene.authorizer.policy_changed(&change("ada", "t8"));
    sleep(seconds(1)).await;
    assert_eq!(readable.decision("t8"), Some(NamespaceAccess::Denied));
    scene.stub.deny("ada", "t9");
    sleep(seconds(75)).await;
    assert_eq!(readable.decision("t9"), Some(NamespaceAccess::Denied), "nor what is reviewed once a minute");
    assert_eq!(readable.decision("t7"), Some(NamespaceAccess::Allowed), "for as long as the grace");
    let took = time_to_end(&lease(&readable)).await;
    assert!(took <= seconds(200), "{took:?}");
}

/// A change between a review and its answer is not lost.
#[tokio::test(start_paused = true)]
async fn change_during_namespace_review_triggers_another_review() {
    let scene = scene();
    scene.stub.slow("ada", Duration::from_millis(500));
    let (authorizer, stub) = (scene.authorizer.clone(), scene.stub.clone());
    let namespaces = named(1);
    let finding = scene.readable("ada", &namespaces);
    let change = async {
        // The permission to the whole has been denied, and the namespace is being reviewed.
        while !places(&stub.reviews()).contains("t0") {
            sleep(Duration::from_millis(10)).await;
        }
        stub.deny("ada", "elsewhere");
        authorizer.policy_changed(&change("ada", "t0"));
    };
    let (readable, ()) = tokio::join!(finding, change);
    let readable = readable.expect("it is let in");
    assert_eq!(readable.decision("t0"), Some(NamespaceAccess::Allowed), "as it was when the review was sent");
    scene.stub.deny("ada", "t0");
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(readable.decision("t0"), Some(NamespaceAccess::Denied));
}
