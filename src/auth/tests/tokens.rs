//! Tests of token reviews, which may be less frequent than those of the bearer's permissions.

use parking_lot::Mutex;
use tokio::time::sleep;

use super::*;
use crate::auth::authenticator::AuthenticatedCaller;
use crate::auth::credential::Credential;
use crate::auth::{Caller, PeerCertChain, ReviewRateLimitKey};
use kubeapi::{FlowDistinguisher, User};

const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";

fn scene_of(recheck_tokens: u64) -> Scene {
    scene_with(AuthConfig { recheck_tokens: seconds(recheck_tokens), ..AuthConfig::remembering_for_a_day() })
}

/// The proxy's own user may have such a certificate. Impersonation would then be refused for good.
#[tokio::test]
async fn certificate_has_no_upstream_identity_while_proxys_own_user_is_unknown() {
    let scene = scene_of(600);
    let Ok(Caller::Known(known)) = scene.authorizer.known("ada", [127, 0, 0, 1]).await else { panic!("a caller") };
    let credential = Credential::Certificate(Arc::new(PeerCertChain::new(Arc::from([]))));
    let holder = AuthenticatedCaller::new(known.id, credential, known.user.clone(), None);
    // The upstream of the test accepts no connection.
    let refused = scene.authorizer.upstream_identity(&Caller::Known(Arc::new(holder))).await.expect_err("unknown");
    assert_eq!(refused.as_str(), "unavailable", "{refused}");
}

#[tokio::test(start_paused = true)]
async fn token_reviews_follow_recheck_period_and_access_each_minute() {
    // If the period is shorter than that of permissions, the latter applies.
    for (recheck, least, most) in [(1, 30, 40), (60, 30, 40), (600, 3, 5)] {
        let scene = scene_of(recheck);
        let watches = [scene.watch("ada", PODS).await, scene.watch("ada", "/api/v1/namespaces/t2/pods?watch=1").await];
        sleep(seconds(30 * 60)).await;
        let (accesses, tokens) = scene.counted();
        assert!((least..=most).contains(&tokens), "{recheck} s: {tokens} in half an hour, for both");
        assert!((60..=80).contains(&accesses), "{recheck} s: {accesses}");
        assert!(watches.iter().all(|watch| watch.end_reason().is_none()), "{recheck} s");
    }
}

#[tokio::test(start_paused = true)]
async fn token_recheck_period_bounds_token_but_not_access_revocation() {
    for after in [1, 100, 550, 1_300] {
        let scene = scene_of(600);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.take("ada");
        let took = time_to_end(&watch.end_token()).await;
        assert!(took <= seconds(660), "{after} s: {took:?}");
        assert_eq!(watch.end_reason(), Some("unauthenticated"), "{after} s");

        let scene = scene_of(600);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.deny("ada", "t1");
        let took = time_to_end(&watch.end_token()).await;
        assert!(took <= seconds(75), "{after} s: {took:?}");
        assert_eq!(watch.end_reason(), Some("denied"), "{after} s");
    }
}

/// The grace of an outage counts from the last known identity, and not from the failed review.
#[tokio::test(start_paused = true)]
async fn long_token_recheck_does_not_extend_outage_grace() {
    for after in [100, 550, 900] {
        let scene = scene_of(600);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.silent(true);
        let took = time_to_end(&watch.end_token()).await;
        assert!(took >= seconds(235) && took <= seconds(365), "{after} s: {took:?}");
        assert_eq!(watch.end_reason(), Some("unavailable"), "{after} s");
    }
}

/// A refused request starts no review, and an identity that is cached needs no permit.
#[tokio::test(start_paused = true)]
async fn permit_to_wait_for_token_review_is_taken_before_it_starts() {
    const FROM: [u8; 4] = [10, 0, 0, 1];
    for (token_ttl, parties) in [(seconds(86_400), 1), (Duration::ZERO, 2)] {
        let scene = scene_with(AuthConfig { token_ttl, ..AuthConfig::default() });
        let charged = Mutex::new(Vec::new());
        let refuse = |party: &ReviewRateLimitKey| -> Result<Box<dyn Send>, GrantError> {
            charged.lock().push(party.clone());
            Err(GrantError::TooMany { retry_after_seconds: 1 })
        };
        let refused = scene.authorizer.known_within("ada", FROM, &refuse).await;
        assert!(matches!(refused, Err(GrantError::TooMany { .. })) && scene.counted() == (0, 0));
        scene.authorizer.known("ada", FROM).await.expect("authenticated");
        let again = scene.authorizer.known_within("ada", FROM, &refuse).await;
        assert_eq!((again.is_ok(), scene.counted()), (parties == 1, (0, 1)), "{token_ttl:?}");
        let ada = FlowDistinguisher::from_user(&User { name: "ada".to_owned(), ..User::default() });
        let expected = [ReviewRateLimitKey::Address(FROM.into()), ReviewRateLimitKey::User(ada)];
        assert_eq!(*charged.lock(), expected[..parties], "{token_ttl:?}");
    }
}
