use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::wanted_versions::WantedVersions;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// Since when a feed is known to be current, and since when somebody needs it to be.
///
/// One rule makes one upstream question serve many (L5): a proof whose question was *sent* at `t` covers every request
/// *received* at or before `t`, and no other.
#[derive(Debug, Clone)]
pub struct Freshness {
    /// The feed holds every write that was complete at this instant.
    as_of: watch::Sender<Option<Instant>>,
    /// The latest instant that a waiting reader needs covered.
    wanted: watch::Sender<Option<Instant>>,
    wanted_versions: watch::Sender<WantedVersions>,
    /// How many readers wait for a proof.
    waiting: Arc<AtomicUsize>,
}

/// Counts a reader that waits for a proof, for as long as it waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
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
    /// The longest that anybody waits for a proof. It is as long as the longest back-off of a feed that has lost its
    /// stream, and half of the time that load balancers in front of us leave a connection silent.
    pub const WAIT_MAX: Duration = Duration::from_secs(30);

    /// Whether somebody waits for a proof.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The instant as of which the feed is proven to contain everything.
    pub fn proven(&self) -> Option<Instant> {
        *self.as_of.borrow()
    }

    pub fn covers(&self, received: Instant) -> bool {
        self.as_of.borrow().is_some_and(|as_of| as_of >= received)
    }

    /// Completes when the feed is proven to hold every write that was complete at `received`. Asks for the proof if
    /// needed.
    ///
    /// It may never complete: the caller has a deadline.
    pub async fn reached(&self, received: Instant) {
        if self.covers(received) {
            return;
        }
        let mut as_of = self.as_of.subscribe();
        let is_first = self.waiting.fetch_add(1, Ordering::Relaxed) == 0;
        let _waiting = Waiting(&self.waiting);
        // Nothing is asked while nobody waits. So a reader wakes the prover even if one that came later has gone.
        self.wanted.send_if_modified(|wanted| {
            let raises = *wanted < Some(received);
            *wanted = (*wanted).max(Some(received));
            raises || is_first
        });
        if as_of.wait_for(|as_of| as_of.is_some_and(|as_of| as_of >= received)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Registers a reader that waits until upstream's stream reaches `rv`.
    pub fn want_version(&self, rv: ResourceVersion) {
        self.wanted_versions.send_if_modified(|wanted| wanted.want(rv, true, Instant::now()));
    }

    /// Registers a reader that waits for a state at `rv` or later.
    pub fn want_state(&self, rv: ResourceVersion) {
        self.wanted_versions.send_if_modified(|wanted| wanted.want(rv, false, Instant::now()));
    }

    /// Forgets versions that the stream (`told`) or the served state (`shown`) has reached, and versions without a
    /// waiting reader.
    pub fn settle_versions(&self, told: ResourceVersion, shown: ResourceVersion) {
        self.change_versions(|wanted| wanted.settle(told, shown, Instant::now()));
    }

    /// Whether a reader waits for upstream's stream, and not only for a state.
    pub fn awaits_stream(&self) -> bool {
        self.wanted_versions.borrow().follows()
    }

    /// Forgets a version that upstream did not have when it was asked, and all later ones that were wanted then.
    pub fn give_up_version(&self, rv: ResourceVersion, asked: Instant) {
        self.change_versions(|wanted| wanted.give_up(rv, asked));
    }

    /// Whether the feed should catch up now with upstream, which has come to a version. Then it does. What upstream is
    /// not known to have is tried one time, if at all.
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

    /// The least version that somebody waits for above another one.
    pub fn next_version(&self, above: ResourceVersion) -> Option<ResourceVersion> {
        self.wanted_versions.borrow().least_above(above)
    }

    /// The versions that readers wait for. Whoever watches hears of those that are new.
    pub fn watch_versions(&self) -> watch::Receiver<WantedVersions> {
        self.wanted_versions.subscribe()
    }

    /// Changes what is wanted, which is no news to those who go after it.
    fn change_versions(&self, change: impl FnOnce(&mut WantedVersions)) {
        self.wanted_versions.send_if_modified(|wanted| {
            change(wanted);
            false
        });
    }

    /// Notes that the feed was current at `asked`, the instant before the proving question was sent.
    pub fn prove(&self, asked: Instant) {
        raise(&self.as_of, asked);
    }

    /// Forgets every proof, because the feed starts over.
    pub fn forget(&self) {
        self.as_of.send_replace(None);
    }

    /// The instant that readers wait for.
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
    async fn whoever_waits_is_heard_although_somebody_who_came_later_has_gone() {
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
