use std::time::Duration;

use tokio::time::timeout;

use super::{GrantError, RbacObjectKey};
use crate::upstream::{ListedObject, ReviewClient};
use kubeapi::{EscapedFieldTerm, Gvr, NAME_KEY};

/// An object that an answer depends on: its list, and how the list shows that it is the same.
pub(super) struct ComparedObject {
    pub(super) list: String,
    pub(super) is_same: Box<dyn Fn(&ListedObject) -> bool + Send + Sync>,
}

/// The timeout of the list of one object.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Whether upstream lists the object as it is known here.
    ///
    /// # Errors
    /// Upstream does not answer.
    pub(super) async fn is_listed(&self, reviews: &dyn ReviewClient) -> Result<bool, GrantError> {
        match timeout(LIST_TIMEOUT, reviews.read_object(&self.list)).await {
            Ok(Ok(listed)) => Ok(listed.is_some_and(|listed| (self.is_same)(&listed))),
            Ok(Err(error)) => Err(GrantError::Unavailable(error.to_string())),
            Err(elapsed) => Err(GrantError::Unavailable(elapsed.to_string())),
        }
    }
}
