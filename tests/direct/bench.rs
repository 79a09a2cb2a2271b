//! `fanoutctl bench` counts what really happened. It runs against the demo upstream, which has no protobuf, and the
//! proxy.

use bench::{
    self, BenchOptions, BenchResults, BenchRunOutcome, BenchScenario, MeasuredServer, ProgressLine, TargetCredentials,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::direct::{self, App, Dir};
use crate::process::run;

/// A plan that is short, but large enough to produce events.
fn small() -> Value {
    json!({
        "watches": 12, "objects": 6, "spread": 3, "object-bytes": 1500,
        "rate": 100, "warmup": 0, "seconds": 1.5, "patience": 20,
    })
}

fn order(sides: &[(&str, &str)], write: &str, more: &Value) -> BenchOptions {
    let mut keys = small().as_object().cloned().expect("keys");
    keys.extend(more.as_object().cloned().expect("keys"));
    let variants = BenchScenario::default().plans(&keys).unwrap_or_else(|wrong| panic!("{wrong}"));
    let side = |(name, url): &(&str, &str)| MeasuredServer {
        name: (*name).to_owned(),
        url: (*url).to_owned(),
        protocol: None,
        pid: Some(std::process::id()),
        metrics: None,
    };
    BenchOptions {
        scenario: "test".to_owned(),
        about: String::new(),
        variants,
        sides: sides.iter().map(side).collect(),
        write: write.to_owned(),
        credentials: TargetCredentials::default(),
        rounds: 1,
        keep: false,
        command: Vec::new(),
    }
}

async fn measured(order: &BenchOptions) -> BenchResults {
    let stop = CancellationToken::new();
    let results = direct::within("results", bench::run(order, &ProgressLine::silent(), &stop)).await;
    results.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs one plan through the proxy.
async fn through(app: &App, up: &demo::RunningDemoApiserver, more: Value) -> BenchRunOutcome {
    let url = app.url();
    let mut results = measured(&order(&[("proxy", &url)], &up.url(), &more)).await;
    assert!(results.is_complete(), "{more}: {:?}", results.outcomes);
    results.outcomes.remove(0)
}

/// Repeats the plan until something was delivered in the measured seconds, because the machine may stall for all of
/// them.
async fn delivering(app: &App, up: &demo::RunningDemoApiserver, more: Value) -> BenchRunOutcome {
    let mut outcome = through(app, up, more.clone()).await;
    for _ in 0..4 {
        if figure(&outcome, "deliveries_per_s") > 0.0 {
            break;
        }
        outcome = through(app, up, more.clone()).await;
    }
    outcome
}

fn figure(outcome: &BenchRunOutcome, name: &str) -> f64 {
    outcome.figures.of(name).unwrap_or_else(|| panic!("no {name}: {outcome:?}"))
}

/// A figure that is a count.
fn count(outcome: &BenchRunOutcome, name: &str) -> i64 {
    format!("{:.0}", figure(outcome, name)).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_watches_of_every_kind_receive_each_write_once() {
    let up = demo::upstream().run().await;
    up.faults().say_releases(&[37]);
    let app = direct::app(&up).run().await;
    let kinds = [
        json!({"protocol": "h1"}),
        json!({"protocol": "h2"}),
        json!({"protocol": "h2", "connections": 2, "watch-list": true}),
        json!({"protocol": "h2", "connections": 2, "object-bytes": 20_000, "go-windows": true}),
        json!({"protocol": "h1", "watch-list": true, "gzip": true}),
        json!({"protocol": "h2", "connections": 2, "watch-list": true, "gzip": true, "select": "label"}),
        json!({"protocol": "h1", "watch-list": true, "gzip": true, "gzip-raw": 50}),
        json!({"protocol": "ws"}),
        json!({"protocol": "ws", "encoding": "table"}),
        json!({"protocol": "h1", "encoding": "table"}),
        json!({"protocol": "h2", "connections": 3, "encoding": "table"}),
        json!({"encoding": "metadata", "select": "label"}),
        json!({"select": "node"}),
        json!({"select": "name", "write-with": "put"}),
        json!({"select": "namespace", "namespaces": 2}),
        json!({"shape": "configmap", "rate": "max", "writers": 2}),
    ];
    let mut cpu = 0.0;
    for kind in kinds {
        let outcome = delivering(&app, &up, kind.clone()).await;
        for fault in ["missed", "repeated", "unexpected", "relisted", "refused", "broken", "writes_failed"] {
            assert_eq!(count(&outcome, fault), 0, "{kind}: {fault} of {outcome:?}");
        }
        assert!(figure(&outcome, "deliveries_per_s") > 0.0, "{kind}: {outcome:?}");
        assert!(figure(&outcome, "latency_p50_ms") > 0.0 && !outcome.percentiles.is_empty(), "{kind}");
        assert!(figure(&outcome, "memory_mib") > 1.0, "{kind}");
        if kind["gzip"] == true && kind["gzip-raw"].is_null() {
            assert_eq!(count(&outcome, "compressed"), 12, "{kind}");
            let [sent, plain] = ["bytes_per_delivery", "plain_bytes_per_delivery"].map(|name| figure(&outcome, name));
            assert!(sent > 0.0 && sent < plain && plain > 1500.0, "{kind}: {sent} of {plain}");
        }
        cpu += figure(&outcome, "cpu_us_per_delivery");
    }
    // The CPU time of one client may be below the kernel's resolution.
    assert!(cpu > 0.0, "{cpu}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_counts_no_delivery_without_match_and_skips_stuck_clients() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    let deaf = through(&app, &up, json!({"select": "node", "non-matching": true})).await;
    assert_eq!(count(&deaf, "deliveries_per_s"), 0, "{deaf:?}");
    for protocol in ["h1", "h2"] {
        let odd = json!({"protocol": protocol, "stuck": 25, "slow": 25});
        let outcome = delivering(&app, &up, odd).await;
        assert!(figure(&outcome, "deliveries_per_s") > 0.0, "{outcome:?}");
    }
    let beside = json!({"companions": 2, "companion-reconnect-ms": 50, "companion-reads": true});
    assert!(figure(&through(&app, &up, beside).await, "writes_per_s") > 0.0);
    let beside = json!({"companions": 2, "companion-reconnect-ms": 50});
    assert!(figure(&through(&app, &up, beside).await, "writes_per_s") > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_counts_every_storm_request() {
    let up = demo::upstream().pods(50).run().await;
    let app = direct::app(&up).run().await;
    for how in [json!({"storm": "join"}), json!({"storm": "join", "watch-list": true})] {
        let joined = through(&app, &up, how).await;
        assert!(figure(&joined, "synced_p99_ms") > 0.0 && figure(&joined, "request_bytes") > 1000.0, "{joined:?}");
    }
    let resumed = through(&app, &up, json!({"storm": "resume", "connections": 4})).await;
    assert_eq!((count(&resumed, "missed"), count(&resumed, "relisted")), (0, 0), "{resumed:?}");
    assert!(figure(&resumed, "synced_max_ms") > 0.0);
    for protocol in ["h1", "h2"] {
        let storm = json!({"storm": "list", "requests": 10, "connections": 3, "protocol": protocol, "in-flight": 2});
        let listed = through(&app, &up, storm).await;
        assert_eq!((count(&listed, "requests"), count(&listed, "refused")), (10, 0), "{listed:?}");
        assert!(figure(&listed, "request_bytes") > 50.0 * 1000.0, "{listed:?}");
    }
    let storm = json!({"storm": "get", "path": "/api/v1/namespaces", "connections": 2, "requests": 20});
    assert_eq!(count(&through(&app, &up, storm).await, "requests"), 20);
}

/// The connection is tried once: a bench must not wait for a server that is down or not trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_fails_with_cause_if_server_is_unreachable() {
    let up = demo::upstream().run().await;
    for how in [json!({}), json!({"storm": "get", "path": "/version"}), json!({"storm": "list", "requests": 5})] {
        let order = order(&[("nobody", "http://127.0.0.1:1")], &up.url(), &how);
        let (progress, stop) = (ProgressLine::silent(), CancellationToken::new());
        let ended = direct::within("an end", bench::run(&order, &progress, &stop)).await;
        let why = ended.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains("refused"), "{how}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_compares_two_servers_and_deletes_its_objects() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    let (upstream_client, proxied) = (up.url(), app.url());
    let order = order(&[("apiserver", &upstream_client), ("proxy", &proxied)], &upstream_client, &json!({}));
    let results = measured(&BenchOptions { rounds: 2, ..order }).await;
    let turns: Vec<_> = results.outcomes.iter().map(|outcome| (outcome.side.as_str(), outcome.round)).collect();
    assert_eq!(turns, [("apiserver", 0), ("proxy", 0), ("proxy", 1), ("apiserver", 1)]);
    assert_eq!((results.cells.len(), results.ratios.len()), (2, 1));
    assert!(results.is_complete() && results.ratios[0].figures.of("latency_p50_ms").is_some());
    let text = bench::render(&results);
    assert!(text.contains("proxy / apiserver") && text.contains("latency_p99_ms"), "{text}");
    let pods = direct::upstream_client(&up).get("/api/v1/pods").await;
    assert!(!pods.text().contains("\"bench-0"), "objects were not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_stopped_while_it_creates_objects_deletes_them() {
    let up = demo::upstream().run().await;
    let url = up.url();
    let order = order(&[("apiserver", &url)], &url, &json!({"objects": 20_000}));
    let has_objects = async || direct::upstream_client(&up).get("/api/v1/pods").await.text().contains("\"bench-0");
    let (progress, stop) = (ProgressLine::silent(), CancellationToken::new());
    let stopping = async {
        direct::eventually("objects", &has_objects).await;
        stop.cancel();
    };
    let running = async { tokio::join!(bench::run(&order, &progress, &stop), stopping).0 };
    let results = direct::within("an end", running).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(results.outcomes.is_empty(), "it was stopped before it measured");
    assert!(!has_objects().await, "objects were not deleted");
}

#[test]
fn bench_exits_with_64_and_all_usage_errors() {
    let output =
        run(&["bench", "--target", "http://127.0.0.1:1", "--opening", "0", "--rate", "often", "--rounds", "0"]);
    assert_eq!(output.code, Some(64), "{}", output.stderr);
    for word in ["rate", "rounds"] {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
    for arguments in [&["bench"][..], &["bench", "--target", "x", "--scenario", "none"], &["bench", "--storm", "brain"]]
    {
        assert_eq!(run(arguments).code, Some(64), "{arguments:?}");
    }
    let list = run(&["bench", "--list-scenarios"]);
    assert!(list.code == Some(0) && list.stdout.contains("saturated-own"), "{}", list.stdout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_writes_json_and_html_results() {
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let (json, page) = (dir.join("out.json"), dir.join("out.html"));
    let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    let (url, json_path, page_path) = (up.url(), path(&json), path(&page));
    let output = tokio::task::spawn_blocking(move || {
        let few = ["--watches", "3", "--objects", "2", "--warmup", "0", "--seconds", "0.3"];
        let files = ["--json", &json_path, "--report", &page_path];
        run(&[&["bench", "--target", &url][..], &few, &files].concat())
    });
    let output = direct::within("the command", output).await.expect("no panic");
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("deliveries_per_s"), "{}", output.stdout);
    let results: Value = serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("JSON");
    assert_eq!(results["outcomes"][0]["figures"]["missed"], 0.0);
    assert!(std::fs::read_to_string(page).expect("a file").contains("<svg"));
}
