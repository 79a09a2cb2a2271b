//! Sockets, TLS and HTTP connections. This module knows nothing of Kubernetes.
//!
//! During a drain, the listener still accepts connections and serves their requests. Refusing them would cost leaders
//! their leases, because there may be no other process to serve them. Each HTTP/1.1 response then says `Connection:
//! close`. An HTTP/2 connection that arrives during the drain gets GOAWAY only when everything closes. An immediate
//! GOAWAY would make its client reconnect in a loop.
//!
//! No process needs to know whether it has a successor. On a socket that a parent process keeps, connections that are
//! not accepted wait for the next process. With `reusePort`, the listener drops new SYNs while it empties its queue.

mod connection;
mod connection_driver;
mod connection_limiter;
mod connection_limits;
mod connection_scheduler;
mod connections_by_owner;
mod filtered_stream;
mod handshakes;
mod http1;
mod hyper_http2;
mod inherited;
#[cfg(target_os = "linux")]
mod linux;
mod listener;
mod metrics;
#[cfg(not(target_os = "linux"))]
mod portable;
mod requests;
mod serve;
mod tls;
mod tls_stream;

pub use http2::IdleAwareBody;

pub use connection::{ConnectionPeer, DownstreamConnection, PeerAddress};
pub use connection_limits::{ConnectionLimits, Http2Codec};
pub use filtered_stream::{FilteredStream, ReadFilter};
pub use inherited::InheritedSockets;
pub use listener::{InMemoryConnector, ListenAddress, ListenAddressError, Listener, is_loopback};
pub use metrics::describe;
pub use requests::{HttpHandler, RequestBody};
pub use serve::serve;
pub use tls::{
    CHAIN_CERTIFICATES_MAX, CertificateInvalid, CertificateValidity, ClientCertificates, ListenerTls, TlsError, UtcTime,
};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use portable as system;
