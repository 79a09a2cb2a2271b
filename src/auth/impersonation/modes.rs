//! The modes of impersonation, and the permissions that each needs, as in the apiserver's `impersonation/mode.go`.

use std::collections::BTreeMap;

use super::super::MASTERS;
use kubeapi::{AccessAttributes, AccessTarget, ObjectKey, User, go_quote, is_dns_label, is_dns_subdomain};

/// A mode of impersonation. All of its steps must succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImpersonationMode {
    /// The user whose permissions are reviewed, if it differs from the requestor.
    pub(super) subject: Option<User>,
    pub(super) steps: Vec<ImpersonationStep>,
    /// The user as which the request is sent to upstream.
    pub(super) user: User,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImpersonationStep {
    Review(AccessAttributes),
    /// The first access must be allowed, or else all of the others.
    AllOrEach(AccessAttributes, Vec<AccessAttributes>),
    /// The access is never allowed, for the given reason.
    Never(AccessAttributes, String),
}

/// The verb of an impersonation mode, and the API group of its permissions on users and groups.
#[derive(Debug, Clone, Copy)]
struct ImpersonationVerb<'a> {
    verb: &'a str,
    group: &'a str,
}

/// The kind of a user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImpersonatedNameKind<'a> {
    Node(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
    Other,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const LEGACY: ImpersonationVerb<'_> = ImpersonationVerb { verb: "impersonate", group: "" };
const SYSTEM_NODES: &str = "system:nodes";
/// The extra with the node that a service account's token is bound to.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The only extra of a service account that acts as its node.
const ASSOCIATED_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
/// The number of groups or extra values from which on one review for all of them is sent first.
const BATCH_THRESHOLD: usize = 4;
/// The maximum length of the name of a namespace.
const NAMESPACE_BYTES_MAX: usize = 63;
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                              or '.', and must start and end with an alphanumeric character (e.g. 'example.com', \
                              regex used for validation is \
                              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PATH_RULE: &str = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";

/// Returns the modes in which `requestor` may impersonate `target_user` in a request, in upstream's order.
///
/// `request` is `None` if upstream does not support constrained impersonation.
pub(super) fn modes(
    requestor: &User,
    target_user: &User,
    request: Option<&AccessAttributes>,
) -> Vec<ImpersonationMode> {
    let constrained = request.map(|request| constrained(requestor, target_user, request)).unwrap_or_default();
    let mut steps = vec![ImpersonationStep::Review(LEGACY.name(&target_user.name))];
    steps.extend(LEGACY.uid(target_user));
    steps.extend(target_user.groups.iter().map(|group| ImpersonationStep::Review(LEGACY.group_named(group))));
    steps.extend(LEGACY.extras(&target_user.extra).into_iter().map(ImpersonationStep::Review));
    let legacy = ImpersonationMode { subject: None, steps, user: target_user.clone() };
    constrained.into_iter().chain([legacy]).collect()
}

fn constrained(requestor: &User, target_user: &User, request: &AccessAttributes) -> Vec<ImpersonationMode> {
    let is_bare = target_user.uid.is_empty() && target_user.groups.is_empty() && target_user.extra.is_empty();
    match ImpersonatedNameKind::parse(&target_user.name) {
        ImpersonatedNameKind::Node(node) if is_bare => {
            let user = User { groups: vec![SYSTEM_NODES.to_owned()], ..target_user.clone() };
            let mode = |mode: &str, name: &str, subject| {
                let verb = format!("impersonate:{mode}");
                let name = ImpersonationVerb { verb: &verb, group: AUTHENTICATION }.target("nodes", "", "", name);
                ImpersonationMode {
                    subject,
                    steps: vec![ImpersonationStep::Review(on(mode, request)), ImpersonationStep::Review(name)],
                    user: user.clone(),
                }
            };
            let associated =
                is_associated(requestor, node).then(|| mode("associated-node", "*", Some(bound(requestor))));
            associated.into_iter().chain([mode("arbitrary-node", node, None)]).collect()
        }
        ImpersonatedNameKind::ServiceAccount { .. } if is_bare => {
            let verb = ImpersonationVerb { verb: "impersonate:serviceaccount", group: AUTHENTICATION };
            let steps = vec![
                ImpersonationStep::Review(on("serviceaccount", request)),
                ImpersonationStep::Review(verb.name(&target_user.name)),
            ];
            vec![ImpersonationMode { subject: None, steps, user: target_user.clone() }]
        }
        ImpersonatedNameKind::Node(_) | ImpersonatedNameKind::ServiceAccount { .. } => Vec::new(),
        ImpersonatedNameKind::Other => vec![user_info(target_user, request)],
    }
}

/// Returns the mode for a user that is neither a node nor a service account, with all parts of the user.
fn user_info(target_user: &User, request: &AccessAttributes) -> ImpersonationMode {
    let verb = ImpersonationVerb { verb: "impersonate:user-info", group: AUTHENTICATION };
    let mut steps = vec![
        ImpersonationStep::Review(on("user-info", request)),
        ImpersonationStep::Review(verb.name(&target_user.name)),
    ];
    steps.extend(verb.uid(target_user));
    if let Some((group, reason)) = wrong_group(&target_user.groups) {
        steps.push(ImpersonationStep::Never(verb.group_named(group), reason.to_owned()));
    } else {
        let groups: Vec<_> = target_user.groups.iter().map(|group| verb.group_named(group)).collect();
        steps.extend(reviews_of(groups, target_user.groups.len() >= BATCH_THRESHOLD, verb.group_named("*")));
    }
    if let Some(reason) = wrong_extra(&target_user.extra) {
        steps.push(ImpersonationStep::Never(verb.extra("", ""), reason));
    } else {
        let extras = verb.extras(&target_user.extra);
        // Values count, not keys.
        let are_many = extras.len() >= BATCH_THRESHOLD;
        steps.extend(reviews_of(extras, are_many, verb.extra("*", "*")));
    }
    ImpersonationMode { subject: None, steps, user: target_user.clone() }
}

fn reviews_of(each: Vec<AccessAttributes>, are_many: bool, all: AccessAttributes) -> Vec<ImpersonationStep> {
    if are_many {
        vec![ImpersonationStep::AllOrEach(all, each)]
    } else {
        each.into_iter().map(ImpersonationStep::Review).collect()
    }
}

fn wrong_group(groups: &[String]) -> Option<(&str, &str)> {
    if groups.iter().any(String::is_empty) {
        return Some(("", "impersonating the empty string group is not allowed"));
    }
    let has_masters = groups.iter().any(|group| group == MASTERS);
    has_masters.then_some((MASTERS, "impersonating the system:masters group is not allowed"))
}

fn wrong_extra(extra: &BTreeMap<String, Vec<String>>) -> Option<String> {
    extra.iter().find_map(|(key, values)| {
        if key.is_empty() {
            Some("impersonating the empty string key in extra is not allowed".to_owned())
        } else if let Some(wrong) = wrong_extra_key(key) {
            Some(format!("impersonating an invalid key in extra is not allowed: {wrong}"))
        } else if *key != key.to_lowercase() {
            let key = go_quote(key);
            Some(format!("impersonating a non-lowercase key in extra is not allowed: {key}"))
        } else if values.iter().any(String::is_empty) {
            Some("impersonating the empty string value in extra is not allowed".to_owned())
        } else {
            None
        }
    })
}

/// Whether the requestor is a service account whose token is bound to a pod of the node.
fn is_associated(requestor: &User, node: &str) -> bool {
    let is_service_account =
        matches!(ImpersonatedNameKind::parse(&requestor.name), ImpersonatedNameKind::ServiceAccount { .. });
    is_service_account && requestor.extra.get(NODE_NAME).is_some_and(|nodes| nodes.as_slice() == [node])
}

/// Returns a service account as it is reviewed when it acts as its node: the same on every node.
fn bound(requestor: &User) -> User {
    let keys = requestor.extra.keys().cloned().collect();
    User { extra: BTreeMap::from([(ASSOCIATED_KEYS.to_owned(), keys)]), ..requestor.clone() }
}

/// Returns the access to make a request while impersonating in a mode.
fn on(mode: &str, request: &AccessAttributes) -> AccessAttributes {
    AccessAttributes { verb: format!("impersonate-on:{mode}:{}", request.verb), target: request.target.clone() }
}

impl ImpersonationVerb<'_> {
    fn name(self, user: &str) -> AccessAttributes {
        match ImpersonatedNameKind::parse(user) {
            ImpersonatedNameKind::ServiceAccount { namespace, name } => {
                self.target("serviceaccounts", namespace, "", name)
            }
            _ => self.target("users", "", "", user),
        }
    }

    fn group_named(self, group: &str) -> AccessAttributes {
        self.target("groups", "", "", group)
    }

    fn uid(self, target_user: &User) -> Option<ImpersonationStep> {
        let verb = Self { group: AUTHENTICATION, ..self };
        (!target_user.uid.is_empty()).then(|| ImpersonationStep::Review(verb.target("uids", "", "", &target_user.uid)))
    }

    fn extra(self, key: &str, value: &str) -> AccessAttributes {
        Self { group: AUTHENTICATION, ..self }.target("userextras", "", key, value)
    }

    fn extras(self, extra: &BTreeMap<String, Vec<String>>) -> Vec<AccessAttributes> {
        extra.iter().flat_map(|(key, values)| values.iter().map(move |value| self.extra(key, value))).collect()
    }

    fn target(self, resource: &str, namespace: &str, subresource: &str, name: &str) -> AccessAttributes {
        let mut access = AccessAttributes::of_v1(self.verb, self.group, resource);
        if let AccessTarget::Resource(target) = &mut access.target {
            [target.subresource, target.namespace, target.name] = [subresource, namespace, name].map(str::to_owned);
        }
        access
    }
}

impl<'a> ImpersonatedNameKind<'a> {
    fn parse(user: &'a str) -> Self {
        if let Some(node) = user.strip_prefix("system:node:").filter(|node| is_dns_subdomain(node)) {
            return Self::Node(node);
        }
        let parts = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
        match parts {
            Some((namespace, name))
                if namespace.len() <= NAMESPACE_BYTES_MAX && is_dns_label(namespace) && is_dns_subdomain(name) =>
            {
                Self::ServiceAccount { namespace, name }
            }
            _ => Self::Other,
        }
    }
}

/// Returns the error in the key of an extra, in upstream's text. A key must be a domain-prefixed path.
fn wrong_extra_key(key: &str) -> Option<String> {
    let invalid = |value: &str, reason: &str| format!("extra.key: Invalid value: {}: {reason}", go_quote(value));
    let Some((host, path)) = key.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        return Some(invalid(key, "must be a domain-prefixed path (such as \"acme.io/foo\")"));
    };
    let mut wrong = Vec::new();
    if host.len() > ObjectKey::NAME_BYTES_MAX {
        wrong.push(invalid(host, "must be no more than 253 bytes"));
    }
    if !host.split('.').all(is_dns_label) {
        wrong.push(invalid(host, SUBDOMAIN_RULE));
    }
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
        wrong.push(invalid(path, PATH_RULE));
    }
    match wrong.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_node_and_service_account_names_are_plain_users() {
        for (user, expected) in [
            ("system:node:n1", ImpersonatedNameKind::Node("n1")),
            ("system:node:n1.example", ImpersonatedNameKind::Node("n1.example")),
            ("system:node:N1", ImpersonatedNameKind::Other),
            ("system:node:", ImpersonatedNameKind::Other),
            ("system:node:-n", ImpersonatedNameKind::Other),
            ("system:serviceaccount:t1:a.b", ImpersonatedNameKind::ServiceAccount { namespace: "t1", name: "a.b" }),
            ("system:serviceaccount:t.1:a", ImpersonatedNameKind::Other),
            ("system:serviceaccount:t1:a:b", ImpersonatedNameKind::Other),
            ("system:serviceaccount:t1:", ImpersonatedNameKind::Other),
            ("system:serviceaccount:t1-:a", ImpersonatedNameKind::Other),
            ("ada", ImpersonatedNameKind::Other),
        ] {
            assert_eq!(ImpersonatedNameKind::parse(user), expected, "{user}");
        }
        let long = format!("system:serviceaccount:{}:a", "n".repeat(64));
        assert_eq!(ImpersonatedNameKind::parse(&long), ImpersonatedNameKind::Other);
    }

    #[test]
    fn extra_key_must_be_a_domain_prefixed_path() {
        assert_eq!(wrong_extra_key("acme.io/foo"), None);
        assert_eq!(wrong_extra_key("acme.io/Foo/bar"), None);
        for (key, reason) in [
            ("scopes", "must be a domain-prefixed path"),
            ("/a", "must be a domain-prefixed path"),
            ("a/", "must be a domain-prefixed path"),
            ("Acme.io/foo", "a lowercase RFC 1123 subdomain"),
            ("acme.io/f oo", "Invalid path"),
        ] {
            let wrong = wrong_extra_key(key).expect(key);
            assert!(wrong.contains(reason) && wrong.starts_with("extra.key: Invalid value: "), "{wrong}");
        }
    }
}
