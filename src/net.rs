//! Sockets, TLS and HTTP connections. Knows no Kubernetes.

mod address;
mod board;
mod client_certificates;
mod cork;
mod driven;
mod listener;
mod metrics;
mod peer;
mod serve;
mod tls;

pub use address::{Address, AddressError, is_loopback};
pub use listener::{Listener, bind_unix};
pub use peer::{Connection, Peer, PeerAddress};
pub use serve::{Limits, serve};
pub use tls::{ClientCertificates, Tls, TlsError};
