use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::credential::BearerToken;
use super::review_permission::ReviewResource;
use super::{RbacGrant, RbacObjectKey, metrics};
use crate::upstream::{CredentialId, ListedObject};
use base::random;
use kubeapi::{AccessAttributes, EscapedFieldTerm, Gvr, NAME_KEY, User};

/// The answers given here that wait for a comparison.
#[derive(Debug)]
pub(super) struct ComparisonQueue {
    /// The number of answers of which one is compared; 0 for none.
    one_in: u32,
    sender: mpsc::Sender<ComparedAnswer>,
    receiver: Mutex<mpsc::Receiver<ComparedAnswer>>,
}

/// An answer given here that is compared with upstream's.
#[derive(Debug)]
pub(super) enum ComparedAnswer {
    /// RBAC allows a user an access.
    Decision { user: Arc<User>, access: Arc<AccessAttributes>, grant: RbacGrant },
    /// A token is valid, and is that of this user.
    Token { id: CredentialId, token: BearerToken, user: Arc<User> },
}

/// An object that an answer depends on: its list, and how the list shows that it is the same.
pub(super) struct ComparedObject {
    pub(super) list: String,
    pub(super) is_same: Box<dyn Fn(&ListedObject) -> bool + Send + Sync>,
}

/// The maximum number of answers that wait. More are not compared.
const PENDING_MAX: usize = 64;

impl ComparisonQueue {
    pub(super) fn new(one_in: u32) -> Self {
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        Self { one_in, sender, receiver: Mutex::new(receiver) }
    }

    /// Compares an answer with upstream's later, if it is one of the sample and `answer` returns it.
    pub(super) fn sample(&self, answer: impl FnOnce() -> Option<ComparedAnswer>) {
        if self.one_in == 0 || random::u32(0..self.one_in) != 0 {
            return;
        }
        if let Some(Err(error)) = answer().map(|answer| self.sender.try_send(answer)) {
            metrics::compared(error.into_inner().kind(), "skipped");
        }
    }

    /// Completes with the next answer to compare.
    pub(super) async fn next(&self) -> ComparedAnswer {
        self.receiver.lock().await.recv().await.expect("the sender lives as long as the receiver")
    }
}

impl ComparedAnswer {
    /// Returns the kind of the review that upstream makes, as a metric label.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Decision { .. } => ReviewResource::ACCESS.label,
            Self::Token { .. } => ReviewResource::TOKEN.label,
        }
    }
}

impl ComparedObject {
    /// An RBAC object at exactly this version, in a list that is not older.
    pub(super) fn at_version(object: &RbacObjectKey, version: &str) -> Self {
        let gvr = Gvr::new("rbac.authorization.k8s.io", "v1", object.kind.resource());
        let path = gvr.path_in(&object.namespace);
        let name = EscapedFieldTerm::is(NAME_KEY, &object.name);
        let list = format!("{path}?fieldSelector={name}&resourceVersion={version}&resourceVersionMatch=NotOlderThan");
        let version = version.to_owned();
        Self { list, is_same: Box::new(move |listed| listed.version == version) }
    }
}
