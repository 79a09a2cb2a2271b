//! Leases of tokens that the proxy verifies itself.

use tokio::time::sleep;

use super::*;
use crate::auth::token_verifier::tests::issuer::{ISSUER, POD_UID};
use crate::auth::token_verifier::tests::{self as verifier, user_of};
use kubeapi::User;

/// A watch of a caller with a token that is bound to a pod.
struct Verified {
    verifier: verifier::Scene,
    scene: Scene,
    token: String,
    grant: ReadPermission,
}

impl Verified {
    async fn new() -> Self {
        let audiences = vec![ISSUER.to_owned()];
        let config = AuthConfig { audiences, compare_one_in: 0, ..AuthConfig::remembering_for_a_day() };
        let verifier = verifier::Scene::with(&config);
        let (authorizer, stub, tasks) = authorizer_with(config, Some(verifier.verifier.clone()));
        let scene = Scene { authorizer, stub, _tasks: tasks };
        let token = verifier.pod_token();
        let grant = scene.watch(&token, "/api/v1/namespaces/t1/pods?watch=1").await;
        assert_eq!(scene.counted(), (1, 0), "one access review");
        Self { verifier, scene, token, grant }
    }

    fn user() -> User {
        user_of(&[("credential-id", "JTI=4f9a"), ("pod-name", "web-0"), ("pod-uid", POD_UID)])
    }

    /// The number of token reviews since the last call.
    fn token_reviews(&self) -> usize {
        self.scene.counted().1
    }
}

#[tokio::test(start_paused = true)]
async fn watch_with_a_verified_token_needs_no_token_review() {
    let verified = Verified::new().await;
    sleep(seconds(500)).await;
    assert_eq!((verified.token_reviews(), verified.grant.end_reason()), (0, None));
    // Upstream decides again as soon as the proxy cannot.
    verified.scene.stub.accept(&verified.token, Verified::user());
    verified.verifier.set_pods_live(false);
    sleep(seconds(70)).await;
    assert!((1..=2).contains(&verified.token_reviews()) && verified.grant.end_reason().is_none());
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_ends_the_watches_of_its_token_at_once() {
    let verified = Verified::new().await;
    // The apiserver caches its decision for seconds, and accepts the token until then.
    verified.scene.stub.accept(&verified.token, Verified::user());
    sleep(seconds(5)).await;
    assert_eq!(verified.grant.end_reason(), None);
    verified.verifier.delete_pod();
    let ended = time_to_end(&verified.grant.end_token()).await;
    assert!(ended < Duration::from_millis(100), "{ended:?}");
    assert_eq!((verified.token_reviews(), verified.grant.end_reason()), (0, Some("unauthenticated")));
    let again = verified.scene.authorizer.known(&verified.token, [127, 0, 0, 1]).await;
    assert!(again.is_err(), "{again:?}");
}

/// What a list after an outage lacks is not certain until changes are received again.
#[tokio::test(start_paused = true)]
async fn token_of_a_pod_lost_in_an_outage_is_reviewed_until_upstream_rejects_it() {
    let verified = Verified::new().await;
    verified.scene.stub.accept(&verified.token, Verified::user());
    verified.verifier.set_pods_live(false);
    verified.verifier.delete_pod();
    sleep(seconds(12)).await;
    assert_eq!((verified.token_reviews(), verified.grant.end_reason()), (3, None));
    verified.scene.stub.take(&verified.token);
    let ended = time_to_end(&verified.grant.end_token()).await;
    assert!(ended <= seconds(5), "{ended:?}");
}
