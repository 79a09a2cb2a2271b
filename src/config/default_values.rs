//! The defaults of the configuration file: those of the modules that the keys configure, and those of the process.

use std::time::Duration;

use super::LogSettings;
use super::configuration::{
    AuditConfigSection, Configuration, DelegatedSection, FeedsSection, Http2Section, LimitsSection, LogFormat,
    LogSection, MetricsSection, MetricsTlsSection, ReadsSection, TlsSection, UpstreamSection, WindowSection,
};
use super::fields::{BoundedDuration, BoundedNumber};
use crate::auth::AuthMode;
use crate::serve::ReadConsistency;
use crate::{auth, cache, net, reflect, serve};

pub(super) const DEFAULT_LISTEN: &str = "127.0.0.1:8001";
const DEFAULT_ADMIN: &str = "127.0.0.1:9090";
const DEFAULT_DRAIN: Duration = Duration::from_secs(20);
/// The default of `readyStaleMax`. It is longer than an upgrade or a restore of an apiserver takes. Until then, a proxy
/// that serves from memory is more useful than none, and all proxies would become unready together.
const DEFAULT_READY_STALE_MAX: Duration = Duration::from_secs(600);

impl Default for Configuration {
    fn default() -> Self {
        Self {
            api_version: None,
            kind: None,
            upstream: UpstreamSection::default(),
            listen: vec![DEFAULT_LISTEN.to_owned()],
            admin: DEFAULT_ADMIN.to_owned(),
            healthz_bind_address: "off".to_owned(),
            metrics_bind_address: "off".to_owned(),
            tls: TlsSection::default(),
            auth: AuthMode::None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            exec_on_loopback: serve::ServeConfig::default().exec_on_loopback,
            consistency: ReadConsistency::Strict,
            reads: ReadsSection::default(),
            preload: Vec::new(),
            ready_stale_max: BoundedDuration(DEFAULT_READY_STALE_MAX),
            node: None,
            drain: BoundedDuration(DEFAULT_DRAIN),
            reuse_port: false,
            delegated: DelegatedSection::default(),
            metrics: MetricsSection::default(),
            window: WindowSection::default(),
            feeds: FeedsSection::default(),
            limits: LimitsSection::default(),
            http2: Http2Section::default(),
            audit: AuditConfigSection::default(),
            log: LogSection::default(),
        }
    }
}

impl Default for DelegatedSection {
    fn default() -> Self {
        let auth = auth::AuthConfig::default();
        let number = |number: u32| BoundedNumber::new(number as usize);
        Self {
            client_ca: None,
            impersonator: None,
            front_proxy_ca: None,
            front_proxy_names: Vec::new(),
            audiences: auth.audiences,
            identify: auth.identify,
            anonymous: auth.anonymous,
            decide: auth.decide,
            compare_one_in: BoundedNumber::new(auth.compare_one_in as usize),
            token_ttl: BoundedDuration(auth.token_ttl),
            allowed_ttl: BoundedDuration(auth.allowed_ttl),
            denied_ttl: BoundedDuration(auth.denied_ttl),
            recheck: BoundedDuration(auth.recheck),
            recheck_rbac: BoundedDuration(auth.recheck_rbac),
            recheck_nodes: BoundedDuration(auth.recheck_nodes),
            recheck_tokens: BoundedDuration(auth.recheck_tokens),
            outage_grace: BoundedDuration(auth.outage_grace),
            accesses_per_second_per_user: number(auth.accesses_per_user),
            accesses_burst_per_user: number(auth.accesses_burst_per_user),
            accesses_per_second: number(auth.accesses),
            reviews_per_second: number(auth.reviews),
            reviews_per_second_per_source: number(auth.reviews_per_source),
            reviews_burst_per_source: number(auth.reviews_burst_per_source),
            lease_reviews_per_second: number(auth.lease_reviews),
            namespaces_per_second: number(auth.namespaces),
            namespaces_per_second_per_user: number(auth.namespaces_per_user),
        }
    }
}

impl Default for MetricsSection {
    fn default() -> Self {
        Self { auth: AuthMode::None, tls: MetricsTlsSection::default() }
    }
}

impl Default for WindowSection {
    fn default() -> Self {
        let cache = cache::CacheConfig::default();
        Self {
            mebibytes: BoundedNumber::new(cache.window_bytes_max >> 20),
            events: BoundedNumber::new(cache.window_events_max),
            age: BoundedDuration(cache.window_age_max),
        }
    }
}

impl Default for FeedsSection {
    fn default() -> Self {
        let (cache, reflect) = (cache::CacheConfig::default(), reflect::ReflectConfig::default());
        Self {
            resources: Vec::new(),
            sensitive: Vec::new(),
            memory_mebibytes: None,
            idle: BoundedDuration(reflect.idle_max),
            self_check: BoundedDuration(reflect.self_check.unwrap_or_default()),
            sync_wait: BoundedDuration(serve::ServeConfig::default().sync_wait_max),
            held_snapshots: BoundedNumber::new(cache.held_snapshots_max),
            held_snapshot_age: BoundedDuration(cache.held_snapshot_age_max),
        }
    }
}

impl Default for LimitsSection {
    fn default() -> Self {
        let (connections, limits) = (net::ConnectionLimits::default(), serve::ConcurrencyConfig::default());
        Self {
            connections: BoundedNumber::new(connections.connections_max),
            connection_age: BoundedDuration(connections.connection_age_max),
            min_request_timeout: BoundedDuration(serve::ServeConfig::default().watch_min),
            watches: BoundedNumber::new(limits.watches_max),
            watches_per_caller: BoundedNumber::new(limits.watches_per_caller_max),
            list_mebibytes: None,
            forwards: BoundedNumber::new(limits.forwards_max),
            forwards_per_caller: BoundedNumber::new(limits.forwards_per_caller_max),
            streams: BoundedNumber::new(limits.streams_max),
            streams_per_caller: BoundedNumber::new(limits.streams_per_caller_max),
            unready_forwards: BoundedNumber::new(limits.unready_forwards_max),
            anonymous_forwards: BoundedNumber::new(limits.anonymous_forwards_max),
        }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self { level: LogSettings::default().level, format: LogFormat::Text }
    }
}
