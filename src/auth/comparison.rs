//! Compares a share of the answers given here with upstream's (`delegated.compareOneIn`): decisions by RBAC, and the
//! users of tokens that were verified here.
//!
//! If upstream denies what is allowed here, one of the two may not have seen a change yet. Versions tell whether that is
//! so. For a decision, upstream lists the binding and the role, not older than the decision's. If their versions are
//! still those of the decision, the rules are the same on both sides. For a token, upstream lists the objects that it is
//! bound to, and publishes its keys. If they are the same after upstream's rejection, they were so before. Then another
//! denial is a disagreement, and answers of this kind stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::authenticator::Authenticator;
use super::comparison_queue::{ComparedAnswer, ComparedObject};
use super::review_queue::ReviewClass;
use super::{GrantError, metrics};
use crate::upstream::UpstreamRequestCause;
use kubeapi::AccessTarget;

/// How many more times upstream must deny what is allowed by the same objects.
const CONFIRMATIONS: usize = 2;
/// The pause before each confirmation. An apiserver's authorizer receives changes after its lists show them.
const CONFIRM_DELAY: Duration = Duration::from_secs(1);
/// The timeout of the list of one object.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Compares the answers that wait, one after the other. Never returns.
pub(super) async fn run(authenticator: Arc<Authenticator>) {
    loop {
        let answer = authenticator.comparisons.next().await;
        let result = answer.compare(&authenticator).await.unwrap_or("unanswered");
        metrics::compared(answer.kind(), result);
    }
}

impl ComparedAnswer {
    /// Compares the answer with upstream's, and stops answers of this kind if upstream denies what is allowed here by the
    /// same objects. Returns the result as a metric label: `changed` if what the answer depends on was not the same any
    /// more after a denial, or upstream agreed then. Returns `None` if upstream does not answer.
    async fn compare(&self, authenticator: &Authenticator) -> Option<&'static str> {
        let Some(mut reason) = self.denial(authenticator).await.ok()? else { return Some("agreed") };
        if let (Self::Token { .. }, Some(verifier)) = (self, authenticator.verifier()) {
            verifier.read_keys_again().await?;
        }
        for _ in 0..CONFIRMATIONS {
            sleep(CONFIRM_DELAY).await;
            let Some(denial) = self.denial(authenticator).await.ok()? else { return Some("changed") };
            if !self.is_given_here(authenticator) || !self.is_unchanged_upstream(authenticator).await? {
                return Some("changed");
            }
            reason = denial;
        }
        self.stop_local_answers(authenticator, &reason);
        Some("disagreed")
    }

    /// Reviews the access or the token upstream. Returns the reason of a denial; `None` if upstream agrees.
    async fn denial(&self, authenticator: &Authenticator) -> Result<Option<String>, GrantError> {
        match self {
            Self::Decision { user, access, .. } => {
                let (class, cause) = (ReviewClass::Comparison, UpstreamRequestCause::DecisionCheck);
                let (_, result) = authenticator.access_reviewer.review(class, cause, user, access).await?;
                Ok((!result.allowed).then_some(result.reason))
            }
            Self::Token { id, token, user } => authenticator.token_reviewer.compare(*id, token, user).await,
        }
    }

    /// Whether the answer would still be given here.
    fn is_given_here(&self, authenticator: &Authenticator) -> bool {
        match self {
            Self::Decision { user, access, grant } => {
                let local = authenticator.access_reviewer.rbac.decide(user, access);
                local.is_some_and(|local| local.grant == *grant)
            }
            Self::Token { id, token, .. } => {
                authenticator.verifier().is_some_and(|verifier| verifier.proves_now(id, token))
            }
        }
    }

    /// Whether upstream still has the objects that the answer depends on, as they are known here; `None` if it does not answer.
    async fn is_unchanged_upstream(&self, authenticator: &Authenticator) -> Option<bool> {
        let objects = match self {
            Self::Decision { grant, .. } => {
                grant.objects.iter().map(|(key, version)| ComparedObject::at_version(key, version)).collect()
            }
            Self::Token { id, .. } => authenticator.verifier().map(|of| of.bound_objects(id)).unwrap_or_default(),
        };
        for ComparedObject { list, is_same } in objects {
            let listed = timeout(LIST_TIMEOUT, authenticator.reviews.read_object(&list)).await.ok()?.ok()?;
            if !listed.is_some_and(|listed| is_same(&listed)) {
                return Some(false);
            }
        }
        Some(true)
    }

    fn stop_local_answers(&self, authenticator: &Authenticator, upstream_reason: &str) {
        match self {
            Self::Token { user, .. } => {
                authenticator.verifier().inspect(|verifier| verifier.stop(&user.name, upstream_reason));
            }
            Self::Decision { access, grant, .. } => {
                let target = match &access.target {
                    AccessTarget::Path(path) => path,
                    AccessTarget::Resource(target) => &target.resource,
                };
                if authenticator.access_reviewer.rbac.disable() {
                    tracing::error!(
                        verb = access.verb,
                        target,
                        namespace = access.namespace(),
                        local_reason = grant.reason,
                        upstream_reason,
                        "the apiserver denies what RBAC allows; asking it for every decision until a restart or reload"
                    );
                }
            }
        }
    }
}
