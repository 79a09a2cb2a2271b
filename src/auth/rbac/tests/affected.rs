//! Tests of whose permissions a change affects, and where.

use super::*;

/// A binding of `count` users.
fn large_binding(kind: RbacKind, name: &str, role: &str, count: usize) -> Value {
    let subjects: Vec<_> = (0..count).map(|number| format!("User/u{number}")).collect();
    binding(kind, name, role, &subjects.iter().map(String::as_str).collect::<Vec<_>>()).1
}

fn rules(verb: &str) -> Value {
    json!([{"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}])
}

/// Above the limit of tracked users, everyone in the namespace counts as affected, and no user outside it.
#[test]
fn change_with_too_many_subjects_affects_only_its_namespace() {
    let (ada, bound) = (user("ada", &[]), user("u1", &[]));
    let within = |affected: Option<AffectedUsers>| {
        let affected = affected.expect("it affects its subjects");
        [(&bound, "t1"), (&ada, "t1"), (&bound, "t2"), (&bound, "")].map(|(user, at)| affected.contains(user, at))
    };
    let mut policy = RbacPolicy::default();
    let large = large_binding(RoleBinding, "t1/b", "Role/r", 5_000);
    assert_eq!(within(policy.apply(RoleBinding, change("ADDED", &large))), [true, true, false, false]);
    let role = role(Role, "t1/r", rules("get")).1;
    assert_eq!(within(policy.apply(Role, change("ADDED", &role))), [true, true, false, false]);
    assert_eq!(within(policy.apply(RoleBinding, change("DELETED", &large))), [true, true, false, false]);

    // A cluster role affects each namespace in which it is bound by itself.
    for binding in [
        large_binding(RoleBinding, "t1/b", "ClusterRole/r", 5_000),
        binding(RoleBinding, "t2/b", "ClusterRole/r", &["User/u1"]).1,
    ] {
        policy.apply(RoleBinding, change("ADDED", &binding));
    }
    let role = self::role(ClusterRole, "r", rules("get")).1;
    assert_eq!(within(policy.apply(ClusterRole, change("ADDED", &role))), [true, true, true, false]);
    let large = large_binding(ClusterRoleBinding, "b", "ClusterRole/r", 5_000);
    assert_eq!(within(policy.apply(ClusterRoleBinding, change("ADDED", &large))), [true; 4]);
}

/// The same rules or subjects in another version, such as with another annotation or after a new list.
#[test]
fn change_of_nothing_that_rbac_reads_affects_no_user() {
    for mut policy in [RbacPolicy::default(), RbacPolicy::for_changes_only()] {
        let with_note = |(kind, mut object): (RbacKind, Value)| {
            object["metadata"]["resourceVersion"] = json!("8");
            object["metadata"]["annotations"] = json!({"note": "n"});
            (kind, object)
        };
        for (kind, object) in [
            role(Role, "t1/r", rules("get")),
            role(ClusterRole, "c", rules("get")),
            binding(RoleBinding, "t1/b", "Role/r", &["User/ada"]),
            binding(RoleBinding, "t1/c", "ClusterRole/c", &["User/ada"]),
            binding(ClusterRoleBinding, "b", "ClusterRole/c", &["User/ada"]),
        ] {
            policy.apply(kind, change("ADDED", &object));
            let (kind, noted) = with_note((kind, object.clone()));
            assert_eq!(policy.apply(kind, change("MODIFIED", &noted)), None, "{object}");
            assert_eq!(policy.apply(kind, change("ADDED", &object)), None, "{object}");
        }
        for (kind, object) in [
            role(Role, "t1/r", rules("list")),
            role(ClusterRole, "c", json!([])),
            binding(RoleBinding, "t1/b", "ClusterRole/c", &["User/ada"]),
            binding(ClusterRoleBinding, "b", "ClusterRole/c", &["User/ada", "User/ada"]),
        ] {
            assert_eq!(named(policy.apply(kind, change("MODIFIED", &object))), ["ada"], "{object}");
            assert_eq!(named(policy.apply(kind, change("DELETED", &object))), ["ada"], "{object}");
            assert_eq!(named(policy.apply(kind, change("ADDED", &object))), ["ada"], "{object}");
            // The unreadable object may have been this one, with other rules or subjects.
            policy.set_incomplete(kind);
            assert_eq!(named(policy.apply(kind, change("MODIFIED", &object))), ["ada"], "{object}");
        }
    }
}

/// Decisions name the versions of their objects.
#[test]
fn unchanged_objects_keep_their_latest_version() {
    let role = role(Role, "t1/r", rules("get"));
    let mut policy = policy([role.clone(), binding(RoleBinding, "t1/b", "Role/r", &["User/ada"])]);
    for (kind, mut object) in [role, binding(RoleBinding, "t1/b", "Role/r", &["User/ada"])] {
        object["metadata"]["resourceVersion"] = json!("8");
        assert_eq!(policy.apply(kind, change("MODIFIED", &object)), None);
    }
    let grant = policy.find_grant(&user("ada", &[]), &access("get :t1:pods:")).expect("a grant");
    assert_eq!(grant.objects.map(|(_, version)| version), ["8", "8"]);
}
