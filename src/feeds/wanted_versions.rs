//! Versions that readers wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use kubeapi::ResourceVersion;

/// Versions that readers have seen elsewhere and wait for. The smallest one is requested from upstream first, so that a
/// version that never arrives does not block others. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct WantedVersions(watch::Sender<BTreeMap<ResourceVersion, WantedVersion>>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedVersion {
    /// The time of the last request for the version.
    since: Instant,
    /// Whether the feed has tried to catch up with upstream for the version.
    is_tried: bool,
    /// Whether upstream's watch must reach the version. Otherwise a state at that version is sufficient.
    follows: bool,
}

impl WantedVersions {
    /// The longest wait for a version; the apiserver uses the same bound.
    pub const WAIT_MAX: Duration = Duration::from_secs(3);
    /// The maximum number of versions that readers wait for. Above it, a new greatest version replaces the previous
    /// greatest; any other version evicts the greatest.
    const MAX: usize = 1_024;

    /// Registers a reader that waits for a version: for the watch if `follows` is set, else for a state. Returns
    /// whether the version, or the need for the watch, is new; only then are subscribers notified.
    pub fn want(&self, rv: ResourceVersion, follows: bool, now: Instant) -> bool {
        self.0.send_if_modified(|wanted| {
            if let Some(wanted) = wanted.get_mut(&rv) {
                wanted.since = now;
                return follows && !std::mem::replace(&mut wanted.follows, true);
            }
            wanted.insert(rv, WantedVersion { since: now, is_tried: false, follows });
            if wanted.len() > Self::MAX {
                let before_last = wanted.keys().nth_back(1).copied();
                let last = wanted.last_key_value().map(|(last, _)| *last);
                let left_out = if last == Some(rv) { before_last } else { last };
                left_out.map(|left_out| wanted.remove(&left_out));
            }
            true
        })
    }

    /// Subscribes to new versions.
    pub(crate) fn subscribe(&self) -> watch::Receiver<BTreeMap<ResourceVersion, WantedVersion>> {
        self.0.subscribe()
    }

    /// Forgets versions that the watch (`told`) or the served state (`shown`) has reached, and versions that no reader
    /// waits for.
    pub fn settle(&self, reported: ResourceVersion, shown: ResourceVersion, now: Instant) {
        let reached = |want: &WantedVersion| if want.follows { reported } else { reported.max(shown) };
        self.retain(|rv, want| rv > reached(want) && now.duration_since(want.since) < Self::WAIT_MAX);
    }

    /// Returns whether any reader waits for upstream's watch, and not only for a state.
    pub fn follows(&self) -> bool {
        self.0.borrow().values().any(|want| want.follows)
    }

    /// Returns the smallest version that a reader waits for and that is above another one.
    pub fn least_above(&self, rv: ResourceVersion) -> Option<ResourceVersion> {
        let above = (std::ops::Bound::Excluded(rv), std::ops::Bound::Unbounded);
        self.0.borrow().range(above).next().map(|(rv, _)| *rv)
    }

    /// Returns whether the feed should catch up now with upstream, which is known to have reached a version. If so, all
    /// wanted versions count as tried. A client that has seen a later version may be right, so with `at_once` each such
    /// version is tried once.
    pub fn begins_to_catch_up(&self, upstream: ResourceVersion, at_once: bool) -> bool {
        let mut begins = false;
        self.0.send_if_modified(|wanted| {
            begins = wanted.iter().any(|(rv, want)| *rv <= upstream || at_once && !want.is_tried);
            if begins {
                wanted.values_mut().for_each(|want| want.is_tried = true);
            }
            false
        });
        begins
    }

    /// Forgets a version that upstream does not have, and all later versions that readers waited for when the request
    /// was sent at `asked`.
    pub fn give_up(&self, rv: ResourceVersion, asked: Instant) {
        self.retain(|wanted, want| wanted < rv || want.since > asked);
    }

    /// Forgets other versions, without notifying subscribers.
    fn retain(&self, keeps: impl Fn(ResourceVersion, &WantedVersion) -> bool) {
        self.0.send_if_modified(|wanted| {
            wanted.retain(|rv, want| keeps(*rv, want));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::fixture::rv;

    const SECOND: Duration = Duration::from_secs(1);

    fn wanted(versions: impl IntoIterator<Item = u64>, now: Instant) -> WantedVersions {
        let wanted = WantedVersions::default();
        versions.into_iter().for_each(|version| assert!(wanted.want(rv(version), true, now), "{version}"));
        wanted
    }

    fn all(wanted: &WantedVersions) -> Vec<u64> {
        wanted.0.borrow().keys().map(|rv| rv.0).collect()
    }

    #[test]
    fn reached_and_timed_out_versions_are_removed() {
        let start = Instant::now();
        let wanted = wanted([5, 7, 9], start);
        assert!(!wanted.want(rv(9), true, start + 2 * SECOND), "somebody waits for it already");
        wanted.settle(rv(5), rv(5), start);
        assert_eq!(all(&wanted), [7, 9]);
        wanted.settle(rv(5), rv(5), start + WantedVersions::WAIT_MAX);
        assert_eq!(all(&wanted), [9], "it was asked for again");
    }

    #[test]
    fn non_streaming_reader_needs_only_the_state_at_its_version() {
        let start = Instant::now();
        let wanted = wanted([7], start);
        assert!(wanted.want(rv(8), false, start) && wanted.follows());
        wanted.settle(rv(5), rv(9), start);
        assert_eq!(all(&wanted), [7], "who follows waits on");
        wanted.settle(rv(7), rv(9), start);
        assert!(wanted.want(rv(10), false, start) && !wanted.follows());
        assert!(wanted.want(rv(10), true, start) && wanted.follows(), "that is news");
        assert!(!wanted.want(rv(10), false, start) && wanted.follows());
    }

    #[test]
    fn future_version_does_not_hide_smaller_wanted_versions() {
        let start = Instant::now();
        let wanted = wanted([1_000, 7, 9], start);
        assert_eq!(wanted.least_above(rv(5)), Some(rv(7)));
        assert_eq!(wanted.least_above(rv(7)), Some(rv(9)));
        assert_eq!(wanted.least_above(rv(1_000)), None);
        wanted.want(rv(2_000), true, start + SECOND);
        wanted.give_up(rv(9), start);
        assert_eq!(all(&wanted), [7, 2_000], "who came later may have seen what has come since");
    }

    #[test]
    fn catch_up_repeats_only_for_versions_upstream_has() {
        let start = Instant::now();
        let wanted = wanted([7, 9], start);
        assert!(!wanted.begins_to_catch_up(rv(0), false) && wanted.begins_to_catch_up(rv(0), true));
        assert!(!wanted.begins_to_catch_up(rv(6), true));
        assert!(wanted.begins_to_catch_up(rv(7), true) && wanted.begins_to_catch_up(rv(7), false));
        wanted.want(rv(9), true, start);
        assert!(!wanted.begins_to_catch_up(rv(6), true), "it was tried for that one");
        wanted.want(rv(8), true, start);
        assert!(wanted.begins_to_catch_up(rv(6), true));
        assert!(!WantedVersions::default().begins_to_catch_up(rv(9), true));
    }

    #[test]
    fn wanted_versions_are_capped_and_keep_the_smallest() {
        let (start, max) = (Instant::now(), WantedVersions::MAX as u64);
        let wanted = wanted(100..100 + max, start);
        wanted.want(rv(1), true, start);
        assert_eq!(wanted.0.borrow().len() as u64, max);
        assert_eq!(
            wanted.0.borrow().last_key_value().map(|(last, _)| last.0),
            Some(98 + max),
            "the greatest is left out"
        );
        wanted.want(rv(1 << 40), true, start);
        assert_eq!(wanted.0.borrow().len() as u64, max);
        assert_eq!(wanted.least_above(rv(97 + max)), Some(rv(1 << 40)), "and stands for a greater one");
    }
}
