use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;
use tokio::sync::OnceCell;

use super::drive::Drive;
use super::http::{Http, Protocol, RequestSpec, Target};
use super::metrics::Metrics;
use super::process::{Process, cpu_seconds_of};
use super::{eventually, log_line, scratch, settled, unique};

/// A running control plane.
pub struct Plane {
    pub binary: PathBuf,
    pub dir: PathBuf,
    url: String,
    loaded: OnceCell<()>,
    /// The apiserver, if it was restarted.
    again: Mutex<Option<Process>>,
    /// The process of etcd, if it was restarted.
    etcd: Mutex<Option<Process>>,
    /// The process that started all servers.
    up: Mutex<Process>,
}

/// A lifetime of events that is short enough for a test.
const EVENT_TTL: &str = "--event-ttl=20s";

/// The file name of the audit log, if the control plane writes one.
pub(super) const AUDIT: &str = "audit.log";

/// The name of the directory with etcd's data.
const DATA: &str = "etcd";
/// The name of the directory with copies of etcd's data.
const BACKUPS: &str = "backups";

/// The namespace in which [`Plane::load`] creates its pods.
pub const BULK: &str = "bulk";
pub const BULK_PODS: usize = 3000;

impl Plane {
    /// Starts a control plane and waits until it is ready. `flags` are for the apiserver, and override the defaults.
    pub(super) async fn start(binary: PathBuf, name: &str, flags: &[&str]) -> Self {
        let dir = scratch().join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let started = std::time::Instant::now();
        let log = || File::create(dir.join("up.log")).expect("a log");
        let mut command = Command::new(&binary);
        command.args(["up", "--dir"]).arg(&dir);
        for flag in [&[EVENT_TTL], flags].concat() {
            command.args(["--apiserver-flag", flag]);
        }
        command.stdout(log()).stderr(log());
        let mut up = Process::start("kube-testbed up", &mut command);
        eventually("the control plane is up", async || {
            let ended = up.ended();
            assert!(ended.is_none(), "kube-testbed up: {}", fs::read_to_string(dir.join("up.log")).unwrap_or_default());
            dir.join("ready").exists().then_some(())
        })
        .await;
        log_line(&format!("control plane {name:?} up after {:.1} s", started.elapsed().as_secs_f64()));
        let url = fs::read_to_string(dir.join("url")).expect("the test bed writes it").trim().to_owned();
        Self {
            binary,
            url,
            dir,
            loaded: OnceCell::new(),
            again: Mutex::new(None),
            etcd: Mutex::new(None),
            up: Mutex::new(up),
        }
    }

    /// Waits until the apiserver has finished its startup writes. It reports readiness before that.
    pub(super) async fn until_quiet(&self) {
        const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
        let direct = self.direct();
        let tracking = RequestSpec::get(&format!("/api/v1/namespaces/kube-system/configmaps/{TRACKING}"));
        direct.until_ok("the start of token tracking is written", tracking).await;
        eventually("the ServiceCIDR is ready", async || {
            let listed = direct.get("/apis/networking.k8s.io/v1/servicecidrs").await;
            // Kubernetes before 1.33 has no service CIDRs.
            let is_ready = |cidr: &Value| cidr["status"]["conditions"][0]["status"] == "True";
            let has = |list: &Value| list["items"].as_array().is_some_and(|items| items.iter().any(is_ready));
            (listed.status == 404 || listed.status == 200 && has(&listed.value())).then_some(())
        })
        .await;
        settled("the version of the cluster", async || direct.version("/api/v1/namespaces").await).await;
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// The file with the certificate of its CA.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The URL of etcd, which has no TLS.
    pub fn etcd_url(&self) -> String {
        let settings = fs::read_to_string(self.dir.join("settings.json")).expect("the test bed writes it");
        let settings: Value = serde_json::from_str(&settings).expect("JSON");
        format!("http://127.0.0.1:{}", settings["etcdPort"])
    }

    /// The entries of the audit log so far, one per stage of a request. Only planes of [`audited`](super::audited) have
    /// one.
    pub fn audit(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.dir.join(AUDIT)).expect("an audit log");
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The apiserver, with an administrator's credentials.
    pub fn target(&self) -> Target {
        Target { url: self.url.clone(), ca: Some(self.ca()), identity: self.user("admin") }
    }

    pub fn direct(&self) -> Http {
        Http::new(self.target(), Protocol::H2)
    }

    pub async fn metrics(&self) -> Metrics {
        Metrics::new(self.direct().get("/metrics").await.text())
    }

    /// A command of the driver, with this control plane's credentials.
    pub fn drive(&self, command: &str) -> Drive {
        Drive::new(self, command)
    }

    /// A path in the test bed's directory that no other test uses.
    pub fn file(&self, what: &str) -> PathBuf {
        self.dir.join(unique(what))
    }

    /// Creates a namespace and returns its name.
    pub async fn namespace(&self, what: &str) -> String {
        let name = unique(what);
        self.direct().create("/api/v1/namespaces", serde_json::json!({"metadata": {"name": name}})).await;
        name
    }

    /// Creates [`BULK_PODS`] pods, on the first call only.
    pub async fn load(&self) {
        let load = async || {
            let pods = BULK_PODS.to_string();
            let load = self.drive("load").args(["--namespace", BULK, "--pods", &pods, "--size", "2500"]);
            let done = load.args(["--prefix", "bulk", "--workers", "8"]).start().finish().await;
            log_line(&format!("loaded: {}", done.summary()));
        };
        self.loaded.get_or_init(load).await;
    }

    fn apiserver_pid(&self) -> u32 {
        self.pid("apiserver")
    }

    fn pid(&self, of: &str) -> u32 {
        let pid = fs::read_to_string(self.dir.join(format!("{of}.pid"))).expect("a pid file");
        pid.trim().parse().expect("it runs")
    }

    /// The CPU seconds that the apiserver has used so far.
    pub fn apiserver_cpu_seconds(&self) -> f64 {
        cpu_seconds_of(self.apiserver_pid())
    }

    /// Kills the apiserver with SIGKILL. It is not restarted automatically.
    pub async fn kill_apiserver(&self) {
        self.end("apiserver", "-KILL", &self.again).await;
    }

    /// Stops the apiserver with SIGTERM, and waits for its end. It is not restarted automatically.
    pub async fn stop_apiserver(&self) {
        self.end("apiserver", "-TERM", &self.again).await;
    }

    /// Sends the apiserver a signal. `name` has no `SIG` prefix.
    pub fn signal_apiserver(&self, name: &str) {
        let exit_status = Command::new("kill").args([&format!("-{name}"), &self.apiserver_pid().to_string()]).status();
        assert!(exit_status.expect("there is kill").success(), "the apiserver runs");
    }

    async fn end(&self, what: &str, signal: &str, again: &Mutex<Option<Process>>) {
        let pid = self.pid(what);
        let exit_status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("there is kill");
        let stat = Path::new("/proc").join(format!("{pid}/stat"));
        // A start that was cancelled has not begun, or ends with its handle.
        assert!(exit_status.success() || !is_running(&stat), "{what} can be ended");
        eventually(&format!("{what} is gone"), async || (!is_running(&stat)).then_some(())).await;
        *again.lock().expect("not poisoned") = None;
    }

    /// Stops the control plane, copies etcd's data, and starts it again. Returns the path of the copy.
    pub async fn backup(&self) -> PathBuf {
        let copy = self.dir.join(BACKUPS).join(unique("backup"));
        self.without_servers(|data| copy_directory(data, &copy)).await;
        copy
    }

    /// Stops the control plane, replaces etcd's data with an earlier copy, and starts it again.
    pub async fn restore(&self, backup: &Path) {
        let restore = |data: &Path| {
            fs::remove_dir_all(data).expect("it is there");
            copy_directory(backup, data);
        };
        self.without_servers(restore).await;
    }

    async fn without_servers(&self, work: impl FnOnce(&Path)) {
        self.kill_apiserver().await;
        self.end("etcd", "-TERM", &self.etcd).await;
        work(&self.dir.join(DATA));
        self.spawn_etcd();
        self.start_apiserver().await;
    }

    /// Kills etcd with SIGKILL.
    pub async fn kill_etcd(&self) {
        self.end("etcd", "-KILL", &self.etcd).await;
    }

    /// Restarts etcd, and waits until the apiserver is ready with it.
    pub async fn start_etcd(&self) {
        self.spawn_etcd();
        self.until_ready().await;
    }

    fn spawn_etcd(&self) {
        let log = || File::create(self.dir.join("etcd-again.log")).expect("a log");
        let mut command = Command::new(&self.binary);
        command.args(["etcd", "--dir"]).arg(&self.dir).stdout(log()).stderr(log());
        *self.etcd.lock().expect("not poisoned") = Some(Process::start("kube-testbed etcd", &mut command));
    }

    /// Restarts the apiserver, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        self.start_apiserver_as(&self.binary, &[]).await;
    }

    /// Like [`Self::start_apiserver`], with another binary, or with flags that override the previous ones.
    pub async fn start_apiserver_as(&self, binary: &Path, flags: &[&str]) {
        let log = || File::create(self.dir.join("apiserver-again.log")).expect("a log");
        let mut command = Command::new(binary);
        command.args(["apiserver", "--dir"]).arg(&self.dir).stdout(log()).stderr(log());
        for flag in flags {
            command.args(["--apiserver-flag", flag]);
        }
        let process = Process::start("kube-testbed apiserver", &mut command);
        *self.again.lock().expect("not poisoned") = Some(process);
        self.until_ready().await;
    }

    async fn until_ready(&self) {
        let (target, probe) = (self.target(), "/readyz");
        eventually("the apiserver is ready again", async || {
            let answer = Http::new(target.clone(), Protocol::H1).try_get(probe).await?;
            (answer.status == 200).then_some(())
        })
        .await;
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // The servers that `up` started end with it. Restarted servers end when their `Process` is dropped.
        self.up.lock().expect("not poisoned").kill();
        drop(self.etcd.lock().expect("not poisoned").take());
        // Each data directory takes about 100 MB, and the logs are enough to diagnose a failed test.
        for data in [DATA, BACKUPS] {
            let _ = fs::remove_dir_all(self.dir.join(data));
        }
    }
}

/// Whether a process exists and is not a zombie. `stat` is its file `/proc/PID/stat`.
fn is_running(stat: &Path) -> bool {
    let stat = fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let copy = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_directory(&entry.path(), &copy);
        } else {
            fs::copy(entry.path(), copy).expect("a copy");
        }
    }
}
