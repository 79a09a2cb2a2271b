use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::auth::{Caller, NamedCallers};
use crate::feeds::AwaitedVersions;
use crate::net::ListenAddress;
use crate::serve::limits::{ConcurrencyConfig, SlowReaderLimits};
use crate::serve::route::CacheCoverage;

/// The settings for answering requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeConfig {
    pub consistency: ReadConsistency,
    pub coverage: CacheCoverage,
    /// The callers whose forbidden reads across namespaces are filtered.
    pub filter: NamedCallers,
    pub reduced: ReducedReads,
    pub compress_watches: WatchCompression,
    /// Whether exec, attach, portforward and proxy requests are forwarded from a TCP socket without authentication,
    /// where every caller acts as the proxy itself.
    pub exec_on_loopback: bool,
    /// The maximum time that a request waits for a feed to sync.
    pub sync_wait_max: Duration,
    /// The maximum time that a read waits for a freshness proof or for the version that it names. It equals the
    /// apiserver's wait (R-VERSION-3), and operators cannot change it.
    pub fresh_wait_max: Duration,
    /// The time limit for a LIST, a forwarded response that is not a stream, and a request's body. It corresponds to
    /// the apiserver's `--request-timeout`.
    pub body_max: Duration,
    /// The minimum duration of a watch without a client timeout. The duration is random, up to twice this value, as
    /// with the apiserver's `--min-request-timeout`.
    pub watch_min: Duration,
    pub limits: ConcurrencyConfig,
    pub unread: SlowReaderLimits,
    /// The time for which upstream's discovery and authorizers may lag behind an observed change. Discovery documents
    /// and reviews for other proxies that were requested within this time are not reused.
    pub lag_max: Duration,
}

/// The required freshness of a read without a resourceVersion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadConsistency {
    /// The state is proven to contain every write that was complete when the request was received.
    #[default]
    Strict,
    /// The state of a live feed, without a proof. It is normally milliseconds old.
    Bounded,
}

/// The clients whose reads leave out `metadata.managedFields`. This is no access control: a client can send any user
/// agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReducedReads {
    pub callers: NamedCallers,
    /// The prefixes of their user agents.
    pub user_agents: Vec<String>,
}

impl ReducedReads {
    pub(crate) fn includes(&self, caller: &Caller, on_their_listener: bool, user_agent: Option<&str>) -> bool {
        on_their_listener
            || self.callers.names(caller)
            || user_agent.is_some_and(|agent| self.user_agents.iter().any(|prefix| agent.starts_with(&**prefix)))
    }
}

/// The roles that the configuration gives to a listener.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListenerRoles {
    /// Reads on it are filtered.
    pub(crate) is_filtered: bool,
    /// Reads on it leave fields out.
    pub(crate) is_reduced: bool,
}

impl ServeConfig {
    pub(crate) fn roles(&self, listener: &ListenAddress) -> ListenerRoles {
        ListenerRoles {
            is_filtered: self.filter.listeners.contains(listener),
            is_reduced: self.reduced.callers.listeners.contains(listener),
        }
    }
}

/// The watches that are compressed for clients that accept gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchCompression {
    /// Those that upstream compresses: watch-lists, from Kubernetes 1.37 on.
    #[default]
    WatchLists,
    /// All watches over HTTP, for every release.
    All,
    Never,
}

/// The first minor release of Kubernetes that compresses watch-lists (`WatchListCompression`).
const COMPRESSING_RELEASE: u32 = 37;

impl WatchCompression {
    /// Returns whether a watch from upstream's minor `release` is compressed.
    pub(crate) fn applies_to(self, is_watch_list: bool, release: Option<u32>) -> bool {
        match self {
            Self::WatchLists => is_watch_list && release.is_some_and(|release| release >= COMPRESSING_RELEASE),
            Self::All => true,
            Self::Never => false,
        }
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            consistency: ReadConsistency::Strict,
            coverage: CacheCoverage::default(),
            filter: NamedCallers::default(),
            reduced: ReducedReads::default(),
            compress_watches: WatchCompression::default(),
            exec_on_loopback: false,
            sync_wait_max: Duration::from_secs(10),
            fresh_wait_max: AwaitedVersions::WAIT_MAX,
            body_max: Duration::from_secs(60),
            watch_min: Duration::from_secs(30 * 60),
            limits: ConcurrencyConfig::default(),
            unread: SlowReaderLimits::default(),
            lag_max: Duration::from_secs(5),
        }
    }
}
