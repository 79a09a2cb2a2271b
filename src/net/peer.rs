use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::Connection;

/// Who is at the other end of a connection, as far as the connection tells.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: PeerAddress,
    /// What a TLS client has shown of itself, its own certificate first. It has the key; who issued the certificate,
    /// for how long and for what, nobody has checked.
    pub certificates: Option<Arc<[CertificateDer<'static>]>>,
    pub connection: Connection,
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
