//! The kinds of user names, which determine the modes of impersonation.

use kubeapi::{ObjectKey, is_dns_label, is_dns_subdomain};

/// The kind of a user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImpersonatedNameKind<'a> {
    Node(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
    Other,
}

impl<'a> ImpersonatedNameKind<'a> {
    pub(super) fn parse(user: &'a str) -> Self {
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

/// The maximum length of the name of a namespace.
const NAMESPACE_BYTES_MAX: usize = 63;
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                              or '.', and must start and end with an alphanumeric character (e.g. 'example.com', \
                              regex used for validation is \
                              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PATH_RULE: &str = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";

/// Returns the error in the key of an extra, in upstream's text. A key must be a domain-prefixed path.
pub(super) fn wrong_extra_key(key: &str) -> Option<String> {
    let invalid =
        |value: &str, reason: &str| format!("extra.key: Invalid value: {}: {reason}", kubeapi::go_quote(value));
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
