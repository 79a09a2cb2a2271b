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
