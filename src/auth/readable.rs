use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::grant_lease::GrantLease;
use super::namespace_verdicts::{self, NamespaceVerdicts, Verdict};
use super::{Grant, NotGranted, Revoked};
use kubeapi::{Access, Gvr};
use tokio::sync::watch;

/// A permission for a collection: for everything that was requested, or for some of its namespaces.
#[derive(Debug, Clone)]
pub enum Permit {
    Whole(Grant),
    Part(Readable),
}

/// A permission to read only those namespaces of a collection in which the caller may perform the requested access.
///
/// Its fields are private, so only [`Authorizer::readable`](super::Authorizer::readable) creates one. A namespace
/// without a verdict is not readable. For a watch, all namespaces are checked again for as long as the watch is open.
#[derive(Debug, Clone)]
pub struct Readable {
    access: Arc<Access>,
    verdicts: Arc<NamespaceVerdicts>,
    lease: Option<Arc<GrantLease>>,
}

/// Whether a permission still holds. Its scope is known to the owner of the permission.
#[derive(Debug, Clone)]
pub struct GrantStatus(Option<Arc<GrantLease>>);

/// A receiver of changes of the verdicts.
#[derive(Debug)]
pub struct VerdictChanges(watch::Receiver<namespace_verdicts::VerdictMap>);

impl Permit {
    /// Whether it covers this collection or a part of it, or reads of this name in it.
    pub fn covers(&self, gvr: &Gvr, namespaced: bool, namespace: Option<&str>, name: Option<&str>) -> bool {
        match self {
            Self::Whole(grant) => grant.covers(gvr, namespaced, namespace, name),
            Self::Part(readable) => {
                let across = namespaced && namespace.is_none();
                across && Grant::new(readable.access.clone(), None).covers(gvr, namespaced, namespace, name)
            }
        }
    }

    /// Whether objects of a namespace may be served now.
    pub fn sees(&self, namespace: &str) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Part(readable) => readable.verdict(namespace) == Some(Verdict::Allowed),
        }
    }

    /// Returns the partial permission, if the permission does not cover the whole collection.
    pub fn part(&self) -> Option<&Readable> {
        match self {
            Self::Whole(_) => None,
            Self::Part(readable) => Some(readable),
        }
    }

    /// Returns the authorizer's reason, which may be empty.
    pub fn reason(&self) -> Arc<str> {
        match self {
            Self::Whole(grant) => grant.reason().clone(),
            Self::Part(_) => Arc::default(),
        }
    }

    /// Returns the status of the permission, which a watch keeps.
    pub fn grant_status(&self) -> GrantStatus {
        GrantStatus(match self {
            Self::Whole(grant) => grant.lease().cloned(),
            Self::Part(readable) => readable.lease.clone(),
        })
    }
}

impl GrantStatus {
    /// Returns the reason that the permission has ended, if it has. After that, no more objects may be sent.
    pub fn revoked(&self) -> Option<&Revoked> {
        self.0.as_ref()?.revoked()
    }

    /// Returns a token that is cancelled when the permission ends; `None` if it never does.
    pub fn over(&self) -> Option<CancellationToken> {
        self.0.as_ref().map(|lease| lease.over())
    }
}

impl Readable {
    /// The maximum number of namespaces to collect for [`find_out`](Self::find_out), which refuses that many.
    pub const ASKED_MAX: usize = namespace_verdicts::NAMESPACES_MAX + 1;

    pub(super) fn new(access: Arc<Access>, verdicts: Arc<NamespaceVerdicts>, lease: Option<Arc<GrantLease>>) -> Self {
        // All watches on one lease share its verdicts.
        let verdicts = lease.as_ref().and_then(|lease| lease.verdicts().cloned()).unwrap_or(verdicts);
        Self { access, verdicts, lease }
    }

    /// Reviews which namespaces may be read, with one review each.
    ///
    /// # Errors
    /// There are too many namespaces, or a review fails.
    pub async fn find_out(&self, namespaces: impl IntoIterator<Item = &str>) -> Result<(), NotGranted> {
        // One more suffices to exceed the limit.
        let namespaces: BTreeSet<Arc<str>> =
            namespaces.into_iter().take(namespace_verdicts::NAMESPACES_MAX + 1).map(Into::into).collect();
        self.verdicts.find_out(namespaces).await
    }

    /// Returns the verdict on a namespace, if there is one.
    pub fn verdict(&self, namespace: &str) -> Option<Verdict> {
        self.verdicts.verdict(namespace)
    }

    /// Schedules the review of a namespace that occurred in a watch. [`verdicts`](Self::verdicts) reports its result.
    pub fn ask(&self, namespace: &str) {
        if let Err(why) = self.verdicts.want(namespace)
            && let Some(lease) = &self.lease
        {
            lease.refuse(&why);
        }
    }

    /// Subscribes to changes of the verdicts.
    pub fn verdicts(&self) -> VerdictChanges {
        VerdictChanges(self.verdicts.changes())
    }
}

impl VerdictChanges {
    /// Completes when a verdict has changed since the receiver was created or last completed.
    pub async fn changed(mut self) -> Self {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self
    }
}

/// Permissions for tests, which set the verdicts themselves.
#[cfg(test)]
impl Readable {
    /// A permission with these verdicts.
    ///
    /// # Panics
    /// Never: no review is sent.
    pub fn told(told: &[(&str, Verdict)]) -> Self {
        let nowhere = crate::upstream::CredentialSource::Anonymous(http::Uri::from_static("http://127.0.0.1:1"));
        let client = crate::upstream::Client::connect(&nowhere, crate::upstream::CostLedger::default())
            .expect("nothing is asked");
        let authenticator = super::authenticator::Authenticator::new(
            Arc::new(client),
            &super::AuthConfig::default(),
            None,
            None,
            base::WallClock::default(),
        );
        let access = Access { verb: "watch".to_owned(), target: kubeapi::AccessTarget::Path(String::new()) };
        let access = Arc::new(access);
        let verdicts = Arc::new(NamespaceVerdicts::new(Arc::new(authenticator), Arc::default(), access.clone()));
        let readable = Self { access, verdicts, lease: None };
        told.iter().for_each(|(namespace, verdict)| readable.tell(namespace, *verdict));
        readable
    }

    pub fn tell(&self, namespace: &str, verdict: Verdict) {
        self.verdicts.put(namespace.into(), verdict);
    }

    pub(super) fn grant_status(&self) -> GrantStatus {
        GrantStatus(self.lease.clone())
    }

    pub fn is_asked(&self, namespace: &str) -> bool {
        self.verdicts.is_wanted(namespace)
    }
}
