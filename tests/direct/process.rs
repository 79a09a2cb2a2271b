//! Runs the binary as a process, for tests that start it, send it requests and signals, and wait for its exit.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::direct::{Client, Dir, Place, in_time, within};

/// Output and exit code of a process.
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A `serve` that is ready.
pub struct Process {
    child: Option<Child>,
    stdout: BufReader<std::process::ChildStdout>,
    address_lines: Vec<String>,
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
    let surroundings = ["KUBECONFIG", "KUBE_FANOUT_CONFIG", "RUST_LOG", "KUBERNETES_SERVICE_HOST"];
    for name in surroundings {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `fanoutctl`, which `cargo test` builds next to the daemon when it builds the whole workspace.
fn tools() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_kube-fanout")).with_file_name("fanoutctl")
}

/// The binary with a socket as its third descriptor, addressed to the process with that id.
fn passing(socket: &TcpListener, pid: &str) -> Command {
    let mut command = Command::new("sh");
    let socket = OwnedFd::from(socket.try_clone().expect("a descriptor"));
    command.stdin(socket).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG").env_remove("KUBECONFIG");
    let passed = format!("LISTEN_FDS=1 LISTEN_PID={pid} exec \"$0\" \"$@\" 3<&0 </dev/null");
    command.arg("-c").arg(passed).arg(env!("CARGO_BIN_EXE_kube-fanout"));
    command
}

/// Runs to the end, with a socket.
pub fn run_passing(socket: &TcpListener, pid: &str, arguments: &[&str]) -> Output {
    let output = passing(socket, pid).args(arguments).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Runs to the end.
pub fn run(arguments: &[&str]) -> Output {
    let output = command().args(arguments).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Runs `fanoutctl` to the end under another name.
pub fn run_called(name: &str, arguments: &[&str]) -> Output {
    let dir = Dir::new();
    let link = dir.join(name);
    std::os::unix::fs::symlink(tools(), &link).expect("a link");
    let output = Command::new(link).args(arguments).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// A kubeconfig without credentials for a server; `more` are further lines of the cluster.
pub fn kubeconfig(dir: &Dir, url: &str, more: &str) -> PathBuf {
    let cluster = format!("- name: c\n  cluster:\n    server: {url}\n{more}");
    let context = "contexts:\n- name: x\n  context: {cluster: c, user: u}\n";
    let user = "users:\n- name: u\n  user: {}\n";
    let head = "apiVersion: v1\nkind: Config\ncurrent-context: x\n";
    dir.file("kubeconfig", &format!("{head}clusters:\n{cluster}{context}{user}"))
}

impl Process {
    /// Starts `serve` on free ports in front of `url`, and returns when it has printed its addresses.
    pub async fn serve(dir: &Dir, url: &str, arguments: &[&str]) -> Self {
        let mut command = command();
        command.arg("serve").arg("--kubeconfig").arg(kubeconfig(dir, url, "")).args(arguments);
        Self::start(command).await
    }

    /// Starts `serve` on this address.
    pub async fn at(listen: SocketAddr, dir: &Dir, url: &str, arguments: &[&str]) -> Self {
        let mut command = command();
        command.arg("serve").arg("--kubeconfig").arg(kubeconfig(dir, url, "")).args(arguments);
        Self::start_at(&listen.to_string(), command).await
    }

    /// Starts `serve` on a socket that is passed to it as systemd does.
    pub async fn on(socket: &TcpListener, dir: &Dir, url: &str) -> Self {
        let listen = socket.local_addr().expect("it is bound").to_string();
        let mut command = passing(socket, "$$");
        command.arg("serve").arg("--kubeconfig").arg(kubeconfig(dir, url, ""));
        Self::start_at(&listen, command).await
    }

    /// Starts `serve` with this many descriptors: `ulimit` selects the limit.
    pub async fn with_descriptors(ulimit: &str, descriptors: usize, kubeconfig: &Path) -> Self {
        let mut command = Command::new("sh");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG");
        let limited = format!("ulimit {ulimit} {descriptors}; exec \"$0\" \"$@\"");
        command.arg("-c").arg(limited).arg(env!("CARGO_BIN_EXE_kube-fanout"));
        command.arg("serve").arg("--kubeconfig").arg(kubeconfig);
        Self::start(command).await
    }

    /// Starts `serve` on the addresses of its configuration, of which there are this many.
    pub async fn as_configured(addresses: usize, arguments: &[&str]) -> Self {
        let mut command = command();
        command.arg("serve").args(arguments).env_remove("NODE_NAME");
        Self::start_saying(addresses, command).await
    }

    /// Starts `serve` with all logs, written to a file.
    pub async fn traced(log: &Path, arguments: &[&str]) -> Self {
        let mut command = command();
        command.arg("serve").args(arguments).env("RUST_LOG", "trace");
        command.stderr(File::create(log).expect("a file"));
        Self::start(command).await
    }

    async fn start(command: Command) -> Self {
        Self::start_at("127.0.0.1:0", command).await
    }

    async fn start_at(listen: &str, mut command: Command) -> Self {
        command.args(["--listen", listen, "--admin", "127.0.0.1:0"]);
        Self::start_saying(2, command).await
    }

    async fn start_saying(addresses: usize, mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let reading = spawn_blocking(move || {
            let lines = (0..addresses).map(|_| {
                let mut line = String::new();
                stdout.read_line(&mut line).map(|_| line.trim_end().to_owned())
            });
            let address_lines: Result<Vec<_>, _> = lines.collect();
            (address_lines.expect("a line for each address"), stdout)
        });
        let (address_lines, stdout) = within("addresses", reading).await.expect("no panic");
        Self { child: Some(child), stdout, address_lines }
    }

    fn reach(&self, line: usize) -> Client {
        let (_, url) =
            self.address_lines[line].rsplit_once(' ').unwrap_or_else(|| panic!("no address: {:?}", self.address_lines));
        Client::to(Place::parse(url))
    }

    pub fn client(&self) -> Client {
        self.reach(0)
    }

    /// URL of its admin address.
    pub fn admin_url(&self) -> &str {
        self.address_lines[1].rsplit_once(' ').expect("the line has an address").1
    }

    pub async fn metrics(&self) -> String {
        self.admin("/metrics").await
    }

    pub async fn admin(&self, path: &str) -> String {
        self.reach(1).get(path).await.text()
    }

    pub async fn is_ready(&self) -> bool {
        self.reach(1).get("/readyz").await.status == 200
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Resident memory of the process.
    pub fn resident_mebibytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it says so");
        resident.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") >> 10
    }

    /// Sets the soft descriptor limit; returns the previous one.
    #[cfg(target_os = "linux")]
    pub fn limit_descriptors(&self, limit: Option<u64>) -> Option<u64> {
        use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
        let id = Pid::from_raw(i32::try_from(self.id()).expect("an id"));
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(id, Resource::Nofile, Rlimit { current: limit, maximum }).expect("it is ours").current
    }

    /// Leaves no free descriptor until some are closed; returns the previous limit.
    #[cfg(target_os = "linux")]
    pub fn leave_no_descriptor(&self) -> Option<u64> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.id())).expect("it runs");
        let open: Vec<u64> = open.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok()).collect();
        self.limit_descriptors((0..=open.len() as u64).find(|fd| !open.contains(fd)))
    }

    /// CPU time of the process.
    #[cfg(target_os = "linux")]
    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("it runs");
        let fields = stat.rsplit_once(')').expect("its name").1.split_whitespace().skip(11).take(2);
        // All known kernels count hundredths of a second here.
        fields.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
    }

    /// Sends a signal, such as `TERM` or `INT`.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for its exit.
    pub async fn ended(self) -> Output {
        within("the end of the process", self.end()).await
    }

    /// Waits for its exit, which is promised within a time.
    pub async fn ended_in_time(self, promised: Duration) -> Output {
        in_time(promised, "the end of the process", self.end()).await
    }

    async fn end(mut self) -> Output {
        let mut child = self.child.take().expect("it runs");
        let mut stdout = std::mem::take(&mut self.address_lines).join("\n");
        let waiting = spawn_blocking(move || {
            let (mut more, mut stderr) = (String::new(), String::new());
            let _ = self.stdout.read_to_string(&mut more);
            if let Some(mut pipe) = child.stderr.take() {
                let _ = pipe.read_to_string(&mut stderr);
            }
            (child.wait().expect("an end").code(), more, stderr)
        });
        let (code, more, stderr) = waiting.await.expect("no panic");
        stdout.push_str(&more);
        Output { code, stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The largest value of a metric among the lines that contain `labels`.
pub fn metric(text: &str, name: &str, labels: &str) -> f64 {
    let line = |line: &&str| {
        let named = line.split(['{', ' ']).next() == Some(name);
        named && line.contains(labels)
    };
    let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
    text.lines().filter(line).filter_map(value).fold(0.0, f64::max)
}
