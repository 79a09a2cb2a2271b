//! The components of a cluster besides its control plane, and the proxies between them and the apiserver.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::Layout;
use crate::bed::{self, Account, Authority, Http, Identity, Plan, Plane, Process, Proxy, eventually, write_kubeconfig};

/// Node controllers have their own accounts, as in clusters made with kubeadm.
const CONTROLLERS: [&str; 4] = ["--use-service-account-credentials", "--secure-port=0", "--profiling=false", "--v=2"];
const SCHEDULER: [&str; 3] = ["--secure-port=0", "--profiling=false", "--v=2"];

/// One process of `kube-cluster`.
pub struct Component {
    /// The kind of the component, of which there may be several.
    pub kind: &'static str,
    name: String,
    pub log: PathBuf,
    process: Process,
}

/// A proxy that keeps its address and its certificate over restarts.
struct Lasting {
    plan: Plan,
    proxy: Proxy,
}

/// The address of an apiserver or proxy, and the authority of its certificate.
struct Server {
    url: String,
    authority: PathBuf,
}

/// A whole cluster.
pub struct Cluster<'a> {
    pub plane: &'a Plane,
    pub nodes: Vec<String>,
    /// The start time of the first component.
    pub started: Instant,
    pub components: Vec<Component>,
    proxies: Vec<Lasting>,
    binary: PathBuf,
}

impl Lasting {
    async fn start(plane: &Plane, plan: Plan) -> Self {
        let plan = plan.lasting(plane);
        let proxy = plan.clone().start(plane).await;
        Self { plan, proxy }
    }

    fn server(&self) -> Server {
        let target = self.proxy.target();
        Server { url: target.url, authority: target.ca.expect("TLS") }
    }
}

impl<'a> Cluster<'a> {
    /// Starts everything, and returns before the nodes are ready.
    pub async fn start(plane: &'a Plane, binary: PathBuf, layout: Layout, nodes: usize) -> Self {
        let nodes: Vec<_> = (1..=nodes).map(|number| format!("node-{number}")).collect();
        let started = Instant::now();
        let mut cluster = Self { plane, nodes, started, components: Vec::new(), proxies: Vec::new(), binary };
        let apiserver = || Server { url: plane.url().to_owned(), authority: plane.ca() };
        let central = match layout {
            Layout::Direct => apiserver(),
            Layout::Proxies | Layout::Tree => cluster.add(Plan::delegated(plane)).await,
        };
        let token = kube_proxy_token(plane).await;
        let mut places = Vec::new();
        for name in cluster.nodes.clone() {
            let identity = Authority::of(plane).issue(&format!("system:node:{name}"), &["system:nodes"]);
            let server = match layout {
                Layout::Direct => apiserver(),
                Layout::Proxies => cluster.add_on_node(&name, &apiserver(), &identity).await,
                Layout::Tree => cluster.add_on_node(&name, &central, &identity).await,
            };
            places.push((name, server, identity));
        }
        cluster.started = Instant::now();
        cluster.start_control(&central);
        for (name, server, identity) in places {
            cluster.start_node(&name, &server, &identity, &token);
        }
        cluster
    }

    /// A proxy on a node, with the node's credentials.
    async fn add_on_node(&mut self, name: &str, upstream: &Server, identity: &Identity) -> Server {
        let upstream = self.kubeconfig(&format!("{name}-upstream"), upstream, identity);
        self.add(Plan::on_node(self.plane, name, &upstream)).await
    }

    async fn add(&mut self, plan: Plan) -> Server {
        let proxy = Lasting::start(self.plane, plan).await;
        let server = proxy.server();
        self.proxies.push(proxy);
        server
    }

    fn start_control(&mut self, server: &Server) {
        let authority = Authority::of(self.plane);
        let kubeconfig = |name: &str| self.kubeconfig(name, server, &authority.issue(&format!("system:{name}"), &[]));
        let (controllers, scheduler) = (kubeconfig("kube-controller-manager"), kubeconfig("kube-scheduler"));
        let mut command = self.command("controllers", &controllers);
        command.args(CONTROLLERS).arg("--root-ca-file").arg(self.plane.ca());
        command.arg("--service-account-private-key-file").arg(self.plane.dir.join("service-account.key"));
        self.run("controllers", "controllers", command);
        let mut command = self.command("scheduler", &scheduler);
        command.args(SCHEDULER);
        self.run("scheduler", "scheduler", command);
    }

    fn start_node(&mut self, name: &str, server: &Server, identity: &Identity, token: &Identity) {
        for (kind, identity) in [("kubelet", identity), ("proxy", token)] {
            let kubeconfig = self.kubeconfig(&format!("{name}-{kind}"), server, identity);
            let dir = self.plane.dir.join(name);
            fs::create_dir_all(&dir).expect("a directory");
            let mut command = self.command(kind, &kubeconfig);
            command.args(["--name", name, "--v=2", "--dir"]).arg(dir);
            self.run(kind, &format!("{name}-{kind}"), command);
        }
    }

    fn command(&self, subcommand: &str, kubeconfig: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(subcommand).arg("--kubeconfig").arg(kubeconfig).current_dir(&self.plane.dir);
        command
    }

    fn run(&mut self, kind: &'static str, name: &str, mut command: Command) {
        let log = self.plane.dir.join(format!("{name}.log"));
        let to = || File::options().create(true).append(true).open(&log).expect("a log");
        let process = Process::start(name, command.stdout(to()).stderr(to()));
        self.components.push(Component { kind, name: name.to_owned(), log, process });
    }

    fn kubeconfig(&self, name: &str, server: &Server, identity: &Identity) -> PathBuf {
        let path = self.plane.dir.join(format!("{name}.kubeconfig"));
        let user = match &identity.certificate {
            Some(pair) => json!({"client-certificate": pair, "client-key": pair}),
            None => json!({"token": identity.token}),
        };
        write_kubeconfig(&path, &server.url, &server.authority, &user);
        path
    }

    pub async fn kill_proxies(&mut self) {
        for at in &self.proxies {
            at.proxy.kill();
        }
        // The proxies on nodes may be clients of the first.
        let (first, rest) = self.proxies.split_at_mut(1);
        first[0].proxy = first[0].plan.clone().start(self.plane).await;
        join_all(rest.iter_mut().map(async |one| one.proxy = one.plan.clone().start(self.plane).await)).await;
    }

    /// Panics if a component or a proxy has ended.
    pub fn assert_alive(&mut self) {
        for component in &mut self.components {
            let log = || fs::read_to_string(&component.log).unwrap_or_default();
            let last = |log: String| log.lines().rev().take(20).map(|line| line.to_owned() + "\n").collect::<String>();
            let ended = component.process.ended();
            assert!(ended.is_none(), "{} has ended, {ended:?}: {}", component.name, last(log()));
        }
        for at in &self.proxies {
            at.proxy.assert_sound();
        }
    }

    /// The error lines of the proxies' logs.
    pub fn errors_of_proxies(&self) -> Vec<String> {
        let logs = self.proxies.iter().map(|one| one.proxy.log());
        logs.flat_map(|log| log.lines().filter(|line| line.contains("ERROR")).map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }
}

/// A token of the account that kube-proxies have in clusters made with kubeadm.
async fn kube_proxy_token(plane: &Plane) -> Identity {
    let direct: Http = plane.direct();
    eventually("there is kube-system", async || {
        (direct.get("/api/v1/namespaces/kube-system").await.status == 200).then_some(())
    })
    .await;
    let account = Account::create(&direct, "kube-system", "kube-proxy").await;
    let binding = json!({
        "metadata": {"name": "kubeadm:node-proxier"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "kube-proxy"}],
    });
    direct.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    account.token(&direct).await
}

/// The `kube-cluster` binary, which only `make cluster` builds.
pub fn binary() -> Option<PathBuf> {
    let binary = std::env::var_os("KUBE_CLUSTER").map(PathBuf::from);
    if binary.is_none() {
        bed::log_line("only with the components of a cluster (run `make cluster`)");
    }
    binary
}
