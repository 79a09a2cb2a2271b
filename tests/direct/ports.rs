//! Addresses that other machines read: health and metrics (O5).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use kube_fanout::app::StartError;
use kube_fanout::config::ServeSettings;
use kube_fanout::net::ListenAddress;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket};

use crate::direct::{self, App, PATIENCE, PODS, Plan, Protocol, within};
use crate::process::{kubeconfig, metric, run};

/// Maximum number of connections of a health or metrics listener.
const CONNECTIONS_MAX: usize = 128;

fn with_ports(plan: Plan) -> Plan {
    plan.with(|config: &mut ServeSettings| {
        let anywhere = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
        (config.healthz, config.metrics) = (anywhere, anywhere);
    })
}

async fn probe(app: &App, path: &str) -> (u16, String) {
    let answer = app.healthz_client().get(path).await;
    (answer.status, answer.text())
}

#[tokio::test]
async fn probes_accept_any_host_and_reveal_no_client_namespaces() {
    let up = demo::upstream().pods(3).run().await;
    up.faults().only("pods").answer(demo::RequestKind::Watch, 1, 403, None);
    let app = with_ports(direct::app(&up)).preload("nosuchthings").run().await;
    app.discovered().await;
    let not_ready = "[-]preload nosuchthings not ready: upstream serves no such resource\nreadyz check failed\n";
    direct::eventually("it waits for one", || async { probe(&app, "/readyz").await == (503, not_ready.into()) }).await;
    assert!(app.get("/api/v1/namespaces/of-somebody/pods?resourceVersion=0").await.is_cached());
    assert!(app.admin("/readyz").await.text().contains("of-somebody"), "the operator sees it");
    for path in ["/readyz?verbose", "/readyz?verbose=true", "/readyz"] {
        assert_eq!(probe(&app, path).await, (503, not_ready.into()), "{path}");
    }
    for host in ["10.1.2.3:10256", "localhost", "kubelet.example", "[fd00::7]:1"] {
        for path in ["/livez", "/healthz"] {
            let answer = app.healthz_client().request(Method::GET, path).host(host).send().await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "{path} {host}");
        }
    }
    for path in ["/metrics", "/debug/feeds", "/", PODS] {
        assert_eq!(probe(&app, path).await, (404, String::new()), "{path}");
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let head = app.healthz_client().over(protocol).request(Method::HEAD, "/livez").send().await;
        assert_eq!((head.status, head.header("content-length"), head.text().as_str()), (200, Some("2"), ""));
    }
    let refused = app.healthz_client().request(Method::POST, "/livez").send().await;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET,HEAD")));
}

#[tokio::test]
async fn health_port_reports_ready_then_shutting_down_during_drain() {
    let up = demo::upstream().pods(3).run().await;
    let mut app = with_ports(direct::app(&up)).preload("pods").drain(PATIENCE).run().await;
    direct::eventually("ready", || async { probe(&app, "/readyz").await == (200, "ok".into()) }).await;
    assert_eq!(probe(&app, "/readyz?verbose").await, (200, "readyz check passed\n".into()));
    // The drain lasts until the last watch has ended, each at a random moment.
    let watches = join_all((0..8).map(|_| app.watch(PODS).from(0).into_future())).await;
    app.begin_stop();
    let leaving = (503, "[-]shutting down not ready\nreadyz check failed\n".to_owned());
    direct::eventually("not ready", || async { probe(&app, "/readyz").await == leaving }).await;
    assert_eq!(probe(&app, "/livez").await, (200, "ok".into()));
    drop(watches);
    app.stop().await;
}

#[tokio::test]
async fn metrics_port_rejects_unknown_hosts_and_cross_origin_requests() {
    let up = demo::upstream().pods(3).run().await;
    let names = |config: &mut ServeSettings| config.allowed_hosts.push("metrics.internal".to_owned());
    let app = with_ports(direct::app(&up)).with(names).run().await;
    let scrape = async |host: &str, headers: &[(&str, &str)]| {
        let call = app.metrics_client().request(Method::GET, "/metrics").host(host);
        headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send().await
    };
    for host in ["10.1.2.3:10249", "[fd00::7]:10249", "127.0.0.1", "metrics.internal:10249"] {
        let answer = scrape(host, &[]).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain; version=0.0.4")), "{host}");
        assert!(answer.text().contains("kube_fanout_connections_open"), "{}", answer.text());
    }
    // A page's host name may resolve to this address (DNS rebinding).
    assert_eq!(scrape("evil.example:10249", &[]).await.status, 403);
    for headers in [[("origin", "http://evil.example")], [("sec-fetch-site", "cross-site")]] {
        assert_eq!(scrape("10.1.2.3:10249", &headers).await.status, 403, "{headers:?}");
    }
    for path in ["/debug/feeds", "/readyz", "/livez", "/", PODS] {
        assert_eq!(app.metrics_client().get(path).await.status, 404, "{path}");
    }
    assert_eq!(app.metrics_client().request(Method::POST, "/metrics").send().await.status, 405);
}

/// Serves in a network namespace of its own, in which the machine has an address other than loopback, and sends
/// requests there.
const ELSEWHERE: &str = r#"
ip link set lo up
ip address add 192.0.2.1/32 dev lo
"$0" serve --kubeconfig "$1" --healthz-bind-address 0.0.0.0:10256 --metrics-bind-address 0.0.0.0:10249 >"$2" 2>&1 &
until grep -q '^metrics on ' "$2"; do kill -0 $!; sleep 0.02; done
for asked in 10256/livez 10256/healthz 10256/readyz 10249/metrics 10249/debug/feeds 8001/version 9090/livez; do
  "$0" health --timeout 120s "http://192.0.2.1:$asked" >/dev/null 2>&1 && code=0 || code=$?
  echo "$asked $code"
done
kill $!
wait $!"#;

#[tokio::test]
async fn only_health_and_metrics_ports_are_reachable_off_loopback() {
    let own_network = ["timeout", "600", "unshare", "--net", "--map-root-user", "sh", "-euc"];
    let command = |script: &str| {
        let mut command = std::process::Command::new(own_network[0]);
        command.args(&own_network[1..]).arg(script).arg(env!("CARGO_BIN_EXE_kube-fanout"));
        command
    };
    if !command("ip link set lo up").output().is_ok_and(|output| output.status.success()) {
        return direct::skipped("there is no right to make a network, or no unshare or ip");
    }
    let dir = direct::Dir::new();
    let (nowhere, out) = (kubeconfig(&dir, "http://127.0.0.1:1", ""), dir.join("out"));
    let mut asking = command(ELSEWHERE);
    asking.arg(nowhere).arg(out);
    let output = tokio::task::spawn_blocking(move || asking.output().expect("a shell")).await.expect("no panic");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "it ends in order: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    // 0 is a response of 200, 1 another response, and 2 none.
    let answered = ["10256/livez 0", "10256/healthz 0", "10256/readyz 1", "10249/metrics 0", "10249/debug/feeds 1"];
    let on_loopback_alone = ["8001/version 2", "9090/livez 2"];
    assert_eq!(stdout.lines().collect::<Vec<_>>(), [&answered[..], &on_loopback_alone].concat());
}

/// Otherwise any client of the port could occupy the thread that answers probes.
#[tokio::test]
async fn metrics_are_rendered_at_most_once_per_second() {
    let up = demo::upstream().pods(3).run().await;
    let app = with_ports(direct::app(&up)).run().await;
    let scrape = async || app.metrics_client().get("/metrics").await.text();
    assert_eq!(app.get("/healthz").await.status, 200);
    let mut compared = false;
    for _ in 0..300 {
        let (began, before) = (Instant::now(), scrape().await);
        assert_eq!(app.get("/healthz").await.status, 200);
        let after = scrape().await;
        if began.elapsed() < Duration::from_secs(1) && before.contains("kube_fanout_forwarded_total{") {
            // The first text may already have been a second old.
            compared |= before == after;
        }
        if compared {
            break;
        }
    }
    assert!(compared, "two texts within a second were never the same");
    let before = metric(&scrape().await, "kube_fanout_forwarded_total", "non_resource");
    assert_eq!(app.get("/healthz").await.status, 200);
    let counted = || async { metric(&scrape().await, "kube_fanout_forwarded_total", "non_resource") > before };
    direct::eventually("it is rendered again", counted).await;
}

#[tokio::test]
async fn silent_connections_do_not_block_probes() {
    let up = demo::upstream().run().await;
    let app = with_ports(direct::app(&up)).run().await;
    join_all([app.healthz_client(), app.metrics_client()].map(async |client| {
        let mut silent = Vec::new();
        for _ in 0..=CONNECTIONS_MAX {
            silent.push(client.connect().await.expect("a connection"));
        }
        assert!([200, 404].contains(&client.get("/livez").await.status));
        let read = within("the oldest goes", silent[0].read(&mut [0])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }))
    .await;
}

#[tokio::test]
async fn health_or_metrics_bind_error_names_address() {
    let up = demo::upstream().run().await;
    let holder = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let taken = holder.local_addr().expect("a port");
    let change: [fn(&mut ServeSettings, SocketAddr); 2] =
        [|config, at| config.healthz = Some(at), |config, at| config.metrics = Some(at)];
    for change in change {
        match direct::app(&up).with(|config| change(config, taken)).try_run().await.err() {
            Some(StartError::Bind { address, .. }) => assert_eq!(address, ListenAddress::Tcp(taken)),
            other => panic!("{other:?}"),
        }
    }
}

/// On a shared address, the old process could answer whether the new one is ready.
#[tokio::test]
async fn successor_needs_an_admin_address_of_its_own() {
    let up = demo::upstream().run().await;
    // As the old process would hold it, if it shared the address.
    let holder = TcpSocket::new_v4().expect("a socket");
    holder.set_reuseport(true).expect("an option");
    holder.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let at = ListenAddress::Tcp(holder.local_addr().expect("a port"));
    let _holder = holder.listen(1).expect("it listens");
    let plan = direct::app(&up).with(|config| (config.reuse_port, config.admin) = (true, Some(at.clone())));
    match plan.try_run().await.err() {
        Some(StartError::Bind { address, .. }) => assert_eq!(address, at),
        other => panic!("{other:?}"),
    }
}

#[test]
fn health_and_metrics_ports_may_listen_on_all_interfaces() {
    let check = |flags: &[&str]| run(&[&["config", "check"], flags].concat());
    let (health, metrics) = ("--healthz-bind-address", "--metrics-bind-address");
    for flags in [
        &[health, "0.0.0.0:10256", metrics, "[::]:10249"][..],
        &[health, "off", metrics, "off", "--admin", "off"],
        &[health, "10.1.2.3:80", metrics, "10.1.2.4:80"],
    ] {
        let output = check(flags);
        assert_eq!(output.code, Some(0), "{flags:?}: {}", output.stderr);
    }
    for (flags, message) in [
        (&[health, "unix:/run/health.sock"][..], "healthzBindAddress: unix:/run/health.sock is not supported"),
        (&[metrics, "10249"], "metricsBindAddress: \"10249\" is not an address"),
        (&[health, "127.0.0.1:8001"], "127.0.0.1:8001 is listed twice"),
        (&[health, "0.0.0.0:10256", metrics, "0.0.0.0:10256"], "0.0.0.0:10256 is listed twice"),
    ] {
        let output = check(flags);
        assert_eq!(output.code, Some(78), "{flags:?}");
        assert!(output.stderr.contains(message), "{message}: {}", output.stderr);
    }
}
