//! A balancer of connections, as a load balancer in front of apiservers is: it sees bytes, and no requests.

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
    /// `HOST:PORT` each.
    servers: Vec<String>,
    /// Where the next connection goes first.
    next: AtomicUsize,
    /// How many connections went to each server.
    counts: Vec<AtomicU64>,
    /// Ends the connections that there are.
    cut: Mutex<CancellationToken>,
}

impl Balancer {
    /// Balances between servers that show certificates of the plane's authority.
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

    /// What looks like one server, for this caller.
    pub fn target(&self, identity: &Identity) -> Target {
        self.target.by(identity)
    }

    /// Ends all connections that there are. Where the next ones go is a matter of their order.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock().expect("not poisoned")).cancel();
    }

    /// How many connections went to each server.
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

/// Passes bytes on to the next server that takes the connection. Both sides see when it is over.
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
