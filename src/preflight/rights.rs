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
    pub asks_about_callers: bool,
    /// The proxy authenticates scrapes of metrics through upstream.
    pub asks_about_scrapes: bool,
    /// The proxy watches RBAC and definitions. A proxy on a node does not.
    pub follows_cluster: bool,
}

/// A permission, as the RBAC rule that grants it, and the effect of its absence.
struct RequiredPermission {
    gvr: Gvr,
    verb: &'static str,
    selector: Option<String>,
    lack: MissingPermission,
}

/// The effect of a missing permission.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingPermission {
    Named,
    PassesThrough,
    CallersUnknown,
    ScrapesRefused,
    RevocationLate,
    DefinitionsUnknown,
}

const ABOUT: &str = "rights";
/// The number of concurrent permission checks.
const AT_A_TIME: usize = 8;
const REVIEWS: [(&str, &str); 2] =
    [("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")];
const POLICY: [&str; 4] = ["clusterrolebindings", "clusterroles", "rolebindings", "roles"];
const DEFINITIONS: [(&str, &str); 2] =
    [("apiextensions.k8s.io", "customresourcedefinitions"), ("apiregistration.k8s.io", "apiservices")];

/// Checks each permission that is needed, and reports the rules that are missing.
pub async fn rights(client: &UpstreamClient, needs: &PermissionNeeds) -> Vec<CheckFinding> {
    let wanted = needs.rights();
    let count = wanted.len();
    let mut asked = stream::iter(wanted).map(|right| ask(client, right)).buffer_unordered(AT_A_TIME);
    let (mut missing, mut held, mut failed): (Vec<RequiredPermission>, usize, Vec<UpstreamError>) = Default::default();
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(Some(right)) => missing.push(right),
            Ok(None) => held += 1,
            Err(error) => failed.push(error),
        }
    }
    let mut findings = Vec::new();
    if let Some(error) = failed.first() {
        findings.push(CheckFinding::unanswered(
            ABOUT,
            format!("cannot check {} of {count} permissions", failed.len()),
            error,
        ));
    }
    let header = match (held, missing.len()) {
        (_, 0) if held == count => CheckFinding::ok(ABOUT, format!("all {count} needed permissions are granted")),
        (0, 0) => return findings,
        (0, _) => CheckFinding::failed(ABOUT, format!("none of {count} permissions is granted")),
        _ => CheckFinding::ok(ABOUT, format!("{held} of {count} needed or useful permissions are granted")),
    };
    findings.push(header);
    let readable = needs.others.iter().filter(|of| !missing.iter().any(|right| right.is_to_read(of))).count();
    findings.extend(grouped(missing));
    if !needs.others.is_empty() && readable == 0 && failed.is_empty() {
        let what = "nothing can be listed and watched: the proxy would cache nothing and forward every read";
        findings.push(
            CheckFinding::failed(ABOUT, what).mended_by("grant list and watch on the resources that clients read"),
        );
    }
    findings
}

/// Checks a permission; returns it if it is missing.
async fn ask(client: &UpstreamClient, right: RequiredPermission) -> Result<Option<RequiredPermission>, UpstreamError> {
    let verdict = client.review_own_access(&right.access()).await?;
    Ok((!verdict.allowed).then_some(right))
}

impl PermissionNeeds {
    /// The number of upstream watches besides those of cached resources: definitions, and RBAC while clients watch.
    pub fn own_streams(&self) -> u64 {
        let policy = if self.asks_about_callers { POLICY.len() } else { 0 };
        if self.follows_cluster { (DEFINITIONS.len() + policy) as u64 } else { 0 }
    }

    fn rights(&self) -> Vec<RequiredPermission> {
        let mut rights = Vec::new();
        let mut read = |wanted: &CachedResource, lack: MissingPermission| {
            for verb in ["list", "watch"] {
                rights.push(RequiredPermission {
                    gvr: wanted.gvr.clone(),
                    verb,
                    selector: wanted.selector.clone(),
                    lack,
                });
            }
        };
        self.named.iter().for_each(|wanted| read(wanted, MissingPermission::Named));
        self.others.iter().for_each(|wanted| read(wanted, MissingPermission::PassesThrough));
        let whole =
            |group: &str, resource: &str| CachedResource { gvr: Gvr::new(group, "v1", resource), selector: None };
        if self.follows_cluster {
            DEFINITIONS
                .iter()
                .for_each(|(group, name)| read(&whole(group, name), MissingPermission::DefinitionsUnknown));
        }
        if self.asks_about_callers && self.follows_cluster {
            let group = "rbac.authorization.k8s.io";
            POLICY.iter().for_each(|name| read(&whole(group, name), MissingPermission::RevocationLate));
        }
        if self.asks_about_callers || self.asks_about_scrapes {
            let lack = if self.asks_about_callers {
                MissingPermission::CallersUnknown
            } else {
                MissingPermission::ScrapesRefused
            };
            for (group, resource) in REVIEWS {
                let gvr = Gvr::new(group, "v1", resource);
                rights.push(RequiredPermission { gvr, verb: "create", selector: None, lack });
            }
        }
        rights
    }
}

impl RequiredPermission {
    fn is_to_read(&self, wanted: &CachedResource) -> bool {
        self.lack == MissingPermission::PassesThrough && self.gvr == wanted.gvr
    }

    fn access(&self) -> AccessAttributes {
        let target = ResourceAccessAttributes {
            group: self.gvr.group.to_string(),
            version: self.gvr.version.to_string(),
            resource: self.gvr.resource.to_string(),
            field_selector: self.selector.clone().unwrap_or_default(),
            ..ResourceAccessAttributes::default()
        };
        AccessAttributes { verb: self.verb.to_owned(), target: AccessTarget::Resource(Box::new(target)) }
    }
}

/// Returns a finding for each resource with a missing permission, and one for all that are forwarded.
fn grouped(missing: Vec<RequiredPermission>) -> Vec<CheckFinding> {
    let mut by_resource: BTreeMap<(Gvr, bool), (Vec<&'static str>, MissingPermission)> = BTreeMap::new();
    for right in missing {
        let key = (right.gvr, right.lack == MissingPermission::PassesThrough);
        by_resource.entry(key).or_insert((Vec::new(), right.lack)).0.push(right.verb);
    }
    let mut findings = Vec::new();
    let mut through = Vec::new();
    for ((gvr, _), (mut verbs, lack)) in by_resource {
        verbs.sort_unstable();
        let may_not = format!("the proxy may not {} {}", verbs.join(" and "), gvr.group_resource());
        let effect = match lack {
            MissingPermission::PassesThrough => {
                through.push(gvr.group_resource());
                continue;
            }
            MissingPermission::Named => ", which the configuration requires",
            MissingPermission::CallersUnknown => ": callers cannot be authenticated",
            MissingPermission::ScrapesRefused => ": scrapes cannot be authenticated (metrics.auth)",
            MissingPermission::RevocationLate => ": a revoked permission ends open watches after 75 s instead of 5 s",
            MissingPermission::DefinitionsUnknown => {
                ": custom resources and aggregated APIs are forwarded, or discovered late"
            }
        };
        let is_note = matches!(lack, MissingPermission::RevocationLate | MissingPermission::DefinitionsUnknown);
        let what = format!("{may_not}{effect}");
        let finding = if is_note { CheckFinding::note(ABOUT, what) } else { CheckFinding::failed(ABOUT, what) };
        findings.push(finding.mended_by(rule(&gvr, &verbs)));
    }
    if !through.is_empty() {
        let what = format!("{} resources cannot be read and are forwarded: {}", through.len(), through.join(", "));
        findings
            .push(CheckFinding::note(ABOUT, what).mended_by("grant list and watch on them, or set feeds.resources"));
    }
    findings
}

/// Returns the RBAC rule that grants permissions on a resource.
fn rule(gvr: &Gvr, verbs: &[&str]) -> String {
    format!(
        "add the ClusterRole rule {{apiGroups: [\"{}\"], resources: [{}], verbs: [{}]}}",
        gvr.group,
        gvr.resource,
        verbs.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::CheckOutcome;

    fn wanted(group: &str, resource: &str) -> CachedResource {
        CachedResource { gvr: Gvr::new(group, "v1", resource), selector: None }
    }

    #[test]
    fn required_permissions_depend_on_mode() {
        let needs = |asks_about_callers, follows_cluster| PermissionNeeds {
            named: vec![wanted("", "pods")],
            others: Vec::new(),
            asks_about_callers,
            asks_about_scrapes: false,
            follows_cluster,
        };
        for (needs, expected, with_scrapes) in [
            (needs(false, false), 2, 4),
            (needs(false, true), 6, 8),
            (needs(true, false), 4, 4),
            (needs(true, true), 16, 16),
        ] {
            assert_eq!(needs.rights().len(), expected, "{needs:?}");
            let needs = PermissionNeeds { asks_about_scrapes: true, ..needs };
            assert_eq!(needs.rights().len(), with_scrapes, "{needs:?}");
        }
    }

    #[test]
    fn missing_permission_is_reported_with_clusterrole_rule() {
        let right = |gvr: Gvr, verb, lack| RequiredPermission { gvr, verb, selector: None, lack };
        let found = grouped(vec![
            right(Gvr::new("apps", "v1", "deployments"), "watch", MissingPermission::Named),
            right(Gvr::new("apps", "v1", "deployments"), "list", MissingPermission::Named),
            right(Gvr::new("", "v1", "secrets"), "list", MissingPermission::PassesThrough),
            right(Gvr::new("rbac.authorization.k8s.io", "v1", "roles"), "watch", MissingPermission::RevocationLate),
        ]);
        let said: Vec<_> =
            found.iter().map(|finding| (finding.outcome, finding.remedy.as_deref().unwrap_or(""))).collect();
        let rule = "add the ClusterRole rule {apiGroups: [\"apps\"], resources: [deployments], verbs: [list, watch]}";
        assert_eq!(said[0], (CheckOutcome::Failed, rule));
        assert_eq!((said[1].0, said[2].0, said.len()), (CheckOutcome::Note, CheckOutcome::Note, 3));
        assert!(found[2].what.contains("secrets"));
    }
}
