use std::time::Duration;

use tokio::time::Instant;

use base::BackoffBounds;

/// The retry policy for a document that the proxy's identity may not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentRefusalBackoff {
    /// The delays from a refusal to the next request.
    pub waits: BackoffBounds,
    /// The number of refusals in a row after which the document is not requested again until the proxy's permissions
    /// may have changed.
    pub times_max: u32,
}

/// The consecutive refusals of one document.
#[derive(Debug, Default)]
pub(super) struct DocumentRefusalStreak {
    /// The number of refusals in a row.
    times: u32,
    last: Option<(Instant, Duration)>,
}

impl DocumentRefusalBackoff {
    /// Returns the policy for a proxy on every node. It tries twice, because an apiserver that has just started denies
    /// requests until its caches are filled.
    pub fn on_node(waits: BackoffBounds) -> Self {
        Self { waits, times_max: 2 }
    }

    /// Returns the policy for one of a few proxies.
    pub fn central(waits: BackoffBounds) -> Self {
        Self { waits, times_max: u32::MAX }
    }
}

impl DocumentRefusalStreak {
    pub(super) fn accepted(&mut self) {
        *self = Self::default();
    }

    pub(super) fn refused(&mut self, now: Instant, policy: DocumentRefusalBackoff) {
        self.times = self.times.saturating_add(1);
        self.last = Some((now, policy.waits.after(self.times)));
    }

    /// Resets the backoff to that of one refusal: the next request comes no sooner than the first wait after the last
    /// refusal.
    pub(super) fn permissions_changed(&mut self, policy: DocumentRefusalBackoff) {
        self.times = 0;
        self.last = self.last.map(|(at, _)| (at, policy.waits.first));
    }

    /// Whether the document must not be requested now.
    pub(super) fn is_backing_off(&self, now: Instant, policy: DocumentRefusalBackoff) -> bool {
        self.last.is_some() && self.next_retry(policy).is_none_or(|next_retry| now < next_retry)
    }

    /// The time of the next request; `None` if the document was not refused, or is not requested again.
    pub(super) fn next_retry(&self, policy: DocumentRefusalBackoff) -> Option<Instant> {
        self.last.map(|(at, wait)| at + wait).filter(|_| self.times < policy.times_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: BackoffBounds = BackoffBounds { first: Duration::from_secs(30), longest: Duration::from_secs(3600) };

    /// The times of the requests within a day, in seconds, if each one is refused.
    fn requested(policy: DocumentRefusalBackoff, changed: &[u64]) -> Vec<u64> {
        let (start, mut refused, mut requested) = (Instant::now(), DocumentRefusalStreak::default(), Vec::new());
        let mut changed = changed.iter().copied().peekable();
        for second in 0..24 * 3600 {
            let now = start + Duration::from_secs(second);
            if changed.next_if_eq(&second).is_some() {
                refused.permissions_changed(policy);
            }
            if !refused.is_backing_off(now, policy) {
                refused.refused(now, policy);
                requested.push(second);
            }
        }
        requested
    }

    #[test]
    fn node_proxy_retries_twice_then_only_after_permission_change() {
        let policy = DocumentRefusalBackoff::on_node(WAITS);
        assert_eq!(requested(policy, &[]), [0, 30]);
        assert_eq!(requested(policy, &[40, 41, 50_000]), [0, 30, 60, 90, 50_000, 50_030]);
    }

    #[test]
    fn central_proxy_backs_off_to_hourly_retries() {
        let policy = DocumentRefusalBackoff::central(WAITS);
        let requests = requested(policy, &[]);
        assert!((29..=37).contains(&requests.len()), "{requests:?}");
        assert!(requests.windows(2).skip(8).all(|pair| (2880..=3601).contains(&(pair[1] - pair[0]))), "{requests:?}");
        let storm: Vec<u64> = (1000..2000).collect();
        let in_storm = requested(policy, &storm).into_iter().filter(|at| (1000..2000).contains(at)).count();
        assert!(in_storm <= 35, "permission changes cause no storm of requests: {in_storm}");
    }
}
