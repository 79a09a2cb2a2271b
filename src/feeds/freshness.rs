use std::time::Duration;

use tokio::time::Instant;

use super::awaited_versions::AwaitedVersions;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

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
        let is_first = !self.is_awaited();
        let mut as_of = self.as_of.subscribe();
        // Proofs are requested only while a reader waits. So the first reader wakes the prover even if an earlier
        // reader, which has left, needed a later instant.
        self.needed.send_if_modified(|needed| {
            let raises = *needed < Some(received);
            *needed = (*needed).max(Some(received));
            raises || is_first
        });
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

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
}
