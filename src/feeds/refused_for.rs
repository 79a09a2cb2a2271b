//! Retry delays of a resource that did not fit into the memory limit or could not be read.

use std::time::Duration;

/// The delay after the first refusal of a feed.
const REFUSED_FIRST: Duration = Duration::from_secs(30);

/// The longest delay after a refusal: a resource that does not fit or cannot be decoded is tried once an hour.
pub(super) const REFUSED_MAX: Duration = Duration::from_secs(60 * 60);

/// Returns the delay after `times` consecutive refusals.
pub(super) fn refused_for(times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(16);
    REFUSED_FIRST.saturating_mul(1 << doublings).min(REFUSED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_budget_feed_retries_with_capped_exponential_backoff() {
        let waits: Vec<_> = (1..=9).map(|times| refused_for(times).as_secs()).collect();
        assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(refused_for(u32::MAX), REFUSED_MAX);
    }
}
