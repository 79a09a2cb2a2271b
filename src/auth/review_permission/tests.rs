use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::auth::AuthConfig;
use crate::auth::tests::{StubReviewClient, authorizer};
use base::{BackgroundTasks, UnreadyComponent};
use kubeapi::Status;

/// Longer than any pause between two checks of a permission.
const RECHECKED: Duration = Duration::from_secs(31);

/// A process whose readiness depends on the answers of the stub.
fn process() -> (ReadinessTracker, Arc<StubReviewClient>, crate::auth::Authorizer, BackgroundTasks) {
    let (authorizer, stub, tasks) = authorizer(AuthConfig::default());
    let ready = ReadinessTracker::new();
    tasks.spawn("review permissions", authorizer.track_readiness(&ready).expect("it delegates"));
    (ready, stub, authorizer, tasks)
}

fn refusal(code: i32) -> UpstreamError {
    UpstreamError::Refused(Box::new(Status { code, ..Status::default() }))
}

fn names(ready: &ReadinessTracker) -> Vec<String> {
    ready.pending().into_iter().map(|UnreadyComponent { name, .. }| name).collect()
}

#[tokio::test(start_paused = true)]
async fn process_is_ready_after_both_rights_pass_and_rechecks_nothing() {
    let (ready, stub, _authorizer, _tasks) = process();
    assert_eq!(names(&ready), ["subjectaccessreviews", "tokenreviews"], "before anything is answered");
    sleep(Duration::from_millis(1)).await;
    assert!(ready.is_ready());
    assert_eq!(stub.own_reviews(), 2);
    sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(stub.own_reviews(), 2, "no bytes at rest");
}

#[tokio::test(start_paused = true)]
async fn missing_right_keeps_process_unready_and_is_named() {
    for resource in [ReviewResource::TOKEN, ReviewResource::ACCESS] {
        let (authorizer, stub, tasks) = authorizer(AuthConfig::default());
        stub.lack(resource, true);
        let ready = ReadinessTracker::new();
        tasks.spawn("review permissions", authorizer.track_readiness(&ready).expect("it delegates"));
        sleep(RECHECKED * 10).await;
        let pending = ready.pending();
        let [only] = pending.as_slice() else { panic!("{pending:?}") };
        let remedy = format!("grant the proxy's account create on {}.{}", resource.resource, resource.group);
        assert!(only.name == resource.resource && only.to_string().contains(&remedy), "{only}");
        assert!(stub.own_reviews() < 30, "{} reviews in five minutes", stub.own_reviews());
        stub.lack(resource, false);
        sleep(RECHECKED).await;
        assert!(ready.is_ready(), "{:?}", ready.pending());
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_review_makes_process_unready_until_one_succeeds() {
    let (ready, stub, _authorizer, _tasks) = process();
    sleep(Duration::from_millis(1)).await;
    let permission = ReviewCreationPermission::new(ReviewResource::ACCESS);
    let refused = |code| Err::<(), _>(refusal(code));
    for (code, is_about_permission) in [(500, false), (429, false), (401, true), (403, true)] {
        permission.set(ReviewCreationState::Granted);
        permission.record(&refused(code));
        assert_eq!(*permission.state.borrow() != ReviewCreationState::Granted, is_about_permission, "{code}");
    }
    permission.record(&Ok(()));
    assert_eq!(*permission.state.borrow(), ReviewCreationState::Granted);
    // The same with the task that follows it.
    let permission = Arc::new(permission);
    tokio::spawn(permission.clone().track_readiness(stub.clone(), ready.clone()));
    sleep(Duration::from_millis(1)).await;
    assert!(ready.is_ready());
    stub.lack(ReviewResource::ACCESS, true);
    let checks = stub.own_reviews();
    permission.record(&refused(403));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(names(&ready), ["subjectaccessreviews"]);
    permission.record(&Ok(()));
    sleep(Duration::from_millis(1)).await;
    assert!(ready.is_ready());
    assert_eq!(stub.own_reviews(), checks, "a review that succeeds is proof enough");
    permission.record(&refused(403));
    sleep(RECHECKED * 2).await;
    assert!(!ready.is_ready());
    stub.lack(ReviewResource::ACCESS, false);
    sleep(RECHECKED).await;
    assert!(ready.is_ready(), "no request comes to a process that is not ready, so it checks itself");
}

#[tokio::test(start_paused = true)]
async fn unready_while_upstream_fails_ready_if_self_review_is_forbidden() {
    let (authorizer, stub, tasks) = authorizer(AuthConfig::default());
    stub.refuse_own_rights(Some(Box::new(|| refusal(503))));
    let ready = ReadinessTracker::new();
    tasks.spawn("review permissions", authorizer.track_readiness(&ready).expect("it delegates"));
    let began = Instant::now();
    sleep(RECHECKED).await;
    assert_eq!(names(&ready).len(), 2, "{:?}", began.elapsed());
    stub.refuse_own_rights(Some(Box::new(|| refusal(401))));
    sleep(RECHECKED).await;
    assert!(ready.pending()[0].to_string().contains("credentials (401)"), "{:?}", ready.pending());
    stub.refuse_own_rights(None);
    sleep(RECHECKED).await;
    assert!(ready.is_ready());
    // A cluster that forbids every account to check its own permissions: reviews prove the permission.
    let (other, stub, _tasks) = super::super::tests::authorizer(AuthConfig::default());
    stub.refuse_own_rights(Some(Box::new(|| refusal(403))));
    let ready = ReadinessTracker::new();
    tasks.spawn("review permissions", other.track_readiness(&ready).expect("it delegates"));
    advance(Duration::from_millis(1)).await;
    sleep(Duration::from_millis(1)).await;
    assert!(ready.is_ready());
}
