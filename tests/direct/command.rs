//! The binary: its output, its errors, and how it stops (docs/CONFIG.md).

use std::net::TcpListener;
use std::time::{Duration, Instant};

use demo::{self, RunningDemoApiserver};
use kube_fanout::config::TOOL_COMMANDS;

use crate::direct::{self, Dir, PODS, Protocol};
use crate::process::{Process, kubeconfig, metric, run};

/// From `sysexits.h`.
const USAGE: i32 = 64;
const CONFIG: i32 = 78;

#[test]
fn help_exits_with_0() {
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
        &["check", "--help"],
        &["health", "--help"],
    ] {
        let output = run(arguments);
        assert_eq!(output.code, Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty());
        assert!(output.stdout.contains("Usage: kube-fanout"), "{}", output.stdout);
        assert!(output.stdout.lines().all(|line| line.chars().count() <= 100), "{}", output.stdout);
    }
    let serve = run(&["serve", "--help"]).stdout;
    for flag in [
        "--config",
        "--kubeconfig",
        "--listen",
        "--admin",
        "--tls-cert",
        "--tls-key",
        "--tls-self-signed",
        "--auth",
        "--consistency",
        "--preload",
        "Examples:",
        "Exit codes:",
    ] {
        assert!(serve.contains(flag), "{flag}: {serve}");
    }
    let version = run(&["--version"]);
    assert_eq!((version.code, version.stdout.trim()), (Some(0), concat!("kube-fanout ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn daemon_runs_fanoutctl_commands_if_binary_is_alongside() {
    for tool in TOOL_COMMANDS {
        let help = run(&[tool, "--help"]);
        assert_eq!(help.code, Some(0), "{tool}: {}", help.stderr);
        assert!(help.stdout.contains(&format!("Usage: fanoutctl {tool}")), "{}", help.stdout);
    }
    let dir = Dir::new();
    let alone = dir.join("kube-fanout");
    std::fs::copy(env!("CARGO_BIN_EXE_kube-fanout"), &alone).expect("a copy");
    let output = std::process::Command::new(&alone).args(["demo", "--help"]).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(127), "{stderr}");
    assert!(
        stderr.contains("demo is a command of fanoutctl") && stderr.contains("fanoutctl: No such file"),
        "{stderr}"
    );
}

/// The exit codes of shells, so that they differ from the plugin's own.
#[test]
fn run_plugin_exits_with_126_or_127_if_plugin_cannot_run() {
    for (command, code) in [("/no/such/plugin", 127), ("no-such-plugin", 127), ("/", 126)] {
        let output = run(&["run-plugin", "100", "60", "--", command]);
        assert_eq!(output.code, Some(code), "{command}: {}", output.stderr);
    }
    let output = run(&["run-plugin", "100", "60", "--", "sh", "-c", "ulimit -Sn; exit 3"]);
    assert_eq!((output.code, output.stdout.trim()), (Some(3), "100"), "{}", output.stderr);
}

/// `run` waits until no process has the pipes of the plugin.
#[test]
fn run_plugin_kills_a_plugin_that_hangs_and_its_processes() {
    let output = run(&["run-plugin", "100", "1", "--", "sh", "-c", "sleep 1000 & wait"]);
    assert_eq!(output.code, Some(1), "it was killed: {}", output.stderr);
}

#[test]
fn wrong_usage_exits_with_64_and_error_message() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["serve", "--nonsense"],
        &["serve", "--tls-cert", "x"],
        &["serve", "--tls-cert", "x", "--tls-key", "y", "--tls-self-signed"],
        &["serve", "--tls-self-signed-out", "x"],
        &["completions", "nosuchshell"],
    ] {
        let output = run(arguments);
        assert_eq!(output.code, Some(USAGE), "{arguments:?}: {}", output.stderr);
        assert!(output.stdout.is_empty());
        assert!(!output.stderr.trim().is_empty(), "{arguments:?}");
    }
}

/// As by `kube-fanout serve | head -1`, or if the disk of a log file is full.
#[tokio::test]
async fn closed_or_full_output_ends_no_command() {
    use std::process::{Command, Stdio};
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let config = kubeconfig(&dir, &up.url(), "");
    let closed = || Stdio::from(std::io::pipe().expect("a pipe").1);
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there"));
    for output in [closed as fn() -> Stdio, full] {
        let program = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
            command.env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(output()).stderr(output());
            command
        };
        let codes = [&["completions", "bash"][..], &["serve", "--listen", "nonsense"]]
            .map(|arguments| program().args(arguments).status().expect("the binary runs").code());
        assert_eq!(codes, [Some(0), Some(CONFIG)]);
        assert_serves_and_drains(program(), &dir, &config).await;
    }
}

/// As if whatever collects the log hangs: the process must not wait for it.
#[tokio::test]
async fn unread_log_blocks_nothing() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let config = kubeconfig(&dir, &up.url(), "");
    let (unread, mut log) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&log, true).expect("a pipe");
    while log.write(&[b'\n'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&log, false).expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
    command.env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    assert_serves_and_drains(command, &dir, &config).await;
    drop(unread);
}

/// Runs `serve` until its health can be read, and then until SIGTERM has ended it.
async fn assert_serves_and_drains(mut serve: std::process::Command, dir: &Dir, config: &std::path::Path) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let admin = dir.join("admin.sock");
    serve.args(["serve", "--listen", "127.0.0.1:0", "--admin", &format!("unix:{}", admin.display())]);
    let mut child = serve.arg("--kubeconfig").arg(config).spawn().expect("the binary runs");
    let is_served = || async {
        let Ok(mut stream) = tokio::net::UnixStream::connect(&admin).await else { return false };
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.is_ok()
            && stream.read_u8().await.is_ok()
    };
    direct::eventually("it serves", is_served).await;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("its exit code");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn completions_command_supports_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.code, Some(0));
        assert!(output.stdout.contains("kube-fanout") && output.stdout.contains("consistency"), "{shell}");
        for command in ["serve", "check", "health", "config", "completions", "man"] {
            assert!(output.stdout.contains(command), "{shell}: {command} is not completed");
        }
    }
}

#[test]
fn man_command_writes_one_page_per_command() {
    let dir = Dir::new();
    let pages = dir.join("man1");
    let written = run(&["man", pages.to_str().expect("a path")]);
    assert_eq!((written.code, written.stdout.as_str(), written.stderr.as_str()), (Some(0), "", ""));
    for page in ["kube-fanout.1", "kube-fanout-serve.1", "kube-fanout-config-check.1", "kube-fanout-check.1"] {
        let text = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains("\n.SH OPTIONS\n"), "{page}: {text}");
    }
    assert!(!pages.join("kube-fanout-run-plugin.1").exists(), "it is not for people");
    let first = std::fs::read_to_string(pages.join("kube-fanout.1")).expect("a page");
    assert_eq!(run(&["man"]).stdout, first, "without a folder it is printed");
    let file = dir.file("file", "");
    let refused = run(&["man", file.to_str().expect("a path")]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot write into") && refused.stderr.contains("file"), "{}", refused.stderr);
}

#[test]
fn serve_exits_with_78_and_all_configuration_errors() {
    let dir = Dir::new();
    let sections = "window:\n  events: 0\n  colour: red\nfeeds:\n  idle: soon\n";
    let file = dir.file("config.yaml", &format!("listen: [\"nonsense\"]\nunknownKey: 1\n{sections}auth: magic\n"));
    let output = run(&["serve", "--config", file.to_str().expect("a path"), "--consistency", "maybe", "--admin", "x"]);
    assert_eq!(output.code, Some(CONFIG), "{}", output.stderr);
    for word in ["nonsense", "unknownKey", "window.events", "window.colour", "feeds.idle", "magic", "maybe", "admin"] {
        assert!(output.stderr.contains(word), "{word} is not named: {}", output.stderr);
    }
    assert!(output.stdout.is_empty());
}

/// Even an address that is in use is not noticed first.
#[test]
fn serve_validates_configuration_before_bind() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let output = run(&["serve", "--listen", &address, "--consistency", "maybe"]);
    assert_eq!(output.code, Some(CONFIG), "{}", output.stderr);
    assert!(output.stderr.contains("maybe") && !output.stderr.contains(&address), "{}", output.stderr);
}

#[test]
fn config_check_reports_all_problems_without_starting() {
    let dir = Dir::new();
    let wrong = dir.file("wrong.yaml", "drain: 5s\nlimits:\n  watches: 0\n");
    let output = run(&["config", "check", "--config", wrong.to_str().expect("a path"), "--admin", "x"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(CONFIG), ""));
    for part in ["2 problems", "- limits.watches: 0 is out of range", "- admin: "] {
        assert!(output.stderr.contains(part), "{part} is missing in {}", output.stderr);
    }
    let default = run(&["config", "default"]).stdout;
    let right = dir.file("right.yaml", &default);
    let output = run(&["config", "check", "--config", right.to_str().expect("a path")]);
    assert_eq!((output.code, output.stdout.trim()), (Some(0), "the configuration is valid"), "{}", output.stderr);
    let schema: serde_json::Value = serde_json::from_str(&run(&["config", "schema"]).stdout).expect("a JSON schema");
    assert_eq!(schema["properties"]["drain"]["type"], "string");
}

#[test]
fn serve_without_authentication_refuses_remote_addresses() {
    for (flag, address) in [("--listen", "0.0.0.0:0"), ("--listen", "[::]:0"), ("--listen", "10.1.2.3:80")] {
        let output = run(&["serve", flag, address]);
        assert_eq!(output.code, Some(CONFIG));
        assert!(output.stderr.contains(address) && output.stderr.contains("auth: none"), "{}", output.stderr);
    }
    let admin = run(&["serve", "--admin", "0.0.0.0:9090"]);
    assert_eq!(admin.code, Some(CONFIG), "{}", admin.stderr);
    let twice = run(&["serve", "--listen", "127.0.0.1:9999", "--listen", "127.0.0.1:9999"]);
    assert_eq!(twice.code, Some(CONFIG), "{}", twice.stderr);
}

/// The downward API can set the node's name in the environment.
#[test]
fn node_without_authentication_on_a_port_exits_with_78() {
    let output = run(&["serve", "--node-name", "n1", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.code, Some(CONFIG), "{}", output.stderr);
    assert!(output.stderr.contains("node:") && output.stderr.contains("unix socket"), "{}", output.stderr);
}

#[test]
fn remote_upstream_without_tls_exits_with_78() {
    let dir = Dir::new();
    for url in ["http://10.1.2.3:6443", "http://kubernetes.default.svc", "http://127.0.0.1.nip.io:80"] {
        let path = kubeconfig(&dir, url, "");
        let path = path.to_str().expect("a path");
        let output = run(&["serve", "--kubeconfig", path, "--listen", "127.0.0.1:0", "--admin", "off"]);
        assert_eq!(output.code, Some(CONFIG), "{url}: {}", output.stderr);
        assert!(output.stderr.contains(url) && output.stderr.contains("does not use TLS"), "{}", output.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_logs_the_memory_budget_and_warns_if_memory_is_short() {
    let up = demo::upstream().run().await;
    for (text, message, warned) in [
        ("", "half of ", false),
        ("feeds: {memoryMebibytes: 20}\n", "mebibytes=20 source=feeds.memoryMebibytes", false),
        ("feeds: {memoryMebibytes: 16777216}\n", "mebibytes=16777216 source=feeds.memoryMebibytes", true),
    ] {
        let dir = Dir::new();
        let config = dir.file("config.yaml", &format!("drain: 10ms\n{text}"));
        let process = Process::serve(&dir, &up.url(), &["--config", config.to_str().expect("a path")]).await;
        process.signal("TERM");
        let stderr = process.ended().await.stderr;
        let line = stderr.lines().find(|line| line.contains("memory budget set for objects and events"));
        assert!(line.is_some_and(|line| line.contains(message)), "{message}: {stderr}");
        let warns = stderr.contains("the process may be OOM-killed");
        assert_eq!(warns, warned, "{text}: {stderr}");
    }
}

#[test]
fn serve_exits_with_78_if_kubeconfig_is_unusable() {
    let dir = Dir::new();
    let broken = dir.file("broken", "not: [a kubeconfig");
    let insecure = kubeconfig(&dir, "https://127.0.0.1:1", "    insecure-skip-tls-verify: true\n");
    let missing = dir.join("missing");
    for path in [&broken, &insecure, &missing] {
        let path = path.to_str().expect("a path");
        let output = run(&["serve", "--kubeconfig", path, "--listen", "127.0.0.1:0", "--admin", "off"]);
        assert_eq!(output.code, Some(CONFIG), "{path}: {}", output.stderr);
        assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
    }
    let outside = run(&["serve", "--listen", "127.0.0.1:0", "--admin", "off"]);
    assert_eq!(outside.code, Some(CONFIG));
    assert!(outside.stderr.contains("--kubeconfig"), "{}", outside.stderr);
    // As in client-go, an empty variable is one that is not set.
    let empty = run(&["serve", "--kubeconfig", "", "--listen", "127.0.0.1:0", "--admin", "off"]);
    assert_eq!(empty.code, Some(CONFIG));
    assert!(empty.stderr.contains("in-cluster configuration"), "{}", empty.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_exits_with_0_after_clean_drain_on_signal() {
    let up = demo::upstream().pods(5).run().await;
    for signal in ["TERM", "INT"] {
        // If the machine stalls until the drain ends, watches are cut. Then the test retries with a longer drain.
        let mut ends = Vec::new();
        for drain in [3, 30, 90] {
            let took;
            (ends, took) = serves_until(&up, signal, drain).await;
            if took.as_secs() < drain {
                break;
            }
        }
        assert!(ends.iter().all(|end| *end == direct::Ended::Clean), "SIG{signal}: {ends:?}");
    }
}

/// Runs `serve` with this drain until this signal ends it. Returns how its watches ended, and how long the shutdown
/// took.
async fn serves_until(up: &RunningDemoApiserver, signal: &str, drain: u64) -> (Vec<direct::Ended>, Duration) {
    let dir = Dir::new();
    let config = dir.file("config.yaml", &format!("drain: {drain}s\n"));
    let process = Process::serve(&dir, &up.url(), &["--config", config.to_str().expect("a path")]).await;
    let client = process.client();
    let list = direct::proven(&client, || PODS.to_owned()).await;
    assert_eq!((list.status, list.items().len(), list.is_cached()), (200, 5, true));
    let watches = [
        client.watch(PODS).from(list.rv()).await,
        client.watch(PODS).from(list.rv()).over(Protocol::Http2).await,
        client.watch(PODS).from(list.rv()).over(Protocol::WebSocket).await,
    ];
    let began = Instant::now();
    process.signal(signal);
    let mut ends = Vec::new();
    for watch in &watches {
        ends.push(watch.ended().await);
    }
    let output = process.ended().await;
    let took = began.elapsed();
    assert_eq!(output.code, Some(0), "SIG{signal}: {}", output.stderr);
    assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
    let line = output.stderr.lines().find(|line| line.contains("discovered upstream's API resources"));
    let line = line.unwrap_or_else(|| panic!("{}", output.stderr));
    let upstream = format!("upstream=\"{}\"", up.url());
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    for field in [&version, "mode=\"auth none\"", &upstream, "upstream_version=\"1."] {
        assert!(line.contains(field), "{field}: {line}");
    }
    let lines: Vec<_> = output.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "one line per address, and nothing else: {lines:?}");
    assert!(lines[0].starts_with("serving on http://127.0.0.1:"));
    assert!(lines[1].starts_with("metrics and health on http://127.0.0.1:"));
    (ends, took)
}

/// The runbook relies on warnings in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_feed_logs_one_warning() {
    let up = demo::upstream().pods(5).run().await;
    let process = Process::serve(&Dir::new(), &up.url(), &["--preload", "pods"]).await;
    direct::eventually("ready", || process.is_ready()).await;
    up.faults().down().await;
    let failures = || async {
        let text = process.metrics().await;
        metric(&text, "kube_fanout_upstream_failures_total", "resource=\"pods") >= 2.0
    };
    direct::eventually("it has failed twice, so the first failure is logged", failures).await;
    process.signal("TERM");
    let log = process.ended().await.stderr;
    let lost = |line: &&str| line.contains("cannot list or watch upstream") && line.contains("feed=pods");
    let warned = log.lines().filter(lost).filter(|line| line.contains("WARN")).count();
    assert_eq!(warned, 1, "once, however often it fails: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_upstream_is_logged_with_host_and_cause() {
    // A bound socket without a listener: connections are refused, and no other process can take the port.
    let unused = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    unused.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let address = unused.local_addr().expect("bound").as_socket().expect("an address");
    let process = Process::serve(&Dir::new(), &format!("http://{address}"), &[]).await;
    let why = "[-]discovery not ready: upstream cannot be reached: ";
    direct::eventually("it says why", || async { process.admin("/readyz").await.starts_with(why) }).await;
    let ready = process.admin("/readyz").await;
    assert!(ready.contains("Connection refused") && !ready.contains(&address.to_string()), "{ready}");
    process.signal("TERM");
    let log = process.ended().await.stderr;
    assert!(log.contains(&format!("cannot connect to {address}: tcp connect error: Connection refused")), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_fails_with_address_in_error_if_in_use() {
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let first = Process::serve(&dir, &up.url(), &[]).await;
    let address = first.client().url().replace("http://", "");
    let path = kubeconfig(&dir, &up.url(), "");
    let path = path.to_str().expect("a path");
    let second = run(&["serve", "--kubeconfig", path, "--listen", &address, "--admin", "off"]);
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(second.stderr.contains(&address), "{}", second.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_reports_fan_out_latency_and_missed_events() {
    // If the machine stalls, nothing may be delivered within a second. Then the test retries for longer.
    let mut output = None;
    for seconds in ["1", "5", "20"] {
        let arguments = ["demo", "--pods", "20", "--watches", "150", "--seconds", seconds];
        let demo = tokio::task::spawn_blocking(move || run(&arguments));
        let done = direct::within("the demo", demo).await.expect("no panic");
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let is_measured = done.stdout.contains("latency p50") && done.stderr.contains("watches=150");
        output = Some(done);
        if is_measured {
            break;
        }
    }
    let output = output.expect("it ran");
    for part in [
        "1 upstream watch served 150 client watches.",
        "events from upstream",
        "events delivered to clients",
        "0  missed events, 0 repeated",
        "delivery latency p50",
        "150 times as many.",
    ] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    assert!(!output.stdout.contains("errors"), "{}", output.stdout);
    assert!(output.stderr.contains("watches=150") && output.stderr.contains("p99="), "{}", output.stderr);
}
