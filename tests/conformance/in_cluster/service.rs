//! A Service, as kube-proxy serves it on a node (R-CLIENT-9).

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Connects clients to the first of its endpoints. Changed endpoints apply to new connections only.
pub struct Service {
    endpoints: watch::Sender<Vec<SocketAddr>>,
    accepting: JoinHandle<()>,
}

impl Service {
    /// Listens on the Service's address, without endpoints.
    pub async fn listen(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (endpoints, current) = watch::channel(Vec::<SocketAddr>::new());
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let first = current.borrow().first().copied();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(first?).await else { return None };
                    tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()
                });
            }
        });
        Ok(Self { endpoints, accepting })
    }

    /// Replaces the ready endpoints, of which the node's own is first.
    pub fn ready(&self, endpoints: &[SocketAddr]) {
        self.endpoints.send_replace(endpoints.to_vec());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
