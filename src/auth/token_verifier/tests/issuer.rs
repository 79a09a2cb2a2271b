//! A cluster's issuer of service account tokens, with an RSA key and an elliptic one.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RsaEncoding,
};
use serde_json::{Value, json};

use crate::auth::BearerToken;
use crate::upstream::CredentialId;

pub(in crate::auth) struct Issuer {
    elliptic: EcdsaKeyPair,
    rsa: rsa::KeyPair,
}

pub(in crate::auth) const ISSUER: &str = "https://kubernetes.default.svc";
pub(in crate::auth) const ACCOUNT_UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";
pub(in crate::auth) const POD_UID: &str = "0a1b2c3d-0000-4000-8000-000000000002";
pub(in crate::auth) const NODE_UID: &str = "0a1b2c3d-0000-4000-8000-000000000003";
pub(in crate::auth) const SECRET_UID: &str = "0a1b2c3d-0000-4000-8000-000000000004";

impl Issuer {
    pub(in crate::auth) fn new() -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let elliptic = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        // ring generates no RSA keys.
        let rsa = rsa::KeyPair::from_der(&BASE64_STANDARD.decode(RSA_KEY).expect("base64"));
        Self { elliptic: elliptic.expect("a key"), rsa: rsa.expect("a key") }
    }

    /// The key set in the form that the apiserver publishes.
    pub(in crate::auth) fn jwks(&self) -> Value {
        let public = self.public_point();
        let components: rsa::PublicKeyComponents<Vec<u8>> = self.rsa.public().into();
        let (x, y) = public[1..].split_at(32);
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [
            {"use": "sig", "kty": "EC", "kid": "ec", "crv": "P-256", "alg": "ES256", "x": encode(x), "y": encode(y)},
            {"use": "sig", "kty": "RSA", "kid": "rsa", "alg": "RS256", "n": encode(&components.n), "e": encode(&components.e)},
        ]})
    }

    pub(super) fn public_point(&self) -> Vec<u8> {
        self.elliptic.public_key().as_ref().to_vec()
    }

    pub(super) fn public_modulus(&self) -> Vec<u8> {
        let components: rsa::PublicKeyComponents<Vec<u8>> = self.rsa.public().into();
        components.n
    }

    /// A token with these claims, signed by the elliptic key.
    pub(in crate::auth) fn token(&self, claims: &Value) -> String {
        self.signed(r#"{"alg":"ES256","kid":"ec"}"#, &claims.to_string())
    }

    /// A token with this header and these claims, signed by the elliptic key whatever the header says.
    pub(super) fn signed(&self, header: &str, claims: &str) -> String {
        let signed = unsigned(header, claims);
        let signature = self.elliptic.sign(&SystemRandom::new(), signed.as_bytes()).expect("a signature");
        with_signature(&signed, signature.as_ref())
    }

    pub(super) fn rs256(&self, header: &str, claims: &str) -> String {
        self.signed_by_rsa(&RSA_PKCS1_SHA256, header, claims)
    }

    pub(super) fn rs512(&self, header: &str, claims: &str) -> String {
        self.signed_by_rsa(&RSA_PKCS1_SHA512, header, claims)
    }

    fn signed_by_rsa(&self, encoding: &'static dyn RsaEncoding, header: &str, claims: &str) -> String {
        let (signed, mut signature) = (unsigned(header, claims), vec![0; self.rsa.public().modulus_len()]);
        self.rsa.sign(encoding, &SystemRandom::new(), signed.as_bytes(), &mut signature).expect("a signature");
        with_signature(&signed, &signature)
    }
}

/// The claims of a token that is valid from `now`, for an account and these other objects.
pub(in crate::auth) fn claims(now: u64, bound: &Value) -> Value {
    let mut kubernetes = json!({"namespace": "t1", "serviceaccount": {"name": "agent", "uid": ACCOUNT_UID}});
    let members = kubernetes.as_object_mut().expect("an object");
    members.extend(bound.as_object().cloned().unwrap_or_default());
    json!({
        "aud": [ISSUER], "exp": now + 3600, "iat": now, "iss": ISSUER, "jti": "4f9a", "nbf": now,
        "kubernetes.io": kubernetes, "sub": "system:serviceaccount:t1:agent",
    })
}

pub(super) fn unsigned(header: &str, claims: &str) -> String {
    format!("{}.{}", BASE64_URL_SAFE_NO_PAD.encode(header), BASE64_URL_SAFE_NO_PAD.encode(claims))
}

pub(super) fn with_signature(signed: &str, signature: &[u8]) -> String {
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// The identifier of a token and the token.
pub(super) fn bearer(token: &str) -> (CredentialId, BearerToken) {
    let id = digest(&SHA256, token.as_bytes());
    (CredentialId::new(id.as_ref().try_into().expect("SHA-256 has 32 bytes")), BearerToken::new(token))
}

/// A key that signs nothing but the tokens of these tests.
const RSA_KEY: &str = "\
     MIIEpAIBAAKCAQEAoVfzUU4ryuViYKET4RWTHx9KE0z582LQ7KB72fAsrvNxHUx8st2X0FOtYZOoQGZyWp6YsBBdx84ZNl+Lrk1F\
     X0m+h0pSOaE2Pzr/pTIr++BDz1JzmCQ5ddL/0uPeOgOeRb3nAhwkiwTMh4MvTScp0QdHwQIuu8aLiPc9qrxFNpny4DE9H0hLAnLN\
     QOPladKguUIf1GfWtnMVwdLDISrOBL+SJrcTqysFyEYe82FsGUIS17iLSzUBdr4qgnjfXDI3CmwnBEP2t7ZTETP2ML1gymOZxBMU\
     2+RxmpAaDoQ3MjWPyZaUKTKxlmHcD2D5kSWMPPbl4BjkGt68eYQw84lpHwIDAQABAoIBAC++2TBcU7VNQFmcEUfwnIL/PWqMwwL1\
     YSJFM6GA45g6TmT/N3+u97gcqxhPG+FC7+BFQqYHkdkI8okWqT1BfKAAMLPUmJSZUnZPvUtjl4SID0kQ+0gwoBhwAmikKiU84N9+\
     nRgQv/eryeLoPV01k7hZ0TAatz22OaCkmckmwcywNcwN4QiF9NUGmCMjyFhRPHwUZN/+A9pMzFn7tH6RcVxzZkyHhKFWhPIKKmKP\
     BdmLVTI82LFmRxWnxmamWOZfWEdWqzsb3Tb+/5//p/R/ry0abqjtk1N1zgsT6DZB04+Fs9pgHsr2NGf0xwadf3Ua/WAKtWvcnpae\
     CuaTWSIg5XECgYEA0RSHPetmz9UMxrvjANcH2Jx8TiCDzke8m5zQETDOxODC740FOb2JuYBso4i/NxLfS93h/zTKfP+DL8YHfOSp\
     XeuGsBvEmC+mcfpLAixIwx/aBkcOer3Gn7zGRwGUKcVgUNVkmso7Y5bmSSuokcMhvH9gU7TuNiXn0UHcC6dveU0CgYEAxYz+sypj\
     4P0lpalo99gSLtEtnGwtRLMG9j2CR5Hths462ZDhK8h4X9XrUqU/zyqkyy3fKu7AJwLLn7Qd94Lo4ecgkP6G6lWHnv9RZFITd+4n\
     G4kbJOosRGCnRruZW4ZRkkVgFE+dUNIV68/+IHAT/QC42FvEt5OX4q6cj1pHFhsCgYEAyhwGAB0mbZGNoC7P6Wfz9biPkRZtU2KV\
     N/gGShfcSQTca6TugDpwgBlc61itPxfHMxdx97mYY+y7a9sKMfj4oAmlUWgGSvcE9vj0uU0FqVmI8LiPjqcU8iURpmIoT5i02m7t\
     qZQEhOjCA8loUj9GxWh8PW6RN1a9GNOJWtqoL6ECgYEApUzjWpvf00U/mSz2TlyYamBR4A+MmW2MJ8M0Hhr3O9OY3rAiGfa28soX\
     DKKFkB3IotKRaGU6l+n45Htcj90UbOJvF6RC1BYZU2ukeWNMMxAt3RaOhgcEX3rYvZEAM9tiqhgu2w/7PMNt4FG7/PyLXSqbgT7Y\
     jhuL/fvJuRH7ZX0CgYBJXXtHDruC12aPOoHuPnQ9OVaWzTAIia2boQ7fY4dF/0p4Bnc6mVBJ0np94qfJ4R5yJWM2JQDf9i15uyYU\
     8vyERHmg2UmnnHOKKmIie+3BPIZSa7uWAG5l/apBvz8V42qoC636UaFDI1v0o+AMmatSWEC/0RLPkqVYFEINVa6yMw==\
     ";
