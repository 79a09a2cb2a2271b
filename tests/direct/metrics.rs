//! Every documented metric changes in some scenario (docs/METRICS.md). The proxy runs in a process of its own, because
//! metrics are global.

use std::collections::BTreeSet;

use demo::{self, RequestKind, RunningDemoApiserver};
use serde_json::json;

use crate::compressed_watches::GzipWatch;
use crate::direct::{self, CONFIGMAPS, Client, Dir, Ended, PODS, Watch, configmap};
use crate::monitoring;
use crate::process::{Process, metric};
use crate::tree_deltas;

/// A metric, and a label that one of its lines must have.
type Metric = (&'static str, &'static str);

const IN_SERVICE: [Metric; 44] = [
    ("kube_fanout_ready", ""),
    ("kube_fanout_tasks", ""),
    ("kube_fanout_build_info", concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"")),
    ("kube_fanout_connections_open", ""),
    ("kube_fanout_upstream_watches", "pods.v1"),
    ("kube_fanout_upstream_requests_total", "list"),
    ("kube_fanout_upstream_body_bytes_total", "watch"),
    ("kube_fanout_upstream_streams_opened_total", "watch"),
    ("kube_fanout_upstream_streams_open", "definitions"),
    ("kube_fanout_upstream_events_total", "pods.v1"),
    ("kube_fanout_upstream_bytes_total", "pods.v1"),
    ("kube_fanout_upstream_bookmarks_total", "pods.v1"),
    ("kube_fanout_upstream_duplicates_total", "pods.v1"),
    ("kube_fanout_feed_requests_total", "initial"),
    ("kube_fanout_feed_state", "live"),
    ("kube_fanout_feed_objects", "pods.v1"),
    ("kube_fanout_feed_object_bytes", "pods.v1"),
    ("kube_fanout_feed_resource_version", "pods.v1"),
    ("kube_fanout_feed_memory_bytes", "pods.v1"),
    ("kube_fanout_memory_budget_bytes", ""),
    ("kube_fanout_memory_used_bytes", "objects"),
    ("kube_fanout_window_events", "pods.v1"),
    ("kube_fanout_window_bytes", "pods.v1"),
    ("kube_fanout_window_span_seconds", "pods.v1"),
    ("kube_fanout_lanes", "pods.v1"),
    ("kube_fanout_representation_mode", "derived"),
    ("kube_fanout_representation_checks_total", "equal"),
    ("kube_fanout_derived_bytes", "pods.v1"),
    ("kube_fanout_watches_open", "h1"),
    ("kube_fanout_watch_events_total", "pods.v1"),
    ("kube_fanout_watch_bytes_total", "pods.v1"),
    ("kube_fanout_watch_gzip_bytes_total", "after"),
    ("kube_fanout_reduced_bytes_total", ""),
    ("kube_fanout_watch_unchanged_events_total", ""),
    ("kube_fanout_upstream_event_age_seconds_count", "configmaps.v1"),
    ("kube_fanout_watch_delivery_seconds_count", "pods.v1"),
    ("kube_fanout_watches_ended_total", "expired"),
    ("kube_fanout_served_total", "list"),
    ("kube_fanout_forwarded_total", "non_resource"),
    ("kube_fanout_forwarded_total", "expensive_selector"),
    ("kube_fanout_discovery_served_total", "version"),
    ("kube_fanout_downstream_proxy_requests_total", "health"),
    ("kube_fanout_refused_total", "404"),
    ("kube_fanout_coalesced_requests_total", ""),
];
const IN_AN_OUTAGE: [Metric; 3] = [
    ("kube_fanout_upstream_failures_total", "unreachable"),
    ("kube_fanout_feed_state", "stale"),
    ("kube_fanout_feed_stale_seconds", "pods.v1"),
];
const OF_THOSE_WHO_WAIT: [Metric; 1] = [("kube_fanout_watches_waiting", "")];
const BEHIND_IT: [Metric; 3] = [
    ("kube_fanout_feed_requests_total", "relist"),
    ("kube_fanout_history_gaps_total", "new_history"),
    ("kube_fanout_feed_state", "live"),
];

const OF_THOSE_WHO_RETURN: [Metric; 1] = [("kube_fanout_history_backfills_total", "extended")];
const OF_SELF_CHECKS: [Metric; 1] = [("kube_fanout_self_checks_total", "same")];
const AT_A_BROKEN_FILE: [Metric; 2] =
    [("kube_fanout_reloads_total", "upstream_credentials"), ("kube_fanout_reload_failing", "upstream_credentials")];
const AT_A_CHANGED_CONFIGURATION: [Metric; 3] = [
    ("kube_fanout_config_reloads_total", "partially_applied"),
    ("kube_fanout_config_restart_required_keys", ""),
    ("kube_fanout_preload_failing", "nothings"),
];
const AT_A_BAD_HANDSHAKE: [Metric; 1] = [("kube_fanout_connections_failed_total", "handshake")];

const OF_A_CERTIFICATE: [Metric; 1] = [("kube_fanout_certificate_expiry_timestamp_seconds", "listener_certificate")];

const OF_CALLERS: [Metric; 4] = [
    ("kube_fanout_auth_reviews_total", "authenticated"),
    ("kube_fanout_auth_refused_total", "denied"),
    ("kube_fanout_auth_leases", ""),
    ("kube_fanout_auth_policy_watched", ""),
];
const OF_CALLERS_IN_DOUBT: [Metric; 1] = [("kube_fanout_auth_outage_grace_active", "")];
const OF_CALLERS_AFTER_THE_GRACE: [Metric; 1] = [("kube_fanout_auth_revoked_total", "unavailable")];

const OF_LOCAL_DECISIONS: [Metric; 3] = [
    ("kube_fanout_auth_tokens_verified_total", "other_form"),
    ("kube_fanout_auth_local_decisions_total", "allowed"),
    ("kube_fanout_auth_local_decisions_active", ""),
];
const OF_A_DISAGREEMENT: [Metric; 2] =
    [("kube_fanout_auth_comparisons_total", "disagreed"), ("kube_fanout_auth_local_decisions_disagreed", "")];

const OF_THE_AUDIT_LOG: [Metric; 1] = [("kube_fanout_audit_records_total", "written")];
const OF_ITS_LOSS: [Metric; 1] = [("kube_fanout_audit_failing", "")];

const WHERE_MEMORY_IS_SHORT: [Metric; 1] = [("kube_fanout_memory_evictions_total", "feed")];

const OF_SEVERAL_SERVERS: [Metric; 2] =
    [("kube_fanout_upstream_server_current", ""), ("kube_fanout_upstream_server_switches_total", "failed")];

/// Metrics that no client or upstream changes: `src/admin/process.rs` tests the last two.
const ZERO_AT_START: [Metric; 3] = [
    ("kube_fanout_panics_total", ""),
    ("kube_fanout_runtime_stalled_seconds", ""),
    ("kube_fanout_log_lines_dropped_total", ""),
];

async fn move_up(process: &Process, metrics: &[Metric]) {
    for (name, label) in metrics {
        let moved = || async { metric(&process.metrics().await, name, label) > 0.0 };
        direct::eventually(&format!("{name}{{{label}}} moves"), moved).await;
    }
}

/// Sends requests of every kind. Returns the watch that stays open.
async fn serve_all_kinds(up: &RunningDemoApiserver, client: &Client) -> Watch {
    client.get(PODS).await;
    let open = client.watch("/api/v1/namespaces/default/pods").initial_events().await;
    open.listed().await;
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let metadata = client.watch(PODS).initial_events().accept(metadata).await;
    metadata.listed().await;
    let state = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let compressed = GzipWatch::of(client.request(http::Method::GET, &format!("{PODS}?{state}"))).await;
    compressed.expect("compressed").listed().await;
    client.get("/version").await;
    client.get("/healthz").await;
    client.request(http::Method::GET, "/readyz").header("kube-fanout-hops", "leaf").send().await;
    let dear = (0..150).map(|n| format!("%21key-{n}")).collect::<Vec<_>>().join(",");
    client.get(&format!("{PODS}?watch=1&timeoutSeconds=1&labelSelector={dear}")).await;
    client.get("/api/v1/namespaces/default/pods/nobody?resourceVersion=0").await;
    client.get("/api/v1/namespaces/default/pods/nobody").await;
    drop(client.watch(PODS).from(1).await.ended().await);
    metadata.reached(up.create_pod("default", "one")).await;
    up.faults().only("pods").duplicate_event();
    open.reached(up.create_pod("default", "two")).await;
    let reduced =
        client.watch(CONFIGMAPS).initial_events().accept("application/json;drop=metadata.managedFields").await;
    reduced.listed().await;
    for manager in ["a", "b"] {
        let metadata = serde_json::json!({"namespace": "default", "name": "c", "managedFields": [{"manager": manager, "time": "2026-01-02T03:04:05Z"}]});
        up.put("configmaps", serde_json::json!({"metadata": metadata}));
    }
    reduced.reached(up.put("configmaps", direct::configmap("default", "last", ""))).await;
    let other = up.put("nodes", serde_json::json!({"metadata": {"name": "n"}}));
    up.faults().only("pods").bookmark();
    open.reached(other).await;
    open
}

/// The names are those of any Go program, so that common dashboards work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_metrics_report_cpu_memory_and_descriptors() {
    let up = demo::upstream().pods(5).run().await;
    let dir = Dir::new();
    let process = Process::serve(&dir, &up.url(), &[]).await;
    let before = process.metrics().await;
    let files = |text: &str| metric(text, "process_open_fds", "");
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(process.client().connect().await.expect("a connection"));
    }
    direct::eventually("they are counted", || async { files(&process.metrics().await) >= files(&before) + 20.0 }).await;
    assert!(metric(&before, "process_max_fds", "") >= files(&before) + 20.0);
    assert!(metric(&before, "process_resident_memory_bytes", "") > 1e6);
    assert!(metric(&before, "process_virtual_memory_bytes", "") > 1e6);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later").as_secs_f64();
    let started = metric(&before, "process_start_time_seconds", "");
    assert!((now - 600.0..now + 5.0).contains(&started), "{started} is no start before {now}");
    let cpu = || async { metric(&process.metrics().await, "process_cpu_seconds_total", "") > 0.0 };
    direct::eventually("it has cost something", cpu).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_changes_in_service_outage_and_recovery() {
    let up = demo::upstream().pods(5).run().await;
    // The first that compresses watch-lists.
    up.faults().say_releases(&[37]);
    let dir = Dir::new();
    let process = Process::serve(&dir, &up.url(), &[]).await;
    // The previous content stays in use, so this is harmless; the proxy notices it within ten seconds.
    dir.file("kubeconfig", "half of");
    let open = serve_all_kinds(&up, &process.client()).await;
    move_up(&process, &IN_SERVICE).await;
    up.faults().down().await;
    move_up(&process, &IN_AN_OUTAGE).await;
    let client = process.client();
    let requests = async {
        loop {
            drop(client.watch(PODS).initial_events().open().await);
        }
    };
    tokio::select! {
        () = move_up(&process, &OF_THOSE_WHO_WAIT) => {}
        () = requests => {}
    }
    // A gap that cannot be mended.
    up.create_pod("default", "three");
    up.faults().forget_history();
    up.faults().only("pods").answer(RequestKind::Watch, 1, 503, None);
    up.faults().up().await;
    assert_eq!(open.ended().await, Ended::Expired);
    move_up(&process, &BEHIND_IT).await;
    move_up(&process, &AT_A_BROKEN_FILE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authentication_and_authorization_reviews_are_counted() {
    let up = demo::upstream().pods(5).run().await;
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "default");
    // A grace that lasts as long as the test, and one that is over at once.
    for (grace, in_doubt) in [("10m", OF_CALLERS_IN_DOUBT), ("50ms", OF_CALLERS_AFTER_THE_GRACE)] {
        let dir = Dir::new();
        let config = format!("delegated: {{allowedTTL: 50ms, tokenTTL: 50ms, recheck: 50ms, outageGrace: {grace}}}");
        let file = dir.file("config", &config);
        let config = file.to_str().expect("a path");
        let process = Process::serve(&dir, &up.url(), &["--auth", "delegated", "--config", config]).await;
        let ada = process.client().bearing("a");
        assert_eq!(ada.get(PODS).await.status, 403);
        let watch = ada.watch("/api/v1/namespaces/default/pods").initial_events().await;
        watch.listed().await;
        move_up(&process, &OF_CALLERS).await;
        up.reviews().refuse(Some(503));
        move_up(&process, &in_doubt).await;
        up.reviews().refuse(None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_decisions_and_their_comparisons_are_counted() {
    let up = demo::upstream().pods(5).run().await;
    up.reviews().give("a", "ada");
    let rule = json!({"verbs": ["*"], "apiGroups": [""], "resources": ["pods"]});
    up.put("clusterroles", json!({"metadata": {"name": "r"}, "rules": [rule]}));
    let (role, subject) = (json!({"kind": "ClusterRole", "name": "r"}), json!({"kind": "User", "name": "ada"}));
    up.put("clusterrolebindings", json!({"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]}));
    let dir = Dir::new();
    let file = dir.file("config", "delegated: {identify: local, decide: rbac, compareOneIn: 1, deniedTTL: 50ms}");
    let config = file.to_str().expect("a path");
    let process = Process::serve(&dir, &up.url(), &["--auth", "delegated", "--config", config]).await;
    move_up(&process, &OF_LOCAL_DECISIONS[2..]).await;
    assert!(direct::proven(&process.client().bearing("a"), || PODS.to_owned()).await.is_cached());
    move_up(&process, &OF_LOCAL_DECISIONS).await;
    move_up(&process, &OF_A_DISAGREEMENT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_and_lost_audit_records_are_counted() {
    let up = demo::upstream().pods(5).run().await;
    let dir = Dir::new();
    let (log, file) = (dir.join("audit.log"), dir.file("config", "drain: 1s"));
    let [audit, config] = [&log, &file].map(|path| path.to_str().expect("a path"));
    let process = Process::serve(&dir, &up.url(), &["--audit-log", audit, "--config", config]).await;
    dir.file("config", "drain: 1s\nreusePort: true\npreload: [nothings]");
    process.signal("HUP");
    process.client().get(PODS).await;
    move_up(&process, &OF_THE_AUDIT_LOG).await;
    move_up(&process, &AT_A_CHANGED_CONFIGURATION).await;
    // The log's path is now a directory.
    std::fs::rename(&log, dir.join("audit.log.1")).expect("it is there");
    std::fs::create_dir(&log).expect("the name is free");
    process.client().get(PODS).await;
    move_up(&process, &OF_ITS_LOSS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_tls_handshake_is_counted() {
    let up = demo::upstream().run().await;
    let (dir, own) = (Dir::new(), direct::pair());
    let certificate = dir.file("tls.crt", &own.cert.pem()).display().to_string();
    let key = dir.file("tls.key", &own.signing_key.serialize_pem()).display().to_string();
    let process = Process::serve(&dir, &up.url(), &["--tls-cert", &certificate, "--tls-key", &key]).await;
    let plain = process.client().request(http::Method::GET, "/version").try_send().await;
    assert!(plain.is_err(), "{plain:?}");
    move_up(&process, &AT_A_BAD_HANDSHAKE).await;
    move_up(&process, &OF_A_CERTIFICATE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_evictions_are_counted() {
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let file = dir.file("config", "feeds: {memoryMebibytes: 1}");
    let process = Process::serve(&dir, &up.url(), &["--config", file.to_str().expect("a path")]).await;
    assert!(direct::proven(&process.client(), || CONFIGMAPS.to_owned()).await.is_cached());
    let value = "x".repeat(40_000);
    for n in 0..60 {
        up.put("configmaps", configmap("default", &format!("large-{n}"), &value));
    }
    move_up(&process, &WHERE_MEMORY_IS_SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_by_limit_or_upstream_outage_are_counted() {
    let up = demo::upstream().pods(5).run().await;
    let dir = Dir::new();
    let file = dir.file("config", "limits: {watches: 1, watchesPerCaller: 1}");
    let process = Process::serve(&dir, &up.url(), &["--config", file.to_str().expect("a path")]).await;
    let client = process.client();
    let watch = client.watch(PODS).initial_events().await;
    watch.listed().await;
    let refused = client.watch(PODS).initial_events().open().await.err().expect("the limit is one");
    assert_eq!(refused.status, 429);
    up.faults().down().await;
    let unanswered = client.get("/healthz").await.status;
    assert!((502..=504).contains(&unanswered), "{unanswered}");
    let text = process.metrics().await;
    for code in [429, unanswered] {
        let counted = metric(&text, "kube_fanout_refused_total", &format!("code=\"{code}\""));
        assert!((counted - 1.0).abs() < 0.5, "{counted} of {code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_backfills_for_resuming_clients_are_counted() {
    let up = demo::upstream().pods(5).run().await;
    let from = up.revision();
    up.churn(3).await;
    let process = Process::serve(&Dir::new(), &up.url(), &[]).await;
    let client = process.client();
    assert!(direct::proven(&client, || PODS.to_owned()).await.is_cached());
    let watch = client.watch(PODS).from(from).await;
    watch.received(1).await;
    move_up(&process, &OF_THOSE_WHO_RETURN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn self_checks_are_counted() {
    let up = demo::upstream().pods(5).run().await;
    let dir = Dir::new();
    let file = dir.file("config", "feeds: {selfCheck: 50ms}");
    let process = Process::serve(&dir, &up.url(), &["--config", file.to_str().expect("a path")]).await;
    let watch = process.client().watch(PODS).initial_events().await;
    watch.listed().await;
    // A change before the first state that the self-check knows is none to it.
    let [(name, label)] = OF_SELF_CHECKS;
    let compared = async {
        while metric(&process.metrics().await, name, label) <= 0.0 {
            up.churn(20).await;
        }
    };
    direct::within("a comparison", Box::pin(compared)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn current_upstream_server_metric_follows_failover() {
    let first = demo::upstream().run().await;
    let second = first.beside();
    let dir = Dir::new();
    let file = dir.file("config", &format!("upstream: {{servers: ['{}', '{}']}}", first.url(), second.url()));
    // The server of the kubeconfig is not used.
    let arguments = ["--config", file.to_str().expect("a path")];
    let process = Process::serve(&dir, "https://kubeconfig.invalid", &arguments).await;
    let used = async |up: &RunningDemoApiserver| {
        let label = format!("server=\"{}\"", up.url());
        metric(&process.metrics().await, "kube_fanout_upstream_server_current", &label) > 0.0
    };
    assert_eq!(process.client().get("/version").await.status, 200);
    direct::eventually("the first is used", || used(&first)).await;
    first.faults().down().await;
    move_up(&process, &OF_SEVERAL_SERVERS).await;
    direct::eventually("the second is used", || used(&second)).await;
    assert_eq!(process.client().get("/version").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_the_process_itself_are_zero_at_start() {
    let up = demo::upstream().run().await;
    let text = Process::serve(&Dir::new(), &up.url(), &[]).await.metrics().await;
    for (name, _) in ZERO_AT_START {
        assert!(text.lines().any(|line| line == format!("{name} 0")), "{name}: {text}");
    }
}

#[test]
fn documented_metrics_equal_tested_metrics() {
    let names = monitoring::metrics().into_keys();
    let documented: BTreeSet<_> = names.filter(|name| name.starts_with("kube_fanout_")).collect();
    let outage = IN_AN_OUTAGE.iter().chain(&OF_THOSE_WHO_WAIT).chain(&BEHIND_IT);
    let moved = IN_SERVICE.iter().chain(outage).chain(&AT_A_BROKEN_FILE).chain(&AT_A_BAD_HANDSHAKE);
    let moved = moved
        .chain(&WHERE_MEMORY_IS_SHORT)
        .chain(&OF_THOSE_WHO_RETURN)
        .chain(&OF_SELF_CHECKS)
        .chain(&OF_A_CERTIFICATE)
        .chain(&OF_CALLERS)
        .chain(&OF_CALLERS_IN_DOUBT)
        .chain(&OF_CALLERS_AFTER_THE_GRACE)
        .chain(&OF_LOCAL_DECISIONS)
        .chain(&OF_A_DISAGREEMENT)
        .chain(&OF_THE_AUDIT_LOG)
        .chain(&OF_ITS_LOSS)
        .chain(&OF_SEVERAL_SERVERS)
        .chain(&AT_A_CHANGED_CONFIGURATION)
        .chain(&ZERO_AT_START)
        .chain(&tree_deltas::METRICS);
    let moved: BTreeSet<_> = moved.map(|(name, _)| name.trim_end_matches("_count").to_owned()).collect();
    assert_eq!(documented, moved);
}
