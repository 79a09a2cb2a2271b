use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use base::{MemoryAccount, MemoryCharge};

/// Accounting of the map nodes that older states of one feed keep alive, in addition to their objects.
///
/// A change copies the nodes on the path to its object if an older state shares them. The old nodes stay alive as long
/// as that state. They are charged to the newest state that is older than the change. When that state is dropped, the
/// charge moves to the state before it, which may share the nodes. So the charge is never too small.
#[derive(Debug)]
pub(super) struct RetainedSnapshotAccounting {
    alive: Mutex<RetainedSnapshots>,
}

#[derive(Debug)]
struct RetainedSnapshots {
    /// The bytes of tree nodes that each past state keeps, in the order of the states.
    bytes: BTreeMap<u64, usize>,
    next: u64,
    charge: MemoryCharge,
}

/// A state that is no longer the current one, but still referenced.
#[derive(Debug)]
pub(super) struct RetainedSnapshotGuard {
    states: Arc<RetainedSnapshotAccounting>,
    id: u64,
}

/// The sizes in bytes of a tree leaf of sixteen objects, and of a branch of as many children.
const LEAF_BYTES: usize = 432;
const BRANCH_BYTES: usize = 464;
/// The bytes of an object's share in half-full tree nodes.
const NODE_BYTES_PER_OBJECT: usize = 64;

impl RetainedSnapshotAccounting {
    pub(super) fn new(account: &Arc<MemoryAccount>) -> Arc<Self> {
        let alive = RetainedSnapshots { bytes: BTreeMap::new(), next: 0, charge: account.charge(0) };
        Arc::new(Self { alive: Mutex::new(alive) })
    }

    /// Registers a referenced state that is about to become a past one.
    pub(super) fn left(self: &Arc<Self>) -> RetainedSnapshotGuard {
        let mut alive = self.alive.lock();
        let id = alive.next;
        alive.next += 1;
        alive.bytes.insert(id, 0);
        RetainedSnapshotGuard { states: self.clone(), id }
    }

    /// Records a change of one object in a state of `objects` objects.
    pub(super) fn changed(&self, objects: usize) {
        self.keep(path_bytes(objects), objects);
    }

    /// Records the replacement of all of `objects` objects.
    pub(super) fn replaced(&self, objects: usize) {
        self.keep(all_bytes(objects), objects);
    }

    fn keep(&self, bytes: usize, objects: usize) {
        let mut alive = self.alive.lock();
        if let Some(mut newest) = alive.bytes.last_entry() {
            let before = *newest.get();
            let after = (before + bytes).min(all_bytes(objects).max(before));
            newest.insert(after);
            let bytes = alive.charge.bytes() + after - before;
            alive.charge.set(bytes);
        }
    }
}

impl Drop for RetainedSnapshotGuard {
    fn drop(&mut self) {
        let mut alive = self.states.alive.lock();
        let Some(bytes) = alive.bytes.remove(&self.id) else { return };
        match alive.bytes.range_mut(..self.id).next_back() {
            Some((_, older)) => *older += bytes,
            None => {
                let left = alive.charge.bytes() - bytes;
                alive.charge.set(left);
            }
        }
    }
}

/// Returns the bytes of the tree nodes on the path to one of `objects` objects.
fn path_bytes(objects: usize) -> usize {
    let branches = objects.max(1).ilog(10) as usize;
    LEAF_BYTES + branches * BRANCH_BYTES
}

fn all_bytes(objects: usize) -> usize {
    LEAF_BYTES + objects * NODE_BYTES_PER_OBJECT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_nodes_are_charged_until_older_snapshots_drop() {
        let account = MemoryAccount::new();
        let states = RetainedSnapshotAccounting::new(&account);
        states.changed(1_000);
        assert_eq!(account.bytes(), 0, "there is no older state");
        let path = path_bytes(1_000);
        let (first, second) = (states.left(), states.left());
        states.changed(1_000);
        states.changed(1_000);
        assert_eq!(account.bytes(), 2 * path);
        drop(second);
        assert_eq!(account.bytes(), 2 * path, "the first state may share it");
        let third = states.left();
        states.changed(1_000);
        drop(first);
        assert_eq!(account.bytes(), path, "only the third state has the later nodes");
        drop(third);
        states.changed(1_000);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn snapshot_charge_is_capped_at_its_own_nodes() {
        let account = MemoryAccount::new();
        let states = RetainedSnapshotAccounting::new(&account);
        let _state = states.left();
        (0..1_000).for_each(|_| states.changed(100));
        assert_eq!(account.bytes(), all_bytes(100));
    }
}
