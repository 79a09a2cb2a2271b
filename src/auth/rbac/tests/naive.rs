//! A second evaluator, written from the documentation of RBAC, without an index and without state. Both must agree after
//! every sequence of events.

use std::collections::BTreeSet;

use fastrand::Rng;
use kubeapi::go_quote;
use proptest::prelude::*;

use super::*;

const NAMES: [&str; 4] = ["a", "b", "a:b", "A b"];
const NAMESPACES: [&str; 3] = ["", "n", "n:a"];
const VERBS: [&str; 4] = ["get", "list", "*", "g*"];
const GROUPS: [&str; 3] = ["", "apps", "*"];
const RESOURCES: [&str; 10] =
    ["pods", "pods/log", "*", "*/log", "pods/*", "*/*", "logs", "pods/xlog", "nodes", "nodes/log"];
const URLS: [&str; 7] = ["*", "/", "/a", "/a/*", "/a*", "/a**", "/b"];
const PATHS: [&str; 6] = ["/", "/a", "/a/", "/a/b", "/ab", "/b"];
const EVENTS: [&str; 4] = ["ADDED", "MODIFIED", "MODIFIED", "DELETED"];
const OBJECTS: usize = 40;
const QUESTIONS: usize = 60;

fn one<'a>(random: &mut Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(..of.len())]
}

fn some<'a>(random: &mut Rng, of: &[&'a str]) -> Vec<&'a str> {
    let share = random.u32(1..4);
    of.iter().copied().filter(|_| random.u32(..4) < share).collect()
}

fn drawn_object(random: &mut Rng) -> (RbacKind, Value) {
    let kind = RbacKind::ALL[random.usize(..4)];
    let namespace = if kind.is_namespaced() { one(random, &NAMESPACES[1..]) } else { "" };
    let metadata = json!({"name": one(random, &NAMES[..3]), "namespace": namespace});
    if !kind.is_binding() {
        let rules: Vec<_> = (0..random.u32(..3)).map(|_| drawn_rule(random)).collect();
        return (kind, json!({"metadata": metadata, "rules": rules}));
    }
    let subjects: Vec<_> = (0..random.u32(..4))
        .map(|_| {
            let kind = one(random, &["User", "Group", "ServiceAccount", "Node"]);
            let account = format!("system:serviceaccount:{}:{}", one(random, &NAMESPACES), one(random, &NAMES));
            let name = if kind == "User" && random.bool() { account } else { one(random, &NAMES).to_owned() };
            json!({"kind": kind, "name": name, "namespace": one(random, &NAMESPACES)})
        })
        .collect();
    let role = json!({"kind": one(random, &["Role", "ClusterRole", "ClusterRole", "Other"]),
        "name": one(random, &NAMES[..3])});
    (kind, json!({"metadata": metadata, "roleRef": role, "subjects": subjects}))
}

fn drawn_rule(random: &mut Rng) -> Value {
    let names = if random.bool() { Vec::new() } else { some(random, &NAMES) };
    json!({"verbs": some(random, &VERBS), "apiGroups": some(random, &GROUPS), "resources": some(random, &RESOURCES),
        "resourceNames": names, "nonResourceURLs": some(random, &URLS)})
}

fn drawn_user(random: &mut Rng) -> User {
    let account = format!("system:serviceaccount:{}:{}", one(random, &NAMESPACES), one(random, &NAMES));
    let name = if random.bool() { account } else { one(random, &NAMES).to_owned() };
    user(&name, &some(random, &NAMES))
}

fn drawn_access(random: &mut Rng) -> AccessAttributes {
    let verb = one(random, &VERBS);
    if random.u32(..4) == 0 {
        return access(&format!("{verb} {}", one(random, &PATHS)));
    }
    let target = ResourceAccessAttributes {
        group: one(random, &GROUPS).to_owned(),
        resource: one(random, &["pods", "nodes", "log", "*"]).to_owned(),
        subresource: one(random, &["", "log", "xlog", "*"]).to_owned(),
        namespace: one(random, &NAMESPACES).to_owned(),
        name: one(random, &["", "a", "b", "a:b", "*"]).to_owned(),
        ..Default::default()
    };
    AccessAttributes { verb: verb.to_owned(), target: AccessTarget::Resource(Box::new(target)) }
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// "Rules are purely additive": whether this one allows the access.
fn is_allowed_by(rule: &Value, access: &AccessAttributes) -> bool {
    let listed = |list: &str, wanted: &[&str]| texts(&rule[list]).iter().any(|text| wanted.contains(text));
    if !listed("verbs", &["*", &access.verb]) {
        return false;
    }
    match &access.target {
        AccessTarget::Path(path) => texts(&rule["nonResourceURLs"]).into_iter().any(|url| {
            let prefix = url.trim_end_matches('*');
            url == path || prefix.len() < url.len() && path.get(..prefix.len()) == Some(prefix)
        }),
        AccessTarget::Resource(target) => {
            let (resource, part) = (&target.resource, &target.subresource);
            let whole = if part.is_empty() { resource.clone() } else { format!("{resource}/{part}") };
            let any = if part.is_empty() { "*".to_owned() } else { format!("*/{part}") };
            listed("apiGroups", &["*", &target.group])
                && listed("resources", &["*", &whole, &any])
                && (texts(&rule["resourceNames"]).is_empty() || listed("resourceNames", &[&target.name]))
        }
    }
}

/// The reasons of all bindings of this kind that allow the access.
fn reasons(objects: &[(RbacKind, Value)], kind: RbacKind, user: &User, access: &AccessAttributes) -> BTreeSet<String> {
    let mut reasons = BTreeSet::new();
    for (_, binding) in objects.iter().filter(|(of, _)| *of == kind) {
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        if kind == RoleBinding && (namespace.is_empty() || namespace != access.namespace()) {
            continue;
        }
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        let subject = subjects.filter_map(|subject| {
            let (kind, name) = (subject["kind"].as_str()?, subject["name"].as_str()?);
            let own = subject["namespace"].as_str().filter(|own| !own.is_empty()).unwrap_or(namespace);
            let account = format!("system:serviceaccount:{own}:{name}");
            match kind {
                "User" if user.name == name => Some(format!("User {}", go_quote(name))),
                "Group" if user.groups.iter().any(|group| group == name) => Some(format!("Group {}", go_quote(name))),
                "ServiceAccount" if !own.is_empty() && user.name == account => {
                    Some(format!("ServiceAccount {}", go_quote(&format!("{name}/{own}"))))
                }
                _ => None,
            }
        });
        let Some(subject) = { subject }.next() else { continue };
        let (role_kind, role_name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
        let role = objects.iter().find(|(of, role)| {
            *role_kind == *of.as_str()
                && role["metadata"]["name"] == *role_name
                && (*of == ClusterRole || *of == Role && role["metadata"]["namespace"] == *namespace)
        });
        let Some((of, role)) = role else { continue };
        if role["rules"].as_array().into_iter().flatten().any(|rule| is_allowed_by(rule, access)) {
            let name = binding["metadata"]["name"].as_str().expect("a name");
            let name = if kind == RoleBinding { format!("{name}/{namespace}") } else { name.to_owned() };
            let role = go_quote(role_name.as_str().expect("a name"));
            let (kind, role_kind) = (kind.as_str(), of.as_str());
            reasons.insert(format!("RBAC: allowed by {kind} {} of {role_kind} {role} to {subject}", go_quote(&name)));
        }
    }
    reasons
}

proptest! {
    #[test]
    fn decisions_agree_with_a_naive_evaluator(seed in any::<u64>()) {
        let mut random = Rng::with_seed(seed);
        let (mut policy, mut objects) = (policy([]), Vec::<(RbacKind, Value)>::new());
        for _ in 0..OBJECTS {
            let ((kind, object), event) = (drawn_object(&mut random), one(&mut random, &EVENTS));
            objects.retain(|(of, other)| *of != kind || other["metadata"] != object["metadata"]);
            policy.apply(kind, change(event, &object));
            if event != "DELETED" {
                objects.push((kind, object));
            }
        }
        for _ in 0..QUESTIONS {
            let (user, access) = (drawn_user(&mut random), drawn_access(&mut random));
            let cluster = reasons(&objects, ClusterRoleBinding, &user, &access);
            let expected = if cluster.is_empty() { reasons(&objects, RoleBinding, &user, &access) } else { cluster };
            let reason = policy.find_grant(&user, &access).map(|grant| grant.reason);
            let is_expected = reason.as_ref().map_or(expected.is_empty(), |reason| expected.contains(reason));
            prop_assert!(is_expected, "{user:?} {access:?}: {reason:?}, expected one of {expected:?}");
            // Each name is allowed, and each allowed one is a name unless all are.
            let is_allowed = |name: &str| policy.find_grant(&user, &access.clone().get(name)).is_some();
            let names = policy.find_names(&user, &access.clone().get("")).unwrap_or_default();
            prop_assert!(names.iter().all(|name| is_allowed(name)), "{user:?} {access:?}: {names:?}");
            if matches!(access.target, AccessTarget::Resource(_)) && !is_allowed("no such name") {
                let missed = NAMES.iter().find(|name| is_allowed(name) && !names.contains(**name));
                prop_assert_eq!(missed, None, "{:?} {:?}: {:?}", user, access, names);
            }
        }
    }

    /// Open watches whose decision a change reverses end because it affects their user there.
    #[test]
    fn change_affects_every_user_whose_decision_it_reverses(seed in any::<u64>()) {
        let mut random = Rng::with_seed(seed);
        let mut policy = policy([]);
        let questions: Vec<_> =
            (0..QUESTIONS).map(|_| (drawn_user(&mut random), drawn_access(&mut random))).collect();
        let decide = |policy: &RbacPolicy| {
            questions.iter().map(|(user, access)| policy.find_grant(user, access).is_some()).collect::<Vec<_>>()
        };
        for _ in 0..OBJECTS {
            let before = decide(&policy);
            let ((kind, object), event) = (drawn_object(&mut random), one(&mut random, &EVENTS));
            let affected = policy.apply(kind, change(event, &object)).unwrap_or_default();
            let after = decide(&policy);
            for (at, (user, access)) in questions.iter().enumerate() {
                let is_affected = affected.contains(user, access.namespace());
                prop_assert!(before[at] == after[at] || is_affected, "{user:?} {access:?}: {event} {object}");
            }
        }
    }
}
