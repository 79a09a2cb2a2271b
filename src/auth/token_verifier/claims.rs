//! Parses service account tokens strictly. A token in any other form than the apiserver issues is left to a review.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::bound_objects::{BoundKind, BoundObject};
use kubeapi::{User, is_dns_subdomain};

/// The maximum number of audiences of a token that is verified here. The apiserver has no limit.
const AUDIENCES_MAX: usize = 16;

/// The parts of a token in the compact serialization (RFC 7515 §7.1). Nothing is verified.
pub(super) struct ParsedToken<'a> {
    pub(super) header: TokenHeader,
    pub(super) claims: TokenClaims,
    /// The bytes that the signature covers.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
}

/// The header of a token. The apiserver writes no other members, and an external signer may add `typ`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenHeader {
    pub(super) alg: String,
    pub(super) kid: String,
    #[serde(default = "jwt")]
    typ: String,
}

/// The claims of a token, and the user that a review returns for them (`pkg/serviceaccount/claims.go`).
pub(super) struct TokenClaims {
    pub(super) issuer: String,
    pub(super) audiences: Vec<String>,
    /// The later of `nbf` and `iat`.
    pub(super) not_before: SystemTime,
    pub(super) expires_at: SystemTime,
    pub(super) user: Arc<User>,
    /// The objects that must exist for the token to be valid.
    pub(super) bound: Vec<BoundObject>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JwtClaims {
    aud: Vec<String>,
    exp: u64,
    iat: u64,
    iss: String,
    #[serde(default)]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: KubernetesClaims,
    nbf: u64,
    sub: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KubernetesClaims {
    namespace: String,
    serviceaccount: ObjectClaim,
    pod: Option<ObjectClaim>,
    node: Option<ObjectClaim>,
    secret: Option<ObjectClaim>,
    /// The time from which the apiserver counts uses of the token in a metric.
    #[serde(default, rename = "warnafter")]
    _warn_after: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectClaim {
    name: String,
    uid: String,
}

fn jwt() -> String {
    "JWT".to_owned()
}

impl<'a> ParsedToken<'a> {
    /// Parses a token; `None` if it is not in the form of a service account token. The time is linear in its length.
    pub(super) fn parse(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: TokenHeader = serde_json::from_slice(&decoded(header)?).ok()?;
        let claims: JwtClaims = serde_json::from_slice(&decoded(claims)?).ok()?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        (header.typ == "JWT").then_some(())?;
        Some(Self { header, claims: TokenClaims::of(claims)?, signed: signed.as_bytes(), signature })
    }
}

impl TokenClaims {
    fn of(claims: JwtClaims) -> Option<Self> {
        let JwtClaims { aud: audiences, exp, iat, iss: issuer, jti, kubernetes, nbf, sub } = claims;
        (audiences.len() <= AUDIENCES_MAX).then_some(())?;
        let KubernetesClaims { namespace, serviceaccount, pod, node, secret, _warn_after } = kubernetes;
        let name = format!("system:serviceaccount:{namespace}:{}", serviceaccount.name);
        // The apiserver issues tokens for one object, or for a pod and its node.
        if sub != name || !is_dns_subdomain(&namespace) || secret.is_some() && (pod.is_some() || node.is_some()) {
            return None;
        }
        let mut bound =
            vec![BoundObject::new(BoundKind::Account, &namespace, &serviceaccount.name, &serviceaccount.uid)?];
        let mut extra = BTreeMap::new();
        let mut add = |key: &str, value: String| {
            extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value]);
        };
        if !jti.is_empty() {
            add("credential-id", format!("JTI={jti}"));
        }
        let is_pod = pod.is_some();
        if let Some(pod) = pod {
            bound.push(BoundObject::new(BoundKind::Pod, &namespace, &pod.name, &pod.uid)?);
            add("pod-name", pod.name);
            add("pod-uid", pod.uid);
        }
        if let Some(node) = node {
            let object = BoundObject::new(BoundKind::Node, "", &node.name, &node.uid)?;
            // A pod's token depends on the pod, not on its node.
            bound.extend(Some(object).filter(|_| !is_pod));
            add("node-name", node.name);
            add("node-uid", node.uid);
        }
        if let Some(secret) = secret {
            bound.push(BoundObject::new(BoundKind::Secret, &namespace, &secret.name, &secret.uid)?);
        }
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        let user = User { name, uid: serviceaccount.uid, groups: groups.to_vec(), extra };
        let (not_before, expires_at) = (time(nbf.max(iat))?, time(exp)?);
        Some(Self { issuer, audiences, not_before, expires_at, user: Arc::new(user.authenticated()), bound })
    }
}

fn decoded(part: &str) -> Option<Zeroizing<Vec<u8>>> {
    BASE64_URL_SAFE_NO_PAD.decode(part).ok().map(Zeroizing::new)
}

fn time(seconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
