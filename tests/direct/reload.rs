//! Changes of the configuration file are applied while the process runs (docs/CONFIG.md, "Reloading").

use bench::{BenchPlan, TargetCredentials, WatchCounts, WatchFleet};
use serde_json::{Value, json};

use crate::direct::{self, CONFIGMAPS, Dir, PATIENCE, PODS, eventually};
use crate::process::{Process, metric};

const WATCHES: u64 = 1_000;

async fn config_page(process: &Process) -> Value {
    serde_json::from_str(&process.admin("/debug/config").await).expect("JSON")
}

/// Triggers a reload, and waits until the page shows the expected state.
async fn read_again(process: &Process, what: &str, is_expected: impl Fn(&Value) -> bool) {
    process.signal("HUP");
    eventually(what, || async { is_expected(&config_page(process).await) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_reload_applies_without_ending_watches() {
    let up = demo::upstream().pods(20).run().await;
    let dir = Dir::new();
    let write = |text: &str| dir.file("config.yaml", text).display().to_string();
    let config = write("feeds: {resources: [pods]}\n");
    let process = Process::serve(&dir, &up.url(), &["--config", &config]).await;
    let client = process.client();
    let target = TargetCredentials::default().target(&client.url()).await.unwrap_or_else(|error| panic!("{error}"));
    let plan = BenchPlan { watches: 1_000, connections: 10, watch_list: true, ..BenchPlan::default() };
    let fleet = WatchFleet::start(&plan, &target);
    fleet.set_out();
    assert!(fleet.synced(PATIENCE).await.is_some(), "{:?}: {:?}", fleet.counts(), fleet.complaint());
    let synced = fleet.counts();
    assert!(!client.get(CONFIGMAPS).await.is_cached());

    write(
        "feeds: {resources: [pods, configmaps], selfCheck: 1m, idle: 1m}\npreload: [configmaps]\nlog: {level: debug}\n\
         limits: {watches: 1000, watchesPerCaller: 1000, connections: 100, forwards: 50}\nwindow: {events: 1000}\n\
         consistency: bounded\nallowedHosts: [fanout.example]\nreusePort: true\n",
    );
    read_again(&process, "reloadable settings are applied", |page_now| {
        page_now["settings"]["limits.watches"] == WATCHES
    })
    .await;
    let page = config_page(&process).await;
    assert_eq!((&page["restartRequired"], &page["lastError"]), (&json!(["reusePort"]), &Value::Null));
    let settings = |key: &str| page["settings"][key].clone();
    assert_eq!((settings("reusePort"), settings("consistency")), (false.into(), "bounded".into()), "what runs");
    assert_eq!(client.watch(PODS).initial_events().open().await.err().map(|answer| answer.status), Some(429));
    assert!(direct::proven(&client, || CONFIGMAPS.to_owned()).await.is_cached());
    eventually("the preloaded resource is cached", || process.is_ready()).await;
    let named = client.request(http::Method::GET, PODS).host("fanout.example").send().await;
    assert_eq!(named.status, 200, "{}", named.text());
    let metrics = process.metrics().await;
    assert!(metric(&metrics, "kube_fanout_config_restart_required_keys", "") > 0.0);
    assert!(metric(&metrics, "kube_fanout_config_reloads_total", "partially_applied") > 0.0);

    // All problems are reported, and the previous configuration stays.
    write("limits: {watches: many}\nnonsense: 1\n");
    read_again(&process, "the page shows the problem", |page_now| {
        let error = page_now["lastError"].as_str().unwrap_or_default();
        error.contains("limits.watches") && error.contains("nonsense")
    })
    .await;
    assert_eq!(config_page(&process).await["settings"], page["settings"]);

    write("limits: {watches: 1050}\nfeeds: {resources: [pods]}\n");
    read_again(&process, "there is more room", |page_now| page_now["settings"]["limits.watches"] == 1_050).await;
    assert_eq!(config_page(&process).await["restartRequired"], json!([]));
    client.watch(PODS).initial_events().await.listed().await;
    assert!(!client.get(CONFIGMAPS).await.is_cached());

    fleet.open_window();
    up.churn(50).await;
    assert!(fleet.until(PATIENCE, |counts| counts.deliveries >= WATCHES * 50).await, "{:?}", fleet.counts());
    let counts = fleet.counts();
    // A watch that found the feed not ready, before it was synced, is no loss of a reload.
    let lost = |counts: &WatchCounts| (counts.refused + counts.broken, counts.resumed);
    assert_eq!((lost(&counts), counts.open()), (lost(&synced), WATCHES));
    fleet.stop().await;
    process.signal("TERM");
    let stderr = process.ended().await.stderr;
    for line in [
        "configuration applied",
        "restart required for: ",
        "the configuration has 2 problems",
        "- limits.watches: invalid type",
    ] {
        assert!(stderr.contains(line), "{line}: {stderr}");
    }
}

/// All proxies read the same file, so a typo must not take all of them out of their Service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_preload_in_reloaded_configuration_keeps_proxy_ready() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let config = dir.file("config.yaml", "preload: [pods]\n").display().to_string();
    let process = Process::serve(&dir, &up.url(), &["--config", &config]).await;
    eventually("ready", || process.is_ready()).await;
    dir.file("config.yaml", "preload: [pods, nothings]\n");
    process.signal("HUP");
    let of = "resource=\"nothings\"";
    let failing = async || metric(&process.metrics().await, "kube_fanout_preload_failing", of) > 0.5;
    eventually("it is counted as failing", failing).await;
    assert!(process.is_ready().await, "{}", process.admin("/readyz").await);
    process.signal("TERM");
    assert!(process.ended().await.stderr.contains("preload failed; retrying"));
}

/// Without a file SIGHUP must not end the process, although that is its default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_without_configuration_file_is_ignored() {
    let up = demo::upstream().pods(3).run().await;
    let process = Process::serve(&Dir::new(), &up.url(), &[]).await;
    process.signal("HUP");
    assert_eq!(process.client().get(PODS).await.status, 200);
    process.signal("TERM");
    let ended = process.ended().await;
    assert!(ended.code == Some(0) && ended.stderr.contains("no configuration file to reload"), "{}", ended.stderr);
}
