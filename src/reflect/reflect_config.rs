use std::time::Duration;

use base::Waits;

/// When feeds are stopped, and how soon a broken one is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReflectConfig {
    /// How long nobody may read a feed before it is stopped.
    pub idle_max: Duration,
    /// The waits between attempts at upstream.
    pub retry: Waits,
    /// How often a feed that is read and changes is compared with upstream; `None` for never.
    pub self_check: Option<Duration>,
}

impl Default for ReflectConfig {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { idle_max: 10 * minute, retry: Waits::default(), self_check: Some(30 * minute) }
    }
}
