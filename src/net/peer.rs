use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::Connection;

use base::Cut;

/// The other end of a connection, as far as the connection tells.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: PeerAddress,
    /// The certificates that a TLS client has shown, its own first. The client has the key. Nobody has checked who
    /// issued the certificate, for how long and for what.
    pub certificates: Option<Arc<[CertificateDer<'static>]>>,
    pub connection: Connection,
    /// Ends this request and its answer at once: an HTTP/2 stream is reset, an HTTP/1.1 connection closed.
    pub cut: Cut,
}

/// The address of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    Tcp(SocketAddr),
    /// A process on this machine, as the kernel says.
    Unix {
        uid: Option<u32>,
    },
}
