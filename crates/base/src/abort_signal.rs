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
    /// Whether `why` or `within` of the signal is set. Tasks check it for each event, and it needs only one cache line.
    is_set: AtomicBool,
    why: OnceLock<&'static str>,
    /// The limit of [`AbortSignal::within`]. It is boxed to keep the type small, because watches have no such limit.
    within: OnceLock<Box<(Duration, &'static str)>>,
    runner: AtomicWaker,
}

impl AbortSignal {
    /// Aborts the future with a reason. Only the first reason counts.
    pub fn cut(&self, why: &'static str) {
        let is_first = self.0.why.set(why).is_ok();
        self.0.is_set.store(true, Ordering::SeqCst);
        if is_first {
            self.0.runner.wake();
        }
    }

    /// Returns the reason, once the future has been aborted.
    pub fn why(&self) -> Option<&'static str> {
        self.0.why.get().copied()
    }

    pub fn is_cut(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst) && self.0.why.get().is_some()
    }

    /// Requests that the running task aborts the future with this reason if it is not complete within `max`. Futures
    /// that complete at once pay nothing for it, and the task of a whole connection may ignore it. Only the first call
    /// counts.
    pub fn within(&self, max: Duration, why: &'static str) {
        let _ = self.0.within.set(Box::new((max, why)));
        self.0.is_set.store(true, Ordering::SeqCst);
    }

    /// Returns the limit and the reason that [`within`](Self::within) has set.
    pub fn limit(&self) -> Option<(Duration, &'static str)> {
        if !self.0.is_set.load(Ordering::SeqCst) {
            return None;
        }
        self.0.within.get().map(|limit| **limit)
    }

    /// Ready once the future has been aborted. Until then, registers the task of `cx`, replacing an earlier one.
    pub fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_cut() {
            return Poll::Ready(());
        }
        self.0.runner.register(cx.waker());
        if self.is_cut() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Completes once the future has been aborted. Only the running task may wait.
    pub async fn over(&self) {
        std::future::poll_fn(|cx| self.poll_cut(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cut_wakes_the_running_task_and_keeps_the_first_reason() {
        let cut = AbortSignal::default();
        let aborted = tokio::spawn({
            let cut = cut.clone();
            async move {
                cut.over().await;
                cut.why()
            }
        });
        tokio::task::yield_now().await;
        assert!(!cut.is_cut() && cut.why().is_none());
        cut.cut("first");
        cut.cut("second");
        assert_eq!(aborted.await.expect("no panic"), Some("first"));
        assert!(cut.is_cut());
    }
}
