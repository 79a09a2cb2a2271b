//! Sockets, TLS and HTTP connections. Knows no Kubernetes.

mod address;
mod listener;
mod serve;
mod tls;

pub use address::{Address, AddressError};
pub use listener::{Listener, Peer, bind_unix};
pub use serve::{Limits, serve};
pub use tls::{Tls, TlsError};
