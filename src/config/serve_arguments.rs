use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::configuration::{Configuration, TlsSection};
use super::coverage::CoverageOverrides;
use super::{ConfigSettings, DelegatedKeys, Problems, ServeSettings, TlsSource, kubeconfig};
use crate::auth::{AuthConfig, AuthMode, PageOrigin};
use crate::net::Address;
use crate::serve::{AuditDestination, Consistency};
use crate::upstream::{CredentialSource, EndpointsConfig, ServerUrl};
use base::LOOK_EVERY;

/// The flags of `serve`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServeArguments {
    /// Configuration file in YAML; flags override it (docs/CONFIG.md lists its keys)
    #[arg(long, value_name = "FILE", env = "KUBE_FANOUT_CONFIG")]
    config: Option<PathBuf>,
    /// Credentials for the apiserver [default: the pod's service account; outside a cluster ~/.kube/config]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Address for clients: IP:PORT or unix:PATH; may be repeated [default: 127.0.0.1:8001]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Address of the metrics, health and admin pages: IP:PORT, unix:PATH or "off" [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Address that serves only /healthz, /livez and /readyz, for kubelet probes: IP:PORT or "off" [default: off]
    #[arg(long, value_name = "ADDR")]
    healthz_bind_address: Option<String>,
    /// Address that serves only /metrics, for Prometheus: IP:PORT or "off" [default: off]
    #[arg(long, value_name = "ADDR")]
    metrics_bind_address: Option<String>,
    /// Access to that address: "none" lets anyone read it; "delegated" serves TLS, and the apiserver authenticates and
    /// authorizes each scrape [default: none]
    #[arg(long, value_name = "MODE")]
    metrics_auth: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
    /// Authentication: "none" treats every caller as the proxy's own identity, on loopback and unix sockets only;
    /// "delegated" lets the apiserver authenticate and authorize each caller [default: none]
    #[arg(long, value_name = "MODE")]
    auth: Option<String>,
    /// CA bundle that verifies client certificates, PEM; reloaded when it changes (requires --auth delegated)
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Credentials that may only impersonate, to forward requests of callers that use client certificates
    #[arg(long, value_name = "FILE")]
    impersonator_kubeconfig: Option<PathBuf>,
    /// Reads without a resourceVersion: "strict" verifies that the cache is current, "bounded" does not [default:
    /// strict]
    #[arg(long, value_name = "MODE")]
    consistency: Option<String>,
    /// Resources to cache from the start: pods, deployments.apps, widgets.v1.example.com
    #[arg(long, value_name = "RES[,RES]...", value_delimiter = ',')]
    preload: Vec<String>,
    /// Node of this proxy: it caches only that node's pods and other objects of that node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Also cache these sensitive kinds: secrets, configmaps
    #[arg(long, value_name = "RES[,RES]...", value_delimiter = ',')]
    cache_sensitive: Vec<String>,
    /// Log requests that the proxy answers itself as audit.k8s.io/v1 events, one per line; "-" is standard output
    #[arg(long, value_name = "FILE")]
    audit_log: Option<String>,
    /// For debugging: allow core dumps and debuggers, which can read tokens and Secrets from memory
    #[arg(long)]
    allow_core_dumps: bool,
}

#[derive(Clone, Debug, Default, clap::Args)]
#[expect(clippy::struct_field_names, reason = "flags are called like this")]
struct TlsArguments {
    /// Certificate chain of the TCP listeners, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve TLS with a self-signed certificate, created at start
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Write that certificate to this file, for clients to trust
    #[arg(long, value_name = "FILE", requires = "tls_self_signed")]
    tls_self_signed_out: Option<PathBuf>,
}

impl TlsArguments {
    fn over(self, file: TlsSection, problems: &mut Problems) -> Option<TlsSource> {
        match (self.tls_cert, self.tls_key, self.tls_self_signed) {
            (Some(certificate), Some(key), _) => Some(TlsSource::Files { certificate, key }),
            (_, _, true) => Some(TlsSource::SelfSigned { out: self.tls_self_signed_out }),
            _ => file.source("tls", problems),
        }
    }
}

impl ServeArguments {
    /// Reads the file, applies the flags over it and validates the result.
    ///
    /// # Errors
    /// All problems, at once.
    pub fn resolve(self) -> Result<ServeSettings, Problems> {
        let mut problems = Problems::default();
        let file = self.config.as_deref().map(|path| Configuration::read(path, &mut problems)).unwrap_or_default();
        self.checked_over(file, problems)
    }

    /// Does the same with `text` as the new content of the file.
    ///
    /// # Errors
    /// All problems, at once.
    pub fn resolve_text(&self, text: &str) -> Result<ServeSettings, Problems> {
        let mut problems = Problems::default();
        let file = Configuration::parse(text, &mut problems);
        self.clone().checked_over(file, problems)
    }

    /// The configuration file, if one is named.
    pub fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn checked_over(self, file: Configuration, mut problems: Problems) -> Result<ServeSettings, Problems> {
        let mut settings = ConfigSettings::of(&file);
        self.put_into(&mut settings);
        match self.over(file, &mut problems) {
            Some(serve) if problems.is_empty() => Ok(ServeSettings { settings, ..serve }),
            _ => Err(problems),
        }
    }

    /// Records the values of the flags under their configuration keys.
    fn put_into(&self, settings: &mut ConfigSettings) {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let list = |items: &[String]| Some(items.to_vec()).filter(|items| !items.is_empty());
        settings.put("upstream.kubeconfig", path(&self.kubeconfig));
        settings.put("listen", list(&self.listen));
        settings.put("admin", self.admin.clone());
        settings.put("healthzBindAddress", self.healthz_bind_address.clone());
        settings.put("metricsBindAddress", self.metrics_bind_address.clone());
        settings.put("metrics.auth", self.metrics_auth.clone());
        settings.put("tls.certificate", path(&self.tls.tls_cert));
        settings.put("tls.key", path(&self.tls.tls_key));
        settings.put("tls.selfSigned", self.tls.tls_self_signed.then_some(true));
        settings.put("tls.selfSignedOut", path(&self.tls.tls_self_signed_out));
        settings.put("auth", self.auth.clone());
        settings.put("delegated.clientCA", path(&self.client_ca));
        settings.put("delegated.impersonator", path(&self.impersonator_kubeconfig));
        settings.put("consistency", self.consistency.clone());
        settings.put("preload", list(&self.preload));
        settings.put("node", self.node_name.clone());
        settings.put("feeds.sensitive", list(&self.cache_sensitive));
        settings.put("audit.path", self.audit_log.clone());
    }

    fn over(self, file: Configuration, problems: &mut Problems) -> Option<ServeSettings> {
        let Self {
            config: _,
            kubeconfig: named,
            listen,
            admin,
            healthz_bind_address,
            metrics_bind_address,
            metrics_auth,
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
        let (reflect, connections, stale_max) = (file.reflect(), file.connections(), file.stale_max());
        let log = file.log(problems);
        let upstream = credentials(named, file.upstream.kubeconfig, problems);
        let listen = addresses(if listen.is_empty() { file.listen } else { listen }, problems);
        let admin = or_off("admin", admin.as_deref(), &file.admin, problems);
        let tls = tls.over(file.tls, problems);
        let auth = auth.map_or(Some(file.auth.into()), |text| mode("auth", &text, problems));
        let scraped = metrics_auth.map_or(Some(file.metrics.auth.into()), |text| mode("metrics.auth", &text, problems));
        let delegated = DelegatedKeys::from(file.delegated).with(client_ca, impersonator_kubeconfig);
        serve.consistency = consistency.map_or(serve.consistency, |text| proof(&text, problems));
        let coverage = CoverageOverrides {
            node: node_name.or(file.node),
            sensitive: cache_sensitive,
            authorizes: auth.is_some_and(|mode| mode != AuthMode::None),
        };
        coverage.put(&mut serve.coverage, problems);
        let serve = ServeSettings {
            allowed_origins: origins(&file.allowed_origins, problems),
            upstream,
            endpoints: endpoints(&file.upstream.servers, problems),
            listen,
            admin,
            healthz: port("healthzBindAddress", healthz_bind_address.as_deref(), &file.healthz_bind_address, problems),
            metrics: port("metricsBindAddress", metrics_bind_address.as_deref(), &file.metrics_bind_address, problems),
            metrics_tls: TlsSection::from(file.metrics.tls).source("metrics.tls", problems),
            scrapes: (scraped? == AuthMode::Delegated).then(|| AuthConfig::of_scrapes(&delegated.auth)),
            tls,
            auth: auth?,
            delegated,
            allowed_hosts: file.allowed_hosts,
            ready_stale_max: stale_max,
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
            settings: ConfigSettings::default(),
        };
        serve.check(problems);
        Some(serve)
    }
}

/// The upstream servers without duplicates.
fn endpoints(named: &[String], problems: &mut Problems) -> EndpointsConfig {
    const KEY: &str = "upstream.servers";
    if named.len() > EndpointsConfig::SERVERS_MAX {
        problems.add(format!("{KEY}: more than {} servers", EndpointsConfig::SERVERS_MAX));
    }
    let mut servers: Vec<ServerUrl> = Vec::new();
    for text in named {
        let Some(server) = problems.check(KEY, text.parse::<ServerUrl>()) else { continue };
        if servers.contains(&server) {
            problems.add(format!("{KEY}: {server} is listed twice"));
        }
        servers.push(server);
    }
    EndpointsConfig { servers, ..EndpointsConfig::default() }
}

fn credentials(flag: Option<PathBuf>, file: Option<PathBuf>, problems: &mut Problems) -> CredentialSource {
    let flag = flag.and_then(|named| problems.check("--kubeconfig (KUBECONFIG)", kubeconfig::one_kubeconfig(named))?);
    flag.or(file).map_or_else(kubeconfig::default_source, CredentialSource::File)
}

fn addresses(named: Vec<String>, problems: &mut Problems) -> Vec<Address> {
    let named = if named.is_empty() { vec![super::DEFAULT_LISTEN.to_owned()] } else { named };
    named.iter().filter_map(|text| problems.check("listen", text.parse())).collect()
}

/// The address from the flag or, without one, from the file; `None` if it is off.
fn or_off(key: &str, flag: Option<&str>, file: &str, problems: &mut Problems) -> Option<Address> {
    let text = flag.unwrap_or(file);
    if text == "off" { None } else { problems.check(key, text.parse()) }
}

/// The address of a page that other machines read. It must be a TCP address, because scrapers and kubelets cannot use a
/// path.
fn port(key: &str, flag: Option<&str>, file: &str, problems: &mut Problems) -> Option<SocketAddr> {
    match or_off(key, flag, file, problems)? {
        Address::Tcp(address) => Some(address),
        unix @ Address::Unix(_) => {
            problems
                .add(format!("{key}: {unix} is not supported (expected IP:PORT; only admin supports unix sockets)"));
            None
        }
    }
}

fn origins(named: &[String], problems: &mut Problems) -> Vec<PageOrigin> {
    named.iter().filter_map(|text| problems.check("allowedOrigins", text.parse())).collect()
}

fn mode(key: &str, auth: &str, problems: &mut Problems) -> Option<AuthMode> {
    match auth {
        "none" => Some(AuthMode::None),
        "delegated" => Some(AuthMode::Delegated),
        other => {
            problems.add(format!("{key}: {other:?} is not supported (expected \"none\" or \"delegated\")"));
            None
        }
    }
}

fn proof(consistency: &str, problems: &mut Problems) -> Consistency {
    match consistency {
        "bounded" => return Consistency::Bounded,
        "strict" => {}
        other => problems.add(format!("consistency: {other:?} is not supported (expected \"strict\" or \"bounded\")")),
    }
    Consistency::Strict
}

fn audit(path: String) -> AuditDestination {
    if path == "-" { AuditDestination::Stdout } else { AuditDestination::File(path.into()) }
}

impl ServeSettings {
    /// Rejects combinations that are not allowed (docs/SECURITY.md, "Deployment modes").
    fn check(&self, problems: &mut Problems) {
        for address in self.listen.iter().filter(|address| !address.is_local()) {
            match (self.auth, &self.tls) {
                (AuthMode::None, _) => problems.add(format!(
                    "listen: {address} is reachable from other machines, and with auth: none every client acts with \
                     the proxy's own permissions; listen on loopback or a unix socket, or set auth: delegated"
                )),
                (AuthMode::Delegated, None) => problems.add(format!(
                    "listen: {address} is reachable from other machines, and without TLS tokens would be sent in clear \
                     text; set tls.certificate and tls.key, or tls.selfSigned"
                )),
                (AuthMode::Delegated, Some(_)) => {}
            }
        }
        self.check_node(problems);
        self.delegated.check(problems);
        self.check_scrapes(problems);
        if self.delegated.client_ca.is_some() && self.tls.is_none() && self.metrics_tls.is_none() {
            problems.add("delegated.clientCA: client certificates require TLS (tls.*) on a TCP listener");
        }
        if let Some(admin) = self.admin.as_ref().filter(|admin| !admin.is_local()) {
            problems.add(format!("admin: {admin} is reachable from other machines; use loopback or a unix socket"));
        }
        let mut seen: Vec<&Address> = Vec::new();
        let ports = [self.healthz, self.metrics].into_iter().flatten().map(Address::Tcp).collect::<Vec<_>>();
        for address in self.listen.iter().chain(&self.admin).chain(&ports) {
            let any_port = matches!(address, Address::Tcp(tcp) if tcp.port() == 0);
            if seen.contains(&address) && !any_port {
                problems.add(format!("{address} is listed twice"));
            }
            seen.push(address);
        }
    }

    /// Scrapers are authenticated with the keys of `delegated` that concern authentication; its other keys concern
    /// clients.
    fn check_scrapes(&self, problems: &mut Problems) {
        let DelegatedKeys { client_ca, front_proxy_ca, front_proxy_names, impersonator: _, auth } =
            self.delegated.clone();
        let auth = AuthConfig { audiences: auth.audiences, ..AuthConfig::default() };
        let of_scrapes = DelegatedKeys { client_ca, front_proxy_ca, front_proxy_names, impersonator: None, auth };
        let meant = if self.scrapes.is_some() { of_scrapes } else { DelegatedKeys::default() };
        if self.auth == AuthMode::None && self.delegated != meant {
            problems.add("delegated.* requires auth: delegated");
        }
        if self.scrapes.is_some() && self.tls.is_none() && self.metrics_tls.is_none() {
            problems.add(
                "metrics.auth: without TLS the tokens of scrapes would be sent in clear text; set \
                 metrics.tls.certificate and metrics.tls.key, metrics.tls.selfSigned, or tls.*",
            );
        }
        if self.metrics.is_none() && (self.scrapes.is_some() || self.metrics_tls.is_some()) {
            problems.add("metrics.* requires metricsBindAddress");
        }
    }

    /// A node's credentials can read what its pods mount, so every process on the node could read it too. An attacker
    /// who compromises the node would control the cluster with an impersonator's credentials.
    fn check_node(&self, problems: &mut Problems) {
        if self.serve.coverage.node.is_some() && self.delegated.impersonator.is_some() {
            problems.add(
                "delegated.impersonator: not allowed with node, because its credential can impersonate any user; on a \
                 node, requests are forwarded with the proxy's credentials or the client's own token",
            );
        }
        let is_open = self.auth == AuthMode::None && self.serve.coverage.node.is_some();
        for address in self.listen.iter().filter(|address| is_open && matches!(address, Address::Tcp(_))) {
            problems.add(format!(
                "node: every process on the node can reach {address}, and with auth: none every client acts with the \
                 proxy's own permissions; listen on a unix socket (unix:PATH), or set auth: delegated"
            ));
        }
    }
}
