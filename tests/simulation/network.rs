//! A network within this process: connections whose bytes are delayed, held, or lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::Notify;
use tokio::sync::watch;
use tokio::time::sleep;

/// Connections of one kind: those of a client, or those to upstream.
#[derive(Clone)]
pub struct Network {
    terms: Arc<watch::Sender<Terms>>,
}

/// The current behaviour of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// New connections are refused.
    pub refuses: bool,
    /// Nothing is transferred.
    pub is_held: bool,
    /// Delay of a piece in each direction.
    pub latency: Duration,
    /// Maximum bytes of a piece.
    pub piece_bytes: usize,
    /// Incremented to cut all open connections.
    cuts: u32,
    /// Incremented to make all open connections dead: sent bytes are lost silently.
    deaths: u32,
}

/// Bytes under way in one direction.
const UNDER_WAY_BYTES: usize = 16 << 10;

impl Network {
    pub fn new(latency: Duration, piece_bytes: usize) -> Self {
        let terms = Terms { refuses: false, is_held: false, latency, piece_bytes, cuts: 0, deaths: 0 };
        Self { terms: Arc::new(watch::Sender::new(terms)) }
    }

    /// Wraps `dial` so that its connections pass through this network.
    pub fn over(
        &self,
        dial: impl Fn() -> Option<DuplexStream> + Send + Sync + 'static,
    ) -> impl Fn() -> Option<DuplexStream> + Send + Sync + 'static {
        let terms = self.terms.clone();
        move || {
            if terms.borrow().refuses {
                return None;
            }
            let (near, mine) = duplex(UNDER_WAY_BYTES);
            drop(tokio::spawn(relay(mine, dial()?, terms.subscribe())));
            Some(near)
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut Terms)) {
        self.terms.send_modify(change);
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        self.change(|terms| terms.cuts += 1);
    }

    /// Loses all bytes that are sent on the open connections from now on.
    pub fn deaden(&self) {
        self.change(|terms| terms.deaths += 1);
    }
}

/// Transfers bytes in both directions until both have ended, or the connection is cut.
async fn relay(near: DuplexStream, far: DuplexStream, mut terms: watch::Receiver<Terms>) {
    let cuts = terms.borrow_and_update().cuts;
    let ((near_reads, near_writes), (far_reads, far_writes)) = (split(near), split(far));
    let given_up = Notify::new();
    let there = carry(near_reads, far_writes, terms.clone(), &given_up);
    let back = carry(far_reads, near_writes, terms.clone(), &given_up);
    let carrying = async { tokio::join!(there, back) };
    tokio::select! {
        biased;
        _ = terms.wait_for(|terms| terms.cuts != cuts) => {}
        () = given_up.notified() => {}
        _ = carrying => {}
    }
}

async fn carry(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut terms: watch::Receiver<Terms>,
    given_up: &Notify,
) -> io::Result<()> {
    let mut piece = vec![0; UNDER_WAY_BYTES];
    let deaths = terms.borrow().deaths;
    loop {
        let bytes_max = terms.borrow().piece_bytes.min(UNDER_WAY_BYTES);
        let bytes = from.read(&mut piece[..bytes_max]).await?;
        let latency = terms.borrow().latency;
        if !latency.is_zero() {
            sleep(latency).await;
        }
        // An error means that the network is dropped, and then nothing can change any more.
        let _ = terms.wait_for(|terms| !terms.is_held).await;
        if terms.borrow().deaths != deaths {
            if bytes == 0 {
                given_up.notify_one();
                return Ok(());
            }
            continue;
        }
        if bytes == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..bytes]).await?;
    }
}
