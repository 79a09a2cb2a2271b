use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// Tracks readiness: the process is ready when no [`ReadinessGuard`] guard is held.
#[derive(Clone, Debug, Default)]
pub struct ReadinessTracker {
    waiting: SharedReadinessGuards,
}

type SharedReadinessGuards = Arc<Mutex<HeldReadinessGuards>>;

/// The guards of components that are not ready, by name and number.
#[derive(Debug, Default)]
struct HeldReadinessGuards {
    guards: BTreeMap<(String, u64), Option<NotReadyReasonFn>>,
    next: u64,
}

/// Returns why something is not ready at the moment.
#[derive(Clone)]
struct NotReadyReasonFn(Arc<dyn Fn() -> Option<String> + Send + Sync>);

/// A component that is not ready yet; dropping the guard marks it ready.
#[derive(Debug)]
pub struct ReadinessGuard {
    name: String,
    number: u64,
    waiting: SharedReadinessGuards,
}

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
        let name = name.into();
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.guards.insert((name.clone(), number), None);
        ReadinessGuard { name, number, waiting: self.waiting.clone() }
    }

    pub fn is_ready(&self) -> bool {
        self.waiting.lock().guards.is_empty()
    }

    /// Returns the components that are not ready, in the order of names, each name once; empty when ready.
    pub fn pending(&self) -> Vec<UnreadyComponent> {
        let guards: Vec<_> =
            self.waiting.lock().guards.iter().map(|((name, _), reason)| (name.clone(), reason.clone())).collect();
        let mut pending: Vec<UnreadyComponent> = Vec::new();
        // A reason may take other locks, so the lock is released first.
        for (name, reason) in guards {
            let reason = reason.and_then(|NotReadyReasonFn(reason)| reason());
            match pending.last_mut() {
                Some(last) if last.name == name => last.reason = last.reason.take().or(reason),
                _ => pending.push(UnreadyComponent { name, reason }),
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
        if let Some(guards) = self.waiting.lock().guards.get_mut(&(self.name.clone(), self.number)) {
            *guards = Some(NotReadyReasonFn(Arc::new(reason)));
        }
    }
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        // The reason is dropped after the lock is released, because it may own anything.
        let reason = waiting.guards.remove(&(std::mem::take(&mut self.name), self.number));
        drop(waiting);
        drop(reason);
    }
}

impl fmt::Display for UnreadyComponent {
    /// Writes `NAME not ready`, and the reason after a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} not ready", self.name)?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl fmt::Debug for NotReadyReasonFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotReadyReasonFn")
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
