//! `fanoutctl try` on a real etcd and kube-apiserver: each is killed, and each informer receives every change.

use std::fs::{self, File};

use tokio::task::spawn_blocking;

use crate::bed::{PATIENCE, Process, binary, eventually, kube_fanout, log_line, scratch_file};
use crate::blocks::{Shell, blocks, with};

const INFORMERS: &str = "200";
const SCRIPT: &str = "500ms apiserver, 4s proxy, 6s quit";

#[tokio::test]
async fn try_command_loses_no_event_on_a_real_control_plane() {
    let Some(testbed) = binary() else { return };
    let mut command = kube_fanout("try");
    command.arg("--testbed").arg(testbed).args(["--informers", INFORMERS, "--pods", "50", "--rate", "30"]);
    command.args(["--script", SCRIPT]);
    let output = spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    let (stdout, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{errors}");
    for part in [
        "The apiserver was killed once, the proxy once.",
        "0 lost, 0 wrong or duplicate",
        "Nothing was lost: each informer received every change, and its state equals upstream.",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}\n{errors}");
    }
    let all_again = format!("{INFORMERS} of {INFORMERS} streams");
    assert!(stdout.lines().any(|line| line.contains(&all_again)), "{stdout}");
    stdout.lines().rev().take(4).for_each(log_line);
}

/// The command of docs/QUICKSTART.md in a checkout, ended by Ctrl-C.
#[tokio::test]
async fn quickstart_try_command_runs_and_exits_on_ctrl_c() {
    let Some(testbed) = binary() else { return };
    let [block] = blocks("docs/QUICKSTART.md", "quickstart_try_command_runs_and_exits_on_ctrl_c");
    let shell = Shell::in_checkout(scratch_file("try"));
    fs::create_dir_all(shell.home.join("target/testbed")).expect("a folder");
    shell.link("target/testbed/kube-testbed", &testbed);
    let (out, log) = (shell.home.join("out"), shell.home.join("log"));
    // A thousand informers would take the CPUs from all tests that run in parallel.
    let fewer = format!("fanoutctl try --informers {INFORMERS}");
    let fewer = with(&block, &[("cargo run --release -- try", &fewer)]);
    let mut command = shell.command(&format!("exec {fewer}"));
    command.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a file"));
    let mut process = Process::start("fanoutctl try", &mut command);
    let all = format!("{INFORMERS} of {INFORMERS} streams");
    let read = || fs::read_to_string(&out).expect("its output");
    eventually("changes are delivered to all", async || {
        let stdout = read();
        assert!(process.ended().is_none(), "{stdout}{}", fs::read_to_string(&log).unwrap_or_default());
        let to_all = stdout.lines().filter(|line| line.contains("lost 0 ") && line.contains(&all));
        (to_all.count() > 1).then_some(())
    })
    .await;
    process.signal("INT");
    let (status, stdout) = (process.wait(PATIENCE).await, read());
    assert_eq!(status.code(), Some(0), "{stdout}");
    assert!(stdout.contains("Nothing was lost: each informer received every change"), "{stdout}");
}
