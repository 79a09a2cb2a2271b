use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::section::Section;
use super::{DelegatedKeys, Log, Problems, TlsSource};
use crate::{cache, net, reflect, serve};

/// The configuration file, section by section. Every key is listed in docs/CONFIG.md and in config/example.yaml.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) listen: Vec<String>,
    pub(super) admin: Option<String>,
    pub(super) tls: Option<TlsSource>,
    pub(super) auth: Option<String>,
    pub(super) delegated: DelegatedKeys,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) consistency: Option<String>,
    pub(super) preload: Vec<String>,
    pub(super) node: Option<String>,
    pub(super) sensitive: Vec<String>,
    pub(super) serve: serve::ServeConfig,
    pub(super) cache: cache::CacheConfig,
    /// What feeds and LISTs may hold, where it is said.
    pub(super) memory_mebibytes: Option<usize>,
    pub(super) list_mebibytes: Option<usize>,
    pub(super) reflect: reflect::ReflectConfig,
    pub(super) connections: net::ConnectionLimits,
    pub(super) drain: Duration,
    pub(super) reuse_port: bool,
    pub(super) log: Log,
    pub(super) audit: Option<String>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            listen: Vec::new(),
            admin: None,
            tls: None,
            auth: None,
            delegated: DelegatedKeys::default(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            consistency: None,
            preload: Vec::new(),
            node: None,
            sensitive: Vec::new(),
            serve: serve::ServeConfig::default(),
            cache: cache::CacheConfig::default(),
            memory_mebibytes: None,
            list_mebibytes: None,
            reflect: reflect::ReflectConfig::default(),
            connections: net::ConnectionLimits::default(),
            drain: Duration::from_secs(20),
            reuse_port: false,
            log: Log::default(),
            audit: None,
        }
    }
}

impl File {
    /// Reads as much as can be read; what cannot is a problem.
    pub(super) fn read(path: &Path, problems: &mut Problems) -> Self {
        let Some(text) = problems.check(&path.display().to_string(), std::fs::read_to_string(path)) else {
            return Self::default();
        };
        Self::parse(&text, problems)
    }

    pub(super) fn parse(text: &str, problems: &mut Problems) -> Self {
        let mut file = Self::default();
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return file;
        }
        let Some(value) = problems.check("configuration file", serde_saphyr::from_str::<Value>(text)) else {
            return file;
        };
        let Some(mut top) = Section::of("", value, problems) else { return file };
        top.put("listen", &mut file.listen);
        top.put_some("admin", &mut file.admin);
        top.put_some("auth", &mut file.auth);
        top.put("allowedHosts", &mut file.allowed_hosts);
        top.put("allowedOrigins", &mut file.allowed_origins);
        top.put("execOnLoopback", &mut file.serve.exec_on_loopback);
        top.put_some("consistency", &mut file.consistency);
        top.put("preload", &mut file.preload);
        top.put_some("node", &mut file.node);
        top.put_duration("drain", &mut file.drain);
        top.put("reusePort", &mut file.reuse_port);
        top.within("upstream", |upstream| upstream.put_some("kubeconfig", &mut file.kubeconfig));
        top.within("tls", |tls| file.tls = tls.tls());
        top.within("delegated", |delegated| file.delegated.read(delegated));
        top.within("window", |window| {
            let mut mebibytes = file.cache.window_bytes_max >> 20;
            window.put_bounded("mebibytes", &mut mebibytes, 1, 1 << 20);
            file.cache.window_bytes_max = mebibytes << 20;
            window.put_bounded("events", &mut file.cache.window_events_max, 1, 10_000_000);
            window.put_duration("age", &mut file.cache.window_age_max);
        });
        top.within("feeds", |feeds| {
            feeds.put("resources", &mut file.serve.coverage.resources);
            feeds.put("sensitive", &mut file.sensitive);
            let mut mebibytes = 0;
            feeds.put_bounded("memoryMebibytes", &mut mebibytes, 1, 1 << 24);
            file.memory_mebibytes = (mebibytes > 0).then_some(mebibytes);
            feeds.put_duration("idle", &mut file.reflect.idle_max);
            feeds.put_duration("syncWait", &mut file.serve.sync_wait_max);
            feeds.put_bounded("heldSnapshots", &mut file.cache.held_snapshots_max, 1, 100_000);
            feeds.put_duration("heldSnapshotAge", &mut file.cache.held_snapshot_age_max);
        });
        top.within("limits", |limits| {
            limits.put_bounded("watches", &mut file.serve.limits.watches_max, 1, 10_000_000);
            limits.put_bounded("watchesPerCaller", &mut file.serve.limits.watches_per_caller_max, 1, 10_000_000);
            let mut mebibytes = 0;
            limits.put_bounded("listMebibytes", &mut mebibytes, 1, 1 << 20);
            file.list_mebibytes = (mebibytes > 0).then_some(mebibytes);
            limits.put_bounded("forwardsPerCaller", &mut file.serve.limits.forwards_per_caller_max, 1, 1_000_000);
            limits.put_bounded("streamsPerCaller", &mut file.serve.limits.streams_per_caller_max, 1, 1_000_000);
            limits.put_bounded("forwards", &mut file.serve.limits.forwards_max, 1, 1_000_000);
            limits.put_bounded("streams", &mut file.serve.limits.streams_max, 1, 1_000_000);
            limits.put_bounded("unreadyForwards", &mut file.serve.limits.unready_forwards_max, 0, 1_000_000);
            limits.put_bounded("anonymousForwards", &mut file.serve.limits.anonymous_forwards_max, 0, 1_000_000);
            limits.put_bounded("connections", &mut file.connections.connections_max, 1, 1_000_000);
            limits.put_duration("connectionAge", &mut file.connections.connection_age_max);
        });
        top.within("log", |log| {
            log.put("level", &mut file.log.level);
            let mut format = "text".to_owned();
            log.put("format", &mut format);
            match format.as_str() {
                "text" => file.log.json = false,
                "json" => file.log.json = true,
                other => log.problems.add(format!("log.format: {other:?} is neither \"text\" nor \"json\"")),
            }
        });
        top.within("audit", |audit| audit.put_some("path", &mut file.audit));
        top.finish();
        file
    }
}
