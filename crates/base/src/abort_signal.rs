use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;

/// Aborts a future from another task: the task that runs the future drops it, wherever it is suspended.
///
/// Clones share the state. One task runs the future, and any number may abort it. The first reason counts.
#[derive(Debug, Clone, Default)]
pub struct AbortSignal(Arc<AbortSignalState>);

#[derive(Debug, Default)]
struct AbortSignalState {
    /// Whether `reason` or `timeout` of the signal is set. Tasks check it for each event, and it needs only one cache
    /// line.
    is_set: AtomicBool,
    reason: OnceLock<&'static str>,
    /// The limit of [`AbortSignal::set_timeout`]. It is boxed to keep the type small, because watches have no such
    /// limit.
    timeout: OnceLock<Box<(Duration, &'static str)>>,
    runner: AtomicWaker,
}

impl AbortSignal {
    /// Aborts the future with a reason. Only the first reason counts.
    pub fn abort(&self, reason: &'static str) {
        let is_first = self.0.reason.set(reason).is_ok();
        self.0.is_set.store(true, Ordering::SeqCst);
        if is_first {
            self.0.runner.wake();
        }
    }

    /// Returns the reason, once the future has been aborted.
    pub fn reason(&self) -> Option<&'static str> {
        self.0.reason.get().copied()
    }

    pub fn is_aborted(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst) && self.0.reason.get().is_some()
    }

    /// Requests that the running task aborts the future with this reason if it is not complete within `max`. Futures
    /// that complete at once pay nothing for it, and the task of a whole connection may ignore it. Only the first call
    /// counts.
    pub fn set_timeout(&self, max: Duration, reason: &'static str) {
        let _ = self.0.timeout.set(Box::new((max, reason)));
        self.0.is_set.store(true, Ordering::SeqCst);
    }

    /// Returns the limit and the reason that [`set_timeout`](Self::set_timeout) has set.
    pub fn timeout(&self) -> Option<(Duration, &'static str)> {
        if !self.0.is_set.load(Ordering::SeqCst) {
            return None;
        }
        self.0.timeout.get().map(|limit| **limit)
    }

    /// Ready once the future has been aborted. Until then, registers the task of `cx`, replacing an earlier one.
    pub fn poll_aborted(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_aborted() {
            return Poll::Ready(());
        }
        self.0.runner.register(cx.waker());
        if self.is_aborted() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Completes once the future has been aborted. Only the running task may wait.
    pub async fn aborted(&self) {
        std::future::poll_fn(|cx| self.poll_aborted(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn abort_wakes_the_running_task_and_keeps_the_first_reason() {
        let signal = AbortSignal::default();
        let aborted = tokio::spawn({
            let signal = signal.clone();
            async move {
                signal.aborted().await;
                signal.reason()
            }
        });
        tokio::task::yield_now().await;
        assert!(!signal.is_aborted() && signal.reason().is_none());
        signal.abort("first");
        signal.abort("second");
        assert_eq!(aborted.await.expect("no panic"), Some("first"));
        assert!(signal.is_aborted());
    }
}
