//! Conversion of the configuration file into the settings of each module.

use std::path::{Path, PathBuf};

use super::configuration::{Configuration, DelegatedSection, LogFormat, MetricsTlsSection, TlsSection};
use super::fields::BoundedNumber;
use super::memory::{AvailableMemory, MemoryLimit};
use super::{ConfigProblems, LogSettings, TlsCertificateSource, document, log_level};
use crate::auth::{CaOverlapChecker, CertificateAuthorities, CertificateAuthorityRole};
use crate::{auth, cache, net, reflect, serve};

impl Configuration {
    /// Reads as much of the file as is valid, and reports the rest as problems.
    pub(super) fn read(path: &Path, problems: &mut ConfigProblems) -> Self {
        let text = problems.check(&path.display().to_string(), std::fs::read_to_string(path));
        text.map(|text| Self::parse(&text, problems)).unwrap_or_default()
    }

    pub(super) fn parse(text: &str, problems: &mut ConfigProblems) -> Self {
        let root = problems.check("configuration file", document::parse_yaml(text));
        root.map(|root| document::read(root, problems)).unwrap_or_default()
    }

    pub(super) fn memory(&self) -> MemoryLimit {
        MemoryLimit::new(self.feeds.memory_mebibytes.map(bytes), AvailableMemory::of_this_process())
    }

    pub(super) fn serve(&self, memory: &MemoryLimit) -> serve::ServeConfig {
        let (feeds, limits, default) = (&self.feeds, &self.limits, serve::ServeConfig::default());
        serve::ServeConfig {
            consistency: self.consistency,
            coverage: serve::CacheCoverage {
                resources: feeds.resources.clone(),
                sensitive: feeds.sensitive.clone(),
                node: self.node.as_deref().map(Into::into),
                authorizes: self.auth != auth::AuthMode::None,
            },
            filter: auth::NamedCallers {
                groups: self.reads.filter.groups.clone(),
                users: self.reads.filter.users.clone(),
                listeners: Vec::new(),
            },
            reduced: serve::ReducedReads {
                callers: auth::NamedCallers {
                    groups: self.reads.drop.groups.clone(),
                    users: self.reads.drop.users.clone(),
                    listeners: Vec::new(),
                },
                user_agents: self.reads.drop.user_agents.clone(),
            },
            compress_watches: self.reads.compress_watches,
            exec_on_loopback: self.exec_on_loopback,
            sync_wait_max: feeds.sync_wait.0,
            watch_min: limits.min_request_timeout.0,
            limits: serve::ConcurrencyConfig {
                watches_max: limits.watches.get(),
                watches_per_caller_max: limits.watches_per_caller.get(),
                lists_bytes_max: limits.list_mebibytes.map_or_else(|| memory.lists_bytes(), bytes),
                forwards_max: limits.forwards.get(),
                forwards_per_caller_max: limits.forwards_per_caller.get(),
                streams_max: limits.streams.get(),
                streams_per_caller_max: limits.streams_per_caller.get(),
                unready_forwards_max: limits.unready_forwards.get(),
                anonymous_forwards_max: limits.anonymous_forwards.get(),
            },
            ..default
        }
    }

    pub(super) fn cache(&self, memory: &MemoryLimit) -> cache::CacheConfig {
        cache::CacheConfig {
            memory_bytes_max: memory.charged_bytes(),
            window_bytes_max: bytes(self.window.mebibytes),
            window_events_max: self.window.events.get(),
            window_age_max: self.window.age.0,
            held_snapshots_max: self.feeds.held_snapshots.get(),
            held_snapshot_age_max: self.feeds.held_snapshot_age.0,
            ..cache::CacheConfig::default()
        }
    }

    pub(super) fn reflect(&self) -> reflect::ReflectConfig {
        let self_check = Some(self.feeds.self_check.0).filter(|every| !every.is_zero());
        reflect::ReflectConfig { idle_max: self.feeds.idle.0, self_check, ..reflect::ReflectConfig::default() }
    }

    pub(super) fn connections(&self) -> net::ConnectionLimits {
        net::ConnectionLimits {
            connections_max: self.limits.connections.get(),
            connection_age_max: self.limits.connection_age.0,
            http2_codec: self.http2.codec,
            ..net::ConnectionLimits::default()
        }
    }

    /// Returns the log settings. `RUST_LOG` takes precedence over `log.level`.
    pub(super) fn log(&self, problems: &mut ConfigProblems) -> LogSettings {
        let level = problems.check("log.level", log_level::filter(&self.log.level));
        let from_env = log_level::from_env().and_then(|filter| problems.check("RUST_LOG", filter));
        let is_from_env = from_env.is_some();
        let level = from_env.or(level).unwrap_or_default();
        LogSettings { level, json: self.log.format == LogFormat::Json, is_from_env }
    }
}

fn bytes<const MIN: usize, const MAX: usize>(mebibytes: BoundedNumber<MIN, MAX>) -> usize {
    mebibytes.get() << 20
}

impl TlsSection {
    /// Returns the source of the certificate that the section named `key` configures.
    pub(super) fn source(self, key: &str, problems: &mut ConfigProblems) -> Option<TlsCertificateSource> {
        match (self.certificate, self.key, self.self_signed) {
            (Some(certificate), Some(key), false) => Some(TlsCertificateSource::Files { certificate, key }),
            (None, None, true) => Some(TlsCertificateSource::SelfSigned { out: self.self_signed_out }),
            (None, None, false) => None,
            _ => {
                problems.add(format!("{key}: set either certificate and key, or selfSigned"));
                None
            }
        }
    }
}

impl From<MetricsTlsSection> for TlsSection {
    fn from(section: MetricsTlsSection) -> Self {
        let MetricsTlsSection { certificate, key, self_signed } = section;
        Self { certificate, key, self_signed, self_signed_out: None }
    }
}

impl Default for auth::AuthConfig {
    /// Returns the settings of the file of defaults.
    fn default() -> Self {
        DelegatedAuthKeys::from(DelegatedSection::default()).auth
    }
}

impl From<DelegatedSection> for DelegatedAuthKeys {
    fn from(section: DelegatedSection) -> Self {
        Self {
            client_ca: section.client_ca,
            front_proxy_ca: section.front_proxy_ca,
            front_proxy_names: section.front_proxy_names,
            impersonator: section.impersonator,
            auth: auth::AuthConfig {
                identify: section.identify,
                audiences: section.audiences,
                token_ttl: section.token_ttl.0,
                allowed_ttl: section.allowed_ttl.0,
                denied_ttl: section.denied_ttl.0,
                recheck: section.recheck.0,
                recheck_rbac: section.recheck_rbac.0,
                recheck_nodes: section.recheck_nodes.0,
                recheck_tokens: section.recheck_tokens.0,
                outage_grace: section.outage_grace.0,
                anonymous: section.anonymous,
                decide: section.decide,
                compare_one_in: section.compare_one_in.small(),
                accesses_per_user: section.accesses_per_second_per_user.small(),
                accesses_burst_per_user: section.accesses_burst_per_user.small(),
                accesses: section.accesses_per_second.small(),
                reviews: section.reviews_per_second.small(),
                reviews_per_source: section.reviews_per_second_per_source.small(),
                reviews_burst_per_source: section.reviews_burst_per_source.small(),
                lease_reviews: section.lease_reviews_per_second.small(),
                namespaces: section.namespaces_per_second.small(),
                namespaces_per_user: section.namespaces_per_second_per_user.small(),
            },
        }
    }
}

/// The keys under `delegated`: how callers are authenticated, and with which identity their requests are forwarded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DelegatedAuthKeys {
    /// The file of CA certificates that verify client certificates, in PEM.
    pub client_ca: Option<PathBuf>,
    /// The file of CA certificates that verify trusted front proxies, in PEM.
    pub front_proxy_ca: Option<PathBuf>,
    /// The accepted common names of front proxies; any if empty.
    pub front_proxy_names: Vec<String>,
    /// The kubeconfig of an identity that may only impersonate.
    pub impersonator: Option<PathBuf>,
    pub auth: auth::AuthConfig,
}

impl DelegatedAuthKeys {
    /// Reports unreadable files, and a CA that is trusted for both clients and front proxies
    /// (docs/SECURITY.md, "Deployment modes").
    pub(super) fn check(&self, problems: &mut ConfigProblems) {
        let checker = CaOverlapChecker::default();
        let mut read = |what: &str, role, path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let what = format!("{what}: {}", path.display());
            let pem = problems.check(&what, std::fs::read(path))?;
            let authorities = problems.check(&what, CertificateAuthorities::from_pem(&pem))?;
            problems.check(&what, checker.set_authorities(role, &authorities))
        };
        read("delegated.clientCA", CertificateAuthorityRole::Client, &self.client_ca);
        read("delegated.frontProxyCA", CertificateAuthorityRole::FrontProxy, &self.front_proxy_ca);
        if !self.front_proxy_names.is_empty() && self.front_proxy_ca.is_none() {
            problems.add("delegated.frontProxyNames: requires delegated.frontProxyCA");
        }
    }
}
