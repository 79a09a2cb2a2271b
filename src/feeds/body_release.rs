use std::sync::Arc;

use parking_lot::Mutex;

use crate::upstream::Build;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// Whether the bodies that a feed holds are as the server that it follows writes them.
///
/// An apiserver of another release writes other bytes of the same objects at the same versions: it has other fields,
/// other defaults, another order. Events are what they were when they happened. A state is of the present, so no state
/// is shown whose bodies another server wrote, or may have written (F10). Cloning shares.
#[derive(Debug, Clone)]
pub struct BodyRelease {
    is_present: watch::Sender<bool>,
    /// How many readers wait.
    waiting: watch::Sender<usize>,
    writers: Arc<Mutex<Writers>>,
}

/// The builds that have written what a feed tells, for proxies that take it over.
#[derive(Debug, Default)]
struct Writers {
    /// The last that was known.
    now: Option<Arc<Build>>,
    /// Whether it still is.
    is_known: bool,
    before: Option<Arc<Build>>,
    /// The version from which on everything is as `now` writes it. What was told of before may be by `before`.
    since: ResourceVersion,
    changes: u32,
}

/// Who has written what somebody is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// `None` if that is not known.
    pub by: Option<Arc<Build>>,
    /// How many times it had been another one before.
    pub changes: u32,
}

/// Counts a reader that waits, for as long as it waits.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Default for BodyRelease {
    fn default() -> Self {
        Self { is_present: watch::Sender::new(true), waiting: watch::Sender::new(0), writers: Arc::default() }
    }
}

impl BodyRelease {
    /// Whether a state may be shown.
    pub fn is_present(&self) -> bool {
        *self.is_present.borrow()
    }

    /// Completes when a state may be shown, and asks for that. It may never complete: the caller has a deadline.
    pub async fn present(&self) {
        if self.is_present() {
            return;
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(&self.waiting);
        self.becomes_present().await;
    }

    /// Completes when a state may be shown, without asking for it.
    pub async fn becomes_present(&self) {
        // The sender lives as long as this does.
        let _ = self.is_present.subscribe().wait_for(|is_present| *is_present).await;
    }

    /// Completes when somebody waits.
    pub async fn wanted(&self) {
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }

    /// Who writes what the feed tells now.
    pub fn written(&self) -> Written {
        self.writers.lock().now()
    }

    /// Who has written what the feed tells from this version on; of some of it perhaps somebody else.
    pub fn written_from(&self, rv: ResourceVersion) -> Written {
        let writers = self.writers.lock();
        match writers.changes.checked_sub(1) {
            Some(changes) if rv < writers.since => Written { by: writers.before.clone(), changes },
            _ => writers.now(),
        }
    }

    /// How many times another build has come to write what the feed tells.
    pub fn changes(&self) -> u32 {
        self.writers.lock().changes
    }

    /// Says which build writes what the feed tells from a version on, as far as it is known. Returns whether it was
    /// another one. Only the task that fills the feed calls this.
    pub fn set_written(&self, by: Option<Arc<Build>>, since: ResourceVersion) -> bool {
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

    /// Says whether a state may be shown. Only the task that fills the feed calls this.
    pub fn set_present(&self, is_present: bool) {
        self.is_present.send_if_modified(|before| std::mem::replace(before, is_present) != is_present);
    }
}

impl Writers {
    fn now(&self) -> Written {
        Written { by: self.now.clone().filter(|_| self.is_known), changes: self.changes }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_waits_asks_and_who_goes_asks_no_longer() {
        let vintage = BodyRelease::default();
        assert!(vintage.present().now_or_never().is_some(), "a feed begins with what its server wrote");
        vintage.set_present(false);
        assert!(vintage.becomes_present().now_or_never().is_none());
        assert!(vintage.wanted().now_or_never().is_none(), "nobody needs it");
        let mut waits = Box::pin(vintage.present());
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(vintage.wanted().now_or_never().is_some());
        drop(waits);
        assert!(vintage.wanted().now_or_never().is_none());
        vintage.set_present(true);
        assert!(vintage.present().now_or_never().is_some());
    }

    #[test]
    fn what_was_told_before_another_build_came_is_by_the_one_before() {
        let build = |minor: u32| Build::of(&format!(r#"{{"major": "1", "minor": "{minor}"}}"#)).map(Arc::new);
        let (vintage, rv) = (BodyRelease::default(), ResourceVersion);
        let said = |at: u64| (vintage.written_from(rv(at)).by.map(|build| build.minor), vintage.changes());
        assert_eq!(said(5), (None, 0));
        assert!(!vintage.set_written(build(36), rv(5)), "nobody has taken it for another");
        assert_eq!((said(1), said(9)), ((Some(36), 0), (Some(36), 0)));
        assert!(!vintage.set_written(None, rv(7)) && vintage.written().by.is_none(), "it is not known who is there");
        assert!(!vintage.set_written(build(36), rv(8)));
        assert!(vintage.set_written(build(37), rv(9)));
        assert_eq!((said(8), said(9)), ((Some(36), 1), (Some(37), 1)));
        assert_eq!((vintage.written_from(rv(8)).changes, vintage.written().changes), (0, 1));
    }
}
