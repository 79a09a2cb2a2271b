use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::grant_lease::GrantLease;
use super::namespace_verdicts::{self, NamespaceVerdicts, Verdict};
use super::{Grant, NotGranted, Revoked};
use crate::kube::{Access, Gvr};

/// Permission for a collection: for what one request asks for, or for some namespaces of it.
#[derive(Debug, Clone)]
pub enum Permit {
    Whole(Grant),
    Part(Readable),
}

/// Permission to read those namespaces of a collection in which upstream lets the caller do what it asks to do in all.
///
/// Its fields are private, so only [`Gate::readable`](super::Gate::readable) makes one. A namespace of which nothing is
/// known is not readable. Of a watch all are asserted again as long as it is held.
#[derive(Debug, Clone)]
pub struct Readable {
    access: Arc<Access>,
    sight: Arc<NamespaceVerdicts>,
    lease: Option<Arc<GrantLease>>,
}

/// How long a permission lasts, without what it is for: that is asked again by whoever keeps it standing.
#[derive(Debug, Clone)]
pub struct GrantStatus(Option<Arc<GrantLease>>);

/// What is known of namespaces, as it changes.
#[derive(Debug)]
pub struct VerdictChanges(watch::Receiver<namespace_verdicts::VerdictMap>);

impl Permit {
    /// Whether it is for this collection, or for a part of it.
    pub fn covers(&self, gvr: &Gvr, namespaced: bool, namespace: Option<&str>) -> bool {
        match self {
            Self::Whole(grant) => grant.covers(gvr, namespaced, namespace),
            Self::Part(readable) => {
                let across = namespaced && namespace.is_none();
                across && Grant::new(readable.access.clone(), None).covers(gvr, namespaced, namespace)
            }
        }
    }

    /// Whether it is for what is read, if that has to have this name. `None`: it may have any.
    pub fn names(&self, name: Option<&str>) -> bool {
        match self {
            Self::Whole(grant) => grant.names(name),
            Self::Part(readable) => Grant::new(readable.access.clone(), None).names(name),
        }
    }

    /// Whether objects of a namespace may be shown now.
    pub fn sees(&self, namespace: &str) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Part(readable) => readable.verdict(namespace) == Some(Verdict::Allowed),
        }
    }

    /// The part that it is for, if it is not for all.
    pub fn part(&self) -> Option<&Readable> {
        match self {
            Self::Whole(_) => None,
            Self::Part(readable) => Some(readable),
        }
    }

    /// Why it was given, in the authorizer's words, which may be none.
    pub fn reason(&self) -> Arc<str> {
        match self {
            Self::Whole(grant) => grant.reason().clone(),
            Self::Part(_) => Arc::default(),
        }
    }

    /// What a watch keeps of it.
    pub fn standing(&self) -> GrantStatus {
        GrantStatus(match self {
            Self::Whole(grant) => grant.lease().cloned(),
            Self::Part(readable) => readable.lease.clone(),
        })
    }
}

impl GrantStatus {
    /// Why it is over, once it is: nothing may be sent any more but this.
    pub fn revoked(&self) -> Option<&Revoked> {
        self.0.as_ref()?.revoked()
    }

    /// Completes when it is over; `None` if that never happens.
    pub fn over(&self) -> Option<CancellationToken> {
        self.0.as_ref().map(|lease| lease.over())
    }
}

impl Readable {
    /// More namespaces need not be looked for: they would be too many to ask about.
    pub const ASKED_MAX: usize = namespace_verdicts::NAMESPACES_MAX + 1;

    pub(super) fn new(access: Arc<Access>, sight: Arc<NamespaceVerdicts>, lease: Option<Arc<GrantLease>>) -> Self {
        // All watches that stand on one lease see the same.
        let sight = lease.as_ref().and_then(|lease| lease.sight().cloned()).unwrap_or(sight);
        Self { access, sight, lease }
    }

    /// Finds out which of these may be read, one question each.
    ///
    /// # Errors
    /// There are too many, or it cannot be found out.
    pub async fn find_out(&self, namespaces: impl IntoIterator<Item = &str>) -> Result<(), NotGranted> {
        // One more is enough to tell that there are too many.
        let namespaces: BTreeSet<Arc<str>> =
            namespaces.into_iter().take(namespace_verdicts::NAMESPACES_MAX + 1).map(Into::into).collect();
        self.sight.find_out(namespaces).await
    }

    /// What is known of a namespace.
    pub fn verdict(&self, namespace: &str) -> Option<Verdict> {
        self.sight.verdict(namespace)
    }

    /// Has it found out whether a namespace may be read that came up in a watch; [`verdicts`](Self::verdicts) tells.
    pub fn ask(&self, namespace: &str) {
        if let Err(why) = self.sight.want(namespace)
            && let Some(lease) = &self.lease
        {
            lease.refuse(&why);
        }
    }

    /// Follows what is known.
    pub fn verdicts(&self) -> VerdictChanges {
        VerdictChanges(self.sight.changes())
    }
}

impl VerdictChanges {
    /// Completes when something else is known than when this was made or has last completed.
    pub async fn changed(mut self) -> Self {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self
    }
}

/// What tests say instead of upstream.
#[cfg(test)]
impl Readable {
    /// # Panics
    /// Never: nothing is asked.
    pub fn told(verdicts: &[(&str, Verdict)]) -> Self {
        let nowhere = crate::upstream::CredentialSource::Anonymous(http::Uri::from_static("http://127.0.0.1:1"));
        let client = crate::upstream::Client::connect(&nowhere).expect("nothing is asked");
        let judge =
            super::authenticator::Authenticator::new(Arc::new(client), &super::AuthConfig::default(), None, None);
        let access = Access { verb: "watch".to_owned(), target: crate::kube::AccessTarget::Path(String::new()) };
        let (access, slots) = (Arc::new(access), Arc::new(tokio::sync::Semaphore::new(1)));
        let sight = Arc::new(NamespaceVerdicts::new(Arc::new(judge), Arc::default(), access.clone(), slots));
        let readable = Self { access, sight, lease: None };
        verdicts.iter().for_each(|(namespace, verdict)| readable.tell(namespace, *verdict));
        readable
    }

    pub fn tell(&self, namespace: &str, verdict: Verdict) {
        self.sight.put(namespace.into(), verdict);
    }

    pub(super) fn standing(&self) -> GrantStatus {
        GrantStatus(self.lease.clone())
    }

    pub fn is_asked(&self, namespace: &str) -> bool {
        self.sight.is_wanted(namespace)
    }
}
