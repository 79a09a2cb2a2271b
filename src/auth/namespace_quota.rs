use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use kubeapi::FlowDistinguisher;

/// A limit on the namespaces that open readable watches depend on, in all and for each user. It keeps their number
/// within what can be reviewed in time after a policy change.
#[derive(Debug)]
pub(super) struct NamespaceQuota {
    all_max: usize,
    each_max: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    of: HashMap<FlowDistinguisher, usize>,
}

/// The namespaces that one watch depends on. They are returned on drop.
#[derive(Debug)]
pub(super) struct NamespaceShare {
    of: Arc<NamespaceQuota>,
    payer: FlowDistinguisher,
    count: Mutex<usize>,
}

impl NamespaceQuota {
    pub(super) fn new(all_max: usize, each_max: usize) -> Self {
        Self { all_max, each_max, held: Mutex::default() }
    }

    /// Creates a share without namespaces.
    pub(super) fn share(self: &Arc<Self>, payer: FlowDistinguisher) -> NamespaceShare {
        NamespaceShare { of: self.clone(), payer, count: Mutex::new(0) }
    }
}

impl NamespaceShare {
    /// Changes the share to `count` namespaces in all. If these are too many, it returns false and changes nothing.
    pub(super) fn reach(&self, count: usize) -> bool {
        let mut own = self.count.lock();
        let more = count.saturating_sub(*own);
        if more == 0 {
            return true;
        }
        let mut held = self.of.held.lock();
        let each = held.of.get(&self.payer).copied().unwrap_or_default();
        if held.all + more > self.of.all_max || each + more > self.of.each_max {
            return false;
        }
        held.all += more;
        held.of.insert(self.payer.clone(), each + more);
        *own = count;
        true
    }
}

impl Drop for NamespaceShare {
    fn drop(&mut self) {
        let count = *self.count.get_mut();
        let mut held = self.of.held.lock();
        held.all -= count;
        if let Some(each) = held.of.get_mut(&self.payer) {
            *each -= count;
            if *each == 0 {
                held.of.remove(&self.payer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubeapi::User;

    #[test]
    fn namespace_quota_limits_each_user_and_the_total() {
        let quota = Arc::new(NamespaceQuota::new(10, 6));
        let of = |name: &str| quota.share(FlowDistinguisher::of(&User { name: name.to_owned(), ..User::default() }));
        let (first, second, bob) = (of("ada"), of("ada"), of("bob"));
        assert!(first.reach(4) && first.reach(4), "what is there is counted once");
        assert!(!second.reach(3) && second.reach(2), "two watches of one user");
        assert!(!bob.reach(5) && bob.reach(4), "all together");
        assert!(!first.reach(5));
        drop(second);
        assert!(first.reach(6) && bob.reach(4) && !bob.reach(5));
        drop((first, bob));
        let held = quota.held.lock();
        assert_eq!((held.all, held.of.len()), (0, 0));
    }
}
