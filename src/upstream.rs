//! The client of the apiserver: credentials, connections, discovery, requests.
//!
//! **Invariants.** Watches, short requests and tunnels never share a connection. This keeps unread streams, and a
//! GOAWAY because of another caller's invalid credential, from ending a watch (R-HTTP-2, R-HTTP-3). Redirects are never
//! followed. A request that is not a read is retried only if its server has certainly not processed it. Of several
//! servers one is used at a time; while it is healthy, no other receives requests.

mod client;
mod connector;
mod cost;
mod credentials;
mod discovery;
mod endpoints;
mod error;
mod forward;
mod identity_headers;
mod inflate;
mod metrics;
mod peer;
mod pool;
mod readiness;
mod release;
mod retryable_request;
mod review;
mod secrecy;
#[cfg(test)]
pub(crate) mod tests;
mod transport;

pub(crate) use client::encoding_of;
pub use client::{CachedDocument, JsonListPage, UpstreamClient, UpstreamRequestKind, parse_json, read_status};
pub use connector::InMemoryUpstream;
pub use cost::{UpstreamCost, UpstreamCostTotals, UpstreamRequestCause};
pub use credentials::{CredentialError, CredentialPluginRunner, CredentialSource, run_plugins_by};
pub use discovery::{
    AggregatedDiscoveryList, ApiDefinition, ApiDefinitionKind, DiscoveryFailure, DiscoveryKind, DiscoveryName,
    DocumentRefusalBackoff, GroupDiscovery, PerApiDefinitionKind, ResourceCatalog, ResourceDiscovery, ResourceOrigin,
    SubresourceDiscovery, UpstreamResource, VersionDiscovery,
};
pub use endpoints::{EndpointTimings, ServerUrl, ServerUrlError, UpstreamEndpoints, UpstreamEndpointsConfig};
pub use error::{UnsendableRequest, UpstreamError};
pub use forward::{RequestForwarder, strip_hop_by_hop};
pub use identity_headers::{
    AmbiguousHeaders, CredentialId, RequestIdentity, inspect, is_front_proxy_header, is_impersonation,
};
pub use metrics::describe;
pub use peer::{KubernetesRelease, ServerBuild, UpstreamServer};
pub use pool::{ForwardPoolKind, UpstreamResponseBody};
pub use retryable_request::UpstreamBody;
pub use review::{
    ACCESS_REVIEWS, AccessReviewResult, ListedObject, METADATA_LIST, ReviewClient, ReviewFuture,
    SELF_SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, TokenReviewResult,
};

/// The maximum size in bytes of a response body that is read as a whole: a page of a LIST, a discovery document, a
/// Status.
pub const BODY_BYTES_MAX: usize = 512 << 20;

/// The header that lists the proxies a request has passed through, so that a proxy that is its own upstream detects the
/// loop (R-DOWNSTREAM-16).
pub const HOPS: http::HeaderName = http::HeaderName::from_static("kube-fanout-hops");
/// The header in which a proxy states the [`UpstreamRequestCause`] of a request that it sends for itself. Requests of
/// clients do not have it.
pub const CAUSE: http::HeaderName = http::HeaderName::from_static("kube-fanout-cause");
/// The request header in which a proxy states of which version it has all objects, and that it reads later events as
/// [differences](crate::wire::delta) to them. A response with the same header contains such differences. If its value is
/// `gzip`, initial events come first, as one gzip member (RFC 1952).
pub const DELTAS: http::HeaderName = http::HeaderName::from_static("kube-fanout-deltas-after");
/// The request header in which a proxy states that it reads gzip. It is not `Accept-Encoding`, because only another proxy
/// compresses a response once for all.
pub const PROXY_ACCEPT_ENCODING: http::HeaderName = http::HeaderName::from_static("kube-fanout-accept-encoding");
/// The response header in which a proxy names the apiserver build that encoded the bodies.
pub const BUILD: http::HeaderName = http::HeaderName::from_static("kube-fanout-build");
/// The response header that marks responses served from a proxy's memory.
pub const SERVED: http::HeaderName = http::HeaderName::from_static("kube-fanout-served");
/// The response header that states for how many seconds the feed of a response has been disconnected from upstream.
pub const STALE: http::HeaderName = http::HeaderName::from_static("kube-fanout-stale-seconds");
