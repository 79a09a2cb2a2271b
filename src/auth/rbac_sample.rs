use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::{RbacGrant, metrics};
use kubeapi::{AccessAttributes, User};

/// The local decisions that wait for a comparison.
#[derive(Debug)]
pub(super) struct RbacComparisonQueue {
    /// The number of decisions of which one is compared; 0 for none.
    one_in: u32,
    sender: mpsc::Sender<ComparedDecision>,
    receiver: Mutex<mpsc::Receiver<ComparedDecision>>,
}

/// A local decision that is compared with upstream's.
#[derive(Debug)]
pub(super) struct ComparedDecision {
    pub(super) user: Arc<User>,
    pub(super) access: Arc<AccessAttributes>,
    pub(super) grant: RbacGrant,
}

/// The maximum number of decisions that wait. More are not compared.
const PENDING_MAX: usize = 64;

impl RbacComparisonQueue {
    pub(super) fn new(one_in: u32) -> Self {
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        Self { one_in, sender, receiver: Mutex::new(receiver) }
    }

    /// Compares the decision with upstream's later, if it is one of the sample.
    pub(super) fn sample(&self, user: &Arc<User>, access: &Arc<AccessAttributes>, grant: RbacGrant) {
        if self.one_in == 0 || fastrand::u32(0..self.one_in) != 0 {
            return;
        }
        let decision = ComparedDecision { user: user.clone(), access: access.clone(), grant };
        if self.sender.try_send(decision).is_err() {
            metrics::compared("skipped");
        }
    }

    /// Completes with the next decision to compare.
    pub(super) async fn next(&self) -> ComparedDecision {
        self.receiver.lock().await.recv().await.expect("the sender lives as long as the receiver")
    }
}
