use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::configuration::{Configuration, TlsSection};
use super::coverage::Said;
use super::{DelegatedKeys, Problems, Serve, TlsSource};
use crate::auth::{AuthMode, PageOrigin};
use crate::base::LOOK_EVERY;
use crate::net::Address;
use crate::serve::{AuditDestination, Consistency};
use crate::upstream::{CredentialSource, EndpointsConfig, ServerUrl};

/// One upstream Kubernetes watch, thousands of unmodified clients.
///
/// kube-fanout keeps one list-watch per resource open to a kube-apiserver and answers LIST, GET and WATCH from memory,
/// with the cluster's own resourceVersions. Everything else is passed through.
#[derive(Debug, Parser)]
#[command(name = "kube-fanout", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients in front of a kube-apiserver
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArguments>),
    /// Show it working on this machine: an embedded upstream, the proxy and watchers in one process
    #[cfg(feature = "demo")]
    Demo {
        /// Pods in the demo cluster
        #[arg(long, default_value_t = 500, value_name = "N")]
        pods: u32,
        /// Changes per second
        #[arg(long, default_value_t = 50, value_name = "EVENTS_PER_S")]
        rate: u32,
        /// Watches through the proxy
        #[arg(long, default_value_t = 500, value_name = "N")]
        watches: u32,
        /// End after so many seconds [default: run until Ctrl-C]
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
    },
    /// Put load on an apiserver or on what stands in front of it, and measure both (docs/BENCH.md)
    #[cfg(feature = "bench")]
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<super::BenchArguments>),
    /// Find out whether an apiserver, or what stands in front of it, keeps its promises (docs/VERIFY.md)
    #[cfg(feature = "verify")]
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Box<super::VerifyArguments>),
    /// Ask a running proxy how it is, in an image that has no shell and no curl
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(super::HealthArguments),
    /// Check a configuration, or show what one can say
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Become an exec plugin, with so many open files: how `serve` runs them
    #[command(hide = true)]
    RunPlugin {
        open_files: u64,
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Print a completion script for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file, flags and files that they name, as `serve` does before it binds anything
    Check(Box<ServeArguments>),
    /// Print a file with every key, its default and what it means
    Default,
    /// Print the JSON schema of the file, for editors
    Schema,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  A sidecar or a workstation, on loopback, with the credentials of a kubeconfig:
    kube-fanout serve --kubeconfig ~/.kube/config --listen 127.0.0.1:8001
    kubectl --server=http://127.0.0.1:8001 get pods --watch
  A central proxy for everybody who has an account in the cluster:
    kube-fanout serve --kubeconfig proxy.kubeconfig --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key \
      --auth delegated --client-ca ca.crt --impersonator-kubeconfig impersonator.kubeconfig
  The same as the first in a pod, on a socket that a neighbour container mounts:
    kube-fanout serve --listen unix:/run/kube-fanout/api.sock --preload pods,nodes

Exit codes: 0 stopped by SIGTERM or SIGINT, 64 wrong usage, 78 wrong configuration, 1 anything else.";

const HEALTH_EXAMPLES: &str = "\
Examples:
  The proxy of this container, by the configuration that it has:
    kube-fanout health
  Whether a Service should send requests to it:
    kube-fanout health http://127.0.0.1:10256/readyz

It says one line. Exit codes: 0 all is well, 1 the answer says otherwise, 2 there is no answer, 64 wrong usage.";

#[cfg(feature = "bench")]
const BENCH_EXAMPLES: &str = "\
Examples:
  A thousand watches of a proxy, of which this kubeconfig's apiserver is upstream:
    kube-fanout bench --target https://127.0.0.1:8443 --ca proxy.crt --kubeconfig admin.kubeconfig --pid 4711 \
      --watches 1000 --rate 50
  Both of them, in turn, three times each:
    kube-fanout bench --compare https://127.0.0.1:6443 https://127.0.0.1:8443 --names apiserver,proxy \
      --pids 4242,4711 --ca proxy.crt --kubeconfig admin.kubeconfig --scenario gentle --rounds 3 --report gentle.html

Exit codes: 0 measured, 64 wrong usage, 1 anything else, also when a watch missed an event.";

#[cfg(feature = "verify")]
const VERIFY_EXAMPLES: &str = "\
Examples:
  A proxy in front of the kubeconfig's apiserver, judged by what that apiserver's own watch tells:
    kube-fanout verify https://127.0.0.1:8443 --kubeconfig admin.kubeconfig --ca proxy.crt
  The same judged by etcd, which is stronger, while the apiserver is killed now and then:
    kube-fanout verify https://127.0.0.1:8443 --kubeconfig admin.kubeconfig --ca proxy.crt \
      --truth etcd=https://127.0.0.1:2379,ca.crt,client.crt,client.key --resource samples.verify.kube-fanout.io \
      --duration 10m --fault 'pkill -KILL kube-apiserver'
  Three servers of one cluster, among which a thousand informers go with the versions that they have:
    kube-fanout verify https://leaf:8443 --ca leaf.crt --also https://zone:8443,zone.crt --also https://apiserver:6443 \
      --informers --clients 1000 --share 25 --rate 25 --kubeconfig admin.kubeconfig
  What was found, once more, without a server:
    kube-fanout verify judge kube-fanout-verify/records.jsonl --page report.html

It writes objects into namespaces of its own, whose names begin with kube-fanout-verify, and deletes them at the end.

Exit codes: 0 every promise that could be judged was kept, 1 one was not, 2 void: nothing can be said, 64 wrong usage.";

#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServeArguments {
    /// Configuration file in YAML; flags override it (docs/CONFIG.md lists its keys)
    #[arg(long, value_name = "FILE", env = "KUBE_FANOUT_CONFIG")]
    config: Option<PathBuf>,
    /// Credentials for upstream [default: the pod's service account]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where to listen: IP:PORT or unix:PATH; may be repeated [default: 127.0.0.1:8001]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Where metrics and health are served, or "off" [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Where a kubelet finds /healthz, /livez and /readyz, on any interface: IP:PORT or "off" [default: off]
    #[arg(long, value_name = "ADDR")]
    healthz_bind_address: Option<String>,
    /// Where a Prometheus finds /metrics, on any interface: IP:PORT or "off" [default: off]
    #[arg(long, value_name = "ADDR")]
    metrics_bind_address: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
    /// Who may ask: "none" takes every caller for the proxy itself, on loopback and unix sockets only; "delegated" asks
    /// upstream who a caller is and what it may read [default: none]
    #[arg(long, value_name = "MODE")]
    auth: Option<String>,
    /// Authorities whose client certificates are taken, PEM; read again when it changes (with --auth delegated)
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Credentials that may impersonate and nothing else, for requests of certificate holders that are passed through
    #[arg(long, value_name = "FILE")]
    impersonator_kubeconfig: Option<PathBuf>,
    /// Reads without a resourceVersion: "strict" proves that the cache is current, "bounded" does not [default: strict]
    #[arg(long, value_name = "MODE")]
    consistency: Option<String>,
    /// Resources to fetch at once: pods, deployments.apps, …
    #[arg(long, value_name = "RES[,RES]...", value_delimiter = ',')]
    preload: Vec<String>,
    /// The node whose agents are served: of pods and of what else belongs to nodes, only its own is held
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Sensitive kinds to hold all the same: secrets, configmaps
    #[arg(long, value_name = "RES[,RES]...", value_delimiter = ',')]
    cache_sensitive: Vec<String>,
    /// Record requests that are answered here, as audit.k8s.io/v1 events, a line each; "-" is standard output
    #[arg(long, value_name = "FILE")]
    audit_log: Option<String>,
    /// For debugging: let core files and debuggers see what is in memory, tokens and Secrets included
    #[arg(long)]
    allow_core_dumps: bool,
}

#[derive(Clone, Debug, Default, clap::Args)]
#[expect(clippy::struct_field_names, reason = "flags are called like this")]
struct TlsArguments {
    /// Certificate chain of the TCP listeners, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve TLS with a certificate made at start
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Write that certificate here, for clients to trust
    #[arg(long, value_name = "FILE", requires = "tls_self_signed")]
    tls_self_signed_out: Option<PathBuf>,
}

impl TlsArguments {
    fn over(self, file: TlsSection, problems: &mut Problems) -> Option<TlsSource> {
        match (self.tls_cert, self.tls_key, self.tls_self_signed) {
            (Some(certificate), Some(key), _) => Some(TlsSource::Files { certificate, key }),
            (_, _, true) => Some(TlsSource::SelfSigned { out: self.tls_self_signed_out }),
            _ => file.source(problems),
        }
    }
}

impl ServeArguments {
    /// Reads the file, lays the flags over it and checks the whole.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn resolve(self) -> Result<Serve, Problems> {
        let mut problems = Problems::default();
        let file = self.config.as_deref().map(|path| Configuration::read(path, &mut problems)).unwrap_or_default();
        let resolved = self.over(file, &mut problems);
        match resolved {
            Some(serve) if problems.is_empty() => Ok(serve),
            _ => Err(problems),
        }
    }

    fn over(self, file: Configuration, problems: &mut Problems) -> Option<Serve> {
        let Self {
            config: _,
            kubeconfig,
            listen,
            admin,
            healthz_bind_address,
            metrics_bind_address,
            tls,
            auth,
            client_ca,
            impersonator_kubeconfig,
            consistency,
            preload,
            node_name,
            cache_sensitive,
            audit_log,
            allow_core_dumps,
        } = self;
        let memory = file.memory();
        let (mut serve, cache) = (file.serve(&memory), file.cache(&memory));
        let (reflect, connections, log) = (file.reflect(), file.connections(), file.log());
        let ready_stale_max = file.stale_max();
        let upstream =
            kubeconfig.or(file.upstream.kubeconfig).map_or(CredentialSource::InCluster, CredentialSource::File);
        let listen = addresses(if listen.is_empty() { file.listen } else { listen }, problems);
        let admin = or_off("admin", admin.as_deref(), &file.admin, problems);
        let tls = tls.over(file.tls, problems);
        let auth = auth.map_or(Some(file.auth.into()), |text| mode(&text, problems));
        let mut delegated = DelegatedKeys::from(file.delegated);
        delegated.client_ca = client_ca.or(delegated.client_ca);
        delegated.impersonator = impersonator_kubeconfig.or(delegated.impersonator);
        if let Some(text) = consistency {
            serve.consistency = proof(&text, problems);
        }
        let coverage = Said {
            node: node_name.or(file.node),
            sensitive: cache_sensitive,
            authorizes: auth.is_some_and(|mode| mode != AuthMode::None),
        };
        coverage.put(&mut serve.coverage, problems);
        let serve = Serve {
            allowed_origins: origins(&file.allowed_origins, problems),
            upstream,
            endpoints: endpoints(&file.upstream.servers, problems),
            listen,
            admin,
            healthz: port("healthzBindAddress", healthz_bind_address.as_deref(), &file.healthz_bind_address, problems),
            metrics: port("metricsBindAddress", metrics_bind_address.as_deref(), &file.metrics_bind_address, problems),
            tls,
            auth: auth?,
            delegated,
            allowed_hosts: file.allowed_hosts,
            ready_stale_max,
            preload: if preload.is_empty() { file.preload } else { preload },
            serve,
            cache,
            memory: Some(memory),
            reflect,
            connections,
            look_every: LOOK_EVERY,
            drain: file.drain.0,
            reuse_port: file.reuse_port,
            log,
            audit: audit_log.or(file.audit.path).map(audit),
            core_dumps: allow_core_dumps,
        };
        serve.check(problems);
        Some(serve)
    }
}

/// The servers of upstream, each once.
fn endpoints(named: &[String], problems: &mut Problems) -> EndpointsConfig {
    const KEY: &str = "upstream.servers";
    if named.len() > EndpointsConfig::SERVERS_MAX {
        problems.add(format!("{KEY}: more than {} are named", EndpointsConfig::SERVERS_MAX));
    }
    let mut servers: Vec<ServerUrl> = Vec::new();
    for text in named {
        let Some(server) = problems.check(KEY, text.parse::<ServerUrl>()) else { continue };
        if servers.contains(&server) {
            problems.add(format!("{KEY}: {server} is named twice"));
        }
        servers.push(server);
    }
    EndpointsConfig { servers, ..EndpointsConfig::default() }
}

fn addresses(named: Vec<String>, problems: &mut Problems) -> Vec<Address> {
    let named = if named.is_empty() { vec![super::DEFAULT_LISTEN.to_owned()] } else { named };
    named.iter().filter_map(|text| problems.check("listen", text.parse())).collect()
}

/// The address that the flag says, or else the file; `None` if it is off.
fn or_off(key: &str, flag: Option<&str>, file: &str, problems: &mut Problems) -> Option<Address> {
    let text = flag.unwrap_or(file);
    if text == "off" { None } else { problems.check(key, text.parse()) }
}

/// The address of a page that other machines read, which are told a port and no path.
fn port(key: &str, flag: Option<&str>, file: &str, problems: &mut Problems) -> Option<SocketAddr> {
    match or_off(key, flag, file, problems)? {
        Address::Tcp(address) => Some(address),
        unix @ Address::Unix(_) => {
            problems.add(format!("{key}: {unix} is no IP:PORT; unix sockets are for the admin pages"));
            None
        }
    }
}

fn origins(named: &[String], problems: &mut Problems) -> Vec<PageOrigin> {
    named.iter().filter_map(|text| problems.check("allowedOrigins", text.parse())).collect()
}

fn mode(auth: &str, problems: &mut Problems) -> Option<AuthMode> {
    match auth {
        "none" => Some(AuthMode::None),
        "delegated" => Some(AuthMode::Delegated),
        other => {
            problems.add(format!("auth: {other:?} is neither \"none\" nor \"delegated\""));
            None
        }
    }
}

fn proof(consistency: &str, problems: &mut Problems) -> Consistency {
    match consistency {
        "bounded" => return Consistency::Bounded,
        "strict" => {}
        other => problems.add(format!("consistency: {other:?} is neither \"strict\" nor \"bounded\"")),
    }
    Consistency::Strict
}

fn audit(path: String) -> AuditDestination {
    if path == "-" { AuditDestination::Stdout } else { AuditDestination::File(path.into()) }
}

impl Serve {
    /// Combinations that are refused (R-MODE-2).
    fn check(&self, problems: &mut Problems) {
        for address in self.listen.iter().filter(|address| !address.is_local()) {
            match (self.auth, &self.tls) {
                (AuthMode::None, _) => problems.add(format!(
                    "listen: {address} can be reached from other machines, and with auth none whoever reaches it acts \
                     with the proxy's own rights; listen on loopback or on a unix socket, or use auth delegated"
                )),
                (AuthMode::Delegated, None) => problems.add(format!(
                    "listen: {address} can be reached from other machines, and without TLS so can the tokens that \
                     clients send; give tls.certificate and tls.key, or tls.selfSigned"
                )),
                (AuthMode::Delegated, Some(_)) => {}
            }
        }
        self.check_node(problems);
        self.delegated.check(problems);
        if self.auth == AuthMode::None && self.delegated != DelegatedKeys::default() {
            problems.add("delegated: its settings mean nothing with auth none");
        }
        if self.delegated.client_ca.is_some() && self.tls.is_none() {
            problems.add("delegated.clientCA: client certificates are shown in TLS, which no listener speaks");
        }
        if let Some(admin) = self.admin.as_ref().filter(|admin| !admin.is_local()) {
            problems.add(format!("admin: {admin} can be reached from other machines; use loopback or a unix socket"));
        }
        let mut seen: Vec<&Address> = Vec::new();
        let ports = [self.healthz, self.metrics].into_iter().flatten().map(Address::Tcp).collect::<Vec<_>>();
        for address in self.listen.iter().chain(&self.admin).chain(&ports) {
            let any_port = matches!(address, Address::Tcp(tcp) if tcp.port() == 0);
            if seen.contains(&address) && !any_port {
                problems.add(format!("{address} is named twice"));
            }
            seen.push(address);
        }
    }

    /// A node's credentials read what its pods mount: every process on the node would. And whoever takes a node would
    /// take the cluster with an impersonator's credential.
    fn check_node(&self, problems: &mut Problems) {
        if self.serve.coverage.node.is_some() && self.delegated.impersonator.is_some() {
            problems.add(
                "delegated.impersonator: its credential may act as anybody, so it must not be on a node; the node's \
                 own requests go on with the credentials of the proxy, and those with tokens as they are",
            );
        }
        let is_open = self.auth == AuthMode::None && self.serve.coverage.node.is_some();
        for address in self.listen.iter().filter(|address| is_open && matches!(address, Address::Tcp(_))) {
            problems.add(format!(
                "node: every process on the node can reach {address}, and with auth none whoever reaches it acts with \
                 the rights of the proxy; listen on a unix socket (unix:PATH), or use auth delegated"
            ));
        }
    }
}
