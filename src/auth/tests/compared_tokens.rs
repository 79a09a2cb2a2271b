//! Tokens that were verified here and are compared with upstream's reviews (`compareOneIn`).

use tokio::time::sleep;

use super::*;
use crate::auth::token_verifier::tests::issuer::{ACCOUNT_UID, ISSUER, POD_UID};
use crate::auth::token_verifier::tests::{self as verifier, user_of};
use crate::upstream::UpstreamError;
use kubeapi::User;

/// A proxy that has verified a token and compares every one.
struct Compared {
    verifier: verifier::Scene,
    authorizer: Authorizer,
    stub: Arc<StubReviewClient>,
    token: String,
    _tasks: BackgroundTasks,
}

impl Compared {
    /// Upstream answers as it does for such a token, except that it rejects the token if `rejects`.
    fn new(rejects: bool) -> Self {
        Self::of(AuthConfig { audiences: vec![ISSUER.to_owned()], ..AuthConfig::default() }, rejects)
    }

    fn of(config: AuthConfig, rejects: bool) -> Self {
        let config = AuthConfig { compare_one_in: 1, ..config };
        let verifier = verifier::Scene::with(&config);
        let (authorizer, stub, tasks) = authorizer_with(config, Some(verifier.verifier.clone()));
        let token = verifier.pod_token();
        stub.accept(&token, user());
        stub.list(|url| Ok(Some(uid_of(url).to_owned())));
        if rejects {
            stub.take(&token);
        }
        Self { verifier, authorizer, stub, token, _tasks: tasks }
    }

    /// Sends a request. Returns whether the token is accepted.
    async fn is_accepted(&self) -> bool {
        self.authorizer.known(&self.token, [127, 0, 0, 1]).await.is_ok()
    }

    /// Whether another token, which upstream would reject, is accepted without a review.
    async fn verifies_others(&self) -> bool {
        let other = self.verifier.pod_token();
        self.stub.take(&other);
        self.authorizer.known(&other, [127, 0, 0, 1]).await.is_ok()
    }

    /// Compares the token, whose keys are read again after upstream's rejection.
    async fn compare(&self) {
        assert!(self.is_accepted().await);
        sleep(Duration::from_millis(500)).await;
        self.verifier.publish_again();
        sleep(seconds(5)).await;
    }
}

fn user() -> User {
    user_of(&[("credential-id", "JTI=4f9a"), ("pod-name", "web-0"), ("pod-uid", POD_UID)])
}

fn uid_of(url: &str) -> &'static str {
    if url.contains("/pods?") { POD_UID } else { ACCOUNT_UID }
}

#[tokio::test(start_paused = true)]
async fn sampled_tokens_are_reviewed_and_agree() {
    let compared = Compared::new(false);
    for count in 1..=20 {
        assert!(compared.is_accepted().await);
        sleep(seconds(1)).await;
        assert_eq!(compared.stub.reviews().len(), 1, "{count}");
    }
    assert!(compared.verifies_others().await);
}

/// What upstream rejects is reviewed at once. If it rejects the token by the same keys and objects, every token is.
#[tokio::test(start_paused = true)]
async fn confirmed_rejection_reviews_every_token_until_a_reload() {
    let compared = Compared::new(true);
    let (sender, urls) = std::sync::mpsc::channel();
    compared.stub.list(move |url| {
        sender.send(url.to_owned()).expect("a receiver");
        Ok(Some(uid_of(url).to_owned()))
    });
    compared.compare().await;
    assert!(!compared.is_accepted().await && !compared.verifies_others().await);
    let [pods, accounts] = [("pods", "web-0"), ("serviceaccounts", "agent")]
        .map(|(kind, name)| format!("/api/v1/namespaces/t1/{kind}?fieldSelector=metadata.name%3D{name}"));
    let mut urls: Vec<_> = urls.try_iter().collect();
    urls.sort_unstable();
    assert_eq!(urls, [pods.clone(), pods, accounts.clone(), accounts]);
    compared.authorizer.enable_local_decisions();
    assert!(compared.verifies_others().await && !compared.is_accepted().await, "the token is still reviewed");
}

/// What the token depends on may have changed, or cannot be read.
#[tokio::test(start_paused = true)]
async fn rejection_for_another_reason_is_no_disagreement() {
    type Answer = fn(&str) -> Result<Option<String>, UpstreamError>;
    let answers: [(&str, Answer); 3] = [
        ("the pod is gone", |url| Ok((!url.contains("/pods?")).then(|| ACCOUNT_UID.to_owned()))),
        ("another account has the name", |_| Ok(Some(POD_UID.to_owned()))),
        ("no answer", |_| Err(UpstreamError::Timeout(seconds(1)))),
    ];
    for (what, answer) in answers {
        let compared = Compared::new(true);
        compared.stub.list(answer);
        compared.compare().await;
        assert!(compared.verifies_others().await, "{what}");
        assert!(!compared.is_accepted().await, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_before_keys_are_read_again_is_no_disagreement() {
    let compared = Compared::new(true);
    assert!(compared.is_accepted().await);
    sleep(seconds(15)).await;
    compared.verifier.publish_again();
    sleep(seconds(5)).await;
    assert!(compared.verifies_others().await && !compared.is_accepted().await);
}

/// What a read finds that began before the rejection may be older than the rejection. Another one follows it.
#[tokio::test(start_paused = true)]
async fn keys_of_a_read_that_was_in_flight_confirm_no_rejection() {
    for is_read_again in [false, true] {
        let compared = Compared::new(true);
        compared.verifier.begin_key_read();
        assert!(compared.is_accepted().await);
        sleep(Duration::from_millis(500)).await;
        let reads = compared.verifier.end_key_read();
        sleep(Duration::from_millis(500)).await;
        assert!(reads() > 0, "another read begins");
        if is_read_again {
            compared.verifier.publish_again();
        }
        sleep(seconds(15)).await;
        assert_eq!(compared.verifies_others().await, !is_read_again);
    }
}

/// The keys come from an apiserver that is slow.
#[tokio::test(start_paused = true)]
async fn rejection_is_confirmed_by_keys_that_are_read_late() {
    let compared = Compared::new(true);
    assert!(compared.is_accepted().await);
    sleep(seconds(8)).await;
    compared.verifier.publish_again();
    sleep(seconds(5)).await;
    assert!(!compared.verifies_others().await);
}

#[tokio::test(start_paused = true)]
async fn token_that_changed_during_the_comparison_is_no_disagreement() {
    for change in ["deleted", "expired", "accepted", "withdrawn"] {
        let compared = Compared::new(true);
        assert!(compared.is_accepted().await, "{change}");
        sleep(Duration::from_millis(500)).await;
        compared.verifier.publish_again();
        match change {
            "deleted" => compared.verifier.delete_pod(),
            "expired" => compared.verifier.step_clock(3_600),
            "accepted" => compared.stub.restore(&compared.token),
            "withdrawn" => compared.verifier.publish_other_keys(),
            _ => {}
        }
        sleep(seconds(5)).await;
        if change == "deleted" {
            compared.verifier.create_pod();
        }
        compared.verifier.publish_again();
        assert!(compared.verifies_others().await, "{change}");
        assert_eq!(compared.is_accepted().await, change == "accepted", "{change}");
    }
}

/// Without configured audiences, upstream may not accept the token's audience any more. Another token must prove that it
/// does.
#[tokio::test(start_paused = true)]
async fn rejection_of_a_learned_audience_is_no_disagreement_until_it_is_learned_again() {
    for is_learned_again in [false, true] {
        let compared = Compared::of(AuthConfig::default(), true);
        let other = compared.verifier.account_token();
        compared.verifier.learn(&other);
        assert!(compared.is_accepted().await);
        sleep(Duration::from_millis(500)).await;
        compared.verifier.publish_again();
        if is_learned_again {
            compared.verifier.learn(&other);
        }
        sleep(seconds(5)).await;
        compared.verifier.learn(&other);
        assert_eq!(compared.verifies_others().await, !is_learned_again);
    }
}
