use bytes::Bytes;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;

use super::cost::CostCounter;

/// The body of a request that is sent to upstream.
pub type UpstreamBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A request with its cost counter, which ensures that every request is counted.
#[derive(Debug)]
pub(super) struct CountedRequest {
    pub(super) request: Request<UpstreamBody>,
    pub(super) counter: CostCounter,
}
