//! The binary `fanoutctl`: help, usage errors, completions, manual pages, and the name `kubectl-fanout`.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// `sysexits.h`.
const USAGE: i32 = 64;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fanoutctl")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_of_each_command_exits_with_0() {
    let commands = ["demo", "try", "bench", "verify", "estimate", "fanout", "completions", "man"];
    let help = commands.iter().map(|command| vec![*command, "--help"]).chain([vec!["--help"]]);
    for arguments in help {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");
        let stdout = text(&output.stdout);
        assert!(stdout.contains("Usage: fanoutctl"), "{stdout}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    }
    let all = text(&run(&["--help"]).stdout);
    assert!(commands.iter().all(|command| all.contains(&format!("\n  {command} "))), "{all}");
    assert!(!all.contains("run-proxy"), "{all}");
    let version = text(&run(&["--version"]).stdout);
    assert_eq!(version.trim(), concat!("fanoutctl ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_exits_with_64() {
    for arguments in [
        &[][..],
        &["serve"],
        &["demo", "--pods", "many"],
        &["demo", "--pods", "0"],
        // An apiserver takes 0 for its own default, half an hour or more.
        &["fanout", "tail", "pods", "--seconds", "0"],
        &["fanout", "top", "--output", "json"],
        &["fanout", "status", "--node", "n7"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(USAGE), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn demo_ends_without_warning_of_its_own_upstream() {
    let output = run(&["demo", "--seconds", "1", "--watches", "1", "--pods", "1"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.code() == Some(0) && stdout.contains("missed events"), "{stdout}{stderr}");
    assert!(!stderr.contains("cannot list or watch upstream"), "{stderr}");
}

#[test]
fn result_that_cannot_be_written_is_no_success() {
    let log = std::env::temp_dir().join(format!("fanoutctl-{}-{}.log", std::process::id(), fastrand::u64(..)));
    let event = r#"{"stage":"ResponseComplete","requestURI":"/api/v1/pods","verb":"list","responseStatus":{"code":200},
        "requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z","stageTimestamp":"2026-01-01T00:00:01.000000Z"}"#;
    std::fs::write(&log, event.replace('\n', "") + "\n").expect("it is written");
    let estimate = |out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fanoutctl"));
        command.arg("estimate").arg("--audit-log").arg(&log).stdout(out).output().expect("the binary runs")
    };
    let printed = estimate(Stdio::piped());
    assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let lost = estimate(full.into());
    assert_eq!(lost.status.code(), Some(2));
    assert!(text(&lost.stderr).contains("standard output"), "{}", text(&lost.stderr));
    std::fs::remove_file(&log).expect("it is ours");
}

/// The first Ctrl-C deletes what was created, but this server never responds.
#[test]
fn second_interrupt_ends_bench_while_it_cleans_up() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanoutctl"));
    let mut child = command.args(["bench", "--target", &url]).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let pid = Pid::from_child(&child);
    for phase in ["100 objects at ", "cleaning up"] {
        assert!(lines.any(|line| line.contains(phase)), "{phase}");
        kill_process(pid, Signal::INT).expect("it runs");
    }
    assert!(lines.any(|line| line.contains("interrupted twice")));
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn completions_name_each_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        for command in ["demo", "verify", "estimate", "fanout", "completions", "man"] {
            assert!(script.contains(command), "{shell}: {command} is not completed");
        }
    }
}

#[test]
fn manual_has_a_page_for_each_command() {
    let folder = std::env::temp_dir().join(format!("fanoutctl-man-{}-{}", std::process::id(), fastrand::u64(..)));
    let output = run(&["man", folder.to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for page in ["fanoutctl.1", "fanoutctl-demo.1", "fanoutctl-verify.1", "fanoutctl-fanout-status.1"] {
        let page = std::fs::read_to_string(folder.join(page)).expect(page);
        assert!(page.contains("\n.SH OPTIONS\n"), "{page}");
    }
    let first = std::fs::read_to_string(folder.join("fanoutctl.1")).expect("a page");
    assert_eq!(text(&run(&["man"]).stdout), first, "without a folder it is printed");
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn binary_named_kubectl_fanout_runs_as_kubectl_plugin() {
    let link = std::env::temp_dir().join(format!("fanoutctl-{}-{}", std::process::id(), fastrand::u64(..)));
    std::fs::create_dir(&link).expect("a folder");
    let plugin = link.join("kubectl-fanout");
    std::os::unix::fs::symlink(Path::new(env!("CARGO_BIN_EXE_fanoutctl")), &plugin).expect("a link");
    let plugin = |argument: &str| Command::new(&plugin).arg(argument).output().expect("the binary runs");
    let help = plugin("--help");
    assert!(text(&help.stdout).contains("Usage: kubectl fanout"), "{}", text(&help.stdout));
    assert_eq!(plugin("diff").status.code(), Some(USAGE));
    std::fs::remove_dir_all(&link).expect("it is ours");
}
