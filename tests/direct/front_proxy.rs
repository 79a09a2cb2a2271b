//! Only a trusted front proxy may assert the identity of its callers (`X-Remote-*`).

use http::Method;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedKey, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::direct::{self, Answer, App, Dir, PODS, Pair, Trust};

/// A CA for client certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let (key, mut params) = (KeyPair::generate().expect("a key"), params(name));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, name: &str) -> Pair {
        let (signing_key, mut params) = (KeyPair::generate().expect("a key"), params(name));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        CertifiedKey { cert: params.signed_by(&signing_key, &self.issuer).expect("signed"), signing_key }
    }
}

async fn fetch(app: &App, trust: Trust, headers: &[(&str, &str)]) -> Answer {
    let client = app.listener(0).trusting(Some(trust));
    let call = headers.iter().fold(client.request(Method::GET, PODS), |call, (name, value)| call.header(name, value));
    call.send().await
}

/// R-THREAT-2: `X-Remote-*` counts only with a certificate of a CA dedicated to front proxies.
#[tokio::test]
async fn only_trusted_front_proxy_can_assert_identity() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().allow("ada", "*");
    let (dir, clients, proxies) = (Dir::new(), Authority::new("clients"), Authority::new("proxies"));
    let (certificate, proxy_ca) = (dir.join("own.pem"), dir.file("proxies.pem", &proxies.pem));
    let plan = direct::app(&up).for_certificates_of(&clients.pem, &dir).with(|config| {
        config.delegated.front_proxy_ca = Some(proxy_ca);
        config.delegated.front_proxy_names = vec!["aggregator".to_owned()];
    });
    let app = plan.run().await;
    let showing = |pair: &Pair| Trust::showing(&certificate, pair);
    let (aggregator, other) = (proxies.issue("aggregator"), proxies.issue("another"));
    let (ada, bob) = (clients.issue("ada"), clients.issue("bob"));
    let says_ada = [("x-remote-user", "ada")];

    let response = fetch(&app, showing(&aggregator), &says_ada).await;
    assert!(response.is_cached(), "{}", response.text());
    let response = fetch(&app, showing(&aggregator), &[("x-remote-user", "bob"), ("x-remote-group", "dev")]).await;
    assert!(response.text().contains(r#"User \"bob\" cannot list"#), "{}", response.text());
    assert!(fetch(&app, showing(&ada), &[]).await.is_cached(), "a certificate without headers");

    for (who, pair, headers) in [
        ("a front proxy that names no user", &aggregator, &[][..]),
        ("another holder of the proxies' authority", &other, &says_ada),
    ] {
        let refused = fetch(&app, showing(pair), headers).await;
        assert_eq!(refused.refusal(), (401, "Unauthorized".to_owned()), "{who}");
    }
    let refused = fetch(&app, showing(&bob), &says_ada).await;
    assert_eq!(refused.refusal().0, 403);
    assert!(refused.text().contains(r#"User \"bob\" cannot list"#), "{}", refused.text());
}

/// Without an impersonating identity, requests of certificate holders are not forwarded, not even without credentials.
#[tokio::test]
async fn certificate_client_is_not_forwarded_with_proxy_identity() {
    let up = demo::upstream().pods(3).run().await;
    let (dir, clients) = (Dir::new(), Authority::new("clients"));
    let app = direct::app(&up).for_certificates_of(&clients.pem, &dir).run().await;
    let client = app.listener(0).trusting(Some(Trust::showing(&dir.join("own.pem"), &clients.issue("ada"))));
    let path = "/api/v1/namespaces/default/pods/p/log";
    let refused = client.get(path).await;
    assert_eq!(refused.refusal().0, 403);
    assert!(refused.text().contains("delegated.impersonator"), "{}", refused.text());
    assert!(up.requests().iter().all(|seen| seen.uri.path() != path), "it was not sent upstream");
}
