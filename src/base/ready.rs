use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// Readiness is the absence of guards: ready when nobody holds a [`NotReady`].
#[derive(Clone, Debug, Default)]
pub struct Ready {
    waiting: Arc<Mutex<BTreeSet<String>>>,
}

/// Something that is not ready yet; dropping it says that it is.
#[derive(Debug)]
pub struct NotReady {
    what: String,
    waiting: Arc<Mutex<BTreeSet<String>>>,
}

impl Ready {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers something that is not ready until the guard is dropped.
    #[must_use]
    pub fn register(&self, what: impl Into<String>) -> NotReady {
        let what = what.into();
        self.waiting.lock().insert(what.clone());
        NotReady { what, waiting: self.waiting.clone() }
    }

    /// The names of what is still waited for, in order; empty when ready.
    pub fn pending(&self) -> Vec<String> {
        self.waiting.lock().iter().cloned().collect()
    }
}

impl Drop for NotReady {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        waiting.remove(&self.what);
        tracing::debug!(what = %self.what, still = ?waiting, "no longer waited for");
    }
}
