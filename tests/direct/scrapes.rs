//! Permission to read metrics on the address for other machines, where upstream authorizes (docs/SECURITY.md, "Metrics
//! and health addresses").

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use demo::{self, ReviewCounts, RunningDemoApiserver};
use http::Method;
use kube_fanout::auth::{AuthConfig, AuthMode};
use kube_fanout::config::{ServeSettings, TlsCertificateSource};

use crate::chains::{Authority, YEAR};
use crate::direct::{self, Answer, App, Client, Dir, PODS, Plan, Protocol, Trust, eventually, pair};
use crate::process::{kubeconfig, metric, run};

/// TTL after which a cached decision has practically expired.
const MOMENT: Duration = Duration::from_millis(10);

/// Makes the metrics listener authenticate scrapers with upstream, on an address of its own with a certificate and key
/// in `dir`.
fn authenticated(plan: Plan, dir: &Dir) -> Plan {
    let own = pair();
    let certificate = dir.file("metrics.crt", &own.cert.pem());
    let key = dir.file("metrics.key", &own.signing_key.serialize_pem());
    let plan = plan.trusting(certificate.clone());
    scraped(plan).with(|config| config.metrics_tls = Some(TlsCertificateSource::Files { certificate, key }))
}

fn scraped(plan: Plan) -> Plan {
    plan.with(|config: &mut ServeSettings| {
        let anywhere = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        (config.healthz, config.metrics) = (anywhere, anywhere);
        config.scrapes = Some(AuthConfig::of_scrapes(&config.delegated.auth));
    })
}

/// An upstream that knows `thyme`, who may scrape, and `cumin`, who may not.
async fn upstream() -> RunningDemoApiserver {
    let up = demo::upstream().pods(3).run().await;
    for (token, user) in [("thyme", "prometheus"), ("cumin", "nosy")] {
        up.reviews().give(token, user);
    }
    up.reviews().allow("prometheus", "/metrics");
    up.reviews().allow("nosy", "/debug/watches");
    up
}

async fn scrape(app: &App, token: &str) -> Answer {
    app.metrics_client().bearing(token).get("/metrics").await
}

fn is_metrics(answer: &Answer) -> bool {
    answer.status == 200 && answer.text().contains("kube_fanout_connections_open")
}

#[tokio::test]
async fn scrape_requires_token_with_metrics_permission() {
    let (up, dir) = (upstream().await, Dir::new());
    let app = authenticated(direct::app(&up), &dir).run().await;
    let unauthorized = (401, "Unauthorized".to_owned());
    assert_eq!(app.metrics_client().get("/metrics").await.refusal(), unauthorized, "without a token");
    assert_eq!(scrape(&app, "stolen").await.refusal(), unauthorized);
    let denied = scrape(&app, "cumin").await;
    assert_eq!(denied.refusal(), (403, "Forbidden".to_owned()));
    assert_eq!(denied.json()["message"], "forbidden: User \"nosy\" cannot get path \"/metrics\"");
    assert_eq!(denied.header("content-type"), Some("application/json"));
    assert_eq!(denied.json()["kind"], "Status");
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = app.metrics_client().over(protocol).bearing("thyme");
        let page = client.get("/metrics").await;
        assert!(is_metrics(&page), "{}", page.text());
        assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4"));
        assert_eq!(client.request(Method::HEAD, "/metrics").send().await.status, 200);
        assert_eq!(client.request(Method::POST, "/metrics").send().await.status, 405);
        for path in ["/debug/watches", "/debug/feeds", "/readyz", "/", PODS] {
            assert_eq!(client.get(path).await.status, 404, "{path}");
        }
    }
    // Web pages have no token, so any host name is allowed.
    let named = app.metrics_client().bearing("thyme").request(Method::GET, "/metrics").host("fanout.system.svc");
    assert_eq!(named.send().await.status, 200);
    // A client without TLS gets nothing.
    let plain = Client::to(direct::Place::parse(&app.metrics_client().url()))
        .bearing("thyme")
        .request(Method::GET, "/metrics")
        .try_send();
    assert!(plain.await.map_or(true, |answer| answer.status >= 400), "not in the clear");
    // Probes have no token, and local processes can always read metrics on the admin address.
    let before = up.reviews().counts();
    assert_eq!(app.healthz_client().get("/livez").await.status, 200);
    assert_eq!(app.admin("/metrics").await.status, 200);
    assert_eq!(up.reviews().counts(), before);
}

#[tokio::test]
async fn repeated_scrapes_use_cached_reviews() {
    let (up, dir) = (upstream().await, Dir::new());
    let long = std::time::Duration::from_secs(600);
    let remembering = authenticated(direct::app(&up), &dir).with(|config| {
        let scrapes = config.scrapes.as_mut().expect("delegated scrapes");
        (scrapes.token_ttl, scrapes.allowed_ttl, scrapes.denied_ttl) = (long, long, long);
    });
    let app = remembering.run().await;
    app.discovered().await;
    assert_eq!(up.reviews().counts(), ReviewCounts::default(), "no scrape, no question");
    for _ in 0..10 {
        assert!(is_metrics(&scrape(&app, "thyme").await));
    }
    assert_eq!(up.reviews().counts(), ReviewCounts { tokens: 1, accesses: 1 });
    for _ in 0..10 {
        assert_eq!(scrape(&app, "cumin").await.status, 403);
        assert_eq!(scrape(&app, "stolen").await.status, 401);
        assert_eq!(app.metrics_client().get("/metrics").await.status, 401);
    }
    assert_eq!(up.reviews().counts(), ReviewCounts { tokens: 3, accesses: 2 }, "a denial is cached too");
}

#[tokio::test]
async fn guessed_scrape_tokens_are_limited_and_block_no_valid_scraper() {
    let (up, dir) = (upstream().await, Dir::new());
    let app = authenticated(direct::app(&up), &dir)
        .with(|config| config.scrapes.as_mut().expect("delegated scrapes").token_ttl = MOMENT)
        .run()
        .await;
    assert!(is_metrics(&scrape(&app, "thyme").await), "known before");
    let (began, guesser) = (Instant::now(), app.metrics_client().multiplexed().await);
    let (mut shed, mut scrapes) = (0, 0);
    for guess in 0..300 {
        let answer = guesser.bearing(&format!("guess-{guess}")).get("/metrics").await;
        assert!([401, 429].contains(&answer.status), "{}", answer.text());
        if answer.status == 429 {
            assert!(answer.header("retry-after").is_some() && answer.json()["reason"] == "TooManyRequests");
            shed += 1;
        }
        if guess % 60 == 59 {
            tokio::time::sleep(2 * MOMENT).await;
            assert!(is_metrics(&scrape(&app, "thyme").await), "after {guess} guesses");
            scrapes += 1;
        }
    }
    let limits = AuthConfig::of_scrapes(&AuthConfig::default());
    let seconds = began.elapsed().as_secs() + 1;
    let stated = u64::from(limits.reviews_burst_per_source) + seconds * u64::from(limits.reviews_per_source);
    let reviewed = up.reviews().counts().tokens;
    assert!(reviewed <= stated + 1 + scrapes, "{reviewed} questions in {seconds} s");
    // A stalled machine may leave time for all of them.
    assert!(shed > 0 || stated >= 300, "there were more guesses than that");
}

#[tokio::test]
async fn scrape_is_refused_after_revocation_or_review_outage() {
    let (up, dir) = (upstream().await, Dir::new());
    let quickly = |config: &mut ServeSettings| {
        let scrapes = config.scrapes.as_mut().expect("delegated scrapes");
        (scrapes.token_ttl, scrapes.allowed_ttl, scrapes.denied_ttl) = (MOMENT, MOMENT, MOMENT);
    };
    let app = authenticated(direct::app(&up), &dir).with(quickly).run().await;
    let answers = |status: u16| {
        let app = &app;
        async move { eventually(&format!("{status}"), || async { scrape(app, "thyme").await.status == status }).await }
    };
    answers(200).await;
    up.reviews().deny("prometheus", "/metrics");
    answers(403).await;
    up.reviews().allow("prometheus", "/metrics");
    answers(200).await;
    up.reviews().take("thyme");
    answers(401).await;
    up.reviews().give("thyme", "prometheus");
    answers(200).await;
    // If upstream does not respond, or does not let the proxy create reviews, the scrape is refused.
    for refusal in [500, 503, 403] {
        up.reviews().refuse(Some(refusal));
        answers(503).await;
        let unknown = scrape(&app, "thyme").await;
        assert_eq!(
            (unknown.json()["reason"].as_str(), unknown.header("retry-after")),
            (Some("ServiceUnavailable"), Some("1"))
        );
        assert!(!unknown.text().contains("kube_fanout_"), "{}", unknown.text());
        up.reviews().refuse(None);
        answers(200).await;
    }
    up.faults().down().await;
    answers(503).await;
}

#[tokio::test]
async fn metrics_certificate_reloads_when_files_change() {
    let (up, dir) = (upstream().await, Dir::new());
    let app = authenticated(direct::app(&up), &dir).run().await;
    assert!(is_metrics(&scrape(&app, "thyme").await));
    let failed = || async {
        let text = app.admin("/metrics").await.text();
        metric(&text, "kube_fanout_reloads_total", "what=\"metrics_certificate\",outcome=\"failed\"")
    };
    let (before, new) = (failed().await, pair());
    dir.file("metrics.crt", &new.cert.pem());
    eventually("its key is not written yet", || async { failed().await > before }).await;
    assert!(is_metrics(&scrape(&app, "thyme").await), "the old one is still good");
    dir.file("metrics.key", &new.signing_key.serialize_pem());
    let trusting =
        app.metrics_client().clone().trusting(Some(Trust::in_file(&dir.join("metrics.crt")))).bearing("thyme");
    let renewed =
        || async { trusting.request(Method::GET, "/metrics").try_send().await.is_ok_and(|it| is_metrics(&it)) };
    eventually("the new certificate is served", renewed).await;
}

/// A certificate needs no TokenReview, and a browser that presents one for a web page is detected.
#[tokio::test]
async fn scrape_with_client_certificate_is_authorized() {
    let (up, dir) = (upstream().await, Dir::new());
    let (authority, stranger) = (Authority::new("clients", Some(YEAR)), Authority::new("strangers", Some(YEAR)));
    let app = scraped(direct::app(&up).for_certificates_of(&authority.pem, &dir)).run().await;
    let own = dir.join("own.pem");
    let showing = |of: &Authority, name: &str| {
        let identity = Trust::showing(&own, &of.issue(name));
        app.metrics_client().over(Protocol::Http1).trusting(Some(identity))
    };
    let prometheus = showing(&authority, "prometheus");
    assert!(is_metrics(&prometheus.get("/metrics").await));
    assert_eq!(up.reviews().counts(), ReviewCounts { tokens: 0, accesses: 1 });
    assert_eq!(showing(&authority, "nosy").get("/metrics").await.status, 403);
    assert_eq!(showing(&stranger, "prometheus").get("/metrics").await.status, 401);
    let of_a_page = prometheus.request(Method::GET, "/metrics").header("sec-fetch-site", "cross-site").send().await;
    assert_eq!(of_a_page.status, 403);
    // Both listeners use the listeners' own certificate, and the authorization of clients is unchanged.
    assert!(is_metrics(&scrape(&app, "thyme").await));
    assert_eq!(app.bearing("thyme").get("/api/v1/namespaces/default/pods").await.status, 403);
}

/// Guessed tokens on a widely reachable address do not reduce clients' review budget.
#[tokio::test]
async fn guessed_scrape_tokens_do_not_use_client_review_budget() {
    let (up, dir) = (upstream().await, Dir::new());
    up.reviews().give("sage", "ada");
    up.reviews().allow("ada", "default");
    let few = |config: &mut ServeSettings| {
        config.auth = AuthMode::Delegated;
        config.delegated.auth.reviews_burst_per_source = 1;
        config.delegated.auth.reviews_per_source = 1;
    };
    let app = authenticated(direct::app(&up).with(few), &dir).run().await;
    for guess in 0..50 {
        scrape(&app, &format!("guess-{guess}")).await;
    }
    assert_eq!(app.bearing("sage").get("/api/v1/namespaces/default/pods").await.status, 200);
}

#[test]
fn metrics_auth_without_tls_is_rejected_with_all_errors() {
    let check = |flags: &[&str]| run(&[&["config", "check"], flags].concat());
    let scraped = ["--metrics-bind-address", "0.0.0.0:10249", "--metrics-auth", "delegated"];
    let dir = Dir::new();
    let file = |text: &str| dir.file("config.yaml", text).display().to_string();
    let of_file = |text: &str| check(&["--config", &file(text)]);
    for good in [
        check(&[&scraped[..], &["--tls-self-signed"]].concat()),
        of_file("metricsBindAddress: 0.0.0.0:10249\nmetrics: {auth: delegated, tls: {selfSigned: true}}\n"),
        of_file("metricsBindAddress: 0.0.0.0:10249\nmetrics: {tls: {selfSigned: true}}\n"),
        of_file(
            "metricsBindAddress: 0.0.0.0:10249\nmetrics: {auth: delegated, tls: {selfSigned: true}}\n\
             delegated: {audiences: [metrics]}\n",
        ),
    ] {
        assert_eq!(good.code, Some(0), "{}", good.stderr);
    }
    let all = of_file(
        "metricsBindAddress: off\nmetrics: {auth: delegated}\ndelegated: {tokenTTL: 20s}\nlimits: {watches: 0}\n",
    );
    let in_the_clear = "metrics.auth: without TLS the tokens of scrapes would be sent in clear text";
    for message in [
        in_the_clear,
        "metrics.* requires metricsBindAddress",
        "delegated.* requires auth: delegated",
        "limits.watches",
    ] {
        assert!(all.code == Some(78) && all.stderr.contains(message), "{message}: {}", all.stderr);
    }
    let clear = check(&scraped);
    assert!(clear.code == Some(78) && clear.stderr.contains(in_the_clear), "{}", clear.stderr);
    let other = check(&["--metrics-auth", "token", "--metrics-bind-address", "0.0.0.0:10249"]);
    let message = "metrics.auth: unknown variant `token`, expected `none` or `delegated`";
    assert!(other.code == Some(78) && other.stderr.contains(message), "{}", other.stderr);
    let half = of_file("metricsBindAddress: 0.0.0.0:10249\nmetrics: {tls: {certificate: /tmp/x}}\n");
    let message = "metrics.tls: set either certificate and key, or selfSigned";
    assert!(half.code == Some(78) && half.stderr.contains(message), "{}", half.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_missing_token_review_permission_for_scrapes() {
    let (up, dir) = (upstream().await, Dir::new());
    let file = kubeconfig(&dir, &up.url(), "").display().to_string();
    let config =
        "preload: [pods]\nmetricsBindAddress: 0.0.0.0:10249\nmetrics: {auth: delegated, tls: {selfSigned: true}}\n";
    let config = dir.file("config.yaml", config).display().to_string();
    let checked = || {
        let arguments = ["check", "--kubeconfig", &file, "--config", &config].map(str::to_owned);
        async move {
            let running = tokio::task::spawn_blocking(move || run(&arguments.each_ref().map(String::as_str)));
            running.await.expect("no panic")
        }
    };
    let all = checked().await;
    assert_eq!(all.code, Some(0), "{}{}", all.stdout, all.stderr);
    up.reviews().lack("create", "tokenreviews");
    let missing = checked().await;
    let message =
        "the proxy may not create tokenreviews.authentication.k8s.io: scrapes cannot be authenticated (metrics.auth)";
    assert!(missing.code == Some(1) && missing.stdout.contains(message), "{}", missing.stdout);
}
