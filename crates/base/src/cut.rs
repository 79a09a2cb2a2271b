use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;

/// Ends something from outside: whoever runs it drops it, wherever it stands.
///
/// Cloning shares it. One task runs the thing, and any number may cut it. The reason of the first cut counts.
#[derive(Debug, Clone, Default)]
pub struct Cut(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Whether `why` or `within` is set, for those who look for each event: it is one line of the processor's cache.
    is_touched: AtomicBool,
    why: OnceLock<&'static str>,
    /// See [`Cut::within`]. Boxed, for watches have no such limit.
    within: OnceLock<Box<(Duration, &'static str)>>,
    runner: AtomicWaker,
}

impl Cut {
    /// Ends the thing. Only the first reason counts.
    pub fn cut(&self, why: &'static str) {
        let is_first = self.0.why.set(why).is_ok();
        self.0.is_touched.store(true, Ordering::SeqCst);
        if is_first {
            self.0.runner.wake();
        }
    }

    /// The reason, once the thing has been cut.
    pub fn why(&self) -> Option<&'static str> {
        self.0.why.get().copied()
    }

    pub fn is_cut(&self) -> bool {
        self.0.is_touched.load(Ordering::SeqCst) && self.0.why.get().is_some()
    }

    /// Asks whoever runs the thing to cut it for this reason if it is not over within `max` from now. This costs
    /// nothing for what is over at once, and whoever runs a whole connection need not look. Only the first call counts.
    pub fn within(&self, max: Duration, why: &'static str) {
        let _ = self.0.within.set(Box::new((max, why)));
        self.0.is_touched.store(true, Ordering::SeqCst);
    }

    /// The time that the thing may take and the reason for which it is cut then, once they are known.
    pub fn limit(&self) -> Option<(Duration, &'static str)> {
        if !self.0.is_touched.load(Ordering::SeqCst) {
            return None;
        }
        self.0.within.get().map(|limit| **limit)
    }

    /// Ready once the thing has been cut. Until then it registers the task of `cx`, and only that one.
    pub fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_cut() {
            return Poll::Ready(());
        }
        self.0.runner.register(cx.waker());
        if self.is_cut() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Completes once the thing has been cut. For the one that runs it.
    pub async fn over(&self) {
        std::future::poll_fn(|cx| self.poll_cut(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_runs_it_hears_of_it_and_the_first_reason_counts() {
        let cut = Cut::default();
        let heard = tokio::spawn({
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
        assert_eq!(heard.await.expect("no panic"), Some("first"));
        assert!(cut.is_cut());
    }
}
