//! Compares a share of local decisions with upstream's (`delegated.compareOneIn`).
//!
//! If upstream denies what the rules allow, one of the two may not have seen a change yet. Versions tell whether that
//! is so: upstream lists the binding and the role, not older than the decision's. If their versions are still those of
//! the decision, the rules are the same on both sides, and another denial is a disagreement. Then local decisions stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::access_reviewer::AccessReviewer;
use super::authenticator::Authenticator;
use super::rbac_sample::ComparedDecision;
use super::review_queue::ReviewClass;
use super::{GrantError, RbacGrant, RbacObjectKey, metrics};
use crate::upstream::{AccessReviewResult, UpstreamRequestCause};
use kubeapi::{AccessTarget, EscapedFieldTerm, Gvr, NAME_KEY};

/// The result of a comparison.
enum RbacComparison {
    Agreed,
    /// Upstream denied the access, and then the rules were not the same any more, or it allowed the access.
    Changed,
    /// Upstream denies what the same rules allow, with this reason.
    Disagreed(String),
}

/// How many more times upstream must deny an access by the same rules.
const CONFIRMATIONS: usize = 2;
/// The pause before each confirmation. An apiserver's authorizer receives changes after its lists show them.
const CONFIRM_DELAY: Duration = Duration::from_secs(1);
/// The timeout of the list of one object.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Compares the decisions that wait, one after the other. Never returns.
pub(super) async fn run(authenticator: Arc<Authenticator>) {
    let reviewer = &authenticator.access_reviewer;
    loop {
        let decision = reviewer.comparisons.next().await;
        metrics::compared(match decision.compare(reviewer).await {
            Ok(RbacComparison::Agreed) => "agreed",
            Ok(RbacComparison::Changed) => "changed",
            Err(_) => "unanswered",
            Ok(RbacComparison::Disagreed(reason)) => {
                decision.stop_local_decisions(reviewer, &reason);
                "disagreed"
            }
        });
    }
}

impl ComparedDecision {
    /// Compares the decision with upstream's.
    ///
    /// # Errors
    /// Upstream does not answer.
    async fn compare(&self, reviewer: &AccessReviewer) -> Result<RbacComparison, GrantError> {
        if self.review(reviewer).await?.allowed {
            return Ok(RbacComparison::Agreed);
        }
        let mut reason = String::new();
        for _ in 0..CONFIRMATIONS {
            sleep(CONFIRM_DELAY).await;
            let RbacGrant { binding, binding_version, role, role_version, .. } = &self.grant;
            if !is_unchanged(reviewer, binding, binding_version).await?
                || !is_unchanged(reviewer, role, role_version).await?
            {
                return Ok(RbacComparison::Changed);
            }
            let result = self.review(reviewer).await?;
            let local = reviewer.rbac.decide(&self.user, &self.access);
            if result.allowed || local.is_none_or(|local| local.grant != self.grant) {
                return Ok(RbacComparison::Changed);
            }
            reason = result.reason;
        }
        Ok(RbacComparison::Disagreed(reason))
    }

    async fn review(&self, reviewer: &AccessReviewer) -> Result<AccessReviewResult, GrantError> {
        let (class, cause) = (ReviewClass::Comparison, UpstreamRequestCause::DecisionCheck);
        Ok(reviewer.review(class, cause, &self.user, &self.access).await?.1)
    }

    fn stop_local_decisions(&self, reviewer: &AccessReviewer, upstream_reason: &str) {
        let target = match &self.access.target {
            AccessTarget::Path(path) => path,
            AccessTarget::Resource(target) => &target.resource,
        };
        if reviewer.rbac.disable() {
            tracing::error!(
                verb = self.access.verb,
                target,
                namespace = self.access.namespace(),
                local_reason = self.grant.reason,
                upstream_reason,
                "the apiserver denies what RBAC allows; asking it for every decision until a restart or reload"
            );
        }
    }
}

/// Whether upstream has an object at exactly this version, in a list that is not older.
async fn is_unchanged(reviewer: &AccessReviewer, object: &RbacObjectKey, version: &str) -> Result<bool, GrantError> {
    let gvr = Gvr::new("rbac.authorization.k8s.io", "v1", object.kind.resource());
    let path = gvr.path_in(&object.namespace);
    let name = EscapedFieldTerm::is(NAME_KEY, &object.name);
    let list = format!("{path}?fieldSelector={name}&resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    let listed = timeout(LIST_TIMEOUT, reviewer.reviews.read_version(&list)).await;
    match listed {
        Ok(Ok(listed)) => Ok(listed.as_deref() == Some(version)),
        Ok(Err(error)) => Err(GrantError::Unavailable(error.to_string())),
        Err(elapsed) => Err(GrantError::Unavailable(elapsed.to_string())),
    }
}
