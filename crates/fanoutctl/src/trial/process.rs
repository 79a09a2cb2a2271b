use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Starts a server that appends its output to the file `log`. It has its own process group, so that Ctrl-C reaches only
/// this process, which then stops the servers in order.
pub(super) fn spawn(command: &mut Command, log: &Path) -> std::io::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.process_group(0).kill_on_drop(true).spawn()
}

/// Sends SIGTERM to a server and waits until it exits, at most `longest`. After that, dropping the child kills it.
pub(super) async fn end(mut child: Child, longest: Duration) {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let _ = timeout(longest, child.wait()).await;
}
