use tokio::sync::watch;

/// Whether the bodies that a feed holds are as the server that it follows writes them.
///
/// An apiserver of another release writes other bytes of the same objects at the same versions: it has other fields,
/// other defaults, another order. Events are what they were when they happened. A state is of the present, so no state
/// is shown whose bodies another server wrote, or may have written (F10). Cloning shares.
#[derive(Debug, Clone)]
pub struct Vintage {
    is_present: watch::Sender<bool>,
    /// How many readers wait.
    waiting: watch::Sender<usize>,
}

/// Counts a reader that waits, for as long as it waits.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Default for Vintage {
    fn default() -> Self {
        Self { is_present: watch::Sender::new(true), waiting: watch::Sender::new(0) }
    }
}

impl Vintage {
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

    /// Says whether a state may be shown. Only the task that fills the feed calls this.
    pub fn set_present(&self, is_present: bool) {
        self.is_present.send_if_modified(|before| std::mem::replace(before, is_present) != is_present);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_waits_asks_and_who_goes_asks_no_longer() {
        let vintage = Vintage::default();
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
}
