use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::wanted_versions::WantedVersions;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// The time as of which a feed is proven to be current, and the time that readers need.
///
/// One upstream request serves many readers by one rule (L5). A proof whose request was *sent* at `t` covers every
/// client request *received* at or before `t`, and no other.
#[derive(Debug, Clone)]
pub struct Freshness {
    /// The instant up to which the feed is proven to contain every complete write.
    as_of: watch::Sender<Option<Instant>>,
    /// The latest instant up to which a waiting reader needs a proof.
    wanted: watch::Sender<Option<Instant>>,
    wanted_versions: watch::Sender<WantedVersions>,
    /// The number of readers that wait for a proof.
    waiting: Arc<AtomicUsize>,
}

/// Counts a reader that waits for a proof until it is dropped.
struct WaiterGuard<'a>(&'a AtomicUsize);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            as_of: watch::Sender::new(None),
            wanted: watch::Sender::new(None),
            wanted_versions: watch::Sender::default(),
            waiting: Arc::default(),
        }
    }
}

impl Freshness {
    /// The longest wait for a proof. It equals the longest backoff of a feed that has lost its watch. It is half of the
    /// usual idle timeout of load balancers in front of the proxy.
    pub const WAIT_MAX: Duration = Duration::from_secs(30);

    /// Returns whether a reader waits for a proof.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the instant as of which the feed is proven to be complete.
    pub fn proven(&self) -> Option<Instant> {
        *self.as_of.borrow()
    }

    pub fn covers(&self, received: Instant) -> bool {
        self.as_of.borrow().is_some_and(|as_of| as_of >= received)
    }

    /// Completes when the feed is proven to contain every write that was complete at `received`. It requests the proof
    /// if needed.
    ///
    /// It may never complete, so callers need a deadline.
    pub async fn reached(&self, received: Instant) {
        if self.covers(received) {
            return;
        }
        let mut as_of = self.as_of.subscribe();
        let is_first = self.waiting.fetch_add(1, Ordering::Relaxed) == 0;
        let _waiting = WaiterGuard(&self.waiting);
        // Proofs are requested only while a reader waits. So the first reader wakes the prover even if an earlier
        // reader, which has left, wanted a later instant.
        self.wanted.send_if_modified(|wanted| {
            let raises = *wanted < Some(received);
            *wanted = (*wanted).max(Some(received));
            raises || is_first
        });
        if as_of.wait_for(|as_of| as_of.is_some_and(|as_of| as_of >= received)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Registers a reader that waits until upstream's watch reaches `rv`.
    pub fn want_version(&self, rv: ResourceVersion) {
        self.wanted_versions.send_if_modified(|wanted| wanted.want(rv, true, Instant::now()));
    }

    /// Registers a reader that waits for a state at `rv` or later.
    pub fn want_state(&self, rv: ResourceVersion) {
        self.wanted_versions.send_if_modified(|wanted| wanted.want(rv, false, Instant::now()));
    }

    /// Forgets versions that the watch (`told`) or the served state (`shown`) has reached, and versions that no reader
    /// waits for.
    pub fn settle_versions(&self, told: ResourceVersion, shown: ResourceVersion) {
        self.change_versions(|wanted| wanted.settle(told, shown, Instant::now()));
    }

    /// Returns whether a reader waits for upstream's watch, and not only for a state.
    pub fn awaits_stream(&self) -> bool {
        self.wanted_versions.borrow().follows()
    }

    /// Forgets a version that upstream did not have at `asked`, and all later versions that readers already waited for
    /// then.
    pub fn give_up_version(&self, rv: ResourceVersion, asked: Instant) {
        self.change_versions(|wanted| wanted.give_up(rv, asked));
    }

    /// Returns whether the feed should catch up now with upstream, which has reached a version. If so, all awaited
    /// versions count as tried. With `at_once`, versions beyond upstream's are tried once as well.
    pub fn begins_to_catch_up(&self, upstream: ResourceVersion, at_once: bool) -> bool {
        let mut begins = false;
        self.change_versions(|wanted| {
            begins = wanted.is_behind(upstream, at_once);
            if begins {
                wanted.try_all();
            }
        });
        begins
    }

    /// Returns the smallest version that a reader waits for and that is above another one.
    pub fn next_version(&self, above: ResourceVersion) -> Option<ResourceVersion> {
        self.wanted_versions.borrow().least_above(above)
    }

    /// Subscribes to the versions that readers wait for. Subscribers are notified of new ones.
    pub fn watch_versions(&self) -> watch::Receiver<WantedVersions> {
        self.wanted_versions.subscribe()
    }

    /// Changes the versions that readers wait for, without notifying subscribers.
    fn change_versions(&self, change: impl FnOnce(&mut WantedVersions)) {
        self.wanted_versions.send_if_modified(|wanted| {
            change(wanted);
            false
        });
    }

    /// Records that the feed was current at `asked`, the instant before the proving request was sent.
    pub fn prove(&self, asked: Instant) {
        raise(&self.as_of, asked);
    }

    /// Forgets every proof, because the feed restarts.
    pub fn forget(&self) {
        self.as_of.send_replace(None);
    }

    /// Subscribes to the latest instant up to which readers need a proof.
    pub fn wanted(&self) -> watch::Receiver<Option<Instant>> {
        self.wanted.subscribe()
    }
}

fn raise(cell: &watch::Sender<Option<Instant>>, to: Instant) {
    cell.send_if_modified(|current| {
        let raises = current.is_none_or(|current| current < to);
        if raises {
            *current = Some(to);
        }
        raises
    });
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn dropping_a_later_waiter_keeps_the_earlier_one_registered() {
        let (freshness, first) = (Freshness::default(), Instant::now());
        let mut wanted = freshness.wanted();
        let later = first + Duration::from_secs(1);
        assert!(freshness.reached(later).now_or_never().is_none());
        assert!(!freshness.is_awaited(), "it has gone");
        wanted.borrow_and_update();
        let mut waits = pin!(freshness.reached(first));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(freshness.is_awaited() && wanted.has_changed().expect("it is there"));
        freshness.prove(first);
        waits.await;
        assert!(!freshness.is_awaited());
    }
}
