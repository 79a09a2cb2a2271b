use super::*;

/// Each audience takes memory for as long as the token is known.
#[tokio::test(start_paused = true)]
async fn token_with_many_audiences_is_reviewed() {
    let scene = Scene::new();
    for (count, is_valid) in [(16, true), (17, false)] {
        let mut claims = scene.claims();
        let others = (1..count).map(|number| format!("audience-{number}"));
        claims["aud"] = std::iter::once(ISSUER.to_owned()).chain(others).collect::<Vec<_>>().into();
        assert_eq!(scene.user(&scene.issuer.token(&claims)).is_some(), is_valid, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn user_of_a_valid_token_is_that_of_its_review() {
    let scene = Scene::new();
    let (jti, pod, pod_uid) = (("credential-id", "JTI=4f9a"), ("pod-name", "web-0"), ("pod-uid", POD_UID));
    let (node, node_uid) = (("node-name", "n1"), ("node-uid", NODE_UID));
    for (kinds, extra) in [
        (&[][..], &[jti][..]),
        (&["pod"], &[jti, pod, pod_uid]),
        (&["pod", "node"], &[jti, pod, pod_uid, node, node_uid]),
        (&["node"], &[jti, node, node_uid]),
        (&["secret"], &[jti]),
    ] {
        let issued = scene.now();
        let claims = claims(issued, &bound_to(kinds));
        for token in [scene.issuer.token(&claims), scene.issuer.rs256(RS256, &claims.to_string())] {
            assert_eq!(scene.user(&token).as_deref(), Some(&user_of(extra)), "{kinds:?}");
            assert_eq!(scene.user(&token).as_deref(), Some(&user_of(extra)), "{kinds:?}, from the cache");
            let (id, token) = bearer(&token);
            let identity = scene.verifier.identify(id, &token, SOURCE).expect("not deleted").expect("a valid token");
            assert_eq!(identity.expires_at, Some(UNIX_EPOCH + Duration::from_secs(issued + 3600)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn token_may_lack_jti_and_have_a_type_and_a_warning_time() {
    let scene = Scene::new();
    let mut claims = scene.claims();
    claims["kubernetes.io"]["warnafter"] = json!(scene.now() - 5);
    claims.as_object_mut().expect("an object").remove("jti");
    let token = scene.issuer.signed(r#"{"typ":"JWT","kid":"ec","alg":"ES256"}"#, &claims.to_string());
    assert_eq!(scene.user(&token).as_deref(), Some(&user_of(&[])));
}

#[tokio::test(start_paused = true)]
async fn token_is_valid_from_nbf_and_iat_until_exp() {
    let scene = Scene::new();
    let mut claims = scene.claims();
    for (nbf, iat) in [(600, 0), (0, 600)] {
        (claims["nbf"], claims["iat"]) = (json!(scene.now() + nbf), json!(scene.now() + iat));
        let token = scene.issuer.token(&claims);
        let valid = |at| {
            scene.clock.step(at);
            let valid = scene.user(&token).is_some();
            scene.clock.step(-at);
            valid
        };
        let at = [0, 590, 610, 3_590, 3_610, 3_590, 590].map(valid);
        assert_eq!(at, [false, false, true, true, false, true, false], "{nbf} {iat}");
    }
}

/// Upstream's audiences are learned from reviews of accepted tokens, and only those that the token has.
#[tokio::test(start_paused = true)]
async fn audience_is_accepted_once_upstream_has_returned_it() {
    let scene = Scene::with(&AuthConfig::default());
    let token = |audience: &str, jti: &str| {
        let mut claims = scene.claims();
        (claims["aud"], claims["jti"]) = (json!(["vault", audience]), json!(jti));
        scene.issuer.token(&claims)
    };
    let (first, user) = (token("a", "1"), || Some(user_of(&[("credential-id", "JTI=1")])));
    assert_eq!(scene.user(&first), None);
    assert!(scene.review(&first, user(), &[]));
    assert_eq!(scene.user(&first), None, "an authenticator without audiences teaches none");
    assert!(scene.review(&first, user(), &["b", "a"]));
    assert!(scene.user(&first).is_some() && scene.user(&token("a", "2")).is_some());
    assert_eq!(scene.user(&token("b", "2")), None, "the token of the review did not have it");
    for number in 0..2 * AUDIENCES_MAX {
        let (audience, token) = (number.to_string(), token(&number.to_string(), "1"));
        assert!(scene.review(&token, user(), &[&audience]));
    }
    assert_eq!(scene.verifier.audiences.learned.lock().len(), AUDIENCES_MAX);
    let forged = with_last_byte_changed(&first);
    scene.verifier.audiences.learned.lock().clear();
    assert!(scene.review(&forged, user(), &["a"]), "a token that is not verified teaches nothing");
    assert_eq!(scene.user(&first), None);
}

#[tokio::test(start_paused = true)]
async fn audiences_are_learned_again_after_upstream_rejects_a_valid_token() {
    let scene = Scene::with(&AuthConfig::default());
    let (token, other) = (scene.issuer.token(&scene.claims()), scene.issuer.token(&scene.claims()));
    let user = || Some(user_of(&[("credential-id", "JTI=4f9a")]));
    assert!(scene.review(&token, user(), &[ISSUER]) && scene.user(&other).is_some());
    assert!(!scene.review(&token, None, &[]));
    assert_eq!((scene.user(&token), scene.user(&other)), (None, None));
    assert!(scene.review(&other, user(), &[ISSUER]) && scene.user(&other).is_some());
    assert_eq!(scene.user(&token), None, "a rejected token is reviewed for some time");
    assert!(scene.review(&token, user(), &[ISSUER]) && scene.user(&token).is_some(), "unless upstream accepts it");
}

#[tokio::test(start_paused = true)]
async fn one_review_confirms_an_audience_each_hour() {
    let scene = Scene::with(&AuthConfig::default());
    let token = scene.issuer.token(&scene.claims());
    let user = || Some(user_of(&[("credential-id", "JTI=4f9a")]));
    assert!(scene.review(&token, user(), &[ISSUER]));
    let asked = |seconds| {
        let asked: Vec<_> = (0..seconds)
            .filter(|_| {
                assert!(scene.verifier.keys.published(Duration::MAX / 4).is_some());
                let audiences = [ISSUER.to_owned()];
                !scene.verifier.audiences.accept(&audiences)
            })
            .collect();
        asked.len()
    };
    tokio::time::advance(AUDIENCE_TTL.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(asked(10), 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(asked(10), 1, "others are accepted while one is reviewed");
    tokio::time::advance(CONFIRM_INTERVAL).await;
    assert_eq!(asked(10), 1, "the review failed");
    tokio::time::advance(AUDIENCE_TTL).await;
    assert_eq!(asked(10), 10, "no review has confirmed it");
}

#[tokio::test(start_paused = true)]
async fn verifier_stops_if_upstream_returns_another_user() {
    let scene = Scene::new();
    let token = scene.issuer.token(&scene.claims());
    assert!(scene.review(&token, Some(user_of(&[("credential-id", "JTI=4f9a")])), &[ISSUER]));
    assert!(scene.user(&token).is_some());
    assert!(!scene.review(&token, Some(user_of(&[])), &[ISSUER]));
    assert_eq!((scene.user(&token), scene.unproven(&token)), (None, Some("stopped")));
}

const RS256: &str = r#"{"alg":"RS256","kid":"rsa"}"#;

pub(super) fn with_last_byte_changed(token: &str) -> String {
    let (head, last) = token.split_at(token.len() - 3);
    format!("{head}{}", if last == "AAA" { "BAA" } else { "AAA" })
}

/// The one that was not used for longest is forgotten, which costs its caller a signature check. It is not forgotten that
/// an object was deleted.
#[tokio::test(start_paused = true)]
async fn more_tokens_than_are_kept_are_verified_again() {
    let scene = Scene::new();
    let verified = &scene.verifier.verified;
    let [used, unused, deleted, new] = ["1", "2", "3", "4"].map(|jti| {
        let mut claims = claims(scene.now(), &bound_to(if jti == "3" { &["pod"] } else { &[] }));
        claims["jti"] = json!(jti);
        scene.issuer.token(&claims)
    });
    let is_kept = |token: &str| verified.contains_key(&bearer(token).0);
    for token in [&used, &unused, &deleted] {
        assert!(scene.user(token).is_some() && is_kept(token));
    }
    let of_another = verified.get(&bearer(&unused).0).expect("it is kept");
    for number in 0..VERIFIED_MAX {
        verified.insert(bearer(&number.to_string()).0, of_another.clone());
        if number == VERIFIED_MAX / 2 {
            assert!(scene.user(&used).is_some());
        }
    }
    scene.delete_pod();
    assert!(scene.user(&new).is_some());
    verified.run_pending_tasks();
    assert!(verified.entry_count() <= VERIFIED_MAX, "{}", verified.entry_count());
    assert_eq!([&used, &unused, &deleted, &new].map(|token| is_kept(token)), [true, false, false, true]);
    assert_eq!(scene.user(&deleted), None);
    assert!(scene.user(&unused).is_some());
    assert_eq!(scene.user(&Issuer::new().token(&scene.claims())), None, "the keys of another cluster");
}
