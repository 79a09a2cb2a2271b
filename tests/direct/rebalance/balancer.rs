//! One address for several replicas, like a Service: it assigns whole connections in turn to ready replicas.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::direct::{App, Client};

/// A running balancer, which stops when dropped.
pub struct Balancer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct Shared {
    replicas: Mutex<Vec<Replica>>,
    /// Connections that a replica considered ready did not accept, or for which no replica was ready.
    refused: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Replica {
    address: SocketAddr,
    admin: Client,
    is_ready: bool,
    /// Connections assigned to this replica. A new replica's count starts at the others' counts.
    given: u64,
}

impl Balancer {
    /// Starts without replicas. Probes the readiness of each once in a `period`.
    pub async fn begin(period: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::<Shared>::default();
        let probing = shared.clone();
        let probe = async move {
            loop {
                probing.probe().await;
                tokio::time::sleep(period).await;
            }
        };
        let accepting = shared.clone();
        let accept = async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(tokio::spawn(accepting.clone().carry(stream)));
            }
        };
        Self { address, shared, tasks: [tokio::spawn(probe), tokio::spawn(accept)] }
    }

    pub fn add(&self, app: &App) {
        let address = app.url().trim_start_matches("http://").parse().expect("an address");
        let replica = Replica { address, admin: app.admin_client().clone(), is_ready: false, given: 0 };
        self.shared.replicas.lock().push(replica);
    }

    /// Whether connections go to the replica of this number.
    pub fn is_ready(&self, replica: usize) -> bool {
        self.shared.replicas.lock()[replica].is_ready
    }

    /// Number of connections assigned to the replica of this number so far.
    pub fn given(&self, replica: usize) -> u64 {
        self.shared.replicas.lock()[replica].given
    }

    /// Failed connections with their reasons.
    pub fn refused(&self) -> Vec<String> {
        self.shared.refused.lock().clone()
    }
}

impl Shared {
    async fn probe(&self) {
        let admins: Vec<_> = self.replicas.lock().iter().map(|replica| replica.admin.clone()).collect();
        let probe_readyz = |admin: Client| async move {
            let answer = admin.request(Method::GET, "/readyz").try_send().await;
            answer.is_ok_and(|answer| answer.status == 200)
        };
        let ready = join_all(admins.into_iter().map(probe_readyz)).await;
        for (replica, is_ready) in self.replicas.lock().iter_mut().zip(ready) {
            replica.is_ready = is_ready;
        }
    }

    /// The ready replica with the fewest connections, which is each in turn if all were there from the beginning. A new
    /// one starts at the others' count, so that it does not get every new connection.
    fn next(&self) -> Option<SocketAddr> {
        let mut replicas = self.replicas.lock();
        let most = replicas.iter().filter(|replica| replica.is_ready).map(|replica| replica.given).max()?;
        for new in replicas.iter_mut().filter(|replica| replica.is_ready && replica.given == 0) {
            new.given = most;
        }
        let next = replicas.iter_mut().filter(|replica| replica.is_ready).min_by_key(|replica| replica.given)?;
        next.given += 1;
        Some(next.address)
    }

    async fn carry(self: Arc<Self>, mut near: TcpStream) {
        let Some(address) = self.next() else {
            self.refused.lock().push("no replica is ready".to_owned());
            return;
        };
        match TcpStream::connect(address).await {
            Ok(mut far) => drop(copy_bidirectional(&mut near, &mut far).await),
            Err(error) => self.refused.lock().push(format!("{address}: {error}")),
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
