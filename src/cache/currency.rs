use tokio::sync::watch;
use tokio::time::Instant;

use crate::kube::ResourceVersion;

/// Since when a feed is known to be current, and since when somebody needs it to be.
///
/// The rule that makes one upstream question serve many (design.md §4, reliability.md L5): a proof whose question was
/// *sent* at `t` covers every request *received* at or before `t`, and no other.
#[derive(Debug, Clone)]
pub struct Currency {
    /// The feed contains every write that was complete at this instant.
    as_of: watch::Sender<Option<Instant>>,
    /// The latest instant that a waiting reader needs covered.
    wanted: watch::Sender<Option<Instant>>,
    /// The latest version that a waiting reader needs reached: it has seen it elsewhere.
    wanted_version: watch::Sender<ResourceVersion>,
}

impl Default for Currency {
    fn default() -> Self {
        Self {
            as_of: watch::Sender::new(None),
            wanted: watch::Sender::new(None),
            wanted_version: watch::Sender::default(),
        }
    }
}

impl Currency {
    pub fn covers(&self, received: Instant) -> bool {
        self.as_of.borrow().is_some_and(|as_of| as_of >= received)
    }

    /// Completes when the feed is proven to contain every write complete at `received`; asks for the proof if needed.
    ///
    /// May never complete: the caller brings the deadline.
    pub async fn reached(&self, received: Instant) {
        if self.covers(received) {
            return;
        }
        let mut as_of = self.as_of.subscribe();
        raise(&self.wanted, received);
        if as_of.wait_for(|as_of| as_of.is_some_and(|as_of| as_of >= received)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Somebody waits for the feed to reach `rv`.
    pub fn want_version(&self, rv: ResourceVersion) {
        self.wanted_version.send_if_modified(|wanted| {
            let raises = *wanted < rv;
            *wanted = rv.max(*wanted);
            raises
        });
    }

    /// Nobody can reach `rv`: forget that somebody waits for it, unless a later one is waited for by now.
    pub fn give_up_version(&self, rv: ResourceVersion) {
        self.wanted_version.send_if_modified(|wanted| {
            let forgotten = *wanted == rv;
            if forgotten {
                *wanted = ResourceVersion::default();
            }
            forgotten
        });
    }

    /// The version that readers wait for.
    pub fn wanted_version(&self) -> watch::Receiver<ResourceVersion> {
        self.wanted_version.subscribe()
    }

    /// The feed was current at `asked`, the instant before the proving question was sent.
    pub fn prove(&self, asked: Instant) {
        raise(&self.as_of, asked);
    }

    /// Forgets every proof: the feed starts over.
    pub fn forget(&self) {
        self.as_of.send_replace(None);
    }

    /// What readers wait for.
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
