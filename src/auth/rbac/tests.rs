//! Tests of [`RbacPolicy`]: one for each rule of the apiserver's authorizer.

mod affected;
mod knowledge;
mod naive;
mod names;

use serde_json::{Value, json};

use super::RbacKind::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use super::*;
use crate::auth::tests::info;
use kubeapi::{AccessAttributes, AccessTarget, ResourceAccessAttributes, User};

fn change(event: &str, object: &Value) -> RbacEvent {
    serde_json::from_value(json!({"type": event, "object": object})).expect("a change")
}

fn named(affected: Option<AffectedUsers>) -> Vec<String> {
    let Some(AffectedUsers::Only(subjects, _)) = affected else { return Vec::new() };
    let groups = subjects.groups.keys().map(|group| format!("group {group}"));
    let mut names: Vec<_> = subjects.users.keys().cloned().chain(groups).collect();
    names.sort();
    names
}

#[test]
fn binding_change_affects_old_and_new_subjects() {
    let mut policy = RbacPolicy::default();
    let binding = |name: &str, role: &str, subjects: Value| {
        let role = json!({"kind": role, "name": "r"});
        json!({"metadata": {"name": name, "namespace": "t1"}, "roleRef": role, "subjects": subjects})
    };
    let role = |verb: &str| json!({"metadata": {"name": "r", "namespace": "t1"}, "rules": [{"verbs": [verb]}]});
    let cluster_role = |verb: &str| json!({"metadata": {"name": "r"}, "rules": [{"verbs": [verb]}]});
    let ada = json!([{"kind": "User", "name": "ada"}]);
    let others = json!([{"kind": "Group", "name": "dev"}, {"kind": "ServiceAccount", "name": "sa"},
        {"kind": "ServiceAccount", "name": "sa", "namespace": "t2"}]);
    let all = ["group dev", "system:serviceaccount:t1:sa", "system:serviceaccount:t2:sa"];

    assert_eq!(named(policy.apply(Role, change("ADDED", &role("v1")))), [""; 0], "bound to no user");
    let first = change("ADDED", &binding("a", "Role", ada));
    assert_eq!(named(policy.apply(RoleBinding, first)), ["ada"]);
    assert_eq!(named(policy.apply(Role, change("MODIFIED", &role("v2")))), ["ada"]);
    assert_eq!(named(policy.apply(ClusterRole, change("MODIFIED", &cluster_role("v3")))), [""; 0], "of the same name");
    let second = change("MODIFIED", &binding("a", "ClusterRole", others));
    assert_eq!(named(policy.apply(RoleBinding, second)), ["ada", all[0], all[1], all[2]]);
    assert_eq!(named(policy.apply(Role, change("DELETED", &role("v4")))), [""; 0]);
    assert_eq!(named(policy.apply(ClusterRole, change("DELETED", &cluster_role("v5")))), all);
    let last = change("DELETED", &binding("a", "ClusterRole", json!([])));
    assert_eq!(named(policy.apply(RoleBinding, last)), all);
    assert_eq!(named(policy.apply(ClusterRole, change("ADDED", &cluster_role("v6")))), [""; 0]);
}

/// Objects as the apiserver writes them; the name of one is `NAME`, or `NAMESPACE/NAME`.
fn object(kind: RbacKind, name: &str, mut fields: Value) -> (RbacKind, Value) {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    fields["metadata"] = json!({"name": name, "namespace": namespace, "resourceVersion": "7"});
    (kind, fields)
}

fn role(kind: RbacKind, name: &str, rules: Value) -> (RbacKind, Value) {
    object(kind, name, Value::from_iter([("rules", rules)]))
}

/// A binding of a `KIND/NAME` to subjects, each `KIND/NAME` or `ServiceAccount/NAMESPACE/NAME`.
fn binding(kind: RbacKind, name: &str, role: &str, subjects: &[&str]) -> (RbacKind, Value) {
    let subjects = subjects.iter().map(|subject| {
        let (kind, name) = subject.split_once('/').expect("a kind");
        match (kind, name.split_once('/')) {
            ("ServiceAccount", Some((namespace, name))) => json!({"kind": kind, "name": name, "namespace": namespace}),
            _ => json!({"kind": kind, "name": name}),
        }
    });
    let (role_kind, role_name) = role.split_once('/').expect("a kind");
    let role = json!({"kind": role_kind, "name": role_name});
    object(kind, name, json!({"roleRef": role, "subjects": subjects.collect::<Vec<_>>()}))
}

fn policy(objects: impl IntoIterator<Item = (RbacKind, Value)>) -> RbacPolicy {
    let mut policy = RbacPolicy::default();
    for (kind, object) in objects {
        policy.apply(kind, change("ADDED", &object));
    }
    RbacKind::ALL.into_iter().for_each(|kind| policy.set_loaded(kind));
    policy
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.to_owned(), groups: groups.iter().map(|&group| group.to_owned()).collect(), ..User::default() }
}

/// An access to `VERB GROUP:NAMESPACE:RESOURCE:NAME`, or to `VERB /PATH`.
fn access(text: &str) -> AccessAttributes {
    let (verb, target) = text.split_once(' ').expect("a verb");
    let verb = verb.to_owned();
    if target.is_empty() || target.starts_with('/') {
        return AccessAttributes { verb, target: AccessTarget::Path(target.to_owned()) };
    }
    let [group, namespace, resource, name] = target.split(':').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let [group, namespace, resource, subresource, name] =
        [group, namespace, resource, subresource, name].map(str::to_owned);
    let target = ResourceAccessAttributes { group, resource, subresource, namespace, name, ..Default::default() };
    AccessAttributes { verb, target: AccessTarget::Resource(Box::new(target)) }
}

/// Whether a rule that everybody has allows each access.
fn assert_rule(rule: Value, allowed: &[&str], not_known: &[&str]) {
    let policy = policy([
        role(ClusterRole, "r", Value::from(vec![rule])),
        binding(ClusterRoleBinding, "b", "ClusterRole/r", &["User/ada"]),
    ]);
    let is_allowed = |text: &&str| policy.find_grant(&user("ada", &[]), &access(text)).is_some();
    assert_eq!(allowed.iter().filter(|text| is_allowed(text)).collect::<Vec<_>>(), allowed.iter().collect::<Vec<_>>());
    assert_eq!(not_known.iter().filter(|text| is_allowed(text)).collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn verbs_and_groups_match_exactly_or_by_star() {
    let rule = |verbs: Value, groups: Value| json!({"verbs": verbs, "apiGroups": groups, "resources": ["pods"]});
    assert_rule(
        rule(json!(["get", "list"]), json!(["", "apps"])),
        &["get ::pods:", "list apps:t1:pods:p"],
        &[
            "watch ::pods:",
            "GET ::pods:",
            "get batch::pods:",
            "ge ::pods:",
            "gets ::pods:",
            "* ::pods:",
            "get *::pods:",
        ],
    );
    assert_rule(rule(json!(["*"]), json!(["*"])), &["anything x.y:t1:pods:p", "* *::pods:"], &["get ::nodes:"]);
    assert_rule(rule(json!(["g*"]), json!(["app*"])), &[], &["get apps::pods:", "get ::pods:"]);
    for empty in [json!([]), json!(null)] {
        assert_rule(rule(empty.clone(), json!([""])), &[], &["get ::pods:"]);
        assert_rule(rule(json!(["get"]), empty), &[], &["get ::pods:"]);
    }
}

#[test]
fn resources_match_exactly_by_star_or_by_subresource() {
    let rule = |resources: Value| json!({"verbs": ["get"], "apiGroups": [""], "resources": resources});
    assert_rule(rule(json!(["*"])), &["get ::pods:", "get ::pods/log:p"], &["get apps::pods:"]);
    assert_rule(rule(json!(["pods"])), &["get ::pods:"], &["get ::pods/log:", "get ::pod:", "get ::podss:"]);
    assert_rule(
        rule(json!(["pods/log"])),
        &["get ::pods/log:p"],
        &["get ::pods:p", "get ::pods/logs:p", "get ::pods/lo:"],
    );
    assert_rule(
        rule(json!(["*/scale"])),
        &["get ::pods/scale:", "get ::x/scale:p"],
        &["get ::pods:", "get ::scale:", "get ::pods/xscale:", "get ::pods/scalex:", "get ::pods/cale:"],
    );
    assert_rule(rule(json!(["pods/*", "*/", "*/*"])), &[], &["get ::pods/log:", "get ::pods:", "get ::*:"]);
    assert_rule(rule(json!(["pods/*"])), &["get ::pods/*:"], &[]);
}

#[test]
fn resource_names_match_exactly() {
    let rule = |names: Value| json!({"verbs": ["*"], "apiGroups": [""], "resources": ["pods"], "resourceNames": names});
    assert_rule(rule(json!(["a", "b"])), &["get ::pods:a", "watch :t1:pods:b"], &["list ::pods:", "get ::pods:ab"]);
    assert_rule(rule(json!(["*", "a*"])), &["get ::pods:*"], &["get ::pods:a", "list ::pods:"]);
    assert_rule(rule(json!([""])), &["list ::pods:"], &["get ::pods:a"]);
    assert_rule(rule(json!([])), &["list ::pods:", "get ::pods:a"], &[]);
    assert_rule(rule(json!(null)), &["list ::pods:", "get ::pods:a"], &[]);
}

#[test]
fn non_resource_urls_match_exactly_or_by_prefix() {
    let rule = |urls: Value| json!({"verbs": ["get"], "nonResourceURLs": urls});
    assert_rule(rule(json!(["*"])), &["get /", "get /metrics", "get "], &["put /", "get ::pods:"]);
    assert_rule(rule(json!(["/healthz"])), &["get /healthz"], &["get /healthz/", "get /health", "get /Healthz"]);
    assert_rule(rule(json!(["/apis/*"])), &["get /apis/", "get /apis/apps"], &["get /apis", "get /api"]);
    assert_rule(rule(json!(["/a**", "/b*c"])), &["get /a", "get /abc", "get /b*c"], &["get /bxc", "get /"]);
    assert_rule(rule(json!([])), &[], &["get /", "get "]);
    let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    assert_rule(all, &["get ::pods:"], &["get /", "get /api"]);
}

fn everything() -> Value {
    json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}])
}

#[test]
fn role_binding_applies_only_in_its_namespace() {
    let policy = policy([
        role(ClusterRole, "all", everything()),
        role(Role, "t1/all", everything()),
        binding(RoleBinding, "t1/a", "ClusterRole/all", &["User/ada"]),
        binding(RoleBinding, "t1/b", "Role/all", &["User/bob"]),
        binding(RoleBinding, "t2/c", "Role/all", &["User/cleo"]),
        binding(ClusterRoleBinding, "d", "Role/all", &["User/dan"]),
    ]);
    for (name, allowed) in
        [("ada", vec!["get :t1:pods:"]), ("bob", vec!["get :t1:pods:"]), ("cleo", vec![]), ("dan", vec![])]
    {
        let all = ["get :t1:pods:", "get :t2:pods:", "get ::pods:", "get ::nodes:", "get /", "get :t:pods:"];
        let are = all.into_iter().filter(|text| policy.find_grant(&user(name, &[]), &access(text)).is_some());
        assert_eq!(are.collect::<Vec<_>>(), allowed, "{name}");
    }
}

#[test]
fn subjects_apply_by_kind_and_exact_name() {
    let account = "system:serviceaccount:";
    for (subject, of) in [
        ("User/ada", vec!["ada"]),
        ("User/dev", vec![]),
        ("Group/dev", vec!["ada", "bob"]),
        ("Group/ada", vec![]),
        ("User/system:serviceaccount:t1:sa", vec!["t1:sa"]),
        ("ServiceAccount/t1/sa", vec!["t1:sa"]),
        ("ServiceAccount/sa", vec![]),
        ("ServiceAccount/t1/s", vec![]),
        ("ServiceAccount/t/1:sa", vec![]),
        ("ServiceAccount/t1:sa/x", vec!["t1:sa:x"]),
        ("ServiceAccount/t1/sa:x", vec!["t1:sa:x"]),
        ("Node/ada", vec![]),
        ("user/ada", vec![]),
        ("/ada", vec![]),
    ] {
        let policy = policy([
            role(ClusterRole, "all", everything()),
            binding(ClusterRoleBinding, "b", "ClusterRole/all", &[subject]),
        ]);
        let users = [
            ("ada", user("ada", &["dev"])),
            ("bob", user("bob", &["ops", "dev"])),
            ("t1:sa", user(&format!("{account}t1:sa"), &[])),
            ("t1:sa:x", user(&format!("{account}t1:sa:x"), &[])),
            (":sa", user(&format!("{account}:sa"), &[])),
            ("sa", user("sa", &[])),
            ("nobody", user("", &[])),
        ];
        let applies = |user: &User| policy.find_grant(user, &access("get /")).is_some();
        let names: Vec<_> = users.iter().filter(|(_, user)| applies(user)).map(|(name, _)| *name).collect();
        assert_eq!(names, of, "{subject}");
    }
}

/// A service account without a namespace is in that of its binding.
#[test]
fn service_account_namespace_defaults_to_that_of_the_binding() {
    let policy = policy([
        role(ClusterRole, "all", everything()),
        binding(RoleBinding, "t1/b", "ClusterRole/all", &["ServiceAccount/sa"]),
        binding(ClusterRoleBinding, "b", "ClusterRole/all", &["ServiceAccount/sa"]),
    ]);
    for (name, is_allowed) in [("t1:sa", true), ("t2:sa", false), (":sa", false), ("sa", false)] {
        let user = user(&format!("system:serviceaccount:{name}"), &[]);
        assert_eq!(policy.find_grant(&user, &access("get :t1:pods:")).is_some(), is_allowed, "{name}");
    }
}

#[test]
fn missing_or_unknown_role_grants_nothing() {
    let mut policy = policy([
        binding(ClusterRoleBinding, "b", "ClusterRole/all", &["User/ada"]),
        binding(ClusterRoleBinding, "c", "Unknown/all", &["User/ada"]),
        binding(RoleBinding, "t1/c", "Unknown/all", &["User/ada"]),
        role(Role, "t1/all", everything()),
    ]);
    let is_allowed = |policy: &RbacPolicy| policy.find_grant(&user("ada", &[]), &access("get :t1:pods:")).is_some();
    assert!(!is_allowed(&policy));
    let (kind, role) = role(ClusterRole, "all", everything());
    for (event, expected) in [("ADDED", true), ("MODIFIED", true), ("DELETED", false)] {
        policy.apply(kind, change(event, &role));
        assert_eq!(is_allowed(&policy), expected, "{event}");
    }
}

/// The apiserver writes an absent list as `null`.
#[test]
fn absent_lists_are_read_as_empty() {
    let policy = policy([
        object(ClusterRole, "r", json!({"rules": null})),
        object(ClusterRole, "s", json!({})),
        binding(ClusterRoleBinding, "b", "ClusterRole/r", &["User/ada"]),
        binding(ClusterRoleBinding, "c", "ClusterRole/s", &["User/ada"]),
        object(ClusterRoleBinding, "d", json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": null})),
        object(ClusterRoleBinding, "e", json!({})),
    ]);
    assert!(policy.is_complete());
    assert_eq!(policy.find_grant(&user("ada", &[]), &access("get /")), None);
}

/// Above a limit upstream is asked, so that a neighbour's many bindings and rules cost little.
#[test]
fn decision_looks_at_a_limited_number_of_bindings_and_rules() {
    let one = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"]}]);
    let bound = |kind, name: &str, role: &str| binding(kind, name, &format!("ClusterRole/{role}"), &["User/ada"]);
    for (others, is_found) in [(policy::CANDIDATES_MAX - 1, true), (policy::CANDIDATES_MAX, false)] {
        let mut objects = vec![role(ClusterRole, "r", one.clone()), bound(RoleBinding, "t1/r", "r")];
        objects.extend((0..others).map(|nth| bound(ClusterRoleBinding, &nth.to_string(), "missing")));
        let found = policy(objects).find_grant(&user("ada", &[]), &access("get :t1:pods:p"));
        assert_eq!(found.is_some(), is_found, "{others} other bindings");
    }
    let other = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["other"]});
    for (others, is_found) in [(rule::RULES_MAX - 1, true), (rule::RULES_MAX, false)] {
        for roles in [1, 3, 200] {
            let mut objects = Vec::new();
            let mut rules = vec![other.clone(); others];
            for nth in 1..roles {
                objects.push(role(ClusterRole, &nth.to_string(), rules.split_off(rules.len() - others / roles).into()));
                objects.push(bound(ClusterRoleBinding, &nth.to_string(), &nth.to_string()));
            }
            rules.push(one[0].clone());
            objects.extend([role(ClusterRole, "r", rules.into()), bound(RoleBinding, "t1/b", "r")]);
            let found = policy(objects).find_grant(&user("ada", &[]), &access("get :t1:pods:p"));
            assert_eq!(found.is_some(), is_found, "{others} other rules in {roles} roles");
        }
    }
}

/// An index entry matches a subject of any kind, so each such binding costs a look at all of its subjects.
#[test]
fn decision_looks_at_a_limited_number_of_subjects() {
    // The role has one rule, which each of the two bindings looks at.
    for (count, is_found) in [(rule::RULES_MAX - 2, true), (rule::RULES_MAX - 1, false)] {
        let mut subjects = vec![json!({"kind": "User", "name": "bob"}); count - 1];
        subjects.push(json!({"kind": "Robot", "name": "ada"}));
        let role_ref = json!({"kind": "ClusterRole", "name": "r"});
        let policy = policy([
            role(ClusterRole, "r", everything()),
            object(ClusterRoleBinding, "a", json!({"roleRef": role_ref, "subjects": subjects})),
            binding(RoleBinding, "t1/b", "ClusterRole/r", &["User/ada"]),
        ]);
        let found = policy.find_grant(&user("ada", &[]), &access("get :t1:pods:p"));
        assert_eq!(found.is_some(), is_found, "{count} subjects");
    }
}

/// For the apiserver such a list is one of the whole cluster.
#[test]
fn namespace_in_a_field_selector_is_not_that_of_the_access() {
    let policy = policy([
        role(ClusterRole, "all", everything()),
        binding(RoleBinding, "t1/b", "ClusterRole/all", &["User/ada"]),
    ]);
    for (path, is_allowed) in [
        ("/api/v1/namespaces/t1/pods", true),
        ("/api/v1/namespaces/t1/pods?fieldSelector=metadata.namespace%3Dt2", true),
        ("/api/v1/pods?fieldSelector=metadata.namespace%3Dt1", false),
        ("/api/v1/pods?fieldSelector=metadata.namespace%3D", false),
        ("/api/v1/nodes?fieldSelector=metadata.namespace%3Dt1", false),
        ("/api/v1/nodes?fieldSelector=metadata.namespace%3Dt1,metadata.name%3Dn", false),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles?watch=1&fieldSelector=metadata.namespace%3Dt1", false),
    ] {
        let access = AccessAttributes::from_request(&info(path));
        assert_eq!(policy.find_grant(&user("ada", &[]), &access).is_some(), is_allowed, "{path}");
    }
}

/// The text is that of the apiserver, so that logs and audit records do not differ.
#[test]
fn reason_names_binding_role_and_first_subject() {
    let policy = policy([
        role(ClusterRole, "view", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}])),
        role(Role, "t1/r", everything()),
        binding(ClusterRoleBinding, "a\"b", "ClusterRole/view", &["User/x", "Group/dev \u{7}\u{fc}", "User/ada"]),
        binding(RoleBinding, "t1/b", "Role/r", &["User/x", "ServiceAccount/t2/sa"]),
        binding(RoleBinding, "t1/c", "Role/r", &["ServiceAccount/sb"]),
    ]);
    let ada = user("ada", &["dev \u{7}\u{fc}"]);
    let reason = |user: &User, text: &str| policy.find_grant(user, &access(text)).expect("a grant").reason;
    let expected = r#"RBAC: allowed by ClusterRoleBinding "a\"b" of ClusterRole "view" to Group "dev \aü""#;
    assert_eq!(reason(&ada, "get :t1:pods:"), expected);
    let expected = r#"RBAC: allowed by RoleBinding "b/t1" of Role "r" to ServiceAccount "sa/t2""#;
    assert_eq!(reason(&user("system:serviceaccount:t2:sa", &[]), "get :t1:pods:"), expected);
    let expected = r#"RBAC: allowed by RoleBinding "c/t1" of Role "r" to ServiceAccount "sb/t1""#;
    assert_eq!(reason(&user("system:serviceaccount:t1:sb", &[]), "get :t1:pods:"), expected);
    let grant = policy.find_grant(&ada, &access("get :t1:pods:")).expect("a grant");
    let objects = grant.objects.each_ref().map(|(key, version)| (key.name.as_str(), version.as_str()));
    assert_eq!(objects, [("a\"b", "7"), ("view", "7")]);
}

/// Only what the rules allow to a subject is asked about, and never the members of `system:masters`.
#[test]
fn sample_has_accesses_that_bindings_allow_to_their_subjects() {
    let rule = |verb: &str, group: &str, resource: &str, names: Value| json!([{"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names}]);
    let paths = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz/*"]}]);
    let policy = policy([
        role(ClusterRole, "all", rule("*", "*", "*", json!([]))),
        role(ClusterRole, "paths", paths),
        role(ClusterRole, "named", rule("update", "apps", "deployments/scale", json!(["web"]))),
        binding(ClusterRoleBinding, "a", "ClusterRole/all", &["Group/system:masters"]),
        binding(ClusterRoleBinding, "b", "ClusterRole/all", &["Group/system:masters", "ServiceAccount/t1/agent"]),
        binding(ClusterRoleBinding, "c", "ClusterRole/paths", &["Group/dev"]),
        binding(ClusterRoleBinding, "d", "ClusterRole/absent", &["User/ada"]),
        binding(RoleBinding, "t1/e", "ClusterRole/named", &["User/ada"]),
    ]);
    let account = user(
        "system:serviceaccount:t1:agent",
        &["system:serviceaccounts", "system:serviceaccounts:t1", "system:authenticated"],
    );
    let expected = [
        (account, access("get ::pods:")),
        (user("kube-fanout-check", &["dev", "system:authenticated"]), access("get /healthz/")),
        (user("ada", &["system:authenticated"]), access("update apps:t1:deployments/scale:web")),
    ];
    assert_eq!(policy.sample(20), expected);
    assert_eq!(policy.sample(2), [expected[0].clone(), expected[2].clone()]);
    assert_eq!(policy.sample(1), [expected[0].clone()]);
}
