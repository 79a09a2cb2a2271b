use tokio::time::Instant;

use crate::serve::activity::metrics::SharedResponseOrigin;

/// A response from upstream that callers share.
#[derive(Debug, Clone)]
pub(crate) struct TimedResponse<V> {
    /// A time before its request was sent.
    pub(crate) requested_at: Instant,
    pub(crate) value: V,
}

impl<V> TimedResponse<V> {
    /// Returns whether the response comes from a request since `called`, or from memory.
    pub(crate) fn origin(&self, called: Instant) -> SharedResponseOrigin {
        if self.requested_at >= called { SharedResponseOrigin::Upstream } else { SharedResponseOrigin::Memory }
    }
}
