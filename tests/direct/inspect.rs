//! Commands with which operators inspect running proxies: `fanoutctl fanout` (docs/OPERATING.md).

use std::time::Duration;

use futures_util::future::join_all;
use kube_fanout::auth::AuthMode;
use kube_fanout::net::ListenAddress;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::direct::{self, Dir, Ended, PATIENCE, PODS, Protocol, Watch, eventually};
use crate::process::{Output, kubeconfig, run, run_called};

/// Interval of permission rechecks.
const SOON: Duration = Duration::from_millis(50);

async fn fanout(arguments: &[&str]) -> Output {
    let arguments: Vec<_> = std::iter::once("fanout").chain(arguments.iter().copied()).map(str::to_owned).collect();
    let running = tokio::task::spawn_blocking(move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    running.await.expect("no panic")
}

#[test]
fn help_works_as_fanoutctl_and_kubectl_plugin() {
    let verbs = ["status", "top", "explain", "diff", "tail"];
    let plugin = run_called("kubectl-fanout", &["--help"]);
    assert_eq!(plugin.code, Some(0), "{}", plugin.stderr);
    assert!(plugin.stdout.contains("Usage: kubectl fanout"), "{}", plugin.stdout);
    for verb in verbs {
        assert!(plugin.stdout.contains(verb), "{verb}: {}", plugin.stdout);
        let help = run(&["fanout", verb, "--help"]);
        assert_eq!(help.code, Some(0));
        assert!(help.stdout.contains("Usage: fanoutctl fanout") && help.stdout.contains("--"), "{}", help.stdout);
        assert!(help.stdout.lines().all(|line| line.chars().count() <= 100), "{}", help.stdout);
    }
    assert_eq!(run_called("kubectl-fanout", &["diff"]).code, Some(64));
    let unreachable = run(&["fanout", "status", "--address", "http://127.0.0.1:1"]);
    assert_eq!((unreachable.code, unreachable.stdout.as_str()), (Some(2), ""));
    assert!(unreachable.stderr.contains("http://127.0.0.1:1: "), "{}", unreachable.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_top_and_explain_show_a_slow_client() {
    let up = demo::upstream().pods(20).run().await;
    let plan = direct::app(&up).window_events(400).admin_on_socket();
    let (admin, app) = (plan.admin_flag(), plan.run().await);
    let ok = app.watch(PODS).from(up.revision()).await;
    let slow = app.watch(PODS).fields("spec.nodeName!=x").from(up.revision()).stall_after(1).await;
    ok.reached(up.churn(390).await).await;
    app.discovered().await;

    let status = fanout(&["status", "--address", &admin]).await;
    // All tests of this process share its metrics, and some of them have files that cannot be reloaded.
    let is_troubled = ["reload failed", ": expired"].iter().any(|trouble| status.stdout.contains(trouble));
    assert_eq!(status.code, Some(i32::from(is_troubled)), "{}{}", status.stdout, status.stderr);
    for part in [": ready, kube-fanout ", "client watches", "pods.v1 (json)", "live"] {
        assert!(status.stdout.contains(part), "{part}: {}", status.stdout);
    }
    let json: Value =
        serde_json::from_str(&fanout(&["status", "--address", &admin, "-o", "json"]).await.stdout).expect("JSON");
    assert_eq!(json[0]["ready"], true);

    let behind = || async { fanout(&["explain", "--address", &admin]).await.stdout.contains("events waiting") };
    eventually("the slow watch is listed", behind).await;
    // A reading client never lags by more than the window.
    for _ in 0..10 {
        ok.reached(up.churn(200).await).await;
    }
    slow.resume();
    assert_eq!(slow.ended().await, Ended::Expired);
    app.get("/healthz").await;
    let explained = fanout(&["explain", "--address", &admin]).await.stdout;
    for part in
        ["WATCH pods.v1: expired: its position left the history (410)", "GET /healthz: non_resource: ", "caught up"]
    {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let top = fanout(&["top", "--address", &admin, "--every", "10ms", "--times", "2"]).await;
    assert_eq!(top.code, Some(0), "{}", top.stderr);
    for part in ["pods.v1", "delivered: ", "idle"] {
        assert!(top.stdout.contains(part), "{part}: {}", top.stdout);
    }
    drop(ok);
}

const DRAIN: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_names_revoked_and_drained_watches() {
    let up = demo::upstream().pods(3).run().await;
    for (token, name) in [("a", "ada"), ("b", "bob")] {
        up.reviews().give(token, name);
        up.reviews().allow(name, "*");
    }
    let plan = direct::app(&up).drain(DRAIN).admin_on_socket().with(|config| {
        config.auth = AuthMode::Delegated;
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.recheck) = (SOON, SOON, SOON);
    });
    let (admin, mut app) = (plan.admin_flag(), plan.run().await);
    let explained = async |name: &str| fanout(&["explain", "--address", &admin, "--user", name]).await.stdout;
    let watch = async |token: &str, protocol| {
        let watch = app.bearing(token).watch(PODS).initial_events().over(protocol).await;
        watch.listed().await;
        watch
    };
    let ada = watch("a", Protocol::Http2).await;
    let bobs = join_all((0..40).map(|_| watch("b", Protocol::Http1))).await;
    up.reviews().deny("ada", "*");
    assert_eq!(ada.ended_in_time(PATIENCE).await, Ended::Refused(403));
    let output = explained("ada").await;
    assert!(output.contains("WATCH pods.v1: revoked: ") && !output.contains("bob"), "{output}");
    assert!(bobs.iter().all(Watch::is_open));
    app.begin_stop();
    // Watches end at moments spread over the drain time: the first soon, the last after a minute, when the proxy exits.
    eventually("the end is listed", || async { explained("bob").await.contains("WATCH pods.v1: drained: ") }).await;
    drop(bobs);
    app.stop().await;
}

/// If every user of the machine can read the page, it hides client activity, and the command says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_and_top_report_hidden_activity_pages() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let admin = app.admin_client().url();
    let explained = fanout(&["explain", "--address", &admin]).await;
    assert_eq!((explained.code, explained.stdout.as_str()), (Some(2), ""));
    assert!(explained.stderr.contains("403") && explained.stderr.contains("unix:PATH"), "{}", explained.stderr);
    let top = fanout(&["top", "--address", &admin, "--times", "1"]).await;
    assert!(top.code == Some(0) && top.stdout.contains("watches are hidden"), "{}", top.stdout);
    // Nor is a token sent where others of the network could read it.
    let dir = Dir::new();
    let token = dir.file("token", "sesame").display().to_string();
    let remote = fanout(&["explain", "--address", "http://192.0.2.1:9090", "--token-file", &token]).await;
    assert!(remote.code == Some(2) && remote.stderr.contains("without TLS"), "{}", remote.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diff_reports_only_real_differences() {
    let up = demo::upstream().pods(1_200).run().await;
    let app = direct::app(&up).bounded().run().await;
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "").display().to_string();
    let watch = app.watch(PODS).initial_events().await;
    watch.listed().await;
    let url = app.url();
    let diff = async |more: &[&str]| {
        let common = ["diff", "pods", "--proxy", &url, "--kubeconfig", &file];
        fanout(&[&common[..], more].concat()).await
    };
    let same = diff(&[]).await;
    assert_eq!(same.code, Some(0), "{}{}", same.stdout, same.stderr);
    assert!(
        same.stdout.contains(" objects, ") && same.stdout.contains("identical in the proxy and upstream"),
        "{}",
        same.stdout
    );

    // An event that the stream loses is never sent, and one cached object differs from upstream's.
    up.faults().lose_next_event();
    up.create_pod("default", "lost");
    up.create_pod("default", "told");
    // A state has the last complete version, which the next event shows to be complete.
    let later = up.create_pod("default", "later");
    watch.reached(later).await;
    up.faults().alter("pods", "default/told");
    let different = diff(&["-o", "json"]).await;
    assert_eq!(different.code, Some(1), "{}", different.stderr);
    let json: Value = serde_json::from_str(&different.stdout).expect("JSON");
    let found = serde_json::json!([
        {"key": "default/lost", "difference": "missing"}, {"key": "default/told", "difference": "bytes"},
    ]);
    assert_eq!(json["differences"], found, "{json}");
    let text = diff(&["-n", "default"]).await.stdout;
    assert!(
        text.contains("2 differences\n") && text.contains("default/lost: missing in the proxy; upstream has it at "),
        "{text}"
    );

    // A resource that is not cached cannot be compared.
    let passed = fanout(&["diff", "pods", "--proxy", &up.url(), "--kubeconfig", &file]).await;
    assert!(
        passed.code == Some(2) && passed.stderr.contains("is this the address of a kube-fanout?"),
        "{}",
        passed.stderr
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_proxy_does_not_hide_others() {
    let up = demo::upstream().pods(2).run().await;
    let plan = direct::app(&up).admin_on_socket();
    let (admin, app) = (plan.admin_flag(), plan.run().await);
    app.discovered().await;
    for verb in ["status", "explain"] {
        let both = fanout(&[verb, "--address", "http://127.0.0.1:1", "--address", &admin]).await;
        assert_eq!(both.code, Some(2), "{}{}", both.stdout, both.stderr);
        assert!(both.stdout.starts_with(&admin), "{verb}: {}", both.stdout);
        assert!(both.stderr.contains("http://127.0.0.1:1: "), "{verb}: {}", both.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_prints_events() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    app.get(PODS).await;
    let written = up.create_pod("default", "new");
    app.reached("pods", written).await;
    let (from, url) = (from.to_string(), app.url());
    // If the machine stalls, a second may pass before anything is read. Then the test reads for longer.
    let is_reported =
        |stdout: &str| stdout.lines().any(|line| line.starts_with("ADDED") && line.ends_with("default/new"));
    let mut output = String::new();
    for seconds in ["1", "5", "25"] {
        let of_pods = ["tail", "pods", "-n", "default", "--proxy", &url, "--from", &from, "--seconds", seconds];
        let tail = fanout(&of_pods).await;
        assert_eq!(tail.code, Some(0), "{}", tail.stderr);
        output = tail.stdout;
        if is_reported(&output) {
            break;
        }
    }
    assert!(output.contains("served from the cache") && is_reported(&output), "{output}");
    let refused = fanout(&["tail", "pods", "--proxy", &url, "--from", "nonsense", "--seconds", "1"]).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("nonsense"), "{}", refused.stderr);
}

/// Two pods through a kubectl that forwards to two proxies here. The first one prints more than a pipe holds before the
/// second one prints anything. The real kubectl prints a line for each connection, and exits if its output is not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_covers_all_pods_of_daemon_set() {
    let up = demo::upstream().pods(2).run().await;
    let apps = [direct::app(&up).run().await, direct::app(&up).run().await];
    for app in &apps {
        app.discovered().await;
    }
    let ports = apps.each_ref().map(|app| app.admin_client().url().rsplit(':').next().unwrap_or_default().to_owned());
    let dir = Dir::new();
    let pipe = dir.join("pipe");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*get*) mkfifo '{pipe}'; printf 'pod/one Running\\npod/three Pending\\npod/two Running\\n' ;;\n\
         *pod/one*) echo 'Forwarding from 127.0.0.1:{} -> 9090'; seq 20000 && echo done >'{pipe}' && exec sleep 60 ;;\n\
         *pod/two*) read said <'{pipe}'; echo 'Forwarding from 127.0.0.1:{} -> 9090'; exec sleep 60 ;;\nesac\n",
        ports[0],
        ports[1],
        pipe = pipe.display(),
    );
    dir.program("kubectl", &script);
    let path = dir.before_others();
    let asking = tokio::task::spawn_blocking(move || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
        command
            .args(["fanout", "status", "--pods", "app=kube-fanout", "-n", "x", "-o", "json"])
            .env("PATH", path)
            .output()
    });
    let output = asking.await.expect("no panic").expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && errors.contains("pod/three: not running (Pending)"), "{errors}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json[0]["proxy"], &json[1]["proxy"]), (&"pod/one".into(), &"pod/two".into()));
}

/// If kubectl exits, another one replaces it on the same port, and its output is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_forward_restarts_after_kubectl_exits() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    let port = app.admin_client().url().rsplit(':').next().unwrap_or_default().to_owned();
    let dir = Dir::new();
    let calls = dir.join("calls");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*get*) echo pod/one Running ;;\n\
         *) echo 'Forwarding from 127.0.0.1:{port} -> 9090'; seq 20000; echo \"$*\" >> '{}' ;;\nesac\n",
        calls.display()
    );
    dir.program("kubectl", &script);
    let path = dir.before_others();
    let mut top = tokio::process::Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
    top.args(["fanout", "top", "--pods", "app=kube-fanout", "--every", "50ms"]).env("PATH", path);
    let _top = top.stdout(std::process::Stdio::null()).kill_on_drop(true).spawn().expect("it runs");
    let again = format!("port-forward --address 127.0.0.1 pod/one {port}:9090\n");
    let called = || async { std::fs::read_to_string(&calls).is_ok_and(|calls| calls.ends_with(&again)) };
    eventually("there is another one", called).await;
    let first = std::fs::read_to_string(&calls).unwrap_or_default();
    assert!(first.starts_with("port-forward --address 127.0.0.1 pod/one :9090\n"), "{first}");
}

/// As in `kubectl fanout top | head -1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_ends_without_error_when_its_output_is_closed() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    let admin = app.admin_client().url();
    let mut top = tokio::process::Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
    top.args(["fanout", "top", "--address", &admin, "--every", "10ms"]).kill_on_drop(true);
    top.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut top = top.spawn().expect("it runs");
    let mut stdout = top.stdout.take().expect("a pipe");
    assert!(stdout.read_u8().await.is_ok(), "it prints");
    drop(stdout);
    let output = direct::within("its end", top.wait_with_output()).await.expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(0) && errors.is_empty(), "{errors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_shows_proxy_again_after_restart() {
    let up = demo::upstream().pods(2).run().await;
    let dir = Dir::new();
    let socket = dir.join("admin.sock");
    let admin = format!("unix:{}", socket.display());
    let start = || {
        let socket = ListenAddress::Unix(socket.clone());
        direct::app(&up).with(move |config| config.admin = Some(socket)).run()
    };
    let app = start().await;
    let out = dir.join("out");
    let mut top = tokio::process::Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
    top.args(["fanout", "top", "--address", &admin, "--every", "20ms"]);
    let file = std::fs::File::create(&out).expect("a file");
    let _top = top.stdout(file).kill_on_drop(true).spawn().expect("it runs");
    let text = || std::fs::read_to_string(&out).unwrap_or_default();
    let ready = format!("{admin}: ready");
    eventually("it is printed", || async { text().contains(&ready) }).await;
    app.stop().await;
    let silent = format!("{admin}: no response\n");
    eventually("the missing response is printed", || async { text().contains(&silent) }).await;
    let _app = start().await;
    let is_back = || async { text().rfind(&ready) > text().rfind(&silent) };
    eventually("it is back", is_back).await;
}
