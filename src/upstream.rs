//! The apiserver as we see it: credentials, connections, discovery, requests.
//!
//! **Invariants.** Watches, short requests and tunnels never share a connection: a stream that is not read, or a GOAWAY
//! for somebody's bad credential, must not end a watch (R-HTTP-2, R-HTTP-3). Redirects are never
//! followed. A request that is not a read is sent again only if its server has certainly not processed it. Of several
//! servers one is used at a time; while it is well nothing is sent to another.

mod acting_as;
mod build;
mod caller_pools;
mod client;
mod cost;
mod credentials;
mod dial;
mod discovery;
mod endpoints;
mod error;
mod forward;
mod forward_pool;
mod identity_headers;
mod link;
mod metrics;
mod outgoing;
mod peer;
mod plugins;
mod pool;
mod readiness;
mod release;
mod resend;
mod review;
mod runtime;
mod secrecy;
mod server_url;
mod stream_limit;
mod strict_transport;
mod token_file;

pub use acting_as::{ActingAs, CredentialId};
pub use build::{Build, Release};
pub(crate) use client::encoding_of;
pub use client::{Client, Question, SharedDocument, read_status};
pub use cost::{Cause, Cost, CostLedger};
pub use credentials::{CredentialError, CredentialSource};
pub use dial::MemoryUpstream;
pub use discovery::{
    Catalog, Declaration, DeclaringResource, DiscoveryDocuments, DiscoveryFailure, Documents, RefusalBackoff, Resource,
    ResourceOrigin,
};
pub use endpoints::{EndpointTimes, Endpoints, EndpointsConfig};
pub use error::{Error, Unsendable};
pub use forward::{Forwarder, strip_hop_by_hop};
pub use forward_pool::ForwardPool;
pub use identity_headers::{Ambiguous, inspect, is_asserted, is_impersonation};
pub use link::CredentialChanges;
pub use metrics::describe;
pub use outgoing::UpstreamBody;
pub use peer::Server;
pub use plugins::{PluginRunner, run_plugins_by};
pub use pool::ResponseBody;
pub use review::{ACCESS_REVIEWS, AccessVerdict, TOKEN_REVIEWS, TokenVerdict};
pub use server_url::{ServerUrl, ServerUrlError};

/// Largest body that is read whole: one page of a LIST, a discovery document, a Status.
pub const BODY_BYTES_MAX: usize = 512 << 20;

/// Names the proxies that a request has passed, so that one that is its own upstream notices (R-DOWNSTREAM-16).
pub const HOPS: http::HeaderName = http::HeaderName::from_static("kube-fanout-hops");
/// Says to a proxy what another one asks it for itself ([`Cause`]). What clients ask has no such header.
pub const CAUSE: http::HeaderName = http::HeaderName::from_static("kube-fanout-cause");
/// Says to a proxy of an answer of another proxy which build of the apiserver has written its bodies.
pub const BUILD: http::HeaderName = http::HeaderName::from_static("kube-fanout-build");
/// Says of an answer that a proxy has it from its memory.
pub const SERVED: http::HeaderName = http::HeaderName::from_static("kube-fanout-served");
