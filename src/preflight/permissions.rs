use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::{CachedResource, CheckFinding};
use crate::upstream::{ReviewClient as _, UpstreamClient, UpstreamError};
use kubeapi::{AccessAttributes, AccessTarget, Gvr, ResourceAccessAttributes};

/// The features of a proxy that need permissions.
#[derive(Debug, Clone, Default)]
pub struct PermissionNeeds {
    /// The resources that the configuration names; each must be readable.
    pub named: Vec<CachedResource>,
    /// Other resources that can be cached. Those that the proxy may not read are forwarded.
    pub others: Vec<CachedResource>,
    /// Whether the proxy authenticates callers through upstream.
    pub authenticates_callers: bool,
    /// The proxy authenticates scrapes of metrics through upstream.
    pub authenticates_scrapes: bool,
    /// The proxy watches RBAC and definitions. A proxy on a node does not.
    pub follows_cluster: bool,
    /// The objects that tokens are bound to, if the proxy verifies tokens with them and the cluster's keys.
    pub bound_objects: Vec<CachedResource>,
    /// What the account of `delegated.impersonator` must be able to impersonate.
    pub impersonated: &'static [&'static str],
}

/// A permission, as the RBAC rule that grants it, and the effect of its absence.
struct RequiredPermission {
    target: PermissionTarget,
    verb: &'static str,
    selector: Option<String>,
    effect: MissingPermission,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PermissionTarget {
    Resource(Gvr),
    Path(&'static str),
}

/// The effect of a missing permission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MissingPermission {
    Named,
    Forwarded,
    CallersUnknown,
    ScrapesRefused,
    RevocationLate,
    DefinitionsUnknown,
    TokensReviewed,
    NotImpersonated,
}

const AREA: &str = "rights";
/// The number of concurrent permission checks.
const CONCURRENT_CHECKS: usize = 8;
const REVIEWS: [(&str, &str); 2] =
    [("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")];
const POLICY: [&str; 4] = ["clusterrolebindings", "clusterroles", "rolebindings", "roles"];
const DEFINITIONS: [(&str, &str); 2] =
    [("apiextensions.k8s.io", "customresourcedefinitions"), ("apiregistration.k8s.io", "apiservices")];
const KEYS: [&str; 2] = ["/.well-known/openid-configuration", "/openid/v1/jwks"];

/// Checks each permission that is needed, and reports the rules that are missing.
pub async fn permissions(client: &UpstreamClient, needs: &PermissionNeeds) -> Vec<CheckFinding> {
    let required = needs.permissions();
    let count = required.len();
    let mut checks =
        stream::iter(required).map(|permission| check(client, permission)).buffer_unordered(CONCURRENT_CHECKS);
    let (mut missing, mut granted, mut failed): (Vec<RequiredPermission>, usize, Vec<UpstreamError>) =
        Default::default();
    while let Some(answer) = checks.next().await {
        match answer {
            Ok(Some(permission)) => missing.push(permission),
            Ok(None) => granted += 1,
            Err(error) => failed.push(error),
        }
    }
    let mut findings = Vec::new();
    if let Some(error) = failed.first() {
        findings.push(CheckFinding::request_failed(
            AREA,
            format!("cannot check {} of {count} permissions", failed.len()),
            error,
        ));
    }
    let header = match (granted, missing.len()) {
        (_, 0) if granted == count => CheckFinding::ok(AREA, format!("all {count} needed permissions are granted")),
        (0, 0) => return findings,
        (0, _) => CheckFinding::failed(AREA, format!("none of {count} permissions is granted")),
        _ => CheckFinding::ok(AREA, format!("{granted} of {count} needed or useful permissions are granted")),
    };
    findings.push(header);
    let mut cacheable = needs.cacheable();
    let is_readable = cacheable.any(|of| !missing.iter().any(|permission| permission.is_read_of(of)));
    findings.extend(grouped(missing));
    if !needs.others.is_empty() && !is_readable && failed.is_empty() {
        let message = "nothing can be listed and watched: the proxy would cache nothing and forward every read";
        findings.push(
            CheckFinding::failed(AREA, message).with_remedy("grant list and watch on the resources that clients read"),
        );
    }
    findings
}

/// Checks a permission; returns it if it is missing.
async fn check(
    client: &UpstreamClient,
    permission: RequiredPermission,
) -> Result<Option<RequiredPermission>, UpstreamError> {
    let review = client.review_own_access(&permission.access()).await?;
    Ok((!review.allowed).then_some(permission))
}

impl PermissionNeeds {
    /// The number of upstream watches besides those of cached resources: definitions, and RBAC while clients watch.
    pub fn own_streams(&self) -> u64 {
        let policy = if self.authenticates_callers { POLICY.len() } else { 0 };
        if self.follows_cluster { (DEFINITIONS.len() + policy) as u64 } else { 0 }
    }

    /// The resources that the proxy may cache, beginning with those that the configuration names.
    pub fn cacheable(&self) -> impl Iterator<Item = &CachedResource> {
        self.named.iter().chain(&self.others)
    }

    fn permissions(&self) -> Vec<RequiredPermission> {
        let mut permissions = Vec::new();
        let mut read = |resource: &CachedResource, effect: MissingPermission| {
            for verb in ["list", "watch"] {
                permissions.push(RequiredPermission {
                    target: PermissionTarget::Resource(resource.gvr.clone()),
                    verb,
                    selector: resource.selector.clone(),
                    effect,
                });
            }
        };
        self.named.iter().for_each(|resource| read(resource, MissingPermission::Named));
        self.others.iter().for_each(|resource| read(resource, MissingPermission::Forwarded));
        self.bound_objects.iter().for_each(|resource| read(resource, MissingPermission::TokensReviewed));
        let whole = |group: &str, name: &str| CachedResource { gvr: Gvr::new(group, "v1", name), selector: None };
        if self.follows_cluster {
            DEFINITIONS
                .iter()
                .for_each(|(group, name)| read(&whole(group, name), MissingPermission::DefinitionsUnknown));
        }
        if self.authenticates_callers && self.follows_cluster {
            let group = "rbac.authorization.k8s.io";
            POLICY.iter().for_each(|name| read(&whole(group, name), MissingPermission::RevocationLate));
        }
        let of = |group, name| PermissionTarget::Resource(Gvr::new(group, "v1", name));
        let one = |target, verb, effect| RequiredPermission { target, verb, selector: None, effect };
        if self.authenticates_callers || self.authenticates_scrapes {
            let effect = if self.authenticates_callers {
                MissingPermission::CallersUnknown
            } else {
                MissingPermission::ScrapesRefused
            };
            permissions.extend(REVIEWS.map(|(group, name)| one(of(group, name), "create", effect)));
        }
        if !self.bound_objects.is_empty() {
            let effect = MissingPermission::TokensReviewed;
            permissions.extend(KEYS.map(|path| one(PermissionTarget::Path(path), "get", effect)));
        }
        let effect = MissingPermission::NotImpersonated;
        permissions.extend(self.impersonated.iter().map(|&name| one(of("", name), "impersonate", effect)));
        permissions
    }
}

impl RequiredPermission {
    fn is_read_of(&self, resource: &CachedResource) -> bool {
        let is_read = matches!(self.effect, MissingPermission::Named | MissingPermission::Forwarded);
        is_read && matches!(&self.target, PermissionTarget::Resource(gvr) if *gvr == resource.gvr)
    }

    fn access(&self) -> AccessAttributes {
        let target = match &self.target {
            PermissionTarget::Path(path) => AccessTarget::Path((*path).to_owned()),
            PermissionTarget::Resource(gvr) => AccessTarget::Resource(Box::new(ResourceAccessAttributes {
                group: gvr.group.to_string(),
                version: gvr.version.to_string(),
                resource: gvr.resource.to_string(),
                field_selector: self.selector.clone().unwrap_or_default(),
                ..ResourceAccessAttributes::default()
            })),
        };
        AccessAttributes { verb: self.verb.to_owned(), target }
    }
}

impl PermissionTarget {
    fn name(&self) -> String {
        match self {
            Self::Resource(gvr) => gvr.group_resource(),
            Self::Path(path) => (*path).to_owned(),
        }
    }
}

/// Returns a finding for each resource with a missing permission, and one for all that are forwarded.
fn grouped(missing: Vec<RequiredPermission>) -> Vec<CheckFinding> {
    let mut by_target: BTreeMap<(PermissionTarget, MissingPermission), Vec<&'static str>> = BTreeMap::new();
    for RequiredPermission { target, effect, verb, .. } in missing {
        by_target.entry((target, effect)).or_default().push(verb);
    }
    let mut findings = Vec::new();
    let mut forwarded = Vec::new();
    for ((target, effect), mut verbs) in by_target {
        verbs.sort_unstable();
        let may_not = format!("the proxy may not {} {}", verbs.join(" and "), target.name());
        let failed = |effect: &str| CheckFinding::failed(AREA, format!("{may_not}{effect}"));
        let warning = |effect: &str| CheckFinding::warning(AREA, format!("{may_not}{effect}"));
        let finding = match effect {
            MissingPermission::Forwarded => {
                forwarded.push(target.name());
                continue;
            }
            MissingPermission::Named => failed(", which the configuration requires"),
            MissingPermission::CallersUnknown => failed(": callers cannot be authenticated"),
            MissingPermission::ScrapesRefused => failed(": scrapes cannot be authenticated (metrics.auth)"),
            MissingPermission::RevocationLate => {
                warning(": a revoked permission ends open watches after 75 s instead of 5 s")
            }
            MissingPermission::DefinitionsUnknown => {
                warning(": custom resources and aggregated APIs are forwarded, or discovered late")
            }
            MissingPermission::TokensReviewed => {
                warning(": the apiserver reviews tokens in spite of delegated.identify")
            }
            MissingPermission::NotImpersonated => {
                failed(" with delegated.impersonator: requests of certificate holders are not forwarded")
            }
        };
        findings.push(finding.with_remedy(rule(&target, &verbs)));
    }
    if !forwarded.is_empty() {
        let message =
            format!("{} resources cannot be read and are forwarded: {}", forwarded.len(), forwarded.join(", "));
        findings.push(
            CheckFinding::warning(AREA, message).with_remedy("grant list and watch on them, or set feeds.resources"),
        );
    }
    findings
}

/// Returns the RBAC rule that grants permissions on a resource.
fn rule(target: &PermissionTarget, verbs: &[&str]) -> String {
    let of = match target {
        PermissionTarget::Resource(gvr) => format!("apiGroups: [\"{}\"], resources: [{}]", gvr.group, gvr.resource),
        PermissionTarget::Path(path) => format!("nonResourceURLs: [{path}]"),
    };
    format!("add the ClusterRole rule {{{of}, verbs: [{}]}}", verbs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::CheckOutcome;

    fn resource(group: &str, resource: &str) -> CachedResource {
        CachedResource { gvr: Gvr::new(group, "v1", resource), selector: None }
    }

    #[test]
    fn required_permissions_depend_on_mode() {
        let needs = |authenticates_callers, follows_cluster| PermissionNeeds {
            named: vec![resource("", "pods")],
            authenticates_callers,
            follows_cluster,
            ..PermissionNeeds::default()
        };
        for (needs, expected, with_scrapes) in [
            (needs(false, false), 2, 4),
            (needs(false, true), 6, 8),
            (needs(true, false), 4, 4),
            (needs(true, true), 16, 16),
        ] {
            assert_eq!(needs.permissions().len(), expected, "{needs:?}");
            let needs = PermissionNeeds { authenticates_scrapes: true, ..needs };
            assert_eq!(needs.permissions().len(), with_scrapes, "{needs:?}");
        }
    }

    #[test]
    fn missing_permission_is_reported_with_clusterrole_rule() {
        let permission = |gvr, verb, effect| {
            let target = PermissionTarget::Resource(gvr);
            RequiredPermission { target, verb, selector: None, effect }
        };
        let found = grouped(vec![
            permission(Gvr::new("apps", "v1", "deployments"), "watch", MissingPermission::Named),
            permission(Gvr::new("apps", "v1", "deployments"), "list", MissingPermission::Named),
            permission(Gvr::new("", "v1", "secrets"), "list", MissingPermission::Forwarded),
            permission(
                Gvr::new("rbac.authorization.k8s.io", "v1", "roles"),
                "watch",
                MissingPermission::RevocationLate,
            ),
        ]);
        let findings: Vec<_> =
            found.iter().map(|finding| (finding.outcome, finding.remedy.as_deref().unwrap_or(""))).collect();
        let rule = "add the ClusterRole rule {apiGroups: [\"apps\"], resources: [deployments], verbs: [list, watch]}";
        assert_eq!(findings[0], (CheckOutcome::Failed, rule));
        assert_eq!((findings[1].0, findings[2].0, findings.len()), (CheckOutcome::Warning, CheckOutcome::Warning, 3));
        assert!(found[2].message.contains("secrets"));
    }
}
