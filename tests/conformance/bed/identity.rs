//! Callers and their credentials.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::SignatureScheme;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::http::Http;
use super::plane::Plane;

/// A caller, who presents a certificate, a token, both or nothing.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// The caller's name in reports and failures.
    pub name: String,
    /// The files of the client certificate and its key.
    pub certificate: Option<PathBuf>,
    /// The bearer token; none if empty.
    pub token: String,
}

/// A service account.
#[derive(Debug, Clone)]
pub struct Account {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Identity {
    pub fn anonymous() -> Self {
        Self { name: "nobody".to_owned(), ..Self::default() }
    }

    pub fn certificate(name: &str, path: PathBuf) -> Self {
        Self { name: name.to_owned(), certificate: Some(path), ..Self::default() }
    }

    pub fn token(name: &str, token: &str) -> Self {
        Self { name: name.to_owned(), token: token.to_owned(), ..Self::default() }
    }

    /// The same caller with an additional token.
    pub fn and_token(self, token: &str) -> Self {
        Self { name: format!("{} with a token", self.name), token: token.to_owned(), ..self }
    }
}

impl Plane {
    /// A user of the test bed with a static token, for example `alice`.
    pub fn user(&self, name: &str) -> Identity {
        let token = fs::read_to_string(self.dir.join(format!("{name}.token"))).expect("the test bed writes it");
        Identity::token(name, token.trim())
    }

    /// The claims of a token like those that the apiserver issues, valid for `seconds` from now. With a negative number
    /// the token has expired.
    pub fn claims(account: &Account, seconds: i64) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let now = i64::try_from(now).expect("a year that we live to see");
        let since = now.min(now + seconds) - 60;
        let Account { namespace, name, uid } = account;
        let issuer = "https://kubernetes.default.svc";
        json!({
            "iss": issuer, "aud": [issuer], "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "iat": since, "nbf": since, "exp": now + seconds,
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
        })
    }

    /// A token with these claims, signed with the apiserver's key.
    pub fn sign(&self, claims: &Value) -> Identity {
        let key = PrivateKeyDer::from_pem_file(self.dir.join("service-account.key")).expect("the test bed keeps it");
        let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("an RSA key");
        let signer = key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]).expect("RS256");
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = format!("{}.{}", encode(&json!({"alg": "RS256", "typ": "JWT"})), encode(claims));
        let signature = signer.sign(head.as_bytes()).expect("an RSA key signs");
        let name = claims["sub"].as_str().unwrap_or("a token");
        Identity::token(name, &format!("{head}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl Account {
    pub async fn create(http: &Http, namespace: &str, name: &str) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let created = http.create(&path, json!({"metadata": {"name": name}})).await;
        let uid = created["metadata"]["uid"].as_str().expect("a uid").to_owned();
        Self { namespace: namespace.to_owned(), name: name.to_owned(), uid }
    }

    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/serviceaccounts/{}", self.namespace, self.name)
    }

    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// The account, with a token that the apiserver issues.
    pub async fn token(&self, http: &Http) -> Identity {
        self.token_for(http, &json!({})).await
    }

    /// Like [`Self::token`], with the `spec` of the `TokenRequest`.
    pub async fn token_for(&self, http: &Http, spec: &Value) -> Identity {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let made = http.create(&format!("{}/token", self.path()), request).await;
        Identity::token(&self.user(), made["status"]["token"].as_str().expect("a token"))
    }
}
