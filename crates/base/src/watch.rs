//! A value and those who wait for its changes: `tokio::sync::watch`. Tokio draws the order in which it wakes them. In a
//! build with debug assertions, as those of tests are, it is the order in which they began to wait, so that a
//! simulation can be repeated.

#[cfg(not(debug_assertions))]
pub use tokio::sync::watch::error::RecvError as Closed;
#[cfg(not(debug_assertions))]
pub use tokio::sync::watch::{Receiver, Ref, Sender, channel};

#[cfg(debug_assertions)]
pub use self::ordered::{Closed, OrderedSender as Sender, Receiver, Ref, channel};

#[cfg(debug_assertions)]
mod ordered {
    use std::ops::Deref;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use parking_lot::{RwLock, RwLockReadGuard};
    use tokio::sync::Notify;
    use tokio::task::coop::consume_budget;

    /// Changes the value.
    #[derive(Debug)]
    pub struct OrderedSender<T> {
        shared: Arc<Shared<T>>,
    }

    /// Sees the value, and waits for another one than it has seen.
    #[derive(Debug)]
    pub struct Receiver<T> {
        shared: Arc<Shared<T>>,
        /// The version that it has seen.
        seen: usize,
    }

    /// The value, for as long as it is looked at: nobody changes it meanwhile.
    #[derive(Debug)]
    pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

    /// There is nobody any more who could change the value.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Closed;

    #[derive(Debug)]
    struct Shared<T> {
        value: RwLock<T>,
        version: AtomicUsize,
        receivers: AtomicUsize,
        senders: AtomicUsize,
        is_closed: AtomicBool,
        changed: Notify,
    }

    /// Both ends of a value, which the receiver has seen.
    pub fn channel<T>(value: T) -> (OrderedSender<T>, Receiver<T>) {
        let sender = OrderedSender::new(value);
        let receiver = sender.subscribe();
        (sender, receiver)
    }

    impl<T> OrderedSender<T> {
        pub fn new(value: T) -> Self {
            Self {
                shared: Arc::new(Shared {
                    value: RwLock::new(value),
                    version: AtomicUsize::new(0),
                    receivers: AtomicUsize::new(0),
                    senders: AtomicUsize::new(1),
                    is_closed: AtomicBool::new(false),
                    changed: Notify::new(),
                }),
            }
        }

        /// A receiver that has seen the value as it is.
        pub fn subscribe(&self) -> Receiver<T> {
            Receiver::of(&self.shared, self.shared.version.load(Ordering::Acquire))
        }

        pub fn borrow(&self) -> Ref<'_, T> {
            Ref(self.shared.value.read())
        }

        /// Sets the value and returns the one before.
        pub fn send_replace(&self, mut value: T) -> T {
            self.send_modify(|before| std::mem::swap(before, &mut value));
            value
        }

        /// Changes the value.
        pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
            self.send_if_modified(|value| {
                modify(value);
                true
            });
        }

        /// Changes the value. Receivers hear of it if `modify` says so, as this then does.
        pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
            let mut value = self.shared.value.write();
            if !modify(&mut value) {
                return false;
            }
            self.shared.version.fetch_add(1, Ordering::Release);
            drop(value);
            self.shared.changed.notify_waiters();
            true
        }

        pub fn receiver_count(&self) -> usize {
            self.shared.receivers.load(Ordering::Relaxed)
        }
    }

    impl<T: Default> Default for OrderedSender<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T> Clone for OrderedSender<T> {
        fn clone(&self) -> Self {
            self.shared.senders.fetch_add(1, Ordering::Relaxed);
            Self { shared: self.shared.clone() }
        }
    }

    impl<T> Drop for OrderedSender<T> {
        fn drop(&mut self) {
            if self.shared.senders.fetch_sub(1, Ordering::AcqRel) > 1 {
                return;
            }
            self.shared.is_closed.store(true, Ordering::Release);
            self.shared.changed.notify_waiters();
        }
    }

    impl<T> Receiver<T> {
        fn of(shared: &Arc<Shared<T>>, seen: usize) -> Self {
            shared.receivers.fetch_add(1, Ordering::Relaxed);
            Self { shared: shared.clone(), seen }
        }

        /// The value, which counts as seen only as far as it was before.
        pub fn borrow(&self) -> Ref<'_, T> {
            Ref(self.shared.value.read())
        }

        /// The value, which counts as seen.
        pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
            let value = self.shared.value.read();
            self.seen = self.shared.version.load(Ordering::Acquire);
            Ref(value)
        }

        /// Whether there is another value than the one that was seen.
        ///
        /// # Errors
        /// If nobody can change it any more.
        pub fn has_changed(&self) -> Result<bool, Closed> {
            if self.shared.is_closed.load(Ordering::Acquire) {
                return Err(Closed);
            }
            Ok(self.shared.version.load(Ordering::Acquire) != self.seen)
        }

        pub fn mark_changed(&mut self) {
            self.seen = self.shared.version.load(Ordering::Acquire).wrapping_sub(1);
        }

        pub fn mark_unchanged(&mut self) {
            self.seen = self.shared.version.load(Ordering::Acquire);
        }

        /// Completes when there is another value than the one that was seen, which then counts as seen.
        ///
        /// # Errors
        /// If there is none and nobody can change it any more.
        pub async fn changed(&mut self) -> Result<(), Closed> {
            self.shared.change(&mut self.seen).await
        }

        /// Completes with the first value that is wanted, from the one that is there on.
        ///
        /// # Errors
        /// If it is not wanted and nobody can change it any more.
        pub async fn wait_for(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
            let Self { shared, seen } = self;
            loop {
                // As tokio's: a task whose wait is always over lets others in, and can be ended.
                consume_budget().await;
                {
                    let value = shared.value.read();
                    *seen = shared.version.load(Ordering::Acquire);
                    if is_wanted(&value) {
                        return Ok(Ref(value));
                    }
                }
                shared.change(seen).await?;
            }
        }
    }

    impl<T> Shared<T> {
        /// Waits for another version than the one that was seen.
        async fn change(&self, seen: &mut usize) -> Result<(), Closed> {
            consume_budget().await;
            loop {
                // Made before the value is looked at: what happens from here on completes it.
                let changed = self.changed.notified();
                let is_closed = self.is_closed.load(Ordering::Acquire);
                let version = self.version.load(Ordering::Acquire);
                if std::mem::replace(seen, version) != version {
                    return Ok(());
                }
                if is_closed {
                    return Err(Closed);
                }
                changed.await;
            }
        }
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Self {
            Self::of(&self.shared, self.seen)
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            self.shared.receivers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl<T> Deref for Ref<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_sees_the_last_value_and_hears_of_the_end() {
        let (sender, mut receiver) = channel(0);
        assert!(receiver.changed().now_or_never().is_none(), "it has seen that");
        sender.send_replace(1);
        sender.send_replace(2);
        let mut late = sender.subscribe();
        assert!(receiver.changed().await.is_ok() && *receiver.borrow_and_update() == 2);
        assert!(receiver.changed().now_or_never().is_none() && late.changed().now_or_never().is_none());
        let waits = tokio::spawn(async move { late.wait_for(|value| *value > 6).await.map(|value| *value).ok() });
        tokio::task::yield_now().await;
        for value in 3..8 {
            sender.send_replace(value);
        }
        assert_eq!(waits.await.expect("no panic"), Some(7));
        assert!(!sender.send_if_modified(|value| *value > 7) && sender.send_if_modified(|value| *value == 7));
        drop(sender);
        assert!(receiver.changed().await.is_ok(), "the last change comes before the end");
        assert!(receiver.changed().await.is_err());
        assert_eq!(receiver.wait_for(|value| *value == 7).await.map(|value| *value).ok(), Some(7));
        assert!(receiver.wait_for(|value| *value == 8).await.is_err());
    }

    #[tokio::test]
    async fn those_who_wait_are_woken_in_the_order_in_which_they_began() {
        let (sender, order) = (Sender::new(()), std::sync::Arc::<parking_lot::Mutex<Vec<u32>>>::default());
        for nth in 0..50 {
            let (mut receiver, order) = (sender.subscribe(), order.clone());
            drop(tokio::spawn(async move {
                let _ = receiver.changed().await;
                order.lock().push(nth);
            }));
        }
        tokio::task::yield_now().await;
        sender.send_replace(());
        while order.lock().len() < 50 {
            tokio::task::yield_now().await;
        }
        assert!(!cfg!(debug_assertions) || order.lock().is_sorted());
    }
}
