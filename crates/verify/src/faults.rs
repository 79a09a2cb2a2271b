//! Fault injection: runs the operator's commands at moments that the seed determines.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::record::{FaultRecord, HistoryRecord};
use super::run_context::{RngStream, VerifyRunContext, between};
use super::truth_recorder::{GroundTruthRecorder, forgets};
use base::now_ns;

/// The timeout of a command. Promises that a fault waives cannot be judged until the fault ends.
const COMMAND_MAX: Duration = Duration::from_secs(120);
/// The effect of a command may outlast it: an apiserver that it started is not ready at once.
const SETTLE: Duration = Duration::from_secs(10);
/// The number of bytes of a command's last output that are shown.
const OUTPUT_BYTES_MAX: usize = 300;

/// The commands and the intervals between them.
#[derive(Clone, Debug)]
pub(super) struct FaultPlan {
    pub(super) commands: Vec<String>,
    pub(super) least: Duration,
    pub(super) most: Duration,
    /// The latest start of the first command, so that a short run has one.
    pub(super) first_within: Duration,
    /// The file for the output of fault commands. A pipe would break processes that the commands leave running.
    pub(super) log: PathBuf,
}

/// Runs the commands one after another, each at a drawn moment, until `calm`.
pub(super) async fn run(
    scene: Arc<VerifyRunContext>,
    learnt: Arc<GroundTruthRecorder>,
    plan: FaultPlan,
    calm: CancellationToken,
) {
    let mut rng = scene.rng(RngStream::Faults);
    let commands = plan.commands.iter().cycle();
    for (nth, command) in commands.enumerate() {
        let drawn = between(&mut rng, plan.least, plan.most);
        let wait = if nth == 0 { drawn.min(plan.first_within) } else { drawn };
        tokio::select! {
            biased;
            () = calm.cancelled() => return,
            () = sleep(wait) => {}
        }
        let from_ns = now_ns();
        let hits = match execute(command, &plan.log).await {
            Ok(()) => 1,
            Err(why) => {
                scene.notes.add(format!("fault command `{command}` failed: {why}"));
                0
            }
        };
        sleep(SETTLE).await;
        let fault = FaultRecord { name: command.clone(), from_ns, to_ns: now_ns(), hits, waives: Vec::new() };
        scene.recorder.put(&HistoryRecord::Fault(fault));
        // A restarted server has no history from before the restart.
        forgets(&learnt, learnt.to(), from_ns);
    }
}

/// Runs a command to its end.
async fn execute(command: &str, log: &Path) -> Result<(), String> {
    let opened = File::options().create(true).append(true).open(log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, errors) = opened.map_err(|error| format!("{}: {error}", log.display()))?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(out).stderr(errors).kill_on_drop(true);
    let mut child = shell.spawn().map_err(|error| format!("sh: {error}"))?;
    let ended = timeout(COMMAND_MAX, child.wait()).await;
    let status =
        ended.map_err(|_| format!("it took longer than {COMMAND_MAX:?}"))?.map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{status}: {}", last_line(log).unwrap_or_default())) }
}

/// Returns the last line of the output.
fn last_line(log: &Path) -> io::Result<String> {
    let text = std::fs::read(log)?;
    let last = String::from_utf8_lossy(&text[text.len().saturating_sub(OUTPUT_BYTES_MAX)..]).into_owned();
    Ok(last.lines().last().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failed_command_reports_why_and_children_are_not_awaited() {
        let log = std::env::temp_dir().join(format!("kube-fanout-faults-{}.log", fastrand::u64(..)));
        assert_eq!(execute("sleep 600 & echo $!", &log).await, Ok(()));
        let failed = execute("echo no such thing >&2; exit 3", &log).await.expect_err("it fails");
        assert!(failed.contains('3') && failed.contains("no such thing"), "{failed}");
        let missing = execute("no-such-command-anywhere", &log).await.expect_err("it is not there");
        assert!(missing.contains("not found"), "{missing}");
        let text = std::fs::read_to_string(&log).expect("it was written");
        let left = text.lines().next().expect("an id");
        assert_eq!(execute(&format!("kill {left}"), &log).await, Ok(()), "it still runs");
        std::fs::remove_file(&log).expect("it is there");
    }
}
