//! A second kube-apiserver of a control plane, on the same etcd.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::json;

use super::http::{Http, Protocol, Target};
use super::plane::Plane;
use super::process::Process;
use super::{PATIENCE, eventually, free_address};

/// A second kube-apiserver of its plane. It shares the plane's authority, users and keys, and has its own port and
/// serving certificate.
pub struct Sibling {
    binary: PathBuf,
    pub dir: PathBuf,
    target: Target,
    process: Mutex<Option<Process>>,
}

/// The plane's files that the sibling shares. The first shows that the plane is up.
const SHARED_FILES: [&str; 7] = [
    "up.pid",
    "ca.crt",
    "kubelet-client.crt",
    "kubelet-client.key",
    "service-account.pub",
    "service-account.key",
    "tokens.csv",
];

impl Sibling {
    /// The serving certificate and its key, which are the sibling's own copies.
    pub const CERTIFICATE: &str = "apiserver.crt";
    pub const KEY: &str = "apiserver.key";

    /// Starts the apiserver with etcd at this port, and waits until it is ready.
    pub async fn start(plane: &Plane, etcd_port: u16) -> Self {
        let dir = plane.file("sibling");
        fs::create_dir_all(&dir).expect("a directory");
        for name in SHARED_FILES {
            symlink(plane.dir.join(name), dir.join(name)).expect("a link");
        }
        for name in [Self::CERTIFICATE, Self::KEY] {
            fs::copy(plane.dir.join(name), dir.join(name)).expect("a copy");
        }
        let settings = fs::read_to_string(plane.dir.join("settings.json")).expect("the test bed writes it");
        let mut settings: serde_json::Value = serde_json::from_str(&settings).expect("JSON");
        let address = free_address();
        let port: u16 = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        settings["apiserverPort"] = json!(port);
        settings["etcdPort"] = json!(etcd_port);
        fs::write(dir.join("settings.json"), settings.to_string()).expect("a file");
        let target = Target { url: format!("https://{address}"), ..plane.target() };
        let sibling = Self { binary: plane.binary.clone(), dir, target, process: Mutex::new(None) };
        sibling.start_again().await;
        sibling
    }

    /// The server, with an administrator's credentials.
    pub fn target(&self) -> Target {
        self.target.clone()
    }

    pub fn direct(&self) -> Http {
        Http::new(self.target(), Protocol::H2)
    }

    /// Starts the apiserver again, and waits until it is ready.
    pub async fn start_again(&self) {
        let log = || File::options().create(true).append(true).open(self.dir.join("sibling.log")).expect("a log");
        let mut command = Command::new(&self.binary);
        command.args(["apiserver", "--dir"]).arg(&self.dir).stdout(log()).stderr(log());
        *self.process.lock().expect("not poisoned") = Some(Process::start("the second apiserver", &mut command));
        is_ready(&self.target).await;
    }

    /// Sends the apiserver a signal. `name` has no `SIG` prefix.
    pub fn signal(&self, name: &str) {
        self.process.lock().expect("not poisoned").as_ref().expect("it runs").signal(name);
    }

    /// Sends SIGTERM, and waits for the end.
    pub async fn stop(&self) {
        let process = self.process.lock().expect("not poisoned").take().expect("it runs");
        process.signal("TERM");
        process.wait(PATIENCE).await;
    }

    /// Kills the apiserver with SIGKILL.
    pub fn kill(&self) {
        drop(self.process.lock().expect("not poisoned").take());
    }
}

/// Waits until `/readyz` of a server returns 200.
pub async fn is_ready(target: &Target) {
    eventually("the apiserver is ready", async || {
        let answer = Http::new(target.clone(), Protocol::H1).try_get("/readyz").await?;
        (answer.status == 200).then_some(())
    })
    .await;
}

/// Writes a kubeconfig for a server. `user` has the user's fields as JSON. Clients reload the authority and the user's
/// files whenever they change.
pub fn write_kubeconfig(path: &Path, url: &str, authority: &Path, user: &serde_json::Value) {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url, "certificate-authority": authority}}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    fs::write(path, text.to_string()).expect("a file");
}
