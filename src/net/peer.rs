use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

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

/// The connection that a request came by. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    closing: CancellationToken,
}

impl Connection {
    /// Ends the connection after what runs on it: GOAWAY, or `Connection: close` with the answer that is on its way.
    pub fn close(&self) {
        self.closing.cancel();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Completes when somebody wants it closed.
    pub(super) async fn closing(&self) {
        self.closing.cancelled().await;
    }
}
