use super::*;

/// A token bound to the account and these objects.
fn token(scene: &Scene, kinds: &[&str]) -> String {
    scene.issuer.token(&claims(scene.now(), &bound_to(kinds)))
}

#[tokio::test(start_paused = true)]
async fn token_is_valid_while_its_objects_exist() {
    let scene = Scene::new();
    let bound = [(BoundKind::Pod, "pod"), (BoundKind::Node, "node"), (BoundKind::Secret, "secret")];
    for (kind, name) in [(BoundKind::Account, "")].into_iter().chain(bound) {
        let (_, key, uid) = OBJECTS[kind as usize];
        let (token, other) = (token(&scene, &[name]), token(&scene, &[]));
        let put = |uid: &str, is_deleting| scene.objects().put(kind, key.into(), parse_uid(uid), is_deleting);
        let is_valid = || scene.user(&token).is_some();
        assert!(is_valid(), "{kind:?}");
        put(uid, true);
        assert!(!is_valid(), "{kind:?} is being deleted");
        put(uid, false);
        assert!(is_valid());
        let lost = scene.verifier.lost(&bearer(&token).0).expect("a verified token");
        assert!(!lost.is_cancelled());
        scene.objects().remove(kind, key);
        assert!(!is_valid() && lost.is_cancelled(), "{kind:?} is deleted");
        put("0a1b2c3d-0000-4000-8000-00000000000f", false);
        assert!(!is_valid(), "{kind:?} was created again");
        put("pod-1", false);
        assert!(!is_valid(), "its UID is no UUID");
        put(uid, false);
        assert!(is_valid() && scene.user(&other).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn pod_bound_token_does_not_depend_on_its_node() {
    let scene = Scene::new();
    let token = token(&scene, &["pod", "node"]);
    assert!(scene.user(&token).is_some());
    scene.objects().remove(BoundKind::Node, "/n1");
    assert!(scene.user(&token).is_some() && !scene.verifier.lost(&bearer(&token).0).expect("verified").is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn replaced_and_unlisted_objects_are_lost() {
    let scene = Scene::new();
    let (pod, account) = (token(&scene, &["pod"]), token(&scene, &[]));
    assert!(scene.user(&pod).is_some() && scene.user(&account).is_some());
    let lost = |token: &str| scene.verifier.lost(&bearer(token).0).expect("verified").is_cancelled();
    scene.objects().put(BoundKind::Pod, "t1/web-0".into(), parse_uid(NODE_UID), false);
    assert!(lost(&pod) && !lost(&account));
    scene.objects().begin_list(BoundKind::Account);
    scene.objects().put(BoundKind::Account, "t1/other".into(), parse_uid(NODE_UID), false);
    assert!(!lost(&account) && scene.user(&account).is_some(), "the list is not complete");
    assert_eq!(scene.objects().end_list(BoundKind::Account), 1);
    assert!(lost(&account));
    assert_eq!(scene.user(&account), None);
}

/// A server that lags may not have an object yet.
#[tokio::test(start_paused = true)]
async fn token_is_rejected_only_by_objects_that_are_not_older_than_before() {
    let scene = Scene::new();
    let token = token(&scene, &["pod"]);
    assert!(scene.user(&token).is_some());
    let identify = || {
        let (id, token) = bearer(&token);
        scene.verifier.identify(id, &token, SOURCE)
    };
    scene.objects().reached(BoundKind::Pod, 100);
    scene.objects().remove(BoundKind::Pod, "t1/web-0");
    scene.objects().reached(BoundKind::Pod, 90);
    assert!(matches!(identify(), Ok(None)), "it is reviewed");
    scene.objects().reached(BoundKind::Pod, 100);
    assert!(matches!(identify(), Err(GrantError::Unauthenticated)));
}

/// Requests may use objects that were current within the grace of an outage, open watches may not.
#[tokio::test(start_paused = true)]
async fn stale_objects_prove_tokens_within_the_grace() {
    let scene = Scene::new();
    let (token, grace) = (token(&scene, &["pod"]), AuthConfig::default().outage_grace);
    let valid = || (scene.user(&token).is_some(), scene.user_from(&token, None).is_some());
    assert_eq!(valid(), (true, true));
    scene.objects().set_live(BoundKind::Pod, Some(Instant::now()));
    assert_eq!(valid(), (true, true), "no time has passed");
    tokio::time::advance(Duration::from_secs(10)).await;
    scene.objects().set_live(BoundKind::Pod, Some(Instant::now()));
    assert_eq!(valid(), (true, false));
    assert_eq!(scene.verifier.stale_for(&bearer(&token).0), Some(Duration::from_secs(10)));
    tokio::time::advance(grace.saturating_sub(Duration::from_secs(10))).await;
    assert_eq!(valid(), (true, false));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(valid(), (false, false));
    scene.objects().set_live(BoundKind::Pod, None);
    assert_eq!((valid(), scene.verifier.stale_for(&bearer(&token).0)), ((true, true), Some(Duration::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn unused_objects_are_forgotten_until_they_are_needed() {
    let scene = Scene::new();
    let token = token(&scene, &[]);
    assert!(scene.user(&token).is_some());
    scene.objects().needed(BoundKind::Account).await;
    tokio::time::advance(Duration::from_secs(500)).await;
    assert!(scene.user(&token).is_some());
    let began = Instant::now();
    scene.objects().idle(BoundKind::Account, Duration::from_secs(600)).await;
    assert!(began.elapsed() >= Duration::from_secs(599), "{:?}", began.elapsed());
    assert!(!scene.verifier.lost(&bearer(&token).0).expect("verified").is_cancelled(), "unused is not deleted");
    scene.publish(&scene.issuer.jwks());
    assert_eq!(scene.user(&token), None);
    scene.objects().needed(BoundKind::Account).await;
    scene.objects().end_list(BoundKind::Account);
    assert_eq!(scene.user(&token), None, "it is not listed");
}

#[tokio::test(start_paused = true)]
async fn signals_of_dropped_tokens_are_removed() {
    let objects = BoundObjects::default();
    let bound = BoundObject::new(BoundKind::Pod, "t1", "web-0", POD_UID).expect("a pod");
    let kept: Arc<CancellationToken> = Arc::default();
    objects.signal_loss(std::slice::from_ref(&bound), &kept);
    for _ in 0..10_000 {
        objects.signal_loss(std::slice::from_ref(&bound), &Arc::default());
    }
    assert!(objects.dependents_for_tests() <= 2_048, "{}", objects.dependents_for_tests());
    objects.put(BoundKind::Pod, bound.key.clone(), Some(bound.uid), false);
    objects.remove(BoundKind::Pod, &bound.key);
    assert!(kept.is_cancelled() && objects.dependents_for_tests() == 0);
}
