use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use base::KeyedSemaphores;
use kubeapi::FlowDistinguisher;

/// A limit on the namespaces that open readable watches depend on, in all and for each user. It keeps their number
/// within what can be reviewed in time after a policy change.
#[derive(Debug)]
pub(super) struct ReviewedNamespaceLimit {
    all: Arc<Semaphore>,
    each: KeyedSemaphores<FlowDistinguisher>,
}

/// The namespaces that one watch depends on: permits of the user's limit, and of that of all users. The permits are
/// returned on drop.
#[derive(Debug)]
pub(super) struct ReviewedNamespacePermits(Mutex<[OwnedSemaphorePermit; 2]>);

impl ReviewedNamespaceLimit {
    pub(super) fn new(all_max: usize, each_max: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all_max.min(Semaphore::MAX_PERMITS))),
            each: KeyedSemaphores::new(each_max),
        }
    }

    /// Creates a caller's share of the quota, without namespaces.
    pub(super) fn permits(&self, flow: &FlowDistinguisher) -> ReviewedNamespacePermits {
        let limits = [self.each.get(flow), self.all.clone()];
        ReviewedNamespacePermits(Mutex::new(
            limits.map(|limit| limit.try_acquire_many_owned(0).expect("nothing is acquired")),
        ))
    }
}

impl ReviewedNamespacePermits {
    /// Changes the share to `count` namespaces in all. If these are too many, it returns false and changes nothing.
    pub(super) fn try_resize(&self, count: usize) -> bool {
        let mut permits = self.0.lock();
        let Ok(more) = u32::try_from(count.saturating_sub(permits[0].num_permits())) else { return false };
        let acquire = |permit: &OwnedSemaphorePermit| permit.semaphore().clone().try_acquire_many_owned(more);
        // One after the other, because a user above its own limit must not take permits of all, not even briefly.
        let Ok(own) = acquire(&permits[0]) else { return false };
        let Ok(all) = acquire(&permits[1]) else { return false };
        permits[0].merge(own);
        permits[1].merge(all);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubeapi::User;

    #[test]
    fn namespace_quota_limits_each_user_and_the_total() {
        let quota = ReviewedNamespaceLimit::new(10, 6);
        let of = |name: &str| {
            quota.permits(&FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() }))
        };
        let (first, second, bob) = (of("ada"), of("ada"), of("bob"));
        assert!(first.try_resize(4) && first.try_resize(4), "what is there is counted once");
        assert!(!second.try_resize(3) && second.try_resize(2), "two watches of one user");
        assert!(!bob.try_resize(5) && bob.try_resize(4), "all together");
        assert!(!first.try_resize(5));
        drop(second);
        assert!(first.try_resize(6) && bob.try_resize(4) && !bob.try_resize(5));
        drop((first, bob));
        assert_eq!(quota.all.available_permits(), 10);
    }
}
