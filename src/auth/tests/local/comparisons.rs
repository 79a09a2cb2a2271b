//! Tests of the comparison of decisions with upstream's (`compareOneIn`).

use super::*;
use crate::upstream::UpstreamError;

type ListAnswer = fn(&str) -> Result<Option<String>, UpstreamError>;

fn unanswered() -> UpstreamError {
    UpstreamError::Timeout(seconds(1))
}

#[tokio::test(start_paused = true)]
async fn sampled_decisions_are_compared_with_upstream() {
    let scene = local_scene_with(AuthConfig { compare_one_in: 10, ..config() }).await;
    for _ in 0..1_000 {
        scene.watch("ada", PODS).await;
        sleep(seconds(1)).await;
    }
    let compared = scene.counted().0;
    assert!((50..=200).contains(&compared), "{compared}");
    assert!(scene.decides_here().await, "upstream agrees");
}

/// Everything is compared, and upstream denies what the rules allow.
async fn disagreeing_scene() -> Scene {
    let scene = local_scene_with(AuthConfig { compare_one_in: 1, ..config() }).await;
    scene.stub.deny("ada", "t1");
    scene
}

#[tokio::test(start_paused = true)]
async fn confirmed_disagreement_returns_to_ask() {
    let scene = disagreeing_scene().await;
    let watch = scene.watch("ada", PODS).await;
    let took = end_of(&watch).await;
    assert!(took <= seconds(5), "{took:?}");
    assert_eq!(watch.end_reason(), Some("denied"));
    let caller = scene.authorizer.known("ada", [127, 0, 0, 1]).await.expect("authenticated");
    assert!(scene.authorizer.grant(&caller, &info(PODS)).await.is_err(), "upstream decides");
    scene.stub.allow("ada", "t1");
    scene.authorizer.policy_changed(&change("ada", "t1"));
    sleep(seconds(10)).await;
    assert!(!scene.decides_here().await, "until a reload");
    scene.authorizer.enable_local_decisions();
    assert!(scene.decides_here().await);
}

/// Until upstream lists the objects of the decision at their versions, it may not have seen them.
#[tokio::test(start_paused = true)]
async fn denial_by_other_versions_is_no_disagreement() {
    let answers: [(&str, ListAnswer); 4] = [
        ("a newer binding", |url| Ok(Some(if url.contains("/rolebindings?") { "3" } else { "1" }.to_owned()))),
        ("a newer role", |url| Ok(Some(if url.contains("/roles?") { "3" } else { "2" }.to_owned()))),
        ("no object", |_| Ok(None)),
        ("no answer", |_| Err(unanswered())),
    ];
    for (what, answer) in answers {
        let scene = disagreeing_scene().await;
        scene.stub.list(answer);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(60)).await;
        assert_eq!(watch.end_reason(), None, "{what}");
        assert!(scene.decides_here().await, "{what}");
    }
}

/// The lists name the objects and ask for nothing older.
#[tokio::test(start_paused = true)]
async fn confirmation_lists_binding_and_role_not_older_than_the_decision() {
    let scene = disagreeing_scene().await;
    let (sender, urls) = std::sync::mpsc::channel();
    scene.stub.list(move |url| {
        sender.send(url.to_owned()).expect("a receiver");
        Err(unanswered())
    });
    scene.watch("ada", PODS).await;
    sleep(seconds(5)).await;
    let base = "/apis/rbac.authorization.k8s.io/v1/namespaces/t1";
    assert_eq!(
        urls.try_iter().collect::<Vec<_>>(),
        [format!(
            "{base}/rolebindings?fieldSelector=metadata.name%3Db&resourceVersion=2&resourceVersionMatch=NotOlderThan"
        )]
    );
}

/// Here, too, the rules must still be the same after the second answer.
#[tokio::test(start_paused = true)]
async fn rules_that_changed_meanwhile_are_no_disagreement() {
    for with_upstream in [false, true] {
        let scene = disagreeing_scene().await;
        scene.watch("ada", PODS).await;
        sleep(Duration::from_millis(1_500)).await;
        if with_upstream {
            scene.stub.allow("ada", "t1");
        } else {
            scene.bind("7", &subjects());
        }
        sleep(seconds(10)).await;
        assert!(scene.decides_here().await, "{with_upstream}");
    }
}
