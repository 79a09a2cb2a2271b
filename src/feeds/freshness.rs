//! The instants and versions that readers of a feed wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use kubeapi::ResourceVersion;

/// The time as of which a feed is proven to be current, and the time that readers need.
///
/// One upstream request serves many readers by one rule (L5). A proof whose request was *sent* at `t` covers every
/// client request *received* at or before `t`, and no other.
#[derive(Debug, Clone, Default)]
pub struct FeedFreshness {
    /// The instant up to which the feed is proven to contain every complete write. Each receiver is a waiting reader.
    as_of: watch::Sender<Option<Instant>>,
    /// The latest instant up to which a waiting reader needs a proof.
    needed: watch::Sender<Option<Instant>>,
    /// The versions that readers wait for.
    pub versions: AwaitedVersions,
}

impl FeedFreshness {
    /// The longest wait for a proof. It equals the longest backoff of a feed that has lost its watch. It is half of the
    /// usual idle timeout of load balancers in front of the proxy.
    pub const WAIT_MAX: Duration = Duration::from_secs(30);

    /// Returns whether a reader waits for a proof.
    pub fn is_awaited(&self) -> bool {
        self.as_of.receiver_count() > 0
    }

    /// Returns the instant as of which the feed is proven to be complete.
    pub fn proven(&self) -> Option<Instant> {
        *self.as_of.borrow()
    }

    pub fn covers(&self, received: Instant) -> bool {
        *self.as_of.borrow() >= Some(received)
    }

    /// Completes when the feed is proven to contain every write that was complete at `received`. It requests the proof
    /// if needed.
    ///
    /// It may never complete, so callers need a deadline.
    pub async fn wait_proven(&self, received: Instant) {
        if self.covers(received) {
            return;
        }
        let mut as_of = None;
        // Proofs are requested only while a reader waits. So the first reader wakes the prover even if an earlier
        // reader, which has left, needed a later instant. The lock makes one of two new readers the first.
        self.needed.send_if_modified(|needed| {
            let is_first = !self.is_awaited();
            as_of = Some(self.as_of.subscribe());
            let raises = *needed < Some(received);
            *needed = (*needed).max(Some(received));
            raises || is_first
        });
        let Some(mut as_of) = as_of else { return };
        // The sender lives as long as `self`.
        let _ = as_of.wait_for(|as_of| *as_of >= Some(received)).await;
    }

    /// Registers a reader that waits until upstream's watch reaches `rv`.
    pub fn await_watch_version(&self, rv: ResourceVersion) {
        self.versions.want(rv, true, Instant::now());
    }

    /// Registers a reader that waits for a state at `rv` or later.
    pub fn await_state_version(&self, rv: ResourceVersion) {
        self.versions.want(rv, false, Instant::now());
    }

    /// Records that the feed was current at `requested_at`, the instant before the proving request was sent.
    pub fn prove(&self, requested_at: Instant) {
        self.as_of.send_if_modified(|as_of| {
            let raises = *as_of < Some(requested_at);
            *as_of = (*as_of).max(Some(requested_at));
            raises
        });
    }

    /// Forgets every proof, because the feed restarts.
    pub fn clear(&self) {
        self.as_of.send_replace(None);
    }

    /// Subscribes to the latest instant up to which readers need a proof.
    pub fn subscribe(&self) -> watch::Receiver<Option<Instant>> {
        self.needed.subscribe()
    }
}

/// Versions that readers have seen elsewhere and wait for. The smallest one is requested from upstream first, so that a
/// version that never arrives does not block others. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AwaitedVersions {
    awaited: watch::Sender<BTreeMap<ResourceVersion, AwaitedVersion>>,
    /// The last version that upstream did not have, and the time before it was asked.
    unavailable: watch::Sender<Option<(ResourceVersion, Instant)>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AwaitedVersion {
    /// The time of the last request for the version.
    since: Instant,
    /// Whether the feed has tried to catch up with upstream for the version.
    is_tried: bool,
    /// Whether upstream's watch must reach the version. Otherwise a state at that version is sufficient.
    follows: bool,
}

impl AwaitedVersions {
    /// The longest wait for a version; the apiserver uses the same bound.
    pub const WAIT_MAX: Duration = Duration::from_secs(3);
    /// The maximum number of versions that readers wait for. Above it, a new greatest version replaces the previous
    /// greatest; any other version evicts the greatest.
    const MAX: usize = 1_024;

    /// Registers a reader that waits for a version: for the watch if `follows` is set, else for a state. Returns
    /// whether the version, or the need for the watch, is new; only then are subscribers notified.
    pub fn want(&self, rv: ResourceVersion, follows: bool, now: Instant) -> bool {
        self.awaited.send_if_modified(|awaited| {
            if let Some(awaited) = awaited.get_mut(&rv) {
                awaited.since = now;
                return follows && !std::mem::replace(&mut awaited.follows, true);
            }
            awaited.insert(rv, AwaitedVersion { since: now, is_tried: false, follows });
            if awaited.len() > Self::MAX {
                let before_last = awaited.keys().nth_back(1).copied();
                let last = awaited.last_key_value().map(|(last, _)| *last);
                let left_out = if last == Some(rv) { before_last } else { last };
                left_out.map(|left_out| awaited.remove(&left_out));
            }
            true
        })
    }

    /// Subscribes to new versions.
    pub(crate) fn subscribe(&self) -> watch::Receiver<BTreeMap<ResourceVersion, AwaitedVersion>> {
        self.awaited.subscribe()
    }

    /// Forgets versions that the watch (`reported`) or the served state (`served`) has reached, and versions that no
    /// reader waits for.
    pub fn remove_reached(&self, reported: ResourceVersion, served: ResourceVersion, now: Instant) {
        let reached = |want: &AwaitedVersion| if want.follows { reported } else { reported.max(served) };
        self.retain(|rv, want| rv > reached(want) && now.duration_since(want.since) < Self::WAIT_MAX);
    }

    /// Returns whether any reader waits for upstream's watch, and not only for a state.
    pub fn follows(&self) -> bool {
        self.awaited.borrow().values().any(|want| want.follows)
    }

    /// Returns the smallest version that a reader waits for and that is above another one.
    pub fn smallest_above(&self, rv: ResourceVersion) -> Option<ResourceVersion> {
        let above = (std::ops::Bound::Excluded(rv), std::ops::Bound::Unbounded);
        self.awaited.borrow().range(above).next().map(|(rv, _)| *rv)
    }

    /// Returns whether the feed should catch up now with upstream, which is known to have reached a version. If so, all
    /// awaited versions count as tried. A client that has seen a later version may be right, so with `at_once` each
    /// such version is tried once.
    pub fn start_catch_up(&self, upstream: ResourceVersion, at_once: bool) -> bool {
        let mut begins = false;
        self.awaited.send_if_modified(|awaited| {
            begins = awaited.iter().any(|(rv, want)| *rv <= upstream || at_once && !want.is_tried);
            if begins {
                awaited.values_mut().for_each(|want| want.is_tried = true);
            }
            false
        });
        begins
    }

    /// Forgets a version that upstream does not have, and all later versions that readers waited for when the request
    /// was sent at `requested_at`.
    pub fn remove_unavailable(&self, rv: ResourceVersion, requested_at: Instant) {
        self.retain(|awaited, want| awaited < rv || want.since > requested_at);
        self.unavailable.send_replace(Some((rv, requested_at)));
    }

    /// Completes when upstream answers that it does not have a version. It answers after [`Self::WAIT_MAX`], so a reader
    /// may share a request from before its own was `received`, but two in a row never get the same answer.
    pub async fn wait_unavailable(&self, rv: ResourceVersion, received: Instant) {
        let is_evidence =
            |(least, asked): (ResourceVersion, Instant)| least <= rv && asked + Self::WAIT_MAX >= received;
        let mut unavailable = self.unavailable.subscribe();
        // The sender lives as long as `self`.
        let _ = unavailable.wait_for(|last| last.is_some_and(is_evidence)).await;
    }

    /// Forgets other versions, without notifying subscribers.
    fn retain(&self, keeps: impl Fn(ResourceVersion, &AwaitedVersion) -> bool) {
        self.awaited.send_if_modified(|awaited| {
            awaited.retain(|rv, want| keeps(*rv, want));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::cache::tests::fixture::rv;

    #[tokio::test]
    async fn dropping_a_later_waiter_keeps_the_earlier_one_registered() {
        let (freshness, first) = (FeedFreshness::default(), Instant::now());
        let mut needed = freshness.subscribe();
        let later = first + Duration::from_secs(1);
        assert!(freshness.wait_proven(later).now_or_never().is_none());
        assert!(!freshness.is_awaited(), "it has gone");
        needed.borrow_and_update();
        let mut waits = pin!(freshness.wait_proven(first));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(freshness.is_awaited() && needed.has_changed().expect("it is there"));
        freshness.prove(first);
        waits.await;
        assert!(!freshness.is_awaited());
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn awaited(versions: impl IntoIterator<Item = u64>, now: Instant) -> AwaitedVersions {
        let awaited = AwaitedVersions::default();
        versions.into_iter().for_each(|version| assert!(awaited.want(rv(version), true, now), "{version}"));
        awaited
    }

    fn all(awaited: &AwaitedVersions) -> Vec<u64> {
        awaited.awaited.borrow().keys().map(|rv| rv.0).collect()
    }

    #[test]
    fn reached_and_timed_out_versions_are_removed() {
        let start = Instant::now();
        let awaited = awaited([5, 7, 9], start);
        assert!(!awaited.want(rv(9), true, start + 2 * SECOND), "a reader waits for it already");
        awaited.remove_reached(rv(5), rv(5), start);
        assert_eq!(all(&awaited), [7, 9]);
        awaited.remove_reached(rv(5), rv(5), start + AwaitedVersions::WAIT_MAX);
        assert_eq!(all(&awaited), [9], "it was requested again");
    }

    #[test]
    fn non_streaming_reader_needs_only_the_state_at_its_version() {
        let start = Instant::now();
        let awaited = awaited([7], start);
        assert!(awaited.want(rv(8), false, start) && awaited.follows());
        awaited.remove_reached(rv(5), rv(9), start);
        assert_eq!(all(&awaited), [7], "a streaming reader still waits");
        awaited.remove_reached(rv(7), rv(9), start);
        assert!(awaited.want(rv(10), false, start) && !awaited.follows());
        assert!(awaited.want(rv(10), true, start) && awaited.follows(), "that is news");
        assert!(!awaited.want(rv(10), false, start) && awaited.follows());
    }

    #[test]
    fn future_version_does_not_hide_smaller_awaited_versions() {
        let start = Instant::now();
        let awaited = awaited([1_000, 7, 9], start);
        assert_eq!(awaited.smallest_above(rv(5)), Some(rv(7)));
        assert_eq!(awaited.smallest_above(rv(7)), Some(rv(9)));
        assert_eq!(awaited.smallest_above(rv(1_000)), None);
        awaited.want(rv(2_000), true, start + SECOND);
        awaited.remove_unavailable(rv(9), start);
        assert_eq!(all(&awaited), [7, 2_000], "later readers may have seen later versions");
    }

    #[test]
    fn catch_up_repeats_only_for_versions_upstream_has() {
        let start = Instant::now();
        let awaited = awaited([7, 9], start);
        assert!(!awaited.start_catch_up(rv(0), false) && awaited.start_catch_up(rv(0), true));
        assert!(!awaited.start_catch_up(rv(6), true));
        assert!(awaited.start_catch_up(rv(7), true) && awaited.start_catch_up(rv(7), false));
        awaited.want(rv(9), true, start);
        assert!(!awaited.start_catch_up(rv(6), true), "it was tried for that one");
        awaited.want(rv(8), true, start);
        assert!(awaited.start_catch_up(rv(6), true));
        assert!(!AwaitedVersions::default().start_catch_up(rv(9), true));
    }

    #[test]
    fn awaited_versions_are_capped_and_keep_the_smallest() {
        let (start, max) = (Instant::now(), AwaitedVersions::MAX as u64);
        let awaited = awaited(100..100 + max, start);
        awaited.want(rv(1), true, start);
        assert_eq!(awaited.awaited.borrow().len() as u64, max);
        assert_eq!(
            awaited.awaited.borrow().last_key_value().map(|(last, _)| last.0),
            Some(98 + max),
            "the greatest is left out"
        );
        awaited.want(rv(1 << 40), true, start);
        assert_eq!(awaited.awaited.borrow().len() as u64, max);
        assert_eq!(awaited.smallest_above(rv(97 + max)), Some(rv(1 << 40)), "and stands for a greater one");
    }
}
