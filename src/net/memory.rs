use std::net::SocketAddr;

use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use super::PeerAddress;

/// Connects to a [`Listener`](super::Listener) within this process, without a socket. Simulations use it, because the
/// kernel does not follow their clock.
#[derive(Debug, Clone)]
pub struct InMemoryConnector {
    arrivals: mpsc::Sender<PendingConnection>,
    buffer_bytes: usize,
}

/// A connection that waits to be accepted.
pub(super) type PendingConnection = (DuplexStream, PeerAddress);

/// The maximum number of in-memory connections that wait to be accepted.
const WAITING_MAX: usize = 1024;

impl InMemoryConnector {
    /// Creates a connector whose connections buffer `buffer_bytes` in each direction, and the receiver of its
    /// connections.
    pub(super) fn new(buffer_bytes: usize) -> (Self, mpsc::Receiver<PendingConnection>) {
        let (arrivals, accepted) = mpsc::channel(WAITING_MAX);
        (Self { arrivals, buffer_bytes }, accepted)
    }

    /// Opens an in-memory connection from an address; `None` if the listener is gone, or too many connections wait.
    pub fn connect(&self, from: SocketAddr) -> Option<DuplexStream> {
        let (near, far) = tokio::io::duplex(self.buffer_bytes);
        self.arrivals.try_send((far, PeerAddress::Tcp(from))).ok()?;
        Some(near)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use crate::net::{Listener, PeerAddress};

    #[tokio::test]
    async fn in_memory_listener_drains_pending_connections_at_end() {
        let (address, from) = (([127, 0, 0, 1], 8001).into(), ([127, 0, 0, 1], 40_000).into());
        let (listener, connector) = Listener::in_memory(address, 1024);
        let mut near = connector.connect(from).expect("somebody listens");
        let (mut far, peer) = listener.accept().await.expect("it waits");
        assert_eq!(peer, PeerAddress::Tcp(from));
        near.write_all(b"hello").await.expect("it is open");
        let mut read = [0; 5];
        far.read_exact(&mut read).await.expect("it was written");
        assert_eq!(&read, b"hello");
        let _waits = connector.connect(from).expect("somebody listens");
        let mut taken = 0;
        listener.end(|_| taken += 1).await;
        assert_eq!(taken, 1);
        assert!(connector.connect(from).is_none());
    }
}
