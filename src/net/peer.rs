use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::Connection;

use crate::base::Cut;

/// Who is at the other end of a connection, as far as the connection tells.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: PeerAddress,
    /// What a TLS client has shown of itself, its own certificate first. It has the key; who issued the certificate,
    /// for how long and for what, nobody has checked.
    pub certificates: Option<Arc<[CertificateDer<'static>]>>,
    pub connection: Connection,
    /// Ends this request and its answer at once: an HTTP/2 stream is reset, an HTTP/1.1 connection closed.
    pub cut: Cut,
}

/// Where a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    Tcp(SocketAddr),
    /// On this machine, as the kernel says.
    Unix {
        uid: Option<u32>,
    },
}
