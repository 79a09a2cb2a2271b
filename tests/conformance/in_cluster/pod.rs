//! The process of a container, started as the kubelet would start it: with the environment of the stored pod, and with
//! the files of its service account at their real path, which client libraries do not let programs change (R-CLIENT-7).

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube_client::{Api, Client, Config, ResourceExt};
use kube_runtime::{WatchStreamExt, watcher};
use serde_json::Value;

use crate::bed::{Account, Plane, Process, repository};

/// A client program of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    ClientGo,
    KubeRs,
    Python,
    Java,
    Fabric8,
}

/// A change that a program received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Milliseconds of the Unix epoch.
    pub at: u64,
    pub version: u64,
}

/// A running program.
pub struct Container {
    pub program: Program,
    process: Process,
    out: PathBuf,
    log: PathBuf,
    ready: PathBuf,
}

/// Puts the folder `$0` at its place in a mount namespace of the process.
const IN_NAMESPACE: &str = "mount -t tmpfs none /var/run && mkdir -p /var/run/secrets/kubernetes.io && \
    ln -s \"$0\" /var/run/secrets/kubernetes.io/serviceaccount && exec \"$@\"";
/// Without the right to mount, as root of a plain container: the kernel resolves the link for each process by its
/// working directory.
const BY_LINK: &str = "cd \"$0\" && mkdir -p /var/run/secrets/kubernetes.io && \
    ln -sfn /proc/self/cwd /var/run/secrets/kubernetes.io/serviceaccount && exec \"$@\"";

/// How processes here get a service account's files at their real path, as arguments before the folder; `None` if they
/// cannot.
pub fn placing() -> Option<Vec<&'static str>> {
    let succeeds =
        |words: &[&str]| Command::new(words[0]).args(&words[1..]).output().is_ok_and(|it| it.status.success());
    for unshare in [&["unshare", "--mount"][..], &["unshare", "--map-root-user", "--mount"]] {
        let words = [unshare, &["sh", "-c", IN_NAMESPACE]].concat();
        if succeeds(&[&words[..], &["/tmp", "true"]].concat()) {
            return Some(words);
        }
    }
    let words = ["sh", "-c", BY_LINK];
    let is_ours = fs::read_link(ACCOUNT_FILES).map_or(true, |to| to == Path::new("/proc/self/cwd"));
    (is_ours && !Path::new(ACCOUNT_FILES).is_dir() && succeeds(&[&words[..], &["/tmp", "true"]].concat()))
        .then(|| words.to_vec())
}

const ACCOUNT_FILES: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Program {
    /// Whether its client library is here.
    pub fn is_here(self) -> bool {
        match self {
            Self::ClientGo | Self::KubeRs => true,
            Self::Python => repository().join("target/venv/bin/python").exists(),
            Self::Java | Self::Fabric8 => repository().join("target/java").exists(),
        }
    }

    /// Whether it resumes at its last version after any error of a connection. The others list again after some, which
    /// shows only the last of the changes since.
    pub fn resumes(self) -> bool {
        !matches!(self, Self::ClientGo | Self::Java)
    }

    /// The command that watches Services of a namespace by its in-cluster configuration, and prints each change.
    fn command(self, plane: &Plane, namespace: &str, ready: &Path) -> Vec<String> {
        let path = |path: PathBuf| path.display().to_string();
        let words = match self {
            Self::ClientGo => {
                let mut words = vec![path(plane.binary.clone())];
                words.extend(["drive", "informers", "--resource", "services"].map(str::to_owned));
                words.extend(["--for", "1h", "--timeout", "2h", "--ready-file"].map(str::to_owned));
                words.extend([path(ready.to_owned()), "--namespace".to_owned()]);
                words
            }
            Self::KubeRs => {
                let binary = path(std::env::current_exe().expect("this one"));
                let (_, module) = module_path!().split_once("::").expect("a module");
                let test = format!("{module}::kube_rs_program");
                return [&binary, &test, "--exact", "--nocapture"].map(str::to_owned).to_vec();
            }
            Self::Python => vec![
                path(repository().join("target/venv/bin/python")),
                path(repository().join("tests/python/in_cluster.py")),
            ],
            Self::Java | Self::Fabric8 => vec![
                "java".to_owned(),
                "-cp".to_owned(),
                path(repository().join("target/java/*")),
                path(repository().join("tests/java/InCluster.java")),
                if self == Self::Java { "client-java" } else { "fabric8" }.to_owned(),
            ],
        };
        [words, vec![namespace.to_owned()]].concat()
    }
}

/// The environment variables of a stored pod's first container, which runs on this machine.
pub fn variables(pod: &Value) -> Vec<(String, String)> {
    let listed = pod["spec"]["containers"][0]["env"].as_array().into_iter().flatten();
    let value = |variable: &Value| match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
        None => variable["value"].as_str().unwrap_or_default().to_owned(),
        Some("status.hostIP") => "127.0.0.1".to_owned(),
        Some("spec.nodeName") => pod["spec"]["nodeName"].as_str().expect("a node").to_owned(),
        Some(other) => panic!("{other} is not resolved here"),
    };
    listed.map(|variable| (variable["name"].as_str().expect("a name").to_owned(), value(variable))).collect()
}

impl Container {
    /// Runs a program in place of the first container of a stored pod. `authority` is the pod's `ca.crt`.
    pub async fn start(plane: &Plane, pod: &Value, program: Program, authority: &Path) -> Self {
        let text = |at: &Value| at.as_str().expect("text").to_owned();
        let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["spec"]["serviceAccountName"]));
        let folder = plane.file("container");
        fs::create_dir_all(&folder).expect("a folder");
        let account = Account { namespace: namespace.clone(), name, uid: String::new() };
        let token = account.token(&plane.direct()).await.token;
        fs::copy(authority, folder.join("ca.crt")).expect("a file");
        fs::write(folder.join("token"), token).expect("a file");
        fs::write(folder.join("namespace"), &namespace).expect("a file");

        let placing = placing().expect("checked before");
        let [out, log, ready] = ["out", "log", "ready"].map(|name| folder.join(name));
        let create = |path: &Path| File::create(path).expect("a file");
        let mut command = Command::new(placing[0]);
        command.args(&placing[1..]).arg(&folder).args(program.command(plane, &namespace, &ready));
        command.env_clear().env("PATH", std::env::var_os("PATH").expect("a path")).env("HOME", "/nonexistent");
        // What the kubelet gives every container, for the Service `kubernetes` whose address is not routed here.
        let server = plane.url().trim_start_matches("https://").rsplit_once(':').expect("a port");
        command.env("KUBERNETES_SERVICE_HOST", server.0).env("KUBERNETES_SERVICE_PORT", server.1);
        command.envs(variables(pod)).env("WATCHED_NAMESPACE", &namespace);
        command.stdout(create(&out)).stderr(create(&log));
        Self { program, process: Process::start(&format!("{program:?}"), &mut command), out, log, ready }
    }

    /// Whether the first list is complete. The driver of client-go prints it late, and writes a file.
    pub fn has_listed(&self) -> bool {
        self.ready.exists() || !self.received().is_empty()
    }

    /// The changes that the program has received so far.
    pub fn received(&self) -> Vec<Received> {
        let text = fs::read_to_string(&self.out).expect("its output");
        let parse = |line: &str| {
            let (at, version) = if let Some(rest) = line.strip_prefix("received ") {
                let (at, version) = rest.split_once(' ')?;
                (at.parse().ok()?, version.parse().ok()?)
            } else {
                let event: Value = serde_json::from_str(line).ok().filter(|event: &Value| event["kind"] == "event")?;
                (event["at_ns"].as_u64()? / 1_000_000, event["rv"].as_u64()?)
            };
            Some(Received { at, version })
        };
        text.lines().filter_map(parse).collect()
    }

    /// Its stderr, for messages of failures.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }

    pub fn assert_runs(&mut self) {
        assert!(self.process.ended().is_none(), "{:?} has ended: {}", self.program, self.log());
    }
}

/// Milliseconds of the Unix epoch.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("a year that we live to see")
}

/// The program of [`Program::KubeRs`], which other tests run in a container.
#[tokio::test]
async fn kube_rs_program() {
    let Ok(namespace) = std::env::var("WATCHED_NAMESPACE") else { return };
    let client = Client::try_from(Config::incluster().expect("it runs in a pod")).expect("a client");
    let services: Api<Service> = Api::namespaced(client, &namespace);
    let mut changes = pin!(watcher::watcher(services, watcher::Config::default()).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        let _ = match change {
            Ok(service) => {
                let version = service.resource_version().expect("a version");
                writeln!(std::io::stdout(), "received {} {version}", now())
            }
            Err(error) => writeln!(std::io::stderr(), "{error}"),
        };
    }
}
