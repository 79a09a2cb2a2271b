//! Client certificate chains: the CAs that trust them, and how long they are valid (R-AUTHN-1).

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use demo::{self, RunningDemoApiserver};
use http::Method;
use http_body_util::BodyExt as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedKey, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::CertificateDer;

use crate::direct::{self, App, Client, Dir, Ended, PODS, Pair, Plan, Protocol, Trust, eventually, within};
use crate::process::metric;

const LONG: Duration = Duration::from_secs(600);
/// Lifetimes of certificates whose expiry a test awaits; certificates have whole seconds. If a machine stalls until one
/// has expired before its watch is open, the test retries with the next lifetime.
const LASTING: [Duration; 3] = [Duration::from_secs(4), Duration::from_secs(20), Duration::from_secs(90)];
/// A certificate may expire this much earlier than planned, because of whole seconds.
const WHOLE_SECOND: Duration = Duration::from_secs(1);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A CA that issues certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
    der: CertificateDer<'static>,
}

/// Valid from a year ago for this long from now; `None`: already expired.
fn params(name: &str, valid: Option<Duration>) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - YEAR).into();
    params.not_after = valid.map_or(now - Duration::from_secs(60), |valid| now + valid).into();
    params
}

impl Authority {
    pub(crate) fn new(name: &str, valid: Option<Duration>) -> Self {
        Self::signed(name, valid, |params, key| params.self_signed(key).expect("signed"))
    }

    fn appoint(&self, name: &str, valid: Option<Duration>) -> Self {
        Self::signed(name, valid, |params, key| params.signed_by(key, &self.issuer).expect("signed"))
    }

    fn signed(
        name: &str,
        valid: Option<Duration>,
        sign: impl FnOnce(&CertificateParams, &KeyPair) -> rcgen::Certificate,
    ) -> Self {
        let (key, mut params) = (KeyPair::generate().expect("a key"), params(name, valid));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = sign(&params, &key);
        Self { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn issue(&self, name: &str) -> Pair {
        let (signing_key, mut params) = (KeyPair::generate().expect("a key"), params(name, Some(YEAR)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        CertifiedKey { cert: params.signed_by(&signing_key, &self.issuer).expect("signed"), signing_key }
    }
}

/// An application that accepts certificates of these CAs, and the certificate that its clients trust.
fn plan(up: &RunningDemoApiserver, dir: &Dir, clients: &str) -> (Plan, PathBuf) {
    let plan = direct::app(up).for_certificates_of(clients, dir);
    (plan.with(|config| config.delegated.auth.recheck = LONG), dir.join("own.pem"))
}

/// A4: the watch ends at the expiry of the chain, wherever in the chain that is, because the next recheck comes later.
#[tokio::test]
async fn watch_ends_when_first_certificate_of_chain_expires() {
    let up = demo::upstream().pods(3).run().await;
    ["ada", "bob"].iter().for_each(|name| up.reviews().allow(name, "*"));
    for lasts in LASTING {
        if watches_end_with_their_chains(&up, lasts).await {
            return;
        }
    }
    panic!("each certificate had ended before its watch was open");
}

/// Returns `false` if a certificate expired before its watch was open.
async fn watches_end_with_their_chains(up: &RunningDemoApiserver, lasts: Duration) -> bool {
    let (dir, lasting) = (Dir::new(), Authority::new("lasting", Some(YEAR)));
    let (began, ending) = (Instant::now(), Authority::new("ending", Some(lasts)));
    let (between, below) = (lasting.appoint("between", Some(lasts)), ending.appoint("below", Some(YEAR)));
    let (plan, ca) = plan(up, &dir, &format!("{}{}", lasting.pem, ending.pem));
    let app = plan.run().await;
    let client = |by: &Authority, name: &str| -> Client {
        let trust = Trust::showing_chain(&ca, &by.issue(name), std::slice::from_ref(&by.der));
        app.listener(0).trusting(Some(trust)).over(Protocol::Http2)
    };
    let mut watches = Vec::new();
    for (what, client) in [("one between", client(&between, "ada")), ("the authority", client(&below, "bob"))] {
        match client.watch(PODS).from(up.revision()).open().await {
            Ok(watch) => watches.push((what, client, watch)),
            Err(refused) => {
                let is_late = refused.status == 401 && began.elapsed() + WHOLE_SECOND >= lasts;
                assert!(is_late, "{what}: {}", refused.text());
                return false;
            }
        }
    }
    for (what, client, watch) in watches {
        assert_eq!(watch.ended_in_time(lasts).await, Ended::Refused(401), "{what}");
        assert_eq!(client.get(PODS).await.status, 401, "{what}");
    }
    true
}

/// A4: an identity asserted by a front proxy lasts at most as long as the proxy's own certificates.
#[tokio::test]
async fn watch_ends_when_front_proxy_certificate_expires() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().allow("ada", "*");
    for lasts in LASTING {
        let (dir, clients) = (Dir::new(), Authority::new("clients", Some(YEAR)));
        let (began, proxies) = (Instant::now(), Authority::new("proxies", Some(lasts)));
        let (plan, ca) = plan(&up, &dir, &clients.pem);
        let front = dir.file("proxies.pem", &proxies.pem);
        let app = plan.with(|config| config.delegated.front_proxy_ca = Some(front)).run().await;
        let client = app.listener(0).trusting(Some(Trust::showing(&ca, &proxies.issue("front"))));
        let path = format!("{PODS}?watch=true&resourceVersion={}", up.revision());
        let watch = client.request(Method::GET, &path).header("x-remote-user", "ada").open().await.expect("a head");
        if watch.status() != 200 {
            assert!(watch.status() == 401 && began.elapsed() + WHOLE_SECOND >= lasts, "{}", watch.status());
            continue;
        }
        let events = within("the end of a watch", watch.into_body().collect()).await.expect("a clean end").to_bytes();
        let last: serde_json::Value = serde_json::from_slice(&events).expect("one event");
        assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &401.into()));
        return;
    }
    panic!("each certificate had ended before its watch was open");
}

#[tokio::test]
async fn expired_client_ca_is_not_trusted() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().allow("ada", "*");
    let (dir, ended, good) = (Dir::new(), Authority::new("ended", None), Authority::new("good", Some(YEAR)));
    let (plan, ca) = plan(&up, &dir, &format!("{}{}", ended.pem, good.pem));
    let app = plan.run().await;
    let get = async |by: &Authority| {
        let trust = Trust::showing(&ca, &by.issue("ada"));
        app.listener(0).trusting(Some(trust)).get(PODS).await.status
    };
    assert_eq!((get(&ended).await, get(&good).await), (401, 200));
}

/// Writes a file, and returns when the application has rejected it.
async fn refused(app: &App, dir: &Dir, file: &str, text: &str, what: &str) {
    let failed = || async {
        let label = format!("what=\"{what}\",outcome=\"failed\"");
        metric(&app.admin("/metrics").await.text(), "kube_fanout_reloads_total", &label)
    };
    // The counter is global to the test process, so other tests may add failures.
    let before = failed().await;
    dir.file(file, text);
    eventually(&format!("{file} is refused"), || async { failed().await > before }).await;
}

/// R-THREAT-2: this holds for changes of either file, in any number.
#[tokio::test]
async fn reload_rejects_ca_shared_by_clients_and_front_proxies() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().allow("ada", "*");
    let dir = Dir::new();
    let [clients, proxies, others] = ["clients", "proxies", "others"].map(|name| Authority::new(name, Some(YEAR)));
    let (plan, ca) = plan(&up, &dir, &clients.pem);
    let front = dir.file("proxies.pem", &proxies.pem);
    let app = plan.with(|config| config.delegated.front_proxy_ca = Some(front)).run().await;
    let status_for = async |by: &Authority, name: &str, says: Option<&str>| {
        let client = app.listener(0).trusting(Some(Trust::showing(&ca, &by.issue(name))));
        let call = client.request(Method::GET, PODS);
        says.into_iter().fold(call, |call, user| call.header("x-remote-user", user)).send().await.status
    };
    let as_it_was = async || {
        assert_eq!(status_for(&proxies, "front", Some("ada")).await, 200);
        assert_eq!(status_for(&proxies, "ada", None).await, 401, "a proxy is no client");
        assert_eq!(status_for(&clients, "ada", Some("bob")).await, 200, "the certificate counts, not the header");
        assert_eq!(status_for(&clients, "bob", Some("ada")).await, 403);
    };
    as_it_was().await;
    let both = format!("{}{}", proxies.pem, clients.pem);
    refused(&app, &dir, "proxies.pem", &both, "front_proxy_ca").await;
    as_it_was().await;
    refused(&app, &dir, "clients.pem", &both, "client_ca").await;
    as_it_was().await;
    // A rejected file is accepted once the other file no longer conflicts with it.
    dir.file("proxies.pem", &others.pem);
    eventually("the proxies' authority is another", || async {
        status_for(&others, "front", Some("ada")).await == 200
    })
    .await;
    eventually("and now the clients' authority accepts it", || async {
        status_for(&proxies, "ada", None).await == 200
    })
    .await;
    assert_eq!(status_for(&proxies, "bob", Some("ada")).await, 403);
}
