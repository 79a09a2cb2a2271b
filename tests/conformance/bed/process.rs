use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::eventually_within;

/// A child process. It is killed when this value is dropped, and also when the test process ends in any other way.
pub struct Process {
    name: String,
    child: Child,
    leash: Child,
}

/// The proxy's binary with this subcommand. `KUBE_FANOUT_BINARY` selects another build of it, such as a release.
pub fn kube_fanout(subcommand: &str) -> Command {
    let built = std::env::var_os("KUBE_FANOUT_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_kube-fanout").into());
    let mut command = Command::new(built);
    command.arg(subcommand);
    command
}

impl Process {
    pub fn start(name: &str, command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        // Only this process holds the write end of the shell's stdin. When this process ends, the shell reads EOF and
        // kills the child.
        let leash = Command::new("sh")
            .args(["-c", "cat >/dev/null; kill -KILL \"$0\"", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        Self { name: name.to_owned(), child, leash }
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// The process's resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kibibytes << 10
    }

    /// The CPU seconds that the process has used so far.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds_of(self.child.id())
    }

    /// Waits until the process has exited.
    pub async fn wait(mut self, patience: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually_within(patience, &what, async || self.ended()).await
    }

    /// Sends the process a signal. `name` has no `SIG` prefix.
    pub fn signal(&self, name: &str) {
        let exit_status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(exit_status.expect("there is kill").success(), "{} runs", self.name);
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        let _ = self.leash.kill();
        let _ = self.leash.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU seconds that a process has used so far.
pub fn cpu_seconds_of(pid: u32) -> f64 {
    cpu_seconds(&pid.to_string(), 11)
}

/// The CPU seconds of all ended child processes of this process.
pub fn cpu_seconds_of_ended() -> f64 {
    cpu_seconds("self", 13)
}

/// User and system time: the fields at `at` and after it in `/proc/PID/stat`.
fn cpu_seconds(pid: &str, at: usize) -> f64 {
    // The unit, `sysconf(_SC_CLK_TCK)`, is 100 on Linux.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let ticks = fields.split(' ').skip(at).take(2).map(|ticks| ticks.parse::<f64>().expect("a number"));
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
