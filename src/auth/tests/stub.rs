//! A stub that answers reviews as a test configures it, on the test's own clock.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::auth::review_permission::ReviewResource;
use crate::auth::token_verifier::TokenVerifier;
use crate::auth::{
    AuthConfig, Authorizer, Caller, ClientConnectionInfo, DelegatedAuthDeps, GrantError, WaitingPermitFn,
};
use crate::upstream::{
    AccessReviewResult, CredentialSource, ListedObject, ReviewClient, ReviewFuture, TokenReviewResult, UpstreamClient,
    UpstreamError, UpstreamRequestCause,
};
use base::{BackgroundTasks, WallClock};
use kubeapi::{AccessAttributes, AccessTarget, RequestInfo, Status, UrlQuery, User};

/// A token is its holder's name, with an optional suffix: `ada~1`. Every access is allowed unless denied.
#[derive(Default)]
pub(in crate::auth) struct StubReviewClient {
    rules: Mutex<StubReviewRules>,
    pub(in crate::auth) clock: WallClock,
}

/// A function that creates an error of upstream.
pub(in crate::auth) type StubErrorFn = Box<dyn Fn() -> UpstreamError + Send>;

/// A function that answers a list with the version of an object, which is also its UID.
pub(in crate::auth) type StubListFn = Box<dyn Fn(&str) -> Result<Option<String>, UpstreamError> + Send>;

#[derive(Default)]
struct StubReviewRules {
    unknown: HashSet<String>,
    /// The users of tokens that do not name their holder.
    users: HashMap<String, User>,
    /// The denied pairs of user and namespace. `*` matches any namespace.
    denied: HashSet<(String, String)>,
    slow: HashMap<String, Duration>,
    silent: bool,
    /// Whether a review is decided when it is sent, and not when it is answered.
    decides_first: bool,
    /// A namespace whose reviews fail.
    mute: Option<String>,
    /// The reason of allow decisions.
    reason: &'static str,
    reviews: Vec<StubReview>,
    /// The groups of users.
    groups: HashMap<String, Vec<String>>,
    /// The answer to lists of one object: its version and UID. `None` is the version that the list names.
    listed: Option<StubListFn>,
    /// The resources of which the proxy may not create reviews.
    lacking: HashSet<&'static str>,
    /// The answer to every review of the proxy's own permissions.
    own_rights: Option<StubErrorFn>,
    /// The number of reviews of the proxy's own permissions.
    own_reviews: u32,
    /// The number of answers that were given without a review.
    answered_here: usize,
}

/// A review that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::auth) struct StubReview {
    pub(in crate::auth) at: Instant,
    pub(in crate::auth) user: String,
    /// The namespace of an access review; `None` for a token review.
    pub(in crate::auth) namespace: Option<String>,
}

impl StubReviewClient {
    /// Revokes a token.
    pub(in crate::auth) fn take(&self, token: &str) {
        self.rules.lock().unknown.insert(token.to_owned());
    }

    /// Accepts a revoked token again.
    pub(in crate::auth) fn restore(&self, token: &str) {
        self.rules.lock().unknown.remove(token);
    }

    /// Accepts a token as that of this user.
    pub(in crate::auth) fn accept(&self, token: &str, user: User) {
        self.rules.lock().users.insert(token.to_owned(), user);
    }

    pub(in crate::auth) fn deny(&self, user: &str, namespace: &str) {
        self.rules.lock().denied.insert((user.to_owned(), namespace.to_owned()));
    }

    pub(in crate::auth) fn allow(&self, user: &str, namespace: &str) {
        self.rules.lock().denied.remove(&(user.to_owned(), namespace.to_owned()));
    }

    /// Sets how long reviews take for users and tokens whose name is `user`, up to the first dash.
    pub(in crate::auth) fn slow(&self, user: &str, answer: Duration) {
        self.rules.lock().slow.insert(user.to_owned(), answer);
    }

    /// Sets whether all reviews fail.
    pub(in crate::auth) fn silent(&self, silent: bool) {
        self.rules.lock().silent = silent;
    }

    /// Decides reviews when they are sent, and not when they are answered.
    pub(in crate::auth) fn decides_first(&self) {
        self.rules.lock().decides_first = true;
    }

    /// Sets the reason of allow decisions.
    pub(in crate::auth) fn because(&self, reason: &'static str) {
        self.rules.lock().reason = reason;
    }

    /// Sets the groups of a user.
    pub(in crate::auth) fn group(&self, user: &str, groups: &[&str]) {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.rules.lock().groups.insert(user.to_owned(), groups);
    }

    /// Answers lists of one object with its version and UID.
    pub(in crate::auth) fn list(
        &self,
        answer: impl Fn(&str) -> Result<Option<String>, UpstreamError> + Send + 'static,
    ) {
        self.rules.lock().listed = Some(Box::new(answer));
    }

    /// Makes reviews of a namespace fail.
    pub(in crate::auth) fn mute(&self, namespace: &str) {
        self.rules.lock().mute = Some(namespace.to_owned());
    }

    /// Revokes the permission to create reviews of the resource, or restores it.
    pub(in crate::auth) fn lack(&self, resource: ReviewResource, lacks: bool) {
        let mut rules = self.rules.lock();
        if lacks {
            rules.lacking.insert(resource.resource)
        } else {
            rules.lacking.remove(resource.resource)
        };
    }

    /// Answers reviews of the proxy's own permissions with this error; `None` answers them normally again.
    pub(in crate::auth) fn refuse_own_rights(&self, refusal: Option<StubErrorFn>) {
        self.rules.lock().own_rights = refusal;
    }

    /// Returns upstream's 403 while the proxy may not create these reviews.
    fn check_right(&self, resource: ReviewResource) -> Result<(), UpstreamError> {
        let forbidden = || UpstreamError::Refused(Box::new(Status { code: 403, ..Status::default() }));
        if self.rules.lock().lacking.contains(resource.resource) { Err(forbidden()) } else { Ok(()) }
    }

    /// The number of reviews of the proxy's own permissions.
    pub(in crate::auth) fn own_reviews(&self) -> u32 {
        self.rules.lock().own_reviews
    }

    /// Takes the number of answers that were given without a review since the last call.
    pub(in crate::auth) fn take_answered_here(&self) -> usize {
        std::mem::take(&mut self.rules.lock().answered_here)
    }

    /// Takes the reviews sent since the last call.
    pub(in crate::auth) fn reviews(&self) -> Vec<StubReview> {
        std::mem::take(&mut self.rules.lock().reviews)
    }

    fn sent(&self, user: &str, namespace: Option<&str>) -> (Duration, bool) {
        let mut rules = self.rules.lock();
        let review = StubReview { at: Instant::now(), user: user.to_owned(), namespace: namespace.map(str::to_owned) };
        rules.reviews.push(review);
        let group = user.split('-').next().unwrap_or_default();
        let mute = namespace.is_some() && rules.mute.as_deref() == namespace;
        (rules.slow.get(group).copied().unwrap_or(Duration::from_millis(2)), rules.silent || mute)
    }
}

impl ReviewClient for StubReviewClient {
    fn answered_here(&self, _: UpstreamRequestCause) {
        self.rules.lock().answered_here += 1;
    }

    fn read_object<'a>(&'a self, list_url: &'a str) -> ReviewFuture<'a, Option<ListedObject>> {
        let asked = || list_url.split_once("resourceVersion=").and_then(|(_, version)| version.split('&').next());
        let answer = match &self.rules.lock().listed {
            Some(answer) => answer(list_url),
            None => Ok(asked().map(str::to_owned)),
        };
        let object = |of: String| ListedObject { version: of.clone(), uid: of, is_deleting: false };
        Box::pin(async move { answer.map(|of| of.map(object)) })
    }

    fn review_own_access<'a>(&'a self, access: &'a AccessAttributes) -> ReviewFuture<'a, AccessReviewResult> {
        let AccessTarget::Resource(target) = &access.target else { panic!("{access:?}") };
        let result = {
            let mut rules = self.rules.lock();
            rules.own_reviews += 1;
            match &rules.own_rights {
                Some(refusal) => Err(refusal()),
                None => {
                    let allowed = !rules.lacking.contains(target.resource.as_str());
                    Ok(AccessReviewResult { allowed, reason: String::new() })
                }
            }
        };
        Box::pin(async move { result })
    }

    fn review_token<'a>(
        &'a self,
        _: UpstreamRequestCause,
        token: &'a str,
        audiences: &'a [String],
    ) -> ReviewFuture<'a, TokenReviewResult> {
        Box::pin(async move {
            let (slow, silent) = self.sent(token, None);
            sleep(slow).await;
            if silent {
                return Err(UpstreamError::Timeout(slow));
            }
            self.check_right(ReviewResource::TOKEN)?;
            let is_known = !token.starts_with("guess") && !self.rules.lock().unknown.contains(token);
            let holder = token.split('~').next().unwrap_or_default().to_owned();
            let is_node = holder.starts_with("system:node:");
            let groups = self.rules.lock().groups.get(&holder).cloned().unwrap_or_default();
            let groups = if is_node { vec!["system:nodes".to_owned()] } else { groups };
            let named = self.rules.lock().users.get(token).cloned();
            let user = is_known.then(|| named.unwrap_or(User { name: holder, groups, ..User::default() }));
            Ok(TokenReviewResult { user, audiences: audiences.to_vec(), error: String::new() })
        })
    }

    fn review_access<'a>(
        &'a self,
        _: UpstreamRequestCause,
        user: &'a User,
        access: &'a AccessAttributes,
    ) -> ReviewFuture<'a, AccessReviewResult> {
        Box::pin(async move {
            let AccessTarget::Resource(target) = &access.target else { panic!("{access:?}") };
            let (slow, silent) = self.sent(&user.name, Some(&target.namespace));
            let denied =
                |namespace: &str| self.rules.lock().denied.contains(&(user.name.clone(), namespace.to_owned()));
            let is_allowed = || !denied(&target.namespace) && !denied("*");
            let first = is_allowed();
            sleep(slow).await;
            if silent {
                return Err(UpstreamError::Timeout(slow));
            }
            self.check_right(ReviewResource::ACCESS)?;
            let allowed = if self.rules.lock().decides_first { first } else { is_allowed() };
            Ok(AccessReviewResult { allowed, reason: self.rules.lock().reason.to_owned() })
        })
    }
}

impl AuthConfig {
    /// The defaults, with decisions that are cached for a day. The cache uses the machine's clock, which continues when
    /// a test pauses its own, so short TTLs would expire in a slow test.
    pub(in crate::auth) fn remembering_for_a_day() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { token_ttl: day, allowed_ttl: day, denied_ttl: day, ..Self::default() }
    }
}

/// An authorizer whose reviews the stub answers.
pub(in crate::auth) fn authorizer(config: AuthConfig) -> (Authorizer, Arc<StubReviewClient>, BackgroundTasks) {
    authorizer_with(config, None)
}

/// Such an authorizer, which verifies tokens itself.
pub(in crate::auth) fn authorizer_with(
    config: AuthConfig,
    verifier: Option<Arc<TokenVerifier>>,
) -> (Authorizer, Arc<StubReviewClient>, BackgroundTasks) {
    let (stub, tasks) = (Arc::new(StubReviewClient::default()), BackgroundTasks::new());
    let nowhere = CredentialSource::Anonymous(http::Uri::from_static("http://127.0.0.1:1"));
    let client =
        UpstreamClient::connect(&nowhere, crate::upstream::UpstreamCostTotals::default()).expect("nothing is sent");
    let clock = stub.clock.clone();
    let parts = DelegatedAuthDeps {
        client,
        client_authorities: None,
        front_proxy: None,
        node: None,
        clock,
        tasks: tasks.clone(),
    };
    (Authorizer::with_review_client(stub.clone(), verifier, config, parts), stub, tasks)
}

impl Authorizer {
    /// The holder of a token.
    pub(in crate::auth) async fn known(&self, token: &str, from: [u8; 4]) -> Result<Caller, GrantError> {
        self.known_within(token, from, &|_| Ok(Box::new(()))).await
    }

    /// The holder of a token, if there are permits to wait for its review.
    pub(in crate::auth) async fn known_within(
        &self,
        token: &str,
        from: [u8; 4],
        permits: &WaitingPermitFn<'_>,
    ) -> Result<Caller, GrantError> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a token"));
        let sender = ClientConnectionInfo { certificates: None, address: IpAddr::from(from) };
        self.authenticate(sender, &headers, permits).await
    }
}

/// The parsed GET of a path and query.
pub(in crate::auth) fn info(uri: &str) -> RequestInfo {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    RequestInfo::parse("GET", path, &UrlQuery::parse(query)).expect("a path")
}
