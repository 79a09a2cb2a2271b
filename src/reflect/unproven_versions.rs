//! The upstream positions that a prover has received and not proven yet.
//!
//! Each feed requests its own position. An apiserver responds with the revision of its whole storage, but resources may
//! live in different ones (`--etcd-servers-overrides`), and the revision of another storage proves nothing.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::feeds::FeedFreshness;
use kubeapi::ResourceVersion;

use super::gap::ObservedResourceVersion;

/// Positions that are not proven yet, in request order. Their versions never decrease.
///
/// All of them are kept, not only the last one. Under steady demand the cache reaches the older ones, while the last
/// one advances with the cluster's revision.
#[derive(Debug, Default)]
pub(super) struct UnprovenVersions(VecDeque<ObservedResourceVersion>);

impl UnprovenVersions {
    const MAX: usize = 256;

    pub(super) fn extend(&mut self, new: ObservedResourceVersion) {
        match self.0.back_mut() {
            // A later request got a lower version, so the previous version holds for it too.
            Some(last) if new.at <= last.at => last.requested_at = new.requested_at,
            _ => self.0.push_back(new),
        }
    }

    pub(super) fn last(&self) -> Option<ObservedResourceVersion> {
        self.0.back().copied()
    }

    /// Whether no further position is requested until the cache has reached the first one. If a later position replaced
    /// an earlier one, its waiters would chase an ever higher version.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= Self::MAX
    }

    /// Removes the positions that the cache has reached and those that no reader waits for. Returns the instant that
    /// the reached ones prove.
    pub(super) fn settle(&mut self, reached: ResourceVersion, is_awaited: bool, now: Instant) -> Option<Instant> {
        let mut proven = None;
        while let Some(first) = self.0.front() {
            if first.at <= reached {
                proven = Some(first.requested_at);
            } else if is_awaited && now.duration_since(first.requested_at) < FeedFreshness::WAIT_MAX {
                break;
            }
            self.0.pop_front();
        }
        proven
    }

    pub(super) fn proven(&mut self, requested_at: Instant) {
        self.0.retain(|position| position.requested_at > requested_at);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn position(requested_at: Instant, at: u64) -> ObservedResourceVersion {
        ObservedResourceVersion { requested_at, at: ResourceVersion(at) }
    }

    /// Kubernetes issue 139766: a reader waits for the version of its own request, however many requests follow.
    #[test]
    fn later_checks_do_not_delay_earlier_waiting_readers() {
        let (mut positions, start) = (UnprovenVersions::default(), Instant::now());
        for n in 0..10_u32 {
            positions.extend(position(start + n * SECOND, 10 + u64::from(n)));
        }
        assert_eq!(positions.settle(ResourceVersion(9), true, start + 20 * SECOND), None, "a cache that lags");
        assert_eq!(positions.settle(ResourceVersion(12), true, start + 20 * SECOND), Some(start + 2 * SECOND));
        assert_eq!(positions.last().map(|last| last.at), Some(ResourceVersion(19)));
    }

    #[test]
    fn position_checks_pause_while_the_pending_queue_is_full() {
        let (mut positions, start) = (UnprovenVersions::default(), Instant::now());
        (0..UnprovenVersions::MAX as u64).for_each(|n| positions.extend(position(start, n + 1)));
        assert!(positions.is_full());
        assert_eq!(positions.settle(ResourceVersion(1), true, start), Some(start));
        assert!(!positions.is_full());
    }

    #[test]
    fn positions_without_waiting_readers_are_dropped() {
        let (mut positions, start) = (UnprovenVersions::default(), Instant::now());
        positions.extend(position(start, 10));
        assert_eq!(positions.settle(ResourceVersion(9), true, start + FeedFreshness::WAIT_MAX), None);
        assert!(positions.last().is_none(), "no reader waits for so long");
        positions.extend(position(start, 10));
        assert_eq!(positions.settle(ResourceVersion(9), false, start), None);
        assert!(positions.last().is_none(), "they have all gone");
    }
}
