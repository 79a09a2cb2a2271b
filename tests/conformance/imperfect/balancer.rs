//! A TCP load balancer, like one in front of apiservers: it forwards connections and does not parse requests.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{Identity, Plane, Target};

pub struct Balancer {
    target: Target,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    /// Each as `HOST:PORT`.
    servers: Vec<String>,
    /// The server that the next connection tries first.
    next: AtomicUsize,
    /// The number of connections to each server.
    counts: Vec<AtomicU64>,
    /// Ends the open connections.
    cut: Mutex<CancellationToken>,
}

impl Balancer {
    /// Balances between servers that have certificates of the plane's authority.
    pub async fn start(plane: &Plane, servers: &[Target]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("https://{}", listener.local_addr().expect("it is bound"));
        let shared = Arc::new(Shared {
            servers: servers.iter().map(|server| server.host().to_owned()).collect(),
            next: AtomicUsize::new(0),
            counts: servers.iter().map(|_| AtomicU64::new(0)).collect(),
            cut: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self { target: Target { url, ..plane.target() }, shared, accepting }
    }

    /// The balancer as a server, with this caller's credentials.
    pub fn target(&self, identity: &Identity) -> Target {
        self.target.by(identity)
    }

    /// Ends all open connections. The next ones go to the servers in turn.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock().expect("not poisoned")).cancel();
    }

    /// The number of connections to each server.
    pub fn counts(&self) -> Vec<u64> {
        self.shared.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        drop(tokio::spawn(pass(client, shared.clone())));
    }
}

/// Forwards bytes to the next server that accepts the connection. Both sides notice its end.
async fn pass(mut client: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let cut = shared.cut.lock().expect("not poisoned").clone();
    let (first, servers) = (shared.next.fetch_add(1, Ordering::Relaxed), shared.servers.len());
    for at in (first..first + servers).map(|at| at % servers) {
        let Ok(mut server) = TcpStream::connect(&shared.servers[at]).await else { continue };
        shared.counts[at].fetch_add(1, Ordering::Relaxed);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        tokio::select! {
            passed = copy_bidirectional(&mut client, &mut server) => drop(passed?),
            () = cut.cancelled() => {}
        }
        return Ok(());
    }
    Ok(())
}
