//! Readiness reports preloaded feeds that lack their stream for too long (O3), and the `health` command (O5).

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use kube_fanout::auth::AuthMode;
use kube_fanout::net::ListenAddress;

use crate::direct::{self, Dir, PODS};
use crate::process::{metric, run};

const ANY: &str = "/api/v1/pods?resourceVersion=0";
const NOT_READY: &str = "[-]stream of pods not ready: ";

#[tokio::test]
async fn stale_preloaded_feed_fails_readiness_but_not_liveness() {
    let up = demo::upstream().pods(3).run().await;
    let soon =
        |config: &mut kube_fanout::config::ServeSettings| config.ready_stale_max = Some(Duration::from_millis(50));
    let app = direct::app(&up).preload("pods").with(soon).run().await;
    let is = async |code: u16| {
        direct::eventually("readiness", || async { app.admin("/readyz").await.status == code }).await;
        app.admin("/readyz").await.text()
    };
    assert!(!is(200).await.contains("stream of"));
    for _ in 0..2 {
        up.faults().down().await;
        assert!(is(503).await.starts_with(NOT_READY));
        assert_eq!(app.admin("/livez").await.status, 200, "to start it again would lose what it has");
        assert!(app.get(ANY).await.is_cached(), "requests are answered although it is not ready");
        up.faults().up().await;
        assert!(!is(200).await.contains("stream of"));
        // The state is not served until the release of the server at the other end of the new stream is known.
        direct::eventually("its state is served", || async { app.get(ANY).await.is_cached() }).await;
    }
}

/// A rolling update with a wrong role or binding must not succeed, because each request would be answered with 503.
#[tokio::test]
async fn missing_review_permission_fails_readiness_with_reason() {
    for (resource, group) in [("tokenreviews", "authentication"), ("subjectaccessreviews", "authorization")] {
        let up = demo::upstream().pods(3).run().await;
        up.reviews().lack("create", resource);
        let app = direct::app(&up).with(|config| config.auth = AuthMode::Delegated).run().await;
        app.discovered().await;
        let why = format!(
            "[-]{resource} not ready: upstream rejects them (403): grant the proxy's account create on \
             {resource}.{group}.k8s.io\n"
        );
        let says = || async {
            let text = app.admin("/readyz?verbose").await.text();
            text.starts_with(&why) && text.matches(" not ready").count() == 1
        };
        direct::eventually("that right alone is missed", says).await;
        up.reviews().unlack("create", resource);
        direct::eventually("ready", || async { app.admin("/readyz").await.status == 200 }).await;
    }
}

/// The series of a feed that has ended disappears, and readiness does not change after the first list.
#[tokio::test]
async fn preload_without_feed_is_shown_in_metrics() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).preload("pods").preload("nothings.example.com").run().await;
    let failing = async |resource: &str| {
        let text = app.admin("/metrics").await.text();
        metric(&text, "kube_fanout_preload_failing", &format!("resource=\"{resource}\""))
    };
    direct::eventually("it is counted", || async { failing("nothings.example.com").await > 0.5 }).await;
    assert!(failing("pods").await < 0.5);
}

async fn ready_metric(app: &direct::App) -> bool {
    metric(&app.admin("/metrics").await.text(), "kube_fanout_ready", "") > 0.5
}

#[tokio::test]
async fn forbidden_reviews_make_proxy_unready_until_allowed() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    let app = direct::app(&up)
        .with(|config| {
            config.auth = AuthMode::Delegated;
            let auth = &mut config.delegated.auth;
            (auth.token_ttl, auth.allowed_ttl) = (Duration::ZERO, Duration::ZERO);
        })
        .run()
        .await;
    let ada = app.bearing("a");
    let is = async |code: u16| {
        direct::eventually("readiness", || async { app.admin("/readyz").await.status == code }).await;
    };
    is(200).await;
    assert!(ada.get(PODS).await.is_cached());
    // A failing apiserver says nothing about the proxy's permissions. If it counted, all replicas would lose their
    // endpoints at once.
    up.reviews().refuse(Some(500));
    assert_eq!(ada.get(PODS).await.status, 503);
    assert_eq!(app.admin("/readyz").await.status, 200);
    up.reviews().refuse(Some(403));
    let refused = ada.get(PODS).await;
    assert_eq!((refused.status, refused.header("kube-fanout-refused-by")), (503, Some("proxy")));
    assert!(refused.text().contains("the proxy's account may not create tokenreviews (RBAC)"), "{}", refused.text());
    is(503).await;
    assert!(!ready_metric(&app).await, "an alert does not need clients");
    up.reviews().refuse(Some(401));
    let says = || async { ada.get(PODS).await.text().contains("the apiserver rejects the proxy's own credentials") };
    direct::eventually("a refused credential is no missing permission", says).await;
    up.reviews().refuse(None);
    is(200).await;
    assert!(ready_metric(&app).await);
    assert!(ada.get(PODS).await.is_cached());
}

/// All replicas have the same upstream. If all became unready at once, clients could not read the cached state.
#[tokio::test]
async fn short_outage_or_other_stale_feed_keeps_proxy_ready() {
    let up = demo::upstream().pods(3).run().await;
    let patient = direct::app(&up).preload("pods").run().await;
    let for_ever = direct::app(&up).preload("pods").with(|config| config.ready_stale_max = None).run().await;
    let at_once = |config: &mut kube_fanout::config::ServeSettings| config.ready_stale_max = Some(Duration::ZERO);
    let others = direct::app(&up).with(at_once).run().await;
    for app in [&patient, &for_ever, &others] {
        assert!(app.get(ANY).await.is_cached());
        direct::eventually("ready", || async { app.admin("/readyz").await.status == 200 }).await;
    }
    up.faults().down().await;
    for app in [&patient, &for_ever, &others] {
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
        let ready = app.admin("/readyz").await;
        assert!(ready.status == 200 && ready.text().contains("stale for"), "{}", ready.text());
    }
}

#[test]
fn config_check_validates_ready_stale_max() {
    let dir = Dir::new();
    for (text, code) in [("readyStaleMax: 90s", 0), ("readyStaleMax: 0s", 0), ("readyStaleMax: soon", 78)] {
        let file = dir.file("config.yaml", text);
        let output = run(&["config", "check", "--config", file.to_str().expect("a path")]);
        assert_eq!(output.code, Some(code), "{text}: {}", output.stderr);
    }
}

#[tokio::test]
async fn health_command_prints_one_line_and_exit_code() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let socket = dir.join("admin.sock");
    let ports = |config: &mut kube_fanout::config::ServeSettings| {
        config.healthz = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.admin = Some(ListenAddress::Unix(socket.clone()));
    };
    let app = direct::app(&up).preload("nosuchthings").with(ports).run().await;
    app.discovered().await;
    let url = app.healthz_client().url();
    let address = url.trim_start_matches("http://");
    let waits = || async { app.healthz_client().get("/readyz").await.text().starts_with("[-]preload") };
    direct::eventually("it waits for one", waits).await;
    let configured = dir.file("health.yaml", &format!("healthzBindAddress: {address}\nadmin: off\n"));
    let on_socket = dir.file("admin.yaml", &format!("admin: unix:{}\n", socket.display()));
    let (configured, on_socket) = (configured.to_str().expect("a path"), on_socket.to_str().expect("a path"));
    let (ready, pods) = (format!("{url}/readyz"), format!("{url}{PODS}"));
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mute = format!("http://{}", mute.local_addr().expect("bound"));
    // A bound socket without a listener: connections are refused, and no other process can take the port.
    let unused = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    unused.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let refuses = unused.local_addr().expect("bound").as_socket().expect("an address");
    let refuses = format!("http://{refuses}");
    for (arguments, code, message) in [
        (&[url.as_str()][..], 0, "/livez: 200 ok\n"),
        (&["--healthz-bind-address", address], 0, "/livez: 200 ok\n"),
        (&["--config", configured], 0, "/livez: 200 ok\n"),
        (&["--config", on_socket], 0, "admin.sock/livez: 200 ok\n"),
        (
            &[&ready],
            1,
            "503 [-]preload nosuchthings not ready: upstream serves no such resource; readyz check failed\n",
        ),
        (&[&pods], 1, "404 \n"),
        (&[&refuses], 2, "refused"),
        (&[&mute, "--timeout", "50ms"], 2, " in time\n"),
        (&["https://127.0.0.1:1"], 2, "neither http://HOST:PORT"),
        (&["--timeout", "soon"], 64, "soon"),
    ] {
        let patience: &[&str] = if arguments.contains(&"--timeout") { &[] } else { &["--timeout", "120s"] };
        let output = run(&[&["health"], arguments, patience].concat());
        assert_eq!(output.code, Some(code), "{arguments:?}: {}{}", output.stdout, output.stderr);
        let line = if code < 2 { &output.stdout } else { &output.stderr };
        assert!(line.contains(message), "{arguments:?}: {line}");
        assert!(code == 64 || line.lines().count() == 1, "{line}");
    }
}
