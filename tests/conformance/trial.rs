//! `kube-fanout try` on a real etcd and kube-apiserver: each is killed, and each informer is told every change.

use tokio::task::spawn_blocking;

use crate::bed::{binary, kube_fanout, say};

const INFORMERS: &str = "200";
const SCRIPT: &str = "500ms apiserver, 4s proxy, 6s quit";

#[tokio::test]
async fn on_a_real_control_plane_everything_is_killed_and_nothing_is_lost() {
    let Some(testbed) = binary() else { return };
    let mut command = kube_fanout("try");
    command.arg("--testbed").arg(testbed).args(["--informers", INFORMERS, "--pods", "50", "--rate", "30"]);
    command.args(["--script", SCRIPT]);
    let output = spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
    for part in [
        "The apiserver was killed 1 times, the proxy 1 times.",
        "0 lost, 0 wrong or told twice",
        "Nothing was lost: each informer was told every change, and holds what upstream holds.",
    ] {
        assert!(said.contains(part), "{part}: {said}\n{errors}");
    }
    let all_again = format!("{INFORMERS} of {INFORMERS} streams");
    assert!(said.lines().any(|line| line.contains(&all_again)), "{said}");
    said.lines().rev().take(4).for_each(say);
}
