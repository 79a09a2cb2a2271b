use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use serde_json::Value;

use super::http::Target;
use super::plane::Plane;
use super::process::Process;
use super::{PATIENCE, eventually};

/// A command of the test bed's driver, which runs client-go in its own process.
pub struct Drive {
    command: Command,
    what: String,
    out: PathBuf,
    errors: PathBuf,
}

/// A running driver.
pub struct Driving {
    process: Process,
    what: String,
    out: PathBuf,
    errors: PathBuf,
}

/// The output and the exit status of a finished driver.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub out: String,
    pub errors: String,
    what: String,
}

impl Drive {
    pub(super) fn new(plane: &Plane, what: &str) -> Self {
        let (out, errors) = (plane.file(&format!("drive-{what}.out")), plane.file(&format!("drive-{what}.err")));
        let mut command = Command::new(&plane.binary);
        command.args(["drive", what, "--kubeconfig"]).arg(plane.kubeconfig());
        // This timeout starts with the driver. It ends a hung driver even if the test has already ended.
        Self { command, what: format!("drive {what}"), out, errors }.args(["--timeout", "30m"])
    }

    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, args: I) -> Self {
        self.command.args(args);
        self
    }

    /// Adds a flag that has a path as its value.
    pub fn file(mut self, flag: &str, path: &Path) -> Self {
        self.command.arg(flag).arg(path);
        self
    }

    /// Makes the driver connect to this server instead of the kubeconfig's.
    pub fn at(mut self, target: &Target) -> Self {
        self.command.args(["--server", &target.url]);
        if let Some(ca) = &target.ca {
            self.command.arg("--ca").arg(ca);
        }
        self
    }

    /// Makes the driver end when it has seen the version that the test will write into `path`.
    pub fn until(self, path: &Path) -> Self {
        let until = format!("@{}", path.display());
        self.args(["--until-rv", &until])
    }

    pub fn start(mut self) -> Driving {
        let file = |path: &Path| File::create(path).expect("a file");
        self.command.stdout(file(&self.out)).stderr(file(&self.errors));
        let process = Process::start(&self.what, &mut self.command);
        Driving { process, what: self.what, out: self.out, errors: self.errors }
    }
}

impl Driving {
    async fn outcome(self, patience: Duration) -> Outcome {
        let status = self.process.wait(patience).await;
        let read = |path: &Path| fs::read_to_string(path).expect("its output");
        Outcome { status, out: read(&self.out), errors: read(&self.errors), what: self.what }
    }

    /// Waits for the driver's end. Panics if it fails.
    pub async fn finish(self) -> Outcome {
        self.finish_within(PATIENCE).await
    }

    /// Like [`Self::finish`], with another timeout, for a command that may take long.
    pub async fn finish_within(self, patience: Duration) -> Outcome {
        let outcome = self.outcome(patience).await;
        let Outcome { status, errors, what, .. } = &outcome;
        assert!(status.success(), "{what}: {errors}\n{}", outcome.lines().last().unwrap_or_default());
        outcome
    }

    /// Waits until the driver has written this file. Panics if the driver ends before.
    pub async fn awaits(&mut self, path: &Path) {
        let what = format!("{} is ready", self.what);
        eventually(&what, async || {
            let done = path.exists();
            let ended = self.process.ended();
            let errors = || fs::read_to_string(&self.errors).unwrap_or_default();
            assert!(done || ended.is_none(), "{} ended: {}", self.what, errors());
            done.then_some(())
        })
        .await;
    }

    /// Waits until the driver has written at least `lines` lines.
    pub async fn wrote(&self, lines: usize) {
        let what = format!("{} writes {lines} lines", self.what);
        eventually(&what, async || {
            let written = fs::read_to_string(&self.out).unwrap_or_default().lines().count();
            (written >= lines).then_some(())
        })
        .await;
    }
}

impl Outcome {
    /// The lines of its output as JSON.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    pub fn summary(&self) -> Value {
        self.lines().next_back().unwrap_or_else(|| panic!("{}: no output", self.what))
    }

    /// The versions of all acknowledged writes of a churn, in order.
    pub fn versions(&self) -> Vec<u64> {
        let of = |line: Value| [line["marked_rv"].as_u64(), line["rv"].as_u64()];
        let mut versions: Vec<u64> = self.lines().flat_map(of).flatten().collect();
        versions.sort_unstable();
        versions
    }
}

/// A kubectl command for this server, with the administrator's kubeconfig and a cache directory in the test bed.
pub fn kubectl(plane: &Plane, target: &Target, args: &[&str]) -> Command {
    let mut command = Command::new(&plane.binary);
    command.arg("kubectl").arg("--kubeconfig").arg(plane.kubeconfig());
    command.args(["--server", &target.url]).arg("--cache-dir").arg(plane.dir.join("kubectl-cache"));
    if let Some(ca) = &target.ca {
        command.arg("--certificate-authority").arg(ca);
    }
    command.args(args).env("HOME", &plane.dir);
    command
}
