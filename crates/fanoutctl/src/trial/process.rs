use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Starts a server that writes into the file `log`, in a process group of its own: Ctrl-C is for us, and we end it in
/// order.
pub(super) fn spawn(command: &mut Command, log: &Path) -> std::io::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.process_group(0).kill_on_drop(true).spawn()
}

/// Asks a server to go, and waits for it for so long at most. What is left then is killed when it is dropped.
pub(super) async fn end(mut child: Child, longest: Duration) {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let _ = timeout(longest, child.wait()).await;
}
