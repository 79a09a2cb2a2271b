use std::sync::atomic::{AtomicBool, Ordering};

use http::header::STRICT_TRANSPORT_SECURITY;
use http::{HeaderMap, HeaderValue};
use parking_lot::RwLock;

/// Upstream's `Strict-Transport-Security` header (`--strict-transport-security-directives`), learned from its responses
/// to the proxy's own requests.
#[derive(Debug, Default)]
pub(super) struct HstsHeader {
    /// Whether the server has sent the header. Most servers send none, and readers then take no lock.
    is_sent: AtomicBool,
    value: RwLock<Option<HeaderValue>>,
}

impl HstsHeader {
    pub(super) fn update(&self, headers: &HeaderMap) {
        let received = headers.get(STRICT_TRANSPORT_SECURITY);
        if received.is_none() && !self.is_sent.load(Ordering::Relaxed) || received == self.value.read().as_ref() {
            return;
        }
        *self.value.write() = received.cloned();
        self.is_sent.store(received.is_some(), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<HeaderValue> {
        if self.is_sent.load(Ordering::Relaxed) { self.value.read().clone() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hsts_header_of_last_response_is_used() {
        let policy = HstsHeader::default();
        let response =
            |value: &'static str| HeaderMap::from_iter([(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(value))]);
        for (headers, expected) in [
            (HeaderMap::new(), None),
            (response("max-age=1"), Some("max-age=1")),
            (response("max-age=1"), Some("max-age=1")),
            (response("max-age=2,preload"), Some("max-age=2,preload")),
            (HeaderMap::new(), None),
            (response("max-age=1"), Some("max-age=1")),
        ] {
            policy.update(&headers);
            assert_eq!(policy.get().as_ref().and_then(|value| value.to_str().ok()), expected);
        }
    }
}
