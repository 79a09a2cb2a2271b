use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::to_value;

use super::configuration::{Configuration, TlsSection};
use super::{ConfigProblems, DelegatedAuthKeys, FlatConfigSettings, ServeSettings, document};
use crate::auth::{AuthConfig, AuthMode, NamedCallers};
use crate::net::ListenAddress;
use crate::serve::AuditDestination;
use crate::upstream::{CredentialSource, ServerUrl, UpstreamEndpointsConfig};
use base::FILE_CHECK_INTERVAL;
use kubeapi::is_dns_subdomain;

/// Parses a path. Unlike clap's own parser, it accepts an empty value, which an empty environment variable has.
fn possibly_empty_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The flags of `serve`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServeArguments {
    /// Configuration file in YAML; flags override it (docs/CONFIG.md lists its keys)
    #[arg(long, value_name = "FILE", env = "KUBE_FANOUT_CONFIG")]
    config: Option<PathBuf>,
    /// Credentials for the apiserver [default: the pod's service account; outside a cluster ~/.kube/config]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", value_parser = possibly_empty_path())]
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

impl ServeArguments {
    /// Reads the file, applies the flags over it and validates the result.
    ///
    /// # Errors
    /// All problems, at once.
    pub fn resolve(self) -> Result<ServeSettings, ConfigProblems> {
        let mut problems = ConfigProblems::default();
        let file = self.config.as_deref().map(|path| Configuration::read(path, &mut problems)).unwrap_or_default();
        self.validate_with_file(file, problems)
    }

    /// Does the same with `text` as the new content of the file.
    ///
    /// # Errors
    /// All problems, at once.
    pub fn resolve_text(&self, text: &str) -> Result<ServeSettings, ConfigProblems> {
        let mut problems = ConfigProblems::default();
        let file = Configuration::parse(text, &mut problems);
        self.clone().validate_with_file(file, problems)
    }

    /// The configuration file, if one is named.
    pub fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn validate_with_file(
        self,
        file: Configuration,
        mut problems: ConfigProblems,
    ) -> Result<ServeSettings, ConfigProblems> {
        let (core_dumps, of_file) = (self.allow_core_dumps, problems.iter().count());
        let config = self.apply_flags(file, &mut problems);
        // Without the modes of authentication the combination cannot be checked.
        let is_of_mode = |problem: &str| ["auth: ", "metrics.auth: "].iter().any(|key| problem.starts_with(key));
        let are_modes_valid = !problems.iter().skip(of_file).any(is_of_mode);
        let settings = FlatConfigSettings::of(&config);
        let serve = convert(config, core_dumps, settings, &mut problems);
        if are_modes_valid {
            serve.check(&mut problems);
        }
        if problems.is_empty() { Ok(serve) } else { Err(problems) }
    }

    /// Replaces keys of the file with the values of the flags that are given.
    fn apply_flags(self, mut file: Configuration, problems: &mut ConfigProblems) -> Configuration {
        let list = |items: Vec<String>| Some(items).filter(|items| !items.is_empty());
        let kubeconfig =
            self.kubeconfig.and_then(|named| problems.check("--kubeconfig (KUBECONFIG)", one_kubeconfig(named))?);
        if self.tls_cert.is_some() || self.tls_self_signed {
            file.tls = TlsSection::default();
        }
        let flags = [
            ("upstream.kubeconfig", to_value(kubeconfig)),
            ("listen", to_value(list(self.listen))),
            ("admin", to_value(self.admin)),
            ("healthzBindAddress", to_value(self.healthz_bind_address)),
            ("metricsBindAddress", to_value(self.metrics_bind_address)),
            ("metrics.auth", to_value(self.metrics_auth)),
            ("tls.certificate", to_value(self.tls_cert)),
            ("tls.key", to_value(self.tls_key)),
            ("tls.selfSigned", to_value(self.tls_self_signed.then_some(true))),
            ("tls.selfSignedOut", to_value(self.tls_self_signed_out)),
            ("auth", to_value(self.auth)),
            ("delegated.clientCA", to_value(self.client_ca)),
            ("delegated.impersonator", to_value(self.impersonator_kubeconfig)),
            ("consistency", to_value(self.consistency)),
            ("preload", to_value(list(self.preload))),
            ("node", to_value(self.node_name)),
            ("feeds.sensitive", to_value(list(self.cache_sensitive))),
            ("audit.path", to_value(self.audit_log)),
        ];
        // Serialization of the file cannot fail: the file of defaults is generated in the same way.
        let mut root = to_value(file).unwrap_or_default();
        for (key, flag) in flags {
            // A path that is not UTF-8 is a problem.
            let flag = problems.check(key, flag).filter(|flag| !flag.is_null());
            if let (Some(flag), Some(value)) = (flag, root.pointer_mut(&format!("/{}", key.replace('.', "/")))) {
                *value = flag;
            }
        }
        document::read(root, problems)
    }
}

const FILTERED_LISTENERS: &str = "reads.filter.listeners";
const REDUCED_LISTENERS: &str = "reads.drop.listeners";

/// Converts the file, with the flags in it, into the settings of each module.
pub(super) fn convert(
    file: Configuration,
    core_dumps: bool,
    settings: FlatConfigSettings,
    problems: &mut ConfigProblems,
) -> ServeSettings {
    let memory = file.memory();
    let (mut serve, cache) = (file.serve(&memory), file.cache(&memory));
    serve.filter.listeners = parse_all(FILTERED_LISTENERS, &file.reads.filter.listeners, problems);
    serve.reduced.callers.listeners = parse_all(REDUCED_LISTENERS, &file.reads.drop.listeners, problems);
    let (reflect, connections) = (file.reflect(), file.connections());
    let log = file.log(problems);
    let listen = if file.listen.is_empty() { Configuration::default().listen } else { file.listen };
    let listen = parse_all("listen", &listen, problems);
    let admin = parse_admin_address("admin", &file.admin, problems);
    let tls = file.tls.source("tls", problems);
    let delegated = DelegatedAuthKeys::from(file.delegated);
    if let Some(name) = file.node.as_deref().filter(|name| !is_dns_subdomain(name)) {
        problems.add(format!("node: {name:?} is not a node name (expected a DNS subdomain)"));
    }
    ServeSettings {
        allowed_origins: parse_all("allowedOrigins", &file.allowed_origins, problems),
        upstream: file.upstream.kubeconfig.map_or_else(default_source, CredentialSource::File),
        endpoints: parse_servers(&file.upstream.servers, problems),
        listen,
        admin,
        healthz: parse_tcp_address("healthzBindAddress", &file.healthz_bind_address, problems),
        metrics: parse_tcp_address("metricsBindAddress", &file.metrics_bind_address, problems),
        metrics_tls: TlsSection::from(file.metrics.tls).source("metrics.tls", problems),
        scrapes: (file.metrics.auth == AuthMode::Delegated).then(|| AuthConfig::of_scrapes(&delegated.auth)),
        tls,
        auth: file.auth,
        delegated,
        allowed_hosts: file.allowed_hosts,
        ready_stale_max: Some(file.ready_stale_max.0).filter(|max| !max.is_zero()),
        preload: file.preload,
        serve,
        cache,
        memory: Some(memory),
        reflect,
        connections,
        file_check_interval: FILE_CHECK_INTERVAL,
        drain: file.drain.0,
        reuse_port: file.reuse_port,
        log,
        audit: file.audit.path.map(audit_destination),
        core_dumps,
        settings,
    }
}

/// The upstream servers without duplicates.
fn parse_servers(named: &[String], problems: &mut ConfigProblems) -> UpstreamEndpointsConfig {
    const KEY: &str = "upstream.servers";
    if named.len() > UpstreamEndpointsConfig::SERVERS_MAX {
        problems.add(format!("{KEY}: more than {} servers", UpstreamEndpointsConfig::SERVERS_MAX));
    }
    let mut servers: Vec<ServerUrl> = Vec::new();
    for text in named {
        let Some(server) = problems.check(KEY, text.parse::<ServerUrl>()) else { continue };
        if servers.contains(&server) {
            problems.add(format!("{KEY}: {server} is listed twice"));
        }
        servers.push(server);
    }
    UpstreamEndpointsConfig { servers, ..UpstreamEndpointsConfig::default() }
}

fn parse_all<T: FromStr<Err: Display>>(key: &str, named: &[String], problems: &mut ConfigProblems) -> Vec<T> {
    named.iter().filter_map(|text| problems.check(key, text.parse())).collect()
}

/// The address of an admin page; `None` if it is off.
fn parse_admin_address(key: &str, text: &str, problems: &mut ConfigProblems) -> Option<ListenAddress> {
    if text == "off" { None } else { problems.check(key, text.parse()) }
}

/// The address of a page that other machines read. It must be a TCP address, because scrapers and kubelets cannot use a
/// path.
fn parse_tcp_address(key: &str, text: &str, problems: &mut ConfigProblems) -> Option<SocketAddr> {
    match parse_admin_address(key, text, problems)? {
        ListenAddress::Tcp(address) => Some(address),
        unix @ ListenAddress::Unix(_) => {
            problems
                .add(format!("{key}: {unix} is not supported (expected IP:PORT; only admin supports unix sockets)"));
            None
        }
    }
}

fn audit_destination(path: String) -> AuditDestination {
    if path == "-" { AuditDestination::Stdout } else { AuditDestination::File(path.into()) }
}

impl ServeSettings {
    /// Rejects combinations that are not allowed (docs/SECURITY.md, "Deployment modes").
    fn check(&self, problems: &mut ConfigProblems) {
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
        let mut seen: Vec<&ListenAddress> = Vec::new();
        let ports = [self.healthz, self.metrics].into_iter().flatten().map(ListenAddress::Tcp).collect::<Vec<_>>();
        for address in self.listen.iter().chain(&self.admin).chain(&ports) {
            let any_port = matches!(address, ListenAddress::Tcp(tcp) if tcp.port() == 0);
            if seen.contains(&address) && !any_port {
                problems.add(format!("{address} is listed twice"));
            }
            seen.push(address);
        }
    }

    /// Scrapers are authenticated with the keys of `delegated` that concern authentication; its other keys concern
    /// clients.
    fn check_scrapes(&self, problems: &mut ConfigProblems) {
        let DelegatedAuthKeys { client_ca, front_proxy_ca, front_proxy_names, impersonator: _, auth } =
            self.delegated.clone();
        let auth = AuthConfig { audiences: auth.audiences, ..AuthConfig::default() };
        let for_scrapes = DelegatedAuthKeys { client_ca, front_proxy_ca, front_proxy_names, impersonator: None, auth };
        let allowed = if self.scrapes.is_some() { for_scrapes } else { DelegatedAuthKeys::default() };
        if self.auth == AuthMode::None && self.delegated != allowed {
            problems.add("delegated.* requires auth: delegated");
        }
        if self.auth == AuthMode::None && self.serve.filter != NamedCallers::default() {
            problems.add("reads.filter requires auth: delegated");
        }
        let reduced = &self.serve.reduced;
        if self.auth == AuthMode::None && !(reduced.callers.groups.is_empty() && reduced.callers.users.is_empty()) {
            problems.add("reads.drop.groups and reads.drop.users require auth: delegated");
        }
        if reduced.user_agents.iter().any(String::is_empty) {
            problems.add("reads.drop.userAgents: an empty prefix matches every client; name `listeners` instead");
        }
        let listeners =
            [(FILTERED_LISTENERS, &self.serve.filter.listeners), (REDUCED_LISTENERS, &reduced.callers.listeners)];
        for (key, listeners) in listeners {
            for address in listeners.iter().filter(|address| !self.listen.contains(address)) {
                problems.add(format!("{key}: {address} is not in `listen`"));
            }
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
    fn check_node(&self, problems: &mut ConfigProblems) {
        if self.serve.coverage.node.is_some() && self.delegated.impersonator.is_some() {
            problems.add(
                "delegated.impersonator: not allowed with node, because its credential can impersonate any user; on a \
                 node, requests are forwarded with the proxy's credentials or the client's own token",
            );
        }
        let is_open = self.auth == AuthMode::None && self.serve.coverage.node.is_some();
        for address in self.listen.iter().filter(|address| is_open && matches!(address, ListenAddress::Tcp(_))) {
            problems.add(format!(
                "node: every process on the node can reach {address}, and with auth: none every client acts with the \
                 proxy's own permissions; listen on a unix socket (unix:PATH), or set auth: delegated"
            ));
        }
    }
}

/// The path of kubectl's default kubeconfig, relative to the home directory.
const USER_KUBECONFIG: &str = ".kube/config";

/// Returns the file that a value of `--kubeconfig` or `KUBECONFIG` names; `None` if the value is empty.
///
/// # Errors
/// The value is a list, as kubectl accepts it, and not exactly one of its files exists.
pub fn one_kubeconfig(named: PathBuf) -> Result<Option<PathBuf>, String> {
    if named.as_os_str().is_empty() {
        return Ok(None);
    }
    let Some(list) = named.to_str().filter(|text| text.contains(':') && !named.exists()) else {
        return Ok(Some(named));
    };
    // Like kubectl, ignores files that do not exist.
    let found: Vec<_> = list.split(':').filter(|path| !path.is_empty() && Path::new(path).exists()).collect();
    match found.as_slice() {
        [only] => Ok(Some(PathBuf::from(only))),
        [] => Err(format!("none of these files exists: {list}")),
        _ => Err(format!(
            "only one kubeconfig is supported, and {list} names {}; merge them: KUBECONFIG={list} kubectl config \
             view --flatten --minify > FILE",
            found.len()
        )),
    }
}

/// Returns the credentials to use without a kubeconfig: the pod's, or the user's outside of a cluster.
#[allow(clippy::disallowed_methods, reason = "where a process runs is no setting")]
fn default_source() -> CredentialSource {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    source_of(std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(), home.as_deref())
}

fn source_of(is_in_cluster: bool, home: Option<&Path>) -> CredentialSource {
    let user_file = home.map(|home| home.join(USER_KUBECONFIG)).filter(|path| !is_in_cluster && path.is_file());
    user_file.map_or(CredentialSource::InCluster, CredentialSource::File)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_kubeconfig_files_are_refused_with_merge_command() {
        let folder = std::env::temp_dir().join(format!("kube-fanout-kubeconfig-{}", fastrand::u64(..)));
        std::fs::create_dir_all(folder.join(".kube")).expect("a folder");
        let path = |name: &str| folder.join(name).display().to_string();
        let [a, b, gone, user] = ["a", "b", "gone", USER_KUBECONFIG].map(path);
        for file in [&a, &b, &user] {
            std::fs::write(file, "").expect("a file");
        }
        let read = |text: String| one_kubeconfig(text.into());
        assert_eq!(read(String::new()), Ok(None));
        assert_eq!(read(gone.clone()), Ok(Some(PathBuf::from(&gone))), "a single file is refused where it is read");
        for list in [format!("{a}:{gone}"), format!("{gone}:{a}"), format!(":{a}:")] {
            assert_eq!(read(list), Ok(Some(PathBuf::from(&a))));
        }
        let several = read(format!("{a}:{b}")).expect_err("two files");
        assert!(several.contains(&format!("KUBECONFIG={a}:{b} kubectl config view --flatten")), "{several}");
        assert!(read(format!("{gone}:{gone}")).is_err());
        // A process in a cluster has a service account there.
        assert_eq!(source_of(true, Some(&folder)), CredentialSource::InCluster);
        assert_eq!(source_of(false, None), CredentialSource::InCluster);
        assert_eq!(source_of(false, Some(Path::new(&gone))), CredentialSource::InCluster);
        assert_eq!(source_of(false, Some(&folder)), CredentialSource::File(user.into()));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
