use std::sync::atomic::{AtomicBool, Ordering};

use http::header::STRICT_TRANSPORT_SECURITY;
use http::{HeaderMap, HeaderValue};
use parking_lot::RwLock;

/// Upstream's `Strict-Transport-Security` header (`--strict-transport-security-directives`), learned from its responses
/// to the proxy's own requests.
#[derive(Debug, Default)]
pub(super) struct HstsHeader {
    /// Whether the server has sent the header. Most servers send none, and readers then take no lock.
    is_said: AtomicBool,
    said: RwLock<Option<HeaderValue>>,
}

impl HstsHeader {
    pub(super) fn learn(&self, headers: &HeaderMap) {
        let said = headers.get(STRICT_TRANSPORT_SECURITY);
        if said.is_none() && !self.is_said.load(Ordering::Relaxed) || said == self.said.read().as_ref() {
            return;
        }
        *self.said.write() = said.cloned();
        self.is_said.store(said.is_some(), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<HeaderValue> {
        if self.is_said.load(Ordering::Relaxed) { self.said.read().clone() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hsts_header_of_last_response_is_used() {
        let policy = HstsHeader::default();
        let answer =
            |said: &'static str| HeaderMap::from_iter([(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(said))]);
        for (headers, expected) in [
            (HeaderMap::new(), None),
            (answer("max-age=1"), Some("max-age=1")),
            (answer("max-age=1"), Some("max-age=1")),
            (answer("max-age=2,preload"), Some("max-age=2,preload")),
            (HeaderMap::new(), None),
            (answer("max-age=1"), Some("max-age=1")),
        ] {
            policy.learn(&headers);
            assert_eq!(policy.get().as_ref().and_then(|said| said.to_str().ok()), expected);
        }
    }
}
