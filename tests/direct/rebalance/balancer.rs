//! One address for several replicas, as a Service is one: whole connections, in turn, to those that say that they are
//! ready.

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

/// A running balancer, which ends when it is dropped.
pub struct Balancer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct Shared {
    replicas: Mutex<Vec<Replica>>,
    /// Connections that a replica which was taken for ready did not accept, or that found none ready.
    refused: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Replica {
    address: SocketAddr,
    admin: Client,
    is_ready: bool,
    /// Connections that it was given, those included that others had been given when it was new.
    given: u64,
}

impl Balancer {
    /// Begins without replicas. Each is asked whether it is ready once in a `period`.
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

    /// How many connections the replica of this number was given so far.
    pub fn given(&self, replica: usize) -> u64 {
        self.shared.replicas.lock()[replica].given
    }

    /// Connections that came to nothing, and why.
    pub fn refused(&self) -> Vec<String> {
        self.shared.refused.lock().clone()
    }
}

impl Shared {
    async fn probe(&self) {
        let admins: Vec<_> = self.replicas.lock().iter().map(|replica| replica.admin.clone()).collect();
        let ask = |admin: Client| async move {
            let answer = admin.request(Method::GET, "/readyz").try_send().await;
            answer.is_ok_and(|answer| answer.status == 200)
        };
        let ready = join_all(admins.into_iter().map(ask)).await;
        for (replica, is_ready) in self.replicas.lock().iter_mut().zip(ready) {
            replica.is_ready = is_ready;
        }
    }

    /// The ready replica that was given least: where all were there from the beginning, that is each in turn. A new one
    /// is not given everything that comes: it begins where the others are.
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
