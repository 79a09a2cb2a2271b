//! RBAC as the proxy evaluates it, compared with `SubjectAccessReview`s of the apiserver, under rules that are drawn with
//! a seed. Users, groups, accounts, nodes and requests are drawn from few names, so that many almost match a rule.
//!
//! The proxy must allow nothing that the apiserver refuses, and everything that the apiserver allows because of RBAC. The
//! answers to requests of real callers must agree with that too.

use std::time::Instant;

use fastrand::Rng;
use futures_util::{StreamExt, stream};
use http::Method;
use kube_fanout::auth::{RbacKind, RbacPolicy};
use kubeapi::{AccessAttributes, AccessTarget, RequestInfo, ResourceAccessAttributes, UrlQuery, User};
use serde_json::{Value, json};

use super::stage::last;
use crate::bed::{self, Http, RequestSpec, Seed, log_line, rbac};
use crate::differential::probe::{Over, Probe};
use crate::differential::world::NAMESPACES;

/// The number of reviews under the same rules.
const ROUND: u64 = 20_000;
const ROLES: u32 = 60;
const BINDINGS: u32 = 200;
const AT_ONCE: usize = 32;
const SHOWN_MAX: usize = 20;
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const BY_RBAC: &str = "RBAC: allowed by ";

const ROLE_NAMES: [&str; 8] = ["r", "r:1", "r b", "\u{fc}\"q\"", "*", "<x&y>", "r\u{7}", "R"];
/// Roles of the cluster itself; the first three are aggregated.
const OWN_ROLES: [&str; 6] = ["admin", "edit", "view", "system:node", "system:discovery", "missing"];
const USERS: [&str; 14] = [
    "ada",
    "Ada",
    "ada ",
    "\u{e4}da\u{7}\u{200b}\"",
    "a/b\\c",
    "*",
    "",
    "system:anonymous",
    "system:node:n1",
    "system:serviceaccount:world:sa",
    "system:serviceaccount:world:sa.x",
    "system:serviceaccount:world-a:sa",
    "system:serviceaccount::sa",
    "system:serviceaccount:world:sa:x",
];
const GROUPS: [&str; 12] = [
    "dev",
    "dev ",
    "ops, team <a&b>",
    "*",
    "ada",
    "system:nodes",
    "system:authenticated",
    "system:unauthenticated",
    "system:serviceaccounts",
    "system:serviceaccounts:world",
    "system:serviceaccounts:world-a",
    "system:masters",
];
const ACCOUNTS: [(&str, &str); 4] = [("world", "sa"), ("world", "sa.x"), ("world-a", "sa"), ("", "sa")];
const VERBS: [&str; 10] =
    ["get", "get", "list", "watch", "create", "delete", "*", "impersonate", "GET", "impersonate-on:user-info:get"];
const API_GROUPS: [&str; 6] = ["", "", "apps", "x.example.com", "*", "app*"];
const RULE_RESOURCES: [&str; 14] = [
    "pods",
    "pods/log",
    "pods/status",
    "pods/*",
    "deployments/scale",
    "nodes",
    "nodes/proxy",
    "secrets",
    "*",
    "*/scale",
    "*/status",
    "*/*",
    "*/",
    "widgets",
];
const RESOURCES: [&str; 9] =
    ["pods", "pods", "deployments", "nodes", "secrets", "namespaces", "widgets", "*", "pods/log"];
const SUBRESOURCES: [&str; 8] = ["", "", "", "log", "status", "scale", "*", "xscale"];
const OBJECT_NAMES: [&str; 6] = ["", "a", "b", "a:b", "*", "A"];
const RULE_URLS: [&str; 11] =
    ["*", "/", "/healthz", "/healthz/*", "/api*", "/apis/*", "/metrics/**", "/*/x", "/\u{fc}*", "healthz", "**"];
const PATHS: [&str; 12] = [
    "/",
    "/healthz",
    "/healthz/",
    "/healthz/etcd",
    "/healthzx",
    "/api",
    "/apis",
    "/apis/apps",
    "/metrics/",
    "/metrics/x",
    "/\u{fc}ber",
    "/*/x",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_rbac_decisions_match_the_apiserver() {
    let reviews = bed::number("AUTHORIZATION_REVIEWS", 4_000);
    let again = |seed| format!("make authorization SEED={seed} REVIEWS={reviews}");
    let drawn = Seed::new("AUTHORIZATION_SEED", again);
    let Some(bed) = bed::quiet(&bed::unique("local-rbac")).await else { return };
    let direct = bed.direct();
    for name in NAMESPACES {
        direct.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
    let (mut left, mut seeds, mut reports) = (reviews, drawn.rounds(), Vec::new());
    while left > 0 {
        let (count, seed) = (left.min(ROUND), seeds.next().expect("there is always another one"));
        reports.extend(round(&direct, seed, count).await);
        left -= count;
    }
    let first_ones = reports.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n");
    assert!(reports.is_empty(), "{} reports:\n{first_ones}", reports.len());
}

/// Sends a number of reviews under a new set of rules, and returns those that differ.
async fn round(direct: &Http, seed: u64, count: u64) -> Vec<String> {
    let (mut random, started) = (Rng::with_seed(seed), Instant::now());
    for kind in RbacKind::ALL {
        forget(direct, kind).await;
    }
    let rules = draw_rules(direct, &mut random).await;
    last(direct, &format!("s{seed}")).await;
    let policy = known(direct).await;
    let questions: Vec<_> = (0..count).map(|_| (user(&mut random), access(&rules, &mut random))).collect();
    let verdicts = stream::iter(&questions).map(async |(user, access)| {
        let (is_allowed, reason) = review(direct, user, access).await;
        (verdict(&policy, user, access, is_allowed, &reason), is_allowed, reason.starts_with(BY_RBAC))
    });
    let verdicts = verdicts.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    let share = |is: fn(&(Option<String>, bool, bool)) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count();
    log_line(&format!(
        "seed {seed}: {} reviews: RBAC allows {}, another authorizer {}, in {:.1} s",
        verdicts.len(),
        share(|(_, is_allowed, by_rbac)| *is_allowed && *by_rbac),
        share(|(_, is_allowed, by_rbac)| *is_allowed && !by_rbac),
        started.elapsed().as_secs_f64()
    ));
    let by_rbac = share(|(_, is_allowed, by_rbac)| *is_allowed && *by_rbac);
    let mut reports: Vec<_> =
        verdicts.iter().filter_map(|(report, ..)| Some(format!("seed {seed}: {}", report.as_ref()?))).collect();
    if by_rbac * 20 < verdicts.len() || by_rbac * 5 > verdicts.len() * 4 {
        reports.push(format!("seed {seed}: the rules allow {by_rbac} of {} questions", verdicts.len()));
    }
    reports
}

/// Returns how the local decision differs from the apiserver's.
fn verdict(
    policy: &RbacPolicy,
    user: &User,
    access: &AccessAttributes,
    is_allowed: bool,
    reason: &str,
) -> Option<String> {
    let local = policy.find_grant(user, access).map(|grant| grant.reason);
    let different = match &local {
        Some(_) if !is_allowed => "OVER-GRANT",
        None if is_allowed && reason.starts_with(BY_RBAC) => "UNDER-GRANT",
        // Several bindings may allow it. The apiserver's order is undefined, except that cluster roles come first.
        Some(local) if reason.starts_with(BY_RBAC) && is_another_reason(local, reason) => "another reason",
        _ => return None,
    };
    Some(format!("{different} to {user:?}, {access:?}: {local:?}, upstream {is_allowed} {reason:?}"))
}

/// Whether one binding is described in two ways, or the bindings are of two kinds.
fn is_another_reason(local: &str, upstream: &str) -> bool {
    let binding = |reason: &str| reason.split_once(" of ").map(|(binding, _)| binding.to_owned());
    let kind = |reason: &str| reason[BY_RBAC.len()..].split(' ').next().map(str::to_owned);
    kind(local) != kind(upstream) || binding(local) == binding(upstream) && local != upstream
}

async fn review(direct: &Http, user: &User, access: &AccessAttributes) -> (bool, String) {
    let mut spec = json!({"user": user.name, "groups": user.groups});
    match &access.target {
        AccessTarget::Path(path) => spec["nonResourceAttributes"] = json!({"path": path, "verb": access.verb}),
        AccessTarget::Resource(target) => {
            spec["resourceAttributes"] = json!({"verb": access.verb, "group": target.group, "version": target.version,
                "resource": target.resource, "subresource": target.subresource, "namespace": target.namespace,
                "name": target.name});
        }
    }
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let status = direct.create(REVIEWS, review).await["status"].clone();
    (status["allowed"] == true, status["reason"].as_str().unwrap_or_default().to_owned())
}

/// Returns the user as which the apiserver authenticates the caller; `None` if it does not.
pub async fn authenticated(http: &Http) -> Option<User> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = http.fetch(RequestSpec::get(path).with(Method::POST, "application/json", review)).await;
    let body = answer.value();
    let info = &body["status"]["userInfo"];
    let groups = info["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Some(User { name: info["username"].as_str()?.to_owned(), groups: groups.collect(), ..User::default() })
}

/// Returns how the local decision about a read differs from the apiserver's answer.
pub fn contradiction(policy: &RbacPolicy, user: &User, probe: &Probe, status: u16) -> Option<String> {
    let changes_caller = |name: &str| name == "authorization" || name.starts_with("impersonate-");
    // The apiserver's 403 to a WebSocket without an origin is of the handshake, not of an authorizer.
    if probe.writes() || probe.over == Over::WebSocket || probe.headers.iter().any(|(name, _)| changes_caller(name)) {
        return None;
    }
    let target = probe.target();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let access = AccessAttributes::from_request(&RequestInfo::parse(probe.method, path, &UrlQuery::parse(query)).ok()?);
    let local = policy.find_grant(user, &access).map(|grant| grant.reason);
    // Other authorizers allow more to nodes and administrators.
    let by_others = ["system:nodes", "system:masters"].map(str::to_owned);
    let is_only_rbac = !user.groups.iter().any(|group| by_others.contains(group));
    match local {
        Some(reason) if status == 403 => Some(format!("OVER-GRANT to {user:?}: {target}: {reason}")),
        None if (200..300).contains(&status) && is_only_rbac => Some(format!("UNDER-GRANT to {user:?}: {target}")),
        _ => None,
    }
}

/// Reads all objects of RBAC as the proxy's feeds have them.
pub async fn known(direct: &Http) -> RbacPolicy {
    let mut policy = RbacPolicy::default();
    for kind in RbacKind::ALL {
        let list = direct.json(&format!("/apis/rbac.authorization.k8s.io/v1/{}", kind.resource())).await;
        for object in list["items"].as_array().expect("items") {
            let event = json!({"type": "ADDED", "object": object});
            policy.apply(kind, serde_json::from_value(event).expect("an RBAC object"));
        }
        policy.set_loaded(kind);
    }
    policy
}

/// Deletes the objects of the round before.
async fn forget(direct: &Http, kind: RbacKind) {
    let of = |namespace: Option<&str>| {
        rbac::collection(namespace, kind.resource().trim_start_matches("cluster")) + "?labelSelector=drawn"
    };
    let paths = match kind {
        RbacKind::Role | RbacKind::RoleBinding => NAMESPACES.map(|namespace| of(Some(namespace))).to_vec(),
        _ => vec![of(None)],
    };
    for path in paths {
        direct.delete(&path).await;
    }
}

/// Creates roles and bindings, and returns the rules of the roles.
async fn draw_rules(direct: &Http, random: &mut Rng) -> Vec<Value> {
    let (mut roles, mut all_rules) = (Vec::new(), Vec::new());
    for at in 0..ROLES {
        let namespace = random.bool().then(|| one(random, &NAMESPACES));
        let name = format!("{}{}", one(random, &ROLE_NAMES), at / 4);
        if roles.contains(&(namespace, name.clone())) {
            continue;
        }
        let rules: Vec<_> = (0..random.u32(..4)).map(|_| rule(namespace.is_none(), random)).collect();
        let mut role = json!({"metadata": {"name": name, "labels": {"drawn": ""}}, "rules": &rules});
        if namespace.is_none() && random.u32(..4) == 0 {
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"drawn": ""}}]});
        }
        direct.create(&rbac::collection(namespace, "roles"), role).await;
        roles.push((namespace, name));
        all_rules.extend(rules);
    }
    for at in 0..BINDINGS {
        let namespace = (random.u32(..3) > 0).then(|| one(random, &NAMESPACES));
        let (of, role) = match random.u32(..8) {
            0 => (None, one(random, &OWN_ROLES).to_owned()),
            // A role of another namespace is missing in this one.
            _ => roles[random.usize(..roles.len())].clone(),
        };
        let kind = if of.is_some() && namespace.is_some() { "Role" } else { "ClusterRole" };
        let subjects: Vec<_> = (0..random.u32(..3)).map(|_| subject(namespace.is_some(), random)).collect();
        let name = format!("{}{at}", one(random, &ROLE_NAMES));
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role});
        let binding = json!({"metadata": {"name": name, "labels": {"drawn": ""}}, "roleRef": role,
            "subjects": subjects});
        direct.create(&rbac::collection(namespace, "rolebindings"), binding).await;
    }
    all_rules
}

fn rule(may_have_urls: bool, random: &mut Rng) -> Value {
    let verbs = some(random, &VERBS);
    if may_have_urls && random.u32(..3) == 0 {
        return json!({"verbs": verbs, "nonResourceURLs": some(random, &RULE_URLS)});
    }
    let names = if random.u32(..3) == 0 { some(random, &OBJECT_NAMES) } else { Vec::new() };
    json!({"verbs": verbs, "apiGroups": some(random, &API_GROUPS), "resources": some(random, &RULE_RESOURCES),
        "resourceNames": names})
}

fn subject(in_namespace: bool, random: &mut Rng) -> Value {
    let named = |name: &str| !name.is_empty();
    match random.u32(..6) {
        0..=1 => rbac::subject("User", one_of(random, &USERS, named)),
        2..=3 => rbac::subject("Group", one_of(random, &GROUPS[..11], named)),
        _ => {
            let (namespace, name) = ACCOUNTS[random.usize(..if in_namespace { 4 } else { 3 })];
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
    }
}

fn user(random: &mut Rng) -> User {
    let name = one(random, &USERS).to_owned();
    let mut groups: Vec<_> = GROUPS[..11].iter().filter(|_| random.u32(..4) == 0).map(|&it| it.to_owned()).collect();
    if random.u32(..50) == 0 {
        groups.push("system:masters".to_owned());
    }
    if name.is_empty() && groups.is_empty() {
        groups.push("dev".to_owned());
    }
    User { name, groups, ..User::default() }
}

/// An access that one of the rules allows or almost allows, or any.
fn access(rules: &[Value], random: &mut Rng) -> AccessAttributes {
    let rule = &rules[random.usize(..rules.len())];
    let mut near = |list: &str, any: &[&str]| {
        let listed = rule[list].as_array().filter(|listed| !listed.is_empty() && random.u32(..4) > 0);
        let listed = listed.and_then(|listed| listed[random.usize(..listed.len())].as_str());
        listed.unwrap_or_else(|| one(random, any)).to_owned()
    };
    let verb = near("verbs", &VERBS);
    if rule["nonResourceURLs"].is_array() {
        return AccessAttributes { verb, target: AccessTarget::Path(near("nonResourceURLs", &PATHS)) };
    }
    let (group, name) = (near("apiGroups", &API_GROUPS), near("resourceNames", &OBJECT_NAMES));
    let mut resource = near("resources", &RESOURCES);
    let mut subresource = one(random, &SUBRESOURCES).to_owned();
    if let Some((of, part)) = resource.split_once('/').filter(|_| random.u32(..8) > 0) {
        (resource, subresource) = (of.to_owned(), part.to_owned());
    }
    if resource == "*" && random.bool() {
        one(random, &RESOURCES).clone_into(&mut resource);
    }
    let namespace = one(random, &["", NAMESPACES[0], NAMESPACES[0], NAMESPACES[1], "missing"]).to_owned();
    let version = "v1".to_owned();
    let target =
        ResourceAccessAttributes { group, version, resource, subresource, namespace, name, ..Default::default() };
    AccessAttributes { verb, target: AccessTarget::Resource(Box::new(target)) }
}

fn one<'a>(random: &mut Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(..of.len())]
}

fn one_of<'a>(random: &mut Rng, of: &[&'a str], is: impl Fn(&str) -> bool) -> &'a str {
    loop {
        let drawn = one(random, of);
        if is(drawn) {
            return drawn;
        }
    }
}

/// One to three of these, perhaps the same.
fn some<'a>(random: &mut Rng, of: &[&'a str]) -> Vec<&'a str> {
    (0..random.u32(1..4)).map(|_| one(random, of)).collect()
}
