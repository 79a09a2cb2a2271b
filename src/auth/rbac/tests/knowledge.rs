//! Tests of what is decided while objects are unknown, changed, or too many.

use super::*;

#[test]
fn nothing_is_decided_until_all_kinds_are_known() {
    let objects =
        || [role(ClusterRole, "all", everything()), binding(ClusterRoleBinding, "b", "ClusterRole/all", &["User/ada"])];
    let is_allowed = |policy: &RbacPolicy| policy.find_grant(&user("ada", &[]), &access("get /")).is_some();
    for kind in RbacKind::ALL {
        let mut policy = policy(objects());
        assert!(is_allowed(&policy) && policy.is_complete());
        policy.clear_kind(kind);
        assert!(!is_allowed(&policy) && !policy.is_complete(), "{kind:?} is cleared");
        for (_, object) in objects().iter().filter(|(of, _)| *of == kind) {
            policy.apply(kind, change("ADDED", object));
        }
        assert!(!is_allowed(&policy), "{kind:?} is not loaded");
        policy.set_loaded(kind);
        assert!(is_allowed(&policy));
        policy.set_incomplete(kind);
        policy.set_loaded(kind);
        assert!(!is_allowed(&policy), "an object of {kind:?} is unreadable");
    }
    let mut changes = RbacPolicy::for_changes_only();
    for (kind, object) in objects() {
        changes.apply(kind, change("ADDED", &object));
    }
    RbacKind::ALL.into_iter().for_each(|kind| changes.set_loaded(kind));
    assert!(!is_allowed(&changes));
    let (kind, role) = role(ClusterRole, "all", json!([]));
    assert_eq!(named(changes.apply(kind, change("MODIFIED", &role))), ["ada"]);
}

#[test]
fn changed_binding_grants_nothing_to_its_former_subjects() {
    for (kind, name) in [(RoleBinding, "t1/b"), (ClusterRoleBinding, "b")] {
        let of = |subjects: &[&str]| binding(kind, name, "ClusterRole/all", subjects);
        let mut policy = policy([role(ClusterRole, "all", everything()), of(&["User/ada", "Group/dev"])]);
        let allowed = |policy: &RbacPolicy| {
            let users = [user("ada", &[]), user("bob", &["dev"]), user("cleo", &[])];
            users.map(|user| policy.find_grant(&user, &access("get :t1:pods:")).is_some())
        };
        assert_eq!(allowed(&policy), [true, true, false]);
        policy.apply(kind, change("MODIFIED", &of(&["User/cleo"]).1));
        assert_eq!(allowed(&policy), [false, false, true], "{kind:?}");
        policy.apply(kind, change("DELETED", &of(&["User/ada"]).1));
        assert_eq!(allowed(&policy), [false; 3], "{kind:?}");
    }
}

/// The cleared kinds leave nothing in the index.
#[test]
fn cleared_bindings_grant_nothing_after_a_reload() {
    for kind in [RoleBinding, ClusterRoleBinding] {
        let name = if kind == RoleBinding { "t1/b" } else { "b" };
        let mut policy =
            policy([role(ClusterRole, "all", everything()), binding(kind, name, "ClusterRole/all", &["User/ada"])]);
        let is_allowed = |policy: &RbacPolicy| policy.find_grant(&user("ada", &[]), &access("get :t1:pods:")).is_some();
        assert!(is_allowed(&policy));
        policy.clear_kind(kind);
        policy.set_loaded(kind);
        assert!(!is_allowed(&policy), "{kind:?}");
        let (_, role) = role(ClusterRole, "all", json!([]));
        assert_eq!(policy.apply(ClusterRole, change("MODIFIED", &role)), None);
    }
}

#[test]
fn objects_above_the_memory_limit_stop_decisions() {
    let padding = "x".repeat(1_024);
    let large = |kind: RbacKind, name: &str| match kind {
        Role | ClusterRole => role(kind, name, json!([{"verbs": [padding]}])).1,
        _ => binding(kind, name, "ClusterRole/all", &[&format!("User/{padding}")]).1,
    };
    let name = |kind: RbacKind, nth: usize| {
        if matches!(kind, Role | RoleBinding) { format!("t1/{nth}") } else { nth.to_string() }
    };
    for kind in RbacKind::ALL {
        let mut policy = policy([
            role(ClusterRole, "all", everything()),
            binding(ClusterRoleBinding, "b", "ClusterRole/all", &["User/ada"]),
        ]);
        let is_allowed = |policy: &RbacPolicy| policy.find_grant(&user("ada", &[]), &access("get /")).is_some();
        // Two of these objects fit.
        policy.kinds[kind as usize].bytes = policy::KIND_BYTES_MAX - 5_000;
        for nth in [0, 1, 1] {
            policy.apply(kind, change("MODIFIED", &large(kind, &name(kind, nth))));
            assert!(is_allowed(&policy), "{kind:?}: replaced objects do not count");
        }
        let affected = policy.apply(kind, change("ADDED", &large(kind, &name(kind, 2))));
        assert!(!is_allowed(&policy), "{kind:?}");
        let everyone = (kind == RoleBinding || kind == ClusterRoleBinding).then_some(AffectedUsers::Everyone);
        assert_eq!(affected, everyone, "{kind:?}: whose bindings are not known");
        policy.apply(kind, change("DELETED", &large(kind, &name(kind, 2))));
        assert!(!is_allowed(&policy), "{kind:?}: not all are known before the next list");
        let (role_kind, role) = role(ClusterRole, "all", json!([]));
        let affected = policy.apply(role_kind, change("MODIFIED", &role));
        assert_eq!(affected == Some(AffectedUsers::Everyone), everyone.is_some(), "{kind:?}");
    }
}

/// A tenant may write more than the memory limit of a kind.
#[test]
fn one_namespace_does_not_end_decisions_for_others() {
    let texts: Vec<_> = (0..300).map(|number| format!("{number}{}", "x".repeat(64 << 10))).collect();
    let subjects: Vec<_> = texts.iter().map(|text| json!({"kind": "User", "name": text})).collect();
    let role_ref = json!({"kind": "ClusterRole", "name": "all"});
    for (kind, fields) in [
        (RoleBinding, json!({"roleRef": role_ref, "subjects": subjects})),
        (Role, json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": texts}]})),
    ] {
        let mut policy = policy([
            role(ClusterRole, "all", everything()),
            binding(RoleBinding, "t2/b", "ClusterRole/all", &["User/ada"]),
        ]);
        for number in 0..16 {
            policy.apply(kind, change("ADDED", &object(kind, &format!("t1/{number}"), fields.clone()).1));
        }
        let is_allowed = policy.find_grant(&user("ada", &[]), &access("get :t2:pods:")).is_some();
        assert!(is_allowed, "{kind:?}: {} bytes", policy.kinds[kind as usize].bytes);
    }
}

/// One tenant's large binding and role are left out, and nothing else is.
#[test]
fn objects_above_the_memory_limit_of_a_namespace_leave_out_only_themselves() {
    let subjects: Vec<_> = (0..=policy::NAMESPACE_BYTES_MAX / 512).map(|number| format!("User/u{number}")).collect();
    let subjects: Vec<_> = subjects.iter().map(String::as_str).collect();
    let large = binding(RoleBinding, "t1/large", "ClusterRole/all", &subjects).1;
    let resources: Vec<_> = (0..policy::NAMESPACE_BYTES_MAX / 56).map(|number| format!("{number}")).collect();
    let large_role = role(Role, "t1/large", json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": resources}])).1;
    let small = |name: &str, role: &str, subject: &str| binding(RoleBinding, name, role, &[subject]);
    let mut policy = policy([
        role(ClusterRole, "all", everything()),
        small("t1/b", "ClusterRole/all", "User/bob"),
        small("t1/c", "Role/large", "User/cleo"),
        small("t2/b", "ClusterRole/all", "User/ada"),
    ]);
    let may = |policy: &RbacPolicy, name: &str, text: &str| {
        assert!(policy.is_complete());
        policy.find_grant(&user(name, &[]), &access(text)).is_some()
    };
    let affected = |affected: Option<AffectedUsers>| {
        let affected = affected.expect("it affects its subjects");
        [("u1", "t1"), ("eve", "t1"), ("ada", "t2"), ("eve", "t2")]
            .map(|(name, namespace)| affected.contains(&user(name, &[]), namespace))
    };
    let bytes = |policy: &RbacPolicy| policy.kinds.each_ref().map(|kind| kind.bytes);
    let before = bytes(&policy);

    assert_eq!(affected(policy.apply(RoleBinding, change("ADDED", &large))), [true, true, false, false]);
    policy.apply(Role, change("ADDED", &large_role));
    assert!(!may(&policy, "u1", "get :t1:pods:"), "upstream is asked");
    assert!(!may(&policy, "cleo", "get :t1:1:"), "upstream is asked");
    assert!(may(&policy, "bob", "get :t1:pods:") && may(&policy, "ada", "get :t2:pods:"));

    // Changes of objects that are left out still end watches.
    assert_eq!(affected(policy.apply(RoleBinding, change("MODIFIED", &large))), [true, true, false, false]);
    let other = role(ClusterRole, "all", json!([])).1;
    assert_eq!(affected(policy.apply(ClusterRole, change("MODIFIED", &other))), [true, true, true, false]);
    policy.apply(ClusterRole, change("MODIFIED", &role(ClusterRole, "all", everything()).1));
    assert_eq!(named(policy.apply(Role, change("MODIFIED", &large_role))), ["cleo"]);
    assert_eq!(affected(policy.apply(RoleBinding, change("DELETED", &large))), [true, true, false, false]);
    assert_eq!(named(policy.apply(Role, change("DELETED", &large_role))), ["cleo"]);
    assert_eq!(bytes(&policy), before, "nothing is charged for deleted objects");

    // Once there is room again, what is written is kept.
    let (half, last) = (subjects.len() / 2, &subjects[subjects.len() - 1]["User/".len()..]);
    let first = binding(RoleBinding, "t1/first", "ClusterRole/all", &subjects[..half]).1;
    let second = binding(RoleBinding, "t1/second", "ClusterRole/all", &subjects[half - 1..]).1;
    policy.apply(RoleBinding, change("ADDED", &first));
    policy.apply(RoleBinding, change("ADDED", &second));
    assert!(may(&policy, "u1", "get :t1:pods:") && !may(&policy, last, "get :t1:pods:"));
    policy.apply(RoleBinding, change("DELETED", &first));
    assert!(!may(&policy, last, "get :t1:pods:"));
    policy.apply(RoleBinding, change("MODIFIED", &second));
    assert!(may(&policy, last, "get :t1:pods:"));
}
