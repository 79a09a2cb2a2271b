use std::sync::Arc;

use tokio::sync::watch;

/// A value that can be replaced while in use. Clones share it.
///
/// Code that takes several steps gets the value once, so that all steps use the same one.
#[derive(Debug)]
pub struct Reloadable<T>(watch::Sender<Arc<T>>);

impl<T> Reloadable<T> {
    pub fn new(value: T) -> Self {
        Self(watch::Sender::new(Arc::new(value)))
    }

    /// Returns the current value.
    pub fn get(&self) -> Arc<T> {
        self.0.borrow().clone()
    }

    /// Replaces the value for all later reads.
    pub fn set(&self, value: T) {
        self.0.send_replace(Arc::new(value));
    }

    /// Completes when the value differs from `known`.
    pub async fn replaced(&self, known: &Arc<T>) {
        // `self` holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|value| !Arc::ptr_eq(value, known)).await;
    }
}

impl<T> From<T> for Reloadable<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn set_updates_all_clones_but_not_earlier_snapshots() {
        let here = Reloadable::new(1);
        let (there, taken) = (here.clone(), here.get());
        assert_eq!(here.replaced(&taken).now_or_never(), None);
        there.set(2);
        assert_eq!((*taken, *here.get()), (1, 2));
        assert_eq!(here.replaced(&taken).now_or_never(), Some(()));
    }
}
