use std::pin::Pin;
use std::sync::Arc;

use super::credential::Token;
use crate::upstream::{AccessReviewResult, Cause, Client, Error, TokenReviewResult};
use kubeapi::{Access, AccessTarget, ResourceTarget, User};

/// The topic of a review about a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReviewTopic {
    /// The label in metrics.
    pub(super) label: &'static str,
    /// The API group and the resource of its reviews.
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    /// The operation that fails without an answer, for messages.
    pub(super) refusal: &'static str,
}

/// Creates reviews of callers: upstream, or a stub in tests.
pub(super) trait Reviews: Send + Sync {
    /// Reviews a token.
    fn token(&self, token: &Token, audiences: &Arc<[String]>) -> ReviewFuture<TokenReviewResult>;

    /// Reviews whether the user may make the access. `cause` is the purpose of the review, for upstream.
    fn access(&self, cause: Cause, user: &Arc<User>, access: &Arc<Access>) -> ReviewFuture<AccessReviewResult>;

    /// Reviews whether the proxy itself may create reviews of the topic.
    fn own_right(&self, topic: ReviewTopic) -> ReviewFuture<bool>;
}

/// The future of a review. It is boxed, because it is large and rarely created.
pub(super) type ReviewFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl ReviewTopic {
    pub(super) const TOKEN: Self = Self {
        label: "token",
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        refusal: "cannot authenticate",
    };
    pub(super) const ACCESS: Self = Self {
        label: "access",
        group: "authorization.k8s.io",
        resource: "subjectaccessreviews",
        refusal: "cannot authorize",
    };
}

impl Reviews for Client {
    fn token(&self, token: &Token, audiences: &Arc<[String]>) -> ReviewFuture<TokenReviewResult> {
        let (client, token, audiences) = (self.clone(), token.clone(), audiences.clone());
        Box::pin(async move { client.review_token(token.reveal(), &audiences).await })
    }

    fn access(&self, cause: Cause, user: &Arc<User>, access: &Arc<Access>) -> ReviewFuture<AccessReviewResult> {
        let (client, user, access) = (self.clone(), user.clone(), access.clone());
        Box::pin(async move { client.review_access(cause, &user, &access).await })
    }

    fn own_right(&self, topic: ReviewTopic) -> ReviewFuture<bool> {
        let client = self.clone();
        Box::pin(async move {
            let target = ResourceTarget {
                group: topic.group.to_owned(),
                version: "v1".to_owned(),
                resource: topic.resource.to_owned(),
                ..ResourceTarget::default()
            };
            let access = Access { verb: "create".to_owned(), target: AccessTarget::Resource(Box::new(target)) };
            client.review_own_access(&access).await.map(|verdict| verdict.allowed)
        })
    }
}
