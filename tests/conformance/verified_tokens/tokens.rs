//! Tokens of a cluster, as it issues them and spoilt.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use fastrand::Rng;
use http::Method;
use rustls::SignatureScheme;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::bed::{Account, Http, Identity, Plane, RequestSpec};

/// Objects, and a token that is bound to each kind.
pub struct Cluster {
    account: Account,
    issued: Vec<(&'static str, Identity)>,
    /// The claims of these tokens, and of tokens for objects that no longer exist.
    claims: Vec<Value>,
    namespace: String,
    kid: String,
    key: PrivateKeyDer<'static>,
}

impl Cluster {
    pub async fn create(bed: &Plane, direct: &Http, namespace: &str) -> Self {
        let account = Account::create(direct, namespace, "bound").await;
        let core = format!("/api/v1/namespaces/{namespace}");
        let container = json!([{"name": "main", "image": "none"}]);
        let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"serviceAccountName": "bound", "containers": container}});
        let mut objects = Vec::new();
        for (kind, api, path, object) in [
            ("pod", "Pod", format!("{core}/pods"), pod("web-0")),
            ("secret", "Secret", format!("{core}/secrets"), json!({"metadata": {"name": "token"}})),
            ("node", "Node", "/api/v1/nodes".to_owned(), json!({"metadata": {"name": format!("node-{namespace}")}})),
        ] {
            objects.push((kind, api, direct.create(&path, object).await));
        }
        let mut issued = vec![("account", account.token(direct).await)];
        for (kind, api, object) in &objects {
            let reference = json!({"kind": api, "apiVersion": "v1", "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]});
            let spec = json!({"boundObjectRef": reference, "audiences": ["https://kubernetes.default.svc"]});
            issued.push((*kind, account.token_for(direct, &spec).await));
        }
        let mut claims: Vec<_> = issued.iter().map(|(_, identity)| claims_of(&identity.token)).collect();
        // Of these only the tokens remain.
        let gone = Account::create(direct, namespace, "gone").await;
        claims.push(claims_of(&gone.token(direct).await.token));
        direct.delete(&gone.path()).await;
        let again = Account::create(direct, namespace, "again").await;
        claims.push(claims_of(&again.token(direct).await.token));
        direct.delete(&again.path()).await;
        Account::create(direct, namespace, "again").await;
        for audiences in [json!(["vault"]), json!(["vault", "https://kubernetes.default.svc"])] {
            let token = account.token_for(direct, &json!({"audiences": audiences})).await;
            claims.push(claims_of(&token.token));
        }
        let keys = RequestSpec::get("/openid/v1/jwks").accept("application/jwk-set+json");
        let keys = direct.fetch(keys).await.value();
        let kid = keys["keys"][0]["kid"].as_str().expect("a key").to_owned();
        let key = PrivateKeyDer::from_pem_file(bed.dir.join("service-account.key")).expect("the test bed keeps it");
        Self { account, issued, claims, namespace: namespace.to_owned(), kid, key }
    }

    pub fn issued(&self) -> impl Iterator<Item = &Identity> {
        self.issued.iter().map(|(_, identity)| identity)
    }

    /// The tokens that are bound to an object besides the account.
    pub fn bound(&self) -> impl Iterator<Item = (&'static str, &Identity)> {
        self.issued.iter().skip(1).map(|(kind, identity)| (*kind, identity))
    }

    /// Deletes the object of a bound token.
    pub async fn delete(&self, direct: &Http, kind: &str) {
        let namespace = &self.namespace;
        let path = match kind {
            "pod" => format!("/api/v1/namespaces/{namespace}/pods/web-0?gracePeriodSeconds=0"),
            "secret" => format!("/api/v1/namespaces/{namespace}/secrets/token"),
            _ => format!("/api/v1/nodes/node-{namespace}"),
        };
        direct.delete(&path).await;
    }

    /// Draws a token: a valid one, or one that is spoilt in one or two ways. Returns what it is.
    pub fn draw(&self, random: &mut Rng) -> (String, Identity) {
        let at = random.usize(..self.claims.len());
        let (mut claims, mut what) = (self.claims[at].clone(), format!("token {at}"));
        claims["jti"] = json!(format!("{:016x}", random.u64(..)));
        let mut header = json!({"alg": "RS256", "kid": self.kid});
        let changes = [0, 0, 1, 1, 1, 2][random.usize(..6)];
        for _ in 0..changes {
            what += &self.spoil(&mut header, &mut claims, random);
        }
        let mut payload = claims.to_string();
        if random.u8(..20) == 0 {
            let claim = ["exp", "iss", "aud", "sub", "kubernetes.io", "nbf"][random.usize(..6)];
            payload.insert_str(1, &format!("\"{claim}\":{},", claims[claim]));
            what = format!("{what}, {claim} twice");
        }
        let mut token = self.sign(&header.to_string(), &payload);
        if random.u8(..8) == 0 {
            let at = random.usize(..token.len());
            let to = *random.choice(b"A.=_-~z").expect("characters") as char;
            token.replace_range(at..=at, &to.to_string());
            what = format!("{what}, {to:?} at {at}");
        }
        let identity = Identity::token(&self.account.user(), &token);
        (what, identity)
    }

    fn spoil(&self, header: &mut Value, claims: &mut Value, random: &mut Rng) -> String {
        let exp = claims["exp"].as_i64().unwrap_or_default();
        let now = claims["iat"].as_i64().unwrap_or_default();
        let odd = [
            json!(null),
            json!(""),
            json!([]),
            json!({}),
            json!(-1),
            json!(1.5),
            json!("a"),
            json!(true),
            json!(u64::MAX),
        ];
        let odd = odd[random.usize(..odd.len())].clone();
        let choices: [(&str, Value); 12] = [
            ("/exp", json!(now - [61, 90, 3_600][random.usize(..3)])),
            ("/nbf", json!(exp - [0, 10, 1_000][random.usize(..3)])),
            ("/iat", json!(exp)),
            (
                "/iss",
                json!(["https://kubernetes.default.svc/", "kubernetes/serviceaccount", "https://a"][random.usize(..3)]),
            ),
            ("/aud", json!([["vault"], ["https://kubernetes.default.svc "]][random.usize(..2)])),
            ("/aud", json!("https://kubernetes.default.svc")),
            ("/sub", json!(["system:serviceaccount:default:default", "system:masters", "admin"][random.usize(..3)])),
            ("/kubernetes.io/namespace", json!(["default", "kube-system"][random.usize(..2)])),
            ("/kubernetes.io/serviceaccount/name", json!(["default", "gone", "again"][random.usize(..3)])),
            ("/kubernetes.io/serviceaccount/uid", json!(self.account.uid)),
            ("/kubernetes.io/pod", json!({"name": "web-0", "uid": "0a1b2c3d-0000-4000-8000-000000000001"})),
            ("/kubernetes.io/node", json!({"name": "none", "uid": "0a1b2c3d-0000-4000-8000-000000000001"})),
        ];
        match random.u8(..10) {
            0 => {
                let alg = ["none", "HS256", "RS384", "RS512", "PS256", "ES256", ""][random.usize(..7)];
                header["alg"] = json!(alg);
                format!(", alg {alg:?}")
            }
            1 => {
                let kid = [json!(""), json!(null), json!("other"), json!(7)][random.usize(..4)].clone();
                header["kid"] = kid.clone();
                format!(", kid {kid}")
            }
            2 => {
                header[["typ", "crit", "b64", "jku"][random.usize(..4)]] = odd.clone();
                format!(", header with {odd}")
            }
            3 | 4 => {
                let claim =
                    ["exp", "nbf", "iat", "iss", "aud", "sub", "jti", "kubernetes.io", "extra"][random.usize(..9)];
                claims[claim] = odd.clone();
                format!(", {claim} {odd}")
            }
            5 => {
                let claim = ["exp", "nbf", "iat", "iss", "aud", "sub", "jti", "kubernetes.io"][random.usize(..8)];
                claims.as_object_mut().expect("an object").remove(claim);
                format!(", no {claim}")
            }
            _ => {
                let (pointer, value) = &choices[random.usize(..choices.len())];
                let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
                if let Some(parent) = claims.pointer_mut(parent).and_then(Value::as_object_mut) {
                    parent.insert(name.to_owned(), value.clone());
                }
                format!(", {pointer} {value}")
            }
        }
    }

    /// A token with this header and payload, signed with the apiserver's key as RS256.
    fn sign(&self, header: &str, payload: &str) -> String {
        let key = rustls::crypto::ring::sign::any_supported_type(&self.key).expect("an RSA key");
        let signer = key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]).expect("RS256");
        let signed = format!("{}.{}", BASE64_URL_SAFE_NO_PAD.encode(header), BASE64_URL_SAFE_NO_PAD.encode(payload));
        let signature = signer.sign(signed.as_bytes()).expect("an RSA key signs");
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The status of the apiserver's review of a token.
pub async fn review(direct: &Http, token: &str, audiences: &[&str]) -> Value {
    let spec = json!({"token": token, "audiences": audiences});
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let request = RequestSpec::get(path).with(Method::POST, "application/json", review.to_string());
    direct.fetch(request).await.value()["status"].clone()
}

fn claims_of(token: &str) -> Value {
    let payload = token.split('.').nth(1).expect("a JWT");
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).expect("base64url")).expect("JSON")
}
