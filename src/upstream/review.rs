//! Reviews of callers: who owns a token, and what a user may do. Nothing is cached here; `auth` does that.

use futures_util::future::BoxFuture;
use http::HeaderMap;
use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview, SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client::{ConnectionTarget, JsonListPage, parse_json, read_whole};
use super::{BODY_BYTES_MAX, UpstreamClient, UpstreamError, UpstreamRequestCause};
use kubeapi::{AccessAttributes, AccessTarget, User};

/// The result of a token review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenReviewResult {
    /// The owner of the token; `None` if it is not authenticated.
    pub user: Option<User>,
    /// The requested audiences for which the token is valid. Empty from authenticators without audience support.
    pub audiences: Vec<String>,
    /// Why the token is not authenticated. An authenticator may quote the token.
    pub error: String,
}

/// The result of an access review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessReviewResult {
    pub allowed: bool,
    /// The authorizer's reason, which may be empty.
    pub reason: String,
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    pub version: String,
    pub uid: String,
    pub is_deleting: bool,
}

#[derive(Deserialize)]
struct PartialObject {
    metadata: ObjectMeta,
}

/// The reason of the Node authorizer for an object that none of the node's known pods needs
/// (`plugin/pkg/auth/authorizer/node/node_authorizer.go`).
const NODE_UNRELATED: &str = "no relationship found between node";

/// The prefix of the reason for access that RBAC allows. Neither the Node authorizer nor ABAC gives a reason.
const BY_RBAC: &str = "RBAC: allowed by ";

/// Lists need no more than metadata. Those of Secrets must not have more.
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The paths at which reviews are created.
pub const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const SELF_SUBJECT_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
pub const SELF_SUBJECT_ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Creates reviews: upstream does, or a stub in tests.
pub trait ReviewClient: Send + Sync {
    /// Reviews whose token it is. An upstream proxy receives `cause`.
    fn review_token<'a>(
        &'a self,
        cause: UpstreamRequestCause,
        token: &'a str,
        audiences: &'a [String],
    ) -> ReviewFuture<'a, TokenReviewResult>;

    /// Reviews whether `user` may perform `access`. An upstream proxy receives `cause`.
    fn review_access<'a>(
        &'a self,
        cause: UpstreamRequestCause,
        user: &'a User,
        access: &'a AccessAttributes,
    ) -> ReviewFuture<'a, AccessReviewResult>;

    /// Returns the first object of a list; `None` if the list is empty.
    fn read_object<'a>(&'a self, list_url: &'a str) -> ReviewFuture<'a, Option<ListedObject>>;

    /// Counts a review that was answered without a request.
    fn answered_here(&self, _: UpstreamRequestCause) {}

    /// Reviews whether the proxy itself may perform `access`. Any user may request this review.
    fn review_own_access<'a>(&'a self, access: &'a AccessAttributes) -> ReviewFuture<'a, AccessReviewResult>;
}

/// The future of a review. It is boxed, because it is large and rarely created.
pub type ReviewFuture<'a, T> = BoxFuture<'a, Result<T, UpstreamError>>;

impl ReviewClient for UpstreamClient {
    fn review_token<'a>(
        &'a self,
        cause: UpstreamRequestCause,
        token: &'a str,
        audiences: &'a [String],
    ) -> ReviewFuture<'a, TokenReviewResult> {
        Box::pin(async move {
            let spec = TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: (!audiences.is_empty()).then(|| audiences.to_vec()),
            };
            let review = TokenReview { spec, ..TokenReview::default() };
            let review = self.create(cause, TOKEN_REVIEWS, &review).await?;
            Ok(TokenReviewResult::from_status(review.status.unwrap_or_default()))
        })
    }

    fn review_access<'a>(
        &'a self,
        cause: UpstreamRequestCause,
        user: &'a User,
        access: &'a AccessAttributes,
    ) -> ReviewFuture<'a, AccessReviewResult> {
        Box::pin(async move {
            let review = self.create(cause, ACCESS_REVIEWS, &access_review(user, access)).await?;
            Ok(AccessReviewResult::from_status(review.status.unwrap_or_default()))
        })
    }

    fn read_object<'a>(&'a self, list_url: &'a str) -> ReviewFuture<'a, Option<ListedObject>> {
        Box::pin(async move {
            let (_, body) = self.fetch(UpstreamRequestCause::DecisionCheck, list_url, METADATA_LIST).await?;
            let list: JsonListPage<'_> = parse_json(&body, list_url)?;
            let Some(first) = list.items.first() else { return Ok(None) };
            let PartialObject { metadata } = parse_json(first.get().as_bytes(), list_url)?;
            Ok(Some(ListedObject {
                version: metadata.resource_version.unwrap_or_default(),
                uid: metadata.uid.unwrap_or_default(),
                is_deleting: metadata.deletion_timestamp.is_some(),
            }))
        })
    }

    fn answered_here(&self, cause: UpstreamRequestCause) {
        self.costs().answered_here(cause);
    }

    fn review_own_access<'a>(&'a self, access: &'a AccessAttributes) -> ReviewFuture<'a, AccessReviewResult> {
        Box::pin(async move {
            let (resource_attributes, non_resource_attributes) = attributes(access);
            let spec = SelfSubjectAccessReviewSpec { resource_attributes, non_resource_attributes };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            let review = self.create(UpstreamRequestCause::SelfReview, SELF_SUBJECT_ACCESS_REVIEWS, &review).await?;
            Ok(AccessReviewResult::from_status(review.status.unwrap_or_default()))
        })
    }
}

impl UpstreamClient {
    /// Requests the user as which upstream authenticates the proxy.
    pub async fn own_user(&self) -> Result<User, UpstreamError> {
        let review =
            self.create(UpstreamRequestCause::SelfReview, SELF_SUBJECT_REVIEWS, &SelfSubjectReview::default()).await?;
        let info = review.status.and_then(|status| status.user_info);
        Ok(info.map(user).unwrap_or_default())
    }

    /// Creates a review, whose response is the same document with a status.
    async fn create<R: Serialize + DeserializeOwned>(
        &self,
        cause: UpstreamRequestCause,
        path: &str,
        review: &R,
    ) -> Result<R, UpstreamError> {
        let body = serde_json::to_vec(review).map_err(|_| UpstreamError::InvalidRequest(path.to_owned()))?;
        let response =
            self.send_request(cause, ConnectionTarget::SHORT, path, HeaderMap::new(), Some(body.into())).await?;
        parse_json(&read_whole(response.into_body(), BODY_BYTES_MAX, |_| Ok(())).await?, path)
    }
}

impl TokenReviewResult {
    /// Parses a `TokenReview` response; returns `None` if it is not one.
    pub fn parse(response: &[u8]) -> Option<Self> {
        Some(Self::from_status(serde_json::from_slice::<TokenReview>(response).ok()?.status.unwrap_or_default()))
    }

    /// Converts the status of a TokenReview. Only `authenticated: true` with a name authenticates a user: a response
    /// that lacks either must not be trusted (CVE-2023-48312).
    fn from_status(status: TokenReviewStatus) -> Self {
        let error = status.error.unwrap_or_default();
        let known = status.authenticated == Some(true) && error.is_empty();
        let user = status.user.filter(|_| known).map(user).filter(|user| !user.name.is_empty());
        Self { user, audiences: status.audiences.unwrap_or_default(), error }
    }
}

impl AccessReviewResult {
    /// Parses a `SubjectAccessReview` response; returns `None` if it is not one.
    pub fn parse(response: &[u8]) -> Option<Self> {
        Some(Self::from_status(
            serde_json::from_slice::<SubjectAccessReview>(response).ok()?.status.unwrap_or_default(),
        ))
    }

    /// Whether the reason of an allow decision names RBAC.
    pub fn is_by_rbac(reason: &str) -> bool {
        reason.starts_with(BY_RBAC)
    }

    /// Whether a denial with this reason may soon change without an event. The Node authorizer denies objects that a
    /// node's pods need until it has seen those pods, and their kubelet learns of them sooner.
    pub fn is_transient_denial(reason: &str) -> bool {
        reason.contains(NODE_UNRELATED)
    }

    fn from_status(status: SubjectAccessReviewStatus) -> Self {
        // If both are set, or the result is malformed, access is denied.
        let allowed = status.allowed && status.denied != Some(true);
        Self { allowed, reason: status.reason.unwrap_or_default() }
    }
}

fn user(info: UserInfo) -> User {
    User {
        name: info.username.unwrap_or_default(),
        uid: info.uid.unwrap_or_default(),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    }
}

/// Builds the complete review: if an attribute were omitted, the decision would apply to more than was requested (A3).
fn access_review(user: &User, access: &AccessAttributes) -> SubjectAccessReview {
    let (resource_attributes, non_resource_attributes) = attributes(access);
    let spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: some(&user.uid),
        groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        resource_attributes,
        non_resource_attributes,
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// Converts the attributes of an access. Selectors are sent unchanged: upstream parses them like those of the request
/// itself (R-AUTHZ-2).
fn attributes(access: &AccessAttributes) -> (Option<ResourceAttributes>, Option<NonResourceAttributes>) {
    let target = match &access.target {
        AccessTarget::Path(path) => {
            let (path, verb) = (Some(path.clone()), Some(access.verb.clone()));
            return (None, Some(NonResourceAttributes { path, verb }));
        }
        AccessTarget::Resource(target) => target,
    };
    let (field_selector, label_selector) = (some(&target.field_selector), some(&target.label_selector));
    let attributes = ResourceAttributes {
        verb: some(&access.verb),
        group: some(&target.group),
        version: some(&target.version),
        resource: some(&target.resource),
        subresource: some(&target.subresource),
        namespace: some(&target.namespace),
        name: some(&target.name),
        field_selector: field_selector
            .map(|raw| FieldSelectorAttributes { raw_selector: Some(raw), ..FieldSelectorAttributes::default() }),
        label_selector: label_selector
            .map(|raw| LabelSelectorAttributes { raw_selector: Some(raw), ..LabelSelectorAttributes::default() }),
    };
    (Some(attributes), None)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kubeapi::ResourceAccessAttributes;

    /// A2: the review carries every attribute that a permission may depend on.
    #[test]
    fn access_review_carries_every_attribute() {
        let user = User {
            name: "ada".to_owned(),
            uid: "7".to_owned(),
            groups: vec!["dev".to_owned()],
            extra: [("scopes".to_owned(), vec!["a".to_owned()])].into(),
        };
        let target = ResourceAccessAttributes {
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            resource: "deployments".to_owned(),
            namespace: "t1".to_owned(),
            name: "web".to_owned(),
            field_selector: "metadata.name=web".to_owned(),
            label_selector: "a in (b)".to_owned(),
            ..ResourceAccessAttributes::default()
        };
        let access = AccessAttributes { verb: "watch".to_owned(), target: AccessTarget::Resource(Box::new(target)) };
        let spec = serde_json::to_value(access_review(&user, &access).spec).expect("JSON");
        let expected = json!({
            "user": "ada", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["a"]},
            "resourceAttributes": {
                "verb": "watch", "group": "apps", "version": "v1", "resource": "deployments", "namespace": "t1",
                "name": "web", "fieldSelector": {"rawSelector": "metadata.name=web"},
                "labelSelector": {"rawSelector": "a in (b)"},
            },
        });
        assert_eq!(spec, expected);
    }

    #[test]
    fn token_is_authenticated_only_without_error_and_with_user() {
        let ada = UserInfo { username: Some("ada".to_owned()), ..UserInfo::default() };
        let says = |authenticated, error: Option<&str>, user| {
            let error = error.map(str::to_owned);
            TokenReviewResult::from_status(TokenReviewStatus { authenticated, error, user, audiences: None }).user
        };
        assert!(says(Some(true), None, Some(ada.clone())).is_some());
        assert!(says(Some(true), Some(""), Some(ada.clone())).is_some());
        for (authenticated, error, user) in [
            (None, None, Some(ada.clone())),
            (Some(false), None, Some(ada.clone())),
            (Some(true), Some("webhook failed"), Some(ada)),
            (Some(true), None, None),
            (Some(true), None, Some(UserInfo::default())),
        ] {
            assert_eq!(says(authenticated, error, user), None);
        }
    }
}
