use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::process::{Child, Command};

use super::wait::until;
use super::{TrialError, process};
use base::BackgroundTasks;
use probe::{TargetCredentials, UnaryClient, WatchProtocol};

/// An etcd and a kube-apiserver, which the test bed's binary runs in their own directory.
pub struct ControlPlane {
    binary: PathBuf,
    dir: PathBuf,
    up: Child,
    /// The apiserver process, once it was restarted.
    again: Option<Child>,
}

/// The location of the test bed's binary, or the script that builds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestbedSource {
    Binary(PathBuf),
    /// The build script of a checkout, and the path of the binary that it builds.
    Script {
        script: PathBuf,
        binary: PathBuf,
    },
    Nowhere,
}

/// The timeouts for starting and for stopping a process.
const START_MAX: Duration = Duration::from_secs(180);
const END_MAX: Duration = Duration::from_secs(30);
const BINARY: &str = "target/testbed/kube-testbed";
const SCRIPT: &str = "tests/kube/build.sh";
/// The exit code of the build script if there is no Go toolchain.
const NO_GO: i32 = 3;

/// Looks for the test bed in `folder`, and next to the directory that `program` was built into.
pub fn find_testbed(folder: &Path, program: Option<&Path>) -> TestbedSource {
    let beside = program.and_then(|program| Some(program.parent()?.parent()?.join("testbed/kube-testbed")));
    let binary = [Some(folder.join(BINARY)), beside].into_iter().flatten().find(|path| path.is_file());
    let script = folder.join(SCRIPT);
    match binary {
        Some(binary) => TestbedSource::Binary(binary),
        None if script.is_file() => TestbedSource::Script { script, binary: folder.join(BINARY) },
        None => TestbedSource::Nowhere,
    }
}

impl ControlPlane {
    /// Builds the binary with the script. The script inherits stdout and stderr.
    ///
    /// # Errors
    /// If the build fails, or there is no Go toolchain.
    pub async fn build(script: &Path) -> Result<(), TrialError> {
        let built = Command::new(script).stdin(Stdio::null()).kill_on_drop(true).status().await;
        let built = built.map_err(|error| TrialError::of(&script.display().to_string(), error))?;
        match built.code() {
            Some(0) => Ok(()),
            Some(NO_GO) => Err(TrialError::of("the control plane", "cannot build it: no Go toolchain found")),
            _ => Err(TrialError::of("the control plane", format!("the build failed ({built})"))),
        }
    }

    /// Starts a control plane in an existing directory, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready within `START_MAX`.
    pub async fn start(binary: &Path, dir: &Path) -> Result<Self, TrialError> {
        let up = spawn(binary, "up", dir)?;
        let mut plane = Self { binary: binary.to_owned(), dir: dir.to_owned(), up, again: None };
        let ready = dir.join("ready");
        let is_up = until(START_MAX, async || {
            let ended = plane.up.try_wait().ok().flatten();
            (ready.exists() || ended.is_some()).then_some(ended.is_none())
        });
        if is_up.await != Some(true) {
            let log = dir.join("up.log");
            return Err(TrialError::of("the control plane", format!("it did not start; see {}", log.display())));
        }
        Ok(plane)
    }

    /// Returns the path of the kubeconfig of a user: `admin` or `proxy`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.kubeconfig"))
    }

    pub fn token_file(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.token"))
    }

    /// Kills the apiserver with SIGKILL, and waits until the process has ended.
    ///
    /// # Errors
    /// If its process ID is unknown, or it cannot be killed.
    pub async fn kill_apiserver(&mut self) -> Result<(), TrialError> {
        let pid = self.pid("apiserver")?;
        kill_process(pid, Signal::KILL).map_err(|error| TrialError::of("the apiserver", error))?;
        if let Some(mut again) = self.again.take() {
            let _ = again.wait().await;
        }
        // `up` reaps the apiserver that it started itself, so its end is only visible by its process ID.
        until(END_MAX, async || test_kill_process(pid).is_err().then_some(())).await;
        Ok(())
    }

    /// Restarts the apiserver, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready within `START_MAX`.
    pub async fn start_apiserver(&mut self) -> Result<(), TrialError> {
        self.again = Some(spawn(&self.binary, "apiserver", &self.dir)?);
        let credentials = TargetCredentials { kubeconfig: Some(self.kubeconfig("admin")), ..Default::default() };
        let url = credentials.server().map_err(|error| TrialError::of("the apiserver", error))?;
        let target = credentials.target(&url).await.map_err(|error| TrialError::of("the apiserver", error))?;
        let tasks = BackgroundTasks::new();
        let client = UnaryClient::new(&target, WatchProtocol::H1, &tasks);
        let is_ready = until(START_MAX, async || {
            let answer = client.get("/readyz", "*/*").await.ok()?;
            answer.status.is_success().then_some(())
        });
        let is_ready = is_ready.await;
        tasks.join().await;
        is_ready.ok_or_else(|| TrialError::of("the apiserver", "not ready in time"))
    }

    /// Stops the apiserver and etcd of the test bed.
    pub async fn stop(self) {
        process::end(self.up, END_MAX).await;
    }

    fn pid(&self, of: &str) -> Result<Pid, TrialError> {
        let file = self.dir.join(format!("{of}.pid"));
        let text =
            std::fs::read_to_string(&file).map_err(|error| TrialError::of(&file.display().to_string(), error))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| TrialError::of(&file.display().to_string(), "no process id"))
    }
}

/// Starts a subcommand of the binary, with a log file of the same name.
fn spawn(binary: &Path, command: &str, dir: &Path) -> Result<Child, TrialError> {
    let mut child = Command::new(binary);
    child.arg(command).arg("--dir").arg(dir);
    let spawned = process::spawn(&mut child, &dir.join(format!("{command}.log")));
    spawned.map_err(|error| TrialError::of(&binary.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn testbed_is_found_in_checkout_or_next_to_binary_or_built() {
        let folder = std::env::temp_dir().join(format!("kube-fanout-trial-{}", fastrand::u64(..)));
        let program = folder.join("elsewhere/release/kube-fanout");
        let put = |path: &Path| {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
            std::fs::write(path, "").expect("it is written");
        };
        let found = || find_testbed(&folder, Some(&program));
        assert_eq!(found(), TestbedSource::Nowhere);
        let script = folder.join(SCRIPT);
        put(&script);
        assert_eq!(found(), TestbedSource::Script { script, binary: folder.join(BINARY) });
        let beside = folder.join("elsewhere/testbed/kube-testbed");
        put(&beside);
        assert_eq!(found(), TestbedSource::Binary(beside));
        put(&folder.join(BINARY));
        assert_eq!(found(), TestbedSource::Binary(folder.join(BINARY)));
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
