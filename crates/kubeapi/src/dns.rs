//! DNS names (RFC 1123), as in apimachinery's `pkg/api/validate/content`.

use super::ObjectKey;

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
