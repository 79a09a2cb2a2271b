use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::upstream::{AccessReviewResult, ReviewClient, UpstreamError};
use base::{Backoff, BackoffBounds, LogRateLimit, ReadinessGuard, ReadinessTracker};
use kubeapi::AccessAttributes;
use tokio::sync::watch;

/// A resource of reviews about callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReviewResource {
    /// The resource as a metric label.
    pub(super) label: &'static str,
    /// The API group and the resource of its reviews.
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    /// The operation that fails without a response, for messages.
    pub(super) refusal: &'static str,
    /// What is not known before the first response, for messages.
    unknown: &'static str,
}

/// Whether the proxy's account may create one kind of review, according to the last review.
#[derive(Debug)]
pub(super) struct ReviewCreationPermission {
    pub(super) review_resource: ReviewResource,
    state: watch::Sender<ReviewCreationState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReviewCreationState {
    /// No review has been answered yet, so the permission is unknown.
    Unproven,
    Granted,
    /// Upstream refused a review with this status code, 401 or 403.
    Refused(u16),
}

/// The pauses between two checks of a missing permission. They are short, because no request can be authorized until
/// the permission is granted.
const RECHECK: BackoffBounds = BackoffBounds { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

impl ReviewResource {
    pub(super) const TOKEN: Self = Self {
        label: "token",
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        refusal: "cannot authenticate",
        unknown: "tokens that need a review are refused",
    };
    pub(super) const ACCESS: Self = Self {
        label: "access",
        group: "authorization.k8s.io",
        resource: "subjectaccessreviews",
        refusal: "cannot authorize",
        unknown: "no caller's permissions are known, also not those of certificates",
    };

    /// Returns the access that creates these reviews.
    pub(super) fn creation(self) -> AccessAttributes {
        AccessAttributes::of_v1("create", self.group, self.resource)
    }
}

impl ReviewCreationPermission {
    pub(super) fn new(review_resource: ReviewResource) -> Self {
        Self { review_resource, state: watch::Sender::new(ReviewCreationState::Unproven) }
    }

    /// Records the response to a review. An error that does not concern the permission changes nothing.
    pub(super) fn record<T>(&self, response: &Result<T, UpstreamError>) {
        match response {
            Ok(_) => self.set(ReviewCreationState::Granted),
            Err(error) => {
                if let Some(code @ (401 | 403)) = error.code() {
                    self.set(ReviewCreationState::Refused(code));
                }
            }
        }
    }

    fn set(&self, state: ReviewCreationState) {
        self.state.send_if_modified(|known| std::mem::replace(known, state) != state);
    }

    /// Keeps `ready` from being ready until the permission is proven, and again whenever upstream refuses a review.
    ///
    /// A missing permission is checked with backoff, and no check is sent while it is granted. The guard is registered
    /// at once; the future never returns.
    pub(super) fn track_readiness(
        self: Arc<Self>,
        reviews: Arc<dyn ReviewClient>,
        ready: ReadinessTracker,
    ) -> impl Future<Output = ()> + Send + 'static {
        let mut guard = Some(self.readiness_guard(&ready));
        async move {
            let (resource, failures) = (self.review_resource.resource, LogRateLimit::default());
            let (mut state, mut backoff) = (self.state.subscribe(), Backoff::new(RECHECK));
            let mut is_first = true;
            loop {
                let now = *state.borrow_and_update();
                if now == ReviewCreationState::Granted {
                    if guard.take().is_some() {
                        tracing::info!(resource, "the proxy's account may create reviews");
                    }
                    backoff.succeeded(Instant::now());
                    if state.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                is_first &= guard.is_some();
                guard.get_or_insert_with(|| self.readiness_guard(&ready));
                if !std::mem::take(&mut is_first) {
                    if let Some(checks) = failures.failed(Instant::now()) {
                        let reason = self.reason(now);
                        tracing::warn!(resource, checks, reason, "proxy not ready: it cannot create reviews");
                    }
                    let granted = state.wait_for(|state| *state == ReviewCreationState::Granted);
                    if timeout(backoff.failed(Instant::now()), granted).await.is_ok() {
                        continue;
                    }
                }
                self.check(&*reviews).await;
            }
        }
    }

    /// Checks whether the proxy may create these reviews.
    async fn check(&self, reviews: &dyn ReviewClient) {
        let resource = self.review_resource.resource;
        match reviews.review_own_access(&self.review_resource.creation()).await {
            Ok(AccessReviewResult { allowed: true, .. }) => self.set(ReviewCreationState::Granted),
            Ok(_) => self.set(ReviewCreationState::Refused(403)),
            Err(error) if error.code() == Some(401) => self.set(ReviewCreationState::Refused(401)),
            // A cluster may forbid every account to check its own permissions. Then only the next review can prove the
            // permission, and a process that is not ready receives no request.
            Err(error) if error.code() == Some(403) => {
                tracing::warn!(resource, %error, "cannot check whether the proxy may create reviews; assuming that it may");
                self.set(ReviewCreationState::Granted);
            }
            Err(error) => {
                tracing::debug!(resource, %error, "cannot check whether the proxy may create reviews; retrying");
            }
        }
    }

    fn readiness_guard(self: &Arc<Self>, ready: &ReadinessTracker) -> ReadinessGuard {
        let permission = self.clone();
        ready
            .register(self.review_resource.resource)
            .with_reason(move || Some(permission.reason(*permission.state.borrow())))
    }

    /// Returns what is not known while no review has been answered yet.
    pub(super) fn unknown(&self) -> Option<String> {
        (*self.state.borrow() == ReviewCreationState::Unproven).then(|| self.unanswered())
    }

    fn unanswered(&self) -> String {
        let ReviewResource { resource, unknown, .. } = self.review_resource;
        format!("the apiserver has answered no {resource} since this proxy started, so {unknown}")
    }

    fn reason(&self, state: ReviewCreationState) -> String {
        match state {
            ReviewCreationState::Unproven => self.unanswered(),
            ReviewCreationState::Granted => "being checked".to_owned(),
            ReviewCreationState::Refused(401) => "upstream rejects the proxy's credentials (401)".to_owned(),
            ReviewCreationState::Refused(code) => {
                let ReviewResource { group, resource, .. } = self.review_resource;
                format!("upstream rejects them ({code}): grant the proxy's account create on {resource}.{group}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
