//! The configuration: the file, the flags and the environment, checked into what the application runs with.
//!
//! **Invariants.** The only module that knows key names. All problems are found before anything is bound, and all are
//! reported at once. Unknown keys are errors.

mod arguments;
mod configuration;
mod document;
mod fields;
mod file;
mod health;
mod log_level;
mod memory;
mod serve_arguments;
mod settings;
#[cfg(test)]
mod tests;

pub use arguments::{CheckArguments, CliArguments, CliCommand, ConfigCommand, TOOL_COMMANDS};
pub use document::ConfigProblems;
pub use file::DelegatedAuthKeys;
pub use health::{HealthArguments, HealthProbe};
pub use memory::MemoryLimit;
pub use serve_arguments::{ServeArguments, one_kubeconfig};
pub use settings::{FlatConfigSettings, SettingChanges};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::auth::{AuthConfig, AuthMode, WebOrigin};
use crate::cache;
use crate::net::{ConnectionLimits, ListenAddress};
use crate::reflect;
use crate::serve;
use crate::upstream::{CredentialSource, UpstreamEndpointsConfig};

/// Returns a YAML file with the default and the description of every key. A test generates the descriptions from the
/// types, and compares the defaults with those of the modules.
pub fn defaults() -> &'static str {
    include_str!("../config/example.yaml")
}

/// Returns the JSON schema of the configuration file, for editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(configuration::Configuration).to_value()
}

/// The settings that `serve` runs with.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    pub upstream: CredentialSource,
    /// The addresses of upstream's servers; they replace the one that the credentials name.
    pub endpoints: UpstreamEndpointsConfig,
    pub listen: Vec<ListenAddress>,
    pub admin: Option<ListenAddress>,
    /// The address of `/healthz`, `/livez` and `/readyz`, without authentication.
    pub healthz: Option<SocketAddr>,
    /// The address of `/metrics` for other machines.
    pub metrics: Option<SocketAddr>,
    /// The certificate of the metrics address. Without it, an address with `scrapes` uses that of the listeners.
    pub metrics_tls: Option<TlsCertificateSource>,
    /// The authentication and authorization of scrapes; `None` accepts all.
    pub scrapes: Option<AuthConfig>,
    pub tls: Option<TlsCertificateSource>,
    pub auth: AuthMode,
    pub delegated: DelegatedAuthKeys,
    pub allowed_hosts: Vec<String>,
    /// The origins of web pages that may send requests to a listener without authentication.
    pub allowed_origins: Vec<WebOrigin>,
    pub preload: Vec<String>,
    /// How long a preloaded feed may be without its upstream watch before the proxy reports that it is not ready;
    /// unlimited if `None`.
    pub ready_stale_max: Option<Duration>,
    pub serve: serve::ServeConfig,
    pub cache: cache::CacheConfig,
    /// The source of the memory budget for feeds; `None` if it was not determined.
    pub memory: Option<MemoryLimit>,
    pub reflect: reflect::ReflectConfig,
    pub connections: ConnectionLimits,
    /// The interval at which files with certificates, keys and credentials are checked for changes.
    pub file_check_interval: Duration,
    pub drain: Duration,
    /// Whether other processes of the same user may listen on the same ports, such as a successor while this process
    /// drains.
    pub reuse_port: bool,
    pub log: LogSettings,
    /// The destination of audit records; `None` if there is no audit log.
    pub audit: Option<serve::AuditDestination>,
    /// Whether core files and debuggers of the same user may read the process's memory.
    pub core_dumps: bool,
    /// The configuration keys and values that these settings were read from.
    pub settings: FlatConfigSettings,
}

/// The source of a listener's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsCertificateSource {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// The certificate is generated at the start, and written to a file for clients to trust, if one is named.
    SelfSigned {
        out: Option<PathBuf>,
    },
}

/// The level and the format of log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// A log filter in the form that `tracing` parses.
    pub level: String,
    pub json: bool,
    /// Whether the level comes from `RUST_LOG`, which no configuration file can change.
    pub is_from_env: bool,
}

impl LogSettings {
    /// Returns the log settings of a command without a configuration: `RUST_LOG`, or else the given level.
    ///
    /// # Errors
    /// `RUST_LOG` is not a valid filter.
    pub fn of_command(level: &str) -> Result<Self, String> {
        let from_env = log_level::from_env().transpose().map_err(|why| format!("RUST_LOG: {why}"))?;
        let is_from_env = from_env.is_some();
        Ok(Self { level: from_env.unwrap_or_else(|| level.to_owned()), json: false, is_from_env })
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { level: "info".to_owned(), json: false, is_from_env: false }
    }
}

impl ServeSettings {
    /// Returns the default settings for a proxy of `upstream`, on free loopback ports. They depend neither on the
    /// environment nor on this machine's memory.
    pub fn for_upstream(upstream: CredentialSource) -> Self {
        let anywhere = ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (file, mut problems) = (configuration::Configuration::default(), ConfigProblems::default());
        let defaults = serve_arguments::convert(file, false, FlatConfigSettings::default(), &mut problems);
        Self {
            upstream,
            listen: vec![anywhere.clone()],
            admin: Some(anywhere),
            serve: serve::ServeConfig::default(),
            cache: cache::CacheConfig::default(),
            memory: None,
            log: LogSettings::default(),
            ..defaults
        }
    }
}
