//! Identity and permissions of callers.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode};
use kube_fanout::auth::{
    AffectedUsers, BEARER_PROTOCOL, BearerToken, CertificateAuthorities, RbacEvent, RbacKind, RbacPolicy, bearer_token,
    front_proxy_user, named_user,
};
use kube_fanout::net::PeerAddress;
use kube_fanout::serve::{source_ips, websocket};
use kube_fanout::upstream::{AccessReviewResult, TokenReviewResult};
use kubeapi::User;
use rustls::pki_types::CertificateDer;
use serde_json::Value;

use super::{choice, head};

/// Header lines, or the claims of a token, which is then passed in both possible headers.
pub fn credentials(input: &[u8]) {
    let (first, rest) = choice(input);
    let mut headers = head(rest.split(|byte| *byte == b'\n'));
    if first % 2 == 1 {
        let token = format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(rest));
        headers = credential_headers(&token, first % 4 == 1);
        assert_eq!(bearer_token(&headers), Ok(Some(BearerToken::new(&token))), "{token}");
    }
    match bearer_token(&headers) {
        Ok(Some(token)) => {
            assert!(headers.contains_key(AUTHORIZATION) || headers.contains_key(SEC_WEBSOCKET_PROTOCOL), "{headers:?}");
            assert_eq!(format!("{token:?}"), "BearerToken(…)");
            assert_eq!(token.expiry_seconds(), token.expiry_seconds());
        }
        Ok(None) => {}
        Err(_) => assert!(headers.contains_key(UPGRADE) && headers.contains_key(SEC_WEBSOCKET_PROTOCOL), "{headers:?}"),
    }
    if let Some(user) = front_proxy_user(&headers) {
        assert!(headers.contains_key("x-remote-user"), "{headers:?}");
        assert_is_identified(&user);
    }
    assert!(source_ips(&headers, PeerAddress::Unix { uid: None }).len() < 100);
    sockets(headers);
}

fn credential_headers(token: &str, is_plain: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name, value: &str| headers.insert(name, HeaderValue::from_str(value).expect("base64"));
    if is_plain {
        put(AUTHORIZATION, &format!("Bearer {token}"));
    } else {
        let encoded = BASE64_URL_SAFE_NO_PAD.encode(token);
        put(UPGRADE, "websocket");
        put(SEC_WEBSOCKET_PROTOCOL, &format!("v4, {BEARER_PROTOCOL}{encoded}"));
    }
    headers
}

/// Whether or not the handshake is valid, no token is among the selected protocols or the forwarded ones.
fn sockets(mut headers: HeaderMap) {
    let _ = websocket::is_upgrade(&headers);
    match websocket::handshake(&headers) {
        Ok(answer) => {
            assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
            assert!(!has_token(answer.headers()), "{answer:?}");
        }
        Err(refusal) => assert!(refusal.status().is_client_error(), "{refusal:?}"),
    }
    websocket::drop_bearer(&mut headers);
    assert!(!has_token(&headers), "{headers:?}");
}

fn has_token(headers: &HeaderMap) -> bool {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    let mut values = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.any(|value| value.split(',').any(|protocol| protocol.trim().starts_with(BEARER_PROTOCOL)))
}

fn assert_is_identified(user: &User) {
    let is_reported = |group: &String| group == User::AUTHENTICATED || group == User::UNAUTHENTICATED;
    assert!(!user.name.is_empty() && (user.is_anonymous() || user.groups.iter().any(is_reported)), "{user:?}");
}

/// A CA of the test bed, and a time at which it is valid.
static TRUSTED: LazyLock<(CertificateAuthorities, SystemTime)> = LazyLock::new(|| {
    let authorities =
        CertificateAuthorities::from_pem(include_bytes!("../corpus/authorities/ca")).expect("an authority");
    let begins = authorities.next_start(&Vec::new().into(), SystemTime::UNIX_EPOCH).expect("after 1970");
    (authorities, begins + Duration::from_secs(3600))
});

/// Chains that the CA has signed.
const SIGNED: [&[u8]; 2] =
    [include_bytes!("../corpus/certificates/admin"), include_bytes!("../corpus/certificates/node")];

/// Certificates in DER, each after two bytes with its length. Only certificates that the CA has signed identify a
/// caller.
pub fn certificates(input: &[u8]) {
    let (authorities, now) = &*TRUSTED;
    let chain = chain(input);
    let named = chain.first().and_then(named_user);
    let starts = authorities.next_start(&chain.clone().into(), *now);
    assert!(starts.is_none_or(|start| start > *now));
    if let Ok(holder) = authorities.verify(&chain.into(), *now) {
        assert!(holder.expires_at > *now, "{holder:?}");
        assert_is_identified(&holder.user);
        assert_eq!(Some(&*holder.user), named.as_ref());
        let known = SIGNED.map(|signed| self::chain(signed).first().and_then(named_user).expect("a user"));
        let is_known = known.iter().any(|user| (&user.name, &user.groups) == (&holder.user.name, &holder.user.groups));
        assert!(is_known, "not signed by the CA: {holder:?}");
    } else {
        assert!(!SIGNED.contains(&input), "a signed certificate identifies its holder");
    }
}

fn chain(mut input: &[u8]) -> Vec<CertificateDer<'static>> {
    let mut chain = Vec::new();
    while let [high, low, rest @ ..] = input {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        chain.push(CertificateDer::from(rest[..len].to_vec()));
        input = &rest[len..];
    }
    chain
}

/// Token and access reviews. Only an unambiguous allow counts as one.
pub fn reviews(input: &[u8]) {
    let (token, access) = (TokenReviewResult::parse(input), AccessReviewResult::parse(input));
    // Ignored fields need not be UTF-8.
    let Ok(answer) = serde_json::from_slice::<Value>(input) else { return };
    let status = &answer["status"];
    if let Some(TokenReviewResult { user: Some(user), .. }) = token {
        assert!(!user.name.is_empty() && status["user"]["username"] == *user.name, "{user:?}");
        assert!(status["authenticated"] == true, "{status}");
        assert!(status["error"].as_str().is_none_or(str::is_empty), "{status}");
    }
    if access.is_some_and(|verdict| verdict.allowed) {
        assert!(status["allowed"] == true && status["denied"] != true, "{status}");
    }
}

/// RBAC events, one per line. Every bound subject is affected.
pub fn policies(input: &[u8]) {
    let (first, rest) = choice(input);
    let mut policy = RbacPolicy::default();
    for (nth, line) in rest.split(|byte| *byte == b'\n').enumerate() {
        let kind = RbacKind::ALL[(first + nth) % RbacKind::ALL.len()];
        let read = || serde_json::from_slice::<RbacEvent>(line).ok();
        let Some(change) = read() else { continue };
        let once = policy.apply(kind, change);
        let again = read().and_then(|change| policy.apply(kind, change));
        let Some(AffectedUsers::Only(once, everyone)) = once else { continue };
        let once: Vec<_> = once.names().collect();
        if let Some(AffectedUsers::Only(again, _)) = &again {
            assert!(again.names().all(|subject| once.contains(&subject)), "{again:?} are in {once:?}");
        }
        if matches!(kind, RbacKind::RoleBinding | RbacKind::ClusterRoleBinding) && everyone.is_empty() {
            // Ignored fields need not be UTF-8.
            let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
            if event["type"] == "DELETED" {
                continue;
            }
            for subject in event["object"]["subjects"].as_array().into_iter().flatten() {
                let name = subject["name"].as_str().expect("it was read");
                let is_named = |other: &&str| *other == name || other.ends_with(&format!(":{name}"));
                assert!(once.iter().any(is_named), "{subject} is not in {once:?}");
            }
        }
    }
}
