//! Certificates, keys and credentials are replaced in their files while the process runs (O6).

use std::path::PathBuf;

use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::net::{ClientCertificates, ConnectionLimits, Listener, ListenerTls};
use kube_fanout::upstream::CredentialSource;

use crate::direct::{self, App, Dir, Listening, Pair, Protocol, Trust, eventually, pair, within};
use crate::process::{Process, metric, run};

/// Writes a certificate and then its key, as operators do.
fn install(dir: &Dir, name: &str, pair: &Pair) -> (PathBuf, PathBuf) {
    let certificate = dir.file(&format!("{name}.crt"), &pair.cert.pem());
    (certificate, dir.file(&format!("{name}.key"), &pair.signing_key.serialize_pem()))
}

/// Corrupts a file, and returns when the application has noticed.
async fn spoil(app: &App, dir: &Dir, file: &str, text: &str, what: &str) {
    let failed = || async {
        let label = format!("what=\"{what}\",outcome=\"failed\"");
        metric(&app.admin("/metrics").await.text(), "kube_fanout_reloads_total", &label)
    };
    // The counter is global to the test process, so other tests may add failures.
    let before = failed().await;
    dir.file(file, text);
    eventually(&format!("{file} is found to be spoilt"), || async { failed().await > before }).await;
}

#[tokio::test]
async fn rotated_serving_certificate_applies_to_new_connections() {
    let up = demo::upstream().run().await;
    let (dir, old, new) = (Dir::new(), pair(), pair());
    let (certificate, key) = install(&dir, "tls", &old);
    let app = direct::app(&up).tls_from(certificate.clone(), key).run().await;
    let kept_client = app.multiplexed().await;
    assert_eq!(kept_client.get("/version").await.status, 200);
    let half = new.cert.pem();
    spoil(&app, &dir, "tls.crt", &half[..half.len() / 2], "listener_certificate").await;
    assert_eq!(app.get("/version").await.status, 200, "the old one is still good");
    spoil(&app, &dir, "tls.crt", &half, "listener_certificate").await;
    assert_eq!(app.get("/version").await.status, 200, "its key is not written yet");
    install(&dir, "tls", &new);
    let trusting = app.over(Protocol::Http1).trusting(Some(Trust::in_file(&certificate)));
    let renewed = || async { trusting.request(Method::GET, "/version").try_send().await.is_ok() };
    eventually("the new certificate is served", renewed).await;
    let refused = app.over(Protocol::Http1).request(Method::GET, "/version").try_send().await;
    assert!(refused.is_err(), "the old certificate is no longer served");
    assert_eq!(kept_client.get("/version").await.status, 200, "an open connection keeps its certificate");
}

/// The kubelet writes certificate and key into one file, and exchanges the link to it.
#[tokio::test]
async fn exchanged_link_to_certificate_with_key_applies_to_new_connections() {
    let up = demo::upstream().run().await;
    let (dir, old, new) = (Dir::new(), pair(), pair());
    let link = dir.join("kubelet-server-current.pem");
    let exchange = |name: &str, pair: &Pair| {
        let file = dir.file(name, &format!("{}{}", pair.cert.pem(), pair.signing_key.serialize_pem()));
        std::os::unix::fs::symlink(file, dir.join("next")).expect("a link");
        std::fs::rename(dir.join("next"), &link).expect("a link");
    };
    exchange("kubelet-server-1.pem", &old);
    let app = direct::app(&up).tls_from(link.clone(), link.clone()).run().await;
    assert_eq!(app.get("/version").await.status, 200);
    exchange("kubelet-server-2.pem", &new);
    let authority = dir.file("new.crt", &new.cert.pem());
    let trusting = app.over(Protocol::Http1).trusting(Some(Trust::in_file(&authority)));
    let renewed = || async { trusting.request(Method::GET, "/version").try_send().await.is_ok() };
    eventually("the new certificate is served", renewed).await;
}

/// A certificate that expired in 2021, and its key.
fn install_expired(dir: &Dir, name: &str) -> [String; 2] {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2021, 2, 3);
    let certificate = dir.file(&format!("{name}.crt"), &parameters.self_signed(&key).expect("a certificate").pem());
    [certificate, dir.file(&format!("{name}.key"), &key.serialize_pem())].map(|path| path.display().to_string())
}

/// Clients only see a failed handshake, so the operator must learn of it from logs, metrics and status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_serving_certificate_shows_in_log_metrics_and_status() {
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let [certificate, key] = install_expired(&dir, "tls");
    let process = Process::serve(&dir, &up.url(), &["--tls-cert", &certificate, "--tls-key", &key]).await;
    let (name, of) = ("kube_fanout_certificate_expiry_timestamp_seconds", "what=\"listener_certificate\"");
    let expiry = async || metric(&process.metrics().await, name, of);
    assert!((expiry().await - 1_612_310_400.0).abs() < 1.0, "midnight before 2021-02-03");
    eventually("ready", || process.is_ready()).await;
    let admin = process.admin_url().to_owned();
    let status = async || {
        let arguments = ["fanout", "status", "--address", &admin].map(str::to_owned);
        tokio::task::spawn_blocking(move || run(&arguments.each_ref().map(String::as_str))).await.expect("no panic")
    };
    let expired = status().await;
    assert_eq!(expired.code, Some(1), "{}{}", expired.stdout, expired.stderr);
    assert!(expired.stdout.contains("listener_certificate: expired"), "{}", expired.stdout);
    // Half a file: the previous certificate stays in use, and the failure is reported as well.
    dir.file("tls.crt", "half of");
    let failing = || async { metric(&process.metrics().await, "kube_fanout_reload_failing", of) > 0.5 };
    eventually("the file is looked at", failing).await;
    let spoilt = status().await;
    let why = "listener_certificate: reload failed; keeping the previous one";
    assert!(spoilt.code == Some(1) && spoilt.stdout.contains(why), "{}{}", spoilt.stdout, spoilt.stderr);
    // The key first, because it is read together with its certificate.
    let new = pair();
    dir.file("tls.key", &new.signing_key.serialize_pem());
    dir.file("tls.crt", &new.cert.pem());
    eventually("the new certificate is in force", || async { expiry().await > 4e10 }).await;
    eventually("all is well", || async { status().await.code == Some(0) }).await;
    process.signal("TERM");
    let log = process.ended().await.stderr;
    let warning = "certificate is expired or not yet valid; peers reject it until it is replaced";
    assert!(log.contains(warning) && log.contains("expired on Feb  3"), "{log}");
}

/// A kubeconfig whose files have relative paths, as kubeadm writes them.
fn kubeconfig(address: &str) -> String {
    let cluster = format!("{{server: 'https://{address}', certificate-authority: ca.pem}}");
    let user = "{client-certificate: client.crt, client-key: client.key}";
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts:\n- {{name: x, context: {{cluster: c, user: u}}}}\n\
         clusters:\n- {{name: c, cluster: {cluster}}}\nusers:\n- {{name: u, user: {user}}}\n"
    )
}

async fn next(stream: &mut Incoming) -> String {
    let frame = within("a piece of the stream", stream.frame()).await.expect("it continues").expect("unbroken");
    String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text")
}

#[tokio::test]
async fn rotated_upstream_credentials_apply_to_new_requests() {
    let (dir, old, new, newer) = (Dir::new(), pair(), pair(), pair());
    let tls =
        ListenerTls::self_signed(vec!["127.0.0.1".to_owned()], ClientCertificates::Requested).expect("a certificate");
    dir.file("ca.pem", tls.self_signed_pem().expect("we made it"));
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let address = listener.local_address().expect("it is bound").to_string();
    let upstream = Listening::start(listener, Some(tls), ConnectionLimits::default());
    install(&dir, "client", &old);
    let credentials = CredentialSource::File(dir.file("kubeconfig", &kubeconfig(&address)));
    let app = direct::by(credentials).run().await;
    let asked_as = |pair: Pair| {
        let (app, upstream) = (&app, &upstream);
        let leaf = pair.cert.der().to_vec();
        let has_received = move || {
            let leaf = leaf.clone();
            async move { app.get("/version").await.status == 200 && upstream.certificate_at("/version") == Some(leaf) }
        };
        async move { eventually("upstream receives it", has_received).await }
    };
    asked_as(old).await;
    let mut stream = app.request(Method::GET, "/stream").open().await.expect("a stream").into_body();
    upstream.send_to_all("one");
    assert_eq!(next(&mut stream).await, "one");
    install(&dir, "client", &new);
    asked_as(new).await;
    upstream.send_to_all("two");
    assert_eq!(next(&mut stream).await, "two", "open streams continue");
    let accepted = upstream.certificate_at("/version");
    let plaintext = kubeconfig("10.1.2.3:1").replace("https:", "http:");
    for spoilt in ["apiVersion: v1\nkind: Conf", &kubeconfig("127.0.0.1:1"), &plaintext] {
        spoil(&app, &dir, "kubeconfig", spoilt, "upstream_credentials").await;
        assert_eq!(app.get("/version").await.status, 200);
        assert_eq!(upstream.certificate_at("/version"), accepted, "the last good ones stay: {spoilt}");
    }
    dir.file("kubeconfig", &kubeconfig(&address));
    let authority = std::fs::read_to_string(dir.join("ca.pem")).expect("it is there");
    for spoilt in ["", "half of", &authority[..authority.len() / 2]] {
        spoil(&app, &dir, "ca.pem", spoilt, "upstream_credentials").await;
        assert_eq!(app.get("/version").await.status, 200, "the last good authority stays: {spoilt:?}");
    }
    dir.file("ca.pem", &authority);
    install(&dir, "client", &newer);
    asked_as(newer).await;
}
