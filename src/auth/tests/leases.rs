//! Tests of how long a lease lasts, and what it costs.

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::*;
use crate::auth::RbacKind;
use crate::auth::review_permission::ReviewResource;
use kubeapi::AccessAttributes;

fn pods(namespace: usize) -> String {
    format!("/api/v1/namespaces/t{namespace}/pods?watch=1")
}

#[tokio::test(start_paused = true)]
async fn unreported_revocation_ends_lease_within_the_bound() {
    let node = "system:node:n1";
    for (name, loss, reason) in [
        ("ada", "permission", "denied"),
        ("ada", "token", "unauthenticated"),
        // A node's permissions are checked every ten minutes, but not its token.
        (node, "token", "unauthenticated"),
    ] {
        let scene = scene();
        let watch = scene.watch(name, &pods(1)).await;
        sleep(seconds(100)).await;
        match loss {
            "permission" => scene.stub.deny(name, "t1"),
            _ => scene.stub.take(name),
        }
        let took = time_to_end(&watch.end_token()).await;
        assert!(took <= seconds(75), "{name}, {loss}: {took:?}");
        let revoked = watch.revoked().expect("it is over");
        assert_eq!((revoked.user.name.as_str(), revoked.reason.as_str()), (name, reason), "{loss}");
        assert_eq!(*revoked.access, AccessAttributes::from_request(&info(&pods(1))), "{loss}");
    }
}

#[tokio::test(start_paused = true)]
async fn review_repeats_when_authorizer_lags_after_policy_change() {
    for late in [500, 1_900] {
        let scene = scene();
        let watch = scene.watch("ada", &pods(1)).await;
        scene.authorizer.policy_changed(&change("ada", "t1"));
        sleep(Duration::from_millis(late)).await;
        scene.stub.deny("ada", "t1");
        let took = time_to_end(&watch.end_token()).await + Duration::from_millis(late);
        assert!(took < seconds(5), "{late} ms late: {took:?}");
    }
}

/// A lease exists before its permission is reviewed (R-THREAT-7). Otherwise, a change between the two would not find
/// it.
#[tokio::test(start_paused = true)]
async fn revocation_during_watch_authorization_ends_the_watch() {
    let scene = scene();
    scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
    scene.stub.decides_first();
    scene.stub.slow("ada", seconds(8));
    let change = async {
        sleep(seconds(1)).await;
        scene.stub.deny("ada", "t1");
        scene.authorizer.policy_changed(&change("ada", "t1"));
        Instant::now()
    };
    let uri = pods(1);
    let (watch, changed) = tokio::join!(scene.watch("ada", &uri), change);
    assert_eq!(watch.end_reason(), None, "the answer is from before the change");
    time_to_end(&watch.end_token()).await;
    assert!(changed.elapsed() <= seconds(10), "{:?}", changed.elapsed());
    assert_eq!(watch.end_reason(), Some("denied"));
}

#[tokio::test(start_paused = true)]
async fn unrelated_policy_change_sends_no_reviews() {
    let scene = scene();
    let _watch = scene.watch("ada", &pods(1)).await;
    let _everything = scene.watch("ada", "/api/v1/pods?watch=1").await;
    scene.stub.reviews();
    for affected in [change("bob", ""), change("ada", "t10"), change("ada", "t")] {
        scene.authorizer.policy_changed(&affected);
    }
    sleep(seconds(5)).await;
    assert_eq!(scene.stub.reviews(), []);
    scene.authorizer.policy_changed(&change("ada", "t1"));
    sleep(seconds(5)).await;
    let reviews = scene.stub.reviews();
    assert_eq!(reviews.len(), 3, "once a round: {reviews:?}");
    assert!(reviews.iter().all(|review| review.namespace.as_deref() == Some("t1")), "policy says nothing of tokens");
}

/// An administrator of one namespace writes a role with more users than are tracked, and a binding without changing it.
#[tokio::test(start_paused = true)]
async fn rbac_writes_review_only_leases_that_they_may_affect() {
    let scene = scene();
    RbacKind::ALL.into_iter().for_each(|kind| scene.authorizer.load_policy(kind, []));
    sleep(seconds(10)).await;
    let _watch = scene.watch("ada", &pods(2)).await;
    let apply = |kind, event: &str, object: &Value| {
        let change = serde_json::from_value(json!({"type": event, "object": object})).expect("an event");
        scene.authorizer.apply_policy_change(kind, Some(change));
    };
    let reviews = async || {
        sleep(seconds(5)).await;
        scene.counted().0
    };
    let users = |count: usize| (0..count).map(|number| json!({"kind": "User", "name": format!("u{number}")}));
    let role = |verb: &str| {
        let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
        json!({"metadata": {"name": "r", "namespace": "t1"}, "rules": [rule]})
    };
    let role_ref = json!({"kind": "Role", "name": "r"});
    let large = json!({"metadata": {"name": "b", "namespace": "t1"}, "roleRef": role_ref,
        "subjects": users(5_000).collect::<Vec<_>>()});
    reviews().await;
    apply(RbacKind::Role, "ADDED", &role("get"));
    apply(RbacKind::RoleBinding, "ADDED", &large);
    assert_eq!(reviews().await, 0, "a binding of 5,000 users in another namespace");
    apply(RbacKind::Role, "MODIFIED", &role("list"));
    assert_eq!(reviews().await, 0, "the role that it binds");

    let binding = |note: &str, user: &str| {
        json!({"metadata": {"name": "b", "namespace": "t2", "annotations": {"note": note}}, "roleRef": role_ref,
            "subjects": [{"kind": "User", "name": user}]})
    };
    apply(RbacKind::RoleBinding, "ADDED", &binding("1", "ada"));
    assert_eq!(reviews().await, 3, "a binding of the lease's user: once a round");
    apply(RbacKind::RoleBinding, "MODIFIED", &binding("2", "ada"));
    assert_eq!(reviews().await, 0, "its annotation");
    apply(RbacKind::RoleBinding, "MODIFIED", &binding("2", "bob"));
    assert_eq!(reviews().await, 3, "its subject");
}

/// The counterpart of `changes::thousand_changes_are_coalesced_into_few_review_rounds`: the reviews that upstream
/// receives.
#[tokio::test(start_paused = true)]
async fn thousand_binding_changes_cost_few_reviews_per_lease() {
    let scene = scene();
    let mut watches = Vec::new();
    for namespace in 0..100 {
        watches.push(scene.watch("ada", &pods(namespace)).await);
    }
    scene.stub.reviews();
    for number in 0..1_000 {
        scene.authorizer.policy_changed(&change("ada", &format!("t{}", number % 100)));
        sleep(Duration::from_millis(1)).await;
    }
    sleep(seconds(5)).await;
    let reviews = scene.stub.reviews().len();
    assert!((300..=700).contains(&reviews), "{reviews} reviews");
}

/// If a change affects very many leases, the rate of reviews stays within its limit.
#[tokio::test(start_paused = true)]
async fn lease_reviews_stay_within_the_configured_rate() {
    let scene = scene_with(AuthConfig {
        lease_reviews: 100,
        accesses_burst_per_user: 10_000,
        ..AuthConfig::remembering_for_a_day()
    });
    let mut watches = Vec::new();
    for number in 0..1_000 {
        watches.push(scene.watch(&format!("u-{}", number % 50), &pods(number)).await);
    }
    scene.stub.reviews();
    scene.authorizer.policy_changed(&AffectedUsers::Everyone);
    sleep(seconds(30)).await;
    let reviews = scene.stub.reviews();
    let accesses: Vec<_> = reviews.iter().filter(|review| review.namespace.is_some()).map(|review| review.at).collect();
    for window in accesses.windows(126 + 2) {
        assert!(window[127] - window[0] > Duration::from_millis(990), "more than 125 in a second");
    }
    let places: std::collections::HashSet<_> = reviews.iter().filter_map(|review| review.namespace.clone()).collect();
    assert_eq!(places.len(), 1_000, "and every permission is reviewed");
}

#[tokio::test(start_paused = true)]
async fn leases_of_one_token_share_its_token_review() {
    let scene = scene();
    let mut watches = Vec::new();
    for namespace in 0..200 {
        watches.push(scene.watch("ada", &pods(namespace)).await);
    }
    scene.stub.reviews();
    sleep(seconds(600)).await;
    let reviews = scene.stub.reviews();
    let tokens = reviews.iter().filter(|review| review.namespace.is_none()).count();
    assert!((10..=17).contains(&tokens), "{tokens} questions about one token in ten minutes");
    assert!(
        (2_000..=2_700).contains(&(reviews.len() - tokens)),
        "each permission about once a minute: {}",
        reviews.len()
    );
}

fn scene_of_many_tokens() -> Scene {
    let (reviews, reviews_per_source, reviews_burst_per_source) = (10_000, 10_000, 10_000);
    scene_with(AuthConfig {
        reviews,
        reviews_per_source,
        reviews_burst_per_source,
        ..AuthConfig::remembering_for_a_day()
    })
}

/// The token reviews and access reviews in ten minutes for a thousand leases of one caller.
async fn asked_for_a_thousand(token: impl Fn(usize) -> String, uri: impl Fn(usize) -> String) -> [usize; 2] {
    let scene = scene_of_many_tokens();
    let mut watches = Vec::new();
    for number in 0..1_000 {
        watches.push(scene.watch(&token(number), &uri(number)).await);
    }
    scene.stub.reviews();
    sleep(seconds(600)).await;
    let reviews = scene.stub.reviews();
    let accesses = reviews.iter().filter(|review| review.namespace.is_some()).count();
    [reviews.len() - accesses, accesses]
}

/// A shared part is reviewed once per period, and a separate part once for each lease.
#[tokio::test(start_paused = true)]
async fn leases_of_one_caller_share_reviews() {
    let ada = |_| "ada".to_owned();
    let [tokens, accesses] = asked_for_a_thousand(ada, |_| pods(1)).await;
    assert!((10..=17).contains(&tokens) && (10..=17).contains(&accesses), "alike: {tokens} and {accesses}");
    let [tokens, accesses] = asked_for_a_thousand(ada, pods).await;
    assert!((10..=17).contains(&tokens), "of one token: {tokens}");
    assert!((10_000..=13_500).contains(&accesses), "in a namespace each: {accesses}");
    let [tokens, accesses] = asked_for_a_thousand(|number| format!("ada~{number}"), |_| pods(1)).await;
    assert!((10_000..=13_500).contains(&tokens), "a token each: {tokens}");
    assert!((10..=17).contains(&accesses), "for the same: {accesses}");
}

#[tokio::test(start_paused = true)]
async fn policy_change_sends_one_shared_review_per_round() {
    let scene = scene_of_many_tokens();
    let mut watches = Vec::new();
    for number in 0..1_000 {
        watches.push(scene.watch(&format!("ada~{number}"), &pods(1)).await);
    }
    scene.stub.reviews();
    scene.authorizer.policy_changed(&change("ada", "t1"));
    sleep(seconds(5)).await;
    let reviews = scene.stub.reviews();
    assert_eq!(reviews.len(), 3, "one in each of three rounds: {reviews:?}");
}

/// If a thousand proxies start together, the leases of each begin together.
#[tokio::test(start_paused = true)]
async fn reviews_of_simultaneous_leases_are_spread_over_time() {
    let scene = scene();
    let mut watches = Vec::new();
    for number in 0..1_000 {
        watches.push(scene.watch("ada", &pods(number)).await);
    }
    scene.stub.reviews();
    let began = Instant::now();
    sleep(seconds(180)).await;
    let mut per_second = [0; 181];
    for review in scene.stub.reviews() {
        per_second[usize::try_from((review.at - began).as_secs()).expect("soon")] += 1;
    }
    let busiest = per_second.iter().max();
    assert!(busiest <= Some(&60), "{per_second:?}");
}

/// A failed review is retried, however recent the decision from before the change is.
#[tokio::test(start_paused = true)]
async fn failed_review_after_policy_change_is_retried() {
    let scene = scene();
    let watch = scene.watch("ada", &pods(1)).await;
    scene.stub.silent(true);
    scene.authorizer.policy_changed(&change("ada", "t1"));
    sleep(seconds(5)).await;
    scene.stub.silent(false);
    scene.stub.deny("ada", "t1");
    let took = time_to_end(&watch.end_token()).await;
    assert!(took <= seconds(16), "{took:?}");
}

/// An apiserver that starts may decide before it has its rules.
#[tokio::test(start_paused = true)]
async fn first_denial_after_an_outage_needs_confirmation() {
    let scene = scene();
    let watches = [scene.watch("ada", &pods(1)).await, scene.watch("ada", &pods(2)).await];
    scene.stub.silent(true);
    sleep(seconds(100)).await;
    (1..=2).for_each(|namespace| scene.stub.deny("ada", &format!("t{namespace}")));
    scene.stub.silent(false);
    scene.stub.reviews();
    while !scene.stub.reviews().iter().any(|review| review.namespace.as_deref() == Some("t1")) {
        sleep(Duration::from_millis(10)).await;
    }
    sleep(seconds(1)).await;
    scene.stub.allow("ada", "t1");
    let took = time_to_end(&watches[1].end_token()).await;
    assert!(took <= seconds(16), "{took:?}");
    sleep(seconds(300)).await;
    assert_eq!(watches[0].end_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn upstream_outage_ends_lease_after_the_grace_period() {
    let scene = scene();
    let watch = scene.watch("ada", &pods(1)).await;
    scene.stub.silent(true);
    let took = time_to_end(&watch.end_token()).await;
    assert!(took >= seconds(295) && took <= seconds(365), "{took:?}");
    assert_eq!(watch.end_reason(), Some("unavailable"));

    let scene = self::scene();
    let watch = scene.watch("ada", &pods(1)).await;
    scene.stub.silent(true);
    sleep(seconds(200)).await;
    scene.stub.silent(false);
    sleep(seconds(1_000)).await;
    assert_eq!(watch.end_reason(), None, "it is over in time");
}

/// An apiserver that starts after an outage rejects all reviews for some seconds.
#[tokio::test(start_paused = true)]
async fn rejected_reviews_after_an_outage_have_their_own_grace_period() {
    for resource in [ReviewResource::TOKEN, ReviewResource::ACCESS] {
        let scene = scene();
        let watch = scene.watch("ada", &pods(1)).await;
        for _ in 0..2 {
            scene.stub.silent(true);
            sleep(seconds(150)).await;
            scene.stub.lack(resource, true);
            scene.stub.silent(false);
            sleep(seconds(20)).await;
            assert_eq!(watch.end_reason(), None, "{resource:?}");
            scene.stub.lack(resource, false);
            sleep(seconds(100)).await;
        }
        scene.stub.lack(resource, true);
        let took = time_to_end(&watch.end_token()).await;
        assert!((seconds(30)..=seconds(95)).contains(&took), "{resource:?}: {took:?}");
        assert_eq!(watch.end_reason(), Some("reviews_forbidden"), "{resource:?}");
    }
}

#[test]
fn lease_gauge_counts_open_leases() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = || {
        let text = recorder.handle().render();
        let line = text.lines().find(|line| line.starts_with("kube_fanout_auth_leases "));
        line.and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    let scenario = async {
        let scene = scene();
        let watches = [scene.watch("ada", &pods(1)).await, scene.watch("ada", &pods(1)).await];
        let other = scene.watch("ada", &pods(2)).await;
        assert_eq!(counted().as_deref(), Some("2"), "two watches have one");
        scene.stub.deny("ada", "t1");
        time_to_end(&watches[0].end_token()).await;
        drop((watches, other));
        sleep(seconds(1)).await;
        assert_eq!(counted().as_deref(), Some("0"));
    };
    metrics::with_local_recorder(&recorder, || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(scenario);
    });
}
