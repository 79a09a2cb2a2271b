use ring::hmac;

use super::issuer::{unsigned, with_signature};
use super::valid::with_last_byte_changed;
use super::*;

const ES256: &str = r#"{"alg":"ES256","kid":"ec"}"#;

/// Every change of the claims that the apiserver would not make, with a valid signature.
#[expect(clippy::too_many_lines, reason = "a table")]
#[tokio::test(start_paused = true)]
async fn token_with_unusual_claims_is_not_proven() {
    let scene = Scene::new();
    let issued = scene.now();
    let claims = claims(issued, &bound_to(&["pod"])).to_string();
    assert!(scene.user(&scene.issuer.signed(ES256, &claims)).is_some());
    let (now, exp) = (issued.to_string(), (issued + 3600).to_string());
    let (sub, aud) = (r#""sub":"system:serviceaccount:t1:agent""#, format!(r#""aud":["{ISSUER}"]"#));
    let iss = format!(r#""iss":"{ISSUER}""#);
    let mut spoilt = Vec::new();
    let mut change = |from: &str, to: &str| {
        assert!(claims.contains(from), "{from} in {claims}");
        spoilt.push(claims.replacen(from, to, 1));
    };
    for issuer in ["", "https://kubernetes.default.svc/", "https://kubernetes.default.svC", "kubernetes/serviceaccount"]
    {
        change(&iss, &format!(r#""iss":"{issuer}""#));
    }
    for to in ["null", "[]", "{}", "1", r#"["https://kubernetes.default.svc"]"#] {
        change(&iss, &format!(r#""iss":{to}"#));
    }
    for to in ["null", "[]", "{}", r#"["vault"]"#, r#""https://kubernetes.default.svc""#, "[1]", r#"[["a"]]"#] {
        change(&aud, &format!(r#""aud":{to}"#));
    }
    for claim in ["exp", "iat", "nbf"] {
        let is = format!(r#""{claim}":{}"#, if claim == "exp" { &exp } else { &now });
        let numbers =
            ["null", "true", "-1", "1e10", "1.0", "9223372036854775808", "18446744073709551616", "0x7fffffff"];
        for number in numbers {
            change(&is, &format!(r#""{claim}":{number}"#));
        }
        change(&is, &format!(r#""{claim}":"{now}""#));
        change(&is, &format!(r#""{claim}":{exp}.5"#));
        change(&format!("{is},"), "");
        change(&is, &format!("{is},{is}"));
        let later = if claim == "exp" { scene.now() - 1 } else { scene.now() + 30 };
        change(&is, &format!(r#""{claim}":{later}"#));
    }
    for to in [
        "system:serviceaccount:t1:agent2",
        "system:serviceaccount:t2:agent",
        "system:serviceaccount:t1",
        "agent",
        "system:serviceaccount:t1:agent:",
        "System:serviceaccount:t1:agent",
        "system:serviceaccount:t1:\\u0430gent",
        "",
        "system:masters",
    ] {
        change(sub, &format!(r#""sub":"{to}""#));
    }
    for (from, to) in [
        (sub, r#""sub":null"#),
        (sub, r#""sub":["system:serviceaccount:t1:agent"]"#),
        (r#""namespace":"t1""#, r#""namespace":"t2""#),
        (r#""namespace":"t1""#, r#""namespace":"T1""#),
        (r#""namespace":"t1""#, r#""namespace":"""#),
        (r#""namespace":"t1""#, r#""namespace":"t1","namespace":"t1""#),
        (r#""namespace":"t1","#, ""),
        (r#""name":"agent""#, r#""name":"agent.""#),
        (r#""name":"agent""#, r#""name":"agent\u0000""#),
        (r#""name":"agent""#, r#""name":"agent","name":"agent""#),
        (r#""name":"web-0""#, r#""name":"web-1""#),
        (r#""name":"web-0""#, r#""name":"../t1/web-0""#),
        (r#""name":"web-0""#, r#""name":"""#),
        (r#""kubernetes.io":{"#, r#""kubernetes.io":{"attestations":{},"#),
        (r#""kubernetes.io":{"#, r#""kubernetes.io":{"validatingwebhookconfiguration":{"name":"a","uid":"b"},"#),
        (r#""kubernetes.io":{"#, r#""kubernetes.io":{"warnafter":1.5,"#),
        (
            r#""kubernetes.io":{"#,
            r#""kubernetes.io":{"secret":{"name":"token","uid":"0a1b2c3d-0000-4000-8000-000000000004"},"#,
        ),
        (r#""kubernetes.io":{"#, r#""Kubernetes.io":{"#),
        (r#""jti":"4f9a""#, r#""jti":null"#),
        (r#""jti":"4f9a""#, r#""jti":7"#),
        (r#""jti":"4f9a""#, r#""jti":"4f9a","jti":"4f9a""#),
        (r#""jti":"4f9a""#, r#""jti":"4f9a","JTI":"5""#),
        (r#""jti":"4f9a""#, r#""jti":"4f9a","admin":true"#),
        (&iss, &format!("{iss},{iss}")),
        (&aud, &format!("{aud},{aud}")),
        (sub, &format!("{sub},{sub}")),
        ("{", "{,"),
        ("{", "[{"),
    ] {
        change(from, to);
    }
    for uid in [ACCOUNT_UID, POD_UID] {
        for to in [
            NODE_UID,
            "",
            "0A1B2C3D-0000-4000-8000-000000000001",
            "0a1b2c3d000040008000000000000001",
            "+a1b2c3d-0000-4000-8000-000000000001",
        ] {
            change(&format!(r#""uid":"{uid}""#), &format!(r#""uid":"{to}""#));
        }
        change(&format!(r#""uid":"{uid}""#), r#""uid":null"#);
        change(&format!(r#","uid":"{uid}""#), "");
    }
    spoilt.extend([format!("{claims}x"), format!("{claims}{claims}"), claims[1..].to_owned(), String::new()]);
    spoilt.extend(["null", "[]", "{}", "1", "\"a\""].map(str::to_owned));
    spoilt.push("[".repeat(4_000));
    let valid: Vec<_> =
        spoilt.iter().filter(|claims| scene.user(&scene.issuer.signed(ES256, claims)).is_some()).collect();
    assert!(valid.is_empty(), "{valid:#?}");
    assert!(spoilt.len() > 100, "{}", spoilt.len());
}

#[tokio::test(start_paused = true)]
async fn token_with_another_algorithm_than_its_key_is_not_proven() {
    let scene = Scene::new();
    let (claims, issuer) = (scene.claims().to_string(), &scene.issuer);
    let rsa = |alg: &str| format!(r#"{{"alg":"{alg}","kid":"rsa"}}"#);
    assert!(scene.user(&issuer.rs256(&rsa("RS256"), &claims)).is_some());
    let mut forged = vec![
        issuer.rs256(&rsa("RS384"), &claims),
        issuer.rs512(&rsa("RS512"), &claims),
        issuer.rs512(&rsa("RS256"), &claims),
        issuer.rs256(&rsa("PS256"), &claims),
        issuer.rs256(ES256, &claims),
        issuer.signed(&rsa("RS256"), &claims),
        issuer.signed(&rsa("ES256"), &claims),
    ];
    for alg in ["none", "None", "NONE", "", "HS256", "HS384", "RS256", "ES384", "es256", "ES256 ", "EdDSA"] {
        for kid in ["ec", "rsa"] {
            let head = unsigned(&format!(r#"{{"alg":"{alg}","kid":"{kid}"}}"#), &claims);
            forged.extend([with_signature(&head, b""), with_signature(&head, b"x")]);
            // The attack: an HMAC with the public key as its secret.
            for secret in [issuer.public_point(), issuer.public_modulus(), issuer.jwks().to_string().into_bytes()] {
                let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
                forged.push(with_signature(&head, hmac::sign(&secret, head.as_bytes()).as_ref()));
            }
        }
    }
    for header in [
        r#"{"alg":"ES256"}"#,
        r#"{"alg":"ES256","kid":""}"#,
        r#"{"alg":"ES256","kid":null}"#,
        r#"{"kid":"ec"}"#,
        r#"{"alg":"ES256","kid":"EC"}"#,
        r#"{"alg":"ES256","kid":"ec "}"#,
        r#"{"alg":"ES256","kid":["ec"]}"#,
        r#"{"alg":"ES256","kid":"ec","kid":"ec"}"#,
        r#"{"alg":"ES256","kid":"../ec"}"#,
        r#"{"alg":"none","alg":"ES256","kid":"ec"}"#,
        r#"{"alg":"ES256","kid":"ec","crit":["exp"]}"#,
        r#"{"alg":"ES256","kid":"ec","b64":false}"#,
        r#"{"alg":"ES256","kid":"ec","jku":"https://evil/keys"}"#,
        r#"{"alg":"ES256","kid":"ec","jwk":{}}"#,
        r#"{"alg":"ES256","kid":"ec","typ":"JOSE"}"#,
        r#"{"alg":"ES256","kid":"ec","zip":"DEF"}"#,
        "{}",
        "[]",
        "",
        "null",
    ] {
        forged.push(issuer.signed(header, &claims));
    }
    for token in &forged {
        assert_eq!(scene.user_from(token, None), None, "{token}");
    }
}

/// Every character of a token, and its form as a whole.
#[tokio::test(start_paused = true)]
async fn changed_token_is_not_proven() {
    let scene = Scene::new();
    let token = scene.issuer.token(&scene.claims());
    for at in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("ASCII");
        assert_eq!(scene.user_from(&changed, None), None, "{at}");
        assert_eq!(scene.user_from(&token[..at], None), None, "{at}");
    }
    let [header, claims, signature]: [&str; 3] = token.split('.').collect::<Vec<_>>().try_into().expect("three parts");
    for changed in [
        format!("{token}."),
        format!(".{token}"),
        format!("{token}="),
        format!("{token} "),
        format!("{token}\n"),
        format!("{token}.{signature}"),
        format!("{header}..{signature}"),
        format!("{header}.{claims}"),
        format!("{header}.{claims}."),
        format!("{header}=.{claims}.{signature}"),
        format!("{header}.{claims}==.{signature}"),
        format!("{header}\r\n.{claims}.{signature}"),
        format!("{header}.{claims}.{signature}\u{200b}"),
        token.replace('_', "/").replace('-', "+") + "+",
        token.to_uppercase(),
        "a".repeat(TOKEN_BYTES_MAX + 1),
        ".".repeat(1_000),
        String::new(),
    ] {
        assert_eq!(scene.user_from(&changed, None), None, "{changed}");
    }
    let long = format!("{}{header}", "A".repeat(TOKEN_BYTES_MAX));
    assert_eq!(scene.user_from(&format!("{long}.{claims}.{signature}"), None), None);
    assert!(scene.user(&token).is_some());
}

/// The keys are read at most once a minute because of tokens with an unknown key, and not because of other tokens.
#[tokio::test(start_paused = true)]
async fn tokens_with_unknown_keys_cause_bounded_reads() {
    let scene = Scene::new();
    let claims = scene.claims();
    let forged = |number: usize, claims: &Value| {
        let token = scene.issuer.signed(&format!(r#"{{"alg":"ES256","kid":"{number}"}}"#), &claims.to_string());
        assert_eq!(scene.user_from(&token, None), None);
    };
    let keys = &scene.verifier.keys;
    // The scene has published the keys in the place of a read.
    keys.end_read_for_tests();
    let reads = |kinds: &str| {
        let is_due = keys.begin_read(kinds == "unknown");
        if is_due {
            keys.end_read_for_tests();
        }
        is_due
    };
    assert!(!reads("known") && !reads("unknown"), "they have just been read");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(!reads("known") && reads("unknown") && !reads("unknown"));
    tokio::time::advance(Duration::from_secs(60)).await;
    let before = scene.connections.load(Ordering::Relaxed);
    for number in 0..1_000 {
        let mut other = claims.clone();
        other["iss"] = json!("https://accounts.example.com");
        forged(number, &other);
    }
    tokio::task::yield_now().await;
    assert_eq!(scene.connections.load(Ordering::Relaxed), before, "tokens of another issuer");
    for number in 0..1_000 {
        forged(number, &claims);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let tried = scene.connections.load(Ordering::Relaxed) - before;
    assert!((1..=10).contains(&tried), "{tried} connections for one read of two documents");
}

#[tokio::test(start_paused = true)]
async fn signature_checks_are_limited_by_source() {
    let scene = Scene::with(&AuthConfig {
        audiences: vec![ISSUER.to_owned()],
        reviews_per_source: 1,
        reviews_burst_per_source: 5,
        ..AuthConfig::default()
    });
    let token = scene.issuer.token(&scene.claims());
    let forged: Vec<_> = (0..9).map(|_| with_last_byte_changed(&scene.issuer.token(&scene.claims()))).collect();
    let results: Vec<_> = forged.iter().map(|token| scene.unproven(token).expect("forged")).collect();
    assert_eq!(results[..5], ["signature"; 5]);
    assert_eq!(results[5..], ["over_budget"; 4]);
    assert_eq!(scene.user(&token), None);
    assert!(scene.user_from(&token, Some(Ipv4Addr::new(192, 0, 2, 2).into())).is_some(), "others are not affected");
    assert!(scene.user(&token).is_some(), "a verified token needs no check");
}

#[tokio::test(start_paused = true)]
async fn key_that_is_no_longer_published_verifies_nothing() {
    let scene = Scene::new();
    let token = scene.issuer.token(&scene.claims());
    assert!(scene.user(&token).is_some());
    let (all, mut keys) = (scene.issuer.jwks(), scene.issuer.jwks());
    scene.publish(&all);
    assert!(scene.user(&token).is_some(), "the same key, read again");
    keys["keys"].as_array_mut().expect("keys").remove(0);
    scene.publish(&keys);
    assert_eq!(scene.user(&token), None);
    scene.publish(&Issuer::new().jwks());
    assert_eq!(scene.user(&token), None, "another key with the same name");
    scene.publish(&all);
    assert!(scene.user(&token).is_some());
    for (member, value) in [("kid", json!("rsa")), ("use", json!("enc")), ("alg", json!("ES384")), ("x", json!("AA"))] {
        let mut keys = all.clone();
        keys["keys"][0][member] = value;
        scene.publish(&keys);
        assert_eq!(scene.user(&token), None, "{member}");
    }
    tokio::time::advance(super::keys::READ_INTERVAL + AuthConfig::default().outage_grace).await;
    scene.publish(&all);
    assert!(scene.user(&token).is_some());
    tokio::time::advance(super::keys::READ_INTERVAL + AuthConfig::default().outage_grace).await;
    assert_eq!(scene.user(&token), None, "keys that were read long ago");
}

#[test]
fn unusable_key_documents_are_refused() {
    let keys = Issuer::new().jwks().to_string();
    let parse = |issuer: &str, keys: &str| {
        PublishedKeys::parse(json!({"issuer": issuer}).to_string().as_bytes(), keys.as_bytes(), None).is_some()
    };
    assert!(parse(ISSUER, &keys) && parse(ISSUER, r#"{"keys":[]}"#));
    assert!(!parse("kubernetes/serviceaccount", &keys) && !parse("http://a", &keys) && !parse("", &keys));
    let many = json!({"keys": vec![json!({"kid": "a"}); 65]}).to_string();
    for keys in ["", "{}", "[]", r#"{"keys":{}}"#, r#"{"keys":[1]}"#, &many] {
        assert!(!parse(ISSUER, keys), "{keys}");
    }
}
