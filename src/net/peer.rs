use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::Connection;

use base::AbortSignal;

/// The other end of a connection, as far as the connection identifies it.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: PeerAddress,
    /// The certificate chain that a TLS client has sent, its own certificate first.
    ///
    /// The client has proven that it has the key. The issuer, the validity and the usage are not verified.
    pub certificates: Option<Arc<[CertificateDer<'static>]>>,
    pub connection: Connection,
    /// Ends a request and its response at once: an HTTP/2 stream is reset, an HTTP/1.1 connection closed.
    pub cut: AbortSignal,
}

/// The address of a connected client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    Tcp(SocketAddr),
    /// A process on this machine, with its user as the kernel reports it.
    Unix {
        uid: Option<u32>,
    },
}
