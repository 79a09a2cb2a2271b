use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Readiness is the absence of guards: ready when nobody holds a [`NotReady`].
#[derive(Clone, Debug, Default)]
pub struct Ready {
    waiting: Waiting,
}

/// How many guards there are of each name.
type Waiting = Arc<Mutex<BTreeMap<String, usize>>>;

/// Something that is not ready yet; dropping it says that it is.
#[derive(Debug)]
pub struct NotReady {
    what: String,
    waiting: Waiting,
}

impl Ready {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers something that is not ready until the guard is dropped.
    #[must_use]
    pub fn register(&self, what: impl Into<String>) -> NotReady {
        let what = what.into();
        *self.waiting.lock().entry(what.clone()).or_default() += 1;
        NotReady { what, waiting: self.waiting.clone() }
    }

    /// The names of what is still waited for, in order; empty when ready.
    pub fn pending(&self) -> Vec<String> {
        self.waiting.lock().keys().cloned().collect()
    }
}

impl Drop for NotReady {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        match waiting.get_mut(&self.what) {
            Some(others) if *others > 1 => *others -= 1,
            _ => drop(waiting.remove(&self.what)),
        }
        tracing::debug!(what = %self.what, still = ?waiting, "no longer waited for");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_the_last_guard_is_gone_whatever_it_is_called() {
        let ready = Ready::new();
        assert!(ready.pending().is_empty());
        let [first, second, other] = ["preload pods", "preload pods", "discovery"].map(|what| ready.register(what));
        assert_eq!(ready.pending(), ["discovery", "preload pods"]);
        drop(first);
        assert_eq!(ready.pending(), ["discovery", "preload pods"], "named twice, and waited for twice");
        drop(other);
        drop(second);
        assert!(ready.pending().is_empty());
    }
}
