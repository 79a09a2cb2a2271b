use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Tracks readiness: the process is ready when no [`ReadinessGuard`] guard is held.
#[derive(Clone, Debug, Default)]
pub struct ReadinessTracker {
    /// The components in the order in which they were registered.
    waiting: Arc<Mutex<Vec<Weak<WaitingComponent>>>>,
}

/// A component that is not ready yet; dropping the guard marks it ready.
#[derive(Debug)]
pub struct ReadinessGuard(Arc<WaitingComponent>);

struct WaitingComponent {
    name: String,
    /// Returns why the component is not ready at the moment.
    reason: Mutex<Option<NotReadyReasonFn>>,
}

type NotReadyReasonFn = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The name of a component that is not ready, and the reason if known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadyComponent {
    pub name: String,
    pub reason: Option<String>,
}

impl ReadinessTracker {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a component that is not ready until the guard is dropped.
    #[must_use]
    pub fn register(&self, name: impl Into<String>) -> ReadinessGuard {
        let component = Arc::new(WaitingComponent { name: name.into(), reason: Mutex::new(None) });
        let mut waiting = self.waiting.lock();
        waiting.retain(|component| component.strong_count() > 0);
        waiting.push(Arc::downgrade(&component));
        ReadinessGuard(component)
    }

    pub fn is_ready(&self) -> bool {
        self.waiting.lock().iter().all(|component| component.strong_count() == 0)
    }

    /// Returns the components that are not ready, in the order of names, each name once; empty when ready.
    pub fn pending(&self) -> Vec<UnreadyComponent> {
        let mut waiting: Vec<_> = self.waiting.lock().iter().filter_map(Weak::upgrade).collect();
        waiting.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pending: Vec<UnreadyComponent> = Vec::new();
        for component in waiting {
            // A reason may take other locks, so the lock is released first.
            let reason = component.reason.lock().clone();
            let reason = reason.and_then(|reason| reason());
            match pending.last_mut() {
                Some(last) if last.name == component.name => last.reason = last.reason.take().or(reason),
                _ => pending.push(UnreadyComponent { name: component.name.clone(), reason }),
            }
        }
        pending
    }
}

impl ReadinessGuard {
    /// Sets the function that returns the reason that the component is not ready. Any client of the health port can
    /// read the reason, so it must not name an address, user or object.
    #[must_use]
    pub fn with_reason(self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.set_reason(reason);
        self
    }

    /// Replaces the function that [`with_reason`](Self::with_reason) has set.
    pub fn set_reason(&self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) {
        *self.0.reason.lock() = Some(Arc::new(reason));
    }
}

impl fmt::Display for UnreadyComponent {
    /// Writes `NAME not ready`, and the reason after a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} not ready", self.name)?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl fmt::Debug for WaitingComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingComponent").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ready: &ReadinessTracker) -> Vec<String> {
        ready.pending().into_iter().map(|pending| pending.name).collect()
    }

    #[test]
    fn tracker_is_ready_only_after_every_guard_is_dropped() {
        let ready = ReadinessTracker::new();
        assert!(ready.pending().is_empty());
        let [first, second, other] = ["preload pods", "preload pods", "discovery"].map(|name| ready.register(name));
        assert_eq!(names(&ready), ["discovery", "preload pods"]);
        drop(first);
        assert_eq!(names(&ready), ["discovery", "preload pods"], "the second guard of that name is still held");
        drop(other);
        drop(second);
        assert!(ready.is_ready() && ready.pending().is_empty());
    }

    #[test]
    fn pending_condition_reports_its_current_reason() {
        let (ready, why) = (ReadinessTracker::new(), Arc::new(Mutex::new(None)));
        let current = why.clone();
        let guard = ready.register("discovery").with_reason(move || current.lock().clone());
        assert_eq!(ready.pending()[0].to_string(), "discovery not ready");
        *why.lock() = Some("upstream cannot be reached".to_owned());
        assert_eq!(ready.pending()[0].to_string(), "discovery not ready: upstream cannot be reached");
        guard.set_reason(|| Some("upstream answered 401".to_owned()));
        assert_eq!(ready.pending()[0].to_string(), "discovery not ready: upstream answered 401");
    }
}
