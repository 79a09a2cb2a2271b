//! The rules for label keys and values, as in apimachinery's `pkg/api/validate/content`.

use crate::is_dns_subdomain;

const LABEL_BYTES_MAX: usize = 63;

/// Whether a label key is valid: an optional DNS subdomain and `/`, then a name.
pub(super) fn is_valid_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
    }
}

pub(super) fn is_valid_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= LABEL_BYTES_MAX
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
