use std::sync::Arc;

use parking_lot::Mutex;

use crate::upstream::ServerBuild;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// States whether the bodies that a feed holds match those of the server that it follows.
///
/// An apiserver of another release writes other bytes of the same objects at the same versions: fields, defaults and
/// their order differ. Events keep the bytes of their time. A state must match the current server, so the proxy serves
/// no state whose bodies another server wrote or may have written (F10).
#[derive(Debug, Default)]
pub struct ServerReleaseMatch {
    /// Whether another server wrote bodies of the feed, or may have.
    is_stale: watch::Sender<bool>,
    /// The number of readers that wait until the feed's bodies may be served.
    waiting: watch::Sender<usize>,
    writers: Mutex<FeedServerBuilds>,
}

/// The server builds that encoded the feed's content, for downstream proxies that continue from the feed.
#[derive(Debug, Default)]
struct FeedServerBuilds {
    /// The last known build of the server that encodes the feed's bodies.
    now: Option<Arc<ServerBuild>>,
    /// Whether the known build is still current.
    is_known: bool,
    before: Option<Arc<ServerBuild>>,
    /// The version from which on all content is encoded by `now`. Earlier content may be by `before`.
    since: ResourceVersion,
    changes: u32,
}

/// The server build that encoded the content sent to a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodingServerBuild {
    /// The build that encoded the bodies; `None` if it is unknown.
    pub build: Option<Arc<ServerBuild>>,
    /// The number of build changes before this content.
    pub changes: u32,
}

/// Counts a reader as waiting until it is dropped.
struct ServerReleaseWaiterGuard<'a>(&'a watch::Sender<usize>);

impl Drop for ServerReleaseWaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl ServerReleaseMatch {
    /// Returns whether a state may be served.
    pub fn is_current(&self) -> bool {
        !*self.is_stale.borrow()
    }

    /// Completes when a state of the feed may be served, and requests the check of its encoding if needed. It may never
    /// complete, so callers need a deadline.
    pub async fn wait_current_requested(&self) {
        if self.is_current() {
            return;
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waiting = ServerReleaseWaiterGuard(&self.waiting);
        self.wait_current().await;
    }

    /// Completes when a state of the feed may be served, without requesting the check of its encoding.
    pub async fn wait_current(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_stale.subscribe().wait_for(|is_stale| !*is_stale).await;
    }

    /// Completes when a reader waits for a state of the feed.
    pub async fn state_requested(&self) {
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }

    /// Returns the build that encodes the feed's current content.
    pub fn current_build(&self) -> EncodingServerBuild {
        self.writers.lock().now()
    }

    /// Returns the build that encoded the feed's content from version `rv` on. Later parts may be by another build.
    pub fn build_since(&self, rv: ResourceVersion) -> EncodingServerBuild {
        let writers = self.writers.lock();
        match writers.changes.checked_sub(1) {
            Some(changes) if rv < writers.since => EncodingServerBuild { build: writers.before.clone(), changes },
            _ => writers.now(),
        }
    }

    /// Returns how many times the build of the feed's content has changed.
    pub fn changes(&self) -> u32 {
        self.writers.lock().changes
    }

    /// Returns the number of changes before the states that are taken from now on. If it differs from
    /// [`changes`](Self::changes) later, another build may have encoded such a state.
    pub fn changes_before_states(&self) -> u32 {
        let changes = self.changes();
        if self.is_current() { changes } else { changes.saturating_sub(1) }
    }

    /// Sets the build that writes the feed's content from a version on, if it is known. Returns whether it replaces
    /// another known build. Only the task that fills the feed calls this.
    pub fn set_written(&self, by: Option<Arc<ServerBuild>>, since: ResourceVersion) -> bool {
        let mut writers = self.writers.lock();
        writers.is_known = by.is_some();
        let Some(build) = by.filter(|build| writers.now.as_ref() != Some(build)) else { return false };
        let before = writers.now.replace(build);
        if before.is_none() {
            return false;
        }
        (writers.before, writers.since) = (before, since);
        writers.changes += 1;
        true
    }

    /// Sets whether a state may be served. Only the task that fills the feed calls this.
    pub fn set_present(&self, is_present: bool) {
        self.is_stale.send_if_modified(|is_stale| std::mem::replace(is_stale, !is_present) == is_present);
    }
}

impl FeedServerBuilds {
    fn now(&self) -> EncodingServerBuild {
        EncodingServerBuild { build: self.now.clone().filter(|_| self.is_known), changes: self.changes }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn waiter_requests_a_build_check_until_dropped() {
        let body_release = ServerReleaseMatch::default();
        assert!(
            body_release.wait_current_requested().now_or_never().is_some(),
            "a feed begins with what its server wrote"
        );
        body_release.set_present(false);
        assert!(body_release.wait_current().now_or_never().is_none());
        assert!(body_release.state_requested().now_or_never().is_none(), "no reader waits");
        let mut waits = Box::pin(body_release.wait_current_requested());
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(body_release.state_requested().now_or_never().is_some());
        drop(waits);
        assert!(body_release.state_requested().now_or_never().is_none());
        body_release.set_present(true);
        assert!(body_release.wait_current_requested().now_or_never().is_some());
    }

    #[test]
    fn body_is_attributed_to_the_build_serving_its_version() {
        let build = |minor: u32| ServerBuild::of(&format!(r#"{{"major": "1", "minor": "{minor}"}}"#)).map(Arc::new);
        let (body_release, rv) = (ServerReleaseMatch::default(), ResourceVersion);
        let said = |at: u64| (body_release.build_since(rv(at)).build.map(|build| build.minor), body_release.changes());
        assert_eq!(said(5), (None, 0));
        assert!(!body_release.set_written(build(36), rv(5)), "the first build replaces none");
        assert_eq!((said(1), said(9)), ((Some(36), 0), (Some(36), 0)));
        assert!(
            !body_release.set_written(None, rv(7)) && body_release.current_build().build.is_none(),
            "the build is unknown"
        );
        assert!(!body_release.set_written(build(36), rv(8)));
        assert!(body_release.set_written(build(37), rv(9)));
        assert_eq!((said(8), said(9)), ((Some(36), 1), (Some(37), 1)));
        assert_eq!((body_release.build_since(rv(8)).changes, body_release.current_build().changes), (0, 1));
    }
}
