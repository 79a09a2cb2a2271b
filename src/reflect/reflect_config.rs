use std::time::Duration;

use base::BackoffBounds;

/// Limits and intervals of the reflectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReflectConfig {
    /// The time without readers after which a feed is stopped.
    pub idle_max: Duration,
    /// The delays between attempts to reach upstream.
    pub retry: BackoffBounds,
    /// The interval at which a changing feed with readers is compared with upstream; `None` disables the comparison.
    pub self_check: Option<Duration>,
}

impl Default for ReflectConfig {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { idle_max: 10 * minute, retry: BackoffBounds::default(), self_check: Some(30 * minute) }
    }
}
