//! Finds out whether an authorizer other than RBAC answers before it, by reviews of accesses that RBAC allows.
//!
//! They review the proxy's own account, and a sample of the subjects of bindings. They show an authorizer that denies
//! or allows one of these accesses. One that denies only other accesses is not found.

use super::review_permission::ReviewResource;
use super::{AccessDecider, MASTERS, RbacEvent, RbacKind, RbacPolicy};
use crate::preflight::{CheckFinding, CheckOutcome};
use crate::upstream::{
    AccessReviewResult, JsonListPage, ReviewClient, UpstreamClient, UpstreamError, UpstreamRequestCause, parse_json,
};
use kubeapi::{AccessAttributes, AccessTarget, User, denied_access};

/// An access that RBAC, evaluated here, and the apiserver have decided.
struct ReviewedAccessSample {
    user: String,
    access: AccessAttributes,
    /// The reason of RBAC, if it allows the access.
    local: Option<String>,
    upstream: AccessReviewResult,
}

/// The reason that no sample was reviewed.
#[derive(Debug, thiserror::Error)]
enum SampleError {
    #[error("more than {} {}; not checked", PAGES_MAX * PAGE_LIMIT, .0.resource())]
    TooMany(RbacKind),
    #[error("cannot compare RBAC with reviews: {0}")]
    Failed(#[from] UpstreamError),
}

const AREA: &str = "authorizers";
/// The maximum number of subjects of bindings whose access is reviewed.
const SUBJECTS_MAX: usize = 20;
/// The maximum number of reported examples of the same evidence.
const EXAMPLES_MAX: usize = 3;
const PAGE_LIMIT: usize = 500;
/// The maximum number of pages of one kind. A cluster with more objects is not checked.
const PAGES_MAX: usize = 100;

/// Checks whether RBAC alone decides, as `delegated.decide: rbac` requires.
pub async fn authorizer_chain(client: &UpstreamClient, decider: AccessDecider) -> Vec<CheckFinding> {
    let mut samples = match review(client).await {
        Ok(samples) => samples,
        Err(error) => return vec![error.finding(decider)],
    };
    if samples.iter().any(|sample| sample.local.is_some() && !sample.upstream.allowed) {
        // A binding or role may have changed in between.
        samples = review(client).await.unwrap_or(samples);
    }
    findings(&samples, decider)
}

/// Reviews the sample.
async fn review(client: &UpstreamClient) -> Result<Vec<ReviewedAccessSample>, SampleError> {
    let mut policy = RbacPolicy::default();
    for kind in RbacKind::ALL {
        load(client, kind, &mut policy).await?;
    }
    let mut samples = Vec::new();
    let own = client.own_user().await?;
    let own_accesses = if own.groups.iter().any(|group| group == MASTERS) { Vec::new() } else { own_accesses() };
    for access in own_accesses {
        let upstream = client.review_own_access(&access).await?;
        samples.push(ReviewedAccessSample::new(&policy, &own, access, upstream));
    }
    for (user, access) in policy.sample(SUBJECTS_MAX) {
        let upstream = match client.review_access(UpstreamRequestCause::DecisionCheck, &user, &access).await {
            // The proxy may not review the access of others.
            Err(error) if error.code() == Some(403) => break,
            result => result?,
        };
        samples.push(ReviewedAccessSample::new(&policy, &user, access, upstream));
    }
    Ok(samples)
}

/// Loads the objects of a kind.
async fn load(client: &UpstreamClient, kind: RbacKind, policy: &mut RbacPolicy) -> Result<(), SampleError> {
    let mut next = String::new();
    for _ in 0..PAGES_MAX {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{}?limit={PAGE_LIMIT}{next}", kind.resource());
        let (_, body) = client.fetch(UpstreamRequestCause::Rbac, &path, "application/json").await?;
        let unreadable = || UpstreamError::OtherDocument(path.clone());
        let page: JsonListPage<'_> = parse_json(&body, &path)?;
        for item in page.items {
            policy.apply(kind, RbacEvent::added(item.get()).ok_or_else(unreadable)?);
        }
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            policy.set_loaded(kind);
            return Ok(());
        };
        next = format!("&continue={token}");
    }
    Err(SampleError::TooMany(kind))
}

/// Returns accesses that a proxy needs: the lists that were just read, the reviews of callers, and a path.
fn own_accesses() -> Vec<AccessAttributes> {
    let list = |kind: RbacKind| AccessAttributes::of_v1("list", "rbac.authorization.k8s.io", kind.resource());
    let reviews = [ReviewResource::TOKEN, ReviewResource::ACCESS].map(ReviewResource::creation);
    let version = AccessAttributes { verb: "get".to_owned(), target: AccessTarget::Path("/version".to_owned()) };
    RbacKind::ALL.map(list).into_iter().chain(reviews).chain([version]).collect()
}

impl SampleError {
    /// Without `decide: rbac`, a failed request is no problem.
    fn finding(&self, decider: AccessDecider) -> CheckFinding {
        match self {
            Self::Failed(error) if decider == AccessDecider::Rbac => {
                CheckFinding::request_failed(AREA, "cannot compare RBAC with reviews", error)
            }
            Self::Failed(_) => CheckFinding::ok(AREA, self.to_string()),
            Self::TooMany(_) => {
                CheckFinding { outcome: CheckOutcome::Unknown, ..CheckFinding::ok(AREA, self.to_string()) }
            }
        }
    }
}

impl ReviewedAccessSample {
    fn new(policy: &RbacPolicy, user: &User, access: AccessAttributes, upstream: AccessReviewResult) -> Self {
        let local = policy.find_grant(user, &access).map(|grant| grant.reason);
        Self { user: user.name.clone(), access, local, upstream }
    }
}

/// Reports what the reviews show. Without `decide: rbac`, that is only advice.
fn findings(samples: &[ReviewedAccessSample], decider: AccessDecider) -> Vec<CheckFinding> {
    let is_used = decider == AccessDecider::Rbac;
    let (mut denied, mut before, mut by_rbac, mut reviewed) = (Vec::new(), Vec::new(), 0, 0);
    for ReviewedAccessSample { user, access, local, upstream: AccessReviewResult { allowed, reason } } in samples {
        match local {
            // The apiserver would review the access.
            None => reviewed += 1,
            Some(local) if !allowed => {
                let access = denied_access(user, access);
                let message = format!("the apiserver denies what RBAC allows: {access}: {reason} ({local})");
                let finding = if is_used { CheckFinding::failed } else { CheckFinding::ok };
                let remedy = if is_used { "set delegated.decide: ask" } else { "keep delegated.decide: ask" };
                denied.push(finding(AREA, message).with_remedy(remedy));
            }
            Some(_) if AccessReviewResult::is_by_rbac(reason) => by_rbac += 1,
            Some(local) => {
                let message = format!(
                    "an authorizer before RBAC allows with the reason {reason:?} what RBAC allows ({local}); it may also \
                     deny that"
                );
                let finding = if is_used { CheckFinding::warning } else { CheckFinding::ok };
                before.push(finding(AREA, message).with_remedy("set delegated.decide: ask, unless it never denies"));
            }
        }
    }
    let mut found: Vec<_> =
        denied.into_iter().take(EXAMPLES_MAX).chain(before.into_iter().take(EXAMPLES_MAX)).collect();
    let message = format!(
        "RBAC decided {by_rbac} of {} accesses that it allows; {reviewed} others are reviewed in any case; an authorizer \
         that denies only other accesses is not found (--authorization-config of the apiserver)",
        samples.len() - reviewed
    );
    found.push(match by_rbac {
        // Nothing shows that upstream uses RBAC.
        0 if is_used && found.is_empty() => {
            CheckFinding { outcome: CheckOutcome::Unknown, ..CheckFinding::ok(AREA, message) }
        }
        _ => CheckFinding::ok(AREA, message),
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_RBAC: &str = r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to User "ada""#;

    fn sample(local: bool, allowed: bool, reason: &str) -> ReviewedAccessSample {
        let upstream = AccessReviewResult { allowed, reason: reason.to_owned() };
        let access = own_accesses().remove(0);
        ReviewedAccessSample { user: "ada".to_owned(), access, local: local.then(|| BY_RBAC.to_owned()), upstream }
    }

    #[test]
    fn reviews_show_what_decides_before_rbac() {
        let [ok, note, failed, unknown] =
            [CheckOutcome::Ok, CheckOutcome::Warning, CheckOutcome::Failed, CheckOutcome::Unknown];
        for (local, allowed, reason, with_rbac, with_ask) in [
            (true, true, BY_RBAC, vec![ok], vec![ok]),
            (true, true, "", vec![note, ok], vec![ok, ok]),
            (true, true, "webhook: yes", vec![note, ok], vec![ok, ok]),
            (true, false, "webhook: no", vec![failed, ok], vec![ok, ok]),
            (true, false, "", vec![failed, ok], vec![ok, ok]),
            (false, true, "", vec![unknown], vec![ok]),
            (false, true, BY_RBAC, vec![unknown], vec![ok]),
            (false, false, "", vec![unknown], vec![ok]),
        ] {
            let samples = [sample(local, allowed, reason)];
            for (decider, expected) in [(AccessDecider::Rbac, with_rbac), (AccessDecider::Ask, with_ask)] {
                let outcomes: Vec<_> = findings(&samples, decider).iter().map(|finding| finding.outcome).collect();
                assert_eq!(outcomes, expected, "{local}, {allowed}, {reason}, {decider:?}");
            }
        }
    }

    #[test]
    fn finding_names_access_and_both_reasons() {
        let found = findings(&[sample(true, false, "a webhook says no")], AccessDecider::Rbac);
        let message = "the apiserver denies what RBAC allows: User \"ada\" cannot list resource \"roles\" in API group \
                       \"rbac.authorization.k8s.io\" at the cluster scope: a webhook says no";
        assert_eq!(found[0].message, format!("{message} ({BY_RBAC})"));
        let many: Vec<_> = (0..10).map(|_| sample(true, false, "")).collect();
        assert_eq!(findings(&many, AccessDecider::Rbac).len(), EXAMPLES_MAX + 1);
    }
}
