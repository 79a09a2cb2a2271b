//! Sockets, TLS and HTTP connections. Knows no Kubernetes.

mod address;
mod board;
mod client_certificates;
mod connection;
mod cork;
mod crowd;
mod driven;
mod failures;
mod listener;
mod metrics;
mod peer;
mod places;
mod serve;
mod tls;

pub use address::{Address, AddressError, is_loopback};
pub use client_certificates::CERTIFICATES_MAX as CHAIN_CERTIFICATES_MAX;
pub use connection::Connection;
pub use listener::{Listener, bind_unix};
pub use peer::{Peer, PeerAddress};
pub use serve::{Limits, serve};
pub use tls::{ClientCertificates, Tls, TlsError};
