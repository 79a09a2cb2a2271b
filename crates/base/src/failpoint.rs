//! Failpoints: places where the order of what several tasks do matters. A simulation has tasks linger there for as long
//! as it draws; a build that is shipped passes them without a trace.

#[cfg(debug_assertions)]
pub use switched::{draw_delays, linger, linger_before};

#[cfg(debug_assertions)]
mod switched {
    use std::cell::RefCell;
    use std::time::Duration;

    use tokio::task::yield_now;
    use tokio::time::sleep;

    type Delays = Box<dyn FnMut(&'static str) -> Option<Duration>>;

    thread_local! {
        static DELAYS: RefCell<Option<Delays>> = const { RefCell::new(None) };
    }

    /// Has what runs on this thread linger at each failpoint for as long as `delays` says; at `None` it passes. Nothing
    /// lingers any more once there is nobody to draw.
    pub fn draw_delays(delays: Option<Delays>) {
        DELAYS.set(delays);
    }

    fn drawn(at: &'static str) -> Option<Duration> {
        DELAYS.with_borrow_mut(|delays| delays.as_mut().and_then(|delays| delays(at)))
    }

    /// Lets others go on for as long as a simulation has drawn.
    pub async fn linger(at: &'static str) {
        match drawn(at) {
            None => {}
            Some(Duration::ZERO) => yield_now().await,
            Some(delay) => sleep(delay).await,
        }
    }

    /// Does something that nobody waits for: now, or after as long as a simulation has drawn.
    #[allow(clippy::disallowed_methods, reason = "a simulation alone comes here, and its end waits for nobody")]
    pub fn linger_before(at: &'static str, act: impl FnOnce() + Send + 'static) {
        let Some(delay) = drawn(at) else { return act() };
        drop(tokio::spawn(async move {
            sleep(delay).await;
            act();
        }));
    }
}

/// Passes: nothing lingers in a build that is shipped.
#[cfg(not(debug_assertions))]
pub fn linger(_at: &'static str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Does it now.
#[cfg(not(debug_assertions))]
pub fn linger_before(_at: &'static str, act: impl FnOnce() + Send + 'static) {
    act();
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_linger_as_long_as_somebody_draws_delays_and_then_pass() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        draw_delays(Some(Box::new(move |at| (at == "slow").then_some(second))));
        linger("quick").await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        linger("slow").await;
        assert_eq!(began.elapsed(), second);
        let is_done = Arc::<AtomicBool>::default();
        let done = is_done.clone();
        linger_before("slow", move || done.store(true, Ordering::Relaxed));
        assert!(!is_done.load(Ordering::Relaxed));
        tokio::time::sleep(2 * second).await;
        assert!(is_done.load(Ordering::Relaxed));
        draw_delays(None);
        linger("slow").await;
        assert_eq!(began.elapsed(), 3 * second);
    }
}
