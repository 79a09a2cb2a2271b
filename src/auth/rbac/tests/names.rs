//! Tests of the names of objects that rules allow.

use super::super::policy::NAMES_MAX;
use super::*;

fn names(policy: &RbacPolicy, user: &User, text: &str) -> Vec<String> {
    policy.find_names(user, &access(text)).iter().flat_map(|names| names.iter()).map(ToString::to_string).collect()
}

fn rule(verb: &str, resource: &str, names: &[&str]) -> Value {
    json!({"verbs": [verb], "apiGroups": [""], "resources": [resource], "resourceNames": names})
}

#[test]
fn names_are_those_of_rules_that_allow_the_access_by_name() {
    let rules = [
        rule("get", "secrets", &["b", "a"]),
        rule("*", "*", &["c"]),
        rule("list", "secrets", &["listed"]),
        rule("get", "configmaps", &["map"]),
        rule("get", "secrets/status", &["status"]),
        rule("get", "secrets", &["", "*", "a"]),
        rule("get", "secrets", &[]),
        rule("get", "secrets", &[&"x".repeat(254)]),
        json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["secrets"], "resourceNames": ["app"]}),
    ];
    let policy = policy([
        role(Role, "t1/named", Value::from(rules.to_vec())),
        role(ClusterRole, "everywhere", json!([rule("get", "secrets", &["root"])])),
        binding(RoleBinding, "t1/b", "Role/named", &["User/ada", "Group/dev"]),
        binding(RoleBinding, "t2/b", "Role/named", &["User/ada"]),
        binding(RoleBinding, "t3/b", "ClusterRole/everywhere", &["User/ada"]),
        binding(ClusterRoleBinding, "b", "ClusterRole/everywhere", &["Group/root"]),
    ]);
    let ada = user("ada", &[]);
    assert_eq!(names(&policy, &ada, "get :t1:secrets:"), ["*", "a", "b", "c"]);
    assert_eq!(names(&policy, &ada, "list :t1:secrets:"), ["c", "listed"]);
    assert_eq!(names(&policy, &ada, "get :t2:secrets:"), [""; 0], "the role is in another namespace");
    assert_eq!(names(&policy, &ada, "get :t3:secrets:"), ["root"]);
    assert_eq!(names(&policy, &ada, "get ::secrets:"), [""; 0]);
    assert_eq!(names(&policy, &user("bob", &["dev", "root"]), "get :t1:secrets:"), ["*", "a", "b", "c", "root"]);
    assert_eq!(names(&policy, &user("dev", &[]), "get :t1:secrets:"), [""; 0], "a group of that name");
}

#[test]
fn more_names_than_the_limit_are_none() {
    let numbered: Vec<_> = (0..=NAMES_MAX).map(|number| number.to_string()).collect();
    let numbered: Vec<_> = numbered.iter().map(String::as_str).collect();
    for (rules, expected) in [
        (json!([rule("get", "secrets", &numbered[1..])]), NAMES_MAX),
        (json!([rule("get", "secrets", &numbered)]), 0),
        // They cost as much if they repeat.
        (json!([rule("get", "secrets", &numbered[1..]), rule("get", "secrets", &["1"])]), 0),
    ] {
        let policy = policy([
            role(Role, "t1/named", rules),
            binding(RoleBinding, "t1/b", "Role/named", &["User/ada", "User/ada"]),
            binding(RoleBinding, "t1/c", "Role/named", &["User/ada"]),
        ]);
        assert_eq!(names(&policy, &user("ada", &[]), "get :t1:secrets:").len(), expected);
    }
}
