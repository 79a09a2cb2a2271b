use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The key of an object in its collection: the string `namespace/name`, or `name` if it has no namespace.
///
/// Keys are ordered bytewise as that *string*, because that is the apiserver's list order: `-` and `.` sort before `/`,
/// so all of namespace `t1-a` precedes `t1` (R-LIST-4). Ordering by the tuple would be wrong.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    path: Arc<str>,
}

impl ObjectKey {
    /// The maximum length of an object's name in bytes: that of a DNS subdomain (RFC 1123).
    pub const NAME_BYTES_MAX: usize = 253;

    /// Creates a key. An empty `namespace` means cluster-scoped.
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            Self { path: name.into() }
        } else {
            Self { path: [namespace, "/", name].concat().into() }
        }
    }

    /// Creates a key from its string form, or a bound between keys.
    pub fn from_path(path: &str) -> Self {
        Self { path: path.into() }
    }

    pub fn as_str(&self) -> &str {
        &self.path
    }

    /// Returns the namespace; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Returns the namespace that the object is in. For a `Namespace`, it is the object itself.
    pub fn namespace_or_name(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// Returns the namespace and the name of the object.
    pub fn parts(&self) -> (&str, &str) {
        self.path.split_once('/').unwrap_or(("", &self.path))
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Whether `name` is a DNS subdomain, like the names of nodes and service accounts. Each label may be as long as the
/// whole name.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= ObjectKey::NAME_BYTES_MAX && name.split('.').all(is_dns_label)
}

/// Whether `label` is a DNS label of any length: `[a-z0-9]([-a-z0-9]*[a-z0-9])?`.
pub fn is_dns_label(label: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_name_must_be_valid_kubernetes_name() {
        for name in ["n1", "ip-10-0-0-1.eu-west-1.compute.internal", "a.b"] {
            assert!(is_dns_subdomain(name), "{name}");
        }
        for name in ["", "N1", "n1,metadata.name!=x", "a..b", "-a", "a-", "a b", &"a".repeat(254)] {
            assert!(!is_dns_subdomain(name), "{name}");
        }
    }
}
