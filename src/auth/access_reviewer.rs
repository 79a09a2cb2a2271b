use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::comparison_queue::{ComparedAnswer, ComparisonQueue};
use super::policy_changes::PolicyChanges;
use super::rbac_authorizer::{LocalDecision, RbacAuthorizer, RulesUnknown};
use super::review_permission::ReviewResource;
use super::review_queue::{ReviewClass, ReviewPurpose, ReviewQueue, ReviewRate, ReviewRateLimit, ReviewRateLimitKey};
use super::sha256::sha256_of;
use super::{AffectedUsers, AuthConfig, GrantError, ObjectNames, metrics};
use crate::upstream::{AccessReviewResult, ReviewClient, UpstreamRequestCause};
use base::{CoalescingCache, random};
use kubeapi::{AccessAttributes, FlowDistinguisher, User};

/// Creates access reviews upstream, and caches the decisions for seconds.
///
/// A decision belongs to one user, with all attributes that upstream knows, and to one access, with all attributes that
/// a permission may depend on. Users or accesses that differ never share a decision.
pub(super) struct AccessReviewer {
    pub(super) reviews: Arc<dyn ReviewClient>,
    pub(super) queue: ReviewQueue,
    decisions: CoalescingCache<(ReviewPurpose, AccessDecisionKey), AccessDecision>,
    config: AuthConfig,
    /// Decides by the RBAC objects that are watched.
    pub(super) rbac: RbacAuthorizer,
    comparisons: Arc<ComparisonQueue>,
}

/// The cache key of a decision: a digest of a user and an access. It has the same length whatever texts a caller
/// chooses, so that the decisions of one caller do not evict those of others.
type AccessDecisionKey = [u8; 32];

#[derive(Debug, Clone)]
pub(super) struct AccessDecision {
    /// A time before the access review was sent.
    pub(super) sent: Instant,
    is_allowed: bool,
    /// The authorizer's reason for a decision.
    pub(super) reason: Arc<str>,
    /// The user and the namespace of the decision, by which a policy change affects it.
    user: Arc<User>,
    namespace: Box<str>,
    /// Whether the rules that are known here allow the access, and how long they were stale, if they were.
    pub(super) is_local: bool,
    pub(super) stale_rules: Option<Duration>,
}

/// The maximum number of bytes of cached decisions. By default, requests add up to 5,000 per second for ten seconds:
/// about 35 MiB.
const DECISIONS_BYTES_MAX: u64 = 64 << 20;
/// The size of a decision without its texts.
const DECISION_BYTES: usize = 384;
/// The length of the longest namespace name.
const NAMESPACE_NAME_MAX: usize = 63;
/// The maximum time that a request waits for its review if all requests together exceed their limit.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);

impl AccessReviewer {
    pub(super) fn new(reviews: Arc<dyn ReviewClient>, comparisons: Arc<ComparisonQueue>, config: &AuthConfig) -> Self {
        let ttls = config.clone();
        let ttl = move |(purpose, _): &_, decision: &AccessDecision| Some(decision.ttl(*purpose, &ttls));
        let decisions = CoalescingCache::new(DECISIONS_BYTES_MAX, AccessDecision::len_bytes, ttl);
        Self {
            reviews,
            queue: queue(config),
            decisions,
            config: config.clone(),
            rbac: RbacAuthorizer::new(config),
            comparisons,
        }
    }

    /// Returns the decision that allows an access to a user. With `since`, only a decision whose review was sent after
    /// that time is accepted.
    ///
    /// # Errors
    /// The access is denied, or no decision could be obtained.
    pub(super) async fn decide(
        &self,
        user: &Arc<User>,
        access: &Arc<AccessAttributes>,
        purpose: ReviewPurpose,
        since: Option<Instant>,
    ) -> Result<AccessDecision, GrantError> {
        if let Some(decision) = self.decide_here(user, access, purpose) {
            return Ok(decision);
        }
        let key = sha256_of(&(user, access));
        let review = |_| async {
            let (class, cause) = class_and_cause(user, purpose);
            let (sent, result) = self.review(class, cause, user, access).await?;
            let decision = AccessDecision::new(sent, result, user.clone(), access);
            // A denial found for a lease also applies to requests. An allow decision does not, because a zone proxy may
            // return one that is too old for requests.
            if cause == UpstreamRequestCause::LeaseReview && !decision.is_allowed {
                let is_older = |cached: &AccessDecision| cached.sent <= sent;
                self.decisions.put(&(ReviewPurpose::Request, key), decision.clone(), is_older).await;
            }
            Ok(decision)
        };
        let is_accepted = |cached: &AccessDecision| since.is_none_or(|since| cached.sent >= since);
        let decided = self.decisions.get_or_fetch(&(purpose, key), is_accepted, review).await;
        let decision = decided.map_err(Arc::unwrap_or_clone)?;
        if decision.is_allowed { Ok(decision) } else { Err(GrantError::Denied(decision.reason)) }
    }

    /// Returns the decision of the rules that are known here, if they allow the access.
    fn decide_here(
        &self,
        user: &Arc<User>,
        access: &Arc<AccessAttributes>,
        purpose: ReviewPurpose,
    ) -> Option<AccessDecision> {
        if !self.rbac.is_configured() {
            return None;
        }
        let decided = self.rbac.decide(user, access);
        metrics::decided_locally(match &decided {
            Some(LocalDecision { stale: None, .. }) => "allowed",
            Some(LocalDecision { stale: Some(_), .. }) => "allowed_stale",
            None if self.rbac.is_active() => "no_rule",
            None => "unavailable",
        });
        let LocalDecision { grant, stale } = decided?;
        self.reviews.answered_here(class_and_cause(user, purpose).1);
        let reason = grant.reason.as_str().into();
        if stale.is_none() {
            let (user, access) = (user.clone(), access.clone());
            self.comparisons.sample(|| Some(ComparedAnswer::Decision { user, access, grant }));
        }
        Some(AccessDecision {
            sent: Instant::now(),
            is_allowed: true,
            reason,
            user: user.clone(),
            namespace: Box::default(),
            is_local: true,
            stale_rules: stale,
        })
    }

    /// Returns the names of the objects that the rules known here let a user get, if upstream has denied an access to all
    /// of them. A Namespace has a decision of its own.
    ///
    /// # Errors
    /// The rules are not known.
    pub(super) fn names(&self, user: &User, denied: &AccessAttributes) -> Result<Option<ObjectNames>, RulesUnknown> {
        if denied.verb == "get" { Ok(None) } else { self.rbac.names(user, &denied.clone().get("")) }
    }

    /// Returns the time until which these names were certain. The decision on one of them is counted, and perhaps compared
    /// with upstream's.
    pub(super) fn names_certain_until(
        &self,
        user: &Arc<User>,
        denied: &AccessAttributes,
        purpose: ReviewPurpose,
        names: &ObjectNames,
    ) -> Option<Instant> {
        let name = names.iter().nth(random::usize(..names.len()))?;
        let decision = self.decide_here(user, &Arc::new(denied.clone().get(name)), purpose)?;
        Some(decision.certain_until())
    }

    /// Sends a review. Returns a time before it was sent, and the result.
    pub(super) async fn review(
        &self,
        class: ReviewClass,
        cause: UpstreamRequestCause,
        user: &User,
        access: &AccessAttributes,
    ) -> Result<(Instant, AccessReviewResult), GrantError> {
        let key = ReviewRateLimitKey::User(FlowDistinguisher::from_user(user));
        let reviewed = self.queue.send(&[(class, key)], self.reviews.review_access(cause, user, access)).await?;
        self.queue.count(if reviewed.1.allowed { "allowed" } else { "denied" });
        Ok(reviewed)
    }

    /// Checks whether a downstream proxy may send a request.
    ///
    /// A proxy sends requests for its clients repeatedly, and no cached content depends on them. So a decision is valid
    /// until a lease would be checked again.
    pub(super) async fn allows_proxy(
        &self,
        user: &Arc<User>,
        access: &Arc<AccessAttributes>,
        changes: &PolicyChanges,
    ) -> Result<(), GrantError> {
        let cached = self.decisions.get(&(ReviewPurpose::Proxy, sha256_of(&(user, access)))).await;
        let is_upheld = cached
            .is_some_and(|cached| cached.is_by_rbac() && changes.still_valid(cached.sent, self.config.recheck_rbac));
        let since = if is_upheld { None } else { Instant::now().checked_sub(self.config.recheck_of(user)) };
        self.decide(user, access, ReviewPurpose::Proxy, since).await.map(drop)
    }

    /// Drops the decisions that a policy change may have made wrong.
    pub(super) async fn remove_affected(&self, affected: &AffectedUsers) {
        match affected {
            AffectedUsers::Everyone => self.decisions.clear(),
            AffectedUsers::Only(..) => {
                self.decisions.remove_if(|cached| affected.contains(&cached.user, &cached.namespace)).await;
            }
        }
    }
}

/// Returns the class of a review, and the cause that an upstream proxy receives.
fn class_and_cause(user: &User, purpose: ReviewPurpose) -> (ReviewClass, UpstreamRequestCause) {
    match purpose {
        ReviewPurpose::Request | ReviewPurpose::NonResource | ReviewPurpose::Proxy if user.is_anonymous() => {
            (ReviewClass::Unauthenticated, UpstreamRequestCause::AccessReview)
        }
        ReviewPurpose::Request | ReviewPurpose::Proxy => (ReviewClass::Known, UpstreamRequestCause::AccessReview),
        ReviewPurpose::NonResource => (ReviewClass::NonResource, UpstreamRequestCause::AccessReview),
        ReviewPurpose::Lease => (ReviewClass::Lease, UpstreamRequestCause::LeaseReview),
        ReviewPurpose::Namespace => (ReviewClass::Namespace, UpstreamRequestCause::LeaseReview),
    }
}

fn queue(config: &AuthConfig) -> ReviewQueue {
    let (burst, all) = (config.accesses_burst_per_user, ReviewRate::new(config.accesses, config.accesses));
    let each = ReviewRate::new(config.accesses_per_user, burst);
    let requests = Arc::new(ReviewRateLimit::new(each, all, Duration::ZERO, REQUEST_WAIT_MAX));
    let paths = Arc::new(ReviewRateLimit::new(each, all, Duration::ZERO, Duration::ZERO));
    let namespaces = Arc::new(ReviewRateLimit::for_leases(config.namespaces_per_user, config.namespaces));
    let leases = Arc::new(ReviewRateLimit::for_leases(config.lease_reviews / 2, config.lease_reviews));
    let comparisons = Arc::new(ReviewRateLimit::for_comparisons());
    ReviewQueue::new(ReviewResource::ACCESS, |class| match class {
        ReviewClass::Lease => leases.clone(),
        ReviewClass::Namespace => namespaces.clone(),
        ReviewClass::Known | ReviewClass::Unauthenticated => requests.clone(),
        ReviewClass::NonResource => paths.clone(),
        ReviewClass::Comparison => comparisons.clone(),
    })
}

impl AccessDecision {
    fn new(sent: Instant, result: AccessReviewResult, user: Arc<User>, access: &AccessAttributes) -> Self {
        // A longer name is that of no namespace, so no binding can be in it.
        let namespace = Some(access.namespace()).filter(|name| name.len() <= NAMESPACE_NAME_MAX);
        let namespace = namespace.unwrap_or_default().into();
        let (is_allowed, reason) = (result.allowed, result.reason.into());
        Self { sent, is_allowed, reason, user, namespace, is_local: false, stale_rules: None }
    }

    /// Returns the time until which the decision was certain, which is earlier than its own if it is by stale rules.
    pub(super) fn certain_until(&self) -> Instant {
        self.stale_rules.and_then(|stale| self.sent.checked_sub(stale)).unwrap_or(self.sent)
    }

    /// Whether upstream's reason says that RBAC allows the access. No other authorizer gives that reason.
    pub(super) fn is_by_rbac(&self) -> bool {
        self.is_allowed && AccessReviewResult::is_by_rbac(&self.reason)
    }

    /// How long a decision is cached. For leases and downstream proxies, each look-up also sets a maximum age.
    fn ttl(&self, purpose: ReviewPurpose, config: &AuthConfig) -> Duration {
        match purpose {
            _ if !self.is_allowed && AccessReviewResult::is_transient_denial(&self.reason) => Duration::ZERO,
            _ if !self.is_allowed => config.denied_ttl,
            ReviewPurpose::Request | ReviewPurpose::NonResource | ReviewPurpose::Namespace => config.allowed_ttl,
            ReviewPurpose::Lease | ReviewPurpose::Proxy => {
                config.recheck.max(config.recheck_rbac).max(config.recheck_nodes)
            }
        }
    }

    fn len_bytes(&self) -> usize {
        DECISION_BYTES + self.user.len_bytes() + self.namespace.len() + self.reason.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::auth::tests::info;

    fn access(uri: &str) -> AccessAttributes {
        AccessAttributes::from_request(&info(uri))
    }

    /// The same characters in other attributes are another key (A3).
    #[test]
    fn keys_differ_if_attributes_differ() {
        let user = |name: &str, uid: &str, groups: &[&str], extra: &[(&str, &[&str])]| {
            let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
            let extra: BTreeMap<_, _> = extra.iter().map(|(key, values)| ((*key).to_owned(), texts(values))).collect();
            User { name: name.to_owned(), uid: uid.to_owned(), groups: texts(groups), extra }
        };
        let users = [
            user("ab", "", &[], &[]),
            user("a", "b", &[], &[]),
            user("a", "", &["b"], &[]),
            user("a", "", &["b", ""], &[]),
            user("a", "", &[], &[("b", &[])]),
            user("a", "", &[], &[("", &["b"])]),
            user("a", "", &[], &[("", &[]), ("b", &[])]),
            user("", "", &["a", "b"], &[]),
            user("", "", &["ab"], &[]),
        ];
        let accesses = [
            access("/api/v1/pods"),
            access("/api/v1/pods?watch=1"),
            access("/api/v1/namespaces/a/pods"),
            access("/api/v1/namespaces/a/pods/b"),
            access("/api/v1/namespaces/a/pods/b/log"),
            access("/api/v1/namespaces/ab/pods"),
            access("/api/v1/pods?labelSelector=a"),
            access("/api/v1/pods?fieldSelector=a%3Db"),
            access("/apis/apps/v1/pods"),
            access("/version"),
        ];
        let pairs = users.iter().flat_map(|user| accesses.iter().map(move |access| sha256_of(&(user, access))));
        assert_eq!(pairs.collect::<HashSet<_>>().len(), users.len() * accesses.len());
    }

    fn decision(uri: &str, allowed: bool, reason: &str) -> AccessDecision {
        let result = AccessReviewResult { allowed, reason: reason.to_owned() };
        AccessDecision::new(Instant::now(), result, Arc::default(), &access(uri))
    }

    #[test]
    fn ttl_follows_from_purpose_and_result() {
        let [allowed, denied, recheck] = [10, 5, 600].map(Duration::from_secs);
        let config =
            AuthConfig { allowed_ttl: allowed, denied_ttl: denied, recheck_nodes: recheck, ..AuthConfig::default() };
        for (purpose, of_allowed) in [
            (ReviewPurpose::Request, allowed),
            (ReviewPurpose::Namespace, allowed),
            (ReviewPurpose::Lease, recheck),
            (ReviewPurpose::Proxy, recheck),
        ] {
            for (is_allowed, reason, expected) in [
                (true, "RBAC: allowed", of_allowed),
                (false, "", denied),
                (false, "no relationship found between node 'n1' and this object", Duration::ZERO),
            ] {
                let ttl = decision("/api/v1/pods", is_allowed, reason).ttl(purpose, &config);
                assert_eq!(ttl, expected, "{purpose:?}, {is_allowed}, {reason}");
            }
        }
    }

    /// Otherwise, one user's requests could evict the decisions of others.
    #[test]
    fn long_selectors_and_names_take_no_memory() {
        let weight = |uri: &str| decision(uri, true, "").len_bytes();
        let long = "a".repeat(10_000);
        let selector = format!("/api/v1/namespaces/t1/pods?labelSelector={long}");
        assert_eq!(weight(&selector), weight("/api/v1/namespaces/t1/pods"));
        assert!(weight(&format!("/api/v1/namespaces/{long}/pods")) <= weight("/api/v1/namespaces/t1/pods"));
    }
}
