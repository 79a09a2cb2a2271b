use std::time::Duration;

use super::concurrency::ConcurrencyConfig;
use super::coverage::Coverage;
use super::slow_readers::Unread;
use crate::feeds::WantedVersions;

/// How requests are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeConfig {
    pub consistency: Consistency,
    pub coverage: Coverage,
    /// Whether requests that reach into pods, services and nodes are passed on from a TCP socket where everybody who
    /// reaches it is the proxy itself.
    pub exec_on_loopback: bool,
    /// How long a request waits for a feed that is being filled.
    pub sync_wait_max: Duration,
    /// How long a read waits for a proof that it is current, or for the version that it names: as long as the
    /// apiserver waits (R-VERSION-3). It is not configurable for operators.
    pub fresh_wait_max: Duration,
    /// How long a LIST, an answer that passes through and is no stream, and a request's body may take: the apiserver's
    /// `--request-timeout`.
    pub body_max: Duration,
    /// How long a watch lasts whose client does not say it: so long to twice as long, as with the apiserver's
    /// `--min-request-timeout`.
    pub watch_min: Duration,
    pub limits: ConcurrencyConfig,
    pub unread: Unread,
    /// How long upstream's discovery and authorizers may lag behind a change that we have seen: what they said until
    /// then serves no other proxy later.
    pub lag_max: Duration,
}

/// What a read without a resourceVersion may be answered from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// From a state that is proven to contain every write that was complete when the request came.
    #[default]
    Strict,
    /// From a live feed: milliseconds old as a rule, without proof.
    Bounded,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            consistency: Consistency::Strict,
            coverage: Coverage::default(),
            exec_on_loopback: false,
            sync_wait_max: Duration::from_secs(10),
            fresh_wait_max: WantedVersions::WAIT_MAX,
            body_max: Duration::from_secs(60),
            watch_min: Duration::from_secs(30 * 60),
            limits: ConcurrencyConfig::default(),
            unread: Unread::default(),
            lag_max: Duration::from_secs(5),
        }
    }
}
