//! An exec plugin provides the proxy's own credential. All its output may be a credential, so it appears in no
//! response, page or log.

use std::fs;
use std::path::PathBuf;

use demo::RequestKind;
use http::Method;
use rustix::process::{Resource, getrlimit};

use crate::direct::{Dir, eventually};
use crate::process::{Process, run};

const CANARY: &str = "CANARY-3b9f";
/// The plugin's own arguments; some look like kube-fanout's.
const ARGUMENTS: [&str; 4] = ["-x", "--", "run-plugin", "two words"];
const LOG: &str = "/api/v1/namespaces/default/pods/p/log";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Ways to fail, as shell scripts.
const FAILURES: [(&str, &str); 6] = [
    ("an exit status", "echo CANARY-3b9f; echo CANARY-3b9f >&2; exit 3"),
    ("its credential, and an exit status", "credential CANARY-3b9f 2020-01-01T00:00:00Z; exit 1"),
    ("invalid YAML", "echo 'status: {token: CANARY-3b9f, :'"),
    ("no status", "echo '{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"CANARY-3b9f\"}'"),
    ("an expiry that is no time", "credential CANARY-3b9f CANARY-3b9f"),
    ("a signal", "echo CANARY-3b9f >&2; kill -9 $$"),
];

/// A kubeconfig whose plugin executes the `mode` file on each call.
struct Plugin {
    dir: Dir,
    kubeconfig: PathBuf,
}

impl Plugin {
    fn new(url: &str) -> Self {
        let dir = Dir::new();
        let mode = dir.join("mode");
        let credential = r#"credential() {
  echo "{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\",
    \"status\": {\"token\": \"$1\", \"expirationTimestamp\": \"$2\"}}"
}"#;
        let script = format!("#!/bin/sh\n{credential}\n. {}\n", mode.display());
        let plugin = dir.program("plugin", &script);
        let exec = format!(
            "{{apiVersion: client.authentication.k8s.io/v1, command: {}, interactiveMode: Never, \
             args: {ARGUMENTS:?}, env: [{{name: SECRET, value: {CANARY}}}]}}",
            plugin.display()
        );
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             contexts:\n- {{name: x, context: {{cluster: c, user: u}}}}\n\
             clusters:\n- {{name: c, cluster: {{server: '{url}'}}}}\nusers:\n- name: u\n  user:\n    exec: {exec}\n"
        );
        let kubeconfig = dir.file("kubeconfig", &kubeconfig);
        let plugin = Self { dir, kubeconfig };
        plugin.does("credential good 2020-01-01T00:00:00Z");
        plugin
    }

    /// Sets the behaviour from the next call on. The credentials expire at once, so that each request calls the plugin.
    fn does(&self, what: &str) {
        let new = self.dir.file("mode.new", &format!("{what}\n"));
        fs::rename(new, self.dir.join("mode")).expect("in the same directory");
    }

    fn kubeconfig(&self) -> &str {
        self.kubeconfig.to_str().expect("a path")
    }
}

fn assert_clean(what: &str, text: &str) {
    let line = text.lines().find(|line| line.contains(CANARY));
    assert!(line.is_none(), "{what} shows what a plugin has printed: {}", line.unwrap_or_default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_plugin_output_appears_in_no_response_or_log() {
    let up = demo::upstream().pods(1).run().await;
    let plugin = Plugin::new(&up.url());
    let log = plugin.dir.join("log");
    let process = Process::traced(&log, &["--kubeconfig", plugin.kubeconfig()]).await;
    let client = process.client();
    for (what, failure) in FAILURES {
        plugin.does(failure);
        // A request may share a run that began before.
        eventually("it fails", || async { client.get("/healthz").await.status >= 500 }).await;
        let mut texts = Vec::new();
        for (method, path) in [(Method::GET, LOG), (Method::POST, MAPS), (Method::GET, "/healthz")] {
            let answer = client.request(method.clone(), path).header("content-type", "application/json").send().await;
            assert!(answer.status >= 500, "{what}, {method} {path}: {}", answer.text());
            texts.push(answer.text());
        }
        assert_clean(what, &texts.join("\n"));
        assert!(texts[0].contains("the proxy cannot load its upstream credentials"), "{}", texts[0]);
        for page in ["/metrics", "/debug/feeds", "/debug/cost", "/readyz"] {
            assert_clean(page, &process.admin(page).await);
        }
        plugin.does("credential good 2020-01-01T00:00:00Z");
        eventually("it is good again", || async { client.get("/healthz").await.status == 200 }).await;
    }
    process.signal("TERM");
    let output = process.ended().await;
    assert_clean("standard output", &output.stdout);
    let log = fs::read_to_string(&log).expect("a log");
    assert!(log.contains("the exec plugin"), "the operator sees the problem");
    assert_clean("the log", &log);
}

/// A plugin may wait for a network or a person forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_exec_plugin_runs_once_and_makes_feeds_stale() {
    let up = demo::upstream().pods(1).run().await;
    let plugin = Plugin::new(&up.url());
    let (log, runs, hold) = (plugin.dir.join("log"), plugin.dir.join("runs"), plugin.dir.file("hold", ""));
    let process = Process::traced(&log, &["--kubeconfig", plugin.kubeconfig()]).await;
    let client = process.client();
    let is_stale = async || {
        let cached = client.get("/api/v1/pods?resourceVersion=0").await;
        cached.is_cached() && cached.header("kube-fanout-stale-seconds").is_some()
    };
    eventually("the feed is live", || async {
        client.get("/api/v1/pods").await.is_cached() && up.counts().watches_open.of("pods") == 1
    })
    .await;
    let wait = format!("echo run >> {}; while [ -e {} ]; do sleep 0.1; done", runs.display(), hold.display());
    plugin.does(&format!("{wait}; credential good 2020-01-01T00:00:00Z"));
    // A request may share a run that began before.
    eventually("the plugin hangs", || async { client.get(LOG).await.status == 503 }).await;
    assert!(!is_stale().await, "its watch is open");
    up.faults().end_watches();
    eventually("the feed is stale", is_stale).await;
    let refused = client.get(LOG).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(fs::read_to_string(&runs).expect("it was run"), "run\n", "later requests wait for the same run");
    let logged = fs::read_to_string(&log).expect("a log");
    assert!(logged.contains("the exec plugin has not finished within 10s"), "the operator sees the problem");
    fs::remove_file(&hold).expect("it is there");
    eventually("the feed is live again", || async { !is_stale().await }).await;
}

/// The credential has no expirationTimestamp, so only upstream knows when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_plugin_runs_again_after_upstream_returns_401() {
    let up = demo::upstream().pods(1).run().await;
    let plugin = Plugin::new(&up.url());
    let runs = plugin.dir.join("runs");
    let credential =
        r#"{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "good"}}"#;
    plugin.does(&format!("echo run >> {}; echo '{credential}'", runs.display()));
    let process = Process::traced(&plugin.dir.join("log"), &["--kubeconfig", plugin.kubeconfig()]).await;
    let client = process.client();
    let count = || fs::read_to_string(&runs).expect("it was run").lines().count();
    assert_eq!(client.get("/version").await.status, 200);
    let before = count();
    // The request of the feed, not that of the client.
    up.faults().answer(RequestKind::Any, 1, 401, None);
    client.get("/api/v1/pods").await;
    eventually("it is run again", || async { count() > before }).await;
    eventually("it is good again", || async { client.get("/version").await.status == 200 }).await;
}

#[test]
fn start_failure_does_not_print_exec_plugin_output() {
    for (what, failure) in FAILURES {
        let plugin = Plugin::new("http://127.0.0.1:1");
        plugin.does(failure);
        let output = run(&["serve", "--kubeconfig", plugin.kubeconfig(), "--listen", "127.0.0.1:0", "--admin", "off"]);
        assert_ne!(output.code, Some(0), "{what}");
        assert_clean(what, &format!("{}{}", output.stdout, output.stderr));
        assert!(!output.stderr.is_empty(), "{what}");
    }
}

/// R-HOST-2: a third-party program may not handle large descriptor numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_plugin_runs_with_original_descriptor_limit() {
    let up = demo::upstream().pods(1).run().await;
    let plugin = Plugin::new(&up.url());
    let output_file = plugin.dir.join("output");
    // Each request calls the plugin, so the file must be written atomically.
    let print_arguments = r#"for word in "$@" "$(ulimit -Sn)" "$(ulimit -Hn)"; do echo "$word"; done"#;
    let print_arguments = format!("{print_arguments} > {0}.$$; mv {0}.$$ {0}", output_file.display());
    plugin.does(&format!("{print_arguments}; credential good 2020-01-01T00:00:00Z"));
    let process = Process::with_descriptors("-Sn", 200, &plugin.kubeconfig).await;
    assert_eq!(process.client().get("/version").await.status, 200);
    let hard = getrlimit(Resource::Nofile).maximum.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let output_file = fs::read_to_string(output_file).expect("it was run");
    let expected = [&ARGUMENTS[..], &["200", &hard]].concat();
    assert_eq!(output_file.lines().collect::<Vec<_>>(), expected);
    process.signal("TERM");
    assert!(process.ended().await.stderr.contains("raised the file descriptor limit"), "its own was raised");
}
