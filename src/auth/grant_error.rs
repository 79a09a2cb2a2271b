use std::sync::Arc;

use tokio::time::Instant;

use super::review_permission::ReviewResource;
use crate::upstream::UpstreamError;
use kubeapi::{AccessAttributes, User};

/// The reason that a caller is refused. `serve` decides which details clients receive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The credential was not accepted, or there is none.
    #[error("no valid credential: the caller is not authenticated")]
    Unauthenticated,
    /// Upstream denied the access, with the authorizer's reason, which may be empty.
    #[error("access denied: {0}")]
    Denied(Arc<str>),
    /// No decision can be obtained now, so the request fails with 503 (fail closed).
    #[error("{0}")]
    Unavailable(String),
    /// Upstream rejects the proxy's reviews, so everything that depends on them ends soon.
    #[error("{0}")]
    ReviewsForbidden(String),
    /// The rules that show objects by name are not known since this time, so what they allow is not known either.
    #[error("cannot authorize: the RBAC rules are not known at present; try again")]
    RulesUnknown { since: Instant },
    /// A limit on reviews is exceeded: of one user, of unknown callers, or of all callers together.
    #[error("too many authentication or authorization requests; try again")]
    TooMany { retry_after_seconds: u32 },
    /// The proxy does not filter the collection (403).
    #[error(
        "the collection spans more than {max} namespaces, too many to authorize one by one; list or watch single namespaces"
    )]
    TooManyNamespaces { max: usize },
}

/// A permission that has ended: it was revoked, its credential expired, or it could not be checked for too long.
#[derive(Debug, Clone)]
pub struct RevokedPermission {
    /// The last known user of the permission.
    pub user: Arc<User>,
    /// The access that the permission allowed.
    pub access: Arc<AccessAttributes>,
    pub reason: GrantError,
}

impl GrantError {
    /// Returns the error for a review without an answer.
    pub(super) fn unanswered(error: &UpstreamError, review_resource: ReviewResource) -> Self {
        match error.code() {
            Some(401) => Self::ReviewsForbidden(format!(
                "{}: the apiserver rejects the proxy's own credentials",
                review_resource.refusal
            )),
            Some(403) => Self::ReviewsForbidden(format!(
                "the proxy's account may not create {} (RBAC)",
                review_resource.resource
            )),
            Some(_) => Self::Unavailable(format!("{}: the apiserver rejected the review", review_resource.refusal)),
            // Callers receive the kind of the failure, and the log has its details.
            None => {
                let why = match error {
                    UpstreamError::Unreachable(_) | UpstreamError::ConnectionLost(_) => "the apiserver is unreachable",
                    UpstreamError::Timeout(_) => "the apiserver did not respond in time",
                    UpstreamError::Credentials(_) => "the proxy cannot load its upstream credentials",
                    _ => "the apiserver's response cannot be used",
                };
                Self::Unavailable(format!("{}: {why}", review_resource.refusal))
            }
        }
    }

    /// Creates a denial without a reason.
    pub(super) fn denied() -> Self {
        Self::Denied(Arc::from(""))
    }

    /// Returns the reason as a metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Denied(_) | Self::TooManyNamespaces { .. } => "denied",
            Self::Unavailable(_) | Self::RulesUnknown { .. } => "unavailable",
            Self::ReviewsForbidden(_) => "reviews_forbidden",
            Self::TooMany { .. } => "too_many",
        }
    }

    /// Whether upstream denied the access.
    pub(super) fn is_denial(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    /// Whether the reason is that no decision could be obtained.
    pub(super) fn is_inconclusive(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::ReviewsForbidden(_) | Self::RulesUnknown { .. } | Self::TooMany { .. } => true,
            Self::Unauthenticated | Self::Denied(_) | Self::TooManyNamespaces { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use kubeapi::Status;

    #[test]
    fn unanswered_review_names_the_kind_of_the_failure() {
        for (error, why) in [
            (UpstreamError::Unreachable("connection refused".into()), "the apiserver is unreachable"),
            (UpstreamError::Timeout(Duration::from_secs(30)), "the apiserver did not respond in time"),
            (UpstreamError::Credentials("/a/path".to_owned()), "the proxy cannot load its upstream credentials"),
            (UpstreamError::EndlessPages, "the apiserver's response cannot be used"),
        ] {
            let refusal = GrantError::unanswered(&error, ReviewResource::TOKEN).to_string();
            assert_eq!(refusal, format!("cannot authenticate: {why}"), "{error}");
        }
    }

    #[test]
    fn rejected_review_is_reported_as_reviews_forbidden() {
        let refused = |code| UpstreamError::Refused(Box::new(Status { code, ..Status::default() }));
        for (error, expected) in [
            (refused(401), "reviews_forbidden"),
            (refused(403), "reviews_forbidden"),
            (refused(404), "unavailable"),
            (refused(429), "unavailable"),
            (refused(500), "unavailable"),
            (UpstreamError::Unreachable("connection refused".into()), "unavailable"),
            (UpstreamError::Timeout(Duration::from_secs(30)), "unavailable"),
            (UpstreamError::Credentials("/a/path".to_owned()), "unavailable"),
            (UpstreamError::OtherDocument("/apis/authorization.k8s.io/v1".to_owned()), "unavailable"),
        ] {
            let refusal = GrantError::unanswered(&error, ReviewResource::TOKEN);
            assert_eq!(refusal.as_str(), expected, "{error}");
            // Details of the failure are for the log, and not for callers.
            assert!(!refusal.to_string().contains(&error.to_string()), "{refusal}");
        }
    }
}
